//! The pass that gives static caches a narrower type.
//!
//! A half is cast before it is written, and cast back before `Attention` reads it. Int8 has one float32 scale for each
//! token and head. Codes and scales are two caches, which two `TensorScatter` nodes write at the same slots. Keys and
//! queries are rotated before, which changes no score, so that no channel dominates the scale of a row.
//!
//! The new nodes are evaluated on rows of numbers and compared with [`kvscatter::quantize`]. All other nodes stay as
//! they are.

mod nodes;
mod proof;
mod sites;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use super::cache_type::CacheType;
use super::metadata;
use super::pass::{Change, Subject, at_origin};
use super::report::{CacheReport, NarrowCaches};
use super::ring::Slots;
use super::static_caches::bytes;
use crate::OnnxError;
use crate::decoder::Decoder;
use crate::edit::Editor;

use nodes::NarrowNodes;
use sites::NarrowSites;
pub(super) use sites::PASS;

/// Gives the caches the type that the options ask for.
pub(super) fn narrow_caches(subject: &Subject<'_, '_>) -> Result<Option<Change>, OnnxError> {
    let Subject { model, graph, decoder, options, .. } = *subject;
    let Some(cache_type) = options.cache_type else { return Ok(None) };
    let sites = NarrowSites::find(graph, decoder, cache_type, options.rotation)?;
    if sites.caches.is_empty() {
        return Ok(None);
    }
    let mut narrow = model.clone();
    let mut editor = Editor::new(narrow.proto_mut())?;
    let written = NarrowNodes::write(&mut editor, &sites)?;
    let origins = editor.finish()?;
    let finished = narrow.graph()?;
    let proof = proof::check(graph, &finished, &sites, &written)
        .map_err(|error| at_origin(error, &origins, graph))?;
    // Sessions find the caches of the converted model in this way.
    let narrow_decoder = Decoder::from_graph(&finished)?;
    let report = report(&sites, &written, &narrow_decoder, options.max_seq);
    let pairs = metadata::pairs(&narrow_decoder);
    if let Some(caches) = &report.narrow {
        metadata::write_narrow(&pairs, caches, narrow.proto_mut());
    }
    let what = format!("{} caches to {cache_type}", sites.caches.len());
    let change = Change::new(narrow, origins).what(what).proof(proof);
    Ok(Some(Change { narrowed: Some(report), ..change }))
}

fn report(
    sites: &NarrowSites<'_, '_>,
    written: &NarrowNodes,
    decoder: &Decoder<'_>,
    max_seq: usize,
) -> CacheReport {
    let slots = Slots::linear(max_seq);
    let bytes_per_slot = bytes(decoder, slots, |cost| cost.per_token);
    let linear_bytes = |slot: u64| u64::try_from(max_seq).ok().and_then(|slots| slot.checked_mul(slots));
    let scales = sites.caches.iter().zip(&written.caches);
    let scales: BTreeMap<_, _> = scales
        .filter_map(|(site, written)| {
            Some((site.cache.past.to_owned(), written.scale.as_ref()?.past.clone()))
        })
        .collect();
    let keys = || sites.caches.iter().filter(|site| site.is_key && sites.asked == CacheType::Int8);
    CacheReport {
        bytes_per_slot,
        bytes_per_sample: bytes(decoder, slots, |cost| cost.static_size),
        linear_bytes_per_sample: bytes_per_slot.and_then(linear_bytes),
        narrow: Some(NarrowCaches {
            cache_type: sites.asked,
            count: sites.caches.len(),
            scales,
            rotated: keys().filter(|site| site.is_rotated).count(),
            unrotated: keys()
                .filter(|site| sites.rotates && !site.is_rotated)
                .map(|site| site.size)
                .collect(),
        }),
        ..CacheReport::default()
    }
}
