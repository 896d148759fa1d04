//! One number per sample: borrowed slices of `i64` or `i32`.

use alloc::vec::Vec;

use crate::RawBuffer;

/// The first slot written, per sample.
///
/// Anything that borrows as a slice of `i64` or `i32` converts into it, and so does an `Option` of such a
/// slice (ONNX's optional `write_indices`, where absent means zero).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Starts<'a> {
    /// Every sample starts at slot 0.
    Zero,
    /// One start per sample.
    I64(&'a [i64]),
    /// One start per sample.
    I32(&'a [i32]),
}

/// How many rows of the update are real, per sample: padding behind them is not written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Lengths<'a> {
    /// Every row of every sample.
    Full,
    /// One length per sample.
    I64(&'a [i64]),
    /// One length per sample.
    I32(&'a [i32]),
}

impl<'a> Starts<'a> {
    pub(crate) fn values(self) -> Option<Values<'a>> {
        match self {
            Self::Zero => None,
            Self::I64(values) => Some(Values::I64(values)),
            Self::I32(values) => Some(Values::I32(values)),
        }
    }
}

impl<'a> Lengths<'a> {
    pub(crate) fn values(self) -> Option<Values<'a>> {
        match self {
            Self::Full => None,
            Self::I64(values) => Some(Values::I64(values)),
            Self::I32(values) => Some(Values::I32(values)),
        }
    }
}

/// Integers of either width, read as `i64`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Values<'a> {
    I64(&'a [i64]),
    I32(&'a [i32]),
}

impl Values<'_> {
    pub(crate) fn len(self) -> usize {
        match self {
            Self::I64(values) => values.len(),
            Self::I32(values) => values.len(),
        }
    }

    /// Where they lie.
    pub(crate) fn buffer(self) -> RawBuffer {
        let (first, len) = match self {
            Self::I64(values) => (values.as_ptr().cast::<u8>(), size_of_val(values)),
            Self::I32(values) => (values.as_ptr().cast::<u8>(), size_of_val(values)),
        };
        RawBuffer { ptr: first.cast_mut(), len }
    }

    #[inline]
    pub(crate) fn at(self, index: usize) -> Option<i64> {
        match self {
            Self::I64(values) => values.get(index).copied(),
            Self::I32(values) => values.get(index).copied().map(i64::from),
        }
    }
}

impl<'a> From<&'a [i64]> for Starts<'a> {
    #[inline]
    fn from(values: &'a [i64]) -> Self {
        Self::I64(values)
    }
}

impl<'a> From<&'a [i32]> for Starts<'a> {
    #[inline]
    fn from(values: &'a [i32]) -> Self {
        Self::I32(values)
    }
}

impl<'a, const N: usize> From<&'a [i64; N]> for Starts<'a> {
    #[inline]
    fn from(values: &'a [i64; N]) -> Self {
        Self::I64(values)
    }
}

impl<'a, const N: usize> From<&'a [i32; N]> for Starts<'a> {
    #[inline]
    fn from(values: &'a [i32; N]) -> Self {
        Self::I32(values)
    }
}

impl<'a> From<&'a Vec<i64>> for Starts<'a> {
    #[inline]
    fn from(values: &'a Vec<i64>) -> Self {
        Self::I64(values)
    }
}

impl<'a> From<&'a Vec<i32>> for Starts<'a> {
    #[inline]
    fn from(values: &'a Vec<i32>) -> Self {
        Self::I32(values)
    }
}

impl<'a, S: Into<Starts<'a>>> From<Option<S>> for Starts<'a> {
    #[inline]
    fn from(values: Option<S>) -> Self {
        values.map_or(Self::Zero, Into::into)
    }
}

/// Whatever can be a list of starts can be a list of lengths; absent means [`Lengths::Full`].
impl<'a, S: Into<Starts<'a>>> From<S> for Lengths<'a> {
    #[inline]
    fn from(values: S) -> Self {
        match values.into() {
            Starts::Zero => Self::Full,
            Starts::I64(values) => Self::I64(values),
            Starts::I32(values) => Self::I32(values),
        }
    }
}
