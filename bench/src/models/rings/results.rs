//! The results of the benchmark of rings.

use kvscatter_bench::{MedianSpread, Spread};
use serde::{Deserialize, Serialize};

use crate::host::Host;
use crate::models::decoder::Decoder;
use crate::target::Verdict;

/// The number of tokens of a sample.
pub(super) const CAPACITY: usize = 32768;
pub(super) const WINDOW: usize = 512;

pub(super) const RINGS: &str = "rings";
pub(super) const LINEAR: &str = "linear";
pub(super) const RING_MASK: &str = "mask of the rings";

/// All results of a run, and the machine.
#[derive(Serialize, Deserialize)]
pub(super) struct Results {
    pub(super) host: Host,
    /// The name and the version of the runtime.
    pub(super) runtime: String,
    pub(super) quick: bool,
    pub(super) decoder: Decoder,
    /// The number of layers of the decoder whose layers all have a window.
    pub(super) windowed_layers: usize,
    /// The bytes of all caches of the whole decoder, with rings and with linear caches.
    pub(super) bytes: [u64; 2],
    pub(super) bytes_verdict: Verdict,
    pub(super) windowed: Measured,
    /// The same without the plugin.
    pub(super) stock_windowed: Measured,
    /// The whole decoder, at one context length each.
    pub(super) whole: Vec<Measured>,
}

/// The steps of one decoder at several context lengths.
#[derive(Serialize, Deserialize)]
pub(super) struct Measured {
    pub(super) contexts: Vec<usize>,
    pub(super) columns: Vec<Column>,
    /// The A/A spread of the first column at the first context length.
    pub(super) noise: MedianSpread,
    pub(super) verdicts: Vec<Verdict>,
    /// The largest difference between the logits of two decoders.
    pub(super) difference: f32,
}

/// The times of one form of a decoder in nanoseconds, by context length.
#[derive(Serialize, Deserialize)]
pub(super) struct Column {
    pub(super) name: String,
    pub(super) times: Vec<Spread>,
    /// The ratios of this form to rings, within a round.
    pub(super) over_rings: Vec<Spread>,
}

impl Results {
    pub(super) fn verdicts(&self) -> impl Iterator<Item = &Verdict> {
        [&self.bytes_verdict]
            .into_iter()
            .chain(&self.windowed.verdicts)
            .chain(self.whole.iter().flat_map(|it| &it.verdicts))
    }
}
