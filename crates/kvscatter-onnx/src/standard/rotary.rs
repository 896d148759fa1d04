//! Rotary position embeddings.

use super::node::{Replacing, StandardEditor, no_form};
use crate::OnnxError;
use crate::edit::NewNode;
use crate::fold::signed;

/// Replaces ONNX Runtime's `RotaryEmbedding`. ONNX has the positions after the tables.
pub(super) fn rotary(standard: &mut StandardEditor<'_, '_>, old: &Replacing<'_>) -> Result<(), OnnxError> {
    old.only(
        &[(0, "input"), (1, "position_ids"), (2, "cos_cache"), (3, "sin_cache")],
        &[(0, "output")],
        &["interleaved", "num_heads", "rotary_embedding_dim", "is_packed_batching", "scale"],
    )?;
    if old.int("is_packed_batching", 0)? != 0 {
        return Err(no_form("is_packed_batching of RotaryEmbedding"));
    }
    // ONNX Runtime documents the scale, and its CPU kernel ignores it.
    if old.float("scale", 1.0)? != 1.0 {
        return Err(no_form("a scale other than 1 of RotaryEmbedding"));
    }
    let input = old.input(0)?;
    let positions = positions(standard, old)?;
    let (cos, sin) = (old.input(2)?, old.input(3)?);
    let columns = old.shape(2)?.last().copied().unwrap_or_default();
    let rotated = signed(columns.saturating_mul(2));
    if ![0, rotated].contains(&old.int("rotary_embedding_dim", 0)?) {
        return Err(no_form("a rotary_embedding_dim of RotaryEmbedding that its tables do not have"));
    }
    let mut node = NewNode::new("RotaryEmbedding", &[input, cos, sin, &positions]);
    let heads = match (old.shape(0)?, old.int("num_heads", 0)?) {
        (&[_, _, hidden], 0) => hidden.checked_div(columns.saturating_mul(2)).map(count).transpose()?,
        (&[_, _, _], heads) => Some(heads),
        _ => None,
    };
    if let Some(heads) = heads {
        node = node.int("num_heads", heads);
    }
    if let Some(dim) = partial(columns, head_size(old, heads)?) {
        node = node.int("rotary_embedding_dim", dim);
    }
    if old.flag("interleaved")? {
        node = node.int("interleaved", 1);
    }
    standard.named(node, old.output(0));
    Ok(())
}

/// Returns the attribute `rotary_embedding_dim` if only a part of each head is rotated.
pub(super) fn partial(columns: usize, head_size: usize) -> Option<i64> {
    let rotated = columns.saturating_mul(2);
    if rotated < head_size { i64::try_from(rotated).ok() } else { None }
}

fn head_size(old: &Replacing<'_>, heads: Option<i64>) -> Result<usize, OnnxError> {
    Ok(match *old.shape(0)? {
        [_, _, hidden] => {
            let heads = heads.and_then(|heads| usize::try_from(heads).ok()).unwrap_or_default();
            hidden.checked_div(heads).unwrap_or_default()
        }
        [.., size] => size,
        [] => 0,
    })
}

/// Returns the positions `[batch, tokens]`. A single number is the position of the first token of every
/// sample.
fn positions(standard: &mut StandardEditor<'_, '_>, old: &Replacing<'_>) -> Result<String, OnnxError> {
    let positions = old.input(1)?;
    if old.shape(1)?.len() == 2 {
        return Ok(positions.to_owned());
    }
    let input = old.input(0)?;
    let tokens_at = if old.shape(0)?.len() == 3 { 1 } else { 2 };
    standard.shared(&["rotary positions", positions, input], |standard| {
        let editor = &mut standard.editor;
        let size =
            |at: i64| NewNode::new("Shape", &[input]).int("start", at).int("end", at.saturating_add(1));
        let (batch, tokens) = (editor.add(size(0)), editor.add(size(tokens_at)));
        let none = editor.ints(&[0])?;
        let count = editor.node("Squeeze", &[&tokens, &none]);
        let steps = editor.range(&count)?;
        let places = editor.node("Add", &[positions, &steps]);
        let shape = editor.add(NewNode::new("Concat", &[&batch, &tokens]).int("axis", 0));
        Ok(editor.node("Expand", &[&places, &shape]))
    })
}

fn count(heads: usize) -> Result<i64, OnnxError> {
    i64::try_from(heads).map_err(|_| no_form("the number of heads of RotaryEmbedding"))
}
