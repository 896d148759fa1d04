//! What a measurement found.

use serde::Serialize;

use crate::case::Case;
use crate::expected::Reference;
use crate::statistics::{MedianSpread, Spread, Timings};

/// One case, every engine.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// What was measured.
    pub case: Case,
    /// The instructions that kvscatter's kernels use for it; `None` if it refuses the case.
    pub isa: Option<String>,
    /// What results were compared with.
    pub checked_by: Reference,
    /// In the order they were given.
    pub entries: Vec<EngineOutcome>,
    /// How far one engine is from itself; `None` if none was measured.
    pub noise: Option<Noise>,
}

/// One engine.
#[derive(Clone, Debug, Serialize)]
pub struct EngineOutcome {
    /// The engine.
    pub engine: String,
    /// How it went.
    #[serde(flatten)]
    pub outcome: Outcome,
}

/// How it went.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "kebab-case", tag = "outcome", content = "detail")]
pub enum Outcome {
    /// Its result was right, and these are its times.
    Measured(Times),
    /// Its result was wrong, and it was not timed: the first difference.
    Wrong(String),
    /// It gave up, and was not timed.
    Failed(String),
    /// It cannot do this case.
    Unsupported(String),
}

/// Times per call in nanoseconds.
#[derive(Clone, Debug, Serialize)]
pub struct Times {
    /// The write.
    pub write: Timings,
    /// The write and one pass over what was written, as attention reads it soon after; in cold cases.
    pub write_and_read: Option<Timings>,
}

/// The A/A spread: an engine measured twice, as if it were two.
#[derive(Clone, Debug, Serialize)]
pub struct Noise {
    /// The engine.
    pub engine: String,
    /// Its second time over its first: medians of blocks of rounds.
    pub spread: MedianSpread,
}

impl Report {
    /// The times of an engine that was measured.
    #[must_use]
    pub fn times(&self, engine: &str) -> Option<&Times> {
        match &self.entries.iter().find(|entry| entry.engine == engine)?.outcome {
            Outcome::Measured(times) => Some(times),
            Outcome::Wrong(_) | Outcome::Failed(_) | Outcome::Unsupported(_) => None,
        }
    }

    /// An engine's write over a baseline's, round by round; `None` unless both were measured.
    #[must_use]
    pub fn ratio(&self, engine: &str, baseline: &str) -> Option<Spread> {
        Some(self.times(engine)?.write.over(&self.times(baseline)?.write))
    }

    /// As [`ratio`](Self::ratio), of writing and reading back.
    #[must_use]
    pub fn ratio_with_read(&self, engine: &str, baseline: &str) -> Option<Spread> {
        let [engine, baseline] = [engine, baseline].map(|name| self.times(name)?.write_and_read.as_ref());
        Some(engine?.over(baseline?))
    }

    /// Bytes that one call moves per nanosecond of an engine's median: GB/s.
    #[must_use]
    pub fn bandwidth(&self, engine: &str) -> Option<f64> {
        Some(self.case.moved_bytes() as f64 / self.times(engine)?.write.spread().median)
    }
}
