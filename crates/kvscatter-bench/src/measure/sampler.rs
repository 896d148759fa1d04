//! The interface between the rounds of a measurement and the two ways to take samples.

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

/// The engine and round of the next sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Turn {
    pub(super) lane: usize,
    /// The index of the turn within a round. Each lane has one turn, and one lane has a second turn for the
    /// A/A spread.
    pub(super) seat: usize,
    pub(super) seats: usize,
    pub(super) round: usize,
}

/// A way to take samples, for hot or for cold cases.
pub(super) trait Sampler {
    fn sample(&mut self, scene: &mut Scene, lanes: &mut [Lane<'_>], turn: Turn)
    -> Result<TimeSample, Failed>;
}
