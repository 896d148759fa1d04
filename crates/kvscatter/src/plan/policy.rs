//! The policies for positions that do not fit. Each has one default.

use core::fmt;
use core::str::FromStr;

use crate::error::Error;

/// How positions beyond the capacity are treated (ONNX's `mode` attribute).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Mode {
    /// Every row must lie inside the cache: `start + length <= capacity`.
    #[default]
    Linear,
    /// The cache is a ring buffer, and *only the sequence coordinate* is taken modulo the capacity.
    ///
    /// ONNX's text takes the whole index tuple modulo the capacity. That moves a batch or head index at or
    /// above the capacity into another sample. This crate follows the erratum (onnx 1.23 and later) instead.
    #[doc(alias = "ring")]
    #[doc(alias = "sliding_window")]
    Circular,
}

impl Mode {
    /// Returns ONNX's spelling.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Linear => "linear",
            Self::Circular => "circular",
        }
    }
}

impl fmt::Display for Mode {
    /// Writes ONNX's spelling.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Mode {
    type Err = Error;

    /// Parses ONNX's spelling: `linear` or `circular`.
    fn from_str(name: &str) -> Result<Self, Error> {
        match name {
            "linear" => Ok(Self::Linear),
            "circular" => Ok(Self::Circular),
            _ => Err(Error::UnknownMode),
        }
    }
}

/// What happens to a sample whose position does not fit. kvscatter extension; not part of the specification.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OutOfRange {
    /// The call returns an error and writes nothing.
    #[default]
    Error,
    /// The sample is left unchanged, the other samples are written, and the number of skipped samples is
    /// returned. An unsigned position above `i64::MAX` is still an error.
    SkipSample,
}

/// How a negative index in a ring is treated. In linear mode, a negative index never fits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum NegativeIndex {
    /// The index is taken modulo the capacity with a floor, as in ONNX's reference implementation: `-1` is
    /// the last slot.
    #[default]
    Modulo,
    /// The index does not fit, as in ONNX Runtime.
    Reject,
}
