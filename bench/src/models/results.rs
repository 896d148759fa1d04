//! The results of a run, and the target.

use serde::{Deserialize, Serialize};

use super::decoder::Decoder;
use super::measure::Measured;
use crate::host::Host;

/// The smallest allowed speedup of the cache handling at the longest context.
pub(super) const TARGET: f64 = 5.0;

/// All context lengths of a run, and the machine.
#[derive(Serialize, Deserialize)]
pub(super) struct Results {
    pub(super) host: Host,
    /// The name and the version of the runtime.
    pub(super) runtime: String,
    pub(super) quick: bool,
    pub(super) decoder: Decoder,
    pub(super) capacity: usize,
    pub(super) at: Vec<Measured>,
}
