//! The pass that gives static caches the layout `[batch, slots, heads * head size]`.
//!
//! New rows are transposed before they are written. `Attention` takes keys and values of this layout if the queries
//! have it too, so the queries and the result are transposed around the node. No node moves a whole cache.
//!
//! The new rows and the new attention are evaluated and compared with those before.

mod proof;
mod sites;
#[cfg(test)]
mod tests;

use super::cache_layout::CacheLayout;
use super::caches::{RANK, check_readers};
use super::metadata;
use super::pass::{Change, Subject, at_origin};
use crate::OnnxError;
use crate::decoder::{Cache, Decoder};
use crate::edit::Editor;

pub(super) use sites::PASS;
use sites::{FlatCache, readers, shapes};

/// Gives the caches the flat layout if the options ask for it.
pub(super) fn flatten_caches(subject: &Subject<'_, '_>) -> Result<Option<Change>, OnnxError> {
    let Subject { model, graph, decoder, options, .. } = *subject;
    if options.layout != CacheLayout::Flat {
        return Ok(None);
    }
    check_readers(graph, decoder)?;
    let mut fold = subject.small_step()?;
    let is_flat = |cache: &&Cache<'_>| cache.past_shape.len() == RANK;
    let caches = decoder.caches.iter().filter(is_flat).map(|cache| FlatCache::new(cache, &mut fold));
    let caches = caches.collect::<Result<Vec<_>, _>>()?;
    if caches.is_empty() {
        return Ok(None);
    }
    let shapes = shapes(graph, &caches)?;
    let (readers, mut moved) = readers(graph, &caches, &mut fold)?;
    let mut flat = model.clone();
    let mut editor = Editor::new(flat.proto_mut())?;
    let rows = caches.iter().map(|cache| cache.write(&mut editor)).collect::<Result<Vec<_>, _>>()?;
    readers.iter().try_for_each(|reader| reader.write(&mut editor))?;
    shapes.iter().try_for_each(|(node, flat)| flat.answer(node, &mut editor))?;
    let origins = editor.finish()?;
    let finished = flat.graph()?;
    let operators = &model.proto().opset_import;
    let proof = proof::check(graph, &finished, (&caches, &rows), &readers, &mut fold, operators)
        .map_err(|error| at_origin(error, &origins, graph))?;
    Decoder::from_graph(&finished)?;
    metadata::write_flat(flat.proto_mut());
    moved.extend(caches.iter().flat_map(|flat| [flat.cache.past, flat.cache.present]).map(str::to_owned));
    let change = Change::new(flat, origins).what(format!("{} caches to 3 dimensions", caches.len()));
    Ok(Some(Change { moved: moved.into_iter().collect(), ..change }.proof(proof)))
}
