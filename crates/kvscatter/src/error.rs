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
///
/// These fields mean the same in all variants:
///
/// * `argument` is the tensor, the list or the attribute that breaks the rule.
/// * `index` is the place of the value in its list, counted from 0. In lists with one value for each sample,
///   it is the sample.
/// * `pair` is the index of the buffer's pair in a call over many pairs, and 0 in any other call.
/// * Sizes count elements, rows or slots, `len` counts bytes, and widths count bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each variant's comment and its names describe the other fields")]
pub enum Error {
    // ── types, shapes and attributes: mostly from `prepare` ────────────────────────────────────────────────
    /// The operator does not accept this element type.
    ElementType { argument: Argument, element: ElementType, accepted: &'static [ElementType] },
    /// Two tensors that must have the same element type have different ones.
    ElementTypeMismatch { cache: ElementType, argument: Argument, element: ElementType },
    /// A tensor has the wrong number of dimensions.
    Rank { argument: Argument, rank: usize, expected: &'static [usize] },
    /// A cache has too few dimensions for a batch and a sequence.
    RankTooLow { argument: Argument, rank: usize, min: usize },
    /// The cache and the update have different ranks.
    RankMismatch { argument: Argument, cache: usize, update: usize },
    /// `axis` lies outside `[-rank, rank)`.
    AxisOutOfRange { axis: i64, rank: usize },
    /// `axis` is 0 or -rank, which selects the batch.
    AxisIsBatch { axis: i64, rank: usize },
    /// `mode` is neither `linear` nor `circular`. Parsing a [`Mode`](crate::Mode) returns this.
    UnknownMode,
    /// A dimension other than the sequence differs between the cache and another tensor.
    DimensionMismatch {
        argument: Argument,
        /// The index of the dimension in the other tensor's shape, counted from 0.
        dimension: usize,
        expected: usize,
        got: usize,
        hint: Option<SequenceHint>,
    },
    /// In Ascend's 4-D `newKv`, `head_num * head_size` differs from `hiddenSize`.
    HiddenSize { argument: Argument, heads: usize, head_size: usize, hidden: usize },
    /// The update has more samples than the cache. `prepare` returns this for a padded update, and `plan` for
    /// a packed one.
    BatchTooLarge {
        /// The update. If the update is packed, the list of positions.
        argument: Argument,
        cache: usize,
        /// The number of samples of the update. For a packed update, the lists of the call determine it.
        update: usize,
    },
    /// The update has more rows than the cache has slots.
    UpdateLongerThanCache { argument: Argument, rows: usize, capacity: usize },
    /// A tensor is too large (G1).
    ///
    /// Either the product of its non-zero dimensions exceeds `isize::MAX`, or the last element that its
    /// strides and offset reach does. Both are counted in elements and in bytes.
    TooLarge { argument: Argument },
    /// The number of strides differs from the rank.
    StrideCount { argument: Argument, strides: usize, rank: usize },
    /// Negative strides reach before the start of the buffer, because the offset is too small.
    BeforeBuffer {
        argument: Argument,
        offset: usize,
        /// The smallest offset at which every element lies inside the buffer.
        min: usize,
    },
    /// Two positions of the cache share memory (G2), or its strides interleave in a way that the check cannot
    /// prove to be free of overlap.
    CacheOverlapsItself { argument: Argument },
    /// The two layouts do not merge into one contiguous run inside at most three strided loops.
    TooManyLoops { loops: usize },

    // ── indices: mostly from `plan` ────────────────────────────────────────────────────────────────────────
    /// A list of indices has the wrong number of values.
    ListLength { argument: Argument, got: usize, expected: usize },
    /// An index is negative in linear mode or under [`NegativeIndex::Reject`](crate::NegativeIndex::Reject).
    NegativeStart { argument: Argument, index: usize, value: i64 },
    /// A linear write would reach past the end of the cache.
    StartOutOfRange { argument: Argument, index: usize, value: i64, rows: usize, capacity: usize },
    /// A position that is the length *after* the write lies outside `min..=max`.
    EndOutOfRange {
        argument: Argument,
        index: usize,
        value: i64,
        /// The smallest position that fits: the number of rows of this sample.
        min: usize,
        /// The largest position that fits: the capacity plus the padding that is not written.
        max: usize,
    },
    /// The length of a sample is less than its minimum or greater than its maximum.
    LengthOutOfRange {
        argument: Argument,
        index: usize,
        /// The length that the caller passed, in rows.
        value: i64,
        /// The smallest length that fits. No length fits if it exceeds `max`.
        min: usize,
        /// The largest length that fits.
        max: usize,
    },
    /// The cumulative lengths do not begin with 0.
    CumulativeStart { argument: Argument, value: i64 },
    /// The cumulative lengths decrease.
    CumulativeOrder { argument: Argument, index: usize, value: i64, previous: i64 },
    /// The cumulative lengths at `index` and after it give that sample more `rows` than the cache has slots.
    CumulativeLength { argument: Argument, index: usize, rows: i64, capacity: usize },
    /// The lengths do not add up to the number of tokens of a packed update.
    TokenSum { argument: Argument, got: i64, tokens: usize },
    /// The layer does not exist.
    LayerOutOfRange { argument: Argument, value: i64, layers: usize },
    /// The slot of a token lies beyond the last block of a paged cache.
    SlotOutOfRange { argument: Argument, index: usize, value: i64, slots: usize },
    /// Two tokens have the same slot of a paged cache.
    DuplicateSlot {
        argument: Argument,
        /// The first token whose slot an earlier token already has.
        index: usize,
        value: i64,
        /// The earlier token with the same slot.
        earlier: usize,
    },
    /// A block table names a block that does not exist.
    BlockOutOfRange {
        argument: Argument,
        sample: usize,
        /// The place in the sample's row of the table.
        index: usize,
        value: i64,
        blocks: usize,
    },

    /// An unsigned index exceeds `i64::MAX`.
    IndexTooLarge { argument: Argument, index: usize },
    /// A position that no write can have. The functions of [`positions`](crate::positions) return this.
    InvalidPosition { value: i64, rows: usize },

    // ── buffers: from writes ───────────────────────────────────────────────────────────────────────────────
    /// A buffer has the wrong length.
    BufferLength {
        argument: Argument,
        pair: usize,
        got: usize,
        expected: usize,
        /// The unit of both lengths. It is elements for typed slices, and bytes for `*_bytes` methods and for
        /// memory that is given by its address.
        unit: LengthUnit,
        /// Whether the buffer must have exactly the required length, as for a dense tensor. For a strided
        /// tensor, the required length is a minimum.
        exact: bool,
    },
    /// The address of a buffer is null, but the buffer must contain bytes.
    NullBuffer { argument: Argument, pair: usize, len: usize },
    /// A buffer that is given by its address reaches past the end of the address space.
    AddressSpace { argument: Argument, pair: usize, address: usize, len: usize },
    /// A buffer that the call would write shares a byte with the buffer `with`. Both are given by addresses.
    Overlap {
        argument: Argument,
        with: Argument,
        pair: usize,
        /// The index of the other buffer's pair. A list of indices belongs to every pair, so it has the same
        /// index as `pair`.
        with_pair: usize,
    },
    /// A paged cache has no functional form. It can only be written in place.
    InPlaceOnly { argument: Argument },
    /// The elements of a slice do not have the width of the operator's element type.
    ElementWidth { got: usize, element: ElementType },
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
