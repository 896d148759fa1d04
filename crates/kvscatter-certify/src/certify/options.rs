//! The options of a certification.

use std::path::PathBuf;

use kvscatter_session::LoadOptions;

use crate::certificate::Machine;

/// The options of [`certify`](crate::certify). An option that is `None` gets a default that fits the model.
#[derive(Clone, Debug)]
pub struct CertifyOptions {
    /// The model's file.
    pub model: PathBuf,
    /// The file of the model that `model` was made from. The two must give equal logits.
    pub original: Option<PathBuf>,
    /// The number of samples in a batch.
    pub batch: Option<usize>,
    /// The number of tokens in each sample's prompt.
    pub prompts: Option<Vec<usize>>,
    /// The number of decode steps after the prompts.
    pub steps: Option<usize>,
    /// The largest number of tokens in a step of a chunked prefill.
    pub chunk: Option<usize>,
    /// The number of slots of each sample. The model must leave it open, or have the same.
    pub capacity: Option<usize>,
    /// The seed of the random tokens and canaries.
    pub seed: u64,
    /// The largest absolute difference between logits that counts as equal.
    pub tolerance: Option<f64>,
    /// The number of threads of the engine. With one thread, sums are always taken in the same order.
    pub threads: usize,
    /// The limit in bytes for the caches and logits that are needed at once.
    pub memory: u64,
    /// Whether the models are also timed, which takes longer.
    pub is_timed: bool,
    /// The command that is recorded in the certificate.
    pub command: String,
    /// The machine that is recorded in the certificate.
    pub machine: Machine,
    /// The time that is recorded in the certificate.
    pub made_at: Option<String>,
}

impl CertifyOptions {
    /// Returns the options with which the engine runs whole steps.
    pub(super) fn load_options(&self) -> LoadOptions {
        LoadOptions { threads: Some(self.threads) }
    }
}
