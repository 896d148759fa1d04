//! Ascend ATB `KVCacheOperation`.

use crate::rule::{Rule, SampleRows, expect_count, expect_lengths, skipped};
use crate::{NegativeIndex, OutOfRange, Outcome, Refusal, Tensor, ravel};

/// `KVCacheOperation`, which does not have attributes, with the policy of kvscatter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KvCacheOperation {
    /// What to do with samples that do not fit. This is a kvscatter extension; not part of the specification.
    pub out_of_range: OutOfRange,
}

impl KvCacheOperation {
    /// The element types that the operator supports, by their ONNX names.
    pub const ELEMENT_TYPES: [&'static str; 3] = ["float16", "int8", "bfloat16"];

    /// Returns the present for a cache `past` of the shape `[layer, batch, maxSeqLen, hiddenSize]`.
    ///
    /// ```text
    /// prefix_ntokens = 0
    /// for i in range(batch):
    ///     for j in range(seqlen[i]):
    ///         cache_out[layer_id[0]][i][token_offset[i] - seqlen[i] + j][:] = newkv[prefix_ntokens + j][:]
    ///     prefix_ntokens += seqlen[i]
    /// ```
    ///
    /// - `new_kv` has the shape `[ntokens, hiddenSize]`. It may also have the shape
    ///   `[batch, seq_len, head_num, head_size]`, which is read as `[batch * seq_len, head_num * head_size]`.
    /// - `token_offset` is the number of tokens *after* the write.
    /// - `lengths` contains the number of rows of each sample that are written, out of its `seq_len` rows.
    ///   This is a kvscatter extension; not part of the specification.
    ///
    /// # Errors
    /// Returns the first broken rule, in the order in the documentation of the [crate].
    pub fn run<E: Clone>(
        &self,
        new_kv: Tensor<'_, E>,
        layer_id: &[i32],
        past: Tensor<'_, E>,
        token_offset: &[i32],
        seq_len: &[i32],
        lengths: Option<&[i64]>,
    ) -> Result<Outcome<E>, Refusal> {
        let samples = self.samples(new_kv.shape, layer_id, past.shape, token_offset, seq_len, lengths)?;
        let (batch, hidden) = (past.shape[1], past.shape[3]);
        let mut present = past.data.to_vec();
        let mut prefix_ntokens = 0;
        for i in 0..batch {
            for (j, &slot) in samples[i].slots.iter().flatten().enumerate() {
                for column in 0..hidden {
                    present[ravel(&[layer_id[0] as usize, i, slot, column], past.shape)] =
                        new_kv.data[(prefix_ntokens + j) * hidden + column].clone();
                }
            }
            prefix_ntokens += samples[i].rows;
        }
        Ok(Outcome { present, skipped: skipped(&samples) })
    }

    /// Returns where the rows of each sample go, without moving elements.
    fn samples(
        &self,
        new_kv: &[usize],
        layer_id: &[i32],
        past: &[usize],
        token_offset: &[i32],
        seq_len: &[i32],
        lengths: Option<&[i64]>,
    ) -> Result<Vec<SampleRows>, Refusal> {
        let &[layers, batch, capacity, hidden] = past else {
            return Err(Refusal::CacheRank { rank: past.len() });
        };
        let (tokens, new_hidden, equal_rows) = match *new_kv {
            [tokens, hidden] => (tokens, hidden, None),
            [new_batch, _, _, _] if new_batch != batch => {
                return Err(Refusal::Dimension { dimension: 0, cache: batch, update: new_batch });
            }
            [batch, rows, heads, head_size] => (batch * rows, heads * head_size, Some(rows)),
            _ => {
                return Err(Refusal::UpdateRank { rank: new_kv.len() });
            }
        };
        if new_hidden != hidden {
            return Err(Refusal::Dimension {
                dimension: new_kv.len() - 1,
                cache: hidden,
                update: new_hidden,
            });
        }
        if let Some(rows) = equal_rows.filter(|&rows| rows > capacity) {
            return Err(Refusal::UpdateTooLong { capacity, rows });
        }
        expect_count("layerId", layer_id.len(), 1)?;
        expect_count("tokenOffset", token_offset.len(), batch)?;
        expect_count("seqLen", seq_len.len(), batch)?;
        expect_lengths(lengths, batch)?;
        let layer_id = layer_id[0];
        if layer_id < 0 || layer_id as usize >= layers {
            return Err(Refusal::LayerId { layer_id, layers });
        }
        let rule = Rule {
            capacity,
            circular: false,
            out_of_range: self.out_of_range,
            negative_index: NegativeIndex::default(),
            lengths,
        };
        let mut samples = Vec::new();
        for (sample, &seq_len) in seq_len.iter().enumerate() {
            let fits = seq_len > 0 && seq_len as usize <= capacity;
            if !fits || equal_rows.is_some_and(|rows| rows != seq_len as usize) {
                return Err(Refusal::SeqLen { sample, seq_len });
            }
            let start = i128::from(token_offset[sample]) - i128::from(seq_len);
            samples.push(rule.sample(sample, start, seq_len as usize)?);
        }
        let total = seq_len.iter().map(|&seq_len| seq_len as usize).sum();
        if total != tokens {
            return Err(Refusal::SeqLenTotal { total, tokens });
        }
        Ok(samples)
    }
}
