//! A decoder's KV caches, found by following the graph: which input comes back as which output, and who writes it.
//!
//! Names decide nothing here but one thing: where two inputs of a kind are used in the same way, as GPT-2's token
//! and position ids are (each picks rows of a table), the names that exporters give them decide; see
//! [`InputRole`].

mod cache;
mod cost;
mod flow;
mod growth;
mod hazards;
mod pairs;
mod part;
mod roles;
mod sizes;
mod tensorrt;
mod trace;
mod writer;

use kvscatter::ElementType;

use crate::{Graph, OnnxError, ValueInfo};
pub use cache::{Cache, CachePart, UnknownStyle, WriterStyle};
pub use cost::{Cost, CostAt};
use flow::Flow;
pub use growth::Growth;
pub use hazards::{Hazard, PrefixMask, RuntimeBug};
pub use roles::{Input, InputRole};
pub use tensorrt::{TensorRtRefusal, TensorRtRule};

/// A decoder: a graph whose caches go in as inputs and come back as outputs, with rows written.
#[derive(Clone, Debug)]
pub struct Decoder<'m> {
    /// The caches, in the order of their outputs. Every past is there once.
    pub caches: Vec<Cache<'m>>,
    /// The inputs that have to be fed, in the graph's order.
    pub inputs: Vec<Input<'m>>,
    /// The output with the scores of the next token: the first that is no cache and has rank 3, floating point.
    pub logits: Option<ValueInfo<'m>>,
    flow: Flow<'m>,
}

impl<'m> Decoder<'m> {
    /// Finds the caches of a graph, and what its other inputs are for.
    ///
    /// # Errors
    /// [`OnnxError::CacheNone`]; [`OnnxError::CacheNotFedBack`], [`OnnxError::CacheNotFed`], [`OnnxError::CacheShapeMissing`], [`OnnxError::CacheRank`],
    /// [`OnnxError::CacheDoesNotGrow`] and [`OnnxError::DimsDiffer`] for caches that cannot work; those of
    /// [`Graph::inputs`] and [`Graph::outputs`]; within [`OnnxError::InNode`] those of a `TensorScatter` that breaks its
    /// own rules.
    pub fn of(graph: &Graph<'m>) -> Result<Self, OnnxError> {
        let flow = Flow::new(graph);
        let outputs = graph.outputs()?;
        let mut inputs = graph.inputs()?;
        inputs.retain(|input| flow.is_input(input.name));
        let mut caches = pairs::find(&flow, &inputs, &outputs)?;
        sizes::check(&caches, &inputs)?;
        for cache in &mut caches {
            cache.part = part::of(&flow, cache);
            cache.known_shape = sizes::known(&flow, cache);
        }
        let logits = logits(&caches, &outputs);
        let inputs = roles::assign(&flow, inputs, &caches, logits.as_ref());
        Ok(Self { caches, inputs, logits, flow })
    }

    /// The past of the first cache whose style is not known, and why.
    #[must_use]
    pub fn unknown(&self) -> Option<(&'m str, &UnknownStyle)> {
        self.caches.iter().find_map(|cache| match &cache.style {
            WriterStyle::Unknown(why) => Some((cache.past, why)),
            _ => None,
        })
    }

    /// The first input with a role.
    #[must_use]
    pub fn input(&self, role: InputRole) -> Option<&ValueInfo<'m>> {
        self.inputs.iter().find(|input| input.role == role).map(|input| &input.value)
    }
}

fn logits<'m>(caches: &[Cache<'m>], outputs: &[ValueInfo<'m>]) -> Option<ValueInfo<'m>> {
    let is_float = |element| {
        matches!(
            element,
            ElementType::Float32 | ElementType::Float16 | ElementType::BFloat16 | ElementType::Float64
        )
    };
    let is_cache = |name| caches.iter().any(|cache| cache.present == name || cache.copies.contains(&name));
    let has_rank_3 = |output: &ValueInfo<'_>| output.shape.as_ref().is_none_or(|shape| shape.len() == 3);
    outputs
        .iter()
        .find(|output| is_float(output.element) && has_rank_3(output) && !is_cache(output.name))
        .cloned()
}
