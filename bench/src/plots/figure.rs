//! The data of a plot.

use super::axis::Axis;

/// A plot that can be drawn.
pub(crate) struct Figure {
    /// The title above the plot.
    pub(super) title: &'static str,
    /// One line that describes the measurement.
    pub(super) subtitle: String,
    pub(super) file_stem: String,
    pub(super) x: Axis,
    pub(super) y: Axis,
    pub(super) lines: Vec<PlotLine>,
}

/// The line of one engine over all cases of a plot.
pub(crate) struct PlotLine {
    pub(crate) name: String,
    pub(crate) look: Look,
    /// The points from left to right.
    pub(crate) points: Vec<(f64, f64)>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Look {
    /// The limit, which is a copy with libc.
    Limit,
    Ours,
    Peer(u32),
}
