//! The operator of a state, for tests that add a state to a decoder.

use kvscatter_onnx::internal::proto::NodeProto;

/// Returns a convolution with the state `past.conv`, which returns `present.conv`.
pub(crate) fn node() -> NodeProto {
    let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
    NodeProto {
        op_type: Some("CausalConvWithState".to_owned()),
        domain: Some("com.microsoft".to_owned()),
        input: names(&["logits", "logits", "", "past.conv"]),
        output: names(&["mixed", "present.conv"]),
        ..NodeProto::default()
    }
}
