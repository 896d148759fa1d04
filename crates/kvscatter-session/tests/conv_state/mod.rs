//! The operator of a state, for tests that add a state to a decoder.

use kvscatter_onnx::Dimension;
use kvscatter_onnx::internal::proto::{AttributeProto, GraphProto, NodeProto, TensorProto, ValueInfoProto};

const FLOAT: i32 = 1;

/// The number of logits, each of which is a channel of the convolution.
const CHANNELS: u16 = 256;

/// Returns a convolution with the state `past.conv`, which returns `present.conv`.
pub(crate) fn node() -> NodeProto {
    let inputs = ["logits", "logits", "", "past.conv"];
    let node = NodeProto::new("CausalConvWithState", &inputs, &["mixed", "present.conv"]);
    NodeProto { domain: Some("com.microsoft".to_owned()), ..node }
}

/// Adds such a convolution of the logits, with a kernel of 4. It can also be evaluated.
pub(crate) fn add(graph: &mut GraphProto) {
    let dims = [Dimension::Symbolic("batch"), Dimension::Known(CHANNELS.into()), Dimension::Known(3)];
    graph.input.push(ValueInfoProto::tensor("past.conv", FLOAT, &dims));
    graph.output.push(ValueInfoProto::tensor("present.conv", FLOAT, &dims));
    graph.initializer.push(TensorProto {
        name: Some("weights.conv".to_owned()),
        dims: vec![CHANNELS.into(), 1, 4],
        data_type: Some(FLOAT),
        float_data: vec![0.5; 4 * usize::from(CHANNELS)],
        ..TensorProto::default()
    });
    let mut channels = NodeProto::new("Transpose", &["logits"], &["channels"]);
    channels.attribute.push(AttributeProto::ints("perm", &[0, 2, 1]));
    let mut convolution = node();
    (convolution.input[0], convolution.input[1]) = ("channels".to_owned(), "weights.conv".to_owned());
    graph.node.extend([channels, convolution]);
}
