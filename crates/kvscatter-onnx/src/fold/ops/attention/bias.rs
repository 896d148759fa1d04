//! What attention adds to each score.

use std::borrow::Cow;

use super::heads::{Heads, Place};
use crate::OnnxError;
use crate::fold::call::Call;
use crate::fold::shapes::{broadcast, elements, signed, spread};
use crate::fold::values::Uncomputed;
use crate::fold::{Value, Values};

/// The number of bytes that the mask of one score takes.
const MASK_BYTES: usize = 24;

/// What is added to each score. A hidden key gets negative infinity.
pub(super) struct Bias {
    scores: Option<ByScore>,
    /// The position of the first query of each sample.
    pub(super) starts: Vec<i64>,
    /// The number of keys of each sample in use, or `None` for all.
    pub(super) lengths: Option<Vec<i64>>,
    pub(super) is_causal: bool,
    /// The number of keys that a causal query sees, with its own.
    pub(super) window: i64,
}

/// A number for each score.
struct ByScore {
    /// The sizes `[batch, heads, queries, columns]`. Keys beyond the columns are hidden.
    shape: [usize; 4],
    numbers: Vec<f64>,
}

impl Bias {
    /// Returns a bias that adds nothing.
    pub(super) fn new(starts: Vec<i64>) -> Self {
        Self { scores: None, starts, lengths: None, is_causal: false, window: i64::MAX }
    }

    /// Adds a mask of booleans or floats. It has a column for each key, or fewer.
    pub(super) fn add_mask(
        &mut self,
        call: &Call<'_>,
        mask: &Value,
        q: Heads,
        k: Heads,
    ) -> Result<(), Uncomputed> {
        let columns = mask.shape.last().copied().filter(|&size| size != 1).unwrap_or(k.length);
        let shape = [q.batch, q.heads, q.length, columns];
        if columns > k.length || broadcast(&mask.shape, &shape).ok().as_deref() != Some(&shape) {
            return Err(Uncomputed::Unknown);
        }
        let number = |&flag: &bool| if flag { 0.0 } else { f64::NEG_INFINITY };
        let numbers: Cow<'_, [f64]> = match mask.known()? {
            Values::Bools(flags) => flags.iter().map(number).collect(),
            Values::Floats(floats) => floats.into(),
            Values::Ints(_) => return Err(Uncomputed::Unknown),
        };
        Ok(self.add(call, &numbers, &mask.shape, shape)?)
    }

    /// Adds an optional input with a number for each score.
    ///
    /// # Errors
    /// Returns [`FoldError::InputShape`](crate::fold::FoldError::InputShape) if it does not broadcast.
    pub(super) fn add_input(
        &mut self,
        call: &Call<'_>,
        index: usize,
        q: Heads,
        k: Heads,
    ) -> Result<(), Uncomputed> {
        let Some(value) = call.optional(index) else { return Ok(()) };
        let shape = [q.batch, q.heads, q.length, k.length];
        if broadcast(&value.shape, &shape)? != shape {
            return Err(call.bad_shape(index, "[batch or 1, heads or 1, tokens, all tokens]").into());
        }
        Ok(self.add(call, value.known_floats()?, &value.shape, shape)?)
    }

    /// Adds numbers that broadcast from a shape to another one.
    pub(super) fn add(
        &mut self,
        call: &Call<'_>,
        numbers: &[f64],
        from: &[usize],
        shape: [usize; 4],
    ) -> Result<(), OnnxError> {
        call.work.charge(elements(&shape).saturating_mul(MASK_BYTES))?;
        let spread = spread(from, &shape).map(|at| numbers.get(at).copied().unwrap_or(f64::NAN));
        match &mut self.scores {
            Some(scores) => scores.numbers.iter_mut().zip(spread).for_each(|(sum, added)| *sum += added),
            none => *none = Some(ByScore { shape, numbers: spread.collect() }),
        }
        Ok(())
    }

    /// Returns what is added to the score of a query and a key.
    pub(super) fn at(&self, place: Place, slot: usize) -> f64 {
        let Place { batch, head, token } = place;
        let slot_at = signed(slot);
        let position = self.starts.get(batch).copied().unwrap_or_default().saturating_add(signed(token));
        let length = self.lengths.as_ref().and_then(|lengths| lengths.get(batch)).copied();
        let is_seen = slot_at <= position && position.saturating_sub(slot_at) < self.window;
        if length.is_some_and(|length| slot_at >= length) || (self.is_causal && !is_seen) {
            return f64::NEG_INFINITY;
        }
        let Some(ByScore { shape: [_, heads, tokens, columns], numbers }) = &self.scores else { return 0.0 };
        if slot >= *columns {
            return f64::NEG_INFINITY;
        }
        let inner = [(heads, head), (tokens, token), (columns, slot)].into_iter();
        let at = inner.fold(batch, |row, (dim, at)| row.saturating_mul(*dim).saturating_add(at));
        numbers.get(at).copied().unwrap_or(f64::NAN)
    }
}
