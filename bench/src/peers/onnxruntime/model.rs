//! A model of one `TensorScatter` node without fixed shapes.

use kvscatter_onnx::proto::type_proto::{self, Value};
use kvscatter_onnx::proto::{
    AttributeProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TypeProto, ValueInfoProto,
    attribute_proto::AttributeType,
};
use kvscatter_onnx::{Model, OnnxError};

use kvscatter::{ElementType, Mode};

/// The names of the inputs, in the specification's order.
pub(super) const INPUTS: [&str; 3] = ["past_cache", "update", "write_indices"];

/// The name of the output.
pub(super) const OUTPUT: &str = "present_cache";

/// The version of ONNX's intermediate representation that introduced operator set 24.
const IR_VERSION: i64 = 12;

/// Returns the bytes of the model.
pub(super) fn tensor_scatter(axis: i64, mode: Mode, element: ElementType) -> Result<Vec<u8>, OnnxError> {
    let mode: &[u8] = if mode == Mode::Circular { b"circular" } else { b"linear" };
    let attribute = |name: &str, r#type| AttributeProto {
        name: Some(name.to_owned()),
        r#type: Some(r#type),
        ..Default::default()
    };
    let node = NodeProto {
        op_type: Some("TensorScatter".to_owned()),
        input: INPUTS.map(str::to_owned).to_vec(),
        output: vec![OUTPUT.to_owned()],
        attribute: vec![
            AttributeProto { i: Some(axis), ..attribute("axis", AttributeType::INT) },
            AttributeProto { s: Some(mode.to_vec()), ..attribute("mode", AttributeType::STRING) },
        ],
        ..Default::default()
    };
    let types = [element, element, ElementType::Int64];
    let graph = GraphProto {
        name: Some("tensor_scatter".to_owned()),
        node: vec![node],
        input: INPUTS.into_iter().zip(types).map(|(name, element)| value(name, element)).collect(),
        output: vec![value(OUTPUT, element)],
        ..Default::default()
    };
    let opset = OperatorSetIdProto { domain: Some(String::new()), version: Some(24), ..Default::default() };
    let model = ModelProto {
        ir_version: Some(IR_VERSION),
        opset_import: vec![opset],
        graph: graph.into(),
        ..Default::default()
    };
    Model::from_proto(model).to_bytes()
}

fn value(name: &str, element: ElementType) -> ValueInfoProto {
    let tensor = type_proto::Tensor { elem_type: Some(element.onnx_code()), ..Default::default() };
    let r#type = TypeProto { value: Some(Value::TensorType(Box::new(tensor))), ..Default::default() };
    ValueInfoProto { name: Some(name.to_owned()), r#type: r#type.into(), ..Default::default() }
}
