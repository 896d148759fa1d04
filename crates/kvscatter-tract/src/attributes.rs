//! The attributes, inputs and outputs of a node in a model's file.

use tract_onnx::pb::NodeProto;
use tract_onnx::pb::attribute_proto::AttributeType;

use crate::error::{NodeError, is_onnx};

/// A node of the expected domain whose attributes are all known.
pub(crate) struct Attributes<'a> {
    node: &'a NodeProto,
}

impl<'a> Attributes<'a> {
    /// Creates the attributes of a node after checking that ONNX defines its operator and that all attributes are
    /// known. Returns a [`NodeError`] for an operator of another domain, and for an attribute whose name is not in
    /// `known`.
    pub(crate) fn read(node: &'a NodeProto, known: &[&str]) -> Result<Self, NodeError> {
        if !is_onnx(node) {
            return Err(NodeError::new(node, "only the operator of ONNX's own domain is known"));
        }
        Self::checked(node, known)
    }

    /// Creates the attributes like [`read`](Self::read), for an operator of another domain.
    pub(crate) fn in_domain(node: &'a NodeProto, domain: &str, known: &[&str]) -> Result<Self, NodeError> {
        if node.domain != domain {
            return Err(NodeError::new(node, format!("only the operator of {domain} is known")));
        }
        Self::checked(node, known)
    }

    fn checked(node: &'a NodeProto, known: &[&str]) -> Result<Self, NodeError> {
        let unknown = node.attribute.iter().find(|attribute| !known.contains(&attribute.name.as_str()));
        match unknown {
            Some(unknown) => Err(NodeError::new(node, format!("unknown attribute {:?}", unknown.name))),
            None => Ok(Self { node }),
        }
    }

    pub(crate) fn integer(&self, name: &str) -> Result<Option<i64>, NodeError> {
        self.value(name, AttributeType::Int, "an integer")
            .map(|attribute| attribute.map(|attribute| attribute.i))
    }

    pub(crate) fn float(&self, name: &str) -> Result<Option<f32>, NodeError> {
        self.value(name, AttributeType::Float, "a number")
            .map(|attribute| attribute.map(|attribute| attribute.f))
    }

    pub(crate) fn string(&self, name: &str) -> Result<Option<String>, NodeError> {
        let attribute = self.value(name, AttributeType::String, "a string")?;
        Ok(attribute.map(|attribute| String::from_utf8_lossy(&attribute.s).into_owned()))
    }

    fn value(
        &self,
        name: &str,
        expected: AttributeType,
        words: &str,
    ) -> Result<Option<&'a tract_onnx::pb::AttributeProto>, NodeError> {
        match self.node.attribute.iter().find(|attribute| attribute.name == name) {
            Some(attribute) if attribute.r#type != i32::from(expected) => {
                Err(NodeError::new(self.node, format!("attribute {name:?} must be {words}")))
            }
            attribute => Ok(attribute),
        }
    }
}

/// Returns the index of an input or output among those that are present, or `None` if it is absent.
pub(crate) fn given_index(names: &[String], index: usize) -> Option<usize> {
    names.get(index).filter(|name| !name.is_empty())?;
    Some(names.iter().take(index).filter(|name| !name.is_empty()).count())
}
