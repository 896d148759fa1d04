//! Caches whose axes are not `[batch, heads, length, head size]`.
//!
//! The new past and present have that shape. The new rows are brought into it before they are appended, and
//! the other readers get the present as it was exported. Attention that becomes one node reads the cache
//! itself.
//!
//! A cache of rank 3 has the heads of all samples in its first axis, or it has one head. An evaluation shows
//! which, and that the heads of one sample follow each other.

mod proof;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use crate::convert::caches::{AXIS, RANK};
use crate::convert::pass::{Change, Subject};
use crate::convert::probe::{Inputs, Probe, UNUSUAL_SAMPLES};
use crate::convert::refusal::ConvertRefusal;
use crate::convert::sample_numbers::{is_by_sample, numbered_by_sample};
use crate::decoder::{Cache, Decoder, InputRole};
use crate::edit::{Editor, NewNode};
use crate::fold::{Fold, MAX_VALUES, Value, signed};
use crate::passing;
use crate::prove::{Inequality, Prover};
use crate::{Dimension, Graph, Model, Node, OnnxError};
use proof::Relaid;

/// The maximum number of nodes that are followed in a row. It bounds the time for a hostile graph.
const MAX_STEPS: usize = 64;

/// The number of proofs that are remembered. Keys and values of a decoder may differ.
const REMEMBERED: usize = 4;

/// A cache with other axes.
struct OtherLayout<'d, 'm> {
    cache: &'d Cache<'m>,
    update: &'m str,
    writer: Node<'m>,
    /// The order of the expected axes in the exported cache, before its heads are merged. The same order leads
    /// back.
    order: [usize; RANK],
    /// The heads of each sample if the exported cache has rank 3.
    heads: Option<usize>,
    /// The head size if it is known.
    head_size: Dimension<'m>,
    /// The nodes that ask for the shape of the past or of the present.
    shapes: Vec<Node<'m>>,
}

/// Gives each cache the expected shape.
pub(in crate::convert) fn change_layouts(subject: &Subject<'_, '_>) -> Result<Option<Change>, OnnxError> {
    let Subject { model, graph, decoder, .. } = *subject;
    let mut found = found(graph, decoder);
    if found.iter().any(|layout| layout.heads.is_some()) {
        // The conversion refuses a cache whose heads are not known.
        match Heads::find(model, graph, decoder, &found) {
            Ok(Some(heads)) => heads.set(&mut found),
            Ok(None) | Err(_) => found.retain(|layout| layout.heads.is_none()),
        }
    }
    if found.is_empty() {
        return Ok(None);
    }
    let has_batch = |role: InputRole| {
        role.is_tokens()
            || matches!(role, InputRole::PositionIds | InputRole::AttentionMask | InputRole::BlockIds)
    };
    let mut inputs = decoder.inputs.iter().filter(|input| has_batch(input.role));
    let samples = inputs.find_map(|input| input.value.shape.as_ref()?.first().copied());
    let mut formed = model.clone();
    let mut editor = Editor::new(formed.proto_mut())?;
    let mut exported = Vec::new();
    for layout in &found {
        exported.push(layout.form(samples.unwrap_or(Dimension::Unknown), &mut editor)?);
    }
    let origins = editor.finish()?;
    let formed_graph = formed.graph()?;
    let mut prover = Prover::new(REMEMBERED);
    for (layout, exported) in found.iter().zip(&exported) {
        let proved = proof::prove(&layout.relaid(exported), &formed, &formed_graph, &mut prover);
        proved.map_err(|inequality| layout.refused(inequality))?;
    }
    let what = format!("{} caches", found.len());
    let change = Change::new(formed, origins).what(what).proof("rows of each layout by their numbers");
    let moved = found.iter().flat_map(|layout| [layout.cache.past, layout.cache.present]);
    Ok(Some(Change { moved: moved.map(str::to_owned).collect(), ..change }))
}

