//! Computes for each sample what a decoder computes from positions that all samples share.
//!
//! A value that is computed from the positions gets an axis for the samples in front. Exporters add axes of size 1 to
//! positions before they meet values with samples. Where such an axis is the first one, the samples take its place, and
//! the nodes after it stay as they are, because they broadcast it.
//!
//! Nodes of other forms stay, with positions from 0 on. That is right where only their shapes count, and the proof
//! finds where it is not.

use std::collections::BTreeMap;

use kvscatter::ElementType;

use super::step::{Positions, ScatteredDecoder};
use crate::edit::{Editor, NewNode};
use crate::fold::{Fold, signed};
use crate::{Dimension, Graph, Node, OnnxError};

/// Operators that compute each element from one element of each input, as masks and positions need them.
const ELEMENTWISE: [&str; 14] = [
    "Add",
    "And",
    "Cast",
    "Equal",
    "Greater",
    "GreaterOrEqual",
    "Identity",
    "Less",
    "LessOrEqual",
    "Mul",
    "Not",
    "Or",
    "Sub",
    "Where",
];

/// The values that have an axis for the samples, and the graph in which they are computed.
pub(super) struct PerSample<'a, 'p, 'm> {
    pub(super) graph: &'a Graph<'m>,
    pub(super) setting: &'a ScatteredDecoder<'m>,
    pub(super) editor: &'a mut Editor<'p>,
    /// An evaluation of the exported decoder, which shows the shapes.
    pub(super) before: Fold<'m>,
    /// The name of the value with the samples in front, for each value of the exported decoder.
    pub(super) values: BTreeMap<&'m str, String>,
    pub(super) operands: ExportedNames<'m>,
}

/// The exported value of each value with samples that takes its place as an operand.
pub(super) type ExportedNames<'m> = BTreeMap<String, &'m str>;

