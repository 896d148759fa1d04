//! What was measured, and its target.

use kvscatter_bench::{MedianSpread, Spread};
use serde::{Deserialize, Serialize};

use crate::host::Host;

/// How many times as long as the core's call the adapter's may take.
pub(super) const TARGET: f64 = 1.1;

/// What was measured, on what.
#[derive(Serialize, Deserialize)]
pub(super) struct Results {
    pub(super) host: Host,
    pub(super) quick: bool,
    pub(super) cases: Vec<Measured>,
}

/// One case, every engine that can do it.
#[derive(Serialize, Deserialize)]
pub(super) struct Measured {
    pub(super) name: String,
    pub(super) element: String,
    pub(super) starts: String,
    pub(super) engines: Vec<Time>,
    /// How far the core's call is from itself.
    pub(super) noise: Option<MedianSpread>,
}

/// One engine.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct Time {
    pub(super) name: String,
    /// Nanoseconds per call.
    pub(super) time: Spread,
    /// Over the core's call, the same rounds compared.
    pub(super) over_core: Option<Spread>,
    /// The adapter's writer over this engine, likewise.
    pub(super) writer_over: Option<Spread>,
}
