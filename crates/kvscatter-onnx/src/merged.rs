//! Takes the decoder with a past out of a merged decoder.
//!
//! Older exporters write one graph with an `If` on a boolean input, such as `use_cache_branch`. One branch is
//! the decoder with a past. The other branch is for the first step and has no past. With an empty past, the
//! first branch computes the same as the second, so the second is not needed.
//!
//! The structure of the graph decides, never names:
//!
//! 1. The graph has exactly one `If` outside of other nodes. Its condition is a boolean input of the graph
//!    that no other node reads, and most outputs of the graph come from it.
//! 2. With exactly one of the two branches in place of the `If`, the graph is a decoder whose caches grow.

mod inline;

use std::collections::BTreeSet;

use kvscatter::ElementType;

use crate::decoder::{Cache, Decoder};
use crate::names::captures;
use crate::proto::{GraphProto, ModelProto};
use crate::{DecoderError, Graph, Model, Node, OnnxError, standard};

/// The decoder with a past of a merged decoder.
#[derive(Clone, Debug)]
pub struct Unmerged {
    /// The decoder. The nodes of the branch take the place of the `If`, and weights are unchanged.
    pub model: Model,
    /// The branch that was taken.
    pub branch: TakenBranch,
}

/// The branch of a merged decoder that is the decoder with a past.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TakenBranch {
    /// The name of the boolean input that chooses the branch. The decoder without the `If` has no such input.
    pub condition: String,
    /// The value of the input that chooses the branch: `true` for `then_branch`, `false` for `else_branch`.
    pub value: bool,
}

/// Takes the decoder with a past out of a merged decoder. Returns `None` for any other model.
///
/// # Errors
/// * Returns the errors of [`Model::graph`] for an invalid graph.
/// * Returns [`DecoderError::MergedTwice`], wrapped in [`OnnxError::InNode`], if both branches are decoders with
///   a past.
pub fn unmerge(model: &Model) -> Result<Option<Unmerged>, OnnxError> {
    let graph = model.graph()?;
    let Some(merge) = Merge::find(&graph) else { return Ok(None) };
    let Some(value) = merge.with_past(model)? else { return Ok(None) };
    let branch = TakenBranch { condition: merge.condition.to_owned(), value };
    Ok(Some(Unmerged { model: merge.taken(model, value), branch }))
}

/// Takes the decoder of the first step out of a merged decoder. Returns `None` for any other model.
///
/// # Errors
/// Returns the errors of [`unmerge`].
pub(crate) fn first_step(model: &Model) -> Result<Option<Model>, OnnxError> {
    let graph = model.graph()?;
    let Some(merge) = Merge::find(&graph) else { return Ok(None) };
    Ok(merge.with_past(model)?.map(|value| merge.taken(model, !value)))
}

/// An `If` that may merge two decoders.
struct Merge<'m> {
    node: Node<'m>,
    condition: &'m str,
    /// `then_branch` and `else_branch`.
    branches: [&'m GraphProto; 2],
}

impl<'m> Merge<'m> {
    /// Finds the only `If` of a graph. Returns `None` if it cannot merge two decoders.
    fn find(graph: &Graph<'m>) -> Option<Self> {
        let mut all = graph.nodes().iter().filter(|node| node.is("If"));
        let (node, None) = (*all.next()?, all.next()) else { return None };
        let [_] = node.proto().input.as_slice() else { return None };
        let merge = Self { node, condition: node.input(0)?, branches: branches(&node)? };
        (merge.condition_is_a_flag(graph) && merge.makes_most_outputs(graph)).then_some(merge)
    }

    /// Returns the value of the condition that chooses the decoder with a past, or `None` if no branch is one.
    fn with_past(&self, model: &Model) -> Result<Option<bool>, OnnxError> {
        match self.branches.map(|branch| self.is_decoder(model.proto(), branch)) {
            [true, true] => {
                let condition = self.condition.to_owned();
                Err(self.node.error(DecoderError::MergedTwice { condition }))
            }
            [false, false] => Ok(None),
            [value, _] => Ok(Some(value)),
        }
    }

