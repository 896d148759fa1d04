//! Helpers that build models briefly.

use std::path::{Path, PathBuf};

use kvscatter::ElementType;
use kvscatter_onnx::proto::attribute_proto::AttributeType;
use kvscatter_onnx::proto::tensor_shape_proto::Dimension;
use kvscatter_onnx::proto::tensor_shape_proto::dimension::Value as DimValue;
use kvscatter_onnx::proto::type_proto::{self, Value as TypeValue};
use kvscatter_onnx::proto::{
    AttributeProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto, TensorShapeProto,
    TypeProto, ValueInfoProto,
};
use kvscatter_onnx::{Data, Model, Tensor};

/// Returns the path of a file in the repository's testdata.
pub(crate) fn testdata(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata").join(path)
}

/// Reads a decoder of the repository's testdata.
pub(crate) fn load(decoder: &str) -> Model {
    Model::load(&testdata(&format!("{decoder}/model.onnx"))).unwrap()
}

/// Declares a value. In `dims`, `?` is an unknown dimension, a number is a size, and a word is a symbol.
pub(crate) fn value(name: &str, element: ElementType, dims: &[&str]) -> ValueInfoProto {
    let dim = |dim: &&str| Dimension {
        value: match dim.parse() {
            Ok(size) => Some(DimValue::DimValue(size)),
            Err(_) if *dim == "?" => None,
            Err(_) => Some(DimValue::DimParam((*dim).to_owned())),
        },
        ..Dimension::default()
    };
    let tensor = type_proto::Tensor {
        elem_type: Some(element.onnx_code()),
        shape: TensorShapeProto { dim: dims.iter().map(dim).collect(), ..TensorShapeProto::default() }.into(),
        ..type_proto::Tensor::default()
    };
    ValueInfoProto {
        name: Some(name.to_owned()),
        r#type: TypeProto { value: Some(TypeValue::TensorType(Box::new(tensor))), ..TypeProto::default() }
            .into(),
        ..ValueInfoProto::default()
    }
}

/// Creates a node of the default domain whose name is `n` followed by its output.
pub(crate) fn node(op_type: &str, inputs: &[&str], output: &str) -> NodeProto {
    NodeProto {
        name: Some(format!("n{output}")),
        op_type: Some(op_type.to_owned()),
        input: inputs.iter().map(|&input| input.to_owned()).collect(),
        output: vec![output.to_owned()],
        ..NodeProto::default()
    }
}

fn attribute(name: &str, ty: AttributeType) -> AttributeProto {
    AttributeProto { name: Some(name.to_owned()), r#type: Some(ty), ..AttributeProto::default() }
}

pub(crate) fn int(name: &str, value: i64) -> AttributeProto {
    AttributeProto { i: Some(value), ..attribute(name, AttributeType::INT) }
}

pub(crate) fn tensor(name: &str, value: &Tensor) -> AttributeProto {
    let value = kvscatter_onnx::tensor_proto::encode("", value);
    AttributeProto { t: value.into(), ..attribute(name, AttributeType::TENSOR) }
}

pub(crate) fn float(name: &str, value: f32) -> AttributeProto {
    AttributeProto { f: Some(value), ..attribute(name, AttributeType::FLOAT) }
}

pub(crate) fn ints(name: &str, values: &[i64]) -> AttributeProto {
    AttributeProto { ints: values.to_vec(), ..attribute(name, AttributeType::INTS) }
}

pub(crate) fn string(name: &str, value: &str) -> AttributeProto {
    AttributeProto { s: Some(value.as_bytes().to_vec()), ..attribute(name, AttributeType::STRING) }
}

/// Creates an initializer of integers.
pub(crate) fn int64s(name: &str, dims: &[i64], values: &[i64]) -> TensorProto {
    TensorProto {
        name: Some(name.to_owned()),
        dims: dims.to_vec(),
        data_type: Some(ElementType::Int64.onnx_code()),
        int64_data: values.to_vec(),
        ..TensorProto::default()
    }
}

/// Creates a body of `If`, `Loop` or `Scan`. Its outputs only have names.
pub(crate) fn graph(name: &str, nodes: Vec<NodeProto>, outputs: &[&str]) -> AttributeProto {
    let output = |name: &&str| ValueInfoProto { name: Some((*name).to_owned()), ..ValueInfoProto::default() };
    let body =
        GraphProto { node: nodes, output: outputs.iter().map(output).collect(), ..GraphProto::default() };
    AttributeProto { g: body.into(), ..attribute(name, AttributeType::GRAPH) }
}

/// Creates a `TensorScatter` on axis 1.
pub(crate) fn scatter(inputs: &[&str], output: &str) -> NodeProto {
    let mut scatter = node("TensorScatter", inputs, output);
    scatter.attribute = vec![int("axis", 1)];
    scatter
}

/// Creates a model of opset 24.
pub(crate) fn model(
    inputs: Vec<ValueInfoProto>,
    nodes: Vec<NodeProto>,
    outputs: Vec<ValueInfoProto>,
) -> Model {
    let graph = GraphProto { input: inputs, node: nodes, output: outputs, ..GraphProto::default() };
    Model::from_proto(ModelProto {
        ir_version: Some(11),
        graph: graph.into(),
        opset_import: vec![opset("", 24)],
        ..ModelProto::default()
    })
}

pub(crate) fn opset(domain: &str, version: i64) -> OperatorSetIdProto {
    OperatorSetIdProto {
        domain: Some(domain.to_owned()),
        version: Some(version),
        ..OperatorSetIdProto::default()
    }
}

pub(crate) fn bytes(element: ElementType, shape: &[usize], bytes: &[u8]) -> Tensor {
    Tensor::new(element, shape.to_vec(), Data::Bytes(bytes.to_vec())).unwrap()
}

pub(crate) fn int64(shape: &[usize], values: &[i64]) -> Tensor {
    let data = values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<_>>();
    bytes(ElementType::Int64, shape, &data)
}

/// Asserts that the result is an error whose root cause matches a pattern.
macro_rules! assert_refused {
    ($result:expr, $pattern:pat $(if $guard:expr)?) => {
        match $result {
            Err(error) => assert!(matches!(error.root(), $pattern $(if $guard)?), "{error}"),
            Ok(value) => panic!("{value:?}"),
        }
    };
}
pub(crate) use assert_refused;
