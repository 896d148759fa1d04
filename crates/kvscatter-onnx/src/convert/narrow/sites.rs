//! The caches that become narrower, and the attention that reads them.

use std::collections::BTreeMap;

use kvscatter::ElementType;
use kvscatter::quantize::rotation_block;

use crate::convert::cache_type::CacheType;
use crate::convert::caches::{AXIS, RANK, check_readers};
use crate::convert::refusal::ConvertRefusal;
use crate::decoder::{Cache, Decoder};
use crate::onnx_attention::{KEYS, PAST_KEYS, PAST_VALUES, VALUES};
use crate::{Graph, Node, OnnxError};

pub(in crate::convert) const PASS: &str = "narrow caches";

/// The size of the largest head that becomes int8. Its rotation takes 4 MiB.
const MAX_HEAD_SIZE: usize = 1024;

/// The bytes of a scale.
const SCALE_BYTES: usize = 4;

/// What becomes narrower in a decoder.
pub(super) struct NarrowSites<'d, 'm> {
    pub(super) asked: CacheType,
    /// Whether the options ask for a rotation.
    pub(super) rotates: bool,
    pub(super) caches: Vec<NarrowSite<'d, 'm>>,
    /// The `Attention` nodes that read these caches.
    pub(super) readers: Vec<Node<'m>>,
}

/// A cache that becomes narrower.
pub(super) struct NarrowSite<'d, 'm> {
    pub(super) cache: &'d Cache<'m>,
    pub(super) writer: Node<'m>,
    pub(super) update: &'m str,
    /// The size of a row. It is 0 unless the cache becomes int8.
    pub(super) size: usize,
    pub(super) is_key: bool,
    /// Whether rows are rotated.
    pub(super) is_rotated: bool,
}

impl<'d, 'm> NarrowSites<'d, 'm> {
    /// Finds the caches that are wider than the type that is asked for.
    ///
    /// # Errors
    /// Returns [`ConvertRefusal::CacheNarrow`], [`ConvertRefusal::CacheForm`] or [`ConvertRefusal::CacheReader`], most
    /// of them wrapped with a node, and the errors of [`check_readers`].
    pub(super) fn find(
        graph: &Graph<'m>,
        decoder: &'d Decoder<'m>,
        asked: CacheType,
        rotates: bool,
    ) -> Result<Self, OnnxError> {
        let (mut caches, mut readers) = (Vec::new(), BTreeMap::new());
        for cache in &decoder.caches {
            let element = asked.element();
            if cache.element == element && asked != CacheType::Int8 {
                continue;
            }
            if width(cache.element).is_none_or(|wide| width(element).is_some_and(|narrow| wide <= narrow)) {
                let past = cache.past.to_owned();
                return Err(ConvertRefusal::CacheNarrow { past, element: cache.element, asked }.into());
            }
            let mut found = NarrowSite::new(cache, asked)?;
            for (reader, slot) in graph.uses(cache.written).filter(|(reader, _)| !reader.reads_shape()) {
                found.is_key |= slot == Some(KEYS);
                let is_attention = reader.is("Attention") && matches!(slot, Some(KEYS | VALUES));
                let appends = [PAST_KEYS, PAST_VALUES].iter().any(|&slot| reader.input(slot).is_some());
                if !is_attention || appends || found.is_key != (slot == Some(KEYS)) {
                    let present = cache.present.to_owned();
                    return Err(reader.error(ConvertRefusal::CacheReader { present, asked }));
                }
                readers.insert(reader.index(), reader);
            }
            found.is_rotated = rotates && found.is_key && rotation_block(found.size).is_some();
            caches.push(found);
        }
        check_readers(graph, decoder)?;
        Ok(Self { asked, rotates, caches, readers: readers.into_values().collect() })
    }
}

impl<'d, 'm> NarrowSite<'d, 'm> {
    /// Checks how a cache is written, and its form.
    fn new(cache: &'d Cache<'m>, asked: CacheType) -> Result<Self, OnnxError> {
        let refusal = |reason| ConvertRefusal::CacheForm { past: cache.past.to_owned(), asked, reason };
        let (Some(writer), Some(update)) = (cache.writer, cache.update) else {
            return Err(refusal("no node writes it").into());
        };
        let refused = |reason| Err(writer.error(refusal(reason)));
        if !cache.is_written_alone() {
            return refused("other nodes are between its past, its TensorScatter and its present");
        }
        let site = Self { cache, writer, update, size: 0, is_key: false, is_rotated: false };
        if asked != CacheType::Int8 {
            return Ok(site);
        }
        let size = match (cache.axis, cache.past_shape.as_slice()) {
            (AXIS, [_, _, _, size]) if cache.past_shape.len() == RANK => size.size(),
            _ => {
                return refused(
                    "its layout is not [batch, heads, slots, head size], which a scale for each token and head needs. Use float16",
                );
            }
        };
        let Some(size) = size.filter(|size| (1..=MAX_HEAD_SIZE).contains(size)) else {
            return refused("its head size must be known and from 1 to 1024. Use float16");
        };
        let before = width(cache.element).and_then(|bytes| bytes.checked_mul(size));
        if before.is_none_or(|before| before <= size.saturating_add(SCALE_BYTES)) {
            return refused(
                "int8 codes and scales of heads this small take as many bytes as the cache. Use float16",
            );
        }
        Ok(Self { size, ..site })
    }
}

/// Returns the bytes of an element, or `None` for a type that attention does not compute with.
fn width(element: ElementType) -> Option<usize> {
    match element {
        ElementType::Float64 => Some(8),
        ElementType::Float32 => Some(4),
        ElementType::Float16 | ElementType::BFloat16 => Some(2),
        ElementType::Int8 => Some(1),
        _ => None,
    }
}