    /// Returns the model with the branch for a value of the condition in the place of the `If`.
    fn taken(&self, model: &Model, value: bool) -> Model {
        let mut proto = model.proto().clone();
        inline::take_branch(proto.graph.get_or_insert_default(), self.node.index(), branch_name(value));
        model.with_proto(proto)
    }

    /// Returns `true` if the condition is a boolean input that nothing but the `If` reads.
    fn condition_is_a_flag(&self, graph: &Graph<'m>) -> bool {
        let is_flag = graph.inputs().is_ok_and(|inputs| {
            inputs.iter().any(|it| it.name == self.condition && it.element == ElementType::Bool)
        });
        let others = graph.nodes().iter().filter(|node| node.index() != self.node.index());
        is_flag
            && !others.flat_map(Node::reads).any(|name| name == self.condition)
            && !graph.output_names().any(|name| name == self.condition)
    }

    /// Returns `true` if more than half of the graph's outputs are outputs of the `If`, possibly cast.
    fn makes_most_outputs(&self, graph: &Graph<'m>) -> bool {
        let mut from_if: BTreeSet<&str> = self.node.proto().output.iter().map(String::as_str).collect();
        for node in graph.nodes().iter().filter(|node| node.is("Cast") || node.is("Identity")) {
            if node.input(0).is_some_and(|input| from_if.contains(input)) {
                from_if.extend(node.output(0));
            }
        }
        let outputs = graph.output_names();
        let (all, made) = (outputs.len(), outputs.filter(|name| from_if.contains(name)).count());
        made > all.saturating_sub(made)
    }

    /// Returns `true` if the graph is a decoder whose caches grow once this branch is in the place of the
    /// `If`.
    fn is_decoder(&self, model: &ModelProto, branch: &'m GraphProto) -> bool {
        // Subgraphs are not checked before. A branch cannot read what the `If` produces.
        let read = captures(branch);
        let mut made = self.node.proto().output.iter().map(String::as_str);
        if read.contains(self.condition) || made.any(|name| !name.is_empty() && read.contains(name)) {
            return false;
        }
        let graph = inline::without_weights(&model.graph, self.node.index(), branch);
        let decoder = ModelProto {
            graph: graph.into(),
            opset_import: model.opset_import.clone(),
            functions: model.functions.clone(),
            ..ModelProto::default()
        };
        let is_growing = |decoder: Decoder<'_>| {
            let grows = |cache: &Cache<'_>| {
                cache.style.growth().is_some() || cache.writer.as_ref().is_some_and(standard::replaces)
            };
            !decoder.caches.is_empty() && decoder.caches.iter().all(grows)
        };
        Graph::new(&decoder).and_then(|graph| Decoder::from_graph(&graph).map(is_growing)).unwrap_or_default()
    }
}

/// Returns `then_branch` and `else_branch`, unless the node has other graphs or one of them is malformed.
fn branches<'m>(node: &Node<'m>) -> Option<[&'m GraphProto; 2]> {
    let graphs = || node.proto().attribute.iter().filter(|it| it.g.is_set() || !it.graphs.is_empty());
    if graphs().count() != 2 {
        return None;
    }
    let outputs = node.proto().output.len();
    let branch = |value| {
        let branch = node.attribute(branch_name(value))?.g.as_option()?;
        let is_named = branch.output.iter().all(|it| it.name.as_ref().is_some_and(|name| !name.is_empty()));
        (branch.input.is_empty() && is_named && branch.output.len() == outputs).then_some(branch)
    };
    Some([branch(true)?, branch(false)?])
}

/// Returns the name of the attribute with the branch for a value of the condition.
fn branch_name(value: bool) -> &'static str {
    if value { "then_branch" } else { "else_branch" }
}
