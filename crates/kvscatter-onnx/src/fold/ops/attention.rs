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
use crate::onnx_attention::{KEYS, MASKED_SCORES, PAST_KEYS, PAST_VALUES, QUERIES, SCORES, VALUES};

/// Returns the type and shape of the first input, for operators that change only elements.
pub(super) fn like_first(call: &Call<'_>) -> Outputs {
    let input = call.input(0)?;
    call.shaped([(input.element, input.shape.clone())])
}

/// Evaluates ONNX `Attention` of versions 23 and 24. In rank 3, the last axis contains all heads in a row.
///
/// The cap on scores comes before the mask, as onnx 1.23 corrected. `qk_matmul_output` is computed only in mode 2. In
/// other modes, only its type and shape are known.
pub(super) fn attention(call: &Call<'_>) -> Outputs {
    let element = call.input(QUERIES)?.element;
    let [q, k, v] = [(QUERIES, "q_num_heads"), (KEYS, "kv_num_heads"), (VALUES, "kv_num_heads")];
    let [q, k, v] = [Heads::new(call, q.0, q.1)?, Heads::new(call, k.0, k.1)?, Heads::new(call, v.0, v.1)?];
    let [keys, values] =
        [Appended::read(call, [KEYS, PAST_KEYS], k)?, Appended::read(call, [VALUES, PAST_VALUES], v)?];
    let is_flat = call.input(QUERIES)?.rank() == 3;
    let output = match is_flat {
        true => vec![q.batch, q.length, q.heads.saturating_mul(v.size)],
        false => vec![q.batch, q.heads, q.length, v.size],
    };
    let attended = call.make(element, output, |_| {
        let Some((weighted, bias)) = weighted(call, q, &keys, &values)? else { return Ok(None) };
        let output = weighted.output(call, |place, slot| bias.at(place, slot), no_sink)?;
        Ok(Some(Values::Floats(if is_flat { output.by_token() } else { output.elements.into_owned() })))
    })?;
    let returns_masked = call.outputs > SCORES && call.int("qk_matmul_output_mode", 0)? == MASKED_SCORES;
    let scores = call.make(element, vec![q.batch, q.heads, q.length, keys.heads.length], |_| {
        let weighted = if returns_masked { weighted(call, q, &keys, &values)? } else { None };
        let Some((weighted, bias)) = weighted else { return Ok(None) };
        Ok(Some(Values::Floats(weighted.masked(call, |place, slot| bias.at(place, slot))?)))
    })?;
    let outputs = [attended, keys.present(call)?, values.present(call)?, scores];
    Ok(outputs.into_iter().take(call.outputs.max(1)).collect())
}

/// Returns the attention of a call and what is added to its scores, or `None` if they are not known.
fn weighted<'a>(
    call: &'a Call<'_>,
    q: Heads,
    keys: &Appended<'a>,
    values: &Appended<'a>,
) -> Result<Option<(Weighted<'a>, Bias)>, OnnxError> {
    let query = call.input(QUERIES)?;
    let (Some(queries), Some(rows), Some(values)) = (Rows::read(query, q), keys.rows(), values.rows()) else {
        return Ok(None);
    };
    let Some(bias) = Bias::read(call, q, keys.heads, keys.past.map_or(0, |(_, length)| length))? else {
        return Ok(None);
    };
    let scale = match call.attribute("scale") {
        Some(_) => call.float("scale", 1.0)?,
        None => to_float(keys.heads.size).sqrt().recip(),
    };
    let (cap, element) = (call.float("softcap", 0.0)?, query.element);
    Ok(Some((Weighted { queries, keys: rows, values, scale, cap, element }, bias)))
}

/// Keys or values, appended to their past.
struct Appended<'a> {
    new: &'a Value,
    of_new: Heads,
    /// The past and its number of rows.
    past: Option<(&'a Value, usize)>,
    /// The dimensions of all rows.
    heads: Heads,
}

impl<'a> Appended<'a> {
    /// Reads keys or values, and their past, at these inputs.
    fn read(call: &'a Call<'_>, [index, at_past]: [usize; 2], of_new: Heads) -> Result<Self, OnnxError> {
        let past = match call.optional(at_past) {
            None => None,
            Some(past) => match *past.shape.as_slice() {
                [_, _, length, _] => Some((past, length)),
                _ => return Err(call.bad_shape(at_past, "rank 4")),
            },
        };
        let length = past.map_or(0, |(_, length)| length).saturating_add(of_new.length);
        Ok(Self { new: call.input(index)?, of_new, past, heads: Heads { length, ..of_new } })
    }

    /// Returns the past and the new rows, or `None` if they are not known.
    fn rows(&self) -> Option<Rows<'a>> {
        let rows = Rows::read(self.new, self.of_new)?;
        let past = match self.past {
            None => None,
            Some((past, length)) => Some(Rows::read(past, Heads { length, ..self.of_new })?),
        };
        Some(rows.after(past))
    }

    /// Returns the present.
    fn present(&self, call: &Call<'_>) -> Result<Value, OnnxError> {
        call.make(self.new.element, self.heads.shape().to_vec(), |_| {
            Ok(self.rows().map(|rows| Values::Floats(rows.elements.into_owned())))
        })
    }
}
