//! The `Attention` node that takes the place of ONNX Runtime's attention operators.

use super::node::Standard;
use crate::OnnxError;
use crate::edit::NewNode;

/// An attention that appends its keys and values to a past.
pub(super) struct Appending<'a> {
    /// Queries, keys and values, `[batch, heads, tokens, head size]`.
    pub(super) rows: [String; 3],
    /// The pasts of keys and values.
    pub(super) pasts: [Option<&'a str>; 2],
    /// The presents of keys and values. An absent output is empty.
    pub(super) presents: [&'a str; 2],
    pub(super) mask: Option<String>,
    /// The result, `[batch, tokens, heads * head size]`.
    pub(super) output: &'a str,
}

impl Appending<'_> {
    /// Adds the node. `with_attributes` sets its scale, cap and causality.
    pub(super) fn add(
        &self,
        standard: &mut Standard<'_, '_>,
        with_attributes: impl FnOnce(NewNode) -> NewNode,
    ) -> Result<(), OnnxError> {
        let [queries, keys, values] = &self.rows;
        let mask = self.mask.as_deref().unwrap_or_default();
        let [past_keys, past_values] = self.pasts.map(Option::unwrap_or_default);
        let mut inputs = vec![queries.as_str(), keys, values, mask, past_keys, past_values];
        while inputs.last().is_some_and(|input| input.is_empty()) {
            inputs.pop();
        }
        let attended = standard.editor.fresh("attention");
        let node = with_attributes(NewNode::new("Attention", &inputs));
        let outputs = [attended.as_str(), self.presents[0], self.presents[1]];
        let outputs = if self.presents.iter().all(|it| it.is_empty()) { &outputs[..1] } else { &outputs };
        standard.editor.add(node.outputs(outputs));
        join(standard, &attended, self.output)
    }
}

/// Adds `[batch, tokens, heads, head size]` of a value `[batch, tokens, heads * head size]`.
pub(super) fn split(standard: &mut Standard<'_, '_>, value: &str, heads: i64) -> Result<String, OnnxError> {
    let shape = standard.editor.ints(&[0, 0, heads, -1])?;
    Ok(standard.editor.node("Reshape", &[value, &shape]))
}

/// Adds `[batch, heads, tokens, head size]` of a value `[batch, tokens, heads, head size]`, or the reverse.
pub(super) fn by_head(standard: &mut Standard<'_, '_>, value: &str) -> String {
    standard.editor.add(NewNode::new("Transpose", &[value]).ints("perm", &[0, 2, 1, 3]))
}

/// Adds `[batch, tokens, heads * head size]` of a value `[batch, heads, tokens, head size]`. The result has this
/// name unless it is empty.
pub(super) fn join(standard: &mut Standard<'_, '_>, value: &str, name: &str) -> Result<(), OnnxError> {
    let by_token = by_head(standard, value);
    let flat = standard.editor.ints(&[0, 0, -1])?;
    standard.named(NewNode::new("Reshape", &[&by_token, &flat]), name);
    Ok(())
}
