//! Evaluates a data set with kvscatter.

use std::collections::BTreeMap;

use kvscatter_onnx::internal::eval::{Evaluator, Feed, NodeReport, Outcome, Placement};
use kvscatter_onnx::internal::test_dir::DataSet;
use kvscatter_onnx::{Graph, Model, Node, Tensor};

use super::attention::attention;
use super::cache_write::{kv_cache_operation, kv_cache_update};
use super::rejection::Rejection;
use super::scatter::{ScatterCall, Slots};
use super::single_node::{self, Compute};
use crate::error::CommandError;
use crate::operators::PLUGIN_DOMAIN;

/// The known facts of a call. The call may be right or wrong.
#[derive(Default)]
pub(super) struct Explanation {
    pub(super) call: Option<ScatterCall>,
    /// The uses of the slots, or `None` if the call is refused here.
    pub(super) slots: Option<Slots>,
    /// Whether a node or an output reads the past after the write.
    pub(super) reads_past: bool,
}

/// The outputs of a graph, or the reason why there are none.
pub(super) type Evaluated = Result<Vec<Tensor>, Rejection>;

/// Evaluates a data set. The outer error is about the files, and the inner error comes from the evaluation.
///
/// kvscatter-onnx evaluates graphs of TensorScatter. The other operators must be the only node of their graph.
pub(super) fn evaluate(model: &Model, set: &DataSet) -> Result<(Explanation, Evaluated), CommandError> {
    if let Ok(graph) = model.graph()
        && let [node] = graph.nodes()
        && let Some(compute) = compute(node)
    {
        let inputs = set.read_inputs(&graph)?;
        let evaluated = single_node::evaluate(model, &graph, node, inputs, compute);
        return Ok((Explanation::default(), evaluated));
    }
    let evaluator = match Evaluator::new(model) {
        Ok(evaluator) => evaluator,
        Err(error) => {
            let graph = model.graph().ok();
            let call = graph.and_then(|graph| ScatterCall::find(&graph, &set.read_inputs(&graph).ok()?));
            return Ok((Explanation { call, ..Explanation::default() }, Err(error.into())));
        }
    };
    evaluate_scatters(&evaluator, evaluator.graph(), set)
}

/// Returns the function that computes a node, if kvscatter-onnx does not evaluate its operator.
fn compute(node: &Node<'_>) -> Option<Compute> {
    if node.is("Attention") {
        return Some(attention);
    }
    match (node.domain(), node.op_type(), node.is_function()) {
        (PLUGIN_DOMAIN, "KVCacheUpdate", false) => Some(kv_cache_update),
        (PLUGIN_DOMAIN, "KVCacheOperation", false) => Some(kv_cache_operation),
        _ => None,
    }
}

fn evaluate_scatters(
    evaluator: &Evaluator<'_>,
    graph: &Graph<'_>,
    set: &DataSet,
) -> Result<(Explanation, Evaluated), CommandError> {
    let inputs = set.read_inputs(graph)?;
    let call = ScatterCall::find(graph, &inputs);
    let names = graph.input_names();
    let feeds: BTreeMap<_, _> =
        names.zip(inputs).map(|(name, (_, tensor))| (name, Feed::Donated(tensor))).collect();
    let mut slots = None;
    let evaluation = evaluator.run_observed(feeds, Placement::Auto, &mut |node, plan| {
        slots = slots.take().or_else(|| call.as_ref()?.slots(graph, node, plan));
    });
    // The evaluation owns the inputs, so it copies a cache only if the graph needs the past.
    let is_copied = |node: &NodeReport| matches!(node.outcome, Outcome::Copied { .. });
    let reads_past = evaluation.as_ref().is_ok_and(|done| done.report.nodes.iter().any(is_copied));
    let evaluated = evaluation.map(|done| done.outputs.into_iter().map(|(_, tensor)| tensor).collect());
    Ok((Explanation { call, slots, reads_past }, evaluated.map_err(Rejection::from)))
}
