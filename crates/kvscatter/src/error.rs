//! The errors of the crate, as variants with fields, as plain data and as one-line messages.
//!
//! The surfaces in other languages build their errors from this module. [`Error::details`] returns a stable
//! name, the argument, the index, the value and the limit. [`Error::display_with`] writes the message with
//! other names for the arguments.
//!
//! The [crate documentation](crate#guarantees) defines G1, G2 and X1.

mod details;
mod message;

pub use self::details::{ErrorClass, ErrorDetails, ErrorField, ErrorKind};
use crate::argument::Argument;
use crate::element::ElementType;

/// An error returned by this crate. A call that returns an error has written nothing (X1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Error {
    // ── types, shapes and attributes: mostly from `prepare` ────────────────────────────────────────────────
    /// The operator does not accept this element type.
    ElementType {
        /// The tensor or the list of indices that has this element type.
        argument: Argument,
        /// The element type of the tensor.
        element: ElementType,
        /// The element types that the operator accepts.
        accepted: &'static [ElementType],
    },
    /// Two tensors that must have the same element type have different ones.
    ElementTypeMismatch {
        /// The element type of the cache.
        cache: ElementType,
        /// The other tensor.
        argument: Argument,
        /// The element type of the other tensor.
        element: ElementType,
    },
    /// A tensor has the wrong number of dimensions.
    Rank {
        /// The tensor or the list of indices that has this rank.
        argument: Argument,
        /// The rank of the tensor.
        rank: usize,
        /// The ranks that the operator accepts.
        expected: &'static [usize],
    },
    /// A cache has too few dimensions for a batch and a sequence.
    RankTooLow {
        /// The cache.
        argument: Argument,
        /// The rank of the tensor.
        rank: usize,
        /// The smallest rank that the operator accepts.
        min: usize,
    },
    /// The cache and the update have different ranks.
    RankMismatch {
        /// The update.
        argument: Argument,
        /// The rank of the cache.
        cache: usize,
        /// The rank of the update.
        update: usize,
    },
    /// `axis` lies outside `[-rank, rank)`.
    AxisOutOfRange {
        /// The value of the attribute.
        axis: i64,
        /// The rank of the cache.
        rank: usize,
    },
    /// `axis` selects dimension 0, the batch.
    AxisIsBatch {
        /// The value of the attribute: 0 or -rank.
        axis: i64,
        /// The rank of the cache.
        rank: usize,
    },
    /// `mode` is neither `linear` nor `circular`. Parsing a [`Mode`](crate::Mode) returns this.
    UnknownMode,
    /// A dimension other than the sequence differs between the cache and another tensor.
    DimensionMismatch {
        /// The other tensor.
        argument: Argument,
        /// The index of the dimension in the other tensor's shape, counted from 0.
        dimension: usize,
        /// The size that the cache requires.
        expected: usize,
        /// The size that the other tensor has.
        got: usize,
        /// A hint about the fix, if the dimension seems to be the sequence.
        hint: Option<SequenceHint>,
    },
    /// In Ascend's 4-D `newKv`, `head_num * head_size` differs from `hiddenSize`.
    HiddenSize {
        /// The tensor `newKv`.
        argument: Argument,
        /// The number of heads of `newKv`.
        heads: usize,
        /// The size of one head of `newKv`.
        head_size: usize,
        /// The `hiddenSize` of `past`.
        hidden: usize,
    },
    /// The update has more samples than the cache. `prepare` returns this for a padded update, and `plan` for
    /// a packed one.
    BatchTooLarge {
        /// The update. If the update is packed, the list of positions.
        argument: Argument,
        /// The number of samples of the cache.
        cache: usize,
        /// The number of samples of the update. For a packed update, the lists of the call determine it.
        update: usize,
    },
    /// The update has more rows than the cache has slots.
    UpdateLongerThanCache {
        /// The update.
        argument: Argument,
        /// The number of rows of one sample of the update.
        rows: usize,
        /// The number of slots of the cache.
        capacity: usize,
    },
    /// A tensor is too large (G1).
    ///
    /// Either the product of its non-zero dimensions exceeds `isize::MAX`, or the last element that its
    /// strides and offset reach does. Both are counted in elements and in bytes.
    TooLarge {
        /// The cache, the update or the present.
        argument: Argument,
    },
    /// The number of strides differs from the rank.
    StrideCount {
        /// The cache or the update that the layout describes.
        argument: Argument,
        /// The number of strides.
        strides: usize,
        /// The number of dimensions of the tensor.
        rank: usize,
    },
    /// Negative strides reach before the start of the buffer, because the offset is too small.
    BeforeBuffer {
        /// The cache or the update that the layout describes.
        argument: Argument,
        /// The offset of the layout, in elements.
        offset: usize,
        /// The smallest offset at which every element lies inside the buffer.
        min: usize,
    },
    /// Two positions of the cache share memory (G2), or its strides interleave in a way that the check cannot
    /// prove to be free of overlap.
    CacheOverlapsItself {
        /// The cache.
        argument: Argument,
    },
    /// The two layouts do not merge into one contiguous run inside at most three strided loops.
    TooManyLoops {
        /// The number of strided loops that the layouts need inside the outer dimensions.
        loops: usize,
    },

    // ── indices: mostly from `plan` ────────────────────────────────────────────────────────────────────────
    /// A list of indices has the wrong number of values.
    ListLength {
        /// The list of positions, row counts, lengths or layers.
        argument: Argument,
        /// The number of values in the list.
        got: usize,
        /// The number of values that the list must have.
        expected: usize,
    },
    /// An index is negative in linear mode or under [`NegativeIndex::Reject`](crate::NegativeIndex::Reject).
    NegativeStart {
        /// The list of positions.
        argument: Argument,
        /// The sample, counted from 0.
        index: usize,
        /// The negative index.
        value: i64,
    },
    /// A linear write would reach past the end of the cache.
    StartOutOfRange {
        /// The list of positions.
        argument: Argument,
        /// The sample, counted from 0.
        index: usize,
        /// The first slot to write.
        value: i64,
        /// The number of rows to write.
        rows: usize,
        /// The number of slots of the cache.
        capacity: usize,
    },
    /// A position that is the length *after* the write lies outside `min..=max`.
    EndOutOfRange {
        /// The list of positions, Ascend's `tokenOffset`.
        argument: Argument,
        /// The sample, counted from 0.
        index: usize,
        /// The position that the caller passed.
        value: i64,
        /// The smallest position that fits: the number of rows of this sample.
        min: usize,
        /// The largest position that fits: the capacity plus the padding that is not written.
        max: usize,
    },
    /// The length of a sample is less than its minimum or greater than its maximum.
    LengthOutOfRange {
        /// The list of lengths: `lengths` or Ascend's `seqLen`.
        argument: Argument,
        /// The sample, counted from 0.
        index: usize,
        /// The length that the caller passed, in rows.
        value: i64,
        /// The smallest length that fits. No length fits if it exceeds `max`.
        min: usize,
        /// The largest length that fits.
        max: usize,
    },
    /// The cumulative lengths do not begin with 0.
    CumulativeStart {
        /// TensorRT's `updateLengths`.
        argument: Argument,
        /// The first value.
        value: i64,
    },
    /// The cumulative lengths decrease.
    CumulativeOrder {
        /// TensorRT's `updateLengths`.
        argument: Argument,
        /// The index of the smaller value in the list.
        index: usize,
        /// The smaller value.
        value: i64,
        /// The value before it.
        previous: i64,
    },
    /// Two neighbouring cumulative lengths give one sample more rows than the cache has slots.
    CumulativeLength {
        /// TensorRT's `updateLengths`.
        argument: Argument,
        /// The index of the first of the two values. It is also the sample.
        index: usize,
        /// The difference of the two values.
        rows: i64,
        /// The number of slots of the cache.
        capacity: usize,
    },
    /// The lengths do not add up to the number of tokens of a packed update.
    TokenSum {
        /// The list of lengths: TensorRT's `updateLengths` or Ascend's `seqLen`.
        argument: Argument,
        /// The sum of the lengths.
        got: i64,
        /// The number of tokens of the update.
        tokens: usize,
    },
    /// The layer does not exist.
    LayerOutOfRange {
        /// The argument that selects the layer.
        argument: Argument,
        /// The layer that the call selects, counted from 0.
        value: i64,
        /// The number of layers of the cache.
        layers: usize,
    },

    /// An unsigned index exceeds `i64::MAX`.
    IndexTooLarge {
        /// The list of indices.
        argument: Argument,
        /// The place of the index in the list, counted from 0.
        index: usize,
    },
    /// A position that no write can have. The functions of [`positions`](crate::positions) return this.
    InvalidPosition {
        /// The position that the caller passed to the conversion.
        value: i64,
        /// The number of rows that are written with the position.
        rows: usize,
    },

    // ── buffers: from writes ───────────────────────────────────────────────────────────────────────────────
    /// A buffer has the wrong length.
    BufferLength {
        /// The tensor whose buffer is wrong.
        argument: Argument,
        /// The index of the buffer's pair in a call over many pairs, and 0 in any other call.
        pair: usize,
        /// The length of the buffer, in `unit`.
        got: usize,
        /// The required length, in `unit`.
        expected: usize,
        /// The unit of both lengths. It is elements for typed slices, and bytes for `*_bytes` methods and for
        /// memory that is given by its address.
        unit: LengthUnit,
        /// Whether the buffer must have exactly the required length, as for a dense tensor. For a strided
        /// tensor, the required length is a minimum.
        exact: bool,
    },
    /// The address of a buffer is null, but the buffer must contain bytes.
    NullBuffer {
        /// The tensor whose buffer is wrong.
        argument: Argument,
        /// The index of the buffer's pair in a call over many pairs, and 0 in any other call.
        pair: usize,
        /// The length of the buffer in bytes, as the caller passed it.
        len: usize,
    },
    /// A buffer that is given by its address reaches past the end of the address space.
    AddressSpace {
        /// The tensor whose buffer is wrong.
        argument: Argument,
        /// The index of the buffer's pair in a call over many pairs, and 0 in any other call.
        pair: usize,
        /// The address of the first byte.
        address: usize,
        /// The length of the buffer in bytes, as the caller passed it.
        len: usize,
    },
    /// Two buffers that are given by their addresses share a byte, and the call would write at least one of
    /// them.
    Overlap {
        /// The buffer to write.
        argument: Argument,
        /// The buffer that shares memory with it.
        with: Argument,
        /// The index of the written buffer's pair in a call over many pairs, and 0 in any other call.
        pair: usize,
        /// The index of the other buffer's pair. A list of indices belongs to every pair, so it has the same
        /// index as `pair`.
        with_pair: usize,
    },
    /// The elements of a slice do not have the width of the operator's element type.
    ElementWidth {
        /// The width of the slice's elements in bits.
        got: usize,
        /// The operator's element type.
        element: ElementType,
    },
}

/// The unit of the length of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LengthUnit {
    /// The length counts elements.
    Elements,
    /// The length counts bytes. Strings have no width, so their number is used instead.
    Bytes,
}

/// A fix for a dimension that seems to be the sequence, such as dimension 1 of
/// `[batch, sequence, heads, head_size]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SequenceHint {
    /// Set the operator's `axis` to this dimension. Both tensors then fit each other.
    SetAxis,
    /// Use strides to give each tensor the order of dimensions that the operator needs. See
    /// [`Layout`](crate::Layout).
    GiveStrides,
}

impl core::error::Error for Error {}
