//! The caches that scatters write, and the nodes that take the place of a scatter.

use crate::convert::caches::{AXIS, RANK};
use crate::convert::refusal::ConvertRefusal;
use crate::decoder::Cache;
use crate::edit::{Editor, NewNode};
use crate::fold::signed;
use crate::{Dimension, Graph, Node, OnnxError};

/// A cache that a scatter writes, perhaps between two transpositions.
pub(super) struct Write<'m> {
    pub(super) past: &'m str,
    pub(super) present: &'m str,
    pub(super) writer: Node<'m>,
    pub(super) index: &'m str,
    /// The axis of the slots in what the scatter writes.
    pub(super) axis: usize,
    /// The order of axes in what the scatter writes.
    order: Option<&'m [i64]>,
    /// The node that passes the result on to the present.
    last: Option<Node<'m>>,
    /// The new rows, and the order of axes that they need.
    pub(super) rows: (&'m str, Option<&'m [i64]>),
}

impl<'m> Write<'m> {
    pub(super) fn new(graph: &Graph<'m>, cache: &Cache<'m>) -> Result<Self, OnnxError> {
        let unwritten =
            || ConvertRefusal::Writer { past: cache.past.to_owned(), reason: cache.style.to_string() };
        let writer = cache.writer.ok_or_else(unwritten)?;
        let refused = |reason: &str| Err(refused(cache.past, &writer, reason));
        let (Some(index), Some(update)) = (writer.input(1), writer.input(2)) else {
            return refused("it has no indices or no new rows");
        };
        if writer.attribute("reduction").is_some_and(|how| how.s.as_deref() != Some(b"none")) {
            return refused("it combines old rows with new ones");
        }
        if cache.past_shape.len() != RANK || !matches!(cache.capacity(), Dimension::Known(_)) {
            return refused("its shape is not declared as [batch, heads, capacity, head size]");
        }
        let (past, present, rows) = (cache.past, cache.present, (update, None));
        let last = graph.producer(present).map(|(node, _)| node).filter(|_| cache.written != present);
        let write = Self { past, present, writer, index, axis: AXIS, order: None, last, rows };
        let write = match cache.between.as_slice() {
            [] => Some(write),
            [first, last] => write.between(graph, first, last),
            _ => None,
        };
        let Some(write) = write else { return refused("the nodes around it do not move its axes and back") };
        let axis = writer.int("axis")?.unwrap_or(0);
        let axis = if axis < 0 { axis.saturating_add(signed(RANK)) } else { axis };
        match writer.is("ScatterElements") && axis != signed(write.axis) {
            true => refused("it writes along another axis"),
            false => Ok(write),
        }
    }

    /// Returns the write with the transpositions around it, or `None` if they are others.
    fn between(self, graph: &Graph<'m>, first: &Node<'m>, last: &Node<'m>) -> Option<Self> {
        let (order, back) = (order(first)?, order(last)?);
        let moved = back.iter().map(|&axis| order.get(usize::try_from(axis).ok()?).copied());
        if !moved.eq((0..RANK).map(|axis| Some(signed(axis)))) {
            return None;
        }
        let axis = order.iter().position(|&axis| axis == signed(AXIS))?;
        let (update, _) = self.rows;
        let before = graph.producer(update).filter(|(node, _)| self::order(node) == Some(order));
        let rows = before.and_then(|(node, _)| Some((node.input(0)?, None)));
        Some(Self { axis, order: Some(order), rows: rows.unwrap_or((update, Some(back))), ..self })
    }

    /// Replaces the scatter, and the node that transposes its result.
    pub(super) fn replace(&self, starts: &str, editor: &mut Editor<'_>) {
        let transpose = |value: &str, order: &[i64]| NewNode::new("Transpose", &[value]).ints("perm", order);
        editor.at(self.writer.index());
        let (rows, order) = self.rows;
        let rows = order.map_or_else(|| rows.to_owned(), |order| editor.add(transpose(rows, order)));
        editor.remove_node(self.writer.index());
        if let Some(last) = self.last {
            editor.remove_node(last.index());
            let again = self.order.map(|order| editor.add(transpose(self.present, order)));
            let again = again.unwrap_or_else(|| self.present.to_owned());
            editor.replace_uses(self.writer.output(0).unwrap_or_default(), &again);
        }
        let scatter = NewNode::new("TensorScatter", &[self.past, &rows, starts]).outputs(&[self.present]);
        editor.add(scatter.int("axis", signed(AXIS)).string("mode", "linear"));
    }

    pub(super) fn refused(&self, reason: &str) -> OnnxError {
        refused(self.past, &self.writer, reason)
    }
}

fn refused(past: &str, writer: &Node<'_>, reason: &str) -> OnnxError {
    let reason = format!("{} writes it, and {reason}", writer.op_type());
    writer.error(ConvertRefusal::Writer { past: past.to_owned(), reason })
}

/// Returns the order of axes of a node that transposes.
fn order<'m>(node: &Node<'m>) -> Option<&'m [i64]> {
    node.attribute("perm").filter(|_| node.is("Transpose")).map(|perm| perm.ints.as_slice())
}
