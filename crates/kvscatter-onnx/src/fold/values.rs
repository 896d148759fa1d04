//! Values in memory, and the representation of each element type.

use kvscatter::ElementType;

use super::FoldError;
use crate::OnnxError;

/// Elements in row-major order. Integers and floats of every width take 64 bits each, with the range and
/// precision of their element type.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Values {
    Ints(Vec<i64>),
    Floats(Vec<f64>),
    Bools(Vec<bool>),
}

/// The elements of an output.
pub(super) type Elements = Result<Values, Uncomputed>;

/// The reason why elements are not computed.
#[derive(Debug)]
pub(super) enum Uncomputed {
    /// They depend on elements that are not known.
    Unknown,
    Failed(OnnxError),
}

impl<E: Into<OnnxError>> From<E> for Uncomputed {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

/// The representation of a type's values.
///
/// Strings, complex numbers and floats of fewer than 16 bits have no kind. Only their shapes are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NumberKind {
    Int,
    Float,
    Bool,
}

impl NumberKind {
    pub(crate) fn from_element(element: ElementType) -> Option<Self> {
        match element {
            ElementType::Bool => Some(Self::Bool),
            ElementType::Float64 | ElementType::Float32 | ElementType::Float16 | ElementType::BFloat16 => {
                Some(Self::Float)
            }
            element => int_range(element).map(|_| Self::Int),
        }
    }
}

impl Values {
    /// Returns an empty list, or `None` if the type has no [`NumberKind`].
    pub(crate) fn empty(element: ElementType) -> Option<Self> {
        NumberKind::from_element(element).map(|kind| match kind {
            NumberKind::Int => Self::Ints(Vec::new()),
            NumberKind::Float => Self::Floats(Vec::new()),
            NumberKind::Bool => Self::Bools(Vec::new()),
        })
    }

    /// Creates the elements of a mask, which are 1 for `true`.
    pub(crate) fn flags(element: ElementType, flags: impl Iterator<Item = bool>) -> Self {
        match NumberKind::from_element(element) {
            Some(NumberKind::Bool) => Self::Bools(flags.collect()),
            Some(NumberKind::Float) => Self::Floats(flags.map(|flag| f64::from(u8::from(flag))).collect()),
            _ => Self::Ints(flags.map(i64::from).collect()),
        }
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Ints(values) => values.len(),
            Self::Floats(values) => values.len(),
            Self::Bools(values) => values.len(),
        }
    }

    pub(crate) fn kind(&self) -> NumberKind {
        match self {
            Self::Ints(_) => NumberKind::Int,
            Self::Floats(_) => NumberKind::Float,
            Self::Bools(_) => NumberKind::Bool,
        }
    }

    /// Returns the values at these positions. All operators that only move values use this function.
    ///
    /// # Errors
    /// Returns [`FoldError::Position`] for a position without a value.
    pub(crate) fn pick(&self, positions: &[usize]) -> Result<Self, OnnxError> {
        fn each<T: Copy>(values: &[T], positions: &[usize]) -> Result<Vec<T>, OnnxError> {
            let value = |&position: &usize| {
                let count = values.len();
                values.get(position).copied().ok_or_else(|| FoldError::Position { position, count }.into())
            };
            positions.iter().map(value).collect()
        }
        Ok(match self {
            Self::Ints(values) => Self::Ints(each(values, positions)?),
            Self::Floats(values) => Self::Floats(each(values, positions)?),
            Self::Bools(values) => Self::Bools(each(values, positions)?),
        })
    }

    /// Concatenates lists of one kind.
    pub(super) fn chain<'a>(parts: impl IntoIterator<Item = &'a Self>) -> Elements {
        let mut parts = parts.into_iter();
        let mut all = parts.next().ok_or(Uncomputed::Unknown)?.clone();
        for part in parts {
            match (&mut all, part) {
                (Self::Ints(all), Self::Ints(part)) => all.extend(part),
                (Self::Floats(all), Self::Floats(part)) => all.extend(part),
                (Self::Bools(all), Self::Bools(part)) => all.extend(part),
                _ => return Err(Uncomputed::Unknown),
            }
        }
        Ok(all)
    }
}

/// Returns the range of integers of a type that are supported. This is the whole range of the type, or for
/// uint64 the part that int64 also has.
pub(super) fn int_range(element: ElementType) -> Option<(i64, i64)> {
    Some(match element {
        ElementType::Int64 => (i64::MIN, i64::MAX),
        ElementType::Int32 => (i32::MIN.into(), i32::MAX.into()),
        ElementType::Int16 => (i16::MIN.into(), i16::MAX.into()),
        ElementType::Int8 => (i8::MIN.into(), i8::MAX.into()),
        ElementType::Int4 => (-8, 7),
        ElementType::UInt64 => (0, i64::MAX),
        ElementType::UInt32 => (0, u32::MAX.into()),
        ElementType::UInt16 => (0, u16::MAX.into()),
        ElementType::UInt8 => (0, u8::MAX.into()),
        ElementType::UInt4 => (0, 15),
        _ => return None,
    })
}
