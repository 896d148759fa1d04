/// The rule that a call broke, with the offending numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The cache and the update have different element types.
    TypesDiffer {
        /// The element type of the cache, by its ONNX name.
        cache: &'static str,
        /// The element type of the update, by its ONNX name.
        update: &'static str,
    },
    /// The operator does not support this element type.
    UnsupportedType {
        /// The ONNX name of the type.
        element: &'static str,
    },
    /// ONNX: the mode is neither `linear` nor `circular`.
    Mode {
        /// The name given.
        name: String,
    },
    /// The operator does not accept a cache of this rank.
    CacheRank {
        /// The rank given.
        rank: usize,
    },
    /// The operator does not accept an update of this rank with this cache.
    UpdateRank {
        /// The rank given.
        rank: usize,
    },
    /// ONNX: the axis is the batch dimension, or it is out of range.
    Axis {
        /// The axis given.
        axis: i64,
        /// The rank of the cache.
        rank: usize,
    },
    /// A dimension of the update differs from the cache's, but must equal it.
    Dimension {
        /// The index of the dimension in the update.
        dimension: usize,
        /// The size that the cache requires.
        cache: usize,
        /// The size of the update.
        update: usize,
    },
    /// TensorRT: the update has more samples than the cache.
    UpdateBatch {
        /// The input that determines the number of samples: the update, or `writeIndices` if the update is
        /// packed.
        argument: &'static str,
        /// The number of samples in the cache.
        cache: usize,
        /// The number of samples in the update.
        update: usize,
    },
    /// The update has more rows per sample than the cache has slots.
    UpdateTooLong {
        /// The number of slots in the cache.
        capacity: usize,
        /// The number of rows in the update.
        rows: usize,
    },
    /// A list does not have the required number of values.
    IndexCount {
        /// The name of the wrong input in the specification.
        argument: &'static str,
        /// The number of values given.
        given: usize,
        /// The number of values required.
        needed: usize,
    },
    /// kvscatter extension: `lengths[sample]` is negative or exceeds the sample's rows in the update.
    Length {
        /// The index of the sample.
        sample: usize,
        /// The value given.
        length: i64,
        /// The number of rows that the sample has in the update.
        rows: usize,
    },
    /// The first slot is below 0, in linear mode or under [`Reject`](crate::NegativeIndex::Reject).
    NegativeStart {
        /// The index of the sample.
        sample: usize,
        /// The first slot.
        start: i128,
    },
    /// The last slot is beyond the cache, in linear mode.
    OutOfRange {
        /// The index of the sample.
        sample: usize,
        /// The first slot.
        start: i128,
        /// The number of rows to write, beginning at that slot.
        rows: usize,
        /// The number of slots in the cache.
        capacity: usize,
    },
    /// TensorRT: the update is packed, but there are no `updateLengths`.
    UpdateLengthsMissing,
    /// TensorRT: the update is padded, but there are `updateLengths`.
    UpdateLengthsUnexpected,
    /// TensorRT: `updateLengths[0]` is not 0.
    UpdateLengthsFirst {
        /// The value given.
        first: i32,
    },
    /// TensorRT: `updateLengths` decreases.
    UpdateLengthsDecrease {
        /// The sample whose number of rows would be negative.
        sample: usize,
    },
    /// TensorRT: a sample has more rows than the cache has slots.
    UpdateLengthsTooLong {
        /// The index of the sample.
        sample: usize,
        /// The number of its rows.
        rows: usize,
        /// The number of slots in the cache.
        capacity: usize,
    },
    /// TensorRT: the last of `updateLengths` is not the number of tokens.
    UpdateLengthsTotal {
        /// The value given.
        total: usize,
        /// The number of tokens in the update.
        tokens: usize,
    },
    /// ATB: `layerId` is not the number of a layer.
    LayerId {
        /// The value given.
        layer_id: i32,
        /// The number of layers in the cache.
        layers: usize,
    },
    /// ATB: `seqLen[sample]` is not positive, exceeds the cache, or differs from the second dimension of a
    /// 4-D update.
    SeqLen {
        /// The index of the sample.
        sample: usize,
        /// The value given.
        seq_len: i32,
    },
    /// ATB: the sum of `seqLen` is not the number of tokens.
    SeqLenTotal {
        /// The sum.
        total: usize,
        /// The number of tokens in the update.
        tokens: usize,
    },
}
