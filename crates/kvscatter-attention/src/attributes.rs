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
            ..Attention::new()
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

#[cfg(test)]
mod tests {
    use super::{Attention, AttentionError, Attributes, Scores, Softmax};

    #[test]
    fn attributes_mean_what_the_builder_sets() {
        let none = Attributes::default();
        let plain = Attention::new();
        for (attributes, expected) in [
            (none, plain),
            (Attributes { is_causal: Some(1), ..none }, plain.causal(true)),
            (Attributes { is_causal: Some(0), ..none }, plain),
            (Attributes { scale: Some(0.5), softcap: Some(30.0), ..none }, plain.scale(0.5).softcap(30.0)),
            (
                Attributes { left_window_size: Some(0), right_window_size: Some(2), ..none },
                plain.window(Some(0), Some(2)),
            ),
            (Attributes { left_window_size: Some(-1), right_window_size: Some(-1), ..none }, plain),
            (Attributes { q_num_heads: Some(4), kv_num_heads: Some(2), ..none }, plain.heads(4, 2)),
            (Attributes { softmax_precision: Some(11), ..none }, plain.softmax(Softmax::Float64)),
            // A node without the output has no use for the mode.
            (Attributes { qk_matmul_output_mode: Some(3), ..none }, plain),
        ] {
            assert_eq!(attributes.operator(false), Ok(expected), "{attributes:?}");
        }
        assert_eq!(none.operator(true), Ok(plain.scores(Scores::Products)));
        let weights = Attributes { qk_matmul_output_mode: Some(3), ..none };
        assert_eq!(weights.operator(true), Ok(plain.scores(Scores::Weights)));
        assert_ne!(plain.softmax(Softmax::Float64), plain);
        assert_ne!(plain.window(None, Some(2)), plain.window(None, None));
    }

    #[test]
    fn values_that_onnx_does_not_define_are_refused() {
        let none = Attributes::default();
        for (attributes, name, value) in [
            (Attributes { is_causal: Some(2), ..none }, "is_causal", 2),
            (Attributes { is_causal: Some(-1), ..none }, "is_causal", -1),
            (Attributes { left_window_size: Some(-2), ..none }, "left_window_size", -2),
            (Attributes { right_window_size: Some(i64::MIN), ..none }, "right_window_size", i64::MIN),
            (Attributes { q_num_heads: Some(0), ..none }, "q_num_heads", 0),
            (Attributes { kv_num_heads: Some(-1), ..none }, "kv_num_heads", -1),
            (Attributes { softmax_precision: Some(2), ..none }, "softmax_precision", 2),
            (Attributes { qk_matmul_output_mode: Some(4), ..none }, "qk_matmul_output_mode", 4),
        ] {
            assert_eq!(attributes.operator(false), Err(AttentionError::Attribute { name, value }));
        }
        for one in [Attributes { q_num_heads: Some(4), ..none }, Attributes { kv_num_heads: Some(4), ..none }]
        {
            assert_eq!(one.operator(false), Err(AttentionError::HeadsAlone));
        }
    }
}
