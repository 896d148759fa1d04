//! The output shapes of attention, of the rotary embedding before it, and of the write into the cache.
//!
//! Only the shape of a `TensorScatter` is computed here, even if its inputs are known. Masks and positions do
//! not depend on its elements, and the core computes them elsewhere.

mod heads;
mod weighted;

use heads::{Heads, head_count, share};

use crate::fold::call::{Call, Outputs, dim};
use crate::fold::{FoldError, Value};

/// Returns the type and shape of the first input, for operators that change only elements.
pub(super) fn like_first(call: &Call<'_>) -> Outputs {
    let input = call.input(0)?;
    call.shaped([(input.element, input.shape.clone())])
}

/// Evaluates ONNX `Attention` of versions 23 and 24. In rank 3, the last axis contains all heads in a row.
/// Only the first output has elements.
pub(super) fn attention(call: &Call<'_>) -> Outputs {
    let [query, key, value] = [call.input(0)?, call.input(1)?, call.input(2)?];
    let q = Heads::new(call, 0, "q_num_heads")?;
    let k = Heads::new(call, 1, "kv_num_heads")?;
    let v = Heads::new(call, 2, "kv_num_heads")?;
    let past = |index: usize| match call.optional(index) {
        None => Ok(0),
        Some(past) => match *past.shape.as_slice() {
            [_, _, length, _] => Ok(length),
            _ => Err(call.bad_shape(index, "rank 4")),
        },
    };
    let total = past(4)?.saturating_add(k.length);
    let total_values = past(5)?.saturating_add(v.length);
    let output = match query.rank() {
        3 => vec![q.batch, q.length, q.heads.saturating_mul(v.size)],
        _ => vec![q.batch, q.heads, q.length, v.size],
    };
    let attended = call.make(query.element, output, |_| weighted::values(call, [q, k, v]))?;
    let others = call.shaped([
        (query.element, attended.shape.clone()),
        (key.element, vec![k.batch, k.heads, total, k.size]),
        (value.element, vec![v.batch, v.heads, total_values, v.size]),
        (query.element, vec![q.batch, q.heads, q.length, total]),
    ])?;
    Ok([attended].into_iter().chain(others.into_iter().skip(1)).collect())
}

/// Evaluates ONNX Runtime's `GroupQueryAttention`.
///
/// Queries, keys and values may be packed in input 0. The present is as long as the past, or as long as the
/// whole sequence (input 6) if that is longer.
pub(super) fn group_query_attention(call: &Call<'_>) -> Outputs {
    let query = call.input(0)?;
    let &[batch, length, hidden] = query.shape.as_slice() else {
        return Err(call.bad_shape(0, "rank 3"));
    };
    let (heads, kv_heads) = (head_count(call, "num_heads")?, head_count(call, "kv_num_heads")?);
    let is_packed = call.optional(1).is_none();
    let shares = if is_packed { heads.saturating_add(kv_heads.saturating_mul(2)) } else { heads };
    let size = share(call, 0, hidden, shares)?;
    let output = (query.element, vec![batch, length, heads.saturating_mul(size)]);
    if call.outputs < 2 {
        return call.shaped([output]);
    }
    let total = dim(call.scalar(6)?)?;
    let past = match call.optional(3).map(|past| past.shape.as_slice()) {
        None => 0,
        Some(&[_, _, past, _]) => past,
        Some(_) => return Err(call.bad_shape(3, "rank 4")),
    };
    let element = call.optional(3).map_or(query.element, |past| past.element);
    let present = (element, vec![batch, kv_heads, past.max(total), size]);
    call.shaped([output, present.clone(), present])
}

/// Evaluates ONNX Runtime's `MultiHeadAttention` with inputs that are not packed.
pub(super) fn multi_head_attention(call: &Call<'_>) -> Outputs {
    let query = call.input(0)?;
    let [key, value] = [1, 2].map(|index| call.optional(index));
    let (Some(key), Some(value), &[batch, length, hidden]) = (key, value, query.shape.as_slice()) else {
        return Err(FoldError::NoForm { what: "packed inputs" }.into());
    };
    let heads = head_count(call, "num_heads")?;
    let own = |index: usize, of: &Value| match *of.shape.as_slice() {
        [_, length, hidden] => Ok((length, share(call, index, hidden, heads)?)),
        // Keys or values from another attention's past are `[batch, heads, length, size]`.
        [_, _, length, size] => Ok((length, size)),
        _ => Err(call.bad_shape(index, "rank 3 or 4")),
    };
    let (key_length, key_size) = own(1, key)?;
    let (value_length, value_size) = own(2, value)?;
    share(call, 0, hidden, heads)?;
    let past = match call.optional(6).map(|past| past.shape.as_slice()) {
        None => 0,
        Some(&[_, _, past, _]) => past,
        Some(_) => return Err(call.bad_shape(6, "rank 4")),
    };
    let is_shared = call.optional(8).is_some();
    let length_of = |new: usize| if is_shared { past } else { past.saturating_add(new) };
    call.shaped([
        (query.element, vec![batch, length, heads.saturating_mul(value_size)]),
        (query.element, vec![batch, heads, length_of(key_length), key_size]),
        (query.element, vec![batch, heads, length_of(value_length), value_size]),
    ])
}
