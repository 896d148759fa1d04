//! The operators that are replaced.

use super::node::{Replacing, StandardEditor};
use super::{activation, group_query, matmul, multi_head, norm, rotary};
use crate::graph::DEFAULT_DOMAIN;
use crate::{Node, OnnxError};

/// The domain of ONNX Runtime's own operators.
pub(super) const MICROSOFT: &str = "com.microsoft";

/// How an operator is replaced.
pub(super) struct StandardForm {
    /// Adds the nodes that compute the outputs of the replaced one.
    pub(super) replace: fn(&mut StandardEditor<'_, '_>, &Replacing<'_>) -> Result<(), OnnxError>,
    /// Whether the proof may use smaller dimensions. It may not if dimensions depend on attributes.
    pub(super) is_scalable: bool,
}

/// Returns how an operator is replaced, or `None` if it stays.
///
/// ONNX Runtime has `SimplifiedLayerNormalization` in the default domain, although ONNX does not define it.
pub(super) fn standard_form(node: &Node<'_>) -> Option<StandardForm> {
    if node.is_function() {
        return None;
    }
    let scalable = |replace| Some(StandardForm { replace, is_scalable: true });
    let fixed = |replace| Some(StandardForm { replace, is_scalable: false });
    match (node.domain(), node.op_type()) {
        (DEFAULT_DOMAIN | MICROSOFT, "SimplifiedLayerNormalization") => scalable(norm::simplified),
        (MICROSOFT, "SkipLayerNormalization" | "SkipSimplifiedLayerNormalization") => scalable(norm::skip),
        (MICROSOFT, "BiasGelu") => scalable(activation::bias_gelu),
        (MICROSOFT, "FastGelu") => scalable(activation::fast_gelu),
        (MICROSOFT, "Gelu") => scalable(activation::gelu),
        (MICROSOFT, "QuickGelu") => scalable(activation::quick_gelu),
        (MICROSOFT, "FusedMatMul") => scalable(matmul::fused),
        (MICROSOFT, "RotaryEmbedding") => fixed(rotary::rotary),
        (MICROSOFT, "MultiHeadAttention") => fixed(multi_head::multi_head_attention),
        (MICROSOFT, "GroupQueryAttention") => fixed(group_query::group_query_attention),
        _ => None,
    }
}
