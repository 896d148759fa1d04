//! What does a write: our library, its peers, the yardsticks.

use crate::call::{Call, Task};
use crate::case::Case;
use crate::scene::Scene;

/// Something that can write a case.
pub trait Engine {
    /// What tables call it.
    fn name(&self) -> &str;

    /// What it is expected to do; yardsticks do something else than the write.
    fn task(&self) -> Task {
        Task::Write
    }

    /// Everything a host would do once per shape.
    ///
    /// # Errors
    /// [`Unsupported`] if it cannot do this case.
    fn prepare(&self, case: &Case, scene: &Scene) -> Result<Box<dyn Run>, Unsupported>;
}

/// An engine that is ready for one case.
pub trait Run {
    /// New positions, before they are used. What the peer is handed ready-made, such as a hand-written loop's
    /// offsets, is computed here, untimed; what it computes in every call stays in [`run`](Self::run).
    fn aim(&mut self, starts: &[i64]) {
        let _ = starts;
    }

    /// One call on the scene's buffers: one cache, or the keys and the values of a layer. This is what is timed.
    ///
    /// # Errors
    /// The engine's error; the case then continues without it.
    fn run(&mut self, call: &mut Call<'_>) -> Result<(), Failed>;

    /// After a [`run`](Self::run), untimed: an engine whose library always allocates its results copies them
    /// into the caches (or presents) of the call, so that it can be verified.
    ///
    /// # Errors
    /// The engine's error; the case then continues without it.
    fn publish(&mut self, call: &mut Call<'_>) -> Result<(), Failed> {
        let _ = call;
        Ok(())
    }
}

/// Why an engine cannot do a case, in a few words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unsupported(pub String);

/// An engine's error when a call fails.
pub type Failed = Box<dyn std::error::Error + Send + Sync>;
