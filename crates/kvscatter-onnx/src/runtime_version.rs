//! Versions of ONNX Runtime.

use std::fmt;
use std::str::FromStr;

/// The major and minor number of a release of ONNX Runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RuntimeVersion {
    major: u32,
    minor: u32,
}

/// The error for a text that is not a version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected a version of ONNX Runtime such as 1.27")]
pub struct ParseRuntimeVersionError;

impl RuntimeVersion {
    /// The oldest version with `TensorScatter`.
    pub const WITH_SCATTER: Self = Self { major: 1, minor: 25 };

    /// The oldest version whose `Attention` caps scores before it masks them. Older versions cap the masked scores, so
    /// that hidden slots count.
    pub const WITH_CAP: Self = Self { major: 1, minor: 27 };
}

impl Default for RuntimeVersion {
    /// Returns [`WITH_SCATTER`](Self::WITH_SCATTER), which every converted model needs.
    fn default() -> Self {
        Self::WITH_SCATTER
    }
}

impl FromStr for RuntimeVersion {
    type Err = ParseRuntimeVersionError;

    /// Parses versions such as `1.27`, `1.31.1` and `1.32.0-dev`.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut numbers = text.split('.').map(|number| number.parse().ok());
        match (numbers.next().flatten(), numbers.next().flatten()) {
            (Some(major), Some(minor)) => Ok(Self { major, minor }),
            _ => Err(ParseRuntimeVersionError),
        }
    }
}

impl fmt::Display for RuntimeVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

#[cfg(test)]
mod tests {
    use super::RuntimeVersion;

    #[test]
    fn versions_are_compared_by_number() {
        for (text, is_old) in [("1.9.0", true), ("1.24.4", true), ("1.25", false), ("1.100.1", false)] {
            let version: RuntimeVersion = text.parse().unwrap();
            assert_eq!(version < RuntimeVersion::WITH_SCATTER, is_old, "{text}");
        }
        for text in ["a library", "1", "", "1.x", "-1.2"] {
            assert!(text.parse::<RuntimeVersion>().is_err(), "{text}");
        }
    }
}
