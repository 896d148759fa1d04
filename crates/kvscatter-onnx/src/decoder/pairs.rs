//! Pairs each graph input that is a cache with the output that returns it with the new rows.

use std::collections::{BTreeMap, BTreeSet};

use kvscatter::ElementType;

use super::cache::{Cache, CachePart, UnknownStyle, WriterStyle};
use super::cut;
use super::samples;
use super::trace::{MAX_STEPS, Path};
use super::writer::{Axis, CacheWrite, Writer, earlier};
use crate::names::reads;
use crate::{DecoderError, Dimension, Graph, Node, OnnxError, ValueInfo};

/// The path from a graph input to the writer's input for the past.
struct PathFromPast<'m> {
    past: &'m str,
    /// The parts of the path, beginning at the writer. Earlier writers separate the parts.
    paths: Vec<Path<'m>>,
    earlier: Vec<Node<'m>>,
}

/// Finds the caches, in the order of their outputs.
pub(super) fn find<'m>(
    graph: &Graph<'m>,
    inputs: &[ValueInfo<'m>],
    outputs: &[ValueInfo<'m>],
) -> Result<Vec<Cache<'m>>, OnnxError> {
    let by_name: BTreeMap<_, _> = inputs.iter().map(|input| (input.name, input)).collect();
    let mut caches: Vec<Cache<'m>> = Vec::new();
    let mut places: BTreeMap<&str, usize> = BTreeMap::new();
    let mut unknown: BTreeMap<usize, Vec<(&ValueInfo<'m>, Path<'m>)>> = BTreeMap::new();
    // Attention to an encoder may return its keys, although it has no past.
    let (mut unfed, mut without_past) = (None, None);
    for output in outputs {
        let tail = Path::back(graph, output.name);
        let Some((node, slot)) = graph.producer(tail.source) else { continue };
        let write = match Writer::find(graph, &node, slot)? {
            Writer::Known(write) => write,
            Writer::UnknownOperator => {
                unknown.entry(node.index()).or_default().push((output, tail));
                continue;
            }
            Writer::NoCache => continue,
        };
        let has_past = write.past.is_some();
        let from_past = write.past.and_then(|past| PathFromPast::back(graph, past));
        let fed = from_past.and_then(|path| Some((*by_name.get(path.past)?, path)));
        let Some((past, from_past)) = fed else {
            let error = || node.error(DecoderError::CacheNotFed { present: output.name.to_owned() });
            let unfed = if has_past { &mut unfed } else { &mut without_past };
            unfed.get_or_insert_with(error);
            continue;
        };
        let Some(cache) = cache(graph, past, output, &node, write, &from_past, &tail)? else { continue };
        insert(&mut caches, &mut places, cache);
    }
    for (index, outputs) in unknown {
        let Some(node) = graph.nodes().get(index) else { continue };
        for cache in of_unknown_operator(graph, node, &by_name, &outputs) {
            insert(&mut caches, &mut places, cache);
        }
    }
    if let Some(error) = unfed.or(without_past.filter(|_| caches.is_empty())) {
        return Err(error);
    }
    not_fed_back(graph, &by_name, &caches, &places)?;
    if caches.is_empty() {
        return Err(DecoderError::CacheNone.into());
    }
    let order: BTreeMap<_, _> = outputs.iter().enumerate().map(|(at, output)| (output.name, at)).collect();
    caches.sort_by_key(|cache| order.get(cache.present).copied());
    Ok(caches)
}

impl<'m> PathFromPast<'m> {
    /// Follows the past of a writer back to a graph input, through earlier writers. Returns `None` if the
    /// path leads elsewhere.
    fn back(graph: &Graph<'m>, past: &'m str) -> Option<Self> {
        let mut from_past = Self { past, paths: vec![Path::back(graph, past)], earlier: Vec::new() };
        loop {
            from_past.past = from_past.paths.last()?.source;
            if graph.is_input(from_past.past) {
                from_past.earlier.reverse();
                return Some(from_past);
            }
            let (node, past) =
                earlier(graph, from_past.past).filter(|_| from_past.earlier.len() < MAX_STEPS)?;
            from_past.earlier.push(node);
            from_past.paths.push(Path::back(graph, past));
        }
    }

