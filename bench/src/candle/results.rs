//! The results of a run, and the target.

use kvscatter_bench::{MedianSpread, Spread};
use serde::{Deserialize, Serialize};

use crate::host::Host;

/// The largest allowed ratio of the adapter's time to that of the core's call.
pub(super) const TARGET: f64 = 1.1;

/// All cases of a run, and the machine.
#[derive(Serialize, Deserialize)]
pub(super) struct Results {
    pub(super) host: Host,
    pub(super) quick: bool,
    pub(super) cases: Vec<Measured>,
}

/// One case with every engine that supports it.
#[derive(Serialize, Deserialize)]
pub(super) struct Measured {
    pub(super) name: String,
    pub(super) element: String,
    pub(super) starts: String,
    pub(super) engines: Vec<Time>,
    /// The A/A spread, measured with the core's call.
    pub(super) noise: Option<MedianSpread>,
}

/// The times of one engine.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct Time {
    pub(super) name: String,
    /// The nanoseconds per call.
    pub(super) time: Spread,
    /// The ratio to the core's call, within a round.
    pub(super) over_core: Option<Spread>,
    /// The ratio of the adapter's writer to this engine, within a round.
    pub(super) writer_over: Option<Spread>,
}