/// Returns the caches with other axes. The heads of those of rank 3 are not known yet.
fn found<'d, 'm>(graph: &Graph<'m>, decoder: &'d Decoder<'m>) -> Vec<OtherLayout<'d, 'm>> {
    decoder.caches.iter().filter_map(|cache| OtherLayout::find(cache, graph)).collect()
}

impl<'d, 'm> OtherLayout<'d, 'm> {
    fn find(cache: &'d Cache<'m>, graph: &Graph<'m>) -> Option<Self> {
        let writer = cache.writer?;
        if !cache.is_appended() || !cache.between.is_empty() || writer.input(0) != Some(cache.past) {
            return None;
        }
        let (order, heads) = match (cache.past_shape.len(), cache.axis) {
            (RANK, 1) => ([0, 2, 1, 3], None),
            (RANK, 3) => ([0, 1, 3, 2], None),
            (3, 1) => ([0, 1, 2, 3], Some(0)),
            (3, 2) => ([0, 1, 3, 2], Some(0)),
            _ => return None,
        };
        let readers_of = |value| graph.uses(value).map(|(node, _)| node);
        // The past must not reach another node in the new shape.
        if readers_of(cache.past).any(|node| !node.reads_shape() && node.index() != writer.index()) {
            return None;
        }
        let presents = if cache.written == cache.present {
            vec![cache.written]
        } else {
            vec![cache.written, cache.present]
        };
        let asking = [cache.past].into_iter().chain(presents).flat_map(readers_of);
        let size = |axis: usize| order.get(axis).and_then(|&axis| cache.known_shape.get(axis)).copied();
        Some(Self {
            cache,
            update: cache.update?,
            writer,
            order,
            heads,
            head_size: size(3).unwrap_or(Dimension::Unknown),
            shapes: asking.filter(|node| node.is("Shape")).collect(),
        })
    }

    /// Gives the cache its new shape. Returns the name of the present in its exported layout.
    fn form(&self, samples: Dimension<'m>, editor: &mut Editor<'_>) -> Result<String, OnnxError> {
        let Cache { past, present, written, .. } = *self.cache;
        let present_shape = self.cache.present_info.shape.as_deref().unwrap_or_default();
        for (name, shape) in [(past, self.cache.past_shape.as_slice()), (present, present_shape)] {
            editor.set_dims(name, &self.dims(samples, shape))?;
        }
        let exported = editor.fresh(&format!("{present}_as_exported"));
        for value in [written, present] {
            editor.replace_uses(value, &exported);
        }
        let mut shapes = BTreeMap::new();
        for node in &self.shapes {
            editor.at(node.index());
            let of = if node.input(0) == Some(past) { past } else { present };
            let shape = match shapes.get(of) {
                Some(shape) => String::clone(shape),
                None => shapes.entry(of).insert_entry(self.exported_shape(of, editor)?).get().clone(),
            };
            answer(node, &shape, editor)?;
        }
        editor.at(self.writer.index());
        let update = self.reshaped_update(editor)?;
        for node in [editor.producer(present), Some(self.writer.index())].into_iter().flatten() {
            editor.remove_node(node);
        }
        let concat = NewNode::new("Concat", &[past, &update]).int("axis", signed(AXIS));
        editor.add(concat.outputs(&[present]));
        let ordered = self.ordered(present, editor);
        let last = match self.heads {
            None => NewNode::new("Identity", &[&ordered]),
            Some(1) => NewNode::new("Squeeze", &[&ordered, &editor.ints(&[1])?]),
            Some(_) => NewNode::new("Reshape", &[&ordered, &self.exported_shape(present, editor)?]),
        };
        editor.add(last.outputs(&[&exported]));
        Ok(exported)
    }

