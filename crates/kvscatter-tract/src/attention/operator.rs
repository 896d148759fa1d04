//! The attributes of a node, and its optional inputs and outputs.

use tract_onnx::pb::NodeProto;

use crate::attributes::{Attributes, given_index};
use crate::error::{NodeError, label};

/// The operator of one node.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Attention {
    pub(super) node: String,
    /// The numbers of query heads and of key and value heads, if the inputs have rank 3.
    pub(super) heads: Option<(usize, usize)>,
    pub(super) scale: Option<f32>,
    /// The cap of the scores, or 0 if they have no cap.
    pub(super) softcap: f32,
    pub(super) window: Window,
    pub(super) softmax_in_f64: bool,
    pub(super) inputs: Inputs,
    pub(super) outputs: Outputs,
}

/// Two nodes are the same if their floats are equal by `==`.
impl Eq for Attention {}

/// The window of a query, relative to its position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Window {
    pub(super) is_causal: bool,
    pub(super) left: Option<usize>,
    pub(super) right: Option<usize>,
}

/// The indices of the optional inputs among those that are present.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Inputs {
    pub(super) count: usize,
    pub(super) mask: Option<usize>,
    pub(super) past: Option<(usize, usize)>,
    pub(super) nonpad_kv_seqlen: Option<usize>,
}

/// The indices of the optional outputs among those that are present.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Outputs {
    pub(super) count: usize,
    pub(super) present_key: Option<usize>,
    pub(super) present_value: Option<usize>,
    pub(super) scores: Option<(usize, Scores)>,
}

/// The kind of scores in `qk_matmul_output`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scores {
    Raw,
    Capped,
    Biased,
    Weights,
}

impl Attention {
    pub(super) fn of(node: &NodeProto) -> Result<Self, NodeError> {
        let refused = |why: &str| NodeError::of(node, why);
        let known = [
            "is_causal",
            "kv_num_heads",
            "left_window_size",
            "q_num_heads",
            "qk_matmul_output_mode",
            "right_window_size",
            "scale",
            "softcap",
            "softmax_precision",
        ];
        let attributes = Attributes::of(node, &known)?;
        let heads = |name: &str| match attributes.integer(name)?.map(usize::try_from) {
            None => Ok(None),
            Some(Ok(heads)) if heads > 0 => Ok(Some(heads)),
            Some(_) => Err(refused(&format!("attribute {name:?} must be positive"))),
        };
        let heads = match (heads("q_num_heads")?, heads("kv_num_heads")?) {
            (Some(query), Some(key)) => Some((query, key)),
            (None, None) => None,
            _ => return Err(refused("q_num_heads and kv_num_heads must both be present or both be absent")),
        };
        let bound = |name: &str| match attributes.integer(name)?.unwrap_or(-1) {
            -1 => Ok(None),
            bound => usize::try_from(bound)
                .map(Some)
                .map_err(|_| refused(&format!("attribute {name:?} must be at least -1, got {bound}"))),
        };
        let softmax_in_f64 = match attributes.integer("softmax_precision")? {
            // All sums are in float32, which is at least as accurate as float16 and bfloat16.
            None | Some(1 | 10 | 16) => false,
            Some(11) => true,
            Some(code) => {
                return Err(refused(&format!("softmax_precision {code} is not a floating-point type")));
            }
        };
        let mode = attributes.integer("qk_matmul_output_mode")?.unwrap_or(0);
        Ok(Self {
            node: label(node),
            heads,
            scale: attributes.float("scale")?,
            softcap: attributes.float("softcap")?.unwrap_or(0.0),
            window: Window {
                is_causal: attributes.integer("is_causal")?.unwrap_or(0) != 0,
                left: bound("left_window_size")?,
                right: bound("right_window_size")?,
            },
            softmax_in_f64,
            inputs: Inputs::of(node)?,
            outputs: Outputs::of(node, mode)?,
        })
    }

    pub(super) fn error(&self, why: impl std::fmt::Display) -> NodeError {
        NodeError { node: self.node.clone(), op: "Attention".to_owned(), why: why.to_string() }
    }
}

impl Inputs {
    pub(super) fn of(node: &NodeProto) -> Result<Self, NodeError> {
        let at = |index| given_index(&node.input, index);
        if (0..3).any(|index| at(index).is_none()) || node.input.len() > 7 {
            return Err(NodeError::of(node, format!("takes 3 to 7 inputs, got {}", node.input.len())));
        }
        let past = match (at(4), at(5)) {
            (Some(key), Some(value)) => Some((key, value)),
            (None, None) => None,
            _ => {
                return Err(NodeError::of(
                    node,
                    "past_key and past_value must both be present or both be absent",
                ));
            }
        };
        let nonpad_kv_seqlen = at(6);
        if past.is_some() && nonpad_kv_seqlen.is_some() {
            return Err(NodeError::of(node, "nonpad_kv_seqlen cannot be used with past_key and past_value"));
        }
        let count = node.input.iter().filter(|name| !name.is_empty()).count();
        Ok(Self { count, mask: at(3), past, nonpad_kv_seqlen })
    }
}

impl Outputs {
    pub(super) fn of(node: &NodeProto, mode: i64) -> Result<Self, NodeError> {
        let at = |index| given_index(&node.output, index);
        if at(0).is_none() || node.output.len() > 4 {
            return Err(NodeError::of(node, format!("has 1 to 4 outputs, got {}", node.output.len())));
        }
        let scores = match mode {
            0 => Scores::Raw,
            1 => Scores::Capped,
            2 => Scores::Biased,
            3 => Scores::Weights,
            mode => return Err(NodeError::of(node, format!("qk_matmul_output_mode is 0 to 3, got {mode}"))),
        };
        Ok(Self {
            count: node.output.iter().filter(|name| !name.is_empty()).count(),
            present_key: at(1),
            present_value: at(2),
            scores: at(3).map(|index| (index, scores)),
        })
    }

    pub(super) fn presents(&self) -> impl Iterator<Item = usize> {
        self.present_key.into_iter().chain(self.present_value)
    }
}
