//! Models of one node that tract runs through its public interface.

use std::path::{Path, PathBuf};

use kvscatter_tract::register;
use tract_onnx::pb::tensor_shape_proto::{Dimension, dimension};
use tract_onnx::pb::{
    AttributeProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorShapeProto, TypeProto,
    ValueInfoProto, attribute_proto::AttributeType, type_proto,
};
use tract_onnx::prelude::*;
use tract_onnx::tract_hir::internal::Framework;

pub(crate) fn testdata(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata").join(path)
}

/// Returns the path of a decoder of the test data.
pub(crate) fn decoder(name: &str) -> PathBuf {
    testdata(name).join("model.onnx")
}

/// Returns a value of a graph from its name, ONNX's number of its type, and its dimensions. A dimension that
/// is not a number is a symbol.
pub(crate) fn value(name: &str, element: i32, dims: &[&str]) -> ValueInfoProto {
    let dim = |dim: &&str| {
        let value = match dim.parse() {
            Ok(size) => dimension::Value::DimValue(size),
            Err(_) => dimension::Value::DimParam((*dim).to_owned()),
        };
        Dimension { value: Some(value), ..Dimension::default() }
    };
    let shape = TensorShapeProto { dim: dims.iter().map(dim).collect() };
    let tensor = type_proto::Tensor { elem_type: element, shape: Some(shape) };
    let kind = TypeProto { value: Some(type_proto::Value::TensorType(tensor)), ..TypeProto::default() };
    ValueInfoProto { name: name.to_owned(), r#type: Some(kind), ..ValueInfoProto::default() }
}

pub(crate) fn node(op_type: &str, name: &str, input: &[&str], output: &[&str]) -> NodeProto {
    let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    NodeProto {
        op_type: op_type.to_owned(),
        name: name.to_owned(),
        input: owned(input),
        output: owned(output),
        ..NodeProto::default()
    }
}

pub(crate) fn integer(name: &str, value: i64) -> AttributeProto {
    AttributeProto {
        name: name.to_owned(),
        i: value,
        r#type: AttributeType::Int.into(),
        ..AttributeProto::default()
    }
}

pub(crate) fn float(name: &str, value: f32) -> AttributeProto {
    AttributeProto {
        name: name.to_owned(),
        f: value,
        r#type: AttributeType::Float.into(),
        ..AttributeProto::default()
    }
}

pub(crate) fn text(name: &str, value: &str) -> AttributeProto {
    let s = value.as_bytes().to_vec();
    AttributeProto {
        name: name.to_owned(),
        s,
        r#type: AttributeType::String.into(),
        ..AttributeProto::default()
    }
}

pub(crate) fn model(
    nodes: Vec<NodeProto>,
    inputs: Vec<ValueInfoProto>,
    outputs: Vec<ValueInfoProto>,
) -> ModelProto {
    let graph = GraphProto { node: nodes, input: inputs, output: outputs, ..GraphProto::default() };
    let opset = OperatorSetIdProto { domain: String::new(), version: 24 };
    ModelProto { ir_version: 11, opset_import: vec![opset], graph: Some(graph), ..ModelProto::default() }
}

/// Returns the model as a plan.
pub(crate) fn plan(model: &ModelProto) -> TractResult<Arc<TypedSimplePlan>> {
    let mut onnx = tract_onnx::onnx();
    register(&mut onnx);
    onnx.model_for_proto_model(model)?.into_optimized()?.into_runnable()
}

/// Returns the message of the root cause of an error.
pub(crate) fn words<T>(result: TractResult<T>) -> String {
    result.err().map_or_else(|| "nothing went wrong".to_owned(), |error| error.root_cause().to_string())
}
