//! What to do with an index that does not fit: named choices, each with one default.

use core::fmt;
use core::str::FromStr;

use crate::error::Error;

/// How positions beyond the capacity are meant (ONNX's `mode` attribute).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Mode {
    /// Every row lies inside the cache: `start + length <= capacity`.
    #[default]
    Linear,
    /// The cache is a ring buffer: the *sequence coordinate alone* is taken modulo the capacity.
    ///
    /// ONNX's text takes the whole index tuple modulo, which moves a batch or head index at or above the
    /// capacity into another sample; the erratum (onnx 1.23 and later) is followed here.
    #[doc(alias = "ring")]
    #[doc(alias = "sliding_window")]
    Circular,
}

impl Mode {
    /// ONNX's spelling.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Linear => "linear",
            Self::Circular => "circular",
        }
    }
}

impl fmt::Display for Mode {
    /// ONNX's spelling.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Mode {
    type Err = Error;

    /// ONNX's spelling: `linear` or `circular`.
    fn from_str(name: &str) -> Result<Self, Error> {
        match name {
            "linear" => Ok(Self::Linear),
            "circular" => Ok(Self::Circular),
            _ => Err(Error::UnknownMode),
        }
    }
}

/// What happens to a sample whose position does not fit. An extension of ours to all three operators.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OutOfRange {
    /// The call is refused and nothing is written.
    #[default]
    Error,
    /// The sample is left as it is, the others are written, and the number of skipped samples is reported. An unsigned
    /// position above `i64::MAX` is an error all the same.
    SkipSample,
}

/// What a negative index means in a ring. In linear mode it never fits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum NegativeIndex {
    /// Floor-modulo, as ONNX's reference implementation: `-1` is the last slot.
    #[default]
    Modulo,
    /// It does not fit, as in ONNX Runtime.
    Reject,
}
