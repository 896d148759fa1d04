//! Builds a node for a graph, attribute by attribute.

use kvscatter::ElementType;

use crate::OnnxError;
use crate::proto::{self, AttributeProto, NodeProto};

use crate::names::Names;

/// A node of the default domain. Its outputs get new names unless [`outputs`](Self::outputs) gives them.
#[derive(Clone, Debug)]
pub(crate) struct NewNode {
    proto: NodeProto,
    hint: String,
}

impl NewNode {
    /// Creates a node from an operator and its inputs. An absent optional input is the empty string.
    pub(crate) fn new(op_type: &str, inputs: &[&str]) -> Self {
        Self::from(NodeProto::new(op_type, inputs, &[]))
    }

    /// Creates a `Cast` of a value to a type.
    pub(crate) fn cast(value: &str, to: ElementType) -> Self {
        Self::new("Cast", &[value]).int("to", i64::from(to.onnx_code()))
    }

    /// Sets the name of its output. A number is added if the name is already in use. Without this call, the
    /// output is named after the operator.
    pub(crate) fn called(mut self, hint: &str) -> Self {
        hint.clone_into(&mut self.hint);
        self
    }

    /// Sets the exact names of its outputs. No other node may produce them.
    pub(crate) fn outputs(mut self, names: &[&str]) -> Self {
        self.proto.output = names.iter().map(|&name| name.to_owned()).collect();
        self
    }

    pub(crate) fn int(self, name: &str, value: i64) -> Self {
        self.attribute(AttributeProto::int(name, value))
    }

    pub(crate) fn float(self, name: &str, value: f32) -> Self {
        self.attribute(AttributeProto::float(name, value))
    }

    pub(crate) fn ints(self, name: &str, values: &[i64]) -> Self {
        self.attribute(AttributeProto::ints(name, values))
    }

    pub(crate) fn string(self, name: &str, value: &str) -> Self {
        self.attribute(AttributeProto::string(name, value))
    }

    /// Sets an attribute, and replaces an existing attribute of the same name.
    pub(crate) fn attribute(mut self, attribute: AttributeProto) -> Self {
        self.proto.attribute.retain(|other| other.name != attribute.name);
        self.proto.attribute.push(attribute);
        self
    }

    /// Adds attributes that the node does not have yet.
    pub(crate) fn attributes(mut self, attributes: impl IntoIterator<Item = AttributeProto>) -> Self {
        self.proto.attribute.extend(attributes);
        self
    }

    /// Returns a key that is equal for two nodes if they compute the same and have the same name.
    ///
    /// The key is the encoded message, which is far shorter than the text of all fields.
    ///
    /// # Errors
    /// Returns [`crate::ProtoError::Encode`].
    pub(super) fn key(&self) -> Result<(String, Vec<u8>), OnnxError> {
        Ok((self.hint.clone(), proto::encode(&self.proto)?))
    }

    /// Returns `true` if the outputs already have names.
    pub(super) fn has_outputs(&self) -> bool {
        !self.proto.output.is_empty()
    }

    /// Returns the message, with new names for outputs without names.
    pub(crate) fn into_proto(self, names: &mut Names) -> NodeProto {
        let Self { mut proto, hint } = self;
        if proto.output.is_empty() {
            let name = names.fresh(&hint);
            proto.output = vec![name.clone()];
            proto.name.get_or_insert(name);
        }
        if proto.name.is_none() {
            proto.name = Some(names.fresh(&hint));
        }
        proto
    }

    /// Returns the message, with the names, the outputs and the other fields of the node that it replaces.
    pub(super) fn in_place_of(self, old: NodeProto) -> NodeProto {
        let NodeProto { op_type, domain, input, attribute, .. } = self.proto;
        NodeProto { op_type, domain, input, attribute, ..old }
    }
}

/// Converts an existing node so that its attributes can be changed. The node keeps its names.
impl From<NodeProto> for NewNode {
    fn from(proto: NodeProto) -> Self {
        let hint = proto.op_type.as_deref().unwrap_or_default().to_lowercase();
        Self { proto, hint }
    }
}
