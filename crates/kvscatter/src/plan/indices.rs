//! The lists of one call, borrowed from the caller.

use alloc::vec::Vec;

/// One position per sample.
///
/// The operator's [`Convention`](crate::Convention) defines what a position counts. For ONNX and TensorRT it
/// is the first slot written. For Ascend it is the length after the write.
///
/// A borrowed slice, array or vector of [`Integers`] converts into this type. An `Option` of one of these
/// converts too, for ONNX's optional `write_indices`. `None` means that every position is zero.
#[doc(alias = "write_indices")]
#[doc(alias = "cache_position")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Positions<'a> {
    /// The absent `write_indices` of ONNX. Every sample starts at slot 0.
    Zero,
    /// One position per sample.
    Each(Integers<'a>),
}

/// The number of real rows of each sample of the update. The padding after them is not written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Lengths<'a> {
    /// Every row of every sample is real.
    Full,
    /// One length per sample.
    Each(Integers<'a>),
}

/// Borrowed integers of one of five types, read as `i64`. Slices, arrays and vectors convert into this type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Integers<'a> {
    /// The type of ONNX and TensorRT.
    I64(&'a [i64]),
    /// The type of TensorRT and Ascend.
    I32(&'a [i32]),
    /// Unsigned 32-bit integers.
    U32(&'a [u32]),
    /// Unsigned 64-bit integers. A value above `i64::MAX` is rejected.
    U64(&'a [u64]),
    /// Lengths of Rust's own collections. A value above `i64::MAX` is rejected.
    Usize(&'a [usize]),
}

/// The lists of one call.
///
/// [`Prepared::plan`](crate::Prepared::plan) takes any type that converts into this one:
///
/// * a list of positions for ONNX's `TensorScatter` and a padded `KVCacheUpdate`
/// * a [`PackedCall`](crate::spec::tensorrt::PackedCall) for a packed `KVCacheUpdate`
/// * a [`KvCacheOperationCall`](crate::spec::ascend::KvCacheOperationCall) for Ascend
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call<'a> {
    /// The number of layers that the call names, saturated. Ascend's `layerId` has one.
    pub(crate) layer_count: u32,
    /// The first of these layers.
    pub(crate) layer: i32,
    pub(crate) positions: Positions<'a>,
    /// The numbers of rows of the samples, in the form that the operator's convention defines.
    pub(crate) row_counts: Option<&'a [i32]>,
    pub(crate) lengths: Lengths<'a>,
}

impl<'a> Call<'a> {
    /// Returns this call with lengths, so that it writes only the first `lengths[i]` rows of sample `i` and
    /// right padding never reaches the cache.
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
    /// Returns the number of integers.
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

    /// Returns `true` if there are no integers.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// Returns the address of the first integer and the size in bytes of all of them.
    pub(crate) fn memory(self) -> (*const u8, usize) {
        match self {
            Self::I64(values) => (values.as_ptr().cast(), size_of_val(values)),
            Self::I32(values) => (values.as_ptr().cast(), size_of_val(values)),
            Self::U32(values) => (values.as_ptr().cast(), size_of_val(values)),
            Self::U64(values) => (values.as_ptr().cast(), size_of_val(values)),
            Self::Usize(values) => (values.as_ptr().cast(), size_of_val(values)),
        }
    }

    /// Returns the integer at an index, or `None` if the index is out of range or the integer exceeds
    /// `i64::MAX`.
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

/// Creates a call that consists of `write_indices` only.
impl<'a, S: Into<Positions<'a>>> From<S> for Call<'a> {
    #[inline]
    fn from(write_indices: S) -> Self {
        let positions = write_indices.into();
        Self { layer_count: 0, layer: 0, positions, row_counts: None, lengths: Lengths::Full }
    }
}

#[cfg(test)]
mod tests {
    use super::Integers;

    #[test]
    fn lists_of_every_type_count_their_integers() {
        let lists = |empty: usize| {
            [
                Integers::from(&[0_i64, 1][empty..]),
                Integers::from(&[0_i32, 1][empty..]),
                Integers::from(&[0_u32, 1][empty..]),
                Integers::from(&[0_u64, 1][empty..]),
                Integers::from(&[0_usize, 1][empty..]),
            ]
        };
        for list in lists(0) {
            assert_eq!((list.len(), list.is_empty()), (2, false), "{list:?}");
        }
        for list in lists(2) {
            assert_eq!((list.len(), list.is_empty()), (0, true), "{list:?}");
        }
    }
}
