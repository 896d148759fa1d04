//! A model of ONNX Runtime's `GroupQueryAttention`, written from its documentation (version 1.32).

use super::bias::Bias;
use super::heads::{Heads, Place, Rows, head_count, past_length, share};
use super::rotary::Rotation;
use super::weighted::{Weighted, scale};
use crate::fold::call::{Call, Outputs, dim};
use crate::fold::number::round;
use crate::fold::ops::normalization::rms;
use crate::fold::shapes::{elements, signed};
use crate::fold::values::Uncomputed;
use crate::fold::{MAX_VALUES, Value};

/// The indices of the operator's inputs.
const PAST: [usize; 2] = [3, 4];
const SEQLENS_K: usize = 5;
const TOTAL: usize = 6;
const TABLES: [usize; 2] = [7, 8];
const POSITION_IDS: usize = 9;
const BIAS: usize = 10;
const SINK: usize = 11;
const Q_NORM: usize = 14;
const K_NORM: usize = 15;
/// The inputs that this model does not have: quantized caches and padded chunks.
const NOT_MODELLED: [usize; 3] = [12, 13, 16];

/// Evaluates the operator.
///
/// Queries, keys and values may be packed in input 0. The present is as long as the past, or as long as the
/// whole sequence (input 6) if that is longer. If keys and values have no rows, the past is the cache of another
/// layer, which already has the rows of this step.
pub(in crate::fold::ops) fn group_query_attention(call: &Call<'_>) -> Outputs {
    let query = call.input(0)?;
    let &[batch, length, hidden] = query.shape.as_slice() else {
        return Err(call.bad_shape(0, "rank 3"));
    };
    let (heads, kv_heads) = (head_count(call, "num_heads")?, head_count(call, "kv_num_heads")?);
    let is_packed = call.optional(1).is_none();
    let shares = if is_packed { heads.saturating_add(kv_heads.saturating_mul(2)) } else { heads };
    let size = share(call, 0, hidden, shares)?;
    let output = (query.element, vec![batch, length, heads.saturating_mul(size)]);
    let is_shared = call.optional(1).is_some_and(|key| key.shape.get(1) == Some(&0));
    if call.outputs < 2 && !is_shared {
        return call.shaped([output]);
    }
    let total = dim(call.scalar(TOTAL)?)?;
    let past = past_length(call, PAST[0])?;
    if is_shared && past < total {
        return Err(call.bad_shape(PAST[0], "a row for each token"));
    }
    let element = call.optional(PAST[0]).map_or(query.element, |past| past.element);
    let q = Heads { batch, heads, length, size };
    let k = Heads { heads: kv_heads, length: if is_shared { 0 } else { length }, ..q };
    let slots = Heads { length: past.max(total), ..k };
    let present = (element, slots.shape().to_vec());
    call.floats([output, present.clone(), present], || {
        // `total` is a number of the model, so the present may be far larger than everything that is known.
        let is_small = elements(&slots.shape()) <= MAX_VALUES;
        if !is_small || NOT_MODELLED.iter().any(|&input| call.optional(input).is_some()) {
            return Err(Uncomputed::Unknown);
        }
        let step = GroupQueryStep::read(call, q, k)?;
        let [queries, keys, values] = step.new_rows(call)?;
        let keys = step.present(call, PAST[0], &keys, slots)?;
        let values = step.present(call, PAST[1], &values, slots)?;
        let presents = [&keys, &values].map(|rows| rows.elements.to_vec());
        let output = step.attend(call, [queries, keys, values])?;
        let [keys, values] = presents;
        Ok([output, keys, values])
    })
}

/// The numbers that a step depends on.
struct GroupQueryStep {
    q: Heads,
    k: Heads,
    /// The number of cached tokens of each sample after the step.
    lengths: Vec<i64>,
    /// The slot of the first new token of each sample.
    starts: Vec<i64>,
    is_first: bool,
}

impl GroupQueryStep {
    fn read(call: &Call<'_>, q: Heads, k: Heads) -> Result<Self, Uncomputed> {
        let seqlens = call.input(SEQLENS_K)?.known_ints()?;
        if seqlens.len() != q.batch {
            return Err(call.bad_shape(SEQLENS_K, "one length for each sample").into());
        }
        let is_first = call.scalar(TOTAL)? == signed(q.length);
        let lengths: Vec<_> = seqlens.iter().map(|length| length.saturating_add(1)).collect();
        // The first run does not see the past.
        let start = |length: &i64| if is_first { 0 } else { length.saturating_sub(signed(q.length)) };
        let starts = lengths.iter().map(start).collect();
        Ok(Self { q, k, lengths, starts, is_first })
    }

