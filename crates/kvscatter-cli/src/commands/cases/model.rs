//! Models of one or two nodes.

use kvscatter::ElementType;
use kvscatter_onnx::internal::proto::tensor_shape_proto::Dimension;
use kvscatter_onnx::internal::proto::tensor_shape_proto::dimension::Value as DimValue;
use kvscatter_onnx::internal::proto::type_proto::{self, Value as TypeValue};
use kvscatter_onnx::internal::proto::{
    AttributeProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorShapeProto, TypeProto,
    ValueInfoProto, attribute_proto::AttributeType,
};
use kvscatter_onnx::{Model, Tensor};

use crate::operators::PLUGIN_DOMAIN;

/// The operator set that `TensorScatter` came with.
pub(super) const OPERATOR_SET: i64 = 24;

/// The version of [`PLUGIN_DOMAIN`].
const PLUGIN_VERSION: i64 = 1;

/// The parts of a model.
#[derive(Clone, Debug)]
pub(super) struct ModelParts {
    pub(super) nodes: Vec<NodeProto>,
    pub(super) inputs: Vec<Declared>,
    pub(super) outputs: Vec<Declared>,
    /// The version of ONNX's operator set.
    pub(super) operator_set: i64,
}

/// A declared input or output.
#[derive(Clone, Debug)]
pub(super) struct Declared {
    pub(super) name: String,
    pub(super) element: ElementType,
    pub(super) shape: Shape,
}

/// The declared shape of an input or output.
#[derive(Clone, Debug)]
pub(super) enum Shape {
    Known(Vec<i64>),
    /// As many symbols as there are dimensions. They begin with this text.
    Symbols(&'static str, usize),
}

impl ModelParts {
    /// Returns a model of one `TensorScatter`, with inputs declared as they are.
    pub(super) fn tensor_scatter(axis: i64, mode: &str, inputs: &[Tensor]) -> Self {
        let names: Vec<_> =
            ["past_cache", "update", "write_indices"].into_iter().take(inputs.len()).collect();
        let mut scatter = node("TensorScatter", &names, &["present_cache"]);
        scatter.attribute = vec![int("axis", axis), string("mode", mode)];
        Self {
            nodes: vec![scatter],
            outputs: inputs.first().map(|past| Declared::new("present_cache", past)).into_iter().collect(),
            inputs: names.iter().zip(inputs).map(|(name, tensor)| Declared::new(name, tensor)).collect(),
            operator_set: OPERATOR_SET,
        }
    }

    pub(super) fn model(&self) -> Model {
        let graph = GraphProto {
            name: Some("case".to_owned()),
            node: self.nodes.clone(),
            input: self.inputs.iter().map(Declared::value_info).collect(),
            output: self.outputs.iter().map(Declared::value_info).collect(),
            ..Default::default()
        };
        let own = self.nodes.iter().any(|node| node.domain.as_deref() == Some(PLUGIN_DOMAIN));
        let imports = [Some(("", self.operator_set)), own.then_some((PLUGIN_DOMAIN, PLUGIN_VERSION))]
            .into_iter()
            .flatten();
        Model::from_proto(ModelProto {
            ir_version: Some(ir_version(self.operator_set)),
            producer_name: Some("kvscatter".to_owned()),
            opset_import: imports
                .map(|(domain, version)| OperatorSetIdProto {
                    domain: Some(domain.to_owned()),
                    version: Some(version),
                    ..Default::default()
                })
                .collect(),
            graph: graph.into(),
            ..Default::default()
        })
    }
}

/// Returns the version of ONNX's intermediate representation that an operator set came with.
fn ir_version(operator_set: i64) -> i64 {
    match operator_set {
        ..24 => 11,
        24 => 12,
        _ => 13,
    }
}

impl Declared {
    pub(super) fn new(name: &str, tensor: &Tensor) -> Self {
        let shape = Shape::Known(tensor.dims_i64().collect());
        Self { name: name.to_owned(), element: tensor.element(), shape }
    }

    fn value_info(&self) -> ValueInfoProto {
        let dim = |value| Dimension { value: Some(value), ..Default::default() };
        let dim: Vec<_> = match &self.shape {
            Shape::Known(shape) => shape.iter().map(|&size| dim(DimValue::DimValue(size))).collect(),
            Shape::Symbols(prefix, rank) => {
                (0..*rank).map(|index| dim(DimValue::DimParam(format!("{prefix}{index}")))).collect()
            }
        };
        let ty = type_proto::Tensor {
            elem_type: Some(self.element.onnx_code()),
            shape: TensorShapeProto { dim, ..Default::default() }.into(),
            ..Default::default()
        };
        ValueInfoProto {
            name: Some(self.name.clone()),
            r#type: TypeProto { value: Some(TypeValue::TensorType(Box::new(ty))), ..Default::default() }
                .into(),
            ..Default::default()
        }
    }
}

/// Returns a node of ONNX without attributes.
pub(super) fn node(op_type: &str, inputs: &[&str], outputs: &[&str]) -> NodeProto {
    let owned = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
    NodeProto {
        op_type: Some(op_type.to_owned()),
        input: owned(inputs),
        output: owned(outputs),
        ..Default::default()
    }
}

/// Returns a node of the domain that kvscatter's plugin adds to ONNX Runtime.
pub(super) fn own_node(op_type: &str, inputs: &[&str], output: &str) -> NodeProto {
    NodeProto { domain: Some(PLUGIN_DOMAIN.to_owned()), ..node(op_type, inputs, &[output]) }
}

pub(super) fn int(name: &str, value: i64) -> AttributeProto {
    AttributeProto { i: Some(value), ..attribute(name, AttributeType::INT) }
}

pub(super) fn float(name: &str, value: f32) -> AttributeProto {
    AttributeProto { f: Some(value), ..attribute(name, AttributeType::FLOAT) }
}

pub(super) fn string(name: &str, value: &str) -> AttributeProto {
    AttributeProto { s: Some(value.as_bytes().to_vec()), ..attribute(name, AttributeType::STRING) }
}

fn attribute(name: &str, r#type: AttributeType) -> AttributeProto {
    AttributeProto { name: Some(name.to_owned()), r#type: Some(r#type), ..Default::default() }
}
