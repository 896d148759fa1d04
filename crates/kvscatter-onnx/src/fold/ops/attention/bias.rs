//! What ONNX `Attention` adds to each score.

use super::heads::{Heads, Place};
use crate::OnnxError;
use crate::fold::Values;
use crate::fold::call::Call;
use crate::fold::shapes::{broadcast, elements, signed, spread};

/// The number of bytes that the mask of one score takes.
pub(super) const MASK_BYTES: usize = 24;

/// What is added to each score: by the mask, by causality and by the length in use.
pub(super) struct Bias {
    /// The sizes `[batch, heads, queries, columns]` of the mask. It has one column for each key, or fewer. The
    /// other keys are hidden.
    shape: [usize; 4],
    /// One element for each score, or none without a mask.
    mask: Vec<f64>,
    /// The number of keys of each sample in use.
    lengths: Option<Vec<i64>>,
    /// The number of keys of the past.
    past: usize,
    is_causal: bool,
}

impl Bias {
    /// Reads the inputs 3 and 6. `k` counts the keys of the past too.
    ///
    /// Returns `None` if a mask or a length is not known, or if the mask does not broadcast.
    pub(super) fn of(call: &Call<'_>, q: Heads, k: Heads, past: usize) -> Result<Option<Self>, OnnxError> {
        let mut shape = [q.batch, q.heads, q.length, k.length];
        call.work.charge(elements(&shape).saturating_mul(MASK_BYTES))?;
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
        Ok(Some(Self { shape, mask, lengths, past, is_causal: call.flag("is_causal", false)? }))
    }

    /// Returns what is added to the score of a query and a key.
    pub(super) fn at(&self, Place { batch, head, token }: Place, slot: usize) -> f64 {
        let [_, _, queries, _] = self.shape;
        let length = self.lengths.as_ref().and_then(|lengths| lengths.get(batch)).copied();
        let [token_at, slot_at, queries, past] = [token, slot, queries, self.past].map(signed);
        let first = length.map_or(past, |length| length.saturating_sub(queries));
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
