//! Checks which caches can become static.

use std::collections::BTreeMap;

use super::refusal::ConvertRefusal;
use crate::decoder::{Cache, Decoder, InputRole, UnknownStyle, WriterStyle};
use crate::{Dimension, Graph, Node, OnnxError};

/// The rank of a static cache, whose shape is `[batch, heads, max_seq, head size]`.
pub(super) const RANK: usize = 4;
pub(super) const AXIS: usize = 2;

/// Checks how the caches are written. `is_taken` returns whether the node that writes a cache can be replaced.
///
/// # Errors
/// Returns a [`ConvertRefusal`] about the caches. Most are wrapped in an error that names the node that
/// writes the cache.
pub(super) fn check_written(
    graph: &Graph<'_>,
    decoder: &Decoder<'_>,
    max_seq: usize,
    is_taken: impl Fn(&Cache<'_>) -> bool,
) -> Result<(), OnnxError> {
    if max_seq == 0 || i32::try_from(max_seq).is_err() {
        return Err(ConvertRefusal::MaxSeq { max_seq }.into());
    }
    each(decoder, |cache| written(cache, is_taken(cache)))?;
    if let Some(cache) = decoder.unused() {
        let refusal = ConvertRefusal::ResultUnused { past: cache.past.to_owned() };
        return Err(match &cache.writer {
            Some(writer) => writer.error(refusal),
            None => refusal.into(),
        });
    }
    if let Some((node, present)) = decoder.shares() {
        return Err(node.error(ConvertRefusal::SharedCache { present: present.to_owned() }));
    }
    match graph.nodes().iter().find(|node| has_graph(node)) {
        Some(node) => Err(node.error(ConvertRefusal::Subgraph)),
        None => Ok(()),
    }
}

/// Checks that caches that are static already have this many slots. The masks of a model describe the slots of rings.
///
/// # Errors
/// Returns a [`ConvertRefusal`].
pub(super) fn check_static(decoder: &Decoder<'_>, max_seq: usize) -> Result<(), OnnxError> {
    each(decoder, |cache| match cache.capacity().size() {
        Some(length) if !cache.is_ring() && length != max_seq => {
            Some(ConvertRefusal::PastFixed { past: cache.past.to_owned(), length, max_seq })
        }
        _ => None,
    })
}

/// Checks everything about the caches of a formed decoder that can be checked without computing
/// values.
///
/// # Errors
/// Returns the errors of [`check_written`], and other refusals about the caches.
pub(super) fn check(graph: &Graph<'_>, decoder: &Decoder<'_>, max_seq: usize) -> Result<(), OnnxError> {
    check_written(graph, decoder, max_seq, is_appended)?;
    each(decoder, |cache| shaped(cache, max_seq))?;
    check_readers(graph, decoder)?;
    let Some(positions) = decoder.input(InputRole::PositionIds) else { return Ok(()) };
    first(graph, |node| looking_up(node, graph, positions.name, max_seq))
}

/// Checks that only the nodes that write the caches read their pasts.
///
/// # Errors
/// Returns [`ConvertRefusal::PastRead`], wrapped with another node.
pub(super) fn check_readers(graph: &Graph<'_>, decoder: &Decoder<'_>) -> Result<(), OnnxError> {
    let pasts = decoder.caches.iter().map(|cache| (cache.past, cache)).collect();
    first(graph, |node| reading(node, &pasts))
}

/// Returns the first refusal of a node.
fn first(graph: &Graph<'_>, refusal: impl Fn(&Node<'_>) -> Option<ConvertRefusal>) -> Result<(), OnnxError> {
    let refused = graph.nodes().iter().find_map(|node| Some(node.error(refusal(node)?)));
    refused.map_or(Ok(()), Err)
}

/// Returns `true` if each step appends rows to a cache.
pub(super) fn is_appended(cache: &Cache<'_>) -> bool {
    matches!(cache.style, WriterStyle::Concat | WriterStyle::AttentionPast)
}

/// Returns the first refusal of a cache, with the node that writes the cache.
pub(super) fn each(
    decoder: &Decoder<'_>,
    refusal: impl Fn(&Cache<'_>) -> Option<ConvertRefusal>,
) -> Result<(), OnnxError> {
    let refused = decoder.caches.iter().find_map(|cache| Some((cache, refusal(cache)?)));
    match refused {
        Some((Cache { writer: Some(node), .. }, refusal)) => Err(node.error(refusal)),
        Some((_, refusal)) => Err(refusal.into()),
        None => Ok(()),
    }
}

/// Returns the reason if the way in which a cache is written prevents the conversion.
fn written(cache: &Cache<'_>, is_taken: bool) -> Option<ConvertRefusal> {
    let past = cache.past.to_owned();
    match &cache.style {
        WriterStyle::TensorScatter(_) => return Some(ConvertRefusal::AlreadyStatic { past }),
        _ if is_taken => {}
        WriterStyle::Unknown(why @ UnknownStyle::Cut { .. }) => {
            return Some(ConvertRefusal::Cut { past, reason: why.to_string() });
        }
        WriterStyle::Unknown(why) => return Some(ConvertRefusal::Writer { past, reason: why.to_string() }),
        style => return Some(ConvertRefusal::Writer { past, reason: style.to_string() }),
    }
    if !cache.earlier.is_empty() {
        return Some(ConvertRefusal::WrittenTwice { past });
    }
    let copy = cache.copies.first();
    copy.map(|&name| ConvertRefusal::Output { name: name.to_owned() })
}

/// Returns the reason if the type or the shape of a cache prevents the conversion.
fn shaped(cache: &Cache<'_>, max_seq: usize) -> Option<ConvertRefusal> {
    let past = cache.past.to_owned();
    if let Some(node) = cache.between.first() {
        return Some(ConvertRefusal::Between { past, node: Box::new(node.label()) });
    }
    let (rank, axis) = (cache.past_shape.len(), cache.axis);
    if (rank, axis) != (RANK, AXIS) {
        return Some(ConvertRefusal::Layout { past, rank, axis });
    }
    match cache.past_shape.get(AXIS) {
        Some(&Dimension::Known(length)) => Some(ConvertRefusal::PastFixed { past, length, max_seq }),
        _ => None,
    }
}

fn has_graph(node: &Node<'_>) -> bool {
    node.proto().attribute.iter().any(|attribute| attribute.g.is_set() || !attribute.graphs.is_empty())
}

/// Returns the reason if a node prevents the conversion regardless of the values that it computes.
fn reading(node: &Node<'_>, pasts: &BTreeMap<&str, &Cache<'_>>) -> Option<ConvertRefusal> {
    let is_writer =
        |cache: &Cache<'_>| cache.writer.as_ref().is_some_and(|writer| writer.index() == node.index());
    if node.reads_shape() || node.is("Identity") {
        return None;
    }
    let mut read = node.proto().input.iter().filter_map(|name| pasts.get(name.as_str()));
    let other = read.find(|cache| !is_writer(cache))?;
    Some(ConvertRefusal::PastRead { past: other.past.to_owned() })
}

/// Returns the reason if a table that is indexed by position has too few rows.
fn looking_up(node: &Node<'_>, graph: &Graph<'_>, positions: &str, max_seq: usize) -> Option<ConvertRefusal> {
    let table = node.input(0).filter(|_| node.is("Gather") && node.input(1) == Some(positions))?;
    let rows = graph.initializer(table)?.dims.first().and_then(|&rows| usize::try_from(rows).ok())?;
    (rows < max_seq).then(|| ConvertRefusal::Table { table: table.to_owned(), rows, max_seq })
}
