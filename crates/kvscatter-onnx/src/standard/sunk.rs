//! `GroupQueryAttention` with sinks, as separate nodes.
//!
//! A sink is a score of each head that has no value, so that weights of a row need not sum to 1. `Attention` has
//! no sink. The nodes append one column to the scores, and drop its weight after the softmax. Exporters of other
//! models write such nodes too. The conversion later replaces all of them by one `Attention` and a factor.

use kvscatter::ElementType;

use super::node::{Replacing, StandardEditor, no_form};
use crate::OnnxError;
use crate::edit::NewNode;
use crate::fold::{lowest, signed, to_float};

/// Adds the nodes. Queries, keys and values are `[batch, heads, tokens, head size]`, and the mask is true for a
/// visible slot.
pub(super) fn attention(
    standard: &mut StandardEditor<'_, '_>,
    old: &Replacing<'_>,
    [queries, keys, values]: [&str; 3],
    mask: &str,
) -> Result<(), OnnxError> {
    let element = old.element(0)?;
    let keys = appended(standard, old, 3, keys)?;
    let values = appended(standard, old, 4, values)?;
    let turned = standard.editor.add(NewNode::new("Transpose", &[&keys]).ints("perm", &[0, 1, 3, 2]));
    let scale = scale(standard, old)?;
    let queries_scaled = standard.editor.node("Mul", &[queries, &scale]);
    let mut scores = standard.editor.node("MatMul", &[&queries_scaled, &turned]);
    let cap = old.float("softcap", 0.0)?;
    if cap != 0.0 {
        let cap = standard.editor.float(element, f64::from(cap))?;
        let scaled = standard.editor.node("Div", &[&scores, &cap]);
        let bounded = standard.editor.node("Tanh", &[&scaled]);
        scores = standard.editor.node("Mul", &[&bounded, &cap]);
    }
    let hidden = lowest(element).ok_or_else(|| no_form(format!("a sink with scores of {element}")))?;
    let hidden = standard.editor.float(element, hidden)?;
    let masked = standard.editor.node("Where", &[mask, &scores, &hidden]);
    // Weights are computed in float32, as the operator computes them.
    let wide = ElementType::Float32;
    let masked = standard.editor.cast(&masked, element, wide);
    let sinks = sinks(standard, old, queries)?;
    let all = standard.editor.add(NewNode::new("Concat", &[&masked, &sinks]).int("axis", -1));
    let weights = standard.editor.add(NewNode::new("Softmax", &[&all]).int("axis", -1));
    let (zero, last) = (standard.editor.ints(&[0])?, standard.editor.ints(&[-1])?);
    let weights = standard.editor.node("Slice", &[&weights, &zero, &last, &last]);
    let weights = standard.editor.cast(&weights, wide, element);
    let attended = standard.editor.node("MatMul", &[&weights, &values]);
    let joined = standard.editor.join_heads(&attended)?;
    standard.named(joined, old.output(0));
    Ok(())
}

/// Appends rows to a past, and repeats the heads of the result for the queries that share them.
fn appended(
    standard: &mut StandardEditor<'_, '_>,
    old: &Replacing<'_>,
    past: usize,
    rows: &str,
) -> Result<String, OnnxError> {
    let concat = NewNode::new("Concat", &[old.input(past)?, rows]).int("axis", 2);
    let present = standard.named(concat, old.output(past.saturating_sub(2)));
    let (heads, kv_heads) = (old.int("num_heads", 0)?, old.int("kv_num_heads", 0)?);
    let shared = heads.checked_div(kv_heads).unwrap_or(1);
    if shared == 1 {
        return Ok(present);
    }
    let axis = standard.editor.ints(&[2])?;
    let each = standard.editor.node("Unsqueeze", &[&present, &axis]);
    let times = standard.editor.ints(&[1, 1, shared, 1, 1])?;
    let repeated = standard.editor.node("Expand", &[&each, &times]);
    let size = old.shape(past)?.last().copied().unwrap_or_default();
    let shape = standard.editor.ints(&[0, heads, -1, signed(size)])?;
    Ok(standard.editor.node("Reshape", &[&repeated, &shape]))
}

/// Returns the factor of the scores.
fn scale(standard: &mut StandardEditor<'_, '_>, old: &Replacing<'_>) -> Result<String, OnnxError> {
    let size = old.shape(3)?.last().copied().unwrap_or_default();
    let scale = old.scale()?.map_or_else(|| to_float(size).sqrt().recip(), f64::from);
    standard.editor.float(old.element(0)?, scale)
}

/// Adds the sinks of all rows, `[batch, heads, tokens, 1]`.
fn sinks(
    standard: &mut StandardEditor<'_, '_>,
    old: &Replacing<'_>,
    queries: &str,
) -> Result<String, OnnxError> {
    let wide = ElementType::Float32;
    let by_head = match old.optional(11) {
        None => standard.editor.float(wide, 0.0)?,
        Some(sinks) => {
            let sinks = standard.editor.cast(sinks, old.element(11)?, wide);
            let shape = standard.editor.ints(&[1, -1, 1, 1])?;
            standard.editor.node("Reshape", &[&sinks, &shape])
        }
    };
    let rows = standard.editor.add(NewNode::new("Shape", &[queries]).int("end", 3));
    let one = standard.editor.ints(&[1])?;
    let shape = standard.editor.add(NewNode::new("Concat", &[&rows, &one]).int("axis", 0));
    Ok(standard.editor.node("Expand", &[&by_head, &shape]))
}
