//! Measures writes into a KV cache, and compares their times with `memcpy` and a hand-written loop.
//!
//! 1. A [`Case`] describes the write: the shape, the rows, the positions, and how warm the memory is. It is
//!    created from data or from a command line, and is always valid.
//! 2. A [`Scene`] is a case in memory: painted caches and updates on pages of a known size.
//! 3. An [`Engine`] does the write. [`engines`] contains kvscatter and the two yardsticks, `memcpy` and a
//!    hand-written loop of memcpys. Adapters for other libraries implement the same trait.
//!
//! A *hot* case repeats a call on one cache. A *cold* case writes the keys and values of many layers in turn,
//! as a decoder does. The *A/A spread* is the difference between two measurements of one engine, which shows
//! the noise.
//!
//! Before an engine is timed, its whole buffers are compared with the result that the independent oracle
//! expects.
#![deny(unsafe_code)]

mod call;
mod case;
mod engine;
pub mod engines;
mod error;
mod expected;
mod histogram;
pub mod ink;
mod layout;
mod machine;
mod measure;
mod memory;
mod paint;
#[expect(
    unsafe_code,
    reason = "only this module copies without bounds checks and shares borrowed data with threads"
)]
mod raw;
mod report;
mod scene;
mod statistics;
mod variation;

pub use call::{Buffers, Call, Task};
pub use case::{CacheDims, Case, Form, Pages, Parameters, StartRule, Starts, Temperature, UpdateLayout};
pub use engine::{Engine, Failed, Run, Unsupported};
pub use error::BenchError;
pub use expected::Reference;
pub use histogram::Histogram;
pub use layout::crosses_halves;
pub use machine::Machine;
pub use measure::{Budget, Progress, measure, measure_calls};
pub use raw::Pool;
pub use report::{EngineOutcome, Noise, Outcome, Report, Times};
pub use scene::Scene;
pub use statistics::{MedianSpread, Spread, Timings};
pub use variation::{Medians, RatioRange, Variation};
