//! The interface of everything that is timed: kvscatter, other libraries and the yardsticks.

use crate::call::{Call, Task};
use crate::case::Case;
use crate::scene::Scene;

/// An implementation of the write, or a yardstick.
pub trait Engine {
    /// Returns the name that tables show.
    fn name(&self) -> &str;

    /// Returns the result that is expected. A yardstick may do something other than the write.
    fn task(&self) -> Task {
        Task::Write
    }

    /// Does everything that a host program would do once for each shape.
    ///
    /// # Errors
    /// Returns [`Unsupported`] if the engine does not support this case.
    fn prepare(&self, case: &Case, scene: &Scene) -> Result<Box<dyn Run>, Unsupported>;
}

/// An engine that is ready for one case.
pub trait Run {
    /// Prepares new positions before a call uses them. This is not timed.
    ///
    /// Values that a host program would have ready, such as the offsets of a hand-written loop, are computed
    /// here. Values that a library computes in every call belong in [`run`](Self::run).
    fn aim(&mut self, starts: &[i64]) {
        let _ = starts;
    }

    /// Makes one call on the buffers of the scene, for one cache or for the keys and the values of a layer.
    /// This is timed.
    ///
    /// # Errors
    /// Returns the engine's error. If the engine is being checked, the measurement continues without it.
    /// Otherwise the measurement stops with [`BenchError::Engine`](crate::BenchError::Engine).
    fn run(&mut self, call: &mut Call<'_>) -> Result<(), Failed>;

    /// Copies results into the caches or presents of the call so that they can be checked. This is not timed.
    ///
    /// It runs after [`run`](Self::run), for engines whose library always allocates its results.
    ///
    /// # Errors
    /// Returns the engine's error. The measurement continues without this engine.
    fn publish(&mut self, call: &mut Call<'_>) -> Result<(), Failed> {
        let _ = call;
        Ok(())
    }
}

/// The reason why an engine does not support a case, in a few words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unsupported(pub String);

/// The error that an engine returns if a call fails.
pub type Failed = Box<dyn std::error::Error + Send + Sync>;
