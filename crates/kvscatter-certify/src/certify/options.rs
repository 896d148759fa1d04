//! What a caller chooses of a certification.

use std::path::PathBuf;

use kvscatter_session::LoadOptions;

use crate::certificate::Machine;

/// Options of [`certify`](crate::certify). Those that are `None` get a value that fits the model.
#[derive(Clone, Debug)]
pub struct CertifyOptions {
    /// The model's file.
    pub model: PathBuf,
    /// The file of the model that it was made from, whose logits it must give.
    pub original: Option<PathBuf>,
    /// Samples in a batch.
    pub batch: Option<usize>,
    /// Tokens in the prompt of each sample.
    pub prompts: Option<Vec<usize>>,
    /// Decode steps after the prompts.
    pub steps: Option<usize>,
    /// The most tokens in a step of a chunked prefill.
    pub chunk: Option<usize>,
    /// Slots of each sample, where the model leaves them open.
    pub capacity: Option<usize>,
    /// What tokens and canaries are drawn from.
    pub seed: u64,
    /// The largest absolute difference between logits that counts as equal.
    pub tolerance: Option<f64>,
    /// Threads of the engine; one unless said otherwise, so that sums are taken in one order.
    pub threads: usize,
    /// The most bytes that caches and logits may take at once.
    pub memory: u64,
    /// Whether times are taken as well, which takes a while.
    pub is_timed: bool,
    /// The command that asks for it, for the record.
    pub command: String,
    /// Where it runs, for the record.
    pub machine: Machine,
    /// When, for the record.
    pub made_at: Option<String>,
}

impl CertifyOptions {
    /// How the engine runs whole steps.
    pub(super) fn load_options(&self) -> LoadOptions {
        LoadOptions { threads: Some(self.threads) }
    }
}
