//! The `Attention` node that separate nodes may become.

use kvscatter::ElementType;

use super::sink::Sinks;
use crate::OnnxError;
use crate::convert::rewriter::over_caches;
use crate::convert::rule::Rule;
use crate::edit::{Editor, NewNode};

/// The `Attention` node that an attention operation of separate nodes may become, with the nodes that follow it.
#[derive(Clone, Debug)]
pub(in crate::convert) struct FusedAttention<'m> {
    /// The queries before they are scaled, `[batch, heads, new tokens, head size]`.
    pub(super) queries: &'m str,
    /// The caches of keys and values.
    pub(super) caches: [CacheNames<'m>; 2],
    /// The name of the result, `[batch, heads, new tokens, head size]`.
    pub(in crate::convert) output: &'m str,
    /// Whether the result is `[batch * heads, new tokens, head size]` instead.
    pub(super) is_merged: bool,
    /// The product of all factors of queries, keys and scores.
    pub(super) scale: f32,
    /// Which slots are hidden, and what is added to the scaled scores of the others.
    pub(in crate::convert) rule: Rule,
    /// The largest magnitude of a score, or 0 if there is no limit.
    pub(super) softcap: f32,
    /// The sinks that take a part of the weights.
    pub(super) sinks: Option<Sinks<'m>>,
    /// The type of the queries, keys and values.
    pub(in crate::convert) element: ElementType,
    /// The type of the result.
    pub(super) output_element: ElementType,
    /// The type of the scores when the softmax reads them.
    pub(super) softmax_element: ElementType,
}

/// The names of a cache after its rows are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CacheNames<'m> {
    /// The value that the exported decoder reads.
    pub(super) written: &'m str,
    /// The output, which the converted decoder reads.
    pub(super) present: &'m str,
}

impl<'m> FusedAttention<'m> {
    /// Returns the queries and the values with the caches in the exported decoder.
    pub(super) fn starts(&self) -> [&'m str; 3] {
        let [keys, values] = self.caches;
        [self.queries, keys.written, values.written]
    }

    /// Returns the outputs with keys and values.
    pub(in crate::convert) fn presents(&self) -> [&'m str; 2] {
        self.caches.map(|cache| cache.present)
    }

    /// Adds the `Attention` node, which reads the presents, and the nodes that follow it. `lengths` is the number of
    /// slots in use of each sample.
    ///
    /// # Errors
    /// Returns the errors of [`Editor::floats`] and [`Editor::shared`].
    pub(in crate::convert) fn write(
        &self,
        editor: &mut Editor<'_>,
        mask: &str,
        lengths: &str,
    ) -> Result<(), OnnxError> {
        let [keys, values] = self.presents();
        let attention = self.attributes(over_caches([self.queries, keys, values], mask, lengths));
        let mut last = match &self.sinks {
            None => attention,
            Some(sinks) => sinks.add_before_last(editor, attention, lengths, self.element)?,
        };
        if self.output_element != self.element {
            last = NewNode::cast(&editor.add(last.called("attention")), self.output_element);
        }
        if self.is_merged {
            let by_head = editor.add(last.called("attention"));
            last = editor.merge_heads(&by_head)?;
        }
        editor.add(last.outputs(&[self.output]));
        Ok(())
    }

    /// Sets the attributes of an `Attention` node.
    fn attributes(&self, attention: NewNode) -> NewNode {
        let mut attention = attention.float("scale", self.scale);
        if self.is_capped() {
            attention = attention.float("softcap", self.softcap);
        }
        if self.softmax_element != self.element {
            attention = attention.int("softmax_precision", i64::from(self.softmax_element.onnx_code()));
        }
        attention
    }

    pub(super) fn is_capped(&self) -> bool {
        self.softcap != 0.0
    }
}
