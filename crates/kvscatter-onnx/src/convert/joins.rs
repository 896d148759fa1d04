//! Values that are filled part by part, which become one `Concat` of the parts.
//!
//! PyTorch exports a copy into a part of a tensor as `Transpose`, `ScatterND` and `Transpose`, which copy the whole
//! tensor three times. The keys of a latent cache are filled so. The indices must be known in all kinds of steps, and
//! the parts must cover the whole value.

use std::ops::Range;

use super::pass::{Change, Subject};
use super::probe::Inputs;
use super::probes;
use crate::edit::{Editor, NewNode};
use crate::fold::{Fold, MAX_VALUES, Value, Values, elements, signed, to_float};
use crate::{Graph, OnnxError};

/// The maximum number of parts.
const MAX_PARTS: usize = 16;

/// A value that is filled along one axis. Its parts are in the order in which they are written, the last one first.
struct Filled<'m> {
    value: &'m str,
    /// The node that produces the value.
    node: usize,
    axis: usize,
    parts: Vec<Part<'m>>,
}

#[derive(Clone, Copy)]
struct Part<'m> {
    axis: usize,
    indices: &'m str,
    update: &'m str,
    /// The value before this part was written.
    before: &'m str,
}

/// A value and the parts that it consists of, in order.
#[derive(Debug, PartialEq)]
struct Join<'m> {
    value: &'m str,
    node: usize,
    axis: usize,
    parts: Vec<&'m str>,
}

/// Replaces the nodes that fill values.
pub(super) fn join_parts(subject: &Subject<'_, '_>) -> Result<Option<Change>, OnnxError> {
    let Subject { model, graph, decoder, options, padding } = *subject;
    let filled: Vec<_> = graph.nodes().iter().flat_map(|node| Filled::find(graph, node.output(0)?)).collect();
    if filled.is_empty() {
        return Ok(None);
    }
    let inputs = Inputs::checked(decoder, options.max_seq)?;
    let external = model.shared_external_data()?;
    let mut joins: Option<Vec<Join<'_>>> = None;
    for probe in probes::probes(&inputs, options.max_seq, padding, 1, &Default::default()) {
        let mut fold = Fold::new(graph, external.as_ref());
        probe.feed(&inputs, &mut fold)?;
        let found: Vec<_> = filled.iter().filter_map(|parts| parts.join(&mut fold)).collect();
        match &mut joins {
            None => joins = Some(found),
            Some(joins) => joins.retain(|join| found.contains(join)),
        }
    }
    let mut joins = joins.unwrap_or_default();
    let mut fold = subject.small_step()?;
    joins.retain(|join| join.is_proved(&mut fold).unwrap_or_default());
    if joins.is_empty() {
        return Ok(None);
    }
    let mut joined = model.clone();
    let mut editor = Editor::new(joined.proto_mut())?;
    for join in &joins {
        editor.replacing(join.node);
        let concat = NewNode::new("Concat", &join.parts).int("axis", signed(join.axis));
        editor.add(concat.outputs(&[join.value]));
    }
    let origins = editor.finish()?;
    let change = Change::new(joined, origins).what(format!("{} values", joins.len()));
    Ok(Some(change.proof("the indices of all parts, and each value by the numbers of its parts")))
}

impl<'m> Filled<'m> {
    fn find(graph: &Graph<'m>, value: &'m str) -> Option<Self> {
        let node = graph.producer(value)?.0.index();
        let first = Part::find(graph, value)?;
        let next = |part: &Part<'m>| Part::find(graph, part.before).filter(|next| next.axis == part.axis);
        let parts = std::iter::successors(Some(first), next).take(MAX_PARTS).collect();
        Some(Self { value, node, axis: first.axis, parts })
    }