impl<'a, 'p, 'm> PerSample<'a, 'p, 'm> {
    /// Adds the nodes that compute from the first position of each sample what is computed from the shared positions.
    /// Returns the new operands.
    ///
    /// # Errors
    /// Returns the errors of the editor.
    pub(super) fn compute(mut self, starts: &str) -> Result<ExportedNames<'m>, OnnxError> {
        let Positions { name, element, count, .. } = self.setting.positions;
        if let Some((first, _)) = self.graph.uses(name).next() {
            self.editor.at(first.index());
        }
        let (all, zeros) = match count {
            None => (starts.to_owned(), self.editor.scalar_i64(0)?),
            Some(count) => {
                let count = match count {
                    Dimension::Known(count) => self.editor.scalar_i64(signed(count))?,
                    _ => self.editor.size(self.setting.tokens, 1)?,
                };
                let steps = self.editor.range(&count)?;
                let first = self.unsqueezed(starts, &[1])?;
                (self.editor.node("Add", &[&first, &steps]), steps)
            }
        };
        let [all, zeros] = [all, zeros].map(|value| self.editor.cast(&value, ElementType::Int64, element));
        self.values.insert(name, all);
        let first = self.editor.cast(starts, ElementType::Int64, element);
        for node in self.graph.nodes() {
            if node.proto().input.iter().any(|name| self.values.contains_key(name.as_str())) {
                match self.first_position(node, &first)? {
                    Some((output, value)) => _ = self.values.insert(output, value),
                    None => self.node(node)?,
                }
            }
        }
        self.editor.replace_uses(name, &zeros);
        Ok(self.operands)
    }

    /// Returns what a node takes out of the positions if that is only the first one, with its value for the samples.
    fn first_position(
        &mut self,
        node: &Node<'m>,
        first: &str,
    ) -> Result<Option<(&'m str, String)>, OnnxError> {
        let is_taken = (node.is("Gather") || node.is("Slice"))
            && node.input(0) == Some(self.setting.positions.name)
            && self.setting.positions.count.is_some();
        let Some(output) = node.output(0).filter(|_| is_taken) else { return Ok(None) };
        // The positions of the evaluated step begin at 0.
        let taken = self.before.value(output).ok();
        let rank = taken.filter(|taken| taken.as_ints() == Some(&[0])).map(|taken| taken.shape.len());
        let Some(rank) = rank else { return Ok(None) };
        self.editor.at(node.index());
        let value = self.unsqueezed(first, &(1..=rank).collect::<Vec<_>>())?;
        Ok(Some((output, value)))
    }

    fn node(&mut self, node: &Node<'m>) -> Result<(), OnnxError> {
        self.editor.at(node.index());
        let ([output], Some(first)) = (node.proto().output.as_slice(), node.input(0)) else { return Ok(()) };
        if ELEMENTWISE.iter().any(|op_type| node.is(op_type)) {
            return self.elementwise(node, output);
        }
        let Some(axes) = self.added_axes(node, first, output) else { return Ok(()) };
        let Some(value) = self.values.get(first).cloned() else { return Ok(()) };
        let is_first = axes.contains(&0);
        let moved = axes.into_iter().map(|axis| if is_first { axis } else { axis.saturating_add(1) });
        let value = self.unsqueezed(&value, &moved.filter(|&axis| axis > 0).collect::<Vec<_>>())?;
        self.add(node, NewNode::new("Identity", &[&value]), is_first, output);
        Ok(())
    }

    /// Adds a node that computes from values with samples. The samples have the first axis of the result if only other
    /// operands reach it, with a size of 1 or with the samples.
    fn elementwise(&mut self, node: &Node<'m>, output: &'m str) -> Result<(), OnnxError> {
        let Some(rank) = self.shape(output).map(|shape| shape.len()) else { return Ok(()) };
        let batch = self.setting.batch();
        let mut is_first = rank > 0;
        for name in &node.proto().input {
            let shape = self.shape(name).unwrap_or_default();
            let has_samples = shape.first().is_some_and(|&size| size == 1 || size == batch);
            is_first &= shape.len() < rank || (has_samples && !self.values.contains_key(name.as_str()));
        }
        let new_rank = if is_first { rank } else { rank.saturating_add(1) };
        let mut inputs = Vec::new();
        for name in &node.proto().input {
            let Some(value) = self.values.get(name.as_str()).cloned() else {
                inputs.push(name.clone());
                continue;
            };
            let own_rank = self.shape(name).unwrap_or_default().len();
            let axes: Vec<_> = (1..new_rank.saturating_sub(own_rank)).collect();
            let operand = self.unsqueezed(&value, &axes)?;
            self.operands.insert(operand.clone(), name);
            inputs.push(operand);
        }
        let inputs: Vec<_> = inputs.iter().map(String::as_str).collect();
        let attributes = node.proto().attribute.iter().cloned();
        self.add(node, NewNode::new(node.op_type(), &inputs).attributes(attributes), is_first, output);
        Ok(())
    }

    /// Returns the axes of size 1 that a node adds around those of a value, or `None` if it does something else. If
    /// several axes may be those of the value, they are the first ones of a `Reshape`, which makes rows of positions.
    fn added_axes(&mut self, node: &Node<'m>, value: &str, output: &str) -> Option<Vec<usize>> {
        let (before, after) = (self.shape(value)?, self.shape(output)?);
        let fits = |at: &usize| after.get(*at..).is_some_and(|rest| rest.starts_with(&before));
        let mut places = (0..=after.len()).filter(fits);
        let first = match node.op_type() {
            "Reshape" => places.next()?,
            "Unsqueeze" => places.next_back()?,
            _ => return None,
        };
        let end = first.saturating_add(before.len());
        Some((0..after.len()).filter(|&axis| axis < first || axis >= end).collect())
    }

    /// Adds a node, which takes the place of the exported one if the samples have its first axis.
    fn add(&mut self, node: &Node<'m>, new: NewNode, is_first: bool, output: &'m str) {
        if is_first {
            self.editor.remove_node(node.index());
            self.editor.add(new.outputs(&[output]));
        } else {
            let value = self.editor.add(new);
            self.values.insert(output, value);
        }
    }

    fn unsqueezed(&mut self, value: &str, axes: &[usize]) -> Result<String, OnnxError> {
        if axes.is_empty() {
            return Ok(value.to_owned());
        }
        let axes: Vec<_> = axes.iter().copied().map(signed).collect();
        let axes = self.editor.ints(&axes)?;
        Ok(self.editor.node("Unsqueeze", &[value, &axes]))
    }

    fn shape(&mut self, value: &str) -> Option<Vec<usize>> {
        self.before.shape(value).ok().map(<[usize]>::to_vec)
    }
}
