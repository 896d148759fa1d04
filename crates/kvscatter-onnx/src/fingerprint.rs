//! The fingerprint of a model.

use std::fmt;
use std::str::FromStr;

/// A 128-bit hash (XXH3) of a model. It detects other models, and accidental changes of a model. It is not a
/// cryptographic hash, so a model with a given fingerprint can be constructed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fingerprint(u128);

impl Fingerprint {
    /// Creates a fingerprint of these bits.
    #[must_use]
    pub const fn from_bits(bits: u128) -> Self {
        Self(bits)
    }

    /// Returns the bits.
    #[must_use]
    pub const fn to_bits(self) -> u128 {
        self.0
    }
}

/// Writes 32 hexadecimal digits.
impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// Reads the digits as [`Display`](fmt::Display) writes them.
impl FromStr for Fingerprint {
    type Err = ParseFingerprintError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let bits = u128::from_str_radix(text, 16).ok().map(Self);
        let is_exact = |it: &Self| it.to_string() == text;
        bits.filter(is_exact).ok_or_else(|| ParseFingerprintError { text: text.to_owned() })
    }
}

/// A text that is not a fingerprint.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not 32 lower-case hexadecimal digits")]
pub struct ParseFingerprintError {
    text: String,
}

#[cfg(test)]
mod tests {
    use super::Fingerprint;

    #[test]
    fn the_digits_lead_back() {
        for bits in [0, 1, u128::MAX, 0x0123_4567_89ab_cdef << 60] {
            let print = Fingerprint::from_bits(bits);
            assert_eq!((print.to_string().len(), print.to_string().parse()), (32, Ok(print)));
        }
        let digits = "0123456789abcdef".repeat(2);
        assert!(digits.parse::<Fingerprint>().is_ok());
        for text in ["", "1", &digits[1..], &format!("{digits}0"), &digits.to_uppercase()] {
            assert!(text.parse::<Fingerprint>().is_err(), "{text}");
        }
        assert!(format!("+{}", &digits[1..]).parse::<Fingerprint>().is_err());
    }
}
