//! The handle to a sample of a running batch.

use std::fmt;

/// A handle to a sample of a running batch. A sample is one sequence of the batch.
///
/// The handle is valid until the sample is removed. A later sample at the same batch index has another
/// handle, so an old handle never refers to a new sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sample {
    batch_index: usize,
    /// A number that is different for every sample of a process.
    serial: u64,
}

impl Sample {
    pub(crate) fn new(batch_index: usize, serial: u64) -> Self {
        Self { batch_index, serial }
    }

    pub(crate) fn serial(self) -> u64 {
        self.serial
    }

    /// Returns the sample's index in the batch dimension of every tensor.
    #[must_use]
    pub fn batch_index(self) -> usize {
        self.batch_index
    }
}

impl fmt::Display for Sample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sample {}", self.batch_index)
    }
}
