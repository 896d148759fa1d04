//! Checks the lengths of buffers.

use crate::argument::Argument;
use crate::element::ElementType;
use crate::error::{Error, LengthUnit};
use crate::size;

/// The required length of a tensor's buffer, and the offset of the tensor in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Buffer {
    /// The offset of element `[0, 0, …]`, in elements.
    pub(super) offset: usize,
    /// The required number of elements. It is exact if `exact` is true, and a minimum otherwise.
    pub(super) len: usize,
    /// The same length in bytes. For strings, the number of strings.
    pub(super) bytes: usize,
    pub(super) exact: bool,
}

impl Buffer {
    pub(super) fn new(
        offset: usize,
        len: usize,
        exact: bool,
        element: ElementType,
        argument: Argument,
    ) -> Result<Self, Error> {
        let bytes = size::bytes(len, element.size_bits()).ok_or(Error::TooLarge { argument })?;
        Ok(Self { offset, len, bytes, exact })
    }

    #[inline]
    pub(super) fn len_in(&self, unit: LengthUnit) -> usize {
        match unit {
            LengthUnit::Elements => self.len,
            LengthUnit::Bytes => self.bytes,
        }
    }

    /// Checks the length of a buffer. An error names the argument and the pair.
    #[inline]
    pub(super) fn check(
        &self,
        argument: Argument,
        pair: usize,
        got: usize,
        unit: LengthUnit,
    ) -> Result<(), Error> {
        let expected = self.len_in(unit);
        let fits = if self.exact { got == expected } else { got >= expected };
        if fits {
            return Ok(());
        }
        Err(Error::BufferLength { argument, pair, got, expected, unit, exact: self.exact })
    }
}
