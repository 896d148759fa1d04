//! A model of ONNX Runtime's `MultiHeadAttention`, written from its documentation (version 1.32).

use super::bias::Bias;
use super::heads::{Heads, Rows, head_count, past_length, share};
use super::weighted::{Weighted, no_sink, scale};
use crate::fold::call::{Call, Outputs};
use crate::fold::number::round;
use crate::fold::shapes::signed;
use crate::fold::values::Uncomputed;
use crate::fold::{FoldError, Value};

/// The indices of the operator's inputs.
const BIAS: usize = 3;
const PADDING: usize = 4;
const SCORES: usize = 5;
const PAST: [usize; 2] = [6, 7];
const PAST_LENGTH: usize = 8;
const INDIRECTION: usize = 9;

/// Evaluates the operator with inputs that are not packed. Elements are computed if past and present are
/// separate buffers.
pub(in crate::fold::ops) fn multi_head_attention(call: &Call<'_>) -> Outputs {
    let query = call.input(0)?;
    let [key, value] = [1, 2].map(|index| call.optional(index));
    let (Some(key), Some(value), &[batch, length, hidden]) = (key, value, query.shape.as_slice()) else {
        return Err(FoldError::NoForm { what: "packed inputs" }.into());
    };
    let heads = head_count(call, "num_heads")?;
    let q = Heads { batch, heads, length, size: share(call, 0, hidden, heads)? };
    let own = |index: usize, of: &Value| match *of.shape.as_slice() {
        [_, length, hidden] => Ok(Heads { length, size: share(call, index, hidden, heads)?, ..q }),
        // Keys or values from another attention's past are `[batch, heads, length, size]`.
        [_, _, length, size] => Ok(Heads { length, size, ..q }),
        _ => Err(call.bad_shape(index, "rank 3 or 4")),
    };
    let (k, v) = (own(1, key)?, own(2, value)?);
    let past = past_length(call, PAST[0])?;
    let is_shared = call.optional(PAST_LENGTH).is_some();
    let length_of = |new: usize| if is_shared { past } else { past.saturating_add(new) };
    let [keys, values] = [k, v].map(|new| Heads { length: length_of(new.length), ..new });
    let outputs = [
        (query.element, vec![batch, length, heads.saturating_mul(v.size)]),
        (query.element, keys.shape().to_vec()),
        (query.element, values.shape().to_vec()),
    ];
    call.floats(outputs, || {
        if is_shared || call.optional(INDIRECTION).is_some() {
            return Err(Uncomputed::Unknown);
        }
        let [queries, keys, values] = rows(call, [q, k, v], past)?;
        let bias = bias(call, q, keys.heads, past)?;
        let presents = [&keys, &values].map(|rows| rows.elements.to_vec());
        let (scale, element) = (scale(call, q.size)?, query.element);
        let weighted = Weighted { queries, keys, values, scale, cap: 0.0, bias, element };
        let [keys, values] = presents;
        Ok([weighted.output(call, no_sink)?.by_token(), keys, values])
    })
}

/// Returns the queries, keys and values with the bias of their projections, after the past.
fn rows<'a>(call: &Call<'a>, heads: [Heads; 3], past: usize) -> Result<[Rows<'a>; 3], Uncomputed> {
    let bias = call.optional(BIAS).map(Value::known_floats).transpose()?;
    let [q, k, v] = heads;
    let width = |heads: Heads| heads.heads.saturating_mul(heads.size);
    let row = |index: usize, heads: Heads, from: usize| {
        let input = call.input(index)?;
        let rows = Rows::read(input, heads)?;
        let Some(bias) = bias else { return Ok::<_, Uncomputed>(rows) };
        Ok(Rows::make(heads, |at| {
            let bias = bias.iter().skip(from.saturating_add(at.head.saturating_mul(heads.size)));
            rows.at(at).iter().zip(bias).map(|(a, b)| round(input.element, a + b)).collect::<Vec<_>>()
        }))
    };
    let (keys_from, values_from) = (width(q), width(q).saturating_add(width(k)));
    Ok([
        row(0, q, 0)?,
        row(1, k, keys_from)?.after(call.optional(PAST[0]), past)?,
        row(2, v, values_from)?.after(call.optional(PAST[1]), past)?,
    ])
}

/// Returns what is added to each score. A padding mask is known only if it is `[batch, keys]`.
fn bias(call: &Call<'_>, q: Heads, k: Heads, past: usize) -> Result<Bias, Uncomputed> {
    let mut bias = Bias::new(vec![signed(past); q.batch]);
    bias.is_causal = call.flag("unidirectional", false)?;
    bias.add_input(call, SCORES, q, k)?;
    if let Some(padding) = call.optional(PADDING) {
        if padding.shape != [q.batch, k.length] {
            return Err(Uncomputed::Unknown);
        }
        let filler = call.float("mask_filter_value", -10000.0)?;
        let number = |&flag: &i64| if flag == 0 { filler } else { 0.0 };
        let numbers: Vec<_> = padding.known_ints()?.iter().map(number).collect();
        let shape = [q.batch, q.heads, q.length, k.length];
        bias.add(call, &numbers, &[q.batch, 1, 1, k.length], shape)?;
    }
    Ok(bias)
}
