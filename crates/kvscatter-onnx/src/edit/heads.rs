//! Nodes that rearrange the heads of a value.

use super::{Editor, NewNode};
use crate::OnnxError;

impl Editor<'_> {
    /// Adds `[batch, tokens, heads, head size]` of a value `[batch, tokens, heads * head size]`. Returns the name.
    pub(crate) fn split_heads(&mut self, value: &str, heads: i64) -> Result<String, OnnxError> {
        let shape = self.ints(&[0, 0, heads, -1])?;
        Ok(self.node("Reshape", &[value, &shape]))
    }

    /// Adds `[batch, heads, tokens, head size]` of a value `[batch, tokens, heads, head size]`, or the reverse. Returns
    /// the name.
    pub(crate) fn exchange_heads_and_tokens(&mut self, value: &str) -> String {
        self.add(NewNode::new("Transpose", &[value]).ints("perm", &[0, 2, 1, 3]))
    }

    /// Adds `[batch, heads, tokens, head size]` of a value `[batch, tokens, heads * head size]`. Returns the name.
    pub(crate) fn by_head(&mut self, value: &str, heads: i64) -> Result<String, OnnxError> {
        let split = self.split_heads(value, heads)?;
        Ok(self.exchange_heads_and_tokens(&split))
    }

    /// Returns a node that makes `[batch, tokens, heads * head size]` of a value `[batch, heads, tokens, head size]`.
    pub(crate) fn join_heads(&mut self, value: &str) -> Result<NewNode, OnnxError> {
        let by_token = self.exchange_heads_and_tokens(value);
        let shape = self.ints(&[0, 0, -1])?;
        Ok(NewNode::new("Reshape", &[&by_token, &shape]))
    }

    /// Returns a node that makes `[batch * heads, ..]` of a value `[batch, heads, ..]`.
    ///
    /// # Errors
    /// Returns the errors of [`shared`](Self::shared).
    pub(crate) fn merge_heads(&mut self, value: &str) -> Result<NewNode, OnnxError> {
        let inner = self.shared(NewNode::new("Shape", &[value]).int("start", 2))?;
        let rows = self.ints(&[-1])?;
        let shape = self.shared(NewNode::new("Concat", &[&rows, &inner]).int("axis", 0))?;
        Ok(NewNode::new("Reshape", &[value, &shape]))
    }
}
