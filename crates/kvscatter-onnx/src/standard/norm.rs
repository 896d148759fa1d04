//! Normalizations.

use super::node::{Replacing, StandardEditor};
use crate::OnnxError;
use crate::edit::NewNode;

/// Replaces `SimplifiedLayerNormalization`, which ONNX calls `RMSNormalization`.
pub(super) fn simplified(
    standard: &mut StandardEditor<'_, '_>,
    old: &Replacing<'_>,
) -> Result<(), OnnxError> {
    old.only(&[(0, "X"), (1, "scale")], &[(0, "Y")], &["axis", "epsilon", "stash_type"])?;
    let node = NewNode::new("RMSNormalization", &[old.input(0)?, old.input(1)?]);
    let node = node.attributes(old.node.proto().attribute.iter().cloned());
    standard.named(node, old.output(0));
    Ok(())
}

/// Replaces the normalizations of a sum. Another output is the sum.
pub(super) fn skip(standard: &mut StandardEditor<'_, '_>, old: &Replacing<'_>) -> Result<(), OnnxError> {
    let outputs = [(0, "output"), (3, "input_skip_bias_sum")];
    let is_centered = old.node.op_type() == "SkipLayerNormalization";
    let (beta, bias) = if is_centered { (old.optional(3), old.optional(4)) } else { (None, old.optional(3)) };
    old.only(
        &[(0, "input"), (1, "skip"), (2, "gamma"), (3, "beta or bias"), (4, "bias")],
        &outputs,
        &["epsilon"],
    )?;
    let sum = NewNode::new("Add", &[old.input(0)?, old.input(1)?]);
    let sum = match bias {
        None => standard.named(sum, old.output(3)),
        Some(bias) => {
            let sum = standard.editor.add(sum);
            standard.named(NewNode::new("Add", &[&sum, bias]), old.output(3))
        }
    };
    let epsilon = old.float("epsilon", 1e-12)?;
    let inputs = [Some(sum.as_str()), Some(old.input(2)?), beta];
    let inputs: Vec<_> = inputs.into_iter().flatten().collect();
    let op_type = if is_centered { "LayerNormalization" } else { "RMSNormalization" };
    standard.named(NewNode::new(op_type, &inputs).float("epsilon", epsilon), old.output(0));
    Ok(())
}