    /// Returns the axis of the past that corresponds to an axis of the writer's input.
    fn axis_at_past(&self, axis: usize) -> Option<usize> {
        self.paths.iter().try_fold(axis, |axis, path| path.axis_at_source(axis))
    }

    fn steps(&self) -> impl Iterator<Item = Node<'m>> {
        self.paths.iter().rev().flat_map(|path| path.steps.iter().copied())
    }
}

/// Adds a cache unless its past is already in the list.
///
/// If another output returns the same write, that output is recorded as a copy. A second writer of the same
/// past is reported as a hazard later.
fn insert<'m>(caches: &mut Vec<Cache<'m>>, places: &mut BTreeMap<&'m str, usize>, mut cache: Cache<'m>) {
    let Some(known) = places.get(cache.past).and_then(|&place| caches.get_mut(place)) else {
        places.insert(cache.past, caches.len());
        caches.push(cache);
        return;
    };
    if known.written == cache.written {
        // Of several outputs, the one with the fewest nodes before it is the cache's present.
        if cache.between.len() < known.between.len() {
            std::mem::swap(known, &mut cache);
        }
        known.copies.append(&mut cache.copies);
        known.copies.push(cache.present);
    }
}

/// Returns the cache, or `None` if the value looks like a cache but cannot be one.
fn cache<'m>(
    graph: &Graph<'m>,
    past: &ValueInfo<'m>,
    present: &ValueInfo<'m>,
    node: &Node<'m>,
    write: CacheWrite<'m>,
    from_past: &PathFromPast<'m>,
    tail: &Path<'m>,
) -> Result<Option<Cache<'m>>, OnnxError> {
    let steps: Vec<_> = from_past.steps().chain(tail.steps.iter().copied()).collect();
    let reshaped =
        steps.iter().find(|node| matches!(node.op_type(), "Reshape" | "Squeeze" | "Unsqueeze" | "Flatten"));
    let mut style = match reshaped {
        Some(node) => WriterStyle::Unknown(UnknownStyle::Reshaped { op_type: node.op_type().to_owned() }),
        None => write.style,
    };
    let declared = past.shape.clone().or_else(|| present.shape.clone());
    let Some(mut shape) = declared.or_else(|| implied(&write.axis, &style)) else {
        return Err(DecoderError::CacheShapeMissing { name: past.name.to_owned() }.into());
    };
    // Pixels and embeddings are also concatenated in this way. Unlike rows of hidden features, a cache has a
    // batch dimension.
    if matches!(write.axis, Axis::At(_)) && node.is("Concat") && shape.len() < 3 {
        return Ok(None);
    }
    if matches!(style, WriterStyle::Unknown(UnknownStyle::Stacked { .. }))
        && shape.len() < samples::STACK_RANK
    {
        return Ok(None);
    }
    check_rank(past.name, node, &style, &write.axis, shape.len())?;
    let at_writer = match write.axis {
        Axis::At(axis) => from_front(axis, shape.len()),
        Axis::Open => None,
    };
    let axis = at_writer.and_then(|axis| from_past.axis_at_past(axis));
    let axis = axis.filter(|&axis| axis < shape.len()).unwrap_or_else(|| open_axis(&shape, present));
    if axis == 0 && style == WriterStyle::Concat {
        style = WriterStyle::Unknown(UnknownStyle::AxisZero);
    }
    if style.growth().is_some()
        && let Some(rows) = cut::rows(graph, &steps, axis, shape.len())
    {
        style = WriterStyle::Unknown(UnknownStyle::Cut { rows });
    }
    if past.shape.is_none()
        && let Some(dim) = shape.get_mut(axis)
    {
        *dim = Dimension::Unknown;
    }
    Ok(Some(Cache {
        past: past.name,
        present: present.name,
        style,
        writer: Some(*node),
        written: tail.source,
        update: write.update,
        element: past.element,
        known_shape: shape.clone(),
        past_shape: shape,
        present_info: present.clone(),
        axis,
        batch_axis: 0,
        part: CachePart::Unknown,
        between: copying(steps, past.element),
        earlier: from_past.earlier.clone(),
        copies: Vec::new(),
        quantized: None,
        read: tail.source,
    }))
}

