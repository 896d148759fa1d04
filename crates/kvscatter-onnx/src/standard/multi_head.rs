//! `MultiHeadAttention` as `Attention`.

use kvscatter::ElementType;

use super::attention::Appending;
use super::node::{Replacing, StandardEditor, no_form};
use crate::OnnxError;
use crate::edit::NewNode;
use crate::fold::signed;

/// The inputs that have a standard form.
const INPUTS: [(usize, &str); 8] = [
    (0, "query"),
    (1, "key"),
    (2, "value"),
    (3, "bias"),
    (4, "key_padding_mask"),
    (5, "attention_bias"),
    (6, "past_key"),
    (7, "past_value"),
];

/// Replaces the operator.
pub(super) fn multi_head_attention(
    standard: &mut StandardEditor<'_, '_>,
    old: &Replacing<'_>,
) -> Result<(), OnnxError> {
    let refused = |what: &str| Err(no_form(format!("{what} of MultiHeadAttention")));
    old.only(
        &INPUTS,
        &[(0, "output"), (1, "present_key"), (2, "present_value")],
        &["num_heads", "scale", "unidirectional", "mask_filter_value"],
    )?;
    if old.optional(6).is_some() != old.has_output(1) || old.optional(7).is_some() != old.has_output(2) {
        return refused("a past without a present");
    }
    if old.optional(1).is_none() || old.optional(2).is_none() {
        return refused("packed queries, keys and values");
    }
    let heads = old.int("num_heads", 0)?;
    let projected = match old.optional(3) {
        None => [old.input(0)?, old.input(1)?, old.input(2)?].map(str::to_owned),
        Some(bias) => biased(standard, old, bias)?,
    };
    let mut rows = [const { String::new() }; 3];
    for (slot, (row, value)) in rows.iter_mut().zip(&projected).enumerate() {
        *row = match old.shape(slot)?.len() {
            4 => value.clone(),
            _ => standard.editor.by_head(value, heads)?,
        };
    }
    let attention = Appending {
        rows,
        pasts: [old.optional(6), old.optional(7)],
        presents: [old.output(1), old.output(2)],
        mask: mask(standard, old)?,
        output: old.output(0),
    };
    let (scale, is_causal) = (old.scale()?, old.flag("unidirectional")?);
    attention.add(standard, |node| {
        let node = scale.map_or(node.clone(), |scale| node.float("scale", scale));
        if is_causal { node.int("is_causal", 1) } else { node }
    })
}

/// Adds the bias of the projections, which has one part for each of queries, keys and values.
fn biased(
    standard: &mut StandardEditor<'_, '_>,
    old: &Replacing<'_>,
    bias: &str,
) -> Result<[String; 3], OnnxError> {
    let mut sizes = Vec::new();
    for slot in 0..3 {
        let &[_, _, hidden] = old.shape(slot)? else {
            return Err(no_form("a bias with keys of rank 4 of MultiHeadAttention"));
        };
        sizes.push(signed(hidden));
    }
    let sizes = standard.editor.ints(&sizes)?;
    let parts = ["queries_bias", "keys_bias", "values_bias"].map(|part| standard.editor.fresh(part));
    let node = NewNode::new("Split", &[bias, &sizes]).int("axis", 0);
    standard.editor.add(node.outputs(&parts.each_ref().map(String::as_str)));
    let mut biased = [const { String::new() }; 3];
    for (slot, (value, part)) in biased.iter_mut().zip(&parts).enumerate() {
        *value = standard.editor.node("Add", &[old.input(slot)?, part]);
    }
    Ok(biased)
}

/// Adds the numbers that are added to the scores: those of `attention_bias`, and a very negative one for keys
/// that are padding.
fn mask(standard: &mut StandardEditor<'_, '_>, old: &Replacing<'_>) -> Result<Option<String>, OnnxError> {
    let added = old.optional(5);
    let Some(padding) = old.optional(4) else { return Ok(added.map(str::to_owned)) };
    if old.shape(4)?.len() != 2 {
        return Err(no_form("a key_padding_mask that is not [batch, keys] of MultiHeadAttention"));
    }
    let element = old.element(0)?;
    let filler = f64::from(old.float("mask_filter_value", -10000.0)?);
    let padded =
        standard.shared(&["padding", padding, &filler.to_string(), &element.to_string()], |standard| {
            let editor = &mut standard.editor;
            let is_real = editor.add(NewNode::cast(padding, ElementType::Bool));
            let axes = editor.ints(&[1, 2])?;
            let is_real = editor.node("Unsqueeze", &[&is_real, &axes]);
            let (zero, filler) = (editor.float(element, 0.0)?, editor.float(element, filler)?);
            Ok(editor.node("Where", &[&is_real, &zero, &filler]))
        })?;
    Ok(Some(match added {
        None => padded,
        Some(added) => standard.editor.node("Add", &[added, &padded]),
    }))
}
