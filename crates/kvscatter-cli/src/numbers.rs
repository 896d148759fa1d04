//! Parses numbers on the command line, and explains what is wrong with them.

use std::fmt::Display;
use std::num::{IntErrorKind, NonZeroUsize, ParseIntError};
use std::str::FromStr;

/// A type of whole numbers. Its smallest number is 0 or 1, or negative in a signed type.
pub(crate) trait Integer: FromStr<Err = ParseIntError> + Display {
    const MIN: Self;
    const MAX: Self;
}

impl Integer for usize {
    const MIN: Self = Self::MIN;
    const MAX: Self = Self::MAX;
}

impl Integer for u64 {
    const MIN: Self = Self::MIN;
    const MAX: Self = Self::MAX;
}

impl Integer for i64 {
    const MIN: Self = Self::MIN;
    const MAX: Self = Self::MAX;
}

impl Integer for NonZeroUsize {
    const MIN: Self = Self::MIN;
    const MAX: Self = Self::MAX;
}

/// Parses a whole number.
pub(crate) fn integer<T: Integer>(text: &str) -> Result<T, String> {
    text.parse::<T>().map_err(|error| {
        let digits = text.strip_prefix('-').unwrap_or_default();
        // -0 is not less than any limit.
        let is_negative =
            digits.bytes().any(|byte| byte != b'0') && digits.bytes().all(|byte| byte.is_ascii_digit());
        match error.kind() {
            IntErrorKind::PosOverflow => format!("must be at most {}", T::MAX),
            IntErrorKind::NegOverflow | IntErrorKind::Zero => format!("must be at least {}", T::MIN),
            IntErrorKind::InvalidDigit if is_negative => format!("must be at least {}", T::MIN),
            _ => "must be a whole number".to_owned(),
        }
    })
}

/// Parses a tolerance, which is finite and not negative.
pub(crate) fn tolerance(text: &str) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|_| "must be a number".to_owned())?;
    if number.is_finite() && number >= 0.0 {
        Ok(number)
    } else {
        Err("must be finite and not negative".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;

    use super::integer;

    #[test]
    fn wrong_numbers_are_explained() {
        assert_eq!(integer::<NonZeroUsize>("3").map(NonZeroUsize::get), Ok(3));
        for (text, message) in [
            ("0", "must be at least 1"),
            ("-1", "must be at least 1"),
            ("-99999999999999999999", "must be at least 1"),
            ("99999999999999999999", "must be at most 18446744073709551615"),
            ("x", "must be a whole number"),
            ("-x", "must be a whole number"),
            ("-", "must be a whole number"),
            ("-0", "must be a whole number"),
            ("", "must be a whole number"),
            ("1.5", "must be a whole number"),
        ] {
            assert_eq!(integer::<NonZeroUsize>(text).unwrap_err(), message, "{text:?}");
        }
        assert_eq!(integer::<u64>("0"), Ok(0));
        assert_eq!(integer::<u64>("-1").unwrap_err(), "must be at least 0");
        assert_eq!(integer::<u64>("-0").unwrap_err(), "must be a whole number");
        assert_eq!(integer::<u64>("-00").unwrap_err(), "must be a whole number");
        assert_eq!(integer::<i64>("-1"), Ok(-1));
        assert_eq!(
            integer::<i64>("-99999999999999999999").unwrap_err(),
            "must be at least -9223372036854775808"
        );
    }
}
