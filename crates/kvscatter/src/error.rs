//! Why a write was refused. No variant holds text: fields name the argument, the index, the value, the limit.

use core::fmt;

use crate::{Argument, ElementType};

/// Why a write was refused. Nothing has been written when one is returned (X1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    // ── shapes, found by `prepare` ──────────────────────────────────────────────────────────────────────
    /// The operator does not take this element type.
    ElementType {
        /// Which tensor.
        argument: Argument,
        /// Its type.
        element: ElementType,
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
        least: usize,
    },
    /// The cache and the update have different ranks.
    RankMismatch {
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
    },
    /// Ascend's 4-D newKv: `head_num * head_size` is not hiddenSize.
    HiddenSize {
        /// Heads of newKv.
        heads: usize,
        /// Their size.
        head_size: usize,
        /// hiddenSize of past.
        hidden: usize,
    },
    /// The update has more samples than the cache.
    BatchTooLarge {
        /// Samples of the cache.
        cache: usize,
        /// Samples of the update.
        update: usize,
    },
    /// The update is longer than the cache along the sequence.
    UpdateLongerThanCache {
        /// Rows of one sample of the update.
        rows: usize,
        /// Rows of the cache.
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
        needed: usize,
    },
    /// G2: two positions of the cache share memory, or its strides interleave in a way that cannot be told
    /// from sharing.
    CacheOverlapsItself,
    /// The two layouts do not merge into one contiguous run inside at most three strided loops.
    Layout {
        /// Strided loops that would be needed behind the outer dimensions.
        loops: usize,
    },
    /// Reserved parameter bytes that must be zero are not.
    Reserved {
        /// Position of the first byte that is not zero.
        index: usize,
        /// Its value.
        value: u8,
    },

    // ── indices, found by `plan` ────────────────────────────────────────────────────────────────────────
    /// An index argument has the wrong number of values.
    Count {
        /// Which argument.
        argument: Argument,
        /// Values given.
        got: usize,
        /// Values expected.
        want: usize,
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
        /// Rows of the cache.
        capacity: usize,
    },
    /// A position that counts the length *after* the write lies below the rows written or above the capacity.
    EndOutOfRange {
        /// Which argument.
        argument: Argument,
        /// Which sample.
        index: usize,
        /// The value.
        value: i64,
        /// The least it may be: the rows this sample brings.
        min: usize,
        /// The most it may be: the capacity, and the padding that is not written.
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
        /// Rows of the cache.
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
        /// The value.
        value: i64,
        /// Layers of the cache.
        layers: usize,
    },

    /// A position that no write can have: see [`positions`](crate::positions).
    Position {
        /// The position.
        value: i64,
        /// Rows written with it.
        rows: usize,
    },

    // ── buffers, found when a plan is executed ──────────────────────────────────────────────────────────
    /// A buffer has the wrong size.
    BufferLength {
        /// Which tensor.
        argument: Argument,
        /// Its place in a call over many buffers; 0 otherwise.
        buffer: usize,
        /// Its length, in elements for typed slices and in bytes for `*_bytes` methods.
        got: usize,
        /// The length asked for, in the same unit: exact for dense tensors, the least for strided ones.
        want: usize,
    },
    /// A foreign buffer that must hold bytes is null.
    NullBuffer {
        /// Which tensor.
        argument: Argument,
        /// Its place in a call over many buffers; 0 otherwise.
        buffer: usize,
        /// The bytes that it is said to have.
        len: usize,
    },
    /// A foreign buffer reaches past the end of the address space.
    BufferWraps {
        /// Which tensor.
        argument: Argument,
        /// Its place in a call over many buffers; 0 otherwise.
        buffer: usize,
        /// The address of its first byte.
        address: usize,
        /// The bytes that it is said to have.
        len: usize,
    },
    /// Two foreign buffers share a byte, and one of them is to be written.
    Overlap {
        /// What is written.
        argument: Argument,
        /// What it shares memory with.
        with: Argument,
        /// The place of the first in a call over many buffers; 0 otherwise.
        buffer: usize,
        /// The place of the other.
        with_buffer: usize,
    },
    /// The slice's element is not as wide as the operator's element type.
    ElementWidth {
        /// Bits of the slice's element.
        got: usize,
        /// The operator's element type.
        element: ElementType,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::ElementType { argument, element } => {
                write!(f, "{argument} is {element}, which this operator does not take")
            }
            Self::ElementTypeMismatch { cache, argument, element } => {
                write!(f, "{argument} is {element}, but the cache is {cache}: both must have one type")
            }
            Self::Rank { argument, rank, expected } => {
                write!(f, "{argument} has {rank} dimensions, must have ")?;
                for (place, expected) in expected.iter().enumerate() {
                    write!(f, "{}{expected}", if place > 0 { " or " } else { "" })?;
                }
                Ok(())
            }
            Self::RankTooLow { argument, rank, least } => {
                write!(f, "{argument} has {rank} dimensions, must have at least {least}")
            }
            Self::RankMismatch { cache, update } => {
                write!(f, "update has {update} dimensions, the cache has {cache}: both must have the same")
            }
            Self::AxisOutOfRange { axis, rank } => {
                write!(f, "axis = {axis} is not a dimension of a cache of rank {rank}")
            }
            Self::AxisIsBatch { axis, rank } => write!(
                f,
                "axis = {axis} is the batch dimension of a cache of rank {rank}: the sequence lies behind it"
            ),
            Self::UnknownMode => f.write_str("mode must be linear or circular"),
            Self::DimensionMismatch { argument, dimension, expected, got } => {
                write!(f, "dimension {dimension} of {argument} is {got}, must be {expected} as in the cache")
            }
            Self::HiddenSize { heads, head_size, hidden } => write!(
                f,
                "newKv has {heads} heads of size {head_size}: their product must be past's hiddenSize of {hidden}"
            ),
            Self::BatchTooLarge { cache, update } => {
                write!(f, "update has {update} samples, more than the {cache} of the cache")
            }
            Self::UpdateLongerThanCache { rows, capacity } => {
                write!(f, "update has {rows} rows, more than the cache's capacity of {capacity}")
            }
            Self::TooLarge { argument } => {
                write!(f, "the extent of {argument} is beyond any buffer: at most {} bytes", isize::MAX)
            }
            Self::StrideCount { argument, strides, rank } => {
                write!(f, "{argument} has {strides} strides for {rank} dimensions")
            }
            Self::BeforeBuffer { argument, offset, needed } => write!(
                f,
                "{argument} begins at element {offset}, but its negative strides reach back {needed}"
            ),
            Self::CacheOverlapsItself => {
                f.write_str("the cache's strides let two positions share memory: it cannot be written")
            }
            Self::Layout { loops } => write!(
                f,
                "the strides need {loops} nested loops behind the outer dimensions, at most 3 are possible: make one side contiguous"
            ),
            Self::Reserved { index, value } => {
                write!(f, "rsv[{index}] = {value}: reserved bytes must be 0")
            }
            Self::Count { argument, got, want } => write!(f, "{argument} has {got} values, must have {want}"),
            Self::NegativeStart { argument, index, value } => {
                write!(f, "{argument}[{index}] = {value}: must not be negative")
            }
            Self::StartOutOfRange { argument, index, value, rows, capacity } => write!(
                f,
                "{argument}[{index}] = {value}: {value} + {rows} rows exceed the cache's capacity of {capacity}"
            ),
            Self::EndOutOfRange { argument, index, value, min, max } => write!(
                f,
                "{argument}[{index}] = {value}: the length after the write must lie between {min} and {max}"
            ),
            Self::LengthOutOfRange { argument, index, value, min, max } if min > max => {
                write!(f, "{argument}[{index}] = {value}: must be at least {min}, but no more than {max} fit")
            }
            Self::LengthOutOfRange { argument, index, value, min, max } => {
                write!(f, "{argument}[{index}] = {value}: must lie between {min} and {max}")
            }
            Self::CumulativeStart { argument, value } => {
                write!(f, "{argument}[0] = {value}: cumulative lengths begin with 0")
            }
            Self::CumulativeOrder { argument, index, value, previous } => write!(
                f,
                "{argument}[{index}] = {value}: cumulative lengths must not fall below the previous {previous}"
            ),
            Self::CumulativeLength { argument, index, rows, capacity } => write!(
                f,
                "{argument}[{}] - {argument}[{index}] = {rows}: a sample has at most {capacity} rows, the cache's capacity",
                index.saturating_add(1)
            ),
            Self::TokenSum { argument, got, tokens } => {
                write!(f, "{argument} adds up to {got} tokens, the update has {tokens}")
            }
            Self::LayerOutOfRange { value, layers } => {
                write!(f, "layerId = {value}: the cache has {layers} layers, numbered from 0")
            }
            Self::Position { value, rows } => write!(
                f,
                "position {value} with {rows} rows: no write begins before slot 0 or ends out of range"
            ),
            Self::BufferLength { argument, buffer, got, want } => {
                write!(f, "the buffer of {argument}{} has length {got}, must have {want}", Pair(buffer))
            }
            Self::NullBuffer { argument, buffer, len } => {
                write!(f, "the buffer of {argument}{} is null, must have {len} bytes", Pair(buffer))
            }
            Self::BufferWraps { argument, buffer, address, len } => write!(
                f,
                "the buffer of {argument}{} at {address:#x} has {len} bytes, which reach beyond the address space",
                Pair(buffer)
            ),
            Self::Overlap { argument, with, buffer, with_buffer } if buffer != with_buffer => write!(
                f,
                "the buffer of {argument} (pair {buffer}) shares memory with that of {with} (pair {with_buffer})"
            ),
            Self::Overlap { argument, with, buffer, .. } => {
                write!(f, "the buffer of {argument}{} shares memory with that of {with}", Pair(buffer))
            }
            Self::ElementWidth { got, element } => match element.bits() {
                None => f.write_str("strings have no width: use the `_cloned` methods"),
                Some(4) => write!(f, "{element} is packed two to a byte: use the `_bytes` methods"),
                Some(want) => write!(f, "the slice's elements have {got} bits, {element} has {want}"),
            },
        }
    }
}

impl core::error::Error for Error {}

/// The place of a buffer among many, where it is not the first.
struct Pair(usize);

impl fmt::Display for Pair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 > 0 { write!(f, " (pair {})", self.0) } else { Ok(()) }
    }
}
