//! Adapts one operator at a time: creates nodes of a newer version that are equivalent to a node of an older
//! one.

use crate::OnnxError;
use crate::attribute;
use crate::edit::NewNode;
use crate::edit::names::Names;
use crate::proto::{AttributeProto, NodeProto};

/// An upgrade from one operator set to a newer one, in a graph or a function.
pub(super) struct Adapter {
    from: i64,
    to: i64,
    names: Names,
    done: Vec<NodeProto>,
}

impl Adapter {
    pub(super) fn new(from: i64, to: i64, names: Names) -> Self {
        Self { from, to, names, done: Vec::new() }
    }

    /// Returns the operator set that the nodes were written for.
    pub(super) fn from(&self) -> i64 {
        self.from
    }

    /// Returns the nodes that replace this one, in order. Added nodes need version 18.
    pub(super) fn adapt(&mut self, node: NodeProto) -> Result<Vec<NodeProto>, OnnxError> {
        match node.op_type.as_deref().unwrap_or_default() {
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
            "BatchNormalization" if self.crosses(14) => self.batch_normalization(node)?,
            "Resize" if self.crosses(13) => self.resize(node)?,
            "RoiAlign" if self.crosses(16) => self.roi_align(node),
            "DFT" if self.crosses(20) => self.dft(node)?,
            "GridSample" if self.crosses(20) => self.grid_sample(node)?,
            "GroupNormalization" if self.crosses(21) => self.group_normalization(node)?,
            "AveragePool" | "MaxPool" if self.crosses(22) => self.pool(node)?,
            _ => self.done.push(node),
        }
        Ok(std::mem::take(&mut self.done))
    }

    /// Returns `true` if the upgrade includes the changes of this version.
    fn crosses(&self, version: i64) -> bool {
        self.from < version && version <= self.to
    }

    fn changed(&self, what: &'static str) -> OnnxError {
        OnnxError::OperatorChanged { from: self.from, to: self.to, what }
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
        if has_more_outputs(&mut node) {
            return Err(self.changed("its mask is different"));
        }
        take(&mut node, "ratio");
        self.done.push(node);
        Ok(())
    }

    /// Change of version 14: training is an attribute. Earlier it followed from the number of outputs.
    fn batch_normalization(&mut self, mut node: NodeProto) -> Result<(), OnnxError> {
        if has_more_outputs(&mut node) {
            return Err(self.changed("its outputs for training are different"));
        }
        self.done.push(node);
        Ok(())
    }

    /// Change of version 13: optional inputs are absent. Earlier they were empty tensors.
    fn resize(&mut self, mut node: NodeProto) -> Result<(), OnnxError> {
        let mode = find(&node, "coordinate_transformation_mode").map(attribute::string).transpose()?;
        let uses_roi = match mode {
            Some(b"tf_half_pixel_for_nn") => {
                return Err(self.changed("tf_half_pixel_for_nn no longer exists"));
            }
            mode => mode == Some(b"tf_crop_and_resize"),
        };
        if !uses_roi {
            set_input(&mut node, 1, String::new());
        }
        if node.input.get(3).is_some_and(|sizes| !sizes.is_empty()) {
            set_input(&mut node, 2, String::new());
        }
        self.done.push(node);
        Ok(())
    }

    /// Change of version 16: the default coordinates are different.
    fn roi_align(&mut self, node: NodeProto) {
        let node = NewNode::from(node).string("coordinate_transformation_mode", "output_half_pixel");
        self.add(node);
    }

    /// Change of version 20: `axis` is the third input instead of an attribute, and has another default.
    fn dft(&mut self, mut node: NodeProto) -> Result<(), OnnxError> {
        let axis = take(&mut node, "axis").map_or(Ok(1), |axis| attribute::int(&axis))?;
        let axis = self.add(NewNode::new("Constant", &[]).int("value_int", axis).called("axis"));
        set_input(&mut node, 2, axis);
        self.done.push(node);
        Ok(())
    }

    /// Change of version 20: two modes are renamed.
    fn grid_sample(&mut self, node: NodeProto) -> Result<(), OnnxError> {
        let renamed = match find(&node, "mode").map(attribute::string).transpose()? {
            Some(b"bilinear") => Some("linear"),
            Some(b"bicubic") => Some("cubic"),
            _ => None,
        };
        let node = NewNode::from(node);
        self.add(match renamed {
            Some(mode) => node.string("mode", mode),
            None => node,
        });
        Ok(())
    }

    /// Change of version 21: scale and bias have one element for each channel. Earlier they had one for each
    /// group.
    fn group_normalization(&mut self, mut node: NodeProto) -> Result<(), OnnxError> {
        let groups = find(&node, "num_groups").map_or(Ok(1), attribute::int)?;
        let values = node.input.first().cloned().unwrap_or_default();
        let channels = self.add(NewNode::new("Shape", &[&values]).int("start", 1).int("end", 2));
        let groups = self.ints(&[groups]);
        let each = self.add(NewNode::new("Div", &[&channels, &groups]));
        let shape = self.add(NewNode::new("Concat", &[&groups, &each]).int("axis", 0));
        let (last, flat) = (self.ints(&[1]), self.ints(&[-1]));
        for position in [1, 2] {
            let by_group = node.input.get(position).cloned().unwrap_or_default();
            let column = self.add(NewNode::new("Unsqueeze", &[&by_group, &last]));
            let repeated = self.add(NewNode::new("Expand", &[&column, &shape]));
            let by_channel = self.add(NewNode::new("Reshape", &[&repeated, &flat]));
            set_input(&mut node, position, by_channel);
        }
        self.done.push(node);
        Ok(())
    }

    /// Change of version 22: with `ceil_mode`, a window that begins in the padding is omitted.
    fn pool(&mut self, node: NodeProto) -> Result<(), OnnxError> {
        match find(&node, "ceil_mode").map_or(Ok(0), attribute::int)? {
            0 => self.done.push(node),
            _ => return Err(self.changed("with ceil_mode it may have fewer windows")),
        }
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

fn find<'n>(node: &'n NodeProto, name: &str) -> Option<&'n AttributeProto> {
    node.attribute.iter().find(|attribute| attribute.name.as_deref() == Some(name))
}

fn take(node: &mut NodeProto, name: &str) -> Option<AttributeProto> {
    let place = node.attribute.iter().position(|attribute| attribute.name.as_deref() == Some(name))?;
    Some(node.attribute.remove(place))
}

/// Returns `true` if an output other than the first has a name. If not, removes the other outputs.
fn has_more_outputs(node: &mut NodeProto) -> bool {
    let more = node.output.iter().skip(1).any(|output| !output.is_empty());
    if !more {
        node.output.truncate(1);
    }
    more
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
