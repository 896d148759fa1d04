//! Finds the KV caches of a decoder by following its graph.
//!
//! For each cache, this module finds the graph input that contains the cache before a step (the *past*), the
//! graph output that returns it with the new rows (the *present*), and the node that writes the rows. The
//! present of one step is the past of the next.
//!
//! The graph proves the roles of most inputs. The names that exporters use decide the others: GPT-2's positions pick
//! rows of a table, as the types of tokens do in other models. See [`InputRole`].
//!
//! A proof evaluates the masks of a step whose sizes are those of the file. It is the only part of this module that may
//! take more memory than the file does. `fold::MAX_VALUES` limits the numbers of the inputs of a step, and
//! `fold::Budget` the work of all evaluations together.

mod assign;
mod cache;
mod cost;
mod cut;
mod encoder;
pub(crate) mod error;
mod follow;
mod hazards;
mod pairs;
mod part;
mod quantized;
mod readers;
mod roles;
mod rotary;
mod samples;
mod shared_positions;
mod shown;
mod sizes;
mod state;
mod step;
mod tensorrt;
mod trace;
mod trial;
mod unused;
mod writer;

use std::collections::BTreeSet;

use crate::{DecoderError, Graph, Node, OnnxError, ValueInfo};
pub use cache::{Cache, CachePart, Growth, QuantizedPart, UnknownStyle, WriterStyle};
pub use cost::{Cost, CostAt};
pub use hazards::{Hazard, PrefixMask, RuntimeBug, WrongSlot};
pub(crate) use roles::is_float;
pub use roles::{EncoderPart, Input, InputRole};
pub(crate) use shared_positions::source as source_of_slots;
use state::ColumnsOutputs;
pub use state::State;
pub(crate) use state::{COLUMNS, NewColumns};
pub(crate) use step::{Step, StepInputs};
pub use tensorrt::{TensorRtRefusal, TensorRtRule};

/// The caches of a decoder and the roles of its other inputs.
///
/// A decoder is a graph that takes caches as inputs and returns them as outputs with rows written.
#[derive(Clone, Debug)]
pub struct Decoder<'m> {
    /// The caches in the order of their outputs. Each past occurs once.
    pub caches: Vec<Cache<'m>>,
    /// The recurrent and convolution states, in the order of their outputs.
    pub states: Vec<State<'m>>,
    /// The inputs that a caller must feed, in the order of the graph.
    pub inputs: Vec<Input<'m>>,
    /// The output with the scores of the next token: the first floating-point output of rank 3 that is not a
    /// cache.
    pub logits: Option<ValueInfo<'m>>,
    graph: Graph<'m>,
}

impl<'m> Decoder<'m> {
    /// Finds the caches of a graph and the roles of its other inputs.
    ///
    /// # Errors
    /// * Returns [`DecoderError::CacheNone`] if the graph has no cache.
    /// * Returns [`DecoderError::CacheNotFedBack`], [`DecoderError::CacheNotFed`],
    ///   [`DecoderError::CacheShapeMissing`], [`DecoderError::CacheRank`], [`DecoderError::CacheDoesNotGrow`] or
    ///   [`DecoderError::DimsDiffer`] for a cache that cannot work.
    /// * Returns the errors of [`Graph::inputs`] and [`Graph::outputs`].
    /// * Returns the errors of a `TensorScatter` that breaks its own rules, wrapped in [`OnnxError::InNode`].
    pub fn from_graph(graph: &Graph<'m>) -> Result<Self, OnnxError> {
        let outputs = graph.outputs()?;
        let mut inputs = graph.inputs()?;
        inputs.retain(|input| graph.is_input(input.name));
        let columns = ColumnsOutputs::find(graph, &inputs, &outputs);
        let others: Vec<_> = outputs.iter().filter(|output| !columns.contain(output.name)).cloned().collect();
        let mut caches = pairs::find(graph, &inputs, &others)?;
        let states = state::take(graph, &mut caches, &columns);
        if caches.is_empty() {
            return Err(DecoderError::CacheNone.into());
        }
        sizes::check(&caches, &inputs)?;
        quantized::find(graph, &mut caches);
        for cache in &mut caches {
            cache.part = part::find(graph, cache);
            cache.known_shape = sizes::known(graph, cache);
        }
        let logits = logits(&caches, &states, &outputs);
        let mut inputs = assign::assign(graph, inputs, &caches, &states, logits.as_ref());
        samples::find(&mut caches, &inputs, logits.as_ref());
        encoder::assign(graph, &mut inputs);
        let is_unread =
            |input: &&mut Input<'_>| input.role == InputRole::Other && graph.is_unread(input.value.name);
        inputs.iter_mut().filter(is_unread).for_each(|input| input.role = InputRole::Unread);
        Ok(Self { caches, states, inputs, logits, graph: graph.clone() })
    }

