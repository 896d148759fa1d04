//! A model of ONNX Runtime's `MultiHeadAttention`, written from its documentation (version 1.32).

use std::borrow::Cow;

use super::bias::{ByScore, MASK_BYTES};
use super::heads::{Heads, Place, Rows, head_count, share};
use super::weighted::{Weighted, no_sink};
use crate::OnnxError;
use crate::fold::call::{Call, Outputs};
use crate::fold::number::{round, to_float};
use crate::fold::shapes::{elements, signed};
use crate::fold::{FoldError, Value, Values};

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
    let past = match call.optional(PAST[0]).map(|past| past.shape.as_slice()) {
        None => 0,
        Some(&[_, _, past, _]) => past,
        Some(_) => return Err(call.bad_shape(PAST[0], "rank 4")),
    };
    let is_shared = call.optional(PAST_LENGTH).is_some();
    let length_of = |new: usize| if is_shared { past } else { past.saturating_add(new) };
    let [keys, values] = [k, v].map(|new| Heads { length: length_of(new.length), ..new });
    let shapes = [
        (query.element, vec![batch, length, heads.saturating_mul(v.size)]),
        (query.element, keys.shape().to_vec()),
        (query.element, values.shape().to_vec()),
    ];
    if !call.values || is_shared || call.optional(INDIRECTION).is_some() {
        return call.shaped(shapes);
    }
    let Some([queries, keys, values]) = rows(call, [q, k, v], past)? else { return call.shaped(shapes) };
    let Some(added) = Added::read(call, q, keys.heads)? else { return call.shaped(shapes) };
    let scale = match call.float("scale", 0.0)? {
        0.0 => to_float(q.size).sqrt().recip(),
        scale => scale,
    };
    let presents = [&keys, &values].map(|rows| rows.elements.to_vec());
    let weighted = Weighted { queries, keys, values, scale, cap: 0.0, element: query.element };
    let output = weighted.output(call, |place, slot| added.at(place, slot, past), no_sink)?.by_token();
    let made = [output].into_iter().chain(presents).zip(shapes);
    made.take(call.outputs.max(1))
        .map(|(elements, (element, shape))| Value::new(element, shape, Some(Values::Floats(elements))))
        .collect()
}

/// Returns the queries, keys and values with the bias of their projections, after the past. Returns `None` if
/// an input is not known.
fn rows<'a>(call: &Call<'a>, heads: [Heads; 3], past: usize) -> Result<Option<[Rows<'a>; 3]>, OnnxError> {
    let bias = match call.optional(BIAS) {
        None => None,
        Some(bias) => match bias.as_floats() {
            None => return Ok(None),
            Some(bias) => Some(bias),
        },
    };
    let mut all = Vec::new();
    let mut from = 0_usize;
    for (index, heads) in heads.into_iter().enumerate() {
        let Some(mut rows) = Rows::read(call.input(index)?, heads) else { return Ok(None) };
        if let Some(bias) = bias {
            let element = call.input(index)?.element;
            let row = |at: Place| {
                let first = from.saturating_add(at.head.saturating_mul(heads.size));
                let bias = bias.iter().skip(first);
                rows.at(at).iter().zip(bias).map(|(a, b)| round(element, a + b)).collect::<Vec<_>>()
            };
            let elements = heads.places().flat_map(row).collect();
            rows = Rows { heads, elements: Cow::Owned(elements) };
            from = from.saturating_add(heads.heads.saturating_mul(heads.size));
        }
        let past_at = index.checked_sub(1).and_then(|at| PAST.get(at)).and_then(|&at| call.optional(at));
        let past_rows = match past_at {
            None => None,
            Some(value) => match Rows::read(value, Heads { length: past, ..heads }) {
                None => return Ok(None),
                Some(rows) => Some(rows),
            },
        };
        all.push(rows.after(past_rows));
    }
    Ok(<[Rows<'a>; 3]>::try_from(all).ok())
}

/// What is added to each score.
struct Added {
    scores: Option<ByScore>,
    /// Whether each key of each sample is real, `[batch, keys]`, or none.
    real: Vec<bool>,
    /// The number of keys.
    keys: usize,
    filler: f64,
    is_causal: bool,
}

impl Added {
    /// Returns `None` if a mask is not known or has another form.
    fn read(call: &Call<'_>, q: Heads, k: Heads) -> Result<Option<Self>, OnnxError> {
        let shape = [q.batch, q.heads, q.length, k.length];
        call.work.charge(elements(&shape).saturating_mul(MASK_BYTES))?;
        let scores = match call.optional(SCORES) {
            None => None,
            Some(_) => match ByScore::read(call, SCORES, shape)? {
                None => return Ok(None),
                scores => scores,
            },
        };
        let real = match call.optional(PADDING) {
            None => Vec::new(),
            Some(padding) if padding.shape == [q.batch, k.length] => {
                let Some(flags) = padding.as_ints() else { return Ok(None) };
                flags.iter().map(|&flag| flag != 0).collect()
            }
            Some(_) => return Ok(None),
        };
        let filler = call.float("mask_filter_value", -10000.0)?;
        Ok(Some(Self {
            scores,
            real,
            keys: k.length,
            filler,
            is_causal: call.flag("unidirectional", false)?,
        }))
    }

    fn at(&self, place: Place, slot: usize, past: usize) -> f64 {
        if self.is_causal && signed(slot) > signed(past).saturating_add(signed(place.token)) {
            return f64::NEG_INFINITY;
        }
        let score = self.scores.as_ref().and_then(|scores| scores.at(place, slot)).unwrap_or_default();
        let at = place.batch.saturating_mul(self.keys).saturating_add(slot);
        let is_real = self.real.get(at).copied().unwrap_or(true);
        if is_real { score } else { score + self.filler }
    }
}
