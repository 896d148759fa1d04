//! What ONNX `Attention` adds to each score.

use std::borrow::Cow;

use super::heads::{Heads, Place};
use crate::OnnxError;
use crate::fold::Values;
use crate::fold::call::Call;
use crate::fold::shapes::{broadcast, elements, signed, spread};
use crate::onnx_attention::{MASK, NONPAD_KV_SEQLEN};

/// The number of bytes that the mask of one score takes.
pub(super) const MASK_BYTES: usize = 24;

/// A number for each score, spread from an input that broadcasts.
pub(super) struct ByScore {
    /// The sizes `[batch, heads, queries, columns]`.
    shape: [usize; 4],
    numbers: Vec<f64>,
}

impl ByScore {
    /// Broadcasts numbers from a shape to another one.
    pub(super) fn spread(numbers: &[f64], from: &[usize], shape: [usize; 4]) -> Self {
        let at = spread(from, &shape);
        Self { shape, numbers: at.map(|at| numbers.get(at).copied().unwrap_or(f64::NAN)).collect() }
    }

    /// Reads an input with a number for each score of this shape. Returns `None` if it is not known.
    ///
    /// # Errors
    /// Returns [`FoldError::InputShape`](crate::fold::FoldError::InputShape) if it does not broadcast.
    pub(super) fn read(call: &Call<'_>, index: usize, shape: [usize; 4]) -> Result<Option<Self>, OnnxError> {
        let value = call.input(index)?;
        if broadcast(&value.shape, &shape)? != shape {
            return Err(call.bad_shape(index, "[batch or 1, heads or 1, tokens, all tokens]"));
        }
        Ok(value.as_floats().map(|numbers| Self::spread(numbers, &value.shape, shape)))
    }

    /// Returns the number for a query and a key, or `None` for a key beyond the columns.
    pub(super) fn at(&self, Place { batch, head, token }: Place, slot: usize) -> Option<f64> {
        let [_, heads, tokens, columns] = self.shape;
        if slot >= columns {
            return None;
        }
        let inner = [(heads, head), (tokens, token), (columns, slot)].into_iter();
        let at = inner.fold(batch, |row, (dim, at)| row.saturating_mul(dim).saturating_add(at));
        Some(self.numbers.get(at).copied().unwrap_or(f64::NAN))
    }
}

/// What is added to each score: by the mask, by causality and by the length in use.
pub(super) struct Bias {
    /// The mask has one column for each key, or fewer. The other keys are hidden.
    mask: Option<ByScore>,
    /// The number of new queries.
    queries: usize,
    /// The number of keys of each sample in use.
    lengths: Option<Vec<i64>>,
    /// The number of keys of the past.
    past: usize,
    is_causal: bool,
}

impl Bias {
    /// Reads the mask and the lengths. `k` counts the keys of the past too.
    ///
    /// Returns `None` if a mask or a length is not known, or if the mask does not broadcast.
    pub(super) fn read(call: &Call<'_>, q: Heads, k: Heads, past: usize) -> Result<Option<Self>, OnnxError> {
        let mut shape = [q.batch, q.heads, q.length, k.length];
        call.work.charge(elements(&shape).saturating_mul(MASK_BYTES))?;
        let mask = match call.optional(MASK) {
            None => None,
            Some(mask) => {
                let element = |flag: &bool| if *flag { 0.0 } else { f64::NEG_INFINITY };
                let numbers: Cow<'_, [f64]> = match &mask.data {
                    Some(Values::Bools(flags)) => flags.iter().map(element).collect(),
                    Some(Values::Floats(floats)) => floats.into(),
                    _ => return Ok(None),
                };
                let [.., columns] = &mut shape;
                *columns = mask.shape.last().copied().filter(|&size| size != 1).unwrap_or(*columns);
                if *columns > k.length || broadcast(&mask.shape, &shape).ok().as_deref() != Some(&shape) {
                    return Ok(None);
                }
                Some(ByScore::spread(&numbers, &mask.shape, shape))
            }
        };
        let lengths = match call.optional(NONPAD_KV_SEQLEN) {
            None => None,
            Some(lengths) => match lengths.as_ints() {
                Some(lengths) => Some(lengths.to_vec()),
                None => return Ok(None),
            },
        };
        Ok(Some(Self { mask, queries: q.length, lengths, past, is_causal: call.flag("is_causal", false)? }))
    }

    /// Returns what is added to the score of a query and a key.
    pub(super) fn at(&self, place: Place, slot: usize) -> f64 {
        let length = self.lengths.as_ref().and_then(|lengths| lengths.get(place.batch)).copied();
        let [token_at, slot_at, queries, past] = [place.token, slot, self.queries, self.past].map(signed);
        let first = length.map_or(past, |length| length.saturating_sub(queries));
        let is_unused = length.is_some_and(|length| slot_at >= length);
        if is_unused || (self.is_causal && slot_at > first.saturating_add(token_at)) {
            return f64::NEG_INFINITY;
        }
        self.mask.as_ref().map_or(0.0, |mask| mask.at(place, slot).unwrap_or(f64::NEG_INFINITY))
    }
}