/// Returns the nodes that produce another tensor. These are all nodes except `Identity` and casts to the type
/// that the cache already has.
fn copying(steps: Vec<Node<'_>>, element: ElementType) -> Vec<Node<'_>> {
    let is_no_op = |node: &Node<'_>| {
        let to = node.attribute("to").and_then(|to| to.i);
        node.op_type() == "Identity"
            || (node.op_type() == "Cast" && to == Some(i64::from(element.onnx_code())))
    };
    // If the cache is cast to another type and back, both casts produce another tensor.
    let no_op_casts = steps.iter().filter(|node| node.op_type() == "Cast").all(is_no_op);
    let copies = |node: &Node<'_>| !is_no_op(node) || (node.op_type() == "Cast" && !no_op_casts);
    steps.into_iter().filter(copies).collect()
}

/// Pairs the outputs of a node of an unknown operator with its inputs.
///
/// Values of one type and rank are paired in order if there are the same number of inputs and outputs.
fn of_unknown_operator<'m>(
    graph: &Graph<'m>,
    node: &Node<'m>,
    inputs: &BTreeMap<&'m str, &ValueInfo<'m>>,
    outputs: &[(&ValueInfo<'m>, Path<'m>)],
) -> Vec<Cache<'m>> {
    let mut pasts: BTreeMap<_, Vec<_>> = BTreeMap::new();
    let mut seen = BTreeSet::new();
    for value in reads(node.proto()) {
        let path = Path::back(graph, value);
        let Some(past) = inputs.get(path.source) else { continue };
        if let Some(traits) = PairTraits::read(past).filter(|_| seen.insert(past.name)) {
            pasts.entry(traits).or_default().push((*past, path));
        }
    }
    let mut presents: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for (present, tail) in outputs {
        if let Some(traits) = PairTraits::read(present) {
            presents.entry(traits).or_default().push((*present, tail));
        }
    }
    let mut caches = Vec::new();
    for (traits, presents) in presents {
        let Some(pasts) = pasts.get_mut(&traits).filter(|pasts| pasts.len() == presents.len()) else {
            continue;
        };
        // The order in which subgraphs use values has no meaning, so the graph's own order is used.
        pasts.sort_by_key(|(past, _)| graph.input_index(past.name));
        for ((past, path), (present, tail)) in pasts.iter().zip(presents) {
            let write = CacheWrite {
                style: WriterStyle::Unknown(UnknownStyle::operator(node)),
                past: Some(past.name),
                update: None,
                axis: Axis::Open,
            };
            let from_past = PathFromPast { past: past.name, paths: vec![path.clone()], earlier: Vec::new() };
            caches.extend(cache(graph, past, present, node, write, &from_past, tail).ok().flatten());
        }
    }
    caches
}

/// The properties that a past and its present have in common for any writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct PairTraits {
    element: ElementType,
    rank: usize,
}

impl PairTraits {
    /// Returns `None` for a value that cannot be a cache, such as indices, masks and hidden states.
    fn read(value: &ValueInfo<'_>) -> Option<Self> {
        let rank = value.shape.as_ref()?.len();
        (rank >= 4).then_some(Self { element: value.element, rank })
    }
}

