//! Versions of ONNX Runtime.

use std::fmt;

/// The oldest version with `TensorScatter`.
pub const OLDEST: Version = Version { major: 1, minor: 25 };

/// The major and minor number of a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    major: u32,
    minor: u32,
}

impl Version {
    /// Parses versions such as `1.31.1` and `1.32.0-dev`.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('.');
        Some(Self { major: parts.next()?.parse().ok()?, minor: parts.next()?.parse().ok()? })
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

#[cfg(test)]
mod tests {
    use super::{OLDEST, Version};

    #[test]
    fn versions_are_compared_by_number() {
        for (text, is_old) in [("1.9.0", true), ("1.24.4", true), ("1.25.0", false), ("1.100.1", false)] {
            assert_eq!(Version::parse(text).unwrap() < OLDEST, is_old, "{text}");
        }
        assert_eq!(Version::parse("a library"), None);
    }
}
