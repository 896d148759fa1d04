//! The attributes of a node, and its optional inputs and outputs.

use kvscatter::ElementType;
use kvscatter_attention::{Attention, AttentionError, Shapes};
use tract_onnx::pb::NodeProto;

use crate::attributes::{Attributes, given_index};
use crate::error::{NodeError, label};

/// The operator of one node.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct AttentionNode {
    pub(super) node: String,
    pub(super) op: Attention,
    pub(super) inputs: NodeInputs,
    pub(super) outputs: NodeOutputs,
    /// Whether the node reads caches that are narrower than the queries. Only [`Tract`](crate::Tract) makes such nodes.
    pub(super) reads_narrow: bool,
}

/// Floats are compared with `==`. `check` has refused NaN, so every node equals itself.
impl Eq for AttentionNode {}

/// The indices of the optional inputs among those that are present.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NodeInputs {
    pub(super) count: usize,
    pub(super) mask: Option<usize>,
    pub(super) past: Option<(usize, usize)>,
    pub(super) nonpad_kv_seqlen: Option<usize>,
    /// The scales of keys and values. Only nodes that read int8 caches have them.
    pub(super) scales: Option<(usize, usize)>,
}

/// The optional outputs that are present.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NodeOutputs {
    pub(super) count: usize,
    /// Whether the node has `present_key` and `present_value`.
    pub(super) has_presents: [bool; 2],
}

/// The inputs of a node, or what is known about them, by their roles.
pub(super) struct Operands<'a, T> {
    pub(super) query: &'a T,
    pub(super) key: &'a T,
    pub(super) value: &'a T,
    pub(super) mask: Option<&'a T>,
    pub(super) past: Option<[&'a T; 2]>,
    pub(super) lengths: Option<&'a T>,
    pub(super) scales: Option<[&'a T; 2]>,
}

impl AttentionNode {
    pub(super) fn new(node: &NodeProto, reads_narrow: bool) -> Result<Self, NodeError> {
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
        let attributes = Attributes::read(node, &known)?;
        let (inputs, outputs) = (NodeInputs::new(node, reads_narrow)?, NodeOutputs::new(node)?);
        let attributes = kvscatter_attention::Attributes {
            is_causal: attributes.integer("is_causal")?,
            kv_num_heads: attributes.integer("kv_num_heads")?,
            left_window_size: attributes.integer("left_window_size")?,
            q_num_heads: attributes.integer("q_num_heads")?,
            qk_matmul_output_mode: attributes.integer("qk_matmul_output_mode")?,
            right_window_size: attributes.integer("right_window_size")?,
            scale: attributes.float("scale")?,
            softcap: attributes.float("softcap")?,
            softmax_precision: attributes.integer("softmax_precision")?,
        };
        let has_scores = given_index(&node.output, 3).is_some();
        let op = attributes.operator(has_scores).map_err(|error| NodeError::new(node, error))?;
        Ok(Self { node: label(node), op, inputs, outputs, reads_narrow })
    }

    /// Returns the operator for keys and values of a type.
    pub(super) fn operator(&self, cached: ElementType) -> Attention {
        if self.reads_narrow { self.op.cache_element(cached) } else { self.op }
    }

    pub(super) fn error(&self, why: impl std::fmt::Display) -> NodeError {
        NodeError { node: self.node.clone(), op: "Attention".to_owned(), why: why.to_string() }
    }
}

impl NodeInputs {
    fn new(node: &NodeProto, reads_narrow: bool) -> Result<Self, NodeError> {
        let given = |index| given_index(&node.input, index);
        let most = if reads_narrow { 9 } else { 7 };
        if (0..3).any(|index| given(index).is_none()) || node.input.len() > most {
            return Err(NodeError::new(node, format!("takes 3 to 7 inputs, got {}", node.input.len())));
        }
        let past = match (given(4), given(5)) {
            (Some(key), Some(value)) => Some((key, value)),
            (None, None) => None,
            _ => {
                return Err(NodeError::new(node, AttentionError::PastAlone));
            }
        };
        let nonpad_kv_seqlen = given(6);
        if past.is_some() && nonpad_kv_seqlen.is_some() {
            return Err(NodeError::new(node, AttentionError::LengthsAndPast));
        }
        let count = node.input.iter().filter(|name| !name.is_empty()).count();
        let scales = given(7).zip(given(8));
        Ok(Self { count, mask: given(3), past, nonpad_kv_seqlen, scales })
    }

    /// Returns the inputs of a node by their roles, or `None` if one is missing.
    pub(super) fn select<'a, T>(&self, all: &'a [T]) -> Option<Operands<'a, T>> {
        if all.len() != self.count {
            return None;
        }
        let optional = |index: Option<usize>| index.and_then(|index| all.get(index));
        let pair = |indices: Option<(usize, usize)>| {
            let (key, value) = indices?;
            Some([all.get(key)?, all.get(value)?])
        };
        Some(Operands {
            query: all.first()?,
            key: all.get(1)?,
            value: all.get(2)?,
            mask: optional(self.mask),
            past: pair(self.past),
            lengths: optional(self.nonpad_kv_seqlen),
            scales: pair(self.scales),
        })
    }
}

impl<'a, T> Operands<'a, T> {
    /// Returns the shapes of a call, or `None` if one of them is not known.
    pub(super) fn shapes(
        &self,
        element: ElementType,
        shape: impl Fn(&'a T) -> Option<&'a [usize]>,
    ) -> Option<Shapes<'a>> {
        let mask = match self.mask {
            Some(mask) => Some(shape(mask)?),
            None => None,
        };
        let past = match self.past {
            Some([key, value]) => Some([shape(key)?, shape(value)?]),
            None => None,
        };
        let [query, key, value] = [shape(self.query)?, shape(self.key)?, shape(self.value)?];
        Some(Shapes { element, query, key, value, mask, past })
    }
}

impl NodeOutputs {
    fn new(node: &NodeProto) -> Result<Self, NodeError> {
        let given = |index| given_index(&node.output, index);
        if given(0).is_none() || node.output.len() > 4 {
            return Err(NodeError::new(node, format!("has 1 to 4 outputs, got {}", node.output.len())));
        }
        Ok(Self {
            count: node.output.iter().filter(|name| !name.is_empty()).count(),
            has_presents: [given(1).is_some(), given(2).is_some()],
        })
    }
}
