//! ONNX `TensorScatter-24`.

use crate::rule::{Rule, SampleRows, expect_count, expect_lengths, skipped};
use crate::{NegativeIndex, OutOfRange, Outcome, Refusal, Tensor, ravel, size, unravel};

/// `TensorScatter` with the attributes as they appear in a model, and with both policies of kvscatter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorScatter {
    /// The sequence dimension. A negative value counts from the last dimension. It cannot be the batch.
    /// Default: -2.
    pub axis: i64,
    /// `linear` (default) or `circular`.
    pub mode: String,
    /// What to do with samples that do not fit. This is a kvscatter extension; not part of the specification.
    pub out_of_range: OutOfRange,
    /// What a negative index means in circular mode. This is a kvscatter extension; not part of the
    /// specification.
    pub negative_index: NegativeIndex,
}

impl Default for TensorScatter {
    fn default() -> Self {
        Self {
            axis: -2,
            mode: "linear".to_owned(),
            out_of_range: OutOfRange::default(),
            negative_index: NegativeIndex::default(),
        }
    }
}

impl TensorScatter {
    /// Returns `present_cache`, which has the shape `(batch, D1, …, max_sequence_length, …, Dn)`.
    ///
    /// `write_indices` has the shape `(batch,)`. If it is absent, all indices are 0. `lengths` also has the
    /// shape `(batch,)`. If it is absent, all rows of the update are written. `lengths` is a kvscatter
    /// extension; not part of the specification.
    ///
    /// ```text
    /// for prefix_idx in np.ndindex(past_cache.shape[:axis]):
    ///     batch_idx = prefix_idx[0]
    ///     for sequence_idx in range(sequence_length):
    ///         cache_idx = (*prefix_idx, write_indices[batch_idx] + sequence_idx)
    ///         if mode == "circular":     # with the erratum: only the last coordinate, not the tuple
    ///             cache_idx = (*prefix_idx, cache_idx[-1] mod max_sequence_length)
    ///         present_cache[cache_idx] = update[(*prefix_idx, sequence_idx)]
    /// ```
    ///
    /// # Errors
    /// Returns the first broken rule, in the order in the documentation of the [crate].
    pub fn run<E: Clone>(
        &self,
        past_cache: Tensor<'_, E>,
        update: Tensor<'_, E>,
        write_indices: Option<&[i64]>,
        lengths: Option<&[i64]>,
    ) -> Result<Outcome<E>, Refusal> {
        let samples = self.samples(past_cache.shape, update.shape, write_indices, lengths)?;
        let (axis, _) = self.checked_attributes(past_cache.shape, update.shape)?;
        let mut present = past_cache.data.to_vec();
        for (flat, element) in update.data.iter().enumerate() {
            let mut index = unravel(flat, update.shape);
            let Some(slots) = &samples[index[0]].slots else {
                continue; // the sample is skipped
            };
            let Some(&slot) = slots.get(index[axis]) else {
                continue; // the row is padding
            };
            index[axis] = slot;
            present[ravel(&index, past_cache.shape)] = element.clone();
        }
        Ok(Outcome { present, skipped: skipped(&samples) })
    }

    /// Returns where the rows of each sample go, without moving elements.
    fn samples(
        &self,
        past_cache: &[usize],
        update: &[usize],
        write_indices: Option<&[i64]>,
        lengths: Option<&[i64]>,
    ) -> Result<Vec<SampleRows>, Refusal> {
        let (axis, circular) = self.checked_attributes(past_cache, update)?;
        let batch = past_cache[0];
        if size(update) == 0 && write_indices.is_none() && lengths.is_none() {
            // An empty tensor may have any number of samples. There is nothing to write or check, so the call
            // returns early.
            return Ok(Vec::new());
        }
        if let Some(write_indices) = write_indices {
            expect_count("write_indices", write_indices.len(), batch)?;
        }
        expect_lengths(lengths, batch)?;
        let rule = Rule {
            capacity: past_cache[axis],
            circular,
            out_of_range: self.out_of_range,
            negative_index: self.negative_index,
            lengths,
        };
        let sample = |sample| {
            let start = write_indices.map_or(0, |indices| indices[sample]);
            rule.sample(sample, start.into(), update[axis])
        };
        (0..batch).map(sample).collect()
    }

    /// Returns the axis counted from the front, and whether the mode is circular.
    fn checked_attributes(&self, cache: &[usize], update: &[usize]) -> Result<(usize, bool), Refusal> {
        let circular = match self.mode.as_str() {
            "linear" => false,
            "circular" => true,
            name => {
                return Err(Refusal::Mode { name: name.to_owned() });
            }
        };
        let rank = cache.len();
        if rank < 2 {
            return Err(Refusal::CacheRank { rank });
        }
        let axis = i128::from(self.axis) + if self.axis < 0 { rank as i128 } else { 0 };
        if axis < 1 || axis >= rank as i128 {
            return Err(Refusal::Axis { axis: self.axis, rank });
        }
        let axis = axis as usize;
        if update.len() != rank {
            return Err(Refusal::UpdateRank { rank: update.len() });
        }
        for dimension in (0..rank).filter(|&dimension| dimension != axis) {
            if cache[dimension] != update[dimension] {
                return Err(Refusal::Dimension {
                    dimension,
                    cache: cache[dimension],
                    update: update[dimension],
                });
            }
        }
        if update[axis] > cache[axis] {
            return Err(Refusal::UpdateTooLong { capacity: cache[axis], rows: update[axis] });
        }
        Ok((axis, circular))
    }
}
