//! What runs a model: an engine loads it, a session runs it on memory of ours.
//!
//! Everything that is claimed about memory is seen from here: the caller holds every tensor, hands a cache over either
//! as one that past and present share or as two, and looks at it after the run.

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

    /// What it computes on, such as `CPU`.
    fn device(&self) -> &str;

    /// Loads a model with its external data. Every location of that data was checked before.
    ///
    /// # Errors
    /// [`SessionError::Load`] with the engine's own words.
    fn load(&self, model: &ModelFile, options: LoadOptions) -> Result<Box<dyn Session>, SessionError>;
}

/// How a session runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct LoadOptions {
    /// Threads of one operator; the engine's choice if `None`.
    pub threads: Option<usize>,
}

impl LoadOptions {
    /// The most threads that a caller should ask for: starting more can stall the machine, and engines count them in 32
    /// bits.
    pub const MAX_THREADS: usize = 1024;
}

/// A loaded model.
pub trait Session: Send {
    /// A tensor of zeros in memory that this engine can write a present to in place.
    ///
    /// # Errors
    /// As [`Tensor::zeros`].
    fn zeros(&self, element: ElementType, shape: &[usize]) -> Result<Tensor, SessionError> {
        Tensor::zeros(element, shape)
    }

    /// Runs the model once.
    ///
    /// # Errors
    /// [`SessionError::Run`] with the engine's own words. The caches are there as before, but rows of theirs may have been
    /// written; [`SessionError::CacheLost`] where that cannot be.
    fn run(&mut self, step: Step<'_>) -> Result<StepOutput, SessionError>;
}

/// One run: which tensor is which input and output.
///
/// Every input of the model must be named once, in `inputs` or in `shared`. Outputs that are not named are not asked
/// for. That nothing is both read here and written there is what the borrows say.
#[derive(Debug, Default)]
pub struct Step<'a> {
    /// Inputs, which are read only.
    pub inputs: Vec<(&'a str, &'a Tensor)>,
    /// Caches whose present is written over their past.
    pub shared: Vec<InPlaceCache<'a>>,
    /// Outputs that are written to memory of the caller. The shapes must be exact.
    pub outputs: Vec<(&'a str, &'a mut Tensor)>,
    /// Outputs whose shape only the engine knows: they come back in [`StepOutput::returned`].
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

/// What a run left.
#[derive(Debug)]
pub struct StepOutput {
    /// The outputs asked for in [`Step::returned`], in that order, copied after the time was taken.
    pub returned: Vec<Tensor>,
    /// The address that the engine reports for each present of [`Step::shared`], in that order.
    pub present_at: Vec<usize>,
    /// The time of the run alone, without preparing it and copying what is returned.
    pub elapsed: Duration,
}
