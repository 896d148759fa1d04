//! What writes have handed to the device, which tells what a status has found.

use std::sync::Arc;

use candle_core::{Shape, Tensor};
use kvscatter::Argument;
use kvscatter_cuda::{DeviceWrite, Error as CudaError, Indices, Status, StatusWords};

use super::launch::Place;
use crate::Error;

/// A write whose launches were all prepared.
#[derive(Debug)]
pub(super) struct Launched {
    /// Of the updates.
    shapes: Vec<Shape>,
    pub(super) writes: Vec<Arc<DeviceWrite>>,
    lists: Vec<(Argument, Tensor)>,
}

impl Launched {
    pub(super) fn new(
        updates: &[Place],
        writes: Vec<Arc<DeviceWrite>>,
        lists: Vec<(Argument, Tensor)>,
    ) -> Self {
        Self { shapes: updates.iter().map(Place::shape).cloned().collect(), writes, lists }
    }

    /// Whether a bad position is the same error in this write as in another one of the same caches.
    fn tells_like(&self, other: &Self) -> bool {
        self.shapes == other.shapes && !self.needs_lengths() && !other.needs_lengths()
    }

    /// Whether the length of a sample is part of its error. One row, if it is bad, was to be written.
    fn needs_lengths(&self) -> bool {
        let lengths = self.lists.iter().any(|(argument, _)| *argument == Argument::Lengths);
        lengths && self.writes.iter().any(|write| write.geometry().span_limits().1 > 1)
    }
}

/// The writes whose findings are in a status.
#[derive(Debug, Default)]
pub(super) struct Found {
    last: Option<Launched>,
    /// Whether a bad position is the same error in all of them.
    alike: bool,
    /// Whether the status had nothing after the last one. What a graph replays is no write of its own.
    settled: bool,
}

impl Found {
    /// Adds a write that is about to be launched.
    pub(super) fn add(&mut self, launched: Launched) -> &Launched {
        self.alike = match &self.last {
            Some(before) if !self.settled => self.alike && before.tells_like(&launched),
            _ => true,
        };
        self.settled = false;
        self.last.insert(launched)
    }

    /// Nothing that was launched so far counts.
    pub(super) fn settle(&mut self) {
        self.settled = true;
    }

    /// The lists of the last write.
    pub(super) fn lists(&self) -> impl Iterator<Item = &(Argument, Tensor)> {
        self.last.iter().flat_map(|launched| &launched.lists)
    }

    /// The error of what a status has, as far as it can be told: it is `Ok` if it cannot.
    ///
    /// # Safety
    /// The status and `indices`, which are the lists of [`lists`](Self::lists), lie in memory of the current context, as
    /// large as they say, and nothing writes to them: launches with this status have run.
    pub(super) unsafe fn tell(
        &self,
        words: StatusWords,
        status: Status,
        indices: &Indices,
    ) -> Result<(), Error> {
        let Some(last) = self.last.as_ref().filter(|_| self.alike) else { return Ok(()) };
        // In the order in which they were launched: the first whose caches it does not fit has found it.
        for write in &last.writes {
            let told = if last.needs_lengths() {
                // SAFETY: the status and the lists lie in memory of the current context, and launches with this status
                // have run (this function's contract).
                unsafe { write.check(status, indices) }
            } else {
                write.check_words(words)
            };
            match told {
                Err(CudaError::BadIndices { .. }) => {} // It fits into these.
                told => told?,
            }
        }
        Ok(())
    }
}
