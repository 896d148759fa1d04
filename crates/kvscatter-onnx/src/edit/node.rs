//! A node to be added to a graph, built attribute by attribute.

use crate::proto::attribute_proto::AttributeType;
use crate::proto::{AttributeProto, NodeProto, TensorProto};

/// A node of the default domain. What it writes to gets new names unless [`outputs`](Self::outputs) says which.
#[derive(Clone, Debug)]
pub(crate) struct NewNode {
    pub(super) proto: NodeProto,
    pub(super) hint: String,
}

impl NewNode {
    /// An operator and its inputs; an absent optional input is the empty string.
    pub(crate) fn new(op_type: &str, inputs: &[&str]) -> Self {
        let proto = NodeProto {
            op_type: Some(op_type.to_owned()),
            input: inputs.iter().map(|&input| input.to_owned()).collect(),
            ..NodeProto::default()
        };
        Self { proto, hint: op_type.to_lowercase() }
    }

    /// What its output is called, a number added where the name is taken; otherwise after the operator.
    pub(crate) fn called(mut self, hint: &str) -> Self {
        hint.clone_into(&mut self.hint);
        self
    }

    /// The exact names of its outputs, which nothing else may produce.
    pub(crate) fn outputs(mut self, names: &[&str]) -> Self {
        self.proto.output = names.iter().map(|&name| name.to_owned()).collect();
        self
    }

    pub(crate) fn int(self, name: &str, value: i64) -> Self {
        self.attribute(AttributeType::INT, name, |attribute| attribute.i = Some(value))
    }

    pub(crate) fn ints(self, name: &str, values: &[i64]) -> Self {
        self.attribute(AttributeType::INTS, name, |attribute| attribute.ints = values.to_vec())
    }

    pub(crate) fn float(self, name: &str, value: f32) -> Self {
        self.attribute(AttributeType::FLOAT, name, |attribute| attribute.f = Some(value))
    }

    pub(crate) fn string(self, name: &str, value: &str) -> Self {
        self.attribute(AttributeType::STRING, name, |attribute| attribute.s = Some(value.as_bytes().to_vec()))
    }

    pub(crate) fn tensor(self, name: &str, value: TensorProto) -> Self {
        self.attribute(AttributeType::TENSOR, name, |attribute| attribute.t = value.into())
    }

    fn attribute(mut self, ty: AttributeType, name: &str, set: impl FnOnce(&mut AttributeProto)) -> Self {
        let mut attribute =
            AttributeProto { name: Some(name.to_owned()), r#type: Some(ty), ..AttributeProto::default() };
        set(&mut attribute);
        self.proto.attribute.push(attribute);
        self
    }
}
