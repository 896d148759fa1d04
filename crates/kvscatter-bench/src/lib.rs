//! Times writes into a KV cache, and compares them with the machine's limit.
//!
//! 1. A [`Case`] describes what is written: shape, rows, positions, how warm the memory is. It comes from data or from
//!    a command line, and is valid once it exists.
//! 2. A [`Scene`] is that case in memory: painted caches and updates on pages of a known size.
//! 3. An [`Engine`] does the write: [`engines`] has ours and the two yardsticks, `memcpy` and a hand-written loop
//!    of memcpys; others are adapters that implement the same trait.
//!
//! Every engine's result is compared, whole buffer, with what the independent oracle expects before it is timed.
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
#[expect(unsafe_code, reason = "only this module copies without bounds checks and has threads that borrow")]
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
pub use measure::{Budget, Progress, measure};
pub use raw::Pool;
pub use report::{EngineOutcome, Noise, Outcome, Report, Times};
pub use scene::Scene;
pub use statistics::{MedianSpread, Spread, Timings};
pub use variation::{Medians, RatioRange, Variation};
