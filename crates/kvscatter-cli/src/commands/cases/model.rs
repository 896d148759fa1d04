//! Models of one or two nodes.

use kvscatter_onnx::internal::proto::{AttributeProto, GraphProto, ModelProto, NodeProto, ValueInfoProto};
use kvscatter_onnx::{Dimension, Model, Tensor};

use crate::operators::PLUGIN_DOMAIN;

/// The operator set that `TensorScatter` came with.
pub(super) const OPERATOR_SET: i64 = 24;

/// The version of [`PLUGIN_DOMAIN`].
const PLUGIN_VERSION: i64 = 1;

/// The parts of a model.
#[derive(Clone, Debug)]
pub(super) struct ModelParts {
    pub(super) nodes: Vec<NodeProto>,
    pub(super) inputs: Vec<ValueInfoProto>,
    pub(super) outputs: Vec<ValueInfoProto>,
    /// The version of ONNX's operator set.
    pub(super) operator_set: i64,
}

impl ModelParts {
    /// Returns a model of one `TensorScatter`, with inputs declared as they are.
    pub(super) fn tensor_scatter(axis: i64, mode: &str, inputs: &[Tensor]) -> Self {
        let names: Vec<_> =
            ["past_cache", "update", "write_indices"].into_iter().take(inputs.len()).collect();
        let mut scatter = NodeProto::new("TensorScatter", &names, &["present_cache"]);
        scatter.attribute = vec![AttributeProto::int("axis", axis), AttributeProto::string("mode", mode)];
        Self {
            nodes: vec![scatter],
            outputs: inputs.first().map(|past| declared("present_cache", past)).into_iter().collect(),
            inputs: names.iter().zip(inputs).map(|(name, tensor)| declared(name, tensor)).collect(),
            operator_set: OPERATOR_SET,
        }
    }

    pub(super) fn model(&self) -> Model {
        let graph = GraphProto {
            name: Some("case".to_owned()),
            node: self.nodes.clone(),
            input: self.inputs.clone(),
            output: self.outputs.clone(),
            ..Default::default()
        };
        let own = self.nodes.iter().any(|node| node.domain.as_deref() == Some(PLUGIN_DOMAIN));
        let opsets = [Some(("", self.operator_set)), own.then_some((PLUGIN_DOMAIN, PLUGIN_VERSION))];
        let opsets: Vec<_> = opsets.into_iter().flatten().collect();
        Model::from_proto(ModelProto {
            producer_name: Some("kvscatter".to_owned()),
            ..ModelProto::new(ir_version(self.operator_set), &opsets, graph)
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

/// Declares an input or output of the type and shape of a tensor.
pub(super) fn declared(name: &str, tensor: &Tensor) -> ValueInfoProto {
    let dims: Vec<_> = tensor.shape().iter().map(|&size| Dimension::Known(size)).collect();
    ValueInfoProto::tensor(name, tensor.element().onnx_code(), &dims)
}

/// Declares another symbol for each dimension of a tensor. The symbols begin with `prefix`.
pub(super) fn declared_open(name: &str, tensor: &Tensor, prefix: &str) -> ValueInfoProto {
    let symbols: Vec<_> = (0..tensor.shape().len()).map(|index| format!("{prefix}{index}")).collect();
    let dims: Vec<_> = symbols.iter().map(|symbol| Dimension::Symbolic(symbol)).collect();
    ValueInfoProto::tensor(name, tensor.element().onnx_code(), &dims)
}

/// Returns a node of the domain that kvscatter's plugin adds to ONNX Runtime.
pub(super) fn own_node(op_type: &str, inputs: &[&str], output: &str) -> NodeProto {
    NodeProto { domain: Some(PLUGIN_DOMAIN.to_owned()), ..NodeProto::new(op_type, inputs, &[output]) }
}
