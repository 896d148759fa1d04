//! Caches that are cast between past and present.
//!
//! Tools that convert a model to 16 bits leave some layers in float32. The past of such a layer is widened
//! before the new rows are appended. There are two kinds.
//!
//! 1. *The present has the wide type.* The past is declared in the wide type as well, and is no longer cast.
//!    Widening is exact, so the decoder computes the same for every past that the exported one accepts.
//! 2. *The present is cast back to the type of the past.* The new rows are cast before they are appended, and
//!    the readers get the widened present. The cached rows keep their values, because widening and narrowing
//!    again is exact. The new rows are read as they are cached. In the exported decoder, only the next step
//!    reads them so.

use kvscatter::ElementType;

use crate::convert::pass::{Change, Subject};
use crate::decoder::Cache;
use crate::edit::{Editor, NewNode};
use crate::{Node, OnnxError};

/// A cache with casts between its past and its present.
struct CastCache {
    past: String,
    present: String,
    /// The value to which the new rows are appended.
    widened: String,
    update: String,
    /// The result of the node that appends.
    written: String,
    writer: usize,
    axis: i64,
    /// The type in which the rows are appended.
    wide: ElementType,
    /// The types to which the present is cast. There are none if it stays wide.
    after: Vec<ElementType>,
}

/// Gives past and present of each cache one type.
pub(in crate::convert) fn unify_types(subject: &Subject<'_, '_>) -> Result<Option<Change>, OnnxError> {
    let found: Vec<_> = subject.decoder.caches.iter().filter_map(CastCache::find).collect();
    if found.is_empty() {
        return Ok(None);
    }
    let mut model = subject.model.clone();
    let mut editor = Editor::new(model.proto_mut())?;
    for cache in &found {
        cache.form(&mut editor)?;
    }
    let origins = editor.finish()?;
    let what = format!("{} caches", found.len());
    Ok(Some(Change::new(model, origins).what(what).proof("widening is exact")))
}

impl CastCache {
    /// Returns `None` if the cache has no casts, or if one of them may change its values.
    fn find(cache: &Cache<'_>) -> Option<Self> {
        if cache.between.is_empty()
            || !cache.is_appended()
            || !cache.between.iter().all(|node| node.is("Cast"))
        {
            return None;
        }
        let writer = cache.writer?;
        // The nodes before the writer come first.
        let (before, after): (Vec<_>, Vec<_>) =
            cache.between.iter().partition(|node| node.index() < writer.index());
        let [before, after] =
            [before, after].map(|casts| casts.into_iter().map(target).collect::<Option<Vec<_>>>());
        let (before, mut after) = (before?, after?);
        let mut wide = cache.element;
        for element in before {
            if !holds(element, wide) {
                return None;
            }
            wide = element;
        }
        // A cast to the type that the value has already changes nothing.
        let mut element = wide;
        after.retain(|&to| std::mem::replace(&mut element, to) != to);
        let is_back =
            after.last() == Some(&cache.element) && after.iter().all(|&it| holds(it, cache.element));
        if !after.is_empty() && !is_back {
            return None;
        }
        Some(Self {
            past: cache.past.to_owned(),
            present: cache.present.to_owned(),
            widened: writer.input(0)?.to_owned(),
            update: cache.update?.to_owned(),
            written: cache.written.to_owned(),
            writer: writer.index(),
            axis: writer.attribute("axis")?.i?,
            wide,
            after,
        })
    }

    fn form(&self, editor: &mut Editor<'_>) -> Result<(), OnnxError> {
        if self.after.is_empty() {
            editor.replace_uses(&self.widened, &self.past);
            return editor.set_element(&self.past, self.wide);
        }
        if let Some(last) = editor.producer(&self.present) {
            editor.remove_node(last);
        }
        editor.replacing(self.writer);
        let mut update = self.update.clone();
        for &to in &self.after {
            update = editor.add(NewNode::cast(&update, to));
        }
        let widened = editor.add(NewNode::cast(&self.present, self.wide));
        editor.replace_uses(&self.written, &widened);
        let concat = NewNode::new("Concat", &[&self.past, &update]).int("axis", self.axis);
        editor.add(concat.outputs(&[&self.present]));
        Ok(())
    }
}

fn target(cast: &Node<'_>) -> Option<ElementType> {
    ElementType::from_onnx_code(i32::try_from(cast.attribute("to")?.i?).ok()?)
}

/// Returns `true` if every value of the second type is a value of the first one.
fn holds(wide: ElementType, narrow: ElementType) -> bool {
    use ElementType::{BFloat16, Float16, Float32, Float64};
    wide == narrow
        || matches!((wide, narrow), (Float32, Float16 | BFloat16) | (Float64, Float32 | Float16 | BFloat16))
}
