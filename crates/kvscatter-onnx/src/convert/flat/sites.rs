//! The caches that become flat, the attention that reads them, and the nodes that replace theirs.

use std::collections::BTreeMap;

use crate::convert::caches::{AXIS, RANK};
use crate::convert::form::answer;
use crate::convert::refusal::ConvertRefusal;
use crate::decoder::Cache;
use crate::edit::{Editor, NewNode};
use crate::fold::{Fold, signed};
use crate::onnx_attention::{KEYS, PAST_KEYS, PAST_VALUES, QUERIES, VALUES};
use crate::{Dimension, Graph, Node, OnnxError};

pub(in crate::convert) const PASS: &str = "flat caches";

/// The order of axes that moves the heads after the tokens, and back.
const BY_TOKEN: [i64; RANK] = [0, 2, 1, 3];

/// The axis of the slots in a flat cache.
const FLAT_AXIS: i64 = 1;

/// A cache that becomes flat.
pub(super) struct FlatCache<'d, 'm> {
    pub(super) cache: &'d Cache<'m>,
    pub(super) writer: Node<'m>,
    pub(super) update: &'m str,
    pub(super) heads: usize,
    pub(super) size: usize,
}

/// An `Attention` node that reads flat caches.
pub(super) struct FlatReader<'m> {
    pub(super) node: Node<'m>,
    /// The number of heads of the queries, and of the keys and values.
    pub(super) heads: [usize; 2],
    /// The size of the heads of keys, and of values.
    pub(super) sizes: [usize; 2],
    /// Whether the queries are `[batch, heads, tokens, head size]`.
    pub(super) is_by_head: bool,
}

impl<'d, 'm> FlatCache<'d, 'm> {
    pub(super) fn new(cache: &'d Cache<'m>, fold: &mut Fold<'m>) -> Result<Self, OnnxError> {
        let refusal = |reason| ConvertRefusal::FlatForm { past: cache.past.to_owned(), reason };
        let (Some(writer), Some(update)) = (cache.writer, cache.update) else {
            return Err(refusal("no node writes it").into());
        };
        if !cache.is_written_alone() || cache.axis != AXIS {
            return Err(writer.error(refusal("TensorScatter does not write it alone along axis 2")));
        }
        let &[_, heads, _, size] = fold.shape(update)? else {
            return Err(writer.error(refusal("its new rows do not have 4 dimensions")));
        };
        Ok(Self { cache, writer, update, heads, size })
    }

    /// Declares the flat cache, and writes flat rows to it. Returns their name.
    pub(super) fn write(&self, editor: &mut Editor<'_>) -> Result<String, OnnxError> {
        let Self { cache, writer, update, heads, size } = *self;
        let row = heads.saturating_mul(size);
        let present = cache.present_info.shape.as_deref().unwrap_or(&cache.past_shape);
        for (name, dims) in [(cache.past, cache.past_shape.as_slice()), (cache.present, present)] {
            let dim = |axis: usize| dims.get(axis).copied().unwrap_or(Dimension::Unknown);
            editor.set_dims(name, &[dim(0), dim(AXIS), Dimension::Known(row)])?;
        }
        editor.replacing(writer.index());
        let rows = flattened(editor, update, row)?;
        let slots = writer.input(2).unwrap_or_default();
        let inputs = [cache.past, &rows, slots];
        let inputs = if slots.is_empty() { &inputs[..2] } else { &inputs };
        let scatter = NewNode::new("TensorScatter", inputs).outputs(&[cache.present]);
        let attributes = writer.proto().attribute.iter().cloned();
        editor.add(scatter.attributes(attributes).int("axis", FLAT_AXIS));
        Ok(rows)
    }

    /// Gives a node that asks for the shape of the cache the shape that it had before.
    pub(super) fn answer(&self, node: &Node<'_>, editor: &mut Editor<'_>) -> Result<(), OnnxError> {
        let Self { cache, heads, size, .. } = *self;
        editor.at(node.index());
        let flat = node.input(0).unwrap_or(cache.past);
        let [batch, slots] = [(0, 1), (1, 2)].map(|(start, end)| {
            editor.add(NewNode::new("Shape", &[flat]).int("start", start).int("end", end))
        });
        let (heads, size) = (editor.ints(&[signed(heads)])?, editor.ints(&[signed(size)])?);
        let shape = NewNode::new("Concat", &[&batch, &heads, &slots, &size]).int("axis", 0);
        let shape = editor.add(shape);
        answer(node, &shape, editor)
    }
}

/// Returns the nodes that ask for the shape of a cache.
///
/// # Errors
/// Returns [`ConvertRefusal::FlatReader`], wrapped with a node that asks for it in another way than `Shape`.
pub(super) fn shapes<'c, 'd, 'm>(
    graph: &Graph<'m>,
    caches: &'c [FlatCache<'d, 'm>],
) -> Result<Vec<(Node<'m>, &'c FlatCache<'d, 'm>)>, OnnxError> {
    let mut found = Vec::new();
    for flat in caches {
        let uses = [flat.cache.past, flat.cache.present].into_iter().flat_map(|value| graph.uses(value));
        for (node, _) in uses.filter(|(node, _)| node.reads_shape()) {
            if !node.is("Shape") {
                return Err(unflat(flat.cache, &node));
            }
            found.push((node, flat));
        }
    }
    Ok(found)
}

