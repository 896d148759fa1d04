//! Attention, the rotary embedding before it, and the write into the cache.
//!
//! Only the shape of a `TensorScatter` is computed here, even if its inputs are known. Masks and positions do
//! not depend on its elements, and the core computes them elsewhere.

mod bias;
mod group_query;
mod heads;
mod linear;
mod multi_head;
mod rotary;
mod weighted;

pub(super) use group_query::group_query_attention;
pub(super) use linear::linear_attention;
pub(super) use multi_head::multi_head_attention;
pub(super) use rotary::{microsoft_rotary, rotary};

use bias::Bias;
use heads::{Heads, Rows, past_length};
use weighted::{Weighted, default_scale, no_sink};

use crate::OnnxError;
use crate::fold::call::{Call, Outputs};
use crate::fold::shapes::signed;
use crate::fold::values::Uncomputed;
use crate::fold::{Value, Values};
use crate::onnx_attention::{
    KEYS, MASK, MASKED_SCORES, NONPAD_KV_SEQLEN, PAST_KEYS, PAST_VALUES, QUERIES, SCORES, VALUES,
};

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
    let query = call.input(QUERIES)?;
    let q = Heads::new(call, QUERIES, "q_num_heads")?;
    let [keys, values] = [[KEYS, PAST_KEYS], [VALUES, PAST_VALUES]];
    let [keys, values] = [Appended::read(call, keys)?, Appended::read(call, values)?];
    let output = match query.rank() {
        3 => vec![q.batch, q.length, q.heads.saturating_mul(values.new.size)],
        _ => vec![q.batch, q.heads, q.length, values.new.size],
    };
    let weighted = || weighted(call, query, q, &keys, &values);
    let attended = call.make(query.element, output, |_| {
        let output = weighted()?.output(call, no_sink)?;
        Ok(Values::Floats(output.like(query)))
    })?;
    let returns_masked = call.outputs > SCORES && call.int("qk_matmul_output_mode", 0)? == MASKED_SCORES;
    let scores = call.make(query.element, vec![q.batch, q.heads, q.length, keys.all.length], |_| {
        if !returns_masked {
            return Err(Uncomputed::Unknown);
        }
        Ok(Values::Floats(weighted()?.masked(call)?))
    })?;
    let outputs = [attended, keys.present(call)?, values.present(call)?, scores];
    Ok(outputs.into_iter().take(call.outputs.max(1)).collect())
}

fn weighted<'a>(
    call: &Call<'_>,
    query: &'a Value,
    q: Heads,
    keys: &Appended<'a>,
    values: &Appended<'a>,
) -> Result<Weighted<'a>, Uncomputed> {
    let lengths = call.optional(NONPAD_KV_SEQLEN).map(Value::known_ints).transpose()?;
    let start = |sample: usize| match lengths.and_then(|lengths| lengths.get(sample)) {
        Some(length) => length.saturating_sub(signed(q.length)),
        None => signed(keys.past_length),
    };
    let mut bias = Bias::new((0..q.batch).map(start).collect());
    bias.lengths = lengths.map(<[i64]>::to_vec);
    bias.is_causal = call.flag("is_causal", false)?;
    if let Some(mask) = call.optional(MASK) {
        bias.add_mask(call, mask, q, keys.all)?;
    }
    let scale = match call.attribute("scale") {
        Some(_) => call.float("scale", 1.0)?,
        None => default_scale(q.size),
    };
    let (queries, cap, element) = (Rows::read(query, q)?, call.float("softcap", 0.0)?, query.element);
    Ok(Weighted { queries, keys: keys.rows()?, values: values.rows()?, scale, cap, bias, element })
}

/// Keys or values, appended to their past.
struct Appended<'a> {
    value: &'a Value,
    new: Heads,
    past: Option<&'a Value>,
    past_length: usize,
    /// The dimensions of all rows.
    all: Heads,
}

impl<'a> Appended<'a> {
    /// Reads keys or values, and their past, at these inputs.
    fn read(call: &Call<'a>, [index, past_at]: [usize; 2]) -> Result<Self, OnnxError> {
        let new = Heads::new(call, index, "kv_num_heads")?;
        let past_length = past_length(call, past_at)?;
        let all = Heads { length: past_length.saturating_add(new.length), ..new };
        Ok(Self { value: call.input(index)?, new, past: call.optional(past_at), past_length, all })
    }

    /// Returns the past and the new rows.
    fn rows(&self) -> Result<Rows<'a>, Uncomputed> {
        Rows::read(self.value, self.new)?.after(self.past, self.past_length)
    }

    /// Returns the present.
    fn present(&self, call: &Call<'_>) -> Result<Value, OnnxError> {
        call.make(self.value.element, self.all.shape().to_vec(), |_| {
            Ok(Values::Floats(self.rows()?.elements.into_owned()))
        })
    }
}
