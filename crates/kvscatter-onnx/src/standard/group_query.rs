//! `GroupQueryAttention` as `RotaryEmbedding` and `Attention`.
//!
//! The operator derives all positions from two inputs. `seqlens_k` is the number of tokens of each sample
//! after the step, less 1. `total_sequence_length` is the largest of these numbers, and it equals the number of
//! new tokens in the first run, whose tokens then begin at slot 0. Both are kept in the new nodes, so that the
//! conversion checks what an exporter computes them from.
//!
//! A layer without new keys and values reads the cache of another layer, as some layers of Gemma 4 do.

use kvscatter::ElementType;

use super::attention::Appending;
use super::node::{Replacing, StandardEditor, no_form};
use super::rotary::partial;
use super::sunk;
use crate::edit::NewNode;
use crate::{Graph, Node, OnnxError};

/// The inputs that have a standard form.
const INPUTS: [(usize, &str); 14] = [
    (0, "query"),
    (1, "key"),
    (2, "value"),
    (3, "past_key"),
    (4, "past_value"),
    (5, "seqlens_k"),
    (6, "total_sequence_length"),
    (7, "cos_cache"),
    (8, "sin_cache"),
    (POSITIONS, "position_ids"),
    (10, "attention_bias"),
    (11, "head_sink"),
    (14, "q_norm_weight"),
    (15, "k_norm_weight"),
];

/// The attributes that have a standard form, or no effect on a graph without the inputs that they describe.
const ATTRIBUTES: [&str; 17] = [
    "num_heads",
    "kv_num_heads",
    "scale",
    "softcap",
    "local_window_size",
    "do_rotary",
    "rotary_interleaved",
    "smooth_softmax",
    "sliding_window_cache",
    "causal",
    "qk_output",
    "qk_norm_epsilon",
    "q_norm_epsilon",
    "k_norm_epsilon",
    "kv_cache_bit_width",
    "k_quant_type",
    "v_quant_type",
];

/// The index of the input with positions.
const POSITIONS: usize = 9;

/// Refuses a `GroupQueryAttention` whose positions the graph computes. In a first run the operator uses only the
/// first of them, as an offset. Positions that a caller feeds are consecutive, so all of them can be used.
pub(super) fn check_positions(node: &Node<'_>, graph: &Graph<'_>) -> Result<(), OnnxError> {
    let positions = node.input(POSITIONS).filter(|_| node.op_type() == "GroupQueryAttention");
    match positions {
        Some(positions) if !graph.input_names().any(|name| name == positions) => {
            Err(no_form("position_ids of GroupQueryAttention that the graph computes"))
        }
        _ => Ok(()),
    }
}

/// Replaces the operator.
pub(super) fn group_query_attention(
    standard: &mut StandardEditor<'_, '_>,
    old: &Replacing<'_>,
) -> Result<(), OnnxError> {
    check(old)?;
    let (heads, kv_heads) = (old.int("num_heads", 0)?, old.int("kv_num_heads", 0)?);
    let step = GroupQueryStep::add(standard, old)?;
    let attention = if is_shared(old) {
        shared(standard, old, heads, &step)?
    } else {
        let [queries, keys, values] = rows(standard, old, heads, kv_heads)?;
        let queries = positioned(standard, old, &queries, (14, "q_norm_epsilon"), &step)?;
        let keys = positioned(standard, old, &keys, (15, "k_norm_epsilon"), &step)?;
        let mask = step.mask(standard, old)?;
        if has_sink(old)? {
            return sunk::attention(standard, old, [&queries, &keys, &values], &mask);
        }
        Appending {
            rows: [queries, keys, values],
            pasts: [old.optional(3), old.optional(4)],
            presents: [old.output(1), old.output(2)],
            mask: Some(mask),
            output: old.output(0),
        }
    };
    let (scale, cap) = (old.scale()?, old.float("softcap", 0.0)?);
    attention.add(standard, |node| {
        let node = scale.map_or(node.clone(), |scale| node.float("scale", scale));
        if cap == 0.0 { node } else { node.float("softcap", cap) }
    })
}

/// Returns `true` if a part of the weights of each head goes to a sink.
fn has_sink(old: &Replacing<'_>) -> Result<bool, OnnxError> {
    Ok(old.optional(11).is_some() || old.int("smooth_softmax", 0)? == 1)
}

/// Returns `true` if the keys and values have no rows. The past is then the present of another layer, which has
/// appended the rows of this step.
fn is_shared(old: &Replacing<'_>) -> bool {
    [1, 2].into_iter().all(|slot| old.shape(slot).is_ok_and(|shape| shape.get(1) == Some(&0)))
}

