//! Adapts one operator at a time: creates nodes of a newer version that are equivalent to a node of an older
//! one.

use std::collections::BTreeSet;

use super::operators;
use crate::edit::{NewNode, Origins};
use crate::graph::{DEFAULT_DOMAIN, full_domain, in_node, label};
use crate::names::{Names, subgraphs_mut};
use crate::proto::{AttributeProto, NodeProto};
use crate::{GraphError, OnnxError, attribute};

/// Operators of images and signals that changed their meaning, with the version of the change.
const NOT_ADAPTED: [(&str, i64); 8] = [
    ("Resize", 13),
    ("BatchNormalization", 14),
    ("RoiAlign", 16),
    ("DFT", 20),
    ("GridSample", 20),
    ("GroupNormalization", 21),
    ("AveragePool", 22),
    ("MaxPool", 22),
];

/// An upgrade from one operator set to a newer one, of a graph with its subgraphs or of a function.
pub(super) struct Adapter<'f> {
    from: i64,
    to: i64,
    names: Names,
    /// The model's functions in the default domain. A function takes precedence over an operator of the same
    /// name.
    functions: &'f BTreeSet<String>,
    /// The nodes that replace the current one, in order. Added nodes need version 18.
    done: Vec<NodeProto>,
}

impl<'f> Adapter<'f> {
    pub(super) fn new(from: i64, to: i64, names: Names, functions: &'f BTreeSet<String>) -> Self {
        Self { from, to, names, functions, done: Vec::new() }
    }

    /// Upgrades nodes and their subgraphs. Returns where the new nodes come from.
    pub(super) fn upgrade(&mut self, nodes: &mut Vec<NodeProto>) -> Result<Origins, OnnxError> {
        let mut upgraded = Vec::with_capacity(nodes.len());
        let mut origins = Vec::with_capacity(nodes.len());
        for (index, mut node) in std::mem::take(nodes).into_iter().enumerate() {
            subgraphs_mut(&mut node).try_for_each(|graph| self.upgrade(&mut graph.node).map(|_| ()))?;
            let op_type = node.op_type.as_deref().unwrap_or_default();
            let is_default = full_domain(node.domain.as_deref()) == DEFAULT_DOMAIN;
            if is_default && !self.functions.contains(op_type) {
                let place = label(index, &node, Some(self.from));
                self.adapt(node).map_err(|error| in_node(place, error))?;
                upgraded.append(&mut self.done);
            } else {
                upgraded.push(node);
            }
            origins.resize(upgraded.len(), Some(index));
        }
        *nodes = upgraded;
        Ok(Origins::new(origins))
    }

    fn adapt(&mut self, node: NodeProto) -> Result<(), OnnxError> {
        match node.op_type.as_deref().unwrap_or_default() {
            op_type if !operators::exists(op_type, self.from) => {
                return Err(GraphError::OperatorUnknown { version: self.from }.into());
            }
            "Squeeze" | "Unsqueeze" | "ReduceSum" if self.crosses(13) => self.axes_as_input(node)?,
            "ReduceL1" | "ReduceL2" | "ReduceLogSum" | "ReduceLogSumExp" | "ReduceMax" | "ReduceMean"
            | "ReduceMin" | "ReduceProd" | "ReduceSumSquare"
                if self.crosses(18) =>
            {
                self.axes_as_input(node)?;
            }
            "Split" if self.crosses(18) => self.split(node)?,
            "Softmax" | "LogSoftmax" | "Hardmax" if self.crosses(13) => self.softmax(node),
            "Dropout" if self.crosses(12) => self.dropout(node)?,
            op_type
                if NOT_ADAPTED.iter().any(|&(name, version)| name == op_type && self.crosses(version)) =>
            {
                return Err(self.changed("it is not rewritten, because decoders do not have it").into());
            }
            _ => self.done.push(node),
        }
        Ok(())
    }

    /// Returns `true` if the upgrade includes the changes of this version.
    fn crosses(&self, version: i64) -> bool {
        self.from < version && version <= self.to
    }

