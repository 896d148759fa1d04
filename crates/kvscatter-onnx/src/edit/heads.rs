//! Nodes that rearrange the heads of a value.

use super::{Editor, NewNode};
use crate::OnnxError;

impl Editor<'_> {
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
