//! TensorRT `KVCacheUpdate`.

use crate::rule::{Rule, SampleRows, expect_count, expect_lengths, skipped};
use crate::{NegativeIndex, OutOfRange, Outcome, Refusal, Tensor, ravel, unravel};

/// The layout of the update.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UpdateForm {
    /// Padded: `[b, d, s, h]`.
    #[default]
    Padded,
    /// Packed: `[tokens, d, h]`, with `updateLengths`.
    Packed,
}

/// `KVCacheUpdate` in LINEAR, its only mode, with the policy of kvscatter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KvCacheUpdate {
    /// The layout of the update.
    pub update_form: UpdateForm,
    /// What to do with samples that do not fit. This is a kvscatter extension; not part of the specification.
    pub out_of_range: OutOfRange,
}

impl KvCacheUpdate {
    /// The element types that the operator supports, by their ONNX names.
    pub const ELEMENT_TYPES: [&'static str; 3] = ["float", "float16", "bfloat16"];

    /// Returns the cache after `output[i, :, writeIndices[i] + s, :] = update[i, :, s, :]`. The cache has the
    /// shape `[b, d, s_max, h]`.
    ///
    /// The update may have fewer samples than the cache. The later samples of the cache do not change.
    ///
    /// - `write_indices` has one value per sample of the update.
    /// - `update_lengths` is required for a packed update, and not allowed for a padded one. It is
    ///   cumulative, so it has one value more than there are samples.
    /// - `lengths` contains the number of rows of each sample that are written. This is a kvscatter
    ///   extension; not part of the specification.
    ///
    /// # Errors
    /// Returns the first broken rule, in the order in the documentation of the [crate].
    pub fn run<E: Clone>(
        &self,
        cache: Tensor<'_, E>,
        update: Tensor<'_, E>,
        write_indices: &[i64],
        update_lengths: Option<&[i32]>,
        lengths: Option<&[i64]>,
    ) -> Result<Outcome<E>, Refusal> {
        let samples = self.samples(cache.shape, update.shape, write_indices, update_lengths, lengths)?;
        let token_owner: Vec<_> = samples
            .iter()
            .enumerate()
            .flat_map(|(sample, rows)| (0..rows.rows).map(move |row| (sample, row)))
            .collect();

        let mut output = cache.data.to_vec();
        for (flat, element) in update.data.iter().enumerate() {
            let index = unravel(flat, update.shape);
            let (sample, row) = match self.update_form {
                UpdateForm::Padded => (index[0], index[2]),
                UpdateForm::Packed => token_owner[index[0]],
            };
            let (head, column) = (index[1], index[index.len() - 1]);
            let Some(slots) = &samples[sample].slots else {
                continue; // the sample is skipped
            };
            let Some(&slot) = slots.get(row) else {
                continue; // the row is padding
            };
            output[ravel(&[sample, head, slot, column], cache.shape)] = element.clone();
        }
        Ok(Outcome { present: output, skipped: skipped(&samples) })
    }

    /// Returns where the rows of each sample of the update go, without moving elements.
    fn samples(
        &self,
        cache: &[usize],
        update: &[usize],
        write_indices: &[i64],
        update_lengths: Option<&[i32]>,
        lengths: Option<&[i64]>,
    ) -> Result<Vec<SampleRows>, Refusal> {
        let &[cache_batch, heads, capacity, head_size] = cache else {
            return Err(Refusal::CacheRank { rank: cache.len() });
        };
        let heads_and_head_size = match (self.update_form, update) {
            (UpdateForm::Padded, &[_, d, _, h]) => [(1, heads, d), (3, head_size, h)],
            (UpdateForm::Packed, &[_, d, h]) => [(1, heads, d), (2, head_size, h)],
            _ => {
                return Err(Refusal::UpdateRank { rank: update.len() });
            }
        };
        for (dimension, cache, update) in heads_and_head_size {
            if cache != update {
                return Err(Refusal::Dimension { dimension, cache, update });
            }
        }
        let rows = match (self.update_form, update_lengths) {
            (UpdateForm::Padded, None) => {
                let (batch, rows) = (update[0], update[2]);
                if rows > capacity {
                    return Err(Refusal::UpdateTooLong { capacity, rows });
                }
                if batch > cache_batch {
                    let argument = "update";
                    return Err(Refusal::UpdateBatch { argument, cache: cache_batch, update: batch });
                }
                expect_count("writeIndices", write_indices.len(), batch)?;
                expect_lengths(lengths, batch)?;
                vec![rows; batch]
            }
            (UpdateForm::Packed, Some(update_lengths)) => {
                let count = update_lengths.len();
                // A list with one value per sample contains plain lengths instead of cumulative ones.
                if count == 0 || count == write_indices.len() {
                    expect_count("updateLengths", count, write_indices.len() + 1)?;
                }
                let batch = count - 1;
                expect_count("writeIndices", write_indices.len(), batch)?;
                if batch > cache_batch {
                    let argument = "writeIndices";
                    return Err(Refusal::UpdateBatch { argument, cache: cache_batch, update: batch });
                }
                expect_lengths(lengths, batch)?;
                packed_rows(update_lengths)?
            }
            (UpdateForm::Padded, Some(_)) => return Err(Refusal::UpdateLengthsUnexpected),
            (UpdateForm::Packed, None) => return Err(Refusal::UpdateLengthsMissing),
        };
        let rule = Rule {
            capacity,
            circular: false,
            out_of_range: self.out_of_range,
            negative_index: NegativeIndex::default(),
            lengths,
        };
        let mut samples = Vec::new();
        for (sample, &rows) in rows.iter().enumerate() {
            if rows > capacity {
                return Err(Refusal::UpdateLengthsTooLong { sample, rows, capacity });
            }
            samples.push(rule.sample(sample, write_indices[sample].into(), rows)?);
        }
        let total = rows.iter().sum();
        if self.update_form == UpdateForm::Packed && total != update[0] {
            return Err(Refusal::UpdateLengthsTotal { total, tokens: update[0] });
        }
        Ok(samples)
    }
}

fn packed_rows(update_lengths: &[i32]) -> Result<Vec<usize>, Refusal> {
    if let Some(&first) = update_lengths.first().filter(|&&first| first != 0) {
        return Err(Refusal::UpdateLengthsFirst { first });
    }
    let mut rows = Vec::new();
    for (sample, pair) in update_lengths.windows(2).enumerate() {
        if pair[1] < pair[0] {
            return Err(Refusal::UpdateLengthsDecrease { sample });
        }
        rows.push((pair[1] - pair[0]) as usize);
    }
    Ok(rows)
}
