//! A model of ONNX Runtime's `GroupQueryAttention`, written from its documentation (version 1.32).

use std::borrow::Cow;

use super::bias::{ByScore, MASK_BYTES};
use super::heads::{Heads, Place, Rows, head_count, share};
use super::rotary::Rotation;
use super::weighted::Weighted;
use crate::OnnxError;
use crate::fold::call::{Call, Outputs, dim};
use crate::fold::number::{round, to_float};
use crate::fold::ops::normalization::rms;
use crate::fold::shapes::{elements, signed};
use crate::fold::{FoldError, MAX_VALUES, Value, Values};

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
    let past = match call.optional(PAST[0]).map(|past| past.shape.as_slice()) {
        None => 0,
        Some(&[_, _, past, _]) => past,
        Some(_) => return Err(call.bad_shape(PAST[0], "rank 4")),
    };
    if is_shared && past < total {
        return Err(call.bad_shape(PAST[0], "a row for each token"));
    }
    let element = call.optional(PAST[0]).map_or(query.element, |past| past.element);
    let q = Heads { batch, heads, length, size };
    let k = Heads { heads: kv_heads, length: if is_shared { 0 } else { length }, ..q };
    let slots = Heads { length: past.max(total), ..k };
    let present = (element, slots.shape().to_vec());
    // `total` is a number of the model, so the present may be far larger than everything that is known.
    let is_small = elements(&slots.shape()) <= MAX_VALUES;
    let is_modelled = !NOT_MODELLED.iter().any(|&input| call.optional(input).is_some());
    let are_computed = call.values && is_small && is_modelled;
    let Some(step) = (if are_computed { Step::read(call, q, k)? } else { None }) else {
        return call.shaped([output, present.clone(), present]);
    };
    let [queries, keys, values] = step.new_rows(call)?;
    let [keys, values] = [(0, keys), (1, values)].map(|(at, rows)| step.present(call, at, &rows, slots));
    let (Some(keys), Some(values)) = (keys, values) else {
        return call.shaped([output, present.clone(), present]);
    };
    let attended = step.attend(call, [queries, keys.clone(), values.clone()])?;
    let made =
        [(output, attended), (present.clone(), keys.elements.into()), (present, values.elements.into())];
    let made =
        made.map(|((element, shape), elements)| Value::new(element, shape, Some(Values::Floats(elements))));
    made.into_iter().take(call.outputs.max(1)).collect()
}

/// The numbers that a step depends on.
struct Step {
    q: Heads,
    k: Heads,
    /// The number of cached tokens of each sample after the step.
    lengths: Vec<i64>,
    /// The slot of the first new token of each sample.
    starts: Vec<i64>,
    is_first: bool,
}

impl Step {
    /// Returns `None` if a length is not known.
    fn read(call: &Call<'_>, q: Heads, k: Heads) -> Result<Option<Self>, OnnxError> {
        let Some(seqlens) = call.input(SEQLENS_K)?.as_ints() else { return Ok(None) };
        if seqlens.len() != q.batch {
            return Err(call.bad_shape(SEQLENS_K, "one length for each sample"));
        }
        let is_first = call.scalar(TOTAL)? == signed(q.length);
        let lengths: Vec<_> = seqlens.iter().map(|length| length.saturating_add(1)).collect();
        // The first run does not see the past.
        let start = |length: &i64| if is_first { 0 } else { length.saturating_sub(signed(q.length)) };
        let starts = lengths.iter().map(start).collect();
        Ok(Some(Self { q, k, lengths, starts, is_first }))
    }