/// Adds a value `[batch, heads, tokens, head size]` as `[batch, tokens, heads * head size]`.
fn flattened(editor: &mut Editor<'_>, value: &str, row: usize) -> Result<String, OnnxError> {
    let by_token = editor.add(NewNode::new("Transpose", &[value]).ints("perm", &BY_TOKEN));
    let shape = editor.ints(&[0, 0, signed(row)])?;
    Ok(editor.add(NewNode::new("Reshape", &[&by_token, &shape]).called("flat")))
}

/// Finds the attention that reads the caches, perhaps after a cast to another type, and the results of these casts.
///
/// # Errors
/// Returns [`ConvertRefusal::FlatReader`], wrapped with another node that reads a cache.
pub(super) fn readers<'m>(
    graph: &Graph<'m>,
    caches: &[FlatCache<'_, 'm>],
    fold: &mut Fold<'m>,
) -> Result<(Vec<FlatReader<'m>>, Vec<String>), OnnxError> {
    let (mut found, mut read, mut casts) = (BTreeMap::new(), BTreeMap::new(), Vec::new());
    for flat in caches {
        let mut open = vec![flat.cache.present];
        while let Some(value) = open.pop() {
            read.insert(value, flat);
            let asking = graph.uses(value).find(|(reader, _)| reader.reads_shape());
            if let Some((node, _)) = asking.filter(|_| value != flat.cache.present) {
                return Err(unflat(flat.cache, &node));
            }
            for (reader, slot) in graph.uses(value).filter(|(reader, _)| !reader.reads_shape()) {
                let appends = [PAST_KEYS, PAST_VALUES].iter().any(|&slot| reader.input(slot).is_some());
                match reader.output(0) {
                    Some(cast) if reader.is("Cast") && value == flat.cache.present => {
                        casts.push(cast.to_owned());
                        open.push(cast);
                    }
                    _ if reader.is("Attention") && matches!(slot, Some(KEYS | VALUES)) && !appends => {
                        found.insert(reader.index(), reader);
                    }
                    _ => return Err(unflat(flat.cache, &reader)),
                }
            }
        }
    }
    let reader = |node: Node<'m>| {
        let [keys, values] = [KEYS, VALUES].map(|slot| node.input(slot).and_then(|name| read.get(name)));
        let (Some(keys), Some(values)) = (keys, values) else {
            let cache = keys.or(values).map(|flat| flat.cache);
            return Err(
                cache.map_or_else(|| node.error(ConvertRefusal::Subgraph), |cache| unflat(cache, &node))
            );
        };
        if node.outputs().count() != 1 {
            return Err(node.error(ConvertRefusal::AttentionForm { what: "a second output" }));
        }
        let sizes = [keys.size, values.size];
        let (queries, is_by_head) = match *fold.shape(node.input(QUERIES).unwrap_or_default())? {
            [_, heads, _, _] => (heads, true),
            [_, _, row] => (row.checked_div(keys.size).unwrap_or_default(), false),
            _ => return Err(unflat(keys.cache, &node)),
        };
        Ok(FlatReader { node, heads: [queries, keys.heads], sizes, is_by_head })
    };
    Ok((found.into_values().map(reader).collect::<Result<_, _>>()?, casts))
}

/// Returns the error about a node that cannot read a flat cache.
fn unflat(cache: &Cache<'_>, reader: &Node<'_>) -> OnnxError {
    reader.error(ConvertRefusal::FlatReader { present: cache.present.to_owned() })
}

impl FlatReader<'_> {
    pub(super) fn write(&self, editor: &mut Editor<'_>) -> Result<(), OnnxError> {
        let Self { ref node, heads: [queries, keys], sizes: [size, value_size], is_by_head } = *self;
        let (mut proto, result) = (node.proto().clone(), node.output(0).unwrap_or_default());
        editor.replacing(node.index());
        if let Some(input) = proto.input.get_mut(QUERIES).filter(|_| is_by_head) {
            *input = flattened(editor, input, queries.saturating_mul(size))?;
        }
        if is_by_head {
            proto.output = vec![editor.fresh(&format!("{result}_flat"))];
            proto.name = None;
        }
        let attended = NewNode::from(proto);
        let attended = attended.int("q_num_heads", signed(queries)).int("kv_num_heads", signed(keys));
        let attended = editor.add(attended);
        if is_by_head {
            let shape = editor.ints(&[0, 0, signed(queries), signed(value_size)])?;
            let by_token = editor.node("Reshape", &[&attended, &shape]);
            let by_head = NewNode::new("Transpose", &[&by_token]).ints("perm", &BY_TOKEN);
            editor.add(by_head.outputs(&[result]));
        }
        Ok(())
    }
}
