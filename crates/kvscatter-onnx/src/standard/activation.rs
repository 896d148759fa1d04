//! Activations.

use super::node::{Replacing, StandardEditor};
use crate::OnnxError;
use crate::edit::NewNode;

/// Replaces `BiasGelu`: `Gelu(A + B)`.
pub(super) fn bias_gelu(standard: &mut StandardEditor<'_, '_>, old: &Replacing<'_>) -> Result<(), OnnxError> {
    old.only(&[(0, "A"), (1, "B")], &[(0, "C")], &[])?;
    let sum = standard.editor.node("Add", &[old.input(0)?, old.input(1)?]);
    standard.named(NewNode::new("Gelu", &[&sum]), old.output(0));
    Ok(())
}

/// Replaces `FastGelu`, which approximates `Gelu` with a hyperbolic tangent and may add a bias first.
pub(super) fn fast_gelu(standard: &mut StandardEditor<'_, '_>, old: &Replacing<'_>) -> Result<(), OnnxError> {
    old.only(&[(0, "X"), (1, "bias")], &[(0, "Y")], &[])?;
    let sum = match old.optional(1) {
        None => old.input(0)?.to_owned(),
        Some(bias) => standard.editor.node("Add", &[old.input(0)?, bias]),
    };
    standard.named(NewNode::new("Gelu", &[&sum]).string("approximate", "tanh"), old.output(0));
    Ok(())
}

/// Replaces ONNX Runtime's `Gelu`.
pub(super) fn gelu(standard: &mut StandardEditor<'_, '_>, old: &Replacing<'_>) -> Result<(), OnnxError> {
    old.only(&[(0, "X")], &[(0, "Y")], &["approximate"])?;
    let node = NewNode::new("Gelu", &[old.input(0)?]).attributes(old.node.proto().attribute.iter().cloned());
    standard.named(node, old.output(0));
    Ok(())
}

/// Replaces `QuickGelu`: `x * Sigmoid(alpha * x)`.
pub(super) fn quick_gelu(
    standard: &mut StandardEditor<'_, '_>,
    old: &Replacing<'_>,
) -> Result<(), OnnxError> {
    old.only(&[(0, "X")], &[(0, "Y")], &["alpha"])?;
    let x = old.input(0)?;
    let alpha = f64::from(old.float("alpha", 1.702)?);
    // With a factor of 1, this is the activation of most gated models, which exporters write without it.
    let scaled = if alpha == 1.0 {
        x.to_owned()
    } else {
        let alpha = standard.editor.float(old.element(0)?, alpha)?;
        standard.editor.node("Mul", &[x, &alpha])
    };
    let gate = standard.editor.node("Sigmoid", &[&scaled]);
    standard.named(NewNode::new("Mul", &[x, &gate]), old.output(0));
    Ok(())
}
