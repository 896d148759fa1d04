//! Times and sizes in a certificate. Nothing here is measured.

use serde::{Deserialize, Serialize};

/// What was timed, counted and weighed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Timings {
    /// The time of a cache's own nodes at two capacities; absent if no cache has nodes of its own.
    pub cache_path: Option<CachePathTimes>,
    /// Bytes that a decode step moves in the caches. Computed from shapes, not measured.
    pub bytes_moved: Option<BytesMoved>,
    /// Peak memory of a run.
    pub peak_memory: Vec<PeakMemory>,
    /// The time of whole decode steps.
    pub decode: Option<DecodeTimes>,
}

/// The time of the nodes between a cache's past and its present, and of nothing else, at several capacities. Each
/// cache is timed by itself; this is the one whose time grows most.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CachePathTimes {
    /// How many caches were timed.
    pub caches: usize,
    /// The one whose times these are, by its past input.
    pub cache: String,
    /// Samples in the batch.
    pub batch: usize,
    /// The slot that is written.
    pub context: usize,
    /// Interleaved rounds.
    pub rounds: usize,
    /// The time at each capacity, smallest first.
    pub at: Vec<CapacityTime>,
    /// The shortest time at the largest capacity over the shortest at the smallest.
    pub ratio: f64,
    /// The ratio up to which the time counts as flat.
    pub flat_up_to: f64,
}

/// A time at a capacity.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CapacityTime {
    /// Slots of each sample.
    pub capacity: usize,
    /// Bytes of the cache.
    pub cache_bytes: u64,
    /// The median time of a call, in nanoseconds.
    pub median_ns: f64,
    /// The shortest, in nanoseconds.
    pub fastest_ns: f64,
}

/// Bytes that a decode step reads and writes in the caches to bring them up to date.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BytesMoved {
    /// Samples in the batch.
    pub batch: usize,
    /// Slots, and for a growing cache tokens, of each sample.
    pub capacity: usize,
    /// In place: each new row is read once and written once.
    pub in_place: u64,
    /// Growing or copied: every row is read and written, the new ones included.
    pub copied: u64,
}

/// The most memory that a process held while it ran a model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeakMemory {
    /// Which model.
    pub of: ComparedModel,
    /// Samples in the batch.
    pub batch: usize,
    /// Decode steps that were run.
    pub steps: usize,
    /// Tokens of each sample after them; the static caches have room for as many.
    pub context: usize,
    /// Resident bytes beyond those held before the first step; absent where the system does not tell.
    pub bytes: Option<u64>,
}

/// A model of the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ComparedModel {
    /// The one that was examined.
    Model,
    /// The one that it was compared with.
    Original,
}

/// Times of whole decode steps.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DecodeTimes {
    /// Samples in the batch.
    pub batch: usize,
    /// Slots of each sample in the static caches.
    pub capacity: usize,
    /// Interleaved rounds.
    pub rounds: usize,
    /// The time at each context length, shortest first.
    pub at: Vec<DecodeTime>,
    /// Where the model begins to be faster than the original; absent without an original.
    pub crossover: Option<Crossover>,
}

/// The time of one decode step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DecodeTime {
    /// Tokens of each sample before the step.
    pub context: usize,
    /// The examined model's median, in nanoseconds.
    pub model_ns: f64,
    /// The original's median, in nanoseconds.
    pub original_ns: Option<f64>,
}

/// Where a static cache begins to pay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Crossover {
    /// The model is faster at every context length that was timed.
    Always,
    /// The original is faster at every context length that was timed.
    Never,
    /// The original is faster below this context length, which lies between two that were timed.
    From(usize),
    /// The two take turns: no length divides them beyond the noise.
    Unclear,
}