    /// Returns the past of the first cache whose writer is not known, and the reason.
    #[must_use]
    pub fn unknown(&self) -> Option<(&'m str, &UnknownStyle)> {
        self.caches.iter().find_map(|cache| match &cache.style {
            WriterStyle::Unknown(why) => Some((cache.past, why)),
            _ => None,
        })
    }

    /// Returns the first attention that appends to the cache of another layer, and the name of that value.
    pub(crate) fn shares(&self) -> Option<(Node<'m>, &'m str)> {
        self.caches.iter().find_map(|cache| {
            let mut readers = self.graph.uses(cache.written).map(|(reader, _)| reader);
            Some((
                readers.find(|reader| writer::appends_to(&self.graph, reader, cache.written))?,
                cache.written,
            ))
        })
    }

    /// Returns the first cache whose attention has a result that reaches no output.
    pub(crate) fn unused(&self) -> Option<&Cache<'m>> {
        unused::caches(&self.graph, &self.caches).into_iter().next()
    }

    /// Returns `true` if a node rounds the activations that it multiplies with weights to 8 bits, as
    /// `MatMulNBits` with `accuracy_level` 4 may.
    ///
    /// A rounded number may differ by a whole step if the exact numbers differ in the last bit.
    #[must_use]
    pub fn rounds_activations(&self) -> bool {
        const TO_8_BITS: i64 = 4;
        self.graph.nodes().iter().any(|node| {
            let level = node.attribute("accuracy_level").and_then(|level| level.i);
            node.op_type() == "MatMulNBits" && level == Some(TO_8_BITS)
        })
    }

    /// Returns the inputs and initializers of the graph from which values are computed.
    #[must_use]
    pub fn sources(&self, values: impl IntoIterator<Item = &'m str>) -> BTreeSet<&'m str> {
        let (mut seen, mut sources) = (BTreeSet::new(), BTreeSet::new());
        let mut open: Vec<&str> = values.into_iter().collect();
        while let Some(value) = open.pop() {
            if !seen.insert(value) {
                continue;
            }
            match self.graph.producer(value) {
                Some((node, _)) => open.extend(node.reads()),
                None => _ = sources.insert(value),
            }
        }
        sources
    }

    /// Returns the number of new tokens if the model fixes it.
    pub(crate) fn fixed_tokens(&self) -> Option<usize> {
        self.inputs.iter().find_map(|input| match (input.role, input.value.shape.as_deref()) {
            (InputRole::TokenIds | InputRole::Embeddings | InputRole::PositionIds, Some([_, new, ..])) => {
                new.size()
            }
            _ => None,
        })
    }

    /// Returns `true` if no node reads an input.
    pub(crate) fn is_unread(&self, input: &str) -> bool {
        self.graph.is_unread(input)
    }

    /// Returns the inputs that an encoder computes, in the order of the graph. There are none unless the decoder
    /// belongs to an encoder-decoder.
    pub fn from_encoder(&self) -> impl Iterator<Item = (&ValueInfo<'m>, EncoderPart)> {
        self.inputs.iter().filter_map(|input| match input.role {
            InputRole::Encoder(part) => Some((&input.value, part)),
            _ => None,
        })
    }

    /// Returns the first input with a role.
    #[must_use]
    pub fn input(&self, role: InputRole) -> Option<&ValueInfo<'m>> {
        self.inputs.iter().find(|input| input.role == role).map(|input| &input.value)
    }
}

fn logits<'m>(
    caches: &[Cache<'m>],
    states: &[State<'m>],
    outputs: &[ValueInfo<'m>],
) -> Option<ValueInfo<'m>> {
    let is_cache = |name| {
        caches.iter().any(|cache| cache.present == name || cache.copies.contains(&name))
            || states.iter().any(|state| state.present == name || state.columns == Some(name))
    };
    let has_rank_3 = |output: &ValueInfo<'_>| output.shape.as_ref().is_none_or(|shape| shape.len() == 3);
    outputs
        .iter()
        .find(|output| roles::is_float(output.element) && has_rank_3(output) && !is_cache(output.name))
        .cloned()
}
