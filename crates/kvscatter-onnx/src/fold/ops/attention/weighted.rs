//! The elements of the first output of ONNX `Attention`: values, weighted by the softmax of masked scores.

use super::heads::Heads;
use crate::OnnxError;
use crate::fold::call::Call;
use crate::fold::number::{round, to_float};
use crate::fold::shapes::{broadcast, signed, spread};
use crate::fold::{Value, Values};

/// The number of bytes that the mask of one score takes.
const MASK_BYTES: usize = 24;

/// Computes the elements in float64, and rounds them to the type of the queries.
///
/// The cap on scores comes before the mask, and a query that sees no key gives zeros, as onnx 1.23 corrected
/// both. Returns `None` if an input is not known, or if there is a past, whose keys are further inputs.
pub(super) fn values(call: &Call<'_>, [q, k, v]: [Heads; 3]) -> Result<Option<Values>, OnnxError> {
    let floats = |index: usize| call.optional(index).and_then(Value::as_floats);
    let (Some(queries), Some(keys), Some(values)) = (floats(0), floats(1), floats(2)) else {
        return Ok(None);
    };
    let shared = q.heads.checked_div(k.heads).filter(|shared| shared.checked_mul(k.heads) == Some(q.heads));
    let shared = shared.ok_or_else(|| call.bad_shape(1, "a number of heads that divides the queries'"))?;
    // Each score also takes the memory of its mask.
    let of_score = k.size.saturating_add(v.size).saturating_add(MASK_BYTES);
    let products = [q.batch, q.heads, q.length, k.length, of_score];
    call.work.charge(products.into_iter().fold(1, usize::saturating_mul))?;
    let Some(bias) = Bias::of(call, q, k)? else { return Ok(None) };
    let scale = match call.attribute("scale") {
        Some(_) => call.float("scale", 1.0)?,
        None => to_float(k.size).sqrt().recip(),
    };
    let cap = call.float("softcap", 0.0)?;
    let query = call.input(0)?;
    let is_flat = query.rank() == 3;
    let [queries, keys, values] =
        [(q, queries), (k, keys), (v, values)].map(|(heads, elements)| Rows { heads, elements, is_flat });
    let mut output = Vec::new();
    for place in places(q, is_flat) {
        let kv_head = place.head.checked_div(shared).unwrap_or_default();
        let row = queries.at(place);
        let at = |slot| Place { head: kv_head, token: slot, ..place };
        let score = |slot| {
            let score = scale * row.iter().zip(keys.at(at(slot))).map(|(q, k)| q * k).sum::<f64>();
            let score = if cap > 0.0 { cap * (score / cap).tanh() } else { score };
            score + bias.at(place, slot)
        };
        let scores: Vec<f64> = (0..k.length).map(score).collect();
        let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let mut total = 0.0;
        let mut sums = vec![0.0; v.size];
        for (slot, score) in scores.into_iter().enumerate().filter(|(_, score)| *score != f64::NEG_INFINITY) {
            let weight = (score - most).exp();
            total += weight;
            sums.iter_mut().zip(values.at(at(slot))).for_each(|(sum, value)| *sum += weight * value);
        }
        let least = if total == 0.0 { 1.0 } else { total };
        output.extend(sums.iter().map(|sum| round(query.element, sum / least)));
    }
    Ok(Some(Values::Floats(output)))
}

/// One row of queries, keys or values.
#[derive(Clone, Copy)]
struct Place {
    batch: usize,
    head: usize,
    token: usize,
}

/// Returns all rows in the order of their elements.
fn places(heads: Heads, is_flat: bool) -> Vec<Place> {
    let Heads { batch: batches, heads, length, .. } = heads;
    let (outer, inner) = if is_flat { (length, heads) } else { (heads, length) };
    let mut places = Vec::new();
    for batch in 0..batches {
        for outer in 0..outer {
            places.extend((0..inner).map(|inner| match is_flat {
                true => Place { batch, head: inner, token: outer },
                false => Place { batch, head: outer, token: inner },
            }));
        }
    }
    places
}

