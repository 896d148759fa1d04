//! One number per sample, borrowed from the caller, and the lists that one call brings.

use alloc::vec::Vec;

/// One position per sample. The operator's [`Convention`](crate::Convention) says what it counts: the first slot written,
/// or for Ascend the length after the write.
///
/// A borrowed slice, array or vector of [`Integers`] converts into it, and so does an `Option` of one (ONNX's optional
/// `write_indices`: absent means zero).
#[doc(alias = "write_indices")]
#[doc(alias = "cache_position")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Positions<'a> {
    /// ONNX's absent `write_indices`: every sample starts at slot 0.
    Zero,
    /// One position per sample.
    Each(Integers<'a>),
}

/// How many rows of the update are real, per sample. Padding after them is not written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Lengths<'a> {
    /// Every row of every sample.
    Full,
    /// One length per sample.
    Each(Integers<'a>),
}

/// Borrowed integers of any of these types, read as `i64`. Slices, arrays and vectors convert into it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Integers<'a> {
    /// ONNX's and TensorRT's type.
    I64(&'a [i64]),
    /// TensorRT's and Ascend's type.
    I32(&'a [i32]),
    /// Unsigned positions.
    U32(&'a [u32]),
    /// Unsigned positions. A value above `i64::MAX` is refused.
    U64(&'a [u64]),
    /// Lengths of Rust's own collections. A value above `i64::MAX` is refused.
    Usize(&'a [usize]),
}

/// The lists of one call: [`Prepared::plan`](crate::Prepared::plan) takes what converts into it.
///
/// That is a list of positions for ONNX's `TensorScatter` and a padded `KVCacheUpdate`, a
/// [`PackedCall`](crate::spec::tensorrt::PackedCall) for a packed one, and a
/// [`KvCacheOperationCall`](crate::spec::ascend::KvCacheOperationCall) for Ascend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call<'a> {
    /// How many layers the call names: Ascend's `layerId` has one. It saturates.
    pub(crate) layer_count: u32,
    /// The first of them.
    pub(crate) layer: i32,
    pub(crate) positions: Positions<'a>,
    /// The rows that each sample brings, as the convention of the operator gives them.
    pub(crate) row_counts: Option<&'a [i32]>,
    pub(crate) lengths: Lengths<'a>,
}

impl<'a> Call<'a> {
    /// Returns the call that writes only the first `lengths[i]` rows of sample `i`, so that right padding never reaches
    /// the cache.
    #[must_use]
    #[inline]
    pub fn with_lengths(self, lengths: impl Into<Lengths<'a>>) -> Self {
        Self { lengths: lengths.into(), ..self }
    }
}

impl<'a> Positions<'a> {
    pub(crate) fn integers(self) -> Option<Integers<'a>> {
        match self {
            Self::Zero => None,
            Self::Each(integers) => Some(integers),
        }
    }
}

impl<'a> Lengths<'a> {
    pub(crate) fn integers(self) -> Option<Integers<'a>> {
        match self {
            Self::Full => None,
            Self::Each(integers) => Some(integers),
        }
    }
}

impl Integers<'_> {
    /// Returns how many there are.
    #[must_use]
    pub fn len(self) -> usize {
        match self {
            Self::I64(values) => values.len(),
            Self::I32(values) => values.len(),
            Self::U32(values) => values.len(),
            Self::U64(values) => values.len(),
            Self::Usize(values) => values.len(),
        }
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// The address of the first and the bytes of all.
    pub(crate) fn memory(self) -> (*const u8, usize) {
        match self {
            Self::I64(values) => (values.as_ptr().cast(), size_of_val(values)),
            Self::I32(values) => (values.as_ptr().cast(), size_of_val(values)),
            Self::U32(values) => (values.as_ptr().cast(), size_of_val(values)),
            Self::U64(values) => (values.as_ptr().cast(), size_of_val(values)),
            Self::Usize(values) => (values.as_ptr().cast(), size_of_val(values)),
        }
    }

    /// One of them; `None` beyond the last, and if it exceeds `i64::MAX`.
    #[inline(always)]
    pub(crate) fn get(self, index: usize) -> Option<i64> {
        match self {
            Self::I64(values) => values.get(index).copied(),
            Self::I32(values) => values.get(index).copied().map(i64::from),
            Self::U32(_) | Self::U64(_) | Self::Usize(_) => self.get_unsigned(index),
        }
    }

    #[cold]
    #[inline(never)]
    fn get_unsigned(self, index: usize) -> Option<i64> {
        match self {
            Self::U32(values) => values.get(index).copied().map(i64::from),
            Self::U64(values) => i64::try_from(*values.get(index)?).ok(),
            Self::Usize(values) => i64::try_from(*values.get(index)?).ok(),
            Self::I64(_) | Self::I32(_) => self.get(index),
        }
    }
}

impl<'a> From<&'a [i64]> for Integers<'a> {
    #[inline]
    fn from(values: &'a [i64]) -> Self {
        Self::I64(values)
    }
}

impl<'a> From<&'a [i32]> for Integers<'a> {
    #[inline]
    fn from(values: &'a [i32]) -> Self {
        Self::I32(values)
    }
}

impl<'a> From<&'a [u32]> for Integers<'a> {
    #[inline]
    fn from(values: &'a [u32]) -> Self {
        Self::U32(values)
    }
}

impl<'a> From<&'a [u64]> for Integers<'a> {
    #[inline]
    fn from(values: &'a [u64]) -> Self {
        Self::U64(values)
    }
}

impl<'a> From<&'a [usize]> for Integers<'a> {
    #[inline]
    fn from(values: &'a [usize]) -> Self {
        Self::Usize(values)
    }
}

impl<'a, T, const N: usize> From<&'a [T; N]> for Integers<'a>
where
    &'a [T]: Into<Integers<'a>>,
{
    #[inline]
    fn from(values: &'a [T; N]) -> Self {
        values.as_slice().into()
    }
}

impl<'a, T> From<&'a Vec<T>> for Integers<'a>
where
    &'a [T]: Into<Integers<'a>>,
{
    #[inline]
    fn from(values: &'a Vec<T>) -> Self {
        values.as_slice().into()
    }
}

impl<'a, I: Into<Integers<'a>>> From<I> for Positions<'a> {
    #[inline]
    fn from(values: I) -> Self {
        Self::Each(values.into())
    }
}

impl<'a, I: Into<Integers<'a>>> From<Option<I>> for Positions<'a> {
    #[inline]
    fn from(values: Option<I>) -> Self {
        values.map_or(Self::Zero, |values| Self::Each(values.into()))
    }
}

impl<'a, I: Into<Integers<'a>>> From<I> for Lengths<'a> {
    #[inline]
    fn from(values: I) -> Self {
        Self::Each(values.into())
    }
}

impl<'a, I: Into<Integers<'a>>> From<Option<I>> for Lengths<'a> {
    #[inline]
    fn from(values: Option<I>) -> Self {
        values.map_or(Self::Full, |values| Self::Each(values.into()))
    }
}

/// `write_indices` alone.
impl<'a, S: Into<Positions<'a>>> From<S> for Call<'a> {
    #[inline]
    fn from(write_indices: S) -> Self {
        let positions = write_indices.into();
        Self { layer_count: 0, layer: 0, positions, row_counts: None, lengths: Lengths::Full }
    }
}
