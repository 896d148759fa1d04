//! An engine that runs models in another one, records the runs and injects failures.

use std::ops::Range;
use std::panic::resume_unwind;
use std::sync::{Arc, Mutex, PoisonError};

use kvscatter::ElementType;
use kvscatter_onnx::ModelFile;
use kvscatter_session::{Engine, LoadOptions, Session, SessionError, Step, StepOutput, Tensor};

use crate::random::faults::{Fault, PANIC, Plan};
use crate::random::int64s;

pub(crate) struct Faulty<'e> {
    pub(crate) engine: &'e dyn Engine,
    pub(crate) plan: Plan,
    pub(crate) runs: Runs,
}

/// The runs since they were last cleared.
#[derive(Clone, Default)]
pub(crate) struct Runs(Arc<Mutex<Vec<Run>>>);

/// One run of the model.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    /// The number of tokens of each sample, padding included.
    pub(crate) width: usize,
    /// The batch indices that the run covers.
    pub(crate) samples: Range<usize>,
    /// The first token of each of these samples.
    pub(crate) first: Vec<i64>,
    /// The first slots that are written for them, if the model takes these.
    pub(crate) write_indices: Option<Vec<i64>>,
}

impl Runs {
    pub(crate) fn clear(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    pub(crate) fn all(&self) -> Vec<Run> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn record(&self, step: &Step<'_>) {
        let input = |name: &str| {
            let tensor = step.inputs.iter().find(|(input, _)| *input == name)?.1;
            Some((tensor.shape().to_vec(), int64s(tensor)))
        };
        let (shape, tokens) = input("input_ids").unwrap();
        let first = tokens.iter().step_by(shape[1]).copied().collect();
        let write_indices = input("write_indices").map(|(_, values)| values);
        let samples = step.samples.clone().unwrap_or(0..shape[0]);
        let run = Run { width: shape[1], samples, first, write_indices };
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(run);
    }
}

impl Engine for Faulty<'_> {
    fn name(&self) -> &str {
        self.engine.name()
    }

    fn version(&self) -> &str {
        self.engine.version()
    }

    fn device(&self) -> &str {
        self.engine.device()
    }

    fn load(&self, model: &ModelFile, options: LoadOptions) -> Result<Box<dyn Session>, SessionError> {
        let session = self.engine.load(model, options)?;
        Ok(Box::new(FaultySession { session, plan: self.plan.clone(), runs: self.runs.clone() }))
    }
}

struct FaultySession {
    session: Box<dyn Session>,
    plan: Plan,
    runs: Runs,
}

impl Session for FaultySession {
    fn zeros(&self, element: ElementType, shape: &[usize]) -> Result<Tensor, SessionError> {
        self.session.zeros(element, shape)
    }

    fn takes_some_samples(&self) -> bool {
        self.session.takes_some_samples()
    }

    fn run(&mut self, step: Step<'_>) -> Result<StepOutput, SessionError> {
        let refused = || SessionError::Run { engine: "faulty".to_owned(), message: "no".to_owned() };
        let fault = self.plan.of_run();
        match fault {
            Some(Fault::Refuses) => return Err(refused()),
            Some(Fault::PanicsFirst) => resume_unwind(Box::new(PANIC)),
            _ => {}
        }
        self.runs.record(&step);
        let mut output = self.session.run(step)?;
        let logits = output.returned.first_mut().unwrap();
        match fault {
            Some(Fault::FailsLate) => return Err(refused()),
            Some(Fault::Panics) => resume_unwind(Box::new(PANIC)),
            Some(Fault::WrongShape) => {
                let shape: Vec<usize> = logits.shape().iter().map(|dim| dim + 1).collect();
                *logits = Tensor::zeros(logits.element(), &shape)?;
            }
            Some(Fault::Nan) => {
                let logits = logits.bytes_mut().as_chunks_mut().0;
                logits.iter_mut().for_each(|logit| *logit = f32::NAN.to_le_bytes());
            }
            _ => {}
        }
        Ok(output)
    }
}
