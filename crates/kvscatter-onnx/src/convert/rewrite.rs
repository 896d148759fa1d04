//! The converted graph.

use std::collections::BTreeMap;

use kvscatter::ElementType;

use super::caches::AXIS;
use super::length::Replacement;
use super::sites::Neutral;
use super::{Exported, Refusal, metadata, visibility};
use crate::decoder::{Cache, Role, Style};
use crate::edit::{Editor, NewNode};
use crate::proto::ModelProto;
use crate::{Dimension, Error};

/// The names of the inputs that were added.
#[derive(Debug)]
pub(super) struct Rewritten {
    pub(super) write_indices: String,
    pub(super) nonpad_kv_seqlen: Option<String>,
}

/// An editor, and the values that all caches and attentions share, each made when it is first asked for.
pub(super) struct Rewriter<'e, 'p, 'm> {
    pub(super) editor: &'e mut Editor<'p>,
    exported: &'e Exported<'e, 'm>,
    /// The batch, as the first cache declares it.
    batch: Dimension<'m>,
    write_indices: String,
    nonpad_kv_seqlen: Option<String>,
    capacity: Option<String>,
    positions: Option<String>,
    /// `[batch, new tokens, slots]`.
    visible: Option<String>,
}

/// Rewrites the graph of a model that is a copy of the exported one.
///
/// # Errors
/// [`Refusal::ScoresType`]; those of the editor.
pub(super) fn rewrite<'m>(
    exported: &Exported<'_, 'm>,
    replacements: &[Replacement<'m>],
    proto: &mut ModelProto,
) -> Result<Rewritten, Error> {
    let mut editor = Editor::new(proto)?;
    let batch = exported.decoder.caches.first().and_then(|cache| cache.past_shape.first().copied());
    let batch = batch.unwrap_or(Dimension::Unknown);
    let write_indices = editor.add_input("write_indices", ElementType::Int64, &[batch]);
    let mut rewriter = Rewriter {
        editor: &mut editor,
        exported,
        batch,
        write_indices,
        nonpad_kv_seqlen: None,
        capacity: None,
        positions: None,
        visible: None,
    };
    for cache in &exported.decoder.caches {
        rewriter.cache(cache)?;
    }
    rewriter.sites()?;
    exported.attentions.rewrite(&mut rewriter)?;
    for replacement in replacements {
        rewriter.replace(replacement)?;
    }
    if let Some(mask) = exported.decoder.input(Role::AttentionMask).map(|mask| mask.name) {
        rewriter.editor.set_dims(mask, &[batch, Dimension::Known(exported.max_seq)])?;
    }
    let rewritten =
        Rewritten { write_indices: rewriter.write_indices, nonpad_kv_seqlen: rewriter.nonpad_kv_seqlen };
    metadata::write(exported, &rewritten, &mut editor);
    editor.finish()?;
    Ok(rewritten)
}

impl<'m> Rewriter<'_, '_, 'm> {
    /// Declares the cache's size, and exchanges the `Concat` that appended to it.
    fn cache(&mut self, cache: &Cache<'m>) -> Result<(), Error> {
        let capacity = Dimension::Known(self.exported.max_seq);
        let size = |(axis, &dim)| if axis == AXIS { capacity } else { dim };
        let dims: Vec<_> = cache.past_shape.iter().enumerate().map(size).collect();
        for name in [cache.past, cache.present] {
            self.editor.set_dims(name, &dims)?;
        }
        let (Style::Concat, Some(writer), Some(update)) = (&cache.style, cache.writer, cache.update) else {
            return Ok(());
        };
        let written = writer.output(0).unwrap_or_default();
        if written != cache.present {
            // What hands the cache on would be a copy of it: the write makes the output itself.
            self.editor.replace_uses(written, cache.present);
            while let Some(step) = self.editor.producer(cache.present) {
                self.editor.remove_node(step);
            }
        }
        self.editor.remove_node(writer.index());
        self.scatter(cache.past, update, cache.present);
        Ok(())
    }

    /// Writes an update into a past.
    pub(super) fn scatter(&mut self, past: &str, update: &str, present: &str) {
        let inputs = [past, update, &self.write_indices];
        #[expect(clippy::as_conversions, clippy::cast_possible_wrap, reason = "a constant")]
        let axis = AXIS as i64;
        self.editor.add(
            NewNode::new("TensorScatter", &inputs)
                .outputs(&[present])
                .int("axis", axis)
                .string("mode", "linear"),
        );
    }

    /// Exchanges the masks of every attention that is spelt out.
    fn sites(&mut self) -> Result<(), Error> {
        // What a node that is taken out handed on.
        let mut passed: BTreeMap<&str, &str> = BTreeMap::new();
        for &Neutral { node, scores, operand: _ } in &self.exported.sites.neutral {
            let scores = passed.get(scores).copied().unwrap_or(scores);
            passed.insert(node.output(0).unwrap_or_default(), scores);
            self.editor.remove_node(node.index());
        }
        let sites = &self.exported.sites.sites;
        for (at, mask) in sites.iter().flat_map(|site| site.masks.iter().enumerate()) {
            // A node may mask for several attentions.
            if self.editor.producer(mask.output) != Some(mask.node.index()) {
                continue;
            }
            self.editor.remove_node(mask.node.index());
            let scores = passed.get(mask.scores).copied().unwrap_or(mask.scores);
            if at > 0 {
                passed.insert(mask.output, scores);
                continue;
            }
            let element = mask.element;
            let filler = visibility::filler(element).ok_or(Refusal::ScoresType { element })?;
            let filler = self.editor.float(element, filler)?;
            let visible = self.visible(mask.rank)?;
            self.editor.node_with_outputs("Where", &[&visible, scores, &filler], &[mask.output]);
        }
        for (output, scores) in passed {
            self.editor.replace_uses(output, scores);
        }
        Ok(())
    }

