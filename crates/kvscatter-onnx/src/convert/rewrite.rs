//! Builds the converted graph.

mod attention;

use std::collections::{BTreeMap, BTreeSet};

use kvscatter::ElementType;

use super::attention::{AttentionSites, MaskKind, ZeroAddition};
use super::caches::AXIS;
use super::exported::ExportedDecoder;
use super::fusion::FusedAttention;
use super::length::LengthReplacement;
use super::refusal::ConvertRefusal;
use super::rewriter::{Rewriter, StaticInputs};
use super::ring::Slots;
use super::rule::Rule;
use crate::decoder::{Cache, InputRole, WriterStyle};
use crate::edit::{Editor, NewNode, Origins};
use crate::fold::lowest;
use crate::proto::ModelProto;
use crate::{Dimension, OnnxError};

/// The exported value of the same elements that each new value replaces, by the name of the new one. Its rows may be
/// repeated for each sample.
pub(super) type Replaced<'m> = BTreeMap<String, &'m str>;

/// Rewrites the graph of a model. `proto` must be a copy of the exported model. The attention operations in
/// `fused` become one node each, and caches become rings as `slots` has them. Returns where the new nodes come
/// from, and what they replace.
///
/// # Errors
/// Returns [`ConvertRefusal::ScoresType`] if a mask cannot be created for scores, and the errors of the
/// editor.
pub(super) fn rewrite<'m>(
    exported: &ExportedDecoder<'_, 'm>,
    replacements: &[LengthReplacement<'m>],
    fused: &[FusedAttention<'_>],
    slots: Slots<'_>,
    proto: &mut ModelProto,
) -> Result<(StaticInputs, Origins, Replaced<'m>), OnnxError> {
    let mut editor = Editor::new(proto)?;
    let ExportedDecoder { decoder, inputs, padding, .. } = exported;
    let mut rewriter = Rewriter::new(&mut editor, decoder, inputs, slots, *padding);
    for cache in &exported.decoder.caches {
        rewrite_cache(&mut rewriter, cache, slots.capacity(cache.past))?;
    }
    rewrite_masks(&mut rewriter, &exported.sites)?;
    for node in &exported.attentions.nodes {
        attention::rewrite(&mut rewriter, node)?;
    }
    for attention in fused {
        attention::fuse(&mut rewriter, attention)?;
    }
    let mut replaced = Replaced::new();
    for replacement in replacements {
        let new = replace(&mut rewriter, replacement)?;
        match *replacement {
            LengthReplacement::Total { value, .. }
            | LengthReplacement::Positions { value, .. }
            | LengthReplacement::Columns { value, .. } => _ = replaced.insert(new, value),
            // They have a new axis of the samples.
            LengthReplacement::Past { .. } | LengthReplacement::Rows { .. } => {}
        }
    }
    if let Some(mask) = exported.decoder.input(InputRole::AttentionMask).map(|mask| mask.name) {
        rewriter.editor.set_dims(mask, &[rewriter.batch, Dimension::Known(exported.max_seq)])?;
        if !slots.rings.is_empty() {
            rewriter.editor.drop_unread(mask);
        }
    }
    if let Some(ids) = exported.decoder.input(InputRole::BlockIds).map(|ids| ids.name) {
        rewriter.editor.set_dims(ids, &[rewriter.batch, Dimension::Known(exported.max_seq)])?;
        rewriter.editor.drop_unread(ids);
    }
    for input in exported.decoder.inputs.iter().filter(|input| exported.decoder.is_unread(input.value.name)) {
        rewriter.editor.drop_unread(input.value.name);
    }
    let mut inputs = rewriter.into_inputs();
    let origins = editor.finish()?;
    let kept: BTreeSet<_> = proto.graph.input.iter().filter_map(|input| input.name.as_deref()).collect();
    inputs.attention_mask = inputs.attention_mask.filter(|mask| kept.contains(mask.as_str()));
    Ok((inputs, origins, replaced))
}

/// Declares the cache's size and replaces the `Concat` that appended to it.
fn rewrite_cache(
    rewriter: &mut Rewriter<'_, '_, '_>,
    cache: &Cache<'_>,
    slots: usize,
) -> Result<(), OnnxError> {
    let capacity = Dimension::Known(slots);
    let size = |(axis, &dim)| if axis == AXIS { capacity } else { dim };
    let dims: Vec<_> = cache.past_shape.iter().enumerate().map(size).collect();
    for name in [cache.past, cache.present] {
        rewriter.editor.set_dims(name, &dims)?;
    }
    let (WriterStyle::Concat, Some(writer), Some(update)) = (&cache.style, cache.writer, cache.update) else {
        return Ok(());
    };
    let written = writer.output(0).unwrap_or_default();
    if written != cache.present {
        // The nodes between the writer and the present would copy the cache, so the new write produces the
        // present directly.
        rewriter.editor.replace_uses(written, cache.present);
        if let Some(step) = rewriter.editor.producer(cache.present) {
            rewriter.editor.remove_node(step);
        }
    }
    rewriter.editor.replacing(writer.index());
    rewriter.scatter(cache.past, update, cache.present);
    Ok(())
}

/// Replaces the masks of every attention operation that consists of separate nodes.
fn rewrite_masks(rewriter: &mut Rewriter<'_, '_, '_>, sites: &AttentionSites<'_>) -> Result<(), OnnxError> {
    // The scores that each removed neutral node reads, by the name of its output.
    let mut passed: BTreeMap<&str, &str> = BTreeMap::new();
    for &ZeroAddition { node, scores, operand: _ } in &sites.neutral {
        let scores = passed.get(scores).copied().unwrap_or(scores);
        passed.insert(node.output(0).unwrap_or_default(), scores);
        rewriter.editor.remove_node(node.index());
    }
    // What takes the place of each masking node, because several attention operations may share one.
    let mut places: BTreeMap<usize, (bool, Rule)> = BTreeMap::new();
    for (site, (at, mask)) in
        sites.sites.iter().flat_map(|site| site.masks().iter().enumerate().map(move |mask| (site, mask)))
    {
        let hides = at == site.hiding();
        let bias = site.rule().bias.as_ref().filter(|_| at == site.rules.biased);
        let rule = Rule { bias: bias.cloned(), ..site.rule().clone() };
        let place = places.entry(mask.node.index()).or_insert_with(|| (hides, rule.clone()));
        if *place != (hides, rule) {
            return Err(mask.node.error(ConvertRefusal::SharedMask { value: mask.output.to_owned() }));
        }
        let mut output = mask.output.to_owned();
        if mask.kind == MaskKind::Absent {
            rewriter.editor.at(mask.node.index());
            output = rewriter.editor.fresh("masked");
            rewriter.editor.replace_uses(mask.output, &output);
        } else if rewriter.editor.producer(mask.output) == Some(mask.node.index()) {
            rewriter.editor.replacing(mask.node.index());
        } else {
            continue;
        }
        let scores = passed.get(mask.scores).copied().unwrap_or(mask.scores);
        let element = mask.element;
        let biased = match bias {
            None if !hides => {
                passed.insert(mask.output, scores);
                continue;
            }
            None => scores.to_owned(),
            Some(bias) => {
                let bias = rewriter.bias(bias, mask.layout, element)?;
                let sum = NewNode::new("Add", &[scores, &bias]);
                rewriter.editor.add(if hides { sum } else { sum.outputs(&[&output]) })
            }
        };
        if !hides {
            continue;
        }
        // Minus infinity is not used. If no slot is visible, as with padding on the left, it would make the whole
        // row NaN, and the next layer would write NaN into its cache.
        let filler = lowest(element).ok_or(ConvertRefusal::ScoresType { element })?;
        let filler = rewriter.editor.float(element, filler)?;
        let visible = rewriter.visible(mask.layout, site.rule())?;
        rewriter.editor.add(NewNode::new("Where", &[&visible, &biased, &filler]).outputs(&[&output]));
    }
    for (output, scores) in passed {
        rewriter.editor.replace_uses(output, scores);
    }
    Ok(())
}

/// Replaces a value, and returns the name of the new one.
fn replace(
    rewriter: &mut Rewriter<'_, '_, '_>,
    replacement: &LengthReplacement<'_>,
) -> Result<String, OnnxError> {
    let (value, element) = match *replacement {
        LengthReplacement::Total { value, element, .. }
        | LengthReplacement::Past { value, element }
        | LengthReplacement::Positions { value, element, .. } => (value, element),
        LengthReplacement::Columns { value, .. } | LengthReplacement::Rows { value, .. } => {
            (value, ElementType::Int64)
        }
    };
    if let Some(producer) = rewriter.editor.producer(value) {
        rewriter.editor.at(producer);
    }
    // The new value may depend on inputs of the old value, but not on the old value.
    let new = rewriter.editor.fresh("by_slot");
    rewriter.editor.replace_uses(value, &new);
    let last = match *replacement {
        LengthReplacement::Total { rank, .. } => {
            let capacity = rewriter.capacity()?;
            let shape = rewriter.editor.ints(&vec![1; rank])?;
            let capacity = rewriter.editor.node("Reshape", &[&capacity, &shape]);
            NewNode::cast(&capacity, element)
        }
        LengthReplacement::Past { .. } => {
            let past = rewriter.past()?;
            NewNode::cast(&past, element)
        }
        LengthReplacement::Positions { offset, .. } => {
            let mut positions = rewriter.positions()?;
            if offset != 0 {
                let offset = rewriter.editor.scalar_i64(offset)?;
                positions = rewriter.editor.node("Add", &[&positions, &offset]);
            }
            NewNode::cast(&positions, element)
        }
        LengthReplacement::Columns { of, .. } => {
            let positions = rewriter.positions()?;
            NewNode::new("GatherElements", &[of, &positions]).int("axis", 1)
        }
        LengthReplacement::Rows { table, .. } => {
            let positions = rewriter.positions()?;
            NewNode::new("Gather", &[table, &positions]).int("axis", 0)
        }
    };
    rewriter.editor.add(last.outputs(&[&new]));
    Ok(new)
}