    /// Returns what a proof needs to know.
    fn relaid<'a>(&self, exported: &'a str) -> Relaid<'a>
    where
        'm: 'a,
    {
        let Self { writer, update, order, heads, .. } = *self;
        Relaid { writer, past: self.cache.past, update, order, heads, exported }
    }

    /// Returns the error if the new nodes do not compute what the exported ones do.
    fn refused(&self, inequality: Inequality) -> OnnxError {
        match inequality {
            // The proof evaluates nodes that the file does not have.
            Inequality::Before(error) | Inequality::After(error) => self.writer.error(error.into_root()),
            Inequality::Unknown { .. } | Inequality::Shape { .. } | Inequality::Differs { .. } => {
                let (rank, axis) = (self.cache.past_shape.len(), self.cache.axis);
                self.writer.error(ConvertRefusal::Layout { past: self.cache.past.to_owned(), rank, axis })
            }
        }
    }

    /// Returns the dimensions of the expected shape.
    fn dims(&self, samples: Dimension<'m>, exported: &[Dimension<'m>]) -> [Dimension<'m>; RANK] {
        let dim = |axis: usize| exported.get(axis).copied().unwrap_or(Dimension::Unknown);
        match self.heads {
            None => self.order.map(dim),
            Some(heads) => [samples, Dimension::Known(heads), dim(self.cache.axis), self.head_size],
        }
    }

    /// Adds the shape that a value with the expected axes had in the exported decoder. Returns the name.
    fn exported_shape(&self, value: &str, editor: &mut Editor<'_>) -> Result<String, OnnxError> {
        let shape = editor.node("Shape", &[value]);
        let order = self.order.map(signed);
        let pick = |axes: &[i64], editor: &mut Editor<'_>| {
            let axes = editor.ints(axes)?;
            Ok::<_, OnnxError>(editor.node("Gather", &[&shape, &axes]))
        };
        let Some(heads) = self.heads else { return pick(&order, editor) };
        let [samples, _, inner @ ..] = order;
        let (samples, inner) = (pick(&[samples], editor)?, pick(&inner, editor)?);
        let heads = editor.ints(&[signed(heads)])?;
        let rows = editor.node("Mul", &[&samples, &heads]);
        Ok(editor.add(NewNode::new("Concat", &[&rows, &inner]).int("axis", 0)))
    }

    /// Adds the new rows with the expected axes. Returns the name.
    fn reshaped_update(&self, editor: &mut Editor<'_>) -> Result<String, OnnxError> {
        let split = match self.heads {
            None => self.update.to_owned(),
            Some(1) => {
                let axis = editor.ints(&[1])?;
                editor.node("Unsqueeze", &[self.update, &axis])
            }
            Some(heads) => {
                let inner = editor.add(NewNode::new("Shape", &[self.update]).int("start", 1));
                let outer = editor.ints(&[-1, signed(heads)])?;
                let shape = editor.add(NewNode::new("Concat", &[&outer, &inner]).int("axis", 0));
                editor.node("Reshape", &[self.update, &shape])
            }
        };
        Ok(self.ordered(&split, editor))
    }

    /// Adds a value with its axes in the other order. Returns the name.
    fn ordered(&self, value: &str, editor: &mut Editor<'_>) -> String {
        if self.order.is_sorted() {
            return value.to_owned();
        }
        editor.add(NewNode::new("Transpose", &[value]).ints("perm", &self.order.map(signed)))
    }
}

/// Replaces a `Shape` by nodes that read the whole shape.
pub(in crate::convert) fn answer(
    node: &Node<'_>,
    shape: &str,
    editor: &mut Editor<'_>,
) -> Result<(), OnnxError> {
    let bound = |name, default| node.attribute(name).and_then(|bound| bound.i).unwrap_or(default);
    let (start, end) = (editor.ints(&[bound("start", 0)])?, editor.ints(&[bound("end", i64::MAX)])?);
    editor.remove_node(node.index());
    let outputs = node.output(0).unwrap_or_default();
    editor.add(NewNode::new("Slice", &[shape, &start, &end]).outputs(&[outputs]));
    Ok(())
}