    fn replace(&mut self, replacement: &Replacement<'m>) -> Result<(), Error> {
        let (value, element) = match *replacement {
            Replacement::Total { value, element, .. } | Replacement::Positions { value, element } => {
                (value, element)
            }
            Replacement::Columns { value, .. } => (value, ElementType::Int64),
        };
        // What is made for it may read what the value was made of, but not the value.
        let new = self.editor.fresh("by_slot");
        self.editor.replace_uses(value, &new);
        let last = match *replacement {
            Replacement::Total { rank, .. } => {
                let capacity = self.capacity()?;
                let shape = self.editor.ints(&vec![1; rank])?;
                let capacity = self.editor.node("Reshape", &[&capacity, &shape]);
                NewNode::new("Cast", &[&capacity]).int("to", i64::from(element.onnx_code()))
            }
            Replacement::Positions { .. } => {
                let positions = self.positions()?;
                NewNode::new("Cast", &[&positions]).int("to", i64::from(element.onnx_code()))
            }
            Replacement::Columns { of, .. } => {
                let positions = self.positions()?;
                NewNode::new("GatherElements", &[of, &positions]).int("axis", 1)
            }
        };
        self.editor.add(last.outputs(&[&new]));
        Ok(())
    }

    /// How many slots a cache has, as a scalar that is read from the cache.
    fn capacity(&mut self) -> Result<String, Error> {
        if let Some(capacity) = &self.capacity {
            return Ok(capacity.clone());
        }
        let past = self.exported.decoder.caches.first().map_or("", |cache| cache.past);
        let capacity = self.size(past, AXIS)?;
        Ok(self.capacity.insert(capacity).clone())
    }

    /// The slot that each new token is written to: `write_indices[b] + i`, int64 `[batch, new tokens]`.
    fn positions(&mut self) -> Result<String, Error> {
        if let Some(positions) = &self.positions {
            return Ok(positions.clone());
        }
        let update = || self.exported.decoder.caches.iter().find_map(|cache| Some((cache.update?, AXIS)));
        let (counted, axis) = self.exported.inputs.counts_new_tokens().or_else(update).unwrap_or_default();
        let new = self.size(counted, axis)?;
        let tokens = self.range(&new)?;
        let one = self.editor.ints(&[1])?;
        let first = self.editor.node("Unsqueeze", &[&self.write_indices, &one]);
        let positions = self.editor.node("Add", &[&first, &tokens]);
        Ok(self.positions.insert(positions).clone())
    }

    /// Which slots each new token sees, for scores of this rank: bool `[batch, 1.., new tokens, slots]`.
    pub(super) fn visible(&mut self, rank: usize) -> Result<String, Error> {
        let visible = match &self.visible {
            Some(visible) => visible.clone(),
            None => {
                let visible = self.visible_to_tokens()?;
                self.visible.insert(visible).clone()
            }
        };
        let heads: Vec<i64> = (1..).take(rank.saturating_sub(3)).collect();
        if heads.is_empty() {
            return Ok(visible);
        }
        let heads = self.editor.ints(&heads)?;
        Ok(self.editor.node("Unsqueeze", &[&visible, &heads]))
    }

    fn visible_to_tokens(&mut self) -> Result<String, Error> {
        let capacity = self.capacity()?;
        let slots = self.range(&capacity)?;
        let positions = self.positions()?;
        let two = self.editor.ints(&[2])?;
        let positions = self.editor.node("Unsqueeze", &[&positions, &two]);
        let causal = self.editor.node("LessOrEqual", &[&slots, &positions]);
        let Some(mask) = self.exported.decoder.input(Role::AttentionMask).map(|mask| mask.name) else {
            return Ok(causal);
        };
        let to = i64::from(ElementType::Bool.onnx_code());
        let real = self.editor.add(NewNode::new("Cast", &[mask]).int("to", to));
        let one = self.editor.ints(&[1])?;
        let real = self.editor.node("Unsqueeze", &[&real, &one]);
        Ok(self.editor.node("And", &[&causal, &real]))
    }

    /// The input that says how many slots are in use after this step.
    pub(super) fn nonpad_kv_seqlen(&mut self) -> String {
        if let Some(name) = &self.nonpad_kv_seqlen {
            return name.clone();
        }
        let name = self.editor.add_input("nonpad_kv_seqlen", ElementType::Int64, &[self.batch]);
        self.nonpad_kv_seqlen.insert(name).clone()
    }

    /// A dimension of a value, as a scalar.
    fn size(&mut self, value: &str, axis: usize) -> Result<String, Error> {
        let axis = i64::try_from(axis).unwrap_or_default();
        let shape = NewNode::new("Shape", &[value]).int("start", axis).int("end", axis.saturating_add(1));
        let shape = self.editor.add(shape);
        let zero = self.editor.ints(&[0])?;
        Ok(self.editor.node("Squeeze", &[&shape, &zero]))
    }

    /// `0..limit`.
    fn range(&mut self, limit: &str) -> Result<String, Error> {
        let (zero, one) = (self.editor.scalar_i64(0)?, self.editor.scalar_i64(1)?);
        Ok(self.editor.node("Range", &[&zero, limit, &one]))
    }
}
