//! The way back: `TensorScatter` as `ScatterElements` or `ScatterND`, for engines that do not have it.
//!
//! Results are the same. In linear mode an index out of range stays an error at run time, and so does an update that is
//! longer than the cache or of another shape; only that a sequence length of 0 has its indices checked is lost, since no
//! index is left then. In circular mode a negative index counts from the end of the ring, as ONNX defines it.

mod indices;

use std::collections::BTreeMap;

use kvscatter::{ElementType, Mode};

use crate::edit::names::subgraphs;
use crate::edit::{Editor, NewNode};
use crate::eval::{MAX_RANK, Op};
use crate::graph::{DEFAULT_DOMAIN, full_domain, in_node, label};
use crate::proto::{GraphProto, NodeProto};
use crate::{Dimension, Graph, Model, Node, OnnxError, ValueInfo};

use indices::{Indices, axis_of};

/// What `TensorScatter` becomes. Both exist since long; engines differ in which one they do well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// An index for every element of the update.
    ScatterElements,
    /// An index for every row of the update.
    ScatterNd,
}

/// A model without `TensorScatter`.
#[derive(Clone, Debug)]
pub struct Lowered {
    /// The model, its other nodes and its weights as they were.
    pub model: Model,
    /// How many nodes were `TensorScatter`.
    pub scatters: usize,
    /// How many nodes compute indices for them.
    pub index_nodes: usize,
}

/// Replaces every `TensorScatter` of a model. Indices are computed once where several caches are written alike and
/// their declared dimensions agree.
///
/// # Errors
/// Those of [`Graph::new`]. [`OnnxError::NothingToLower`] if there is none. Within [`OnnxError::InNode`]:
/// [`OnnxError::ScatterNested`] for one in the body of another node, [`OnnxError::RankUnknown`], [`OnnxError::RankTooLarge`], [`OnnxError::LowerType`] for an
/// element type that the target does not have, and those about a `TensorScatter` that breaks its own rules.
/// [`OnnxError::ScatterInFunction`] for one in a function of the model.
pub fn lower(model: &Model, target: Target) -> Result<Lowered, OnnxError> {
    let graph = model.graph()?;
    check_nesting(model, &graph)?;
    let scatters = scatters(model, &graph)?;
    if scatters.is_empty() {
        return Err(OnnxError::NothingToLower);
    }
    let mut lowered = model.clone();
    let mut indices = Indices::new(Editor::new(lowered.proto_mut())?);
    for scatter in &scatters {
        let written = match target {
            Target::ScatterElements => indices.of_elements(scatter)?,
            Target::ScatterNd => indices.of_rows(scatter)?,
        };
        let inputs = [scatter.past_cache, &written, scatter.update];
        let node = match target {
            Target::ScatterElements => {
                NewNode::new("ScatterElements", &inputs).int("axis", axis_of(scatter.axis))
            }
            Target::ScatterNd => NewNode::new("ScatterND", &inputs),
        };
        indices.editor().replace_node(scatter.node.index(), node);
    }
    let index_nodes = indices.finish()?;
    Ok(Lowered { model: lowered, scatters: scatters.len(), index_nodes })
}

/// A `TensorScatter` of the graph, with what is declared about it.
#[derive(Debug)]
struct Scatter<'m> {
    node: Node<'m>,
    axis: usize,
    mode: Mode,
    past_cache: &'m str,
    update: &'m str,
    write_indices: Option<&'m str>,
    /// The cache's dimensions; their number is the rank.
    cache: Vec<Dimension<'m>>,
    /// The update's length.
    length: Dimension<'m>,
}

fn scatters<'m>(model: &'m Model, graph: &Graph<'m>) -> Result<Vec<Scatter<'m>>, OnnxError> {
    let declared = declared(&model.proto().graph);
    let found = graph.nodes().iter().filter(|node| is_scatter(node.proto()) && !node.is_function());
    found.map(|node| scatter(node, Op::parse(node)?, &declared).map_err(|error| node.error(error))).collect()
}

fn scatter<'m>(
    node: &Node<'m>,
    op: Op<'m>,
    declared: &BTreeMap<&'m str, ValueInfo<'m>>,
) -> Result<Scatter<'m>, OnnxError> {
    let Op::TensorScatter { op, mode, past_cache, update, write_indices, present_cache } = op else {
        return Err(OnnxError::UnsupportedOperator);
    };
    let info = |name: &str| declared.get(name);
    let caches = || [info(past_cache), info(present_cache)].into_iter().flatten();
    let element = caches().chain(info(update)).map(|info| info.element).next();
    if let Some(element) = element.filter(|&element| !takes(element)) {
        return Err(OnnxError::LowerType { element });
    }
    let update_shape = info(update).and_then(|info| info.shape.as_deref());
    let cache = caches().find_map(|info| info.shape.as_deref());
    let rank = cache.or(update_shape).map(<[_]>::len).ok_or(OnnxError::RankUnknown)?;
    if rank > MAX_RANK {
        return Err(OnnxError::RankTooLarge { name: past_cache.to_owned(), rank, limit: MAX_RANK });
    }
    let axis = op.resolve_axis(rank)?;
    let length = update_shape.and_then(|shape| shape.get(axis).copied()).unwrap_or(Dimension::Unknown);
    let cache = cache.map_or_else(|| vec![Dimension::Unknown; rank], <[_]>::to_vec);
    Ok(Scatter { node: *node, axis, mode, past_cache, update, write_indices, cache, length })
}

/// Whether `ScatterElements` and `ScatterND` have this type; the same ones, in every version.
fn takes(element: ElementType) -> bool {
    !matches!(
        element,
        ElementType::Float8E4M3Fn
            | ElementType::Float8E4M3FnUz
            | ElementType::Float8E5M2
            | ElementType::Float8E5M2FnUz
            | ElementType::Float8E8M0
            | ElementType::Float4E2M1
            | ElementType::Int4
            | ElementType::UInt4
    )
}

/// What is declared about values, by name.
fn declared(graph: &GraphProto) -> BTreeMap<&str, ValueInfo<'_>> {
    let values = graph.value_info.iter().chain(&graph.output).chain(&graph.input);
    values.filter_map(|value| ValueInfo::parse(value).ok()).map(|info| (info.name, info)).collect()
}

fn check_nesting(model: &Model, graph: &Graph<'_>) -> Result<(), OnnxError> {
    for node in graph.nodes() {
        if subgraphs(node.proto()).flat_map(|body| &body.node).any(holds_scatter) {
            return Err(node.error(OnnxError::ScatterNested));
        }
    }
    for function in &model.proto().functions {
        if let Some((index, node)) = function.node.iter().enumerate().find(|(_, node)| holds_scatter(node)) {
            let name = function.name.clone().unwrap_or_default();
            return Err(in_node(label(index, node, None), OnnxError::ScatterInFunction { name }));
        }
    }
    Ok(())
}

fn holds_scatter(node: &NodeProto) -> bool {
    is_scatter(node) || subgraphs(node).flat_map(|body| &body.node).any(holds_scatter)
}

fn is_scatter(node: &NodeProto) -> bool {
    node.op_type.as_deref() == Some("TensorScatter") && full_domain(node.domain.as_deref()) == DEFAULT_DOMAIN
}
