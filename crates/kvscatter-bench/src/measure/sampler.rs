//! What takes a sample: an engine whose turn it is, on a scene.

use crate::call::Task;
use crate::engine::{Failed, Run};
use crate::scene::Scene;

/// An engine that has passed its check.
pub(super) struct Lane<'e> {
    pub(super) name: &'e str,
    pub(super) task: Task,
    pub(super) run: Box<dyn Run>,
}

/// One sample, in nanoseconds per call.
#[derive(Clone, Copy, Debug)]
pub(super) struct TimeSample {
    pub(super) write: f64,
    pub(super) write_and_read: Option<f64>,
}

/// Whose sample is next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Turn {
    pub(super) lane: usize,
    /// Which of a round's turns it is: one for each lane, and a second one for the A/A spread.
    pub(super) seat: usize,
    pub(super) seats: usize,
    pub(super) round: usize,
}

/// How samples of a temperature are taken.
pub(super) trait Sampler {
    fn sample(&mut self, scene: &mut Scene, lanes: &mut [Lane<'_>], turn: Turn)
    -> Result<TimeSample, Failed>;
}
