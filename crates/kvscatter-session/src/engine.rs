//! The interface to a program that runs models: an [`Engine`] loads a model, a [`Session`] runs it on [`Tensor`]s.
//!
//! The caller owns every tensor. It passes a cache either as one tensor that past and present share, or as two, and can
//! read it after the run. So a caller can check every claim about memory.

use std::time::Duration;

use kvscatter::ElementType;
use kvscatter_onnx::ModelFile;

use crate::{SessionError, Tensor};

/// A program that runs ONNX models.
pub trait Engine {
    /// Its name, such as `ONNX Runtime`.
    fn name(&self) -> &str;

    /// Its version, such as `1.31.1`.
    fn version(&self) -> &str;

    /// The device that it computes on, such as `CPU`.
    fn device(&self) -> &str;

    /// Loads a model with its external data. Every location of that data was checked before.
    ///
    /// # Errors
    /// [`SessionError::Load`] with the engine's message.
    fn load(&self, model: &ModelFile, options: LoadOptions) -> Result<Box<dyn Session>, SessionError>;
}

/// Options of [`Engine::load`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct LoadOptions {
    /// Threads of one operator; the engine's choice if `None`.
    pub threads: Option<usize>,
}

impl LoadOptions {
    /// The most threads that a caller should ask for. Starting more can stall the machine, and engines count them in 32
    /// bits.
    pub const MAX_THREADS: usize = 1024;
}

/// A loaded model.
pub trait Session: Send {
    /// Allocates a tensor of zeros in memory that this engine can write a present to in place.
    ///
    /// # Errors
    /// As [`Tensor::zeros`].
    fn zeros(&self, element: ElementType, shape: &[usize]) -> Result<Tensor, SessionError> {
        Tensor::zeros(element, shape)
    }

    /// Runs the model once.
    ///
    /// # Errors
    /// [`SessionError::Run`] with the engine's message. The caches are still there, but rows may have been written.
    /// [`SessionError::CacheLost`] if the engine cannot return a cache.
    fn run(&mut self, step: Step<'_>) -> Result<StepOutput, SessionError>;
}

/// The tensors of one run, by the names of inputs and outputs.
///
/// Every input of the model must be named once, in `inputs` or in `shared`. Outputs that are not named are not computed
/// for the caller. The borrows ensure that no tensor is read as one input and written as another output.
#[derive(Debug, Default)]
pub struct Step<'a> {
    /// Inputs that are only read.
    pub inputs: Vec<(&'a str, &'a Tensor)>,
    /// Caches whose present overwrites their past.
    pub shared: Vec<InPlaceCache<'a>>,
    /// Outputs that are written to the caller's tensors. The shapes must be exact.
    pub outputs: Vec<(&'a str, &'a mut Tensor)>,
    /// Outputs whose shape only the engine knows. They are returned in [`StepOutput::returned`].
    pub returned: Vec<&'a str>,
}

/// A cache that is input and output at once.
#[derive(Debug)]
pub struct InPlaceCache<'a> {
    /// The input.
    pub past: &'a str,
    /// The output.
    pub present: &'a str,
    /// The memory of both.
    pub cache: &'a mut Tensor,
}

/// The results of a run.
#[derive(Debug)]
pub struct StepOutput {
    /// The outputs of [`Step::returned`], in that order, copied after the time was taken.
    pub returned: Vec<Tensor>,
    /// The address that the engine reports for each present of [`Step::shared`], in that order.
    pub present_at: Vec<usize>,
    /// The time of the run, without its preparation and without copying the returned outputs.
    pub elapsed: Duration,
}