    /// Returns the parts that fill the whole value in one step.
    fn join(&self, fold: &mut Fold<'m>) -> Option<Join<'m>> {
        let whole = fold.shape(self.value).ok()?.to_vec();
        let size = *whole.get(self.axis)?;
        let mut parts: Vec<(Range<usize>, &str)> = Vec::new();
        let mut covered = 0_usize;
        for part in &self.parts {
            let place = part.place(fold)?;
            let mut shape = whole.clone();
            *shape.get_mut(self.axis)? = place.len();
            if *fold.shape(part.update).ok()? != shape {
                return None;
            }
            covered = covered.saturating_add(place.len());
            parts.push((place, part.update));
            if covered >= size {
                break;
            }
        }
        parts.sort_by_key(|(place, _)| place.start);
        let mut end = 0;
        let follows = |place: &Range<usize>| std::mem::replace(&mut end, place.end) == place.start;
        let is_whole = parts.iter().map(|(place, _)| place).all(follows) && end == size;
        let parts = parts.into_iter().map(|(_, update)| update).collect();
        is_whole.then_some(Join { value: self.value, node: self.node, axis: self.axis, parts })
    }
}

impl<'m> Part<'m> {
    /// Returns the part that the nodes before a value write into another value, along an axis that is the first one for
    /// the `ScatterND`.
    fn find(graph: &Graph<'m>, value: &'m str) -> Option<Self> {
        let transposed = |value: &str| {
            let (node, _) = graph.producer(value).filter(|(node, _)| node.is("Transpose"))?;
            Some((node.input(0)?, node.attribute("perm")?.ints.as_slice()))
        };
        let (scattered, back) = transposed(value)?;
        let (scatter, _) = graph.producer(scattered).filter(|(node, _)| node.is("ScatterND"))?;
        let is_reduced = scatter.string("reduction").ok()?.is_some_and(|reduction| reduction != b"none");
        let (before, order) = transposed(scatter.input(0)?)?;
        let (update, order_of_update) = transposed(scatter.input(2)?)?;
        let axis = usize::try_from(*order.first()?).ok()?;
        let mut axes = back.iter().map(|&axis| order.get(usize::try_from(axis).ok()?)).zip(0..);
        let is_undone = back.len() == order.len() && axes.all(|(axis, place)| axis == Some(&place));
        let part = Self { axis, indices: scatter.input(1)?, update, before };
        (is_undone && order == order_of_update && !is_reduced).then_some(part)
    }

    /// Returns the place of the part in its axis, if the indices follow each other.
    fn place(&self, fold: &mut Fold<'m>) -> Option<Range<usize>> {
        let indices = fold.value(self.indices).ok()?;
        let ints = indices.as_ints().filter(|ints| *indices.shape == [ints.len(), 1])?;
        let start = usize::try_from(*ints.first()?).ok()?;
        let place = start..start.checked_add(ints.len())?;
        let follow = place.clone().zip(ints).all(|(place, &index)| usize::try_from(index) == Ok(place));
        follow.then_some(place)
    }
}

impl<'m> Join<'m> {
    /// Returns `true` if the parts are the value, by the numbers of their elements.
    fn is_proved(&self, fold: &mut Fold<'m>) -> Result<bool, OnnxError> {
        let count = elements(fold.shape(self.value)?);
        let mut pieces: Vec<(Vec<f64>, usize)> = Vec::new();
        let mut first = 0;
        for &part in &self.parts {
            let Value { element, ref shape, .. } = *fold.value(part)?;
            let (shape, end) = (shape.clone(), elements(shape).saturating_add(first));
            if count > MAX_VALUES {
                return Ok(false);
            }
            let numbers: Vec<_> = (first..end).map(to_float).collect();
            pieces.push((numbers.clone(), shape.iter().skip(self.axis).product()));
            fold.set(part, Value::new(element, shape, Some(Values::Floats(numbers)))?)?;
            first = end;
        }
        // A row of the value has a row of each part.
        let mut rows: Vec<_> = pieces.iter().map(|(numbers, size)| numbers.chunks((*size).max(1))).collect();
        let mut expected: Vec<f64> = Vec::new();
        while expected.len() < count {
            let row: Vec<_> = rows.iter_mut().filter_map(Iterator::next).flatten().collect();
            if row.is_empty() {
                break;
            }
            expected.extend(row);
        }
        let found = fold.value(self.value)?.as_floats();
        Ok(found.is_some_and(|found| *found == expected))
    }
}
