//! Finds the caches that store rows in fewer bits than the graph computes with, and examines how they are written and
//! read.

use kvscatter::ElementType;
use kvscatter_onnx::decoder::{Cache, CachePart, Decoder, WriterStyle};
use kvscatter_onnx::{Dimension, Graph, Node};

use crate::certificate::{Check, Failure};

/// A cache that stores rows in fewer bits than they are given.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct NarrowCache {
    /// The index of the cache among the decoder's caches.
    pub(crate) cache: usize,
    /// The index of the cache with the scales of an int8 cache.
    pub(crate) scales: Option<usize>,
    pub(crate) element: ElementType,
    pub(crate) part: CachePart,
    /// The name of the value whose rows are stored, which for rotated keys is after the rotation.
    pub(crate) given: String,
    /// The attention that reads the cache.
    pub(crate) attention: Option<Reader>,
}

/// An `Attention` node that reads a cache.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Reader {
    pub(crate) query: String,
    /// The factor of the scores, or `None` for the default.
    pub(crate) scale: Option<f32>,
}

impl NarrowCache {
    /// Finds these caches: those of a half type whose rows are cast to it, and those of int8 whose rows are divided by
    /// scales that the graph computes.
    pub(crate) fn find(graph: &Graph<'_>, decoder: &Decoder<'_>) -> Vec<Self> {
        let caches = decoder.caches.iter().enumerate();
        caches.filter_map(|(index, cache)| Self::of_cache(graph, decoder, index, cache)).collect()
    }

    fn of_cache(graph: &Graph<'_>, decoder: &Decoder<'_>, index: usize, cache: &Cache<'_>) -> Option<Self> {
        let conversion = conversion(graph, cache)?;
        let read = graph.uses(cache.written).find_map(|(node, _)| reading(graph, decoder, node));
        let (scales, value) = read.unwrap_or_default();
        let attention =
            value.and_then(|value| graph.uses(value).map(|(node, _)| node).find(|node| node.is("Attention")));
        Some(Self {
            cache: index,
            scales: scales.filter(|_| cache.element == ElementType::Int8),
            element: cache.element,
            part: cache.part,
            given: conversion.input(0)?.to_owned(),
            attention: attention.and_then(|node| {
                let scale = node.float("scale").ok()?;
                Some(Reader { query: node.input(0)?.to_owned(), scale })
            }),
        })
    }
}

/// Returns the node that converts the rows of a cache to its type.
fn conversion<'m>(graph: &Graph<'m>, cache: &Cache<'m>) -> Option<Node<'m>> {
    if !matches!(cache.style, WriterStyle::TensorScatter(_)) {
        return None;
    }
    let (node, _) = graph.producer(cache.writer?.input(1)?)?;
    let is_conversion = match cache.element {
        ElementType::Float16 | ElementType::BFloat16 => node.is("Cast"),
        ElementType::Int8 => node.is("QuantizeLinear") && graph.producer(node.input(1)?).is_some(),
        _ => false,
    };
    is_conversion.then_some(node)
}

/// Returns the cache of scales that a reader of a cache multiplies it with, and the value that attention reads.
fn reading<'m>(
    graph: &Graph<'m>,
    decoder: &Decoder<'m>,
    reader: Node<'m>,
) -> Option<(Option<usize>, Option<&'m str>)> {
    let scales = |name: &str| decoder.caches.iter().position(|cache| cache.written == name);
    if reader.is("DequantizeLinear") {
        return Some((scales(reader.input(1)?), reader.output(0)));
    }
    let cast = reader.output(0).filter(|_| reader.is("Cast"))?;
    let product = graph.uses(cast).map(|(node, _)| node).find(|node| node.is("Mul"));
    let Some(product) = product else { return Some((None, Some(cast))) };
    let other = product.inputs().flatten().find(|input| *input != cast)?;
    Some((scales(other), product.output(0)))
}

/// Examines the claims about these caches that the graph alone can prove.
pub(crate) fn examine(graph: &Graph<'_>, decoder: &Decoder<'_>, narrow: &[NarrowCache]) -> Vec<Check> {
    let codes: Vec<_> = narrow.iter().filter(|narrow| narrow.element == ElementType::Int8).collect();
    if codes.is_empty() {
        return Vec::new();
    }
    let failures = |of: &dyn Fn(&NarrowCache) -> Option<String>| {
        let failure = |narrow: &&NarrowCache| {
            let cache = Some(decoder.caches.get(narrow.cache)?.past.to_owned());
            of(narrow).map(|message| Failure { cache, ..Failure::new(message) })
        };
        codes.iter().filter_map(failure).collect::<Vec<_>>()
    };
    let keys = codes.iter().filter(|narrow| narrow.part == CachePart::Key);
    let rotated = keys.clone().filter(|key| rotation(graph, &key.given).is_some()).count();
    vec![
        Check::unless(
            "scales-with-codes",
            "The codes of every int8 cache are read with scales that are written into the same slots.",
            format!("write indices, mode, axis and capacity compared for {} pairs of caches", codes.len()),
            failures(&|narrow| apart(decoder, narrow)),
        ),
        Check::unless(
            "keys-and-queries-rotated",
            "Int8 keys and their queries are multiplied by the same matrix, or neither is.",
            format!("{rotated} of {} key caches are rotated", keys.count()),
            failures(&|narrow| rotated_apart(graph, narrow)),
        ),
    ]
}

/// Returns what differs between the writes of codes and scales.
fn apart(decoder: &Decoder<'_>, narrow: &NarrowCache) -> Option<String> {
    let Some(scales) = narrow.scales.and_then(|scales| decoder.caches.get(scales)) else {
        return Some("its codes are read without a cache of scales".to_owned());
    };
    let codes = decoder.caches.get(narrow.cache)?;
    let slots = |cache: &Cache<'_>| cache.writer.and_then(|writer| writer.input(2)).map(str::to_owned);
    let capacity = |cache: &Cache<'_>| match cache.capacity() {
        Dimension::Known(size) => Some(size),
        Dimension::Symbolic(_) | Dimension::Unknown => None,
    };
    let differs = if slots(codes) != slots(scales) {
        "other write indices"
    } else if codes.style != scales.style {
        "another mode"
    } else if codes.axis != scales.axis {
        "another axis"
    } else if capacity(codes) != capacity(scales) {
        "another capacity"
    } else {
        return None;
    };
    Some(format!("the scales {:?} have {differs}", scales.past))
}

fn rotated_apart(graph: &Graph<'_>, narrow: &NarrowCache) -> Option<String> {
    let query = &narrow.attention.as_ref().filter(|_| narrow.part == CachePart::Key)?.query;
    let [key, query] = [&narrow.given, query].map(|value| rotation(graph, value));
    let shown = |matrix: Option<&str>| matrix.map_or("nothing".to_owned(), |matrix| format!("{matrix:?}"));
    (key != query).then(|| format!("keys are multiplied by {}, and queries by {}", shown(key), shown(query)))
}

/// Returns the constant matrix that each row of a value has been multiplied by.
fn rotation<'m>(graph: &Graph<'m>, value: &str) -> Option<&'m str> {
    let (node, _) = graph.producer(value).filter(|(node, _)| node.is("MatMul"))?;
    node.input(1).filter(|matrix| graph.producer(matrix).is_none_or(|(node, _)| node.is("Constant")))
}
