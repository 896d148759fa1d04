/// The rule that a call broke, with the offending numbers. Types have their ONNX names, and inputs those of
/// their specification.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "each variant's comment and its names describe the fields")]
pub enum Refusal {
    /// The cache and the update have different element types.
    TypesDiffer { cache: &'static str, update: &'static str },
    /// The operator does not support this element type.
    UnsupportedType { element: &'static str },
    /// ONNX: the mode is neither `linear` nor `circular`.
    Mode { name: String },
    /// The operator does not accept a cache of this rank.
    CacheRank { rank: usize },
    /// The operator does not accept an update of this rank with this cache.
    UpdateRank { rank: usize },
    /// ONNX: the axis is the batch dimension, or it is out of range.
    Axis { axis: i64, rank: usize },
    /// A dimension of the update differs from the cache's, but must equal it.
    Dimension { dimension: usize, cache: usize, update: usize },
    /// TensorRT: the update has more samples than the cache.
    UpdateBatch {
        /// The input that determines the number of samples: the update, or `writeIndices` if the update is
        /// packed.
        argument: &'static str,
        cache: usize,
        update: usize,
    },
    /// The update has more rows per sample than the cache has slots.
    UpdateTooLong { capacity: usize, rows: usize },
    /// A list does not have the required number of values.
    IndexCount { argument: &'static str, given: usize, needed: usize },
    /// kvscatter extension: `lengths[sample]` is negative or exceeds the sample's rows in the update.
    Length { sample: usize, length: i64, rows: usize },
    /// The first slot is below 0, in linear mode or under [`Reject`](crate::NegativeIndex::Reject).
    NegativeStart { sample: usize, start: i128 },
    /// The last slot is beyond the cache, in linear mode.
    OutOfRange { sample: usize, start: i128, rows: usize, capacity: usize },
    /// TensorRT: the update is packed, but there are no `updateLengths`.
    UpdateLengthsMissing,
    /// TensorRT: the update is padded, but there are `updateLengths`.
    UpdateLengthsUnexpected,
    /// TensorRT: `updateLengths[0]` is not 0.
    UpdateLengthsFirst { first: i32 },
    /// TensorRT: `updateLengths` decreases.
    UpdateLengthsDecrease { sample: usize },
    /// TensorRT: a sample has more rows than the cache has slots.
    UpdateLengthsTooLong { sample: usize, rows: usize, capacity: usize },
    /// TensorRT: the last of `updateLengths` is not the number of tokens.
    UpdateLengthsTotal { total: usize, tokens: usize },
    /// ATB: `layerId` is not the number of a layer.
    LayerId { layer_id: i32, layers: usize },
    /// ATB: `seqLen[sample]` is not positive, exceeds the cache, or differs from the second dimension of a
    /// 4-D update.
    SeqLen { sample: usize, seq_len: i32 },
    /// ATB: the sum of `seqLen` is not the number of tokens.
    SeqLenTotal { total: usize, tokens: usize },
}
