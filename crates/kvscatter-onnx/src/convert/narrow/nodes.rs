//! Writes the nodes of narrower caches.

use std::collections::BTreeMap;

use kvscatter::ElementType;
use kvscatter::quantize::{MIN_SCALE, SCALE_FACTOR, rotation_element};

use super::sites::{NarrowSite, NarrowSites};
use crate::convert::cache_type::CacheType;
use crate::edit::{Editor, NewNode};
use crate::fold::signed;
use crate::onnx_attention::{KEYS, QUERIES, VALUES};
use crate::{Dimension, Node, OnnxError};

/// The values that the new nodes compute.
pub(super) struct NarrowNodes {
    /// In the order of the caches.
    pub(super) caches: Vec<NarrowValues>,
    /// The rotated queries of each `Attention` node that reads rotated keys, by the exported queries.
    pub(super) queries: BTreeMap<String, String>,
}

/// The values that replace one cache.
pub(super) struct NarrowValues {
    /// The new rows as they are quantized or cast.
    pub(super) rows: String,
    /// What is written: codes or halves.
    pub(super) stored: String,
    pub(super) scale: Option<ScaleNames>,
    /// What attention reads.
    pub(super) read: String,
}

/// The names of the cache of scales.
pub(super) struct ScaleNames {
    pub(super) past: String,
    pub(super) update: String,
    pub(super) present: String,
}

impl NarrowNodes {
    /// Changes the caches and the attention that reads them.
    ///
    /// # Errors
    /// Returns the errors of the editor.
    pub(super) fn write(editor: &mut Editor<'_>, sites: &NarrowSites<'_, '_>) -> Result<Self, OnnxError> {
        let mut written = Self { caches: Vec::new(), queries: BTreeMap::new() };
        for site in &sites.caches {
            editor.replacing(site.writer.index());
            let values = match sites.asked {
                CacheType::Int8 => quantize(editor, site)?,
                _ => cast(editor, site, sites.asked.element())?,
            };
            written.caches.push(values);
        }
        let by_present: BTreeMap<_, _> = sites
            .caches
            .iter()
            .zip(&written.caches)
            .map(|(site, values)| (site.cache.present, (site, values.read.as_str())))
            .collect();
        for reader in &sites.readers {
            let mut proto = reader.proto().clone();
            editor.at(reader.index());
            for slot in [KEYS, VALUES] {
                let (Some(input), Some((site, read))) = (
                    proto.input.get_mut(slot),
                    reader.input(slot).and_then(|present| by_present.get(present)),
                ) else {
                    continue;
                };
                (*read).clone_into(input);
                let Some(queries) = reader.input(QUERIES).filter(|_| site.is_rotated) else { continue };
                let rotated = match written.queries.get(queries) {
                    Some(rotated) => rotated.clone(),
                    None => rotate_queries(editor, reader, queries, site)?,
                };
                if let Some(input) = proto.input.get_mut(QUERIES) {
                    rotated.clone_into(input);
                }
                written.queries.insert(queries.to_owned(), rotated);
            }
            editor.replace_node(reader.index(), NewNode::from(proto));
        }
        Ok(written)
    }
}

/// Casts new rows to the type of the cache, and what attention reads back.
fn cast(
    editor: &mut Editor<'_>,
    site: &NarrowSite<'_, '_>,
    element: ElementType,
) -> Result<NarrowValues, OnnxError> {
    let stored = editor.add(NewNode::cast(site.update, element));
    scatter(editor, site, element, &stored)?;
    let read = editor.add(NewNode::cast(site.cache.present, site.cache.element));
    Ok(NarrowValues { rows: site.update.to_owned(), stored, scale: None, read })
}

