//! What is timed.

use kvscatter_onnx::{Model, ModelFile};
use kvscatter_session::{Engine, Interface, LoadOptions};

/// A model, its original, and how they are run.
pub(crate) struct TimedModels<'a> {
    pub(crate) engine: &'a dyn Engine,
    pub(crate) model: Timed<'a>,
    pub(crate) original: Option<Timed<'a>>,
    /// Slots of each sample in the static caches.
    pub(crate) capacity: usize,
    /// How whole steps are run. A cache's own nodes are run by one thread.
    pub(crate) options: LoadOptions,
}

/// A model to be timed.
#[derive(Clone, Copy)]
pub(crate) struct Timed<'a> {
    pub(crate) file: &'a ModelFile,
    pub(crate) model: &'a Model,
    /// Settled: no dimension of a row is open.
    pub(crate) interface: &'a Interface,
}