/// The elements of queries, keys or values.
struct Rows<'a> {
    heads: Heads,
    elements: &'a [f64],
    is_flat: bool,
}

impl<'a> Rows<'a> {
    fn at(&self, Place { batch, head, token }: Place) -> &'a [f64] {
        let Heads { heads, length, size, .. } = self.heads;
        let [dims, at] =
            if self.is_flat { [[length, heads], [token, head]] } else { [[heads, length], [head, token]] };
        let row =
            dims.into_iter().zip(at).fold(batch, |row, (dim, at)| row.saturating_mul(dim).saturating_add(at));
        let start = row.saturating_mul(size);
        self.elements.get(start..start.saturating_add(size)).unwrap_or_default()
    }
}

/// What is added to each score: by the mask, by causality and by the length in use.
struct Bias {
    /// The sizes `[batch, heads, queries, columns]` of the mask. It has one column for each key, or fewer. The
    /// other keys are hidden.
    shape: [usize; 4],
    /// One element for each score, or none without a mask.
    mask: Vec<f64>,
    /// The number of keys of each sample in use.
    lengths: Option<Vec<i64>>,
    is_causal: bool,
}

impl Bias {
    /// Returns `None` if a mask or a length is not known, if the mask does not broadcast, or if there is a
    /// past.
    fn of(call: &Call<'_>, q: Heads, k: Heads) -> Result<Option<Self>, OnnxError> {
        let mut shape = [q.batch, q.heads, q.length, k.length];
        if call.optional(4).is_some() || call.optional(5).is_some() {
            return Ok(None);
        }
        let mask = match call.optional(3) {
            None => Vec::new(),
            Some(mask) => {
                let element = |flag: &bool| if *flag { 0.0 } else { f64::NEG_INFINITY };
                let elements = match &mask.data {
                    Some(Values::Bools(flags)) => flags.iter().map(element).collect(),
                    Some(Values::Floats(floats)) => floats.clone(),
                    _ => return Ok(None),
                };
                let [.., columns] = &mut shape;
                *columns = mask.shape.last().copied().filter(|&size| size != 1).unwrap_or(*columns);
                if *columns > k.length || broadcast(&mask.shape, &shape).ok().as_deref() != Some(&shape) {
                    return Ok(None);
                }
                let at = spread(&mask.shape, &shape);
                at.iter().map(|&at| elements.get(at).copied().unwrap_or(f64::NAN)).collect()
            }
        };
        let lengths = match call.optional(6) {
            None => None,
            Some(lengths) => match lengths.as_ints() {
                Some(lengths) => Some(lengths.to_vec()),
                None => return Ok(None),
            },
        };
        Ok(Some(Self { shape, mask, lengths, is_causal: call.flag("is_causal", false)? }))
    }

    fn at(&self, Place { batch, head, token }: Place, slot: usize) -> f64 {
        let [_, _, queries, _] = self.shape;
        let length = self.lengths.as_ref().and_then(|lengths| lengths.get(batch)).copied();
        let [token_at, slot_at, queries] = [token, slot, queries].map(signed);
        let first = length.map_or(0, |length| length.saturating_sub(queries));
        let is_unused = length.is_some_and(|length| slot_at >= length);
        if is_unused || (self.is_causal && slot_at > first.saturating_add(token_at)) {
            return f64::NEG_INFINITY;
        }
        let [_, dims @ ..] = self.shape;
        let [.., columns] = self.shape;
        if self.mask.is_empty() {
            return 0.0;
        }
        if slot >= columns {
            return f64::NEG_INFINITY;
        }
        let at = dims
            .into_iter()
            .zip([head, token, slot])
            .fold(batch, |row, (dim, at)| row.saturating_mul(dim).saturating_add(at));
        self.mask.get(at).copied().unwrap_or(f64::NAN)
    }
}
