//! What a plot shows.

use super::axis::Axis;

/// A plot, ready to be drawn.
pub(crate) struct Figure {
    /// The title over it.
    pub(super) title: &'static str,
    /// What was measured, in one line.
    pub(super) subtitle: String,
    pub(super) file_stem: String,
    pub(super) x: Axis,
    pub(super) y: Axis,
    pub(super) lines: Vec<PlotLine>,
}

/// One engine over all cases of a plot.
pub(crate) struct PlotLine {
    pub(crate) name: String,
    pub(crate) look: Look,
    /// From left to right.
    pub(crate) points: Vec<(f64, f64)>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Look {
    /// The limit of a copy with libc.
    Limit,
    Ours,
    Peer(u32),
}
