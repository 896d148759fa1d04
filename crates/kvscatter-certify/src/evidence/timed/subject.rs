//! The models that are timed.

use kvscatter_onnx::{Model, ModelFile};
use kvscatter_session::{Engine, Interface, LoadOptions};

/// A model, its original, and the engine that runs them.
pub(crate) struct TimedModels<'a> {
    pub(crate) engine: &'a dyn Engine,
    pub(crate) model: Timed<'a>,
    pub(crate) original: Option<Timed<'a>>,
    /// The number of slots of each sample in the static caches.
    pub(crate) capacity: usize,
    /// The options for whole steps. The nodes of a single cache always run on one thread.
    pub(crate) options: LoadOptions,
}

/// A model to be timed.
#[derive(Clone, Copy)]
pub(crate) struct Timed<'a> {
    pub(crate) file: &'a ModelFile,
    pub(crate) model: &'a Model,
    /// The model's inputs and outputs, with every dimension of a row known.
    pub(crate) interface: &'a Interface,
}

/// Returns the median of at least one time.
pub(super) fn median(mut times: Vec<f64>) -> f64 {
    times.sort_unstable_by(f64::total_cmp);
    (times[(times.len() - 1) / 2] + times[times.len() / 2]) / 2.0
}
