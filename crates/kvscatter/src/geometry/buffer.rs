//! How long buffers must be.

use crate::argument::Argument;
use crate::element::ElementType;
use crate::error::{Error, LengthUnit};
use crate::size;

/// The length that a tensor's buffer must have, and where the tensor begins in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Buffer {
    /// In elements.
    pub(super) offset: usize,
    /// Elements the buffer must hold: no fewer, and no more either if `exact`.
    pub(super) len: usize,
    /// The same in bytes; for strings, in strings.
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

    /// Compares a length with what the tensor needs. An error names the argument and the pair.
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
