//! Normalizations.

use super::node::{Replacing, Standard};
use crate::OnnxError;
use crate::edit::NewNode;

/// Replaces `SimplifiedLayerNormalization`, which ONNX calls `RMSNormalization`.
pub(super) fn simplified(standard: &mut Standard<'_, '_>, it: &Replacing<'_>) -> Result<(), OnnxError> {
    it.only(&[(0, "X"), (1, "scale")], &[(0, "Y")], &["axis", "epsilon", "stash_type"])?;
    let node = NewNode::new("RMSNormalization", &[it.input(0)?, it.input(1)?]);
    let node = node.attributes(it.node.proto().attribute.iter().cloned());
    standard.named(node, it.output(0));
    Ok(())
}

/// Replaces the normalizations of a sum. Another output is the sum.
pub(super) fn skip(standard: &mut Standard<'_, '_>, it: &Replacing<'_>) -> Result<(), OnnxError> {
    let outputs = [(0, "output"), (3, "input_skip_bias_sum")];
    let is_centered = it.node.op_type() == "SkipLayerNormalization";
    let (beta, bias) = if is_centered { (it.optional(3), it.optional(4)) } else { (None, it.optional(3)) };
    it.only(
        &[(0, "input"), (1, "skip"), (2, "gamma"), (3, "beta or bias"), (4, "bias")],
        &outputs,
        &["epsilon"],
    )?;
    let sum = NewNode::new("Add", &[it.input(0)?, it.input(1)?]);
    let sum = match bias {
        None => standard.named(sum, it.output(3)),
        Some(bias) => {
            let sum = standard.editor.add(sum);
            standard.named(NewNode::new("Add", &[&sum, bias]), it.output(3))
        }
    };
    let epsilon = it.float("epsilon", 1e-12)?;
    let inputs = [Some(sum.as_str()), Some(it.input(2)?), beta];
    let inputs: Vec<_> = inputs.into_iter().flatten().collect();
    let op_type = if is_centered { "LayerNormalization" } else { "RMSNormalization" };
    standard.named(NewNode::new(op_type, &inputs).float("epsilon", epsilon), it.output(0));
    Ok(())
}
