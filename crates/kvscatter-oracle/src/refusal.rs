/// Which rule a call broke, with the offending numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Cache and update are of different element types.
    TypesDiffer {
        /// Element type of the cache, by its ONNX name.
        cache: &'static str,
        /// Element type of the update.
        update: &'static str,
    },
    /// The operator has no form for this element type.
    UnsupportedType {
        /// The type's ONNX name.
        element: &'static str,
    },
    /// ONNX: the mode is neither `linear` nor `circular`.
    Mode {
        /// The name given.
        name: String,
    },
    /// The cache's rank is not one the operator accepts.
    CacheRank {
        /// The rank given.
        rank: usize,
    },
    /// The update's rank is not one that goes with the cache.
    UpdateRank {
        /// The rank given.
        rank: usize,
    },
    /// ONNX: the axis is the batch, or no dimension at all.
    Axis {
        /// The axis given.
        axis: i64,
        /// The cache's rank.
        rank: usize,
    },
    /// A dimension of the update that has to equal the cache's does not.
    Dimension {
        /// Which dimension of the update.
        dimension: usize,
        /// What the cache asks for.
        cache: usize,
        /// The update's size.
        update: usize,
    },
    /// TensorRT: there are more samples than the cache has.
    UpdateBatch {
        /// The input that gives their number: the update, or `writeIndices` if the update is packed.
        argument: &'static str,
        /// Samples in the cache.
        cache: usize,
        /// Samples in the update.
        update: usize,
    },
    /// The update has more rows per sample than the cache has slots.
    UpdateTooLong {
        /// Slots in the cache.
        capacity: usize,
        /// Rows in the update.
        rows: usize,
    },
    /// The number of indices is not the number of samples.
    IndexCount {
        /// The input that is wrong, by its name in the specification.
        argument: &'static str,
        /// Values given.
        given: usize,
        /// Values needed.
        needed: usize,
    },
    /// Our extension: `lengths[sample]` is negative or exceeds the sample's rows in the update.
    Length {
        /// Which sample.
        sample: usize,
        /// The value given.
        length: i64,
        /// The sample's rows in the update.
        rows: usize,
    },
    /// A first slot below 0, in linear mode or under [`Reject`](crate::NegativeIndex::Reject).
    NegativeStart {
        /// Which sample.
        sample: usize,
        /// The first slot.
        start: i128,
    },
    /// A last slot beyond the cache, in linear mode.
    OutOfRange {
        /// Which sample.
        sample: usize,
        /// The first slot.
        start: i128,
        /// Rows to write from there.
        rows: usize,
        /// Slots in the cache.
        capacity: usize,
    },
    /// TensorRT: a packed update without `updateLengths`.
    UpdateLengthsMissing,
    /// TensorRT: a padded update with `updateLengths`.
    UpdateLengthsUnexpected,
    /// TensorRT: `updateLengths[0]` is not 0.
    UpdateLengthsFirst {
        /// The value given.
        first: i32,
    },
    /// TensorRT: `updateLengths` decreases.
    UpdateLengthsDecrease {
        /// The sample whose length would be negative.
        sample: usize,
    },
    /// TensorRT: the sample's length exceeds the cache's.
    UpdateLengthsTooLong {
        /// Which sample.
        sample: usize,
        /// Its rows.
        rows: usize,
        /// Slots in the cache.
        capacity: usize,
    },
    /// TensorRT: the last of `updateLengths` is not the number of tokens.
    UpdateLengthsTotal {
        /// The value given.
        total: usize,
        /// Tokens in the update.
        tokens: usize,
    },
    /// ATB: `layerId` names no layer.
    LayerId {
        /// The value given.
        layer_id: i32,
        /// Layers in the cache.
        layers: usize,
    },
    /// ATB: `seqLen[sample]` is not positive, exceeds the cache, or is not the 4-D update's second dimension.
    SeqLen {
        /// Which sample.
        sample: usize,
        /// The value given.
        seq_len: i32,
    },
    /// ATB: the sum of `seqLen` is not the number of tokens.
    SeqLenTotal {
        /// The sum.
        total: usize,
        /// Tokens in the update.
        tokens: usize,
    },
}
