//! The times and sizes of a certificate. This module only defines the data.

use serde::{Deserialize, Serialize};

/// The times, byte counts and memory use that were measured or computed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Timings {
    /// The times of the nodes that update a cache, or `None` if no cache can be separated from its decoder.
    pub cache_path: Option<CachePathTimes>,
    /// The number of bytes that a decode step moves in the caches, computed from shapes and not measured.
    pub bytes_moved: Option<BytesMoved>,
    /// The peak memory of a run, for each model.
    pub peak_memory: Vec<PeakMemory>,
    /// The times of whole decode steps, or `None` if they were not measured.
    pub decode: Option<DecodeTimes>,
}

/// The time of the nodes between a cache's past and its present, at several capacities.
///
/// Each cache is timed separately, without the rest of the model. The times are those of the cache whose time
/// grows most with the capacity.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CachePathTimes {
    /// The number of caches that were timed.
    pub caches: usize,
    /// The name of the graph input that is the past of this cache.
    pub cache: String,
    /// The number of samples in the batch.
    pub batch: usize,
    /// The index of the slot that is written, counted from 0.
    pub context: usize,
    /// The number of rounds. Each round measures every capacity once.
    pub rounds: usize,
    /// The times for each capacity, smallest capacity first.
    pub at: Vec<CapacityTime>,
    /// The shortest time at the largest capacity, divided by the shortest time at the smallest capacity.
    pub ratio: f64,
    /// The largest ratio for which the time counts as constant.
    pub flat_up_to: f64,
}

/// The time at one capacity.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CapacityTime {
    /// The number of slots of each sample.
    pub capacity: usize,
    /// The number of bytes of the cache.
    pub cache_bytes: u64,
    /// The median time of a call, in nanoseconds.
    pub median_ns: f64,
    /// The shortest time of a call, in nanoseconds.
    pub fastest_ns: f64,
}

/// The bytes that a decode step reads and writes to update the caches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BytesMoved {
    /// The number of samples in the batch.
    pub batch: usize,
    /// The number of slots of each sample, or of tokens for a growing cache.
    pub capacity: usize,
    /// The number of bytes for caches that are written in place. Each new row is read once and written once.
    pub in_place: u64,
    /// The number of bytes for caches that grow or are copied. Every row is read and written, including the
    /// new ones.
    pub copied: u64,
}

/// The peak memory of a process that ran a model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeakMemory {
    /// Which of the two models ran.
    pub of: ComparedModel,
    /// The number of samples in the batch.
    pub batch: usize,
    /// The number of decode steps that were run.
    pub steps: usize,
    /// The number of tokens of each sample after the last step. This is also the capacity of static caches.
    pub context: usize,
    /// The peak number of resident bytes, less the number before the first step. `None` if the system does
    /// not report it.
    pub bytes: Option<u64>,
}

/// One of the two models that are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ComparedModel {
    /// The model that was examined.
    Model,
    /// The model that it was compared with.
    Original,
}

/// Times of whole decode steps.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DecodeTimes {
    /// The number of samples in the batch.
    pub batch: usize,
    /// The number of slots of each sample in the static caches.
    pub capacity: usize,
    /// The number of rounds. Each round measures every model once.
    pub rounds: usize,
    /// The times for each context length, shortest context first.
    pub at: Vec<DecodeTime>,
    /// The context length from which the model is faster than the original, or `None` without an original.
    pub crossover: Option<Crossover>,
}

/// The time of one decode step at one context length.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DecodeTime {
    /// The number of tokens of each sample before the step.
    pub context: usize,
    /// The median time of the examined model, in nanoseconds.
    pub model_ns: f64,
    /// The median time of the original, in nanoseconds, or `None` without an original.
    pub original_ns: Option<f64>,
}

/// The context length from which a static cache is faster than a growing one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Crossover {
    /// The model is faster at every context length that was timed.
    Always,
    /// The original is faster at every context length that was timed.
    Never,
    /// The original is faster below this context length. The length is between two that were timed.
    From(usize),
    /// No context length separates the two models beyond the noise.
    Unclear,
}
