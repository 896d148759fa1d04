//! The options of a certification.

use std::path::PathBuf;

use kvscatter_session::LoadOptions;

use crate::certificate::Machine;

/// The options of [`certify`](crate::certify). `None` stands for a default that fits the model.
#[derive(Clone, Debug)]
pub struct CertifyOptions {
    /// The path of the model's file.
    pub model: PathBuf,
    /// The path of the file of the model that `model` was made from. Both models must give equal logits.
    pub original: Option<PathBuf>,
    /// The number of samples in a batch.
    pub batch: Option<usize>,
    /// The number of tokens in each sample's prompt.
    pub prompts: Option<Vec<usize>>,
    /// The number of decode steps after the prompts.
    pub steps: Option<usize>,
    /// The maximum number of tokens of one sample in a step of a chunked prefill.
    pub chunk: Option<usize>,
    /// The number of slots of each sample. If the model fixes the capacity,
    /// this must be the same number.
    pub capacity: Option<usize>,
    /// The seed of the random tokens and canaries.
    pub seed: u64,
    /// The largest absolute difference between logits that counts as equal.
    pub tolerance: Option<f64>,
    /// The number of threads of the engine. With one thread, sums are always taken in the same order.
    pub threads: usize,
    /// The maximum number of bytes of the caches and logits that are needed at once.
    pub memory: u64,
    /// Whether the models are also timed. This takes longer.
    pub is_timed: bool,
    /// The command line that the certificate records.
    pub command: String,
    /// The machine that the certificate records.
    pub machine: Machine,
    /// The time that the certificate records, or `None` for a certificate without a time.
    pub made_at: Option<String>,
}

impl CertifyOptions {
    /// Returns the options for loading a model whose whole steps are run.
    pub(super) fn load_options(&self) -> LoadOptions {
        LoadOptions { threads: Some(self.threads) }
    }
}
