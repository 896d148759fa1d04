//! Writes `Attention` nodes that read static caches.

use kvscatter::ElementType;

use crate::OnnxError;
use crate::convert::attention::{AttentionNode, OperandSource};
use crate::convert::fusion::FusedAttention;
use crate::convert::limits::SlotLimits;
use crate::convert::rewriter::{Rewriter, over_caches};
use crate::convert::rule::Rule;
use crate::onnx_attention::{KEYS, PAST_KEYS, PAST_VALUES, QUERIES, VALUES};

/// Replaces attention that consists of separate nodes by one node.
pub(super) fn fuse(rewriter: &mut Rewriter<'_, '_, '_>, fused: &FusedAttention<'_>) -> Result<(), OnnxError> {
    if let Some(last) = rewriter.editor.producer(fused.output) {
        rewriter.editor.replacing(last);
    }
    let [keys, _] = fused.presents();
    let (mask, lengths) = mask_and_lengths(rewriter, keys, &fused.rule, fused.element)?;
    fused.write(rewriter.editor, &mask, &lengths)
}

/// Makes an `Attention` node read the static caches. If it appends rows, a `TensorScatter` for keys and one for values
/// write them before.
pub(super) fn rewrite(
    rewriter: &mut Rewriter<'_, '_, '_>,
    attention: &AttentionNode<'_>,
) -> Result<(), OnnxError> {
    let node = &attention.node;
    let input = |slot| node.input(slot).unwrap_or_default();
    let heads = |name| node.attribute(name).and_then(|attribute| attribute.i).unwrap_or_default();
    let (of_queries, of_keys) = (heads("q_num_heads"), heads("kv_num_heads"));
    rewriter.editor.replacing(node.index());
    if let OperandSource::Appended(presents) = attention.source {
        for ((slot, past), present) in [(KEYS, PAST_KEYS), (VALUES, PAST_VALUES)].into_iter().zip(presents) {
            let update = match attention.is_flat {
                true => rewriter.editor.by_head(input(slot), of_keys)?,
                false => input(slot).to_owned(),
            };
            rewriter.scatter(input(past), &update, present);
        }
    }
    let output = node.output(0).unwrap_or_default();
    let mut dropped = SlotLimits::ATTRIBUTES.to_vec();
    let (OperandSource::Appended(operands)
    | OperandSource::Presents(operands)
    | OperandSource::Computed(operands)) = attention.source;
    let is_flat = attention.is_flat && !matches!(attention.source, OperandSource::Computed(_));
    let mut queries = input(QUERIES).to_owned();
    if is_flat {
        queries = rewriter.editor.by_head(&queries, of_queries)?;
        dropped.extend(["q_num_heads", "kv_num_heads"]);
    }
    let kept = node.proto().attribute.iter();
    let kept = kept.filter(|it| it.name.as_deref().is_none_or(|name| !dropped.contains(&name)));
    let [keys, values] = operands;
    let (rule, element) = (attention.rules.rule(), attention.element);
    let (mask, lengths) = mask_and_lengths(rewriter, keys, rule, element)?;
    let new = over_caches([&queries, keys, values], &mask, &lengths).attributes(kept.cloned());
    if !is_flat {
        rewriter.editor.add(new.outputs(&[output]));
        return Ok(());
    }
    let by_head = rewriter.editor.add(new.called("attention"));
    let joined = rewriter.editor.join_heads(&by_head)?;
    rewriter.editor.add(joined.outputs(&[output]));
    Ok(())
}

/// Adds the mask of an `Attention` to static caches of which this is the one with the keys, and the number of slots in
/// use. Returns the names.
fn mask_and_lengths(
    rewriter: &mut Rewriter<'_, '_, '_>,
    keys: &str,
    rule: &Rule,
    element: ElementType,
) -> Result<(String, String), OnnxError> {
    Ok(match rewriter.ring_of(keys) {
        None => (rewriter.mask(rule, element)?, rewriter.nonpad_kv_seqlen()),
        Some(ring) => (rewriter.ring_mask(ring)?, rewriter.ring_lengths(ring)?),
    })
}
