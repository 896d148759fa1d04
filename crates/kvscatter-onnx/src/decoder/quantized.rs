//! Finds quantized caches, which consist of two tensors: codes, and one scale for each token and head.
//!
//! Attention reads the product of both, `Mul(Cast(codes), scales)` or `DequantizeLinear(codes, scales)`. Nothing else
//! reads them, and both are written at the same slots.

use std::collections::BTreeMap;

use kvscatter::ElementType;

use super::cache::{Cache, QuantizedPart};
use super::roles::is_float;
use crate::{Dimension, Graph, Node};

/// The input of `TensorScatter` with the slots.
const WRITE_INDICES: usize = 2;

/// Marks the codes and the scales of quantized caches.
pub(super) fn find<'m>(graph: &Graph<'m>, caches: &mut [Cache<'m>]) {
    let by_written: BTreeMap<_, _> =
        caches.iter().enumerate().map(|(at, cache)| (cache.written, at)).collect();
    let pairs = caches.iter().enumerate().filter_map(|(at, codes)| {
        let (read, scales) = product(graph, codes)?;
        let scales_at = *by_written.get(scales)?;
        let scales = caches.get(scales_at)?;
        let is_pair = are_codes_and_scales(codes, scales) && only_reader(graph, scales.written).is_some();
        is_pair.then_some((read, [(at, codes.past), (scales_at, scales.past)]))
    });
    for (read, [(codes_at, codes), (scales_at, scales)]) in pairs.collect::<Vec<_>>() {
        let parts =
            [(codes_at, QuantizedPart::Codes { scales }), (scales_at, QuantizedPart::Scales { codes })];
        for (at, part) in parts {
            if let Some(cache) = caches.get_mut(at) {
                (cache.quantized, cache.read) = (Some(part), read);
            }
        }
    }
}

/// Returns the product of codes and scales, and the scales.
fn product<'m>(graph: &Graph<'m>, codes: &Cache<'m>) -> Option<(&'m str, &'m str)> {
    if codes.element != ElementType::Int8 {
        return None;
    }
    let (reader, slot) = only_reader(graph, codes.written)?;
    if reader.is("DequantizeLinear") && reader.input(2).is_none() {
        return Some((reader.output(0)?, reader.input(1).filter(|_| slot == 0)?));
    }
    let (product, slot) = only_reader(graph, reader.output(0).filter(|_| reader.is("Cast"))?)?;
    let other = if slot == 0 { 1 } else { 0 };
    Some((product.output(0)?, product.input(other).filter(|_| product.is("Mul"))?))
}

/// Returns the only node that reads the elements of a value, with the index of its input.
fn only_reader<'m>(graph: &Graph<'m>, value: &str) -> Option<(Node<'m>, usize)> {
    let mut readers = graph.uses(value).filter(|(reader, _)| !reader.reads_shape());
    let (reader, slot) = readers.next()?;
    slot.map(|slot| (reader, slot)).filter(|_| readers.next().is_none())
}

/// Returns `true` if two caches are written in the same way, and the second one has a float for each row of the first.
fn are_codes_and_scales(codes: &Cache<'_>, scales: &Cache<'_>) -> bool {
    let [written_at, scales_written_at] = [codes, scales].map(|cache| cache.writer?.input(WRITE_INDICES));
    let rows = match (codes.past_shape.split_last(), scales.past_shape.split_last()) {
        (Some((_, codes)), Some((Dimension::Known(1), scales))) => codes == scales,
        _ => false,
    };
    let is_along_rows = codes.axis == scales.axis && codes.axis.saturating_add(1) < codes.past_shape.len();
    codes.is_static()
        && codes.style == scales.style
        && written_at == scales_written_at
        && rows
        && is_along_rows
        && is_float(scales.element)
}
