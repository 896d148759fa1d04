//! A node that is being replaced, and the nodes that take its place.

use std::collections::BTreeMap;

use kvscatter::ElementType;

use super::error::NoStandardForm;
use crate::edit::{Editor, NewNode};
use crate::fold::Value;
use crate::proto::AttributeProto;
use crate::{GraphError, Node, OnnxError};

/// A node that is being replaced.
pub(super) struct Replacing<'a> {
    pub(super) node: Node<'a>,
    /// What is known about each input. An absent input is `None`.
    pub(super) facts: &'a [Option<Value>],
}

impl<'a> Replacing<'a> {
    /// Returns the name of an input that may be absent.
    pub(super) fn optional(&self, slot: usize) -> Option<&'a str> {
        self.node.input(slot)
    }

    /// Returns the name of an input.
    ///
    /// # Errors
    /// Returns [`GraphError::InputAbsent`] if the input is absent.
    pub(super) fn input(&self, slot: usize) -> Result<&'a str, OnnxError> {
        self.optional(slot).ok_or(GraphError::InputAbsent { index: slot }.into())
    }

    /// Returns the name of an output, or the empty string if it is absent.
    pub(super) fn output(&self, slot: usize) -> &'a str {
        self.node.output(slot).unwrap_or_default()
    }

    /// Returns `true` if an output has a name.
    pub(super) fn has_output(&self, slot: usize) -> bool {
        !self.output(slot).is_empty()
    }

    /// Returns the shape of an input.
    ///
    /// # Errors
    /// Returns [`GraphError::InputAbsent`] if the input is absent.
    pub(super) fn shape(&self, slot: usize) -> Result<&'a [usize], OnnxError> {
        self.fact(slot).map(|fact| fact.shape.as_slice())
    }

    /// Returns the type of an input.
    ///
    /// # Errors
    /// Returns [`GraphError::InputAbsent`] if the input is absent.
    pub(super) fn element(&self, slot: usize) -> Result<ElementType, OnnxError> {
        self.fact(slot).map(|fact| fact.element)
    }

    fn fact(&self, slot: usize) -> Result<&'a Value, OnnxError> {
        let fact = self.facts.get(slot).and_then(Option::as_ref);
        fact.ok_or(GraphError::InputAbsent { index: slot }.into())
    }

    pub(super) fn int(&self, name: &str, default: i64) -> Result<i64, OnnxError> {
        Ok(self.node.int(name)?.unwrap_or(default))
    }

    /// Returns an attribute that is 0 or 1, and 0 if it is absent.
    ///
    /// # Errors
    /// Returns [`NoStandardForm::Form`] for another value, which ONNX Runtime does not define.
    pub(super) fn flag(&self, name: &str) -> Result<bool, OnnxError> {
        match self.int(name, 0)? {
            0 => Ok(false),
            1 => Ok(true),
            value => Err(no_form(format!("{name} = {value} of {}", self.node.op_type()))),
        }
    }

    /// Returns the scale of scores, or `None` for the default.
    ///
    /// # Errors
    /// Returns [`NoStandardForm::Form`] for a scale that `Attention` does not take.
    pub(super) fn scale(&self) -> Result<Option<f32>, OnnxError> {
        match self.float("scale", 0.0)? {
            0.0 => Ok(None),
            scale if scale > 0.0 && scale.is_finite() => Ok(Some(scale)),
            scale => Err(no_form(format!("scale = {scale} of {}", self.node.op_type()))),
        }
    }

    pub(super) fn float(&self, name: &str, default: f32) -> Result<f32, OnnxError> {
        Ok(self.node.float(name)?.unwrap_or(default))
    }

    /// Refuses inputs, outputs and attributes that a form does not handle, so that none is lost.
    ///
    /// # Errors
    /// Returns [`NoStandardForm::Form`].
    pub(super) fn only(
        &self,
        inputs: &[(usize, &str)],
        outputs: &[(usize, &str)],
        attributes: &[&str],
    ) -> Result<(), OnnxError> {
        let proto = self.node.proto();
        let [inputs, outputs] = [(inputs, &proto.input), (outputs, &proto.output)].map(|(known, all)| {
            let named = all.iter().enumerate().filter(|(_, name)| !name.is_empty());
            let mut unknown =
                named.map(|(slot, _)| slot).filter(|slot| known.iter().all(|(known, _)| known != slot));
            unknown.next()
        });
        let op_type = self.node.op_type();
        if let Some(slot) = inputs {
            return Err(no_form(format!("input {slot} of {op_type}")));
        }
        if let Some(slot) = outputs {
            return Err(no_form(format!("output {slot} of {op_type}")));
        }
        let name = |attribute: &'a AttributeProto| attribute.name.as_deref().unwrap_or_default();
        match proto.attribute.iter().map(name).find(|name| !attributes.contains(name)) {
            Some(name) => Err(no_form(format!("attribute {name:?} of {op_type}"))),
            None => Ok(()),
        }
    }
}

/// Returns the error that something has no standard form.
pub(super) fn no_form(what: impl Into<String>) -> OnnxError {
    NoStandardForm::Form { what: what.into() }.into()
}

/// The graph in which nodes are replaced, and values that several of them share.
pub(super) struct StandardEditor<'e, 'p> {
    pub(super) editor: &'e mut Editor<'p>,
    /// Values that layers share, by what they depend on.
    shared: BTreeMap<Vec<String>, String>,
}

impl<'e, 'p> StandardEditor<'e, 'p> {
    pub(super) fn new(editor: &'e mut Editor<'p>) -> Self {
        Self { editor, shared: BTreeMap::new() }
    }

    /// Returns a value that depends only on these names, and adds it the first time.
    pub(super) fn shared(
        &mut self,
        key: &[&str],
        make: impl FnOnce(&mut Self) -> Result<String, OnnxError>,
    ) -> Result<String, OnnxError> {
        let key: Vec<_> = key.iter().map(|&part| part.to_owned()).collect();
        if let Some(value) = self.shared.get(&key) {
            return Ok(value.clone());
        }
        let value = make(self)?;
        self.shared.insert(key, value.clone());
        Ok(value)
    }

    /// Adds a node of one output. The output has this name unless it is empty.
    pub(super) fn named(&mut self, node: NewNode, name: &str) -> String {
        self.editor.add(if name.is_empty() { node } else { node.outputs(&[name]) })
    }
}