    /// Returns the new queries, keys and values, normalized and rotated. Unknown ones have no elements.
    fn new_rows<'a>(&self, call: &Call<'a>) -> Result<[Rows<'a>; 3], OnnxError> {
        let (q, k) = (self.q, self.k);
        let unknown = |heads| Rows { heads, elements: Cow::Borrowed(&[][..]) };
        let rows = |index: usize, heads| {
            call.optional(index).and_then(|value| Rows::read(value, heads)).unwrap_or_else(|| unknown(heads))
        };
        let [queries, keys, values] = if call.optional(1).is_some() {
            [rows(0, q), rows(1, k), rows(2, k)]
        } else {
            // One row has all heads of queries, then of keys, then of values.
            let all = rows(0, Heads { heads: q.heads.saturating_add(k.heads.saturating_mul(2)), ..q });
            let part = |from: usize, heads: Heads| {
                let row = |at: Place| all.at(Place { head: at.head.saturating_add(from), ..at });
                let elements = heads.places().flat_map(row).copied().collect();
                Rows { heads, elements: Cow::Owned(elements) }
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
        call: &Call<'a>,
        rows: Rows<'a>,
        norm: usize,
        epsilon: &str,
    ) -> Result<Rows<'a>, OnnxError> {
        let element = call.input(0)?.element;
        let mut rows = rows;
        if let Some(weight) = call.optional(norm) {
            let Some(weight) = weight.as_floats() else {
                return Ok(Rows { elements: Cow::default(), ..rows });
            };
            let epsilon = match call.attribute(epsilon) {
                Some(_) => call.float(epsilon, 0.0)?,
                None => call.float("qk_norm_epsilon", 1e-6)?,
            };
            let normed =
                rows.elements.chunks(rows.heads.size.max(1)).flat_map(|row| rms(row, weight, epsilon));
            let normed = normed.map(|it| round(element, it)).collect();
            rows = Rows { heads: rows.heads, elements: Cow::Owned(normed) };
        }
        if !call.flag("do_rotary", false)? || rows.elements.is_empty() {
            return Ok(rows);
        }
        let [cos, sin] = [call.input(TABLES[0])?, call.input(TABLES[1])?];
        let columns = cos.shape.last().copied().unwrap_or_default();
        let (Some(cos), Some(sin)) = (cos.as_floats(), sin.as_floats()) else {
            return Ok(Rows { elements: Cow::default(), ..rows });
        };
        let rotation =
            Rotation { cos, sin, columns, is_interleaved: call.flag("rotary_interleaved", false)? };
        let ids = match call.optional(POSITION_IDS) {
            None => None,
            Some(ids) => Some(ids.as_ints().ok_or(FoldError::ValuesUnknown { input: POSITION_IDS })?),
        };
        let position = |sample: usize, token: usize| match ids {
            // The first run uses only the first element, as an offset.
            Some(ids) if self.is_first => ids.first().map_or(-1, |id| id.saturating_add(signed(token))),
            Some(ids) => {
                let at = sample.saturating_mul(self.q.length).saturating_add(token);
                ids.get(at).copied().unwrap_or(-1)
            }
            None => self.position(sample, token),
        };
        let turned = rotation.turn_all(&rows, position)?;
        let rounded = turned.elements.iter().map(|it| round(element, *it)).collect();
        Ok(Rows { heads: rows.heads, elements: Cow::Owned(rounded) })
    }

    fn position(&self, sample: usize, token: usize) -> i64 {
        self.starts.get(sample).copied().unwrap_or_default().saturating_add(signed(token))
    }

    /// Returns the cache after the step, or `None` if the past or the new rows are not known. The first run
    /// also writes padding. Slots that nothing wrote contain zeros.
    fn present(&self, call: &Call<'_>, at: usize, new: &Rows<'_>, slots: Heads) -> Option<Rows<'static>> {
        if new.elements.is_empty() && self.k.length > 0 {
            return None;
        }
        let past = match call.optional(*PAST.get(at)?) {
            None => None,
            Some(past) => {
                let &[.., length, _] = past.shape.as_slice() else { return None };
                Some(Rows::read(past, Heads { length, ..slots })?)
            }
        };
        let zeros = vec![0.0; slots.size];
        let row = |at: Place| {
            let token = signed(at.token).saturating_sub(self.position(at.batch, 0));
            let token = usize::try_from(token).ok().filter(|&token| token < self.k.length);
            let row = match (token, &past) {
                (Some(token), _) => new.at(Place { token, ..at }),
                (None, Some(past)) => past.at(at),
                (None, None) => &[],
            };
            if row.is_empty() { zeros.clone() } else { row.to_vec() }
        };
        Some(Rows { heads: slots, elements: slots.places().flat_map(row).collect() })
    }

    /// Returns the output `[batch, tokens, heads * size]`.
    fn attend(&self, call: &Call<'_>, [queries, keys, values]: [Rows<'_>; 3]) -> Result<Vec<f64>, OnnxError> {
        let window = match call.int("local_window_size", -1)? {
            size if size < 0 => i64::MAX,
            size => size,
        };
        let is_causal = call.flag("causal", true)?;
        let total = signed(keys.heads.length);
        let bias = match call.optional(BIAS) {
            None => None,
            Some(_) => {
                let shape = [self.q.batch, self.q.heads, self.q.length, keys.heads.length];
                call.work.charge(elements(&shape).saturating_mul(MASK_BYTES))?;
                let bias = ByScore::read(call, BIAS, shape)?;
                Some(bias.ok_or(FoldError::ValuesUnknown { input: BIAS })?)
            }
        };
        let added = |place: Place, slot: usize| {
            let Place { batch, token, .. } = place;
            let position = self.position(batch, token);
            let length = self.lengths.get(batch).copied().unwrap_or(total);
            let slot_at = signed(slot);
            let is_near = position.saturating_sub(slot_at) < window;
            if slot_at >= length || (is_causal && (slot_at > position || !is_near)) {
                return f64::NEG_INFINITY;
            }
            bias.as_ref().map_or(0.0, |bias| bias.at(place, slot).unwrap_or(f64::NAN))
        };
        let sinks = call.optional(SINK).map(|sinks| sinks.as_floats().unwrap_or(&[f64::NAN]));
        let is_smooth = call.int("smooth_softmax", 0)? > 0;
        let sink = |head: usize| match sinks {
            Some(sinks) => sinks.get(head).copied().unwrap_or(f64::NAN),
            None if is_smooth => 0.0,
            None => f64::NEG_INFINITY,
        };
        let scale = match call.float("scale", 0.0)? {
            0.0 => to_float(self.q.size).sqrt().recip(),
            scale => scale,
        };
        let (cap, element) = (call.float("softcap", 0.0)?, call.input(0)?.element);
        let weighted = Weighted { queries, keys, values, scale, cap, element };
        Ok(weighted.output(call, added, sink)?.by_token())
    }
}
