//! Ring caches of many sequences, each at its own position.

use std::ops::Range;

use candle_core::{DType, Device, Result, Tensor};
use kvscatter::Mode;
use kvscatter::visibility::Visibility;

use super::growing::tokens;
use super::rotating::{signed, truncated_ring};
use super::store::Store;
use crate::{CandleError, TensorScatter, WriteAt, write_many};

/// The dimension of the slots in `[batch, heads, context, head size]`.
const DIM: usize = 2;
const RING: TensorScatter = TensorScatter::new().mode(Mode::Circular);

/// The slots of the tokens of one step and their mask, like `candle_nn::kv_cache::IndicesAndMask`. It serves
/// every layer of the step.
#[derive(Clone, Debug)]
pub struct IndicesAndMask {
    /// The number of tokens of each sample.
    seq_len: usize,
    /// The rows that are written. These are the last rows of the update, at most one per slot.
    rows: Range<usize>,
    starts: Vec<i64>,
    lengths: Vec<i64>,
    mask: Tensor,
}

impl IndicesAndMask {
    /// Returns the mask, with 0 where a token attends and negative infinity where it does not.
    ///
    /// The shape is `[batch, 1, seq_len, context]` for the slots. A step at least as long as the context
    /// attends to itself, and the shape is `[seq_len, seq_len]`. For inactive samples, no slot is masked, so
    /// that no row is without a key.
    #[must_use]
    pub fn mask(&self) -> &Tensor {
        &self.mask
    }

    /// Returns the slot of the first token that is written, for each sample.
    #[must_use]
    pub fn write_indices(&self) -> &[i64] {
        &self.starts
    }

    /// Returns the number of tokens that are written for each sample. It is 0 for inactive samples.
    #[must_use]
    pub fn lengths(&self) -> &[i64] {
        &self.lengths
    }
}

/// The keys and values of one layer, like `candle_nn::kv_cache::ScatteredKvCache`.
/// [`ScatteredCacheBuilder::make_cache`] creates it.
#[derive(Clone, Debug)]
pub struct ScatteredKvCache {
    k: Store,
    v: Store,
    context: usize,
}

impl ScatteredKvCache {
    /// Appends the tokens of one step and returns the tensors that they attend to. These are the rings, which
    /// later steps change, or the updates themselves if they are at least as long as the context.
    ///
    /// # Errors
    /// Returns an error if a shape, type or device does not fit, or if `iam` is for another number of tokens.
    /// Both rings are unchanged.
    pub fn append(&mut self, k: &Tensor, v: &Tensor, iam: &IndicesAndMask) -> Result<(Tensor, Tensor)> {
        for update in [k, v] {
            let got = tokens(update, DIM)?;
            if got != iam.seq_len {
                return Err(CandleError::SequenceLength { got, expected: iam.seq_len }.into());
            }
        }
        let at = WriteAt::new(&iam.starts).lengths(&iam.lengths).rows(iam.rows.clone());
        self.k.make_sole()?;
        self.v.make_sole()?;
        let _ = write_many(&mut [self.k.write(k, at.clone()), self.v.write(v, at)])?;
        if iam.seq_len >= self.context {
            return Ok((k.clone(), v.clone()));
        }
        Ok((self.k().clone(), self.v().clone()))
    }

    /// Returns all slots of the keys.
    #[must_use]
    pub fn k(&self) -> &Tensor {
        self.k.tensor()
    }

    /// Returns all slots of the values.
    #[must_use]
    pub fn v(&self) -> &Tensor {
        self.v.tensor()
    }
}

/// The positions of a batch of sequences, like `candle_nn::kv_cache::ScatteredCacheBuilder`.
#[derive(Clone, Debug)]
pub struct ScatteredCacheBuilder {
    context: usize,
    /// The number of tokens of each sequence so far, which may exceed the number of slots.
    positions: Vec<usize>,
    dtype: DType,
    device: Device,
}

impl ScatteredCacheBuilder {
    /// Creates a batch of empty sequences in rings of `context` slots.
    ///
    /// # Errors
    /// Returns an error if `context` is 0.
    pub fn new(batch_size: usize, context: usize, dtype: DType, device: &Device) -> Result<Self> {
        if context == 0 {
            return Err(CandleError::NoRoom.into());
        }
        Ok(Self { context, positions: vec![0; batch_size], dtype, device: device.clone() })
    }

    /// Creates rings of zeros for one layer.
    ///
    /// # Errors
    /// Returns an error if an operation of candle fails, or for a device that cannot be written.
    pub fn make_cache(&self, num_heads: usize, head_dim: usize) -> Result<ScatteredKvCache> {
        let shape = (self.batch_size(), num_heads, self.context, head_dim);
        let zeros = || Store::new(Tensor::zeros(shape, self.dtype, &self.device)?, RING);
        Ok(ScatteredKvCache { k: zeros()?, v: zeros()?, context: self.context })
    }

    /// Returns the number of tokens of each sequence so far.
    #[must_use]
    pub fn positions(&self) -> &[usize] {
        &self.positions
    }

    /// Restarts all sequences at position 0.
    pub fn reset(&mut self) {
        self.positions.fill(0);
    }

