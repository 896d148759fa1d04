//! The way back: `TensorScatter` as `ScatterElements` or `ScatterND`, for engines that do not have it.
//!
//! Results are the same. In linear mode an index out of range stays an error at run time, and so does an update that is
//! longer than the cache or of another shape; only that a sequence length of 0 has its indices checked is lost, since no
//! index is left then. In circular mode a negative index counts from the end of the ring, as ONNX defines it.

mod indices;
mod scatter;

use crate::edit::names::subgraphs;
use crate::edit::{Editor, NewNode};
use crate::graph::{in_node, label};
use crate::proto::NodeProto;
use crate::{Graph, Model, OnnxError};

use indices::{Indices, axis_of};
use scatter::{is_scatter, scatters};

/// What `TensorScatter` becomes. Both exist since long; engines differ in which one they do well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LowerTarget {
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
pub fn lower(model: &Model, target: LowerTarget) -> Result<Lowered, OnnxError> {
    let graph = model.graph()?;
    check_nesting(model, &graph)?;
    let scatters = scatters(&graph)?;
    if scatters.is_empty() {
        return Err(OnnxError::NothingToLower);
    }
    let mut lowered = model.clone();
    let mut indices = Indices::new(Editor::new(lowered.proto_mut())?);
    for scatter in &scatters {
        let written = match target {
            LowerTarget::ScatterElements => indices.of_elements(scatter)?,
            LowerTarget::ScatterNd => indices.of_rows(scatter)?,
        };
        let inputs = [scatter.past_cache, &written, scatter.update];
        let node = match target {
            LowerTarget::ScatterElements => {
                NewNode::new("ScatterElements", &inputs).int("axis", axis_of(scatter.axis))
            }
            LowerTarget::ScatterNd => NewNode::new("ScatterND", &inputs),
        };
        indices.editor().replace_node(scatter.node.index(), node);
    }
    let index_nodes = indices.finish()?;
    Ok(Lowered { model: lowered, scatters: scatters.len(), index_nodes })
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
