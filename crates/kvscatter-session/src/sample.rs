//! The name of a sample in a running batch.

use std::fmt;

/// A sample of a running batch: a place in it, for as long as the sample is there.
///
/// A place that is taken again is another sample, so that the name of one that was removed never means its successor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sample {
    pub(crate) place: usize,
    /// Different for every sample that a process has.
    pub(crate) serial: u64,
}

impl Sample {
    /// Its index in the batch dimension of every tensor.
    #[must_use]
    pub fn index(self) -> usize {
        self.place
    }
}

impl fmt::Display for Sample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sample {}", self.place)
    }
}
