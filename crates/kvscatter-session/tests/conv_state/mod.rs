//! The operator of a state, for tests that add a state to a decoder.

use kvscatter_onnx::internal::proto::tensor_shape_proto::dimension::Value as DimValue;
use kvscatter_onnx::internal::proto::{GraphProto, NodeProto, ValueInfoProto};

use super::decoders::tensor;

/// Returns a convolution with the state `past.conv`, which returns `present.conv`.
pub(crate) fn node() -> NodeProto {
    let inputs = ["logits", "logits", "", "past.conv"];
    let node = NodeProto::new("CausalConvWithState", &inputs, &["mixed", "present.conv"]);
    NodeProto { domain: Some("com.microsoft".to_owned()), ..node }
}

/// Adds such a convolution, whose state has the type of a cache.
pub(crate) fn add(graph: &mut GraphProto) {
    for (values, name) in [(&mut graph.input, "past.conv"), (&mut graph.output, "present.conv")] {
        let is_cache = |value: &&ValueInfoProto| {
            let name = value.name.as_deref().unwrap_or_default();
            ["cache.0", "values.0", "present.0"].iter().any(|of| name.contains(of))
        };
        let cache = values.iter().find(is_cache).unwrap();
        let mut state = ValueInfoProto { name: Some(name.to_owned()), ..cache.clone() };
        let dims = &mut tensor(&mut state).shape.get_or_insert_default().dim;
        for (dim, size) in dims.iter_mut().skip(1).zip([5, 3]) {
            dim.value = Some(DimValue::DimValue(size));
        }
        values.push(state);
    }
    graph.node.push(node());
}
