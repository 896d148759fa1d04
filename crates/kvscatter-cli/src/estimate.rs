//! Estimates the size and the time of many files from the first ones.

use std::fmt;
use std::fs::Metadata;
use std::io;
use std::path::Path;
use std::time::Duration;

use kvscatter_onnx::text::units;

use crate::output::count;

/// The size and the time of writing files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Estimate {
    /// The bytes on the disk.
    pub(crate) bytes: u64,
    /// The number of files and folders.
    pub(crate) files: u64,
    pub(crate) time: Duration,
}

impl Estimate {
    /// Estimates the whole of `count` from the first `sample`, which lie in a folder and took `time`.
    ///
    /// # Errors
    /// Returns the errors of the file system.
    pub(crate) fn of(folder: &Path, time: Duration, sample: usize, count: usize) -> io::Result<Self> {
        let (mut bytes, mut files) = (0_u64, 0_u64);
        let mut folders = vec![folder.to_owned()];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder)? {
                let entry = entry?;
                let meta = entry.metadata()?;
                files = files.saturating_add(1);
                bytes = bytes.saturating_add(on_disk(&meta));
                if meta.is_dir() {
                    folders.push(entry.path());
                }
            }
        }
        let wide = |number: usize| u128::try_from(number).unwrap_or(u128::MAX);
        let all = |of: u128| {
            let all = of.saturating_mul(wide(count)).div_ceil(wide(sample).max(1));
            u64::try_from(all).unwrap_or(u64::MAX)
        };
        let time = Duration::from_millis(all(time.as_millis()));
        Ok(Self { bytes: all(bytes.into()), files: all(files.into()), time })
    }
}

impl fmt::Display for Estimate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { bytes, files, time } = self;
        write!(f, "{files} files and folders, {} and {}", units::bytes(*bytes), duration(*time))
    }
}

/// Formats a duration in the largest unit that it reaches, from seconds to years, rounded up.
fn duration(time: Duration) -> String {
    const UNITS: [(u64, &str); 4] =
        [(365 * 24 * 60 * 60, "year"), (24 * 60 * 60, "day"), (60 * 60, "hour"), (60, "minute")];
    let seconds = time.as_secs();
    let (unit, noun) = UNITS.into_iter().find(|(unit, _)| seconds >= *unit).unwrap_or((1, "second"));
    let number = seconds.div_ceil(unit).max(1);
    count(usize::try_from(number).unwrap_or(usize::MAX), noun)
}

/// Returns the bytes that a file takes on the disk, or its length where the file system does not report them.
fn on_disk(meta: &Metadata) -> u64 {
    #[cfg(unix)]
    return std::os::unix::fs::MetadataExt::blocks(meta).saturating_mul(512).max(meta.len());
    #[cfg(not(unix))]
    meta.len()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Estimate, duration};

    #[test]
    fn all_are_estimated_from_some() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["a", "b"] {
            std::fs::create_dir(folder.path().join(name)).unwrap();
            std::fs::write(folder.path().join(name).join("file"), [0; 100]).unwrap();
        }
        let estimate = Estimate::of(folder.path(), Duration::from_secs(3), 2, 5).unwrap();
        assert_eq!((estimate.files, estimate.time), (10, Duration::from_millis(7500)));
        assert!(estimate.bytes >= 500, "{estimate:?}");
        let all = Estimate::of(folder.path(), Duration::from_secs(3), 2, usize::MAX).unwrap();
        assert_eq!((all.files, all.bytes), (u64::MAX, u64::MAX));
    }

    #[test]
    fn durations_are_rounded_up_in_their_largest_unit() {
        for (seconds, words) in [
            (0, "1 second"),
            (59, "59 seconds"),
            (61, "2 minutes"),
            (3600, "1 hour"),
            (86_399, "24 hours"),
            (86_401, "2 days"),
            (31 * 365 * 86_400, "31 years"),
        ] {
            assert_eq!(duration(Duration::from_secs(seconds)), words);
        }
    }
}
