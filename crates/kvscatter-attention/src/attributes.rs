//! The attributes of a node, as a model has them.

use crate::error::AttentionError;
use crate::operator::{Attention, Scores, Softmax};

/// The attributes of an ONNX `Attention` node, by ONNX's names. `None` stands for an attribute that the node does not
/// have.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[expect(missing_docs, reason = "ONNX documents these names")]
pub struct Attributes {
    pub is_causal: Option<i64>,
    pub kv_num_heads: Option<i64>,
    pub left_window_size: Option<i64>,
    pub q_num_heads: Option<i64>,
    pub qk_matmul_output_mode: Option<i64>,
    pub right_window_size: Option<i64>,
    pub scale: Option<f32>,
    pub softcap: Option<f32>,
    pub softmax_precision: Option<i64>,
}

impl Attributes {
    /// Returns the operator. `has_scores` is whether the node has the output `qk_matmul_output`.
    ///
    /// # Errors
    /// * Returns [`AttentionError::Attribute`] for a value that ONNX does not define.
    /// * Returns [`AttentionError::HeadsAlone`] if the node has only one of the numbers of heads.
    /// * Returns the errors of [`Attention::check`].
    pub fn operator(&self, has_scores: bool) -> Result<Attention, AttentionError> {
        let query_heads = meaning("q_num_heads", self.q_num_heads, heads)?;
        let key_heads = meaning("kv_num_heads", self.kv_num_heads, heads)?;
        let left = meaning("left_window_size", self.left_window_size, bound)?.flatten();
        let right = meaning("right_window_size", self.right_window_size, bound)?.flatten();
        let softmax = meaning("softmax_precision", self.softmax_precision, Softmax::from_precision)?;
        let mode = meaning("qk_matmul_output_mode", self.qk_matmul_output_mode, Scores::from_mode)?;
        let operator = Attention {
            is_causal: meaning("is_causal", self.is_causal, flag)?.unwrap_or(false),
            scale: self.scale,
            softcap: self.softcap.unwrap_or(0.0),
            left,
            right,
            heads: match (query_heads, key_heads) {
                (Some(query), Some(key)) => Some((query, key)),
                (None, None) => None,
                _ => return Err(AttentionError::HeadsAlone),
            },
            softmax: softmax.unwrap_or_default(),
            scores: has_scores.then_some(mode.unwrap_or(Scores::Products)),
            is_ring: false,
        };
        operator.check()?;
        Ok(operator)
    }
}

/// Returns the meaning of the value of an attribute, if the node has the attribute.
fn meaning<T>(
    name: &'static str,
    value: Option<i64>,
    meaning: impl Fn(i64) -> Option<T>,
) -> Result<Option<T>, AttentionError> {
    let Some(value) = value else { return Ok(None) };
    meaning(value).map(Some).ok_or(AttentionError::Attribute { name, value })
}

fn flag(value: i64) -> Option<bool> {
    [false, true].get(usize::try_from(value).ok()?).copied()
}

fn heads(value: i64) -> Option<usize> {
    usize::try_from(value).ok().filter(|heads| *heads > 0)
}

/// Returns the size of one side of a window. -1 sets no bound.
fn bound(value: i64) -> Option<Option<usize>> {
    if value == -1 { Some(None) } else { usize::try_from(value).ok().map(Some) }
}
