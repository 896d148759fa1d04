//! Runs a model in an engine. Past and present of its static caches share memory if that is possible.

use std::collections::{BTreeMap, BTreeSet};

use kvscatter_onnx::decoder::{Cache, Decoder, Hazard};
use kvscatter_onnx::internal::eval::{Evaluator, Placement};
use kvscatter_onnx::internal::random_inputs;
use kvscatter_onnx::{Data, EvalError, Graph, Model, Tensor, ValueInfo};
use kvscatter_session::{self as session, Engine, InPlaceCache, LoadOptions, Session, Step};

use super::feeds;
use super::record::{Input, RunResult};
use crate::engines::EngineInfo;
use crate::error::CommandError;

/// A model that an engine has loaded.
pub(super) struct Loaded<'m> {
    pub(super) runtime: EngineInfo,
    pub(super) graph: Graph<'m>,
    pub(super) inputs: Vec<ValueInfo<'m>>,
    pub(super) outputs: Vec<ValueInfo<'m>>,
    model: &'m Model,
    session: Box<dyn Session>,
    /// The past and the present of every cache that must be written in place.
    shared: Vec<(&'m str, &'m str)>,
    /// The presents of these caches.
    presents: BTreeSet<&'m str>,
}

impl<'m> Loaded<'m> {
    pub(super) fn new(
        engine: &dyn Engine,
        model: &'m Model,
        placement: Placement,
    ) -> Result<Self, CommandError> {
        let graph = model.graph()?;
        let (inputs, outputs) = (graph.inputs()?, graph.outputs()?);
        // A graph without caches also runs.
        let decoder = Decoder::from_graph(&graph).ok();
        let shared = match &decoder {
            Some(decoder) => shared(decoder, placement)?,
            None => Vec::new(),
        };
        let presents = shared.iter().map(|(_, present)| *present).collect();
        let session = engine.load(&model.file()?, LoadOptions::default())?;
        Ok(Self {
            runtime: EngineInfo::new(engine),
            graph,
            inputs,
            outputs,
            model,
            session,
            shared,
            presents,
        })
    }

    /// Returns whether an output must be written in place.
    pub(super) fn shares(&self, output: &str) -> bool {
        self.presents.contains(output)
    }

    pub(super) fn missing_inputs(
        &self,
        given: &BTreeMap<&str, &Tensor>,
        dims: &BTreeMap<String, usize>,
        seed: u64,
    ) -> Result<BTreeMap<String, Tensor>, CommandError> {
        let is_missing =
            |input: &ValueInfo<'_>| !given.contains_key(input.name) && self.graph.is_input(input.name);
        if !self.inputs.iter().any(is_missing) {
            return Ok(BTreeMap::new());
        }
        match Evaluator::new(self.model) {
            // If the model has only `TensorScatter` nodes, valid inputs are known without the rest of a
            // decoder.
            Ok(evaluator) => {
                random_inputs::missing_inputs(&evaluator, given, dims, seed).map_err(CommandError::of_sizes)
            }
            Err(_) => feeds::missing_inputs(self.model, &self.graph, given, dims, seed),
        }
    }

    pub(super) fn run(&mut self, inputs: &mut [Input]) -> Result<RunResult, CommandError> {
        let mut tensors = BTreeMap::new();
        for input in inputs {
            if let Some(tensor) = input.tensor.take() {
                tensors.insert(input.name.as_str(), to_engine(&*self.session, &input.name, &tensor)?);
            }
        }
        let mut caches = Vec::with_capacity(self.shared.len());
        for (past, present) in &self.shared {
            let cache = tensors.remove(past);
            caches.push((*past, *present, cache.ok_or_else(|| missing(past))?));
        }
        let at: Vec<usize> = caches.iter().map(|(_, _, cache)| cache.address()).collect();
        let returned: Vec<&str> =
            self.outputs.iter().map(|output| output.name).filter(|output| !self.shares(output)).collect();
        let step = Step {
            inputs: tensors.iter().map(|(name, tensor)| (*name, tensor)).collect(),
            shared: caches
                .iter_mut()
                .map(|(past, present, cache)| InPlaceCache { past, present, cache })
                .collect(),
            returned: returned.clone(),
            ..Step::default()
        };
        let ran = self.session.run(step)?;
        let mut made = BTreeMap::new();
        for (name, tensor) in returned.iter().zip(&ran.returned) {
            made.insert(*name, (of_engine(tensor)?, None));
        }
        for (((past, present, cache), before), after) in caches.iter().zip(at).zip(ran.present_at) {
            let is_in_place = before == after && cache.address() == before && cache.len() > 0;
            made.insert(*present, (of_engine(cache)?, is_in_place.then(|| (*past).to_owned())));
        }
        let mut all =
            RunResult { outputs: Vec::new(), lies_in: Vec::new(), nodes: Vec::new(), pictures: Vec::new() };
        for output in &self.outputs {
            if let Some((tensor, lies_in)) = made.remove(output.name) {
                all.outputs.push((output.name.to_owned(), tensor));
                all.lies_in.push(lies_in);
            }
        }
        Ok(all)
    }
}

/// Returns the past and the present of each cache whose memory they share.
fn shared<'m>(decoder: &Decoder<'m>, placement: Placement) -> Result<Vec<(&'m str, &'m str)>, CommandError> {
    let read = decoder.hazards().into_iter().filter_map(|hazard| match hazard {
        Hazard::PastReadElsewhere { past, .. } => Some(past),
        _ => None,
    });
    let read: BTreeSet<String> = read.collect();
    let reason = |cache: &Cache<'_>| {
        if !cache.is_static() {
            Some("it is not a static cache; see kvscatter inspect")
        } else if read.contains(cache.past) {
            Some("another node or an output also reads it")
        } else if !cache.between.is_empty() || !cache.earlier.is_empty() || !cache.copies.is_empty() {
            Some("other nodes or outputs are between it and its present")
        } else {
            None
        }
    };
    let mut shared = Vec::new();
    for cache in &decoder.caches {
        match (placement, reason(cache)) {
            (Placement::Functional, _) | (Placement::Auto, Some(_)) => {}
            (Placement::InPlace, Some(why)) => {
                return Err(CommandError::CannotShare { past: cache.past.to_owned(), why });
            }
            (_, None) => shared.push((cache.past, cache.present)),
        }
    }
    Ok(shared)
}

fn missing(input: &str) -> kvscatter_onnx::OnnxError {
    EvalError::InputMissing { name: input.to_owned() }.into()
}

/// Copies the values to memory that the engine can write in place.
fn to_engine(session: &dyn Session, name: &str, tensor: &Tensor) -> Result<session::Tensor, CommandError> {
    let Data::Bytes(bytes) = tensor.data() else {
        return Err(CommandError::StringsInEngine { input: name.to_owned() });
    };
    let mut copy = session.zeros(tensor.element(), tensor.shape())?;
    copy.bytes_mut().copy_from_slice(bytes);
    Ok(copy)
}

fn of_engine(tensor: &session::Tensor) -> Result<Tensor, kvscatter_onnx::OnnxError> {
    let data = Data::Bytes(tensor.bytes().to_vec());
    Ok(Tensor::new(tensor.element(), tensor.shape().to_vec(), data)?)
}