    /// Returns the number of sequences.
    #[must_use]
    pub fn batch_size(&self) -> usize {
        self.positions.len()
    }

    /// Restarts one sequence at position 0.
    ///
    /// # Panics
    /// Panics if there is no such sequence, as candle-nn does.
    pub fn reset_batch_index(&mut self, batch_index: usize) {
        self.positions[batch_index] = 0;
    }

    /// Keeps the first `length` tokens of one sequence and drops the others, for example after speculative
    /// decoding.
    ///
    /// # Errors
    /// Returns an error if there are fewer tokens, or if the sequence's ring has wrapped and lost the oldest
    /// tokens.
    ///
    /// # Panics
    /// Panics if there is no such sequence.
    pub fn truncate_batch_index(&mut self, batch_index: usize, length: usize) -> Result<()> {
        self.positions[batch_index] = truncated_ring(length, self.positions[batch_index], self.context)?;
        Ok(())
    }

    /// Returns the device of caches and masks.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Advances every active sequence by `seq_len` tokens, and returns their slots and their mask.
    ///
    /// # Errors
    /// Returns an error if `batch_mask` does not have one entry for each sequence. No position has changed
    /// then.
    pub fn indices_and_mask(&mut self, seq_len: usize, batch_mask: &[bool]) -> Result<IndicesAndMask> {
        let (got, expected) = (batch_mask.len(), self.batch_size());
        if got != expected {
            return Err(CandleError::Entries { list: "batch_mask", got, expected }.into());
        }
        let ends = self.ends(seq_len, batch_mask)?;
        let mask = if seq_len >= self.context {
            self.mask_of_itself(seq_len)?
        } else {
            self.mask_of_slots(seq_len, batch_mask)?
        };
        let written = seq_len.min(self.context);
        let left_out = seq_len.saturating_sub(written);
        let (mut starts, mut lengths) = (Vec::with_capacity(expected), Vec::with_capacity(expected));
        let ring = self.rule(Mode::Circular, self.context);
        for (position, end) in self.positions.iter_mut().zip(ends) {
            // The sums are at most the ends, which fit.
            let (first, length) = end.map_or((*position, 0), |_| (*position + left_out, written));
            starts.push(signed(ring.slot_of(signed(first)).unwrap_or_default()));
            lengths.push(signed(length));
            *position = end.unwrap_or(*position);
        }
        Ok(IndicesAndMask { seq_len, rows: left_out..seq_len, starts, lengths, mask })
    }

    /// Returns the rule for what a token sees in these slots: itself and the `context - 1` tokens before it.
    fn rule(&self, mode: Mode, slots: usize) -> Visibility {
        Visibility::new(mode, slots).causal().window(self.context)
    }

    /// Returns the lengths of the active sequences after a step.
    fn ends(
        &self,
        tokens: usize,
        batch_mask: &[bool],
    ) -> std::result::Result<Vec<Option<usize>>, CandleError> {
        let end = |(&length, &active): (&usize, &bool)| match length.checked_add(tokens) {
            // Slots are computed from sums of this size.
            Some(end) if i64::try_from(end).is_ok() => Ok(active.then_some(end)),
            _ => Err(CandleError::TooLong { tokens, length }),
        };
        self.positions.iter().zip(batch_mask).map(end).collect()
    }

    /// Returns the mask of a step that is shorter than the context. Its tokens attend to the slots as they
    /// are after the step.
    fn mask_of_slots(&self, seq_len: usize, batch_mask: &[bool]) -> Result<Tensor> {
        let rule = self.rule(Mode::Circular, self.context);
        let mut mask = vec![f32::NEG_INFINITY; self.batch_size() * seq_len * self.context];
        let mut rows = mask.chunks_exact_mut(self.context);
        for (&length, &active) in self.positions.iter().zip(batch_mask) {
            let after = signed(length + seq_len);
            for (query, row) in (signed(length)..after).zip(rows.by_ref()) {
                let seen = rule.slots(rule.positions(after, query));
                show(row, if active { seen } else { [0..self.context, 0..0] });
            }
        }
        let shape = (self.batch_size(), 1, seq_len, self.context);
        Tensor::from_vec(mask, shape, &self.device)?.to_dtype(self.dtype)
    }

    /// Returns the mask of a step that is at least as long as the context. Its tokens attend to each other, so
    /// each is in the slot of its index.
    fn mask_of_itself(&self, seq_len: usize) -> Result<Tensor> {
        let rule = self.rule(Mode::Linear, seq_len);
        let mut mask = vec![f32::NEG_INFINITY; seq_len * seq_len];
        for (query, row) in (0..).zip(mask.chunks_exact_mut(seq_len)) {
            show(row, rule.slots(rule.positions(signed(seq_len), query)));
        }
        Tensor::from_vec(mask, (seq_len, seq_len), &self.device)?.to_dtype(self.dtype)
    }
}

/// Shows slots in a row of a mask that hides them.
fn show(row: &mut [f32], slots: [Range<usize>; 2]) {
    slots.into_iter().for_each(|slots| row[slots].fill(0.0));
}