    fn changed(&self, what: &'static str) -> GraphError {
        GraphError::OperatorChanged { from: self.from, to: self.to, what }
    }

    /// Changes of versions 13 and 18: `axes` is the second input instead of an attribute. Absent axes still
    /// mean all axes.
    fn axes_as_input(&mut self, mut node: NodeProto) -> Result<(), OnnxError> {
        if let Some(axes) = take(&mut node, "axes") {
            let axes = self.ints(attribute::ints(&axes)?);
            set_input(&mut node, 1, axes);
        }
        self.done.push(node);
        Ok(())
    }

    /// Changes of versions 13 and 18.
    ///
    /// * 13: `split` is the second input instead of an attribute.
    /// * 18: Without `split`, the number of parts is an attribute. It used to follow from the number of
    ///   outputs.
    fn split(&mut self, mut node: NodeProto) -> Result<(), OnnxError> {
        if let Some(lengths) = take(&mut node, "split") {
            let lengths = self.ints(attribute::ints(&lengths)?);
            set_input(&mut node, 1, lengths);
        } else if node.input.get(1).is_none_or(String::is_empty) {
            let parts = i64::try_from(node.output.len()).unwrap_or(i64::MAX);
            node.input.truncate(1);
            node = NewNode::from(node).int("num_outputs", parts).into_proto(&mut self.names);
        }
        self.done.push(node);
        Ok(())
    }

    /// Change of version 13: the operator works on one axis, and the default is no longer 1.
    ///
    /// Older versions worked on the given axis and all later ones. For the last axis the meaning is the same.
    /// Otherwise the axes are flattened into one.
    fn softmax(&mut self, mut node: NodeProto) {
        let axis = take(&mut node, "axis");
        if axis.as_ref().is_some_and(|axis| attribute::int(axis).is_ok_and(|axis| axis == -1)) {
            let node = NewNode::from(node).int("axis", -1).into_proto(&mut self.names);
            self.done.push(node);
            return;
        }
        let values = node.input.first().cloned().unwrap_or_default();
        let shape = self.add(NewNode::new("Shape", &[&values]));
        let flatten = NewNode::new("Flatten", &[&values]);
        let flat = self.add(match axis {
            Some(axis) => flatten.attribute(axis),
            None => flatten.int("axis", 1),
        });
        set_input(&mut node, 0, flat);
        let outputs = std::mem::take(&mut node.output);
        let flat = self.add(NewNode::from(node).int("axis", -1));
        let output = outputs.first().map(String::as_str).unwrap_or_default();
        // Without `allowzero`, a dimension of 0 would mean the flattened dimension at its index.
        self.add(NewNode::new("Reshape", &[&flat, &shape]).int("allowzero", 1).outputs(&[output]));
    }

    /// Change of version 12: the ratio is an input, and has no effect without the input `training_mode`.
    ///
    /// If nothing is dropped, older versions do not define the mask, and newer versions do.
    fn dropout(&mut self, mut node: NodeProto) -> Result<(), OnnxError> {
        if node.output.iter().skip(1).any(|output| !output.is_empty()) {
            return Err(self.changed("its mask is different").into());
        }
        node.output.truncate(1);
        take(&mut node, "ratio");
        self.done.push(node);
        Ok(())
    }

    fn ints(&mut self, values: &[i64]) -> String {
        self.add(NewNode::new("Constant", &[]).ints("value_ints", values))
    }

    fn add(&mut self, node: NewNode) -> String {
        let node = node.into_proto(&mut self.names);
        let output = node.output.first().cloned().unwrap_or_default();
        self.done.push(node);
        output
    }
}

fn take(node: &mut NodeProto, name: &str) -> Option<AttributeProto> {
    let place = node.attribute.iter().position(|attribute| attribute.name.as_deref() == Some(name))?;
    Some(node.attribute.remove(place))
}

/// Sets an input. Missing inputs before it become absent.
fn set_input(node: &mut NodeProto, position: usize, value: String) {
    while node.input.len() <= position {
        node.input.push(String::new());
    }
    if let Some(input) = node.input.get_mut(position) {
        *input = value;
    }
}
