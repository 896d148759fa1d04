//! What was measured, and its target.

use serde::{Deserialize, Serialize};

use super::decoder::Decoder;
use super::measure::Measured;
use crate::host::Host;

/// How often the cache handling must be faster, at the longest context.
pub(super) const TARGET: f64 = 5.0;

/// What was measured, on what.
#[derive(Serialize, Deserialize)]
pub(super) struct Results {
    pub(super) host: Host,
    /// Name and version of the runtime.
    pub(super) runtime: String,
    pub(super) quick: bool,
    pub(super) decoder: Decoder,
    pub(super) capacity: usize,
    pub(super) at: Vec<Measured>,
}
