//! Expresses operators with quantized weights in operators of ONNX.
//!
//! `MatMulNBits` becomes `DequantizeLinear` and `MatMul`, and `GatherBlockQuantized` becomes `Gather` and
//! `DequantizeLinear` of the gathered rows. The quantized numbers, the scales and the zero points keep their
//! values, so that every dequantized weight is the same. `MatMulNBits` has a row for each column of its result.
//! The new weights are transposed, because ONNX Runtime makes the two nodes `MatMulNBits` again only then.
//!
//! A transposed weight that is in another file is [computed when the model is written](crate::weights).
//!
//! Any other operator stays, and so does a node of another form. Both are listed.

mod constants;
mod gather;
mod matmul;

use std::collections::BTreeMap;

use constants::{Constants, NewWeights};

use super::drop_unused_imports;
use super::error::NoStandardForm;
use super::node::{Replacing, no_form};
use super::rule::MICROSOFT;
use crate::edit::Editor;
use crate::graph::DEFAULT_DOMAIN;
use crate::{Model, Node, NodeLabel, OnnxError};

/// What became of the operators that are not ONNX's.
#[derive(Clone, Debug, Default)]
pub struct StandardWeights {
    /// The number of nodes that were replaced, by operator.
    pub replaced: BTreeMap<String, usize>,
    /// The nodes that stay, because they have no form in operators of ONNX.
    pub kept: Vec<KeptOperator>,
}

/// A node whose operator is not one of ONNX, and the reason why it stays.
#[derive(Clone, Debug)]
pub struct KeptOperator {
    /// The node.
    pub node: NodeLabel,
    /// The reason.
    pub reason: NoStandardForm,
}

/// Replaces the nodes of a model that have quantized weights.
///
/// # Errors
/// * Returns the errors about tensors and external data, for a weight that cannot be read.
/// * Returns the errors of the editor.
pub(crate) fn replace(model: &mut Model) -> Result<StandardWeights, OnnxError> {
    let before = model.clone();
    let graph = before.graph()?;
    let mut result = StandardWeights::default();
    let mut computed = BTreeMap::new();
    let mut editor = Editor::new(model.proto_mut())?;
    let mut new = NewWeights {
        editor: &mut editor,
        has_folder: before.path().is_some(),
        computed: &mut computed,
        made: BTreeMap::new(),
    };
    let constants = Constants::of(&graph);
    for node in graph.nodes().iter().filter(|node| is_foreign(node)) {
        let replacing = Replacing { node: node.proto(), facts: &[] };
        let replaced = match (node.domain(), node.op_type()) {
            (MICROSOFT, "MatMulNBits") => matmul::replace(&mut new, &constants, &replacing),
            (MICROSOFT, "GatherBlockQuantized") => gather::replace(&mut new, &constants, &replacing),
            (_, op_type) => Err(no_form(op_type.escape_debug().to_string())),
        };
        match replaced {
            Ok(()) => {
                new.editor.remove_node(node.index());
                let count = result.replaced.entry(node.op_type().to_owned()).or_default();
                *count = count.saturating_add(1);
            }
            Err(OnnxError::NoStandardForm(reason)) => {
                result.kept.push(KeptOperator { node: node.label(), reason });
            }
            Err(error) => return Err(node.error_within(error)),
        }
    }
    editor.finish()?;
    drop_unused_imports(model.proto_mut());
    let used: Vec<_> = model.graph()?.initializers().keys().map(|&name| name.to_owned()).collect();
    computed.retain(|name, _| used.contains(name));
    model.set_computed(computed);
    Ok(result)
}

/// Returns `true` for an operator that ONNX does not define.
fn is_foreign(node: &Node<'_>) -> bool {
    !node.is_function() && (node.domain() != DEFAULT_DOMAIN || super::replaces(node))
}

#[cfg(test)]
#[expect(clippy::arithmetic_side_effects, clippy::as_conversions, reason = "the sizes of a test are small")]
mod tests;