/// Quantizes new rows, with one scale each, and multiplies codes and scales for attention.
fn quantize(editor: &mut Editor<'_>, site: &NarrowSite<'_, '_>) -> Result<NarrowValues, OnnxError> {
    const SINGLE: ElementType = ElementType::Float32;
    let NarrowSite { cache, update, size, is_rotated, .. } = *site;
    let mut rows = editor.cast(update, cache.element, SINGLE);
    if is_rotated {
        rows = rotate(editor, &rows, size)?;
    }
    let [factor, least] = [SCALE_FACTOR, MIN_SCALE].map(f64::from);
    let (factor, least) = (editor.float(SINGLE, factor)?, editor.float(SINGLE, least)?);
    let magnitudes = editor.node("Abs", &[&rows]);
    let last = editor.ints(&[-1])?;
    let largest = editor.add(NewNode::new("ReduceMax", &[&magnitudes, &last]).int("keepdims", 1));
    let scaled = editor.node("Mul", &[&largest, &factor]);
    let scale = editor.add(NewNode::new("Max", &[&scaled, &least]).called("scale"));
    let int8 = ElementType::Int8;
    let codes = NewNode::new("QuantizeLinear", &[&rows, &scale]).called("codes").int("axis", 3);
    let codes = codes.int("block_size", signed(size)).int("output_dtype", i64::from(int8.onnx_code()));
    let stored = editor.add(codes);
    scatter(editor, site, int8, &stored)?;

    let past = editor.add_input(&format!("{}_scale", cache.past), SINGLE, &of_scales(&cache.past_shape));
    let present = editor.fresh(&format!("{}_scale", cache.present));
    add_scatter(editor, &site.writer, [&past, &scale], &present);
    let declared = cache.present_info.shape.as_deref().unwrap_or(&cache.past_shape);
    editor.add_output(&present, SINGLE, &of_scales(declared));

    let numbers = editor.add(NewNode::cast(cache.present, SINGLE));
    let read = editor.node("Mul", &[&numbers, &present]);
    let read = editor.cast(&read, SINGLE, cache.element);
    Ok(NarrowValues { rows, stored, scale: Some(ScaleNames { past, update: scale, present }), read })
}

/// Returns the shape of the scales of a cache.
fn of_scales<'m>(dims: &[Dimension<'m>]) -> Vec<Dimension<'m>> {
    let rows = dims.split_last().map_or(&[][..], |(_, rows)| rows);
    rows.iter().copied().chain([Dimension::Known(1)]).collect()
}

/// Declares the type of a cache, and writes its rows as the exported node does.
fn scatter(
    editor: &mut Editor<'_>,
    site: &NarrowSite<'_, '_>,
    element: ElementType,
    stored: &str,
) -> Result<(), OnnxError> {
    let NarrowSite { cache, writer, .. } = site;
    for name in [cache.past, cache.present] {
        editor.set_element(name, element)?;
    }
    add_scatter(editor, writer, [cache.past, stored], cache.present);
    Ok(())
}

/// Adds a `TensorScatter` with the slots and attributes of another one.
fn add_scatter(editor: &mut Editor<'_>, like: &Node<'_>, [past, update]: [&str; 2], present: &str) {
    let (slots, attributes) = (like.input(2).unwrap_or_default(), like.proto().attribute.iter().cloned());
    let inputs = [past, update, slots];
    let inputs = if slots.is_empty() { &inputs[..2] } else { &inputs };
    editor.add(NewNode::new("TensorScatter", inputs).outputs(&[present]).attributes(attributes));
}

/// Multiplies each row of a float32 value by the matrix of a rotation.
fn rotate(editor: &mut Editor<'_>, rows: &str, size: usize) -> Result<String, OnnxError> {
    let element = |row, column| f64::from(rotation_element(size, row, column));
    let matrix: Vec<_> =
        (0..size).flat_map(|row| (0..size).map(move |column| element(row, column))).collect();
    let matrix = editor.floats(ElementType::Float32, vec![size, size], &matrix)?;
    Ok(editor.add(NewNode::new("MatMul", &[rows, &matrix]).called("rotated")))
}

/// Returns the number of heads of queries `[batch, tokens, heads * head size]`, or `None` for queries
/// `[batch, heads, tokens, head size]`. Only the first ones need an attribute with the number.
pub(super) fn flat_heads(reader: &Node<'_>) -> Option<i64> {
    reader.attribute("q_num_heads").and_then(|heads| heads.i)
}

/// Rotates the queries of an `Attention` node.
fn rotate_queries(
    editor: &mut Editor<'_>,
    reader: &Node<'_>,
    queries: &str,
    site: &NarrowSite<'_, '_>,
) -> Result<String, OnnxError> {
    let (element, size) = (site.cache.element, signed(site.size));
    let heads = flat_heads(reader);
    let mut rows = editor.cast(queries, element, ElementType::Float32);
    if let Some(heads) = heads {
        let shape = editor.ints(&[0, 0, heads, size])?;
        rows = editor.node("Reshape", &[&rows, &shape]);
    }
    rows = rotate(editor, &rows, site.size)?;
    if let Some(heads) = heads {
        let shape = editor.ints(&[0, 0, heads.saturating_mul(size)])?;
        rows = editor.node("Reshape", &[&rows, &shape]);
    }
    Ok(editor.cast(&rows, ElementType::Float32, element))
}
