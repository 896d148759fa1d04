//! A model of one TensorScatter node.

use kvscatter_onnx::proto::tensor_shape_proto::Dimension;
use kvscatter_onnx::proto::tensor_shape_proto::dimension::Value as DimValue;
use kvscatter_onnx::proto::type_proto::{self, Value as TypeValue};
use kvscatter_onnx::proto::{
    AttributeProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorShapeProto, TypeProto,
    ValueInfoProto, attribute_proto::AttributeType,
};
use kvscatter_onnx::{Model, Tensor};

/// The version of ONNX's intermediate representation that operator set 24 came with.
const IR_VERSION: i64 = 12;

/// `present_cache = TensorScatter(inputs…)`, with inputs declared as they are.
pub(super) fn tensor_scatter(axis: i64, mode: &str, inputs: &[Tensor]) -> Model {
    let names: Vec<String> =
        ["past_cache", "update", "write_indices"].into_iter().take(inputs.len()).map(str::to_owned).collect();
    let node = NodeProto {
        op_type: Some("TensorScatter".to_owned()),
        input: names.clone(),
        output: vec!["present_cache".to_owned()],
        attribute: vec![
            AttributeProto {
                name: Some("axis".to_owned()),
                r#type: Some(AttributeType::INT),
                i: Some(axis),
                ..Default::default()
            },
            AttributeProto {
                name: Some("mode".to_owned()),
                r#type: Some(AttributeType::STRING),
                s: Some(mode.as_bytes().to_vec()),
                ..Default::default()
            },
        ],
        ..Default::default()
    };
    let present = inputs.first().map(|past| value("present_cache", past));
    let graph = GraphProto {
        name: Some("tensor_scatter".to_owned()),
        node: vec![node],
        input: names.iter().zip(inputs).map(|(name, tensor)| value(name, tensor)).collect(),
        output: present.into_iter().collect(),
        ..Default::default()
    };
    Model::from_proto(ModelProto {
        ir_version: Some(IR_VERSION),
        producer_name: Some("kvscatter".to_owned()),
        opset_import: vec![OperatorSetIdProto {
            domain: Some(String::new()),
            version: Some(24),
            ..Default::default()
        }],
        graph: graph.into(),
        ..Default::default()
    })
}

fn value(name: &str, tensor: &Tensor) -> ValueInfoProto {
    let dim = |size| Dimension { value: Some(DimValue::DimValue(size)), ..Default::default() };
    let shape = TensorShapeProto { dim: tensor.dims_i64().map(dim).collect(), ..Default::default() };
    let ty = type_proto::Tensor {
        elem_type: Some(tensor.element().onnx_code()),
        shape: shape.into(),
        ..Default::default()
    };
    ValueInfoProto {
        name: Some(name.to_owned()),
        r#type: TypeProto { value: Some(TypeValue::TensorType(Box::new(ty))), ..Default::default() }.into(),
        ..Default::default()
    }
}
