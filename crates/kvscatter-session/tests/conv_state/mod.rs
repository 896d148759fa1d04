//! The operator of a state, for tests that add a state to a decoder.

use kvscatter_onnx::internal::proto::NodeProto;

/// Returns a convolution with the state `past.conv`, which returns `present.conv`.
pub(crate) fn node() -> NodeProto {
    let inputs = ["logits", "logits", "", "past.conv"];
    let node = NodeProto::new("CausalConvWithState", &inputs, &["mixed", "present.conv"]);
    NodeProto { domain: Some("com.microsoft".to_owned()), ..node }
}