/// Returns an error if a node treats an input as a cache but no output returns the node's result.
fn not_fed_back<'m>(
    graph: &Graph<'m>,
    inputs: &BTreeMap<&'m str, &ValueInfo<'m>>,
    caches: &[Cache<'m>],
    places: &BTreeMap<&'m str, usize>,
) -> Result<(), OnnxError> {
    let kinds: BTreeSet<_> = caches.iter().map(|cache| (cache.element, cache.past_shape.len())).collect();
    // Models also concatenate other values, so the value must look like a cache.
    let like_a_cache = |value: &ValueInfo<'_>| match value.shape.as_ref().map(Vec::len) {
        rank if kinds.is_empty() => rank.is_some_and(|rank| rank >= 4),
        Some(rank) => kinds.contains(&(value.element, rank)),
        None => kinds.iter().any(|(element, _)| *element == value.element),
    };
    let mut looked_at = BTreeSet::new();
    for node in graph.nodes() {
        let slots: &[usize] = match (node.domain(), node.op_type()) {
            _ if node.is("TensorScatter") => &[0],
            _ if node.is("Concat") => &[1],
            _ => &[1, 2],
        };
        for &slot in slots {
            let Writer::Known(write) = Writer::find(graph, node, slot)? else { continue };
            let Some(from_past) = write.past.and_then(|past| PathFromPast::back(graph, past)) else {
                continue;
            };
            let Some(past) = inputs.get(from_past.past).filter(|past| !places.contains_key(past.name)) else {
                continue;
            };
            if (node.is("Concat") && !like_a_cache(past)) || !looked_at.insert(past.name) {
                continue;
            }
            return Err(node.error(DecoderError::CacheNotFedBack { past: past.name.to_owned() }));
        }
    }
    Ok(())
}

/// Checks that the operator can write a cache of this rank along its axis.
fn check_rank(
    name: &str,
    node: &Node<'_>,
    style: &WriterStyle,
    axis: &Axis,
    rank: usize,
) -> Result<(), OnnxError> {
    let has_rank_4 = matches!(style, WriterStyle::AttentionPast | WriterStyle::GroupQueryAttention);
    if rank < 2 || (has_rank_4 && rank != 4) {
        let expected = if has_rank_4 { "4" } else { "2 or more" };
        return Err(node.error(DecoderError::CacheRank { name: name.to_owned(), rank, expected }));
    }
    match (style, *axis) {
        (WriterStyle::TensorScatter(_), Axis::At(axis)) => {
            let scatter = kvscatter::spec::onnx::TensorScatter::new().axis(axis);
            scatter.resolve_axis(rank).map(|_| ()).map_err(|error| node.error(error))
        }
        (WriterStyle::Concat, Axis::At(axis)) if from_front(axis, rank).is_none() => {
            Err(node.error(kvscatter::Error::AxisOutOfRange { axis, rank }))
        }
        _ => Ok(()),
    }
}

/// Returns the shape that an operator requires, for caches without a declared shape.
fn implied(axis: &Axis, style: &WriterStyle) -> Option<Vec<Dimension<'static>>> {
    let has_rank_4 = matches!(style, WriterStyle::AttentionPast | WriterStyle::GroupQueryAttention);
    (has_rank_4 && matches!(axis, Axis::At(_))).then(|| vec![Dimension::Unknown; 4])
}

fn from_front(axis: i64, rank: usize) -> Option<usize> {
    let axis = if axis < 0 { axis.checked_add(i64::try_from(rank).ok()?)? } else { axis };
    usize::try_from(axis).ok().filter(|&axis| axis < rank)
}

/// Returns the axis on which past and present have different sizes.
///
/// If they have the same shape, returns `rank - 2`, the sequence dimension of all common layouts but one.
fn open_axis(past: &[Dimension<'_>], present: &ValueInfo<'_>) -> usize {
    let present = present.shape.as_deref().unwrap_or_default();
    let differs = past.iter().zip(present).skip(1).position(|(past, present)| past != present);
    let usual = past.len().saturating_sub(2);
    differs.map_or(usual, |at| at.saturating_add(1))
}
