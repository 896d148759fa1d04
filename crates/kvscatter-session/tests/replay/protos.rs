//! Nodes, values and tensors of models that tests make.

use kvscatter_onnx::Dimension;
use kvscatter_onnx::internal::proto::{AttributeProto, NodeProto, TensorProto, ValueInfoProto};

const FLOAT: i32 = 1;
const INT64: i32 = 7;

pub(crate) fn with(mut node: NodeProto, attribute: &str, value: i64) -> NodeProto {
    node.attribute.push(AttributeProto::int(attribute, value));
    node
}

pub(crate) fn node(op_type: &str, input: &[&str], output: &[&str]) -> NodeProto {
    NodeProto { name: Some(format!("make_{}", output[0])), ..NodeProto::new(op_type, input, output) }
}

/// Returns a value from its name, the number of its type and its dimensions. A dimension that is not a number is a
/// symbol.
pub(crate) fn value(name: &str, element: i32, dims: &[&str]) -> ValueInfoProto {
    let dims: Vec<_> =
        dims.iter().map(|dim| dim.parse().map_or(Dimension::Symbolic(dim), Dimension::Known)).collect();
    ValueInfoProto::tensor(name, element, &dims)
}

pub(crate) fn floats(name: &str, dims: &[usize], values: impl IntoIterator<Item = f32>) -> TensorProto {
    tensor(name, dims, FLOAT, values.into_iter().flat_map(f32::to_le_bytes).collect())
}

pub(crate) fn int64s(name: &str, dims: &[usize], values: impl IntoIterator<Item = i64>) -> TensorProto {
    tensor(name, dims, INT64, values.into_iter().flat_map(i64::to_le_bytes).collect())
}

pub(crate) fn tensor(name: &str, dims: &[usize], element: i32, bytes: Vec<u8>) -> TensorProto {
    TensorProto {
        name: Some(name.to_owned()),
        dims: dims.iter().map(|&dim| dim as i64).collect(),
        data_type: Some(element),
        raw_data: Some(bytes.into()),
        ..TensorProto::default()
    }
}
