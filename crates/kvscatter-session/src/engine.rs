//! The interface to a program that runs models. An [`Engine`] loads a model, and a [`Session`] runs it on
//! [`Tensor`]s.
//!
//! The caller owns every tensor, so it can read them all after a run and check every claim about memory. It
//! passes a cache either as one tensor that past and present share, or as two tensors.

use std::fmt;
use std::ops::Range;
use std::time::Duration;

use kvscatter::ElementType;
use kvscatter_onnx::ModelFile;
use serde::{Deserialize, Serialize};

use crate::error::SessionError;
use crate::tensor::Tensor;

/// A program that runs ONNX models.
pub trait Engine {
    /// Returns the engine's name, such as `ONNX Runtime`.
    fn name(&self) -> &str;

    /// Returns the engine's version, such as `1.31.1`.
    fn version(&self) -> &str;

    /// Returns the device that the engine computes on, such as `CPU`.
    fn device(&self) -> &str;

    /// Returns the name and version of the plugin that this engine uses, such as `kvscatter 0.1.0`. Returns
    /// `None` if it uses none.
    fn plugin(&self) -> Option<&str> {
        None
    }

    /// Loads a model with its external data. The caller has already checked every location of that data.
    ///
    /// The engine must compute with the values of the file, also of initializers that are inputs too. Sessions never
    /// feed such inputs. An engine that replaces values, such as one with adapters, would break
    /// [`KvSession::load`](crate::KvSession::load), which identifies a model by its file.
    ///
    /// # Errors
    /// Returns [`SessionError::Load`] with the engine's message.
    fn load(&self, model: &ModelFile, options: LoadOptions) -> Result<Box<dyn Session>, SessionError>;
}

/// Formats an engine's name, version and plugin, such as `ONNX Runtime 1.31.1 with plugin kvscatter 0.1.0`.
#[must_use]
pub fn engine_label(name: &str, version: &str, plugin: Option<&str>) -> String {
    let plugin = plugin.map(|plugin| format!(" with plugin {plugin}")).unwrap_or_default();
    format!("{name} {version}{plugin}")
}

/// Options of [`Engine::load`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct LoadOptions {
    /// The number of threads that compute one operator. If `None`, the engine chooses the number.
    pub threads: Option<usize>,
}

impl LoadOptions {
    /// The largest number of threads that a caller should request. More threads can stall the machine, and
    /// engines store the number in 32 bits.
    pub const MAX_THREADS: usize = 1024;
}

/// The nodes of ONNX Runtime's `GroupQueryAttention` in a loaded model, and which kernels compute them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupQueryNodes {
    /// The number of nodes, which is not 0.
    pub nodes: usize,
    /// The number of nodes that the engine's [plugin](Engine::plugin) computes. The engine's own kernel computes the
    /// others.
    pub in_plugin: usize,
}

/// Formats the numbers as a sentence without a full stop.
impl fmt::Display for GroupQueryNodes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { nodes, in_plugin } = *self;
        let noun = if nodes == 1 { "GroupQueryAttention node" } else { "GroupQueryAttention nodes" };
        match in_plugin {
            0 => write!(f, "the engine's own kernel computes {nodes} of {nodes} {noun}"),
            _ => write!(f, "the plugin computes {in_plugin} of {nodes} {noun}"),
        }
    }
}

/// A loaded model.
pub trait Session: Send {
    /// Allocates a tensor of zeros in the memory that suits this engine: it can write a present there in place, and
    /// read an input without a copy.
    ///
    /// # Errors
    /// Returns [`SessionError::TensorTooLarge`] if the tensor cannot be allocated.
    fn zeros(&self, element: ElementType, shape: &[usize]) -> Result<Tensor, SessionError> {
        Tensor::zeros(element, shape)
    }

    /// Returns `true` if a run can cover some samples of a batch ([`Step::samples`]).
    fn takes_some_samples(&self) -> bool {
        false
    }

    /// Returns which kernels compute the nodes of ONNX Runtime's `GroupQueryAttention`. Returns `None` if the model has
    /// no such node.
    fn group_query_nodes(&self) -> Option<GroupQueryNodes> {
        None
    }

    /// Runs the model once.
    ///
    /// # Errors
    /// - Returns [`SessionError::Run`] with the engine's message. The caches still exist, but rows may have
    ///   been written.
    /// - Returns [`SessionError::CacheLost`] if the engine cannot return a cache.
    fn run(&mut self, step: Step<'_>) -> Result<StepOutput, SessionError>;
}

/// The tensors of one run, with the names of the inputs and outputs.
///
/// Every input of the model must be named once, in `inputs`, `of_batch` or `shared`. Outputs that are not named are
/// not returned. The borrows ensure that no tensor is read as one input and written as another output.
#[derive(Debug, Default)]
pub struct Step<'a> {
    /// The names and tensors of inputs that are only read.
    pub inputs: Vec<(&'a str, &'a Tensor)>,
    /// The samples that the run covers, or `None` for all samples.
    ///
    /// If this is set, the tensors in `of_batch`, `shared` and `outputs` have the samples of a whole batch in their
    /// first dimension, and the run reads and writes the [part](Tensor::part) of these samples. The tensors in
    /// `inputs` have these samples only.
    pub samples: Option<Range<usize>>,
    /// The names and tensors of other inputs that are only read. A run of some samples reads their part.
    pub of_batch: Vec<(&'a str, &'a Tensor)>,
    /// The caches whose present overwrites their past.
    pub shared: Vec<InPlaceCache<'a>>,
    /// The names of outputs that are written to tensors of the caller. The shapes must be exact.
    pub outputs: Vec<(&'a str, &'a mut Tensor)>,
    /// The names of outputs whose shape only the engine knows. The run returns them in
    /// [`StepOutput::returned`].
    pub returned: Vec<&'a str>,
}

/// A cache that is an input and an output of the run.
#[derive(Debug)]
pub struct InPlaceCache<'a> {
    /// The name of the model's input for the cache.
    pub past: &'a str,
    /// The name of the model's output for the cache.
    pub present: &'a str,
    /// The tensor that the input and the output use.
    pub cache: &'a mut Tensor,
}

/// The results of a run.
#[derive(Debug)]
pub struct StepOutput {
    /// The outputs of [`Step::returned`], in that order. They can be in the engine's memory, and they can be inputs of
    /// later steps in the same engine.
    pub returned: Vec<Tensor>,
    /// The address that the engine reports for each present of [`Step::shared`], in that order.
    pub present_at: Vec<usize>,
    /// The time of the run, without its preparation and without taking its outputs.
    pub elapsed: Duration,
}
