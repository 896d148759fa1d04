//! Why a write was refused: what is wrong as a variant with fields, the same as data, and one line for people.
//!
//! Another language takes its errors from here: [`Error::details`] has a stable name, the argument, the index, the
//! value and the limit, and [`Error::display_with`] writes the message with other names for arguments.

mod details;
mod message;

pub use self::details::{ErrorClass, ErrorDetails, ErrorField, ErrorKind};
use crate::argument::Argument;
use crate::element::ElementType;

/// Why a write was refused. Nothing has been written when one is returned (X1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Error {
    // ── shapes, found by `prepare` ──────────────────────────────────────────────────────────────────────
    /// The operator does not take this element type.
    ElementType {
        /// Which tensor.
        argument: Argument,
        /// Its type.
        element: ElementType,
        /// The types that it may have.
        accepted: &'static [ElementType],
    },
    /// Two tensors that must share an element type do not.
    ElementTypeMismatch {
        /// The cache's type.
        cache: ElementType,
        /// The other tensor.
        argument: Argument,
        /// Its type.
        element: ElementType,
    },
    /// A tensor has the wrong number of dimensions.
    Rank {
        /// Which tensor.
        argument: Argument,
        /// Its rank.
        rank: usize,
        /// The ranks it may have.
        expected: &'static [usize],
    },
    /// A cache has too few dimensions to hold a batch and a sequence.
    RankTooLow {
        /// Which tensor.
        argument: Argument,
        /// Its rank.
        rank: usize,
        /// The least it may be.
        min: usize,
    },
    /// The cache and the update have different ranks.
    RankMismatch {
        /// The update.
        argument: Argument,
        /// Rank of the cache.
        cache: usize,
        /// Rank of the update.
        update: usize,
    },
    /// `axis` lies outside `[-rank, rank)`.
    AxisOutOfRange {
        /// The attribute's value.
        axis: i64,
        /// Rank of the cache.
        rank: usize,
    },
    /// `axis` names dimension 0, which is the batch.
    AxisIsBatch {
        /// The attribute's value: 0 or -rank.
        axis: i64,
        /// Rank of the cache.
        rank: usize,
    },
    /// `mode` is neither `linear` nor `circular`.
    UnknownMode,
    /// A dimension other than the sequence differs between the cache and another tensor.
    DimensionMismatch {
        /// The other tensor.
        argument: Argument,
        /// The dimension's place in that tensor's shape.
        dimension: usize,
        /// What the cache asks for.
        expected: usize,
        /// What the tensor has.
        got: usize,
        /// What the shapes suggest, if the dimension seems to be the sequence.
        hint: Option<SequenceHint>,
    },
    /// Ascend's 4-D newKv: `head_num * head_size` is not hiddenSize.
    HiddenSize {
        /// newKv.
        argument: Argument,
        /// Heads of newKv.
        heads: usize,
        /// Their size.
        head_size: usize,
        /// hiddenSize of past.
        hidden: usize,
    },
    /// There are more samples than the cache has.
    BatchTooLarge {
        /// The update, or the positions of a packed one.
        argument: Argument,
        /// Samples of the cache.
        cache: usize,
        /// Samples of the update.
        update: usize,
    },
    /// The update is longer than the cache along the sequence.
    UpdateLongerThanCache {
        /// The update.
        argument: Argument,
        /// Rows of one sample of the update.
        rows: usize,
        /// Slots of the cache.
        capacity: usize,
    },
    /// G1: the product of the non-zero dimensions, or what strides and offset reach, exceeds `isize::MAX` in
    /// elements or in bytes.
    TooLarge {
        /// Which tensor.
        argument: Argument,
    },
    /// The number of strides differs from the rank.
    StrideCount {
        /// Which tensor.
        argument: Argument,
        /// Strides given.
        strides: usize,
        /// Dimensions of the tensor.
        rank: usize,
    },
    /// Negative strides reach before the start of the buffer: the offset is too small.
    BeforeBuffer {
        /// Which tensor.
        argument: Argument,
        /// The offset given, in elements.
        offset: usize,
        /// The least offset at which every element lies inside the buffer.
        min: usize,
    },
    /// G2: two positions of the cache share memory, or its strides interleave in a way that cannot be told
    /// from sharing.
    CacheOverlapsItself {
        /// The cache.
        argument: Argument,
    },
    /// The two layouts do not merge into one contiguous run inside at most three strided loops.
    TooManyLoops {
        /// Strided loops that would be needed inside the outer dimensions.
        loops: usize,
    },

    // ── indices: `plan` returns these ────────────────────────────────────────────────────────────────────────
    /// An index argument has the wrong number of values.
    ListLength {
        /// Which argument.
        argument: Argument,
        /// Values given.
        got: usize,
        /// Values that it must have.
        expected: usize,
    },
    /// A negative index where none is allowed: in linear mode, or under
    /// [`NegativeIndex::Reject`](crate::NegativeIndex::Reject).
    NegativeStart {
        /// Which argument.
        argument: Argument,
        /// Which sample.
        index: usize,
        /// The value.
        value: i64,
    },
    /// A linear write would run past the end of the cache.
    StartOutOfRange {
        /// Which argument.
        argument: Argument,
        /// Which sample.
        index: usize,
        /// The first slot to be written.
        value: i64,
        /// Rows to be written there.
        rows: usize,
        /// Slots of the cache.
        capacity: usize,
    },
    /// A position that counts the length *after* the write lies outside `min..=max`.
    EndOutOfRange {
        /// Which argument.
        argument: Argument,
        /// Which sample.
        index: usize,
        /// The value.
        value: i64,
        /// The least it may be: the rows this sample brings.
        min: usize,
        /// The most it may be: the capacity plus the padding that is not written.
        max: usize,
    },
    /// A per-sample length is below its minimum or above its maximum.
    LengthOutOfRange {
        /// Which argument.
        argument: Argument,
        /// Which sample.
        index: usize,
        /// The value.
        value: i64,
        /// The least it may be.
        min: usize,
        /// The most it may be.
        max: usize,
    },
    /// Cumulative lengths must begin with 0.
    CumulativeStart {
        /// Which argument.
        argument: Argument,
        /// The first value.
        value: i64,
    },
    /// Cumulative lengths must not decrease.
    CumulativeOrder {
        /// Which argument.
        argument: Argument,
        /// Position of the smaller value.
        index: usize,
        /// The smaller value.
        value: i64,
        /// The value before it.
        previous: i64,
    },
    /// Two neighbours among cumulative lengths give one sample more rows than the cache has.
    CumulativeLength {
        /// Which argument.
        argument: Argument,
        /// Position of the first of the two: the sample.
        index: usize,
        /// Their difference.
        rows: i64,
        /// Slots of the cache.
        capacity: usize,
    },
    /// The lengths do not add up to the tokens of a packed update.
    TokenSum {
        /// Which argument.
        argument: Argument,
        /// What the lengths add up to.
        got: i64,
        /// Tokens of the update.
        tokens: usize,
    },
    /// The layer does not exist.
    LayerOutOfRange {
        /// Which argument.
        argument: Argument,
        /// The value.
        value: i64,
        /// Layers of the cache.
        layers: usize,
    },

    /// An unsigned value exceeds `i64::MAX`.
    IndexTooLarge {
        /// Which argument.
        argument: Argument,
        /// Its place in the list.
        index: usize,
    },
    /// A position that no write can have: see [`positions`](crate::positions).
    InvalidPosition {
        /// The position.
        value: i64,
        /// Rows written with it.
        rows: usize,
    },

    // ── buffers: writes return these ──────────────────────────────────────────────────────────
    /// A buffer has the wrong size.
    BufferLength {
        /// Which tensor.
        argument: Argument,
        /// The pair that it belongs to, in a call over many pairs; 0 otherwise.
        pair: usize,
        /// Its length, in `unit`.
        got: usize,
        /// The length asked for, in `unit`.
        expected: usize,
        /// Elements for typed slices, bytes for `*_bytes` methods and for memory by address.
        unit: LengthUnit,
        /// Whether the length must be exactly that, as for a dense tensor. Of a strided one it is the minimum.
        exact: bool,
    },
    /// A foreign buffer that must hold bytes is null.
    NullBuffer {
        /// Which tensor.
        argument: Argument,
        /// The pair that it belongs to, in a call over many pairs; 0 otherwise.
        pair: usize,
        /// The length that came with the address, in bytes.
        len: usize,
    },
    /// A foreign buffer reaches past the end of the address space.
    AddressSpace {
        /// Which tensor.
        argument: Argument,
        /// The pair that it belongs to, in a call over many pairs; 0 otherwise.
        pair: usize,
        /// The address of its first byte.
        address: usize,
        /// The length that came with the address, in bytes.
        len: usize,
    },
    /// Two foreign buffers share a byte, and one of them is to be written.
    Overlap {
        /// What is written.
        argument: Argument,
        /// What it shares memory with.
        with: Argument,
        /// The pair of what is written, in a call over many pairs; 0 otherwise.
        pair: usize,
        /// The pair of the other. A list of indices belongs to all pairs, so this is then the same as `pair`.
        with_pair: usize,
    },
    /// The slice's element is not as wide as the operator's element type.
    ElementWidth {
        /// Bits of the slice's element.
        got: usize,
        /// The operator's element type.
        element: ElementType,
    },
}

/// What the length of a buffer counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LengthUnit {
    /// Elements.
    Elements,
    /// Bytes. Strings have no width, so they are counted one by one.
    Bytes,
}

/// What to do about a dimension that seems to be the sequence, such as dimension 1 of `[batch, sequence, heads,
/// head_size]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SequenceHint {
    /// Both tensors fit each other if the operator's `axis` is this dimension.
    SetAxis,
    /// Strides can give each tensor the order of dimensions that the operator needs: see [`Layout`](crate::Layout).
    GiveStrides,
}

impl core::error::Error for Error {}