/// Returns the attention to the cache of another layer, which has no past. Its presents are copies.
fn shared<'a>(
    standard: &mut StandardEditor<'_, '_>,
    old: &Replacing<'a>,
    heads: i64,
    step: &GroupQueryStep,
) -> Result<Appending<'a>, OnnxError> {
    let queries = standard.editor.by_head(old.input(0)?, heads)?;
    let queries = positioned(standard, old, &queries, (14, "q_norm_epsilon"), step)?;
    let (keys, values) = (old.input(3)?, old.input(4)?);
    for (cache, present) in [(keys, old.output(1)), (values, old.output(2))] {
        if !present.is_empty() {
            standard.named(NewNode::new("Identity", &[cache]), present);
        }
    }
    Ok(Appending {
        rows: [queries, keys.to_owned(), values.to_owned()],
        pasts: [None; 2],
        presents: [""; 2],
        mask: Some(step.mask(standard, old)?),
        output: old.output(0),
    })
}

/// Refuses what has no standard form.
fn check(old: &Replacing<'_>) -> Result<(), OnnxError> {
    let refused = |what: &str| Err(no_form(format!("{what} of GroupQueryAttention")));
    for (slot, what) in [(12, "a quantized cache"), (13, "a quantized cache"), (16, "query_seqlens")] {
        if old.optional(slot).is_some() {
            return refused(what);
        }
    }
    old.only(&INPUTS, &[(0, "output"), (1, "present_key"), (2, "present_value")], &ATTRIBUTES)?;
    if old.int("causal", 1)? == 0 {
        return refused("causal = 0");
    }
    // The operator's window is an int32.
    match old.int("local_window_size", -1)? {
        -1 => {}
        size if size > 0 && i32::try_from(size).is_ok() => {}
        size => return refused(&format!("local_window_size = {size}")),
    }
    if !(-1..=1).contains(&old.int("smooth_softmax", 0)?) {
        return refused("a smooth_softmax other than 0 and 1");
    }
    if has_sink(old)? && old.optional(10).is_some() {
        return refused("a sink beside attention_bias");
    }
    if has_sink(old)? && (old.optional(3).is_none() || old.optional(4).is_none()) {
        return refused("a sink without a past");
    }
    if is_shared(old) {
        return if has_sink(old)? { refused("a sink over the cache of another layer") } else { Ok(()) };
    }
    if old.optional(3).is_some() != old.has_output(1) || old.optional(4).is_some() != old.has_output(2) {
        return refused("a past without a present");
    }
    Ok(())
}

/// Adds the new queries, keys and values, `[batch, heads, tokens, head size]`.
fn rows(
    standard: &mut StandardEditor<'_, '_>,
    old: &Replacing<'_>,
    heads: i64,
    kv_heads: i64,
) -> Result<[String; 3], OnnxError> {
    let query = old.input(0)?;
    let parts = match (old.optional(1), old.optional(2)) {
        (Some(key), Some(value)) => [
            standard.editor.split_heads(query, heads)?,
            standard.editor.split_heads(key, kv_heads)?,
            standard.editor.split_heads(value, kv_heads)?,
        ],
        (None, None) => {
            // A row has all heads of queries, then of keys, then of values.
            let all = standard.editor.split_heads(query, heads.saturating_add(kv_heads.saturating_mul(2)))?;
            let sizes = standard.editor.ints(&[heads, kv_heads, kv_heads])?;
            let parts = ["queries", "keys", "values"].map(|part| standard.editor.fresh(part));
            let node = NewNode::new("Split", &[&all, &sizes]).int("axis", 2);
            standard.editor.add(node.outputs(&parts.each_ref().map(String::as_str)));
            parts
        }
        _ => return Err(no_form("a key without a value of GroupQueryAttention")),
    };
    Ok(parts.map(|part| standard.editor.exchange_heads_and_tokens(&part)))
}

/// Normalizes and rotates queries or keys.
fn positioned(
    standard: &mut StandardEditor<'_, '_>,
    old: &Replacing<'_>,
    rows: &str,
    (norm, epsilon): (usize, &str),
    step: &GroupQueryStep,
) -> Result<String, OnnxError> {
    let mut rows = rows.to_owned();
    if let Some(weight) = old.optional(norm) {
        let default = old.float("qk_norm_epsilon", 1e-6)?;
        let node = NewNode::new("RMSNormalization", &[&rows, weight]);
        rows = standard.editor.add(node.float("epsilon", old.float(epsilon, default)?));
    }
    if !old.flag("do_rotary")? {
        return Ok(rows);
    }
    let columns = old.shape(7)?.last().copied().unwrap_or_default();
    let mut node = NewNode::new("RotaryEmbedding", &[&rows, old.input(7)?, old.input(8)?, &step.rotated]);
    if let Some(dim) = partial(columns, head_size(old)?) {
        node = node.int("rotary_embedding_dim", dim);
    }
    if old.flag("rotary_interleaved")? {
        node = node.int("interleaved", 1);
    }
    Ok(standard.editor.add(node))
}

