//! The subject of a run, which is a graph whose nodes the command evaluates, or a model in an engine.

use std::collections::BTreeMap;

use kvscatter::picture::Picture;
use kvscatter_onnx::internal::eval::{Evaluator, Feed, Placement};
use kvscatter_onnx::internal::random_inputs;
use kvscatter_onnx::{EvalError, Graph, Model, Tensor, ValueInfo};

use super::args::Run;
use super::loaded::Loaded;
use super::record::{Input, RunResult};
use crate::compare::Tolerance;
use crate::engines::{self, EngineInfo, EngineName};
use crate::error::CommandError;
use crate::host::Host;

/// The most lanes of a picture.
const LANES: usize = 32;

/// A model that can be run.
pub(super) enum Subject<'m> {
    /// A graph of `TensorScatter` nodes, and of nodes that the command can also evaluate.
    Evaluated(Evaluator<'m>),
    /// A model that an engine has loaded.
    Loaded(Loaded<'m>),
}

/// The tolerance that the tests of onnx allow runtimes.
const OF_ENGINES: Tolerance = Tolerance { rtol: 1e-3, atol: 1e-7 };

impl<'m> Subject<'m> {
    /// Prepares a model. It runs in the engine of `--engine`. Without `--engine`, the command evaluates the
    /// nodes if it can evaluate all of them, and otherwise the model runs in the default engine.
    pub(super) fn new(args: &Run, host: &Host, model: &'m Model) -> Result<Self, CommandError> {
        let engine = match args.engine {
            Some(engine) => engine,
            None => {
                args.ort.check_unused()?;
                match Evaluator::new(model) {
                    Ok(evaluator) => return Ok(Self::Evaluated(evaluator)),
                    Err(error) if is_for_engines(&error) => EngineName::default(host),
                    Err(error) => return Err(error.into()),
                }
            }
        };
        let engine = engines::open(engine, &args.ort, host)?;
        Ok(Self::Loaded(Loaded::new(&*engine, model, args.placement())?))
    }

    pub(super) fn graph(&self) -> &Graph<'m> {
        match self {
            Self::Evaluated(evaluator) => evaluator.graph(),
            Self::Loaded(loaded) => &loaded.graph,
        }
    }

    pub(super) fn inputs(&self) -> &[ValueInfo<'m>] {
        match self {
            Self::Evaluated(evaluator) => evaluator.inputs(),
            Self::Loaded(loaded) => &loaded.inputs,
        }
    }

    pub(super) fn outputs(&self) -> &[ValueInfo<'m>] {
        match self {
            Self::Evaluated(evaluator) => evaluator.outputs(),
            Self::Loaded(loaded) => &loaded.outputs,
        }
    }

    /// Returns the engine that runs the model, or `None` if the command evaluates its nodes.
    pub(super) fn runtime(&self) -> Option<EngineInfo> {
        match self {
            Self::Evaluated(_) => None,
            Self::Loaded(loaded) => Some(loaded.runtime.clone()),
        }
    }

    /// Returns the default tolerance of outputs. Evaluated nodes only move bytes, so their outputs are
    /// compared exactly.
    pub(super) fn tolerance(&self) -> Option<Tolerance> {
        match self {
            Self::Evaluated(_) => None,
            Self::Loaded(_) => Some(OF_ENGINES),
        }
    }

    /// Returns values for the inputs that are not given.
    pub(super) fn missing_inputs(
        &self,
        given: &BTreeMap<&str, &Tensor>,
        dims: &BTreeMap<String, usize>,
        seed: u64,
    ) -> Result<BTreeMap<String, Tensor>, CommandError> {
        match self {
            Self::Evaluated(evaluator) => {
                random_inputs::missing_inputs(evaluator, given, dims, seed).map_err(CommandError::of_sizes)
            }
            Self::Loaded(loaded) => loaded.missing_inputs(given, dims, seed),
        }
    }

    /// Returns the outputs that an engine should have written in place and did not. Nodes that the command
    /// evaluates have already failed if they cannot write in place.
    pub(super) fn not_in_place(&self, result: &RunResult) -> Vec<String> {
        let Self::Loaded(loaded) = self else { return Vec::new() };
        let outputs = result.outputs.iter().zip(&result.lies_in);
        let elsewhere = outputs.filter(|((name, _), lies_in)| loaded.shares(name) && lies_in.is_none());
        elsewhere.map(|((name, _), _)| name.clone()).collect()
    }

    /// Runs the model on these inputs.
    pub(super) fn run(&mut self, args: &Run, inputs: &mut [Input]) -> Result<RunResult, CommandError> {
        match self {
            Self::Evaluated(evaluator) => evaluate(evaluator, args.placement(), inputs),
            Self::Loaded(loaded) => loaded.run(inputs),
        }
    }
}

/// Returns whether a graph has nodes that the command cannot evaluate.
fn is_for_engines(error: &kvscatter_onnx::OnnxError) -> bool {
    matches!(error.cause(), Some(EvalError::UnsupportedOperator | EvalError::Function))
}

fn evaluate(
    evaluator: &Evaluator<'_>,
    placement: Placement,
    inputs: &mut [Input],
) -> Result<RunResult, CommandError> {
    let mut feeds = BTreeMap::new();
    let mut addresses = BTreeMap::new();
    for input in inputs {
        if let Some(tensor) = input.tensor.take() {
            if let Some(address) = address(&tensor) {
                addresses.insert(address, input.name.as_str());
            }
            feeds.insert(input.name.as_str(), Feed::Donated(tensor));
        }
    }
    let mut pictures = Vec::new();
    let evaluation = evaluator.run_observed(feeds, placement, &mut |node, plan| {
        pictures.push((node.label().index, Picture::new(plan, LANES)));
    })?;
    let lies_in = evaluation.outputs.iter().map(|(_, tensor)| {
        let name = addresses.get(&address(tensor)?)?;
        Some((*name).to_owned())
    });
    let lies_in = lies_in.collect();
    Ok(RunResult { outputs: evaluation.outputs, lies_in, nodes: evaluation.report.nodes, pictures })
}

/// Returns the address of the values, or `None` if there are none.
fn address(tensor: &Tensor) -> Option<usize> {
    (tensor.elements() > 0).then(|| tensor.address())
}
