//! Replaces `TensorScatter` with `ScatterElements` or `ScatterND`, for engines that do not support it.
//!
//! The lowered model computes the same results.
//!
//! * In linear mode, an index out of range is still an error at run time. An update that is longer than the
//!   cache or has another shape is an error as well.
//! * If the sequence length is 0, indices are no longer checked, because the lowered graph has no index then.
//!   This is the only difference.
//! * In circular mode, a negative index counts from the end of the cache, as in ONNX's reference
//!   implementation.

mod error;
mod indices;
mod scatter;

use crate::edit::{Editor, NewNode};
use crate::fold::signed;
use crate::graph::{in_node, label};
use crate::names::subgraphs;
use crate::proto::NodeProto;
use crate::{Graph, Model, OnnxError};

pub use error::LowerError;
use indices::Indices;
use scatter::{is_scatter, scatters};

/// The maximum number of nodes that compute indices. A cache of many dimensions needs hundreds of nodes for one
/// `TensorScatter` of a few bytes, and a node takes about 2 KiB.
const MAX_INDEX_NODES: usize = 100_000;

/// The operator that replaces `TensorScatter`.
///
/// Both operators have been part of ONNX for a long time. Some engines run one of them faster than the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LowerTarget {
    /// `ScatterElements`, which takes one index for each element of the update.
    ScatterElements,
    /// `ScatterND`, which takes one index for each row of the update.
    ScatterNd,
}

/// A model without `TensorScatter`.
#[derive(Clone, Debug)]
pub struct Lowered {
    /// The model. Its other nodes and its weights are unchanged. The lowered form of a converted model has the same
    /// [fingerprint](crate::ModelFile::fingerprint).
    pub model: Model,
    /// The number of `TensorScatter` nodes that were replaced.
    pub scatters: usize,
    /// The number of nodes that were added to compute the indices.
    pub index_nodes: usize,
}

/// Replaces every `TensorScatter` of a model.
///
/// If several caches are written in the same way and their declared dimensions agree, the indices are
/// computed once for all of them.
///
/// # Errors
/// * Returns the errors of [`Model::graph`].
/// * Returns [`LowerError::NothingToLower`] if the model has no `TensorScatter`.
/// * Returns [`LowerError::ScatterInFunction`] for a `TensorScatter` in a function of the model.
///
/// The other errors are wrapped in [`OnnxError::InNode`]:
///
/// * [`LowerError::ScatterNested`] for a `TensorScatter` in the body of another node;
/// * [`LowerError::RankUnknown`] or [`EvalError::RankTooLarge`](crate::EvalError::RankTooLarge) for a rank that
///   cannot be lowered;
/// * [`LowerError::LowerType`] for an element type that the target does not support;
/// * [`LowerError::IndexNodes`] if more than 100,000 nodes would compute the indices;
/// * the errors about a `TensorScatter` that breaks its own rules.
pub fn lower(model: &Model, target: LowerTarget) -> Result<Lowered, OnnxError> {
    let graph = model.graph()?;
    check_nesting(model, &graph)?;
    let scatters = scatters(&graph)?;
    if scatters.is_empty() {
        return Err(LowerError::NothingToLower.into());
    }
    // The caches of the lowered model contain the same.
    let exported = model.graph_hash()?.of_exported(model.proto());
    let mut lowered = model.clone();
    let mut indices = Indices::new(Editor::new(lowered.proto_mut())?);
    for scatter in &scatters {
        let node = match target {
            LowerTarget::ScatterElements => {
                let written = indices.of_elements(scatter)?;
                let inputs = [scatter.past_cache, &written, scatter.update];
                NewNode::new("ScatterElements", &inputs).int("axis", signed(scatter.axis))
            }
            LowerTarget::ScatterNd => {
                let written = indices.of_rows(scatter)?;
                NewNode::new("ScatterND", &[scatter.past_cache, &written, scatter.update])
            }
        };
        if indices.count() > MAX_INDEX_NODES {
            return Err(scatter.node.error(LowerError::IndexNodes { limit: MAX_INDEX_NODES }));
        }
        indices.editor.replace_node(scatter.node.index(), node);
    }
    let index_nodes = indices.finish()?;
    if let Some(exported) = exported {
        exported.set(lowered.graph_hash()?, lowered.proto_mut());
    }
    Ok(Lowered { model: lowered, scatters: scatters.len(), index_nodes })
}

fn check_nesting(model: &Model, graph: &Graph<'_>) -> Result<(), OnnxError> {
    for node in graph.nodes() {
        if subgraphs(node.proto()).flat_map(|body| &body.node).any(holds_scatter) {
            return Err(node.error(LowerError::ScatterNested));
        }
    }
    for function in &model.proto().functions {
        if let Some((index, node)) = function.node.iter().enumerate().find(|(_, node)| holds_scatter(node)) {
            let name = function.name.clone().unwrap_or_default();
            return Err(in_node(label(index, node, None), LowerError::ScatterInFunction { name }));
        }
    }
    Ok(())
}

fn holds_scatter(node: &NodeProto) -> bool {
    is_scatter(node) || subgraphs(node).flat_map(|body| &body.node).any(holds_scatter)
}