fn head_size(old: &Replacing<'_>) -> Result<usize, OnnxError> {
    let hidden = old.shape(0)?.last().copied().unwrap_or_default();
    let (heads, kv_heads) = (old.int("num_heads", 0)?, old.int("kv_num_heads", 0)?);
    let shares = match old.optional(1) {
        Some(_) => heads,
        None => heads.saturating_add(kv_heads.saturating_mul(2)),
    };
    Ok(usize::try_from(shares).ok().and_then(|shares| hidden.checked_div(shares)).unwrap_or_default())
}

/// The values that all layers derive from the lengths of a step.
struct GroupQueryStep {
    key: [String; 3],
    /// The number of tokens of each sample after the step, less 1, int64 `[batch]`.
    last: String,
    /// The number of all tokens, int64 scalar.
    total: String,
    /// The slot of each new token, int64 `[batch, tokens]`.
    slots: String,
    /// The position by which each token is rotated, int64 `[batch, tokens]`.
    rotated: String,
}

impl GroupQueryStep {
    fn add(standard: &mut StandardEditor<'_, '_>, old: &Replacing<'_>) -> Result<Self, OnnxError> {
        let (query, seqlens, total) = (old.input(0)?, old.input(5)?, old.input(6)?);
        // Layers have equally many tokens, but each reads another query.
        let tokens = old.shape(0)?.get(1).copied().unwrap_or_default().to_string();
        let key = [tokens, seqlens.to_owned(), total.to_owned()];
        let [tokens, ..] = &key;
        let to_int64 = |standard: &mut StandardEditor<'_, '_>, slot: usize, value: &str| {
            old.element(slot).map(|element| standard.editor.cast(value, element, ElementType::Int64))
        };
        let last = standard.shared(&["last", tokens, seqlens, total], |standard| {
            let seqlens = to_int64(standard, 5, seqlens)?;
            let flat = standard.editor.ints(&[-1])?;
            Ok(standard.editor.node("Reshape", &[&seqlens, &flat]))
        })?;
        let all = standard.shared(&["total", tokens, seqlens, total], |standard| {
            let total = to_int64(standard, 6, total)?;
            let scalar = standard.editor.ints(&[])?;
            Ok(standard.editor.node("Reshape", &[&total, &scalar]))
        })?;
        let slots = standard.shared(&["slots", tokens, seqlens, total], |standard| {
            let editor = &mut standard.editor;
            let tokens = editor.size(query, 1)?;
            let (zero, one) = (editor.scalar_i64(0)?, editor.scalar_i64(1)?);
            let after = editor.node("Add", &[&last, &one]);
            let start = editor.node("Sub", &[&after, &tokens]);
            let is_first = editor.node("Equal", &[&all, &tokens]);
            let start = editor.node("Where", &[&is_first, &zero, &start]);
            let steps = editor.range(&tokens)?;
            let column = editor.ints(&[1])?;
            let start = editor.node("Unsqueeze", &[&start, &column]);
            Ok(editor.node("Add", &[&start, &steps]))
        })?;
        // The first run uses only the first position, as an offset for all samples. The positions of a first
        // run are consecutive, so all of them can be used.
        let rotated = old.optional(9).map_or_else(|| slots.clone(), str::to_owned);
        Ok(Self { key, last, total: all, slots, rotated })
    }

    /// Adds the mask `[batch, 1, tokens, all tokens]`. It is a number for each head if the operator adds a
    /// bias.
    fn mask(&self, standard: &mut StandardEditor<'_, '_>, old: &Replacing<'_>) -> Result<String, OnnxError> {
        let window = old.int("local_window_size", -1)?;
        let [tokens, seqlens, total] = self.key.each_ref().map(String::as_str);
        let visible =
            standard.shared(&["visible", tokens, seqlens, total, &window.to_string()], |standard| {
                let editor = &mut standard.editor;
                let slots = editor.range(&self.total)?;
                let (by_token, by_sample) = (editor.ints(&[1, 3])?, editor.ints(&[1, 2, 3])?);
                let queries = editor.node("Unsqueeze", &[&self.slots, &by_token]);
                let last = editor.node("Unsqueeze", &[&self.last, &by_sample]);
                let causal = editor.node("LessOrEqual", &[&slots, &queries]);
                let used = editor.node("LessOrEqual", &[&slots, &last]);
                let visible = editor.node("And", &[&causal, &used]);
                if window < 0 {
                    return Ok(visible);
                }
                let size = editor.scalar_i64(window)?;
                let before = editor.node("Sub", &[&queries, &size]);
                let near = editor.node("Greater", &[&slots, &before]);
                Ok(editor.node("And", &[&visible, &near]))
            })?;
        let Some(bias) = old.optional(10) else { return Ok(visible) };
        let hidden = standard.editor.float(old.element(10)?, f64::NEG_INFINITY)?;
        Ok(standard.editor.node("Where", &[&visible, bias, &hidden]))
    }
}
