//! The `Attention` node that takes the place of ONNX Runtime's attention operators.

use super::node::StandardEditor;
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
        standard: &mut StandardEditor<'_, '_>,
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
        let outputs =
            if self.presents.iter().all(|present| present.is_empty()) { &outputs[..1] } else { &outputs };
        standard.editor.add(node.outputs(outputs));
        let joined = standard.editor.join_heads(&attended)?;
        standard.named(joined, self.output);
        Ok(())
    }
}
