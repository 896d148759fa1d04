//! Attention, the rotary embedding before it, and the write into the cache.
//!
//! Only the shape of a `TensorScatter` is computed here, even if its inputs are known. Masks and positions do
//! not depend on its elements, and the core computes them elsewhere.

mod bias;
mod group_query;
mod heads;
mod multi_head;
mod rotary;
mod weighted;

pub(super) use group_query::group_query_attention;
pub(super) use multi_head::multi_head_attention;
pub(super) use rotary::{microsoft_rotary, rotary};

use bias::Bias;
use heads::{Heads, Rows};
use weighted::{Weighted, no_sink};

use crate::OnnxError;
use crate::fold::call::{Call, Outputs};
use crate::fold::number::to_float;
use crate::fold::{Value, Values};

/// The indices of the past of keys and of values.
const PAST: [usize; 2] = [4, 5];

/// The index of the output with the scores, and the mode in which it has those after the mask.
const SCORES: usize = 3;
const MASKED: i64 = 2;

/// Returns the type and shape of the first input, for operators that change only elements.
pub(super) fn like_first(call: &Call<'_>) -> Outputs {
    let input = call.input(0)?;
    call.shaped([(input.element, input.shape.clone())])
}

/// Evaluates ONNX `Attention` of versions 23 and 24. In rank 3, the last axis contains all heads in a row.
///
/// The cap on scores comes before the mask, as onnx 1.23 corrected. Scores before the mask, and weights, have no
/// elements.
pub(super) fn attention(call: &Call<'_>) -> Outputs {
    let [query, key, value] = [call.input(0)?, call.input(1)?, call.input(2)?];
    let q = Heads::new(call, 0, "q_num_heads")?;
    let k = Heads::new(call, 1, "kv_num_heads")?;
    let v = Heads::new(call, 2, "kv_num_heads")?;
    let mut pasts = [None; 2];
    for (past, index) in pasts.iter_mut().zip(PAST) {
        *past = match call.optional(index) {
            None => None,
            Some(past) => match *past.shape.as_slice() {
                [_, _, length, _] => Some((past, length)),
                _ => return Err(call.bad_shape(index, "rank 4")),
            },
        };
    }
    let with_past = |heads: Heads, past: Option<(&Value, usize)>| {
        let length = past.map_or(0, |(_, length)| length).saturating_add(heads.length);
        Heads { length, ..heads }
    };
    let [past_key, past_value] = pasts;
    let (keys, values) = (with_past(k, past_key), with_past(v, past_value));
    let output = match query.rank() {
        3 => vec![q.batch, q.length, q.heads.saturating_mul(v.size)],
        _ => vec![q.batch, q.heads, q.length, v.size],
    };
    let present = |new: &Value, heads: Heads, past: Option<(&Value, usize)>, all: Heads| {
        call.make(new.element, all.shape().to_vec(), |_| {
            let rows = appended(new, heads, past);
            Ok(rows.map(|rows| Values::Floats(rows.elements.into_owned())))
        })
    };
    let weighted = || -> Result<Option<(Weighted<'_>, Bias)>, OnnxError> {
        let (Some(queries), Some(keys), Some(values)) =
            (Rows::of(query, q), appended(key, k, past_key), appended(value, v, past_value))
        else {
            return Ok(None);
        };
        let Some(bias) = Bias::of(call, q, keys.heads, past_key.map_or(0, |(_, length)| length))? else {
            return Ok(None);
        };
        let scale = match call.attribute("scale") {
            Some(_) => call.float("scale", 1.0)?,
            None => to_float(k.size).sqrt().recip(),
        };
        let (cap, element) = (call.float("softcap", 0.0)?, query.element);
        Ok(Some((Weighted { queries, keys, values, scale, cap, element }, bias)))
    };
    let attended = call.make(query.element, output, |_| {
        let Some((weighted, bias)) = weighted()? else { return Ok(None) };
        let output = weighted.output(call, |place, slot| bias.at(place, slot), no_sink)?;
        let elements = if query.rank() == 3 { output.by_token() } else { output.elements.into_owned() };
        Ok(Some(Values::Floats(elements)))
    })?;
    let returns_masked = call.outputs > SCORES && call.int("qk_matmul_output_mode", 0)? == MASKED;
    let scores = call.make(query.element, vec![q.batch, q.heads, q.length, keys.length], |_| {
        let weighted = if returns_masked { weighted()? } else { None };
        let Some((weighted, bias)) = weighted else { return Ok(None) };
        Ok(Some(Values::Floats(weighted.masked(call, |place, slot| bias.at(place, slot))?)))
    })?;
    let outputs =
        [attended, present(key, k, past_key, keys)?, present(value, v, past_value, values)?, scores];
    Ok(outputs.into_iter().take(call.outputs.max(1)).collect())
}

/// Returns the rows of a past and the new rows after it, or `None` if they are not known.
fn appended<'a>(new: &'a Value, heads: Heads, past: Option<(&'a Value, usize)>) -> Option<Rows<'a>> {
    let rows = Rows::of(new, heads)?;
    let past = match past {
        None => None,
        Some((past, length)) => Some(Rows::of(past, Heads { length, ..heads })?),
    };
    Some(rows.after(past))
}