    /// Returns the new queries, keys and values, normalized and rotated.
    fn new_rows<'a>(&self, call: &Call<'a>) -> Result<[Rows<'a>; 3], Uncomputed> {
        let (q, k) = (self.q, self.k);
        let [queries, keys, values] = if call.optional(1).is_some() {
            [Rows::read(call.input(0)?, q)?, Rows::read(call.input(1)?, k)?, Rows::read(call.input(2)?, k)?]
        } else {
            // One row has all heads of queries, then of keys, then of values.
            let heads = q.heads.saturating_add(k.heads.saturating_mul(2));
            let all = Rows::read(call.input(0)?, Heads { heads, ..q })?;
            let part = |from: usize, heads: Heads| {
                let row = |at: Place| all.at(Place { head: at.head.saturating_add(from), ..at });
                Rows::make(heads, |at| row(at).iter().copied())
            };
            [part(0, q), part(q.heads, k), part(q.heads.saturating_add(k.heads), k)]
        };
        let queries = self.positioned(call, queries, Q_NORM, "q_norm_epsilon")?;
        let keys = self.positioned(call, keys, K_NORM, "k_norm_epsilon")?;
        Ok([queries, keys, values])
    }

    /// Normalizes and rotates queries or keys.
    fn positioned<'a>(
        &self,
        call: &Call<'_>,
        mut rows: Rows<'a>,
        norm: usize,
        epsilon: &str,
    ) -> Result<Rows<'a>, Uncomputed> {
        let element = call.input(0)?.element;
        if let Some(weight) = call.optional(norm) {
            let weight = weight.known_floats()?;
            let epsilon = match call.attribute(epsilon) {
                Some(_) => call.float(epsilon, 0.0)?,
                None => call.float("qk_norm_epsilon", 1e-6)?,
            };
            let normed = |at| rms(rows.at(at), weight, epsilon).into_iter().map(|it| round(element, it));
            rows = Rows::make(rows.heads, normed);
        }
        if !call.flag("do_rotary", false)? || rows.elements.is_empty() {
            return Ok(rows);
        }
        let [cos, sin] = [call.input(TABLES[0])?, call.input(TABLES[1])?];
        let rotation = Rotation {
            cos: cos.known_floats()?,
            sin: sin.known_floats()?,
            columns: cos.shape.last().copied().unwrap_or_default(),
            is_interleaved: call.flag("rotary_interleaved", false)?,
        };
        let ids = call.optional(POSITION_IDS).map(Value::known_ints).transpose()?;
        let position = |sample: usize, token: usize| match ids {
            // The first run uses only the first element, as an offset.
            Some(ids) if self.is_first => ids.first().map_or(-1, |id| id.saturating_add(signed(token))),
            Some(ids) => {
                let at = sample.saturating_mul(self.q.length).saturating_add(token);
                ids.get(at).copied().unwrap_or(-1)
            }
            None => self.start(sample).saturating_add(signed(token)),
        };
        let mut turned = rotation.turn_all(&rows, position)?;
        turned.elements.to_mut().iter_mut().for_each(|it| *it = round(element, *it));
        Ok(turned)
    }

    fn start(&self, sample: usize) -> i64 {
        self.starts.get(sample).copied().unwrap_or_default()
    }

    /// Returns the cache after the step. The first run also writes padding. Slots that nothing wrote contain zeros.
    fn present(
        &self,
        call: &Call<'_>,
        past: usize,
        new: &Rows<'_>,
        slots: Heads,
    ) -> Result<Rows<'static>, Uncomputed> {
        let past = match call.optional(past) {
            None => None,
            Some(value) => Some(Rows::read(value, Heads { length: past_length(call, past)?, ..slots })?),
        };
        let zeros = vec![0.0; slots.size];
        let row = |at: Place| {
            let token = signed(at.token).saturating_sub(self.start(at.batch));
            let token = usize::try_from(token).ok().filter(|&token| token < self.k.length);
            let row = match (token, &past) {
                (Some(token), _) => new.at(Place { token, ..at }),
                (None, Some(past)) => past.at(at),
                (None, None) => &[],
            };
            if row.is_empty() { zeros.clone() } else { row.to_vec() }
        };
        Ok(Rows::make(slots, row))
    }

    /// Returns the output `[batch, tokens, heads * size]`.
    fn attend(
        &self,
        call: &Call<'_>,
        [queries, keys, values]: [Rows<'_>; 3],
    ) -> Result<Vec<f64>, Uncomputed> {
        let mut bias = Bias::new(self.starts.clone());
        bias.lengths = Some(self.lengths.clone());
        bias.is_causal = call.flag("causal", true)?;
        bias.window = match call.int("local_window_size", -1)? {
            size if size < 0 => i64::MAX,
            size => size,
        };
        // The columns are those of the longest sequence, also if the cache has more slots.
        bias.add_input(call, BIAS, self.q, Heads { length: dim(call.scalar(TOTAL)?)?, ..keys.heads })?;
        let sinks = call.optional(SINK).map(Value::known_floats).transpose()?;
        let is_smooth = call.int("smooth_softmax", 0)? == 1;
        let sink = |head: usize| match sinks {
            Some(sinks) => sinks.get(head).copied().unwrap_or(f64::NAN),
            None if is_smooth => 0.0,
            None => f64::NEG_INFINITY,
        };
        let (scale, cap) = (scale(call, self.q.size)?, call.float("softcap", 0.0)?);
        let element = call.input(0)?.element;
        let weighted = Weighted { queries, keys, values, scale, cap, bias, element };
        Ok(weighted.output(call, sink)?.by_token())
    }
}