/// The heads of each sample, and the head size of each cache of rank 3 in the order of the caches.
struct Heads {
    heads: usize,
    head_sizes: Vec<usize>,
}

impl Heads {
    /// Evaluates a step in which the rows of each sample are known by its number.
    ///
    /// Returns `None` if the rows that are appended to a cache are not those of sample 0, then those of sample
    /// 1, and so on.
    fn find<'m>(
        model: &Model,
        graph: &Graph<'m>,
        decoder: &Decoder<'m>,
        found: &[OtherLayout<'_, 'm>],
    ) -> Result<Option<Self>, OnnxError> {
        let external = model.shared_external_data()?;
        let mut fold = Fold::new(graph, external.as_ref());
        let inputs = Inputs::from_decoder(decoder)?;
        let samples = inputs.samples().unwrap_or(UNUSUAL_SAMPLES);
        let (past, new) = (3, inputs.new_tokens().unwrap_or(2));
        // The file may claim any size.
        if samples.saturating_mul(new.saturating_add(past)) > MAX_VALUES {
            return Ok(None);
        }
        let probe = Probe::new(samples, past, new);
        probe.feed(&inputs, &mut fold)?;
        let merged = || found.iter().filter(|layout| layout.heads.is_some());
        // Every past has as many heads as the first one, whose rows depend on no past.
        let Some(first) = merged().min_by_key(|layout| layout.writer.index()) else { return Ok(None) };
        let rows = fold.shape(first.update)?.first().copied().unwrap_or_default();
        let Some(heads) = rows.checked_div(samples).filter(|&heads| heads.checked_mul(samples) == Some(rows))
        else {
            return Ok(None);
        };
        for layout in merged() {
            let dims = layout.cache.known_shape.iter().enumerate();
            let size = |(axis, dim): (usize, &Dimension<'_>)| match *dim {
                _ if axis == 0 => rows,
                _ if axis == layout.cache.axis => probe.past,
                Dimension::Known(size) => size,
                _ => 0,
            };
            fold.set(layout.cache.past, Value::shaped(layout.cache.element, dims.map(size).collect())?)?;
        }
        let mut known = Vec::new();
        let mut head_sizes = Vec::new();
        for layout in merged() {
            let shape = fold.shape(layout.update)?;
            let &[at_first, _, _] = shape else { return Ok(None) };
            let size = shape.get(if layout.cache.axis == 1 { 2 } else { 1 }).copied();
            if at_first != rows {
                return Ok(None);
            }
            head_sizes.push(size.unwrap_or_default());
            let source = source(graph, layout.update);
            let Value { element, ref shape, .. } = *fold.value(source)?;
            if shape.first() != Some(&samples) {
                return Ok(None);
            }
            known.push((source, numbered_by_sample(element, shape.clone())?));
        }
        for (source, numbers) in known {
            fold.set(source, numbers)?;
        }
        for layout in merged() {
            if !is_by_sample(fold.value(layout.update)?, samples) {
                return Ok(None);
            }
        }
        Ok(Some(Self { heads, head_sizes }))
    }

    fn set(&self, found: &mut [OtherLayout<'_, '_>]) {
        let merged = found.iter_mut().filter(|layout| layout.heads.is_some());
        for (layout, &head_size) in merged.zip(&self.head_sizes) {
            (layout.heads, layout.head_size) = (Some(self.heads), Dimension::Known(head_size));
        }
    }
}

/// Follows new rows back through nodes that move elements.
fn source<'m>(graph: &Graph<'m>, mut value: &'m str) -> &'m str {
    for _ in 0..MAX_STEPS {
        let moves = |node: &Node<'m>| passing::moves(node) && !node.is("Concat");
        match graph.producer(value).map(|(node, _)| node).filter(moves).and_then(|node| node.input(0)) {
            Some(before) => value = before,
            None => break,
        }
    }
    value
}
