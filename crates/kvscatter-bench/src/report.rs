//! The results of a measurement.

use serde::Serialize;

use crate::case::Case;
use crate::expected::Reference;
use crate::statistics::{MedianSpread, Spread, Timings};

/// The results of every engine for one case.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The case that was measured.
    pub case: Case,
    /// The instruction set that kvscatter's kernels use for the case, or `None` if kvscatter does not support
    /// the case.
    pub isa: Option<String>,
    /// The code that computed the expected results.
    pub checked_by: Reference,
    /// The outcome of each engine, in the order in which the engines were given.
    pub entries: Vec<EngineOutcome>,
    /// The A/A spread, or `None` if no engine was measured.
    pub noise: Option<Noise>,
}

/// The outcome of one engine.
#[derive(Clone, Debug, Serialize)]
pub struct EngineOutcome {
    /// The name of the engine.
    pub engine: String,
    /// What the check and the measurement of the engine returned.
    #[serde(flatten)]
    pub outcome: Outcome,
}

/// The outcome of one engine.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "kebab-case", tag = "outcome", content = "detail")]
pub enum Outcome {
    /// The result was correct. Contains the times.
    Measured(Times),
    /// The result was wrong, so the engine was not timed. Contains the first difference.
    Wrong(String),
    /// The engine returned an error and was not timed. Contains the error.
    Failed(String),
    /// The engine does not support this case. Contains the reason.
    Unsupported(String),
}

/// Times per call in nanoseconds.
#[derive(Clone, Debug, Serialize)]
pub struct Times {
    /// The times of the write.
    pub write: Timings,
    /// The times of the write and one read of the written rows, as attention reads them soon after. `None` in
    /// hot cases.
    pub write_and_read: Option<Timings>,
}

/// The A/A spread: one engine, measured twice in every round as if it were two engines.
#[derive(Clone, Debug, Serialize)]
pub struct Noise {
    /// The name of the engine.
    pub engine: String,
    /// The ratio of its second time to its first, as medians of blocks of rounds.
    pub spread: MedianSpread,
}

impl Report {
    /// Returns the times of an engine that was measured.
    #[must_use]
    pub fn times(&self, engine: &str) -> Option<&Times> {
        match &self.entries.iter().find(|entry| entry.engine == engine)?.outcome {
            Outcome::Measured(times) => Some(times),
            Outcome::Wrong(_) | Outcome::Failed(_) | Outcome::Unsupported(_) => None,
        }
    }

    /// Returns the ratios of an engine's write to a baseline's, round by round, or `None` unless both were
    /// measured.
    #[must_use]
    pub fn ratio(&self, engine: &str, baseline: &str) -> Option<Spread> {
        Some(self.times(engine)?.write.over(&self.times(baseline)?.write))
    }

    /// Returns the ratios like [`ratio`](Self::ratio), for a write and a read of the written rows.
    #[must_use]
    pub fn ratio_with_read(&self, engine: &str, baseline: &str) -> Option<Spread> {
        let [engine, baseline] = [engine, baseline].map(|name| self.times(name)?.write_and_read.as_ref());
        Some(engine?.over(baseline?))
    }

    /// Returns the number of bytes that one call moves, divided by an engine's median time, in GB/s.
    #[must_use]
    pub fn bandwidth(&self, engine: &str) -> Option<f64> {
        Some(self.case.moved_bytes() as f64 / self.times(engine)?.write.spread().median)
    }
}
