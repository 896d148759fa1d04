//! A log of writes, which determines the error that a status reports.

use std::sync::Arc;

use candle_core::{Shape, Tensor};
use kvscatter::Argument;
use kvscatter_cuda::{CudaError, DeviceCallIndices, DeviceStatus, DeviceWrite, StatusWords};

use super::launch::TensorView;
use crate::CandleError;

#[derive(Debug)]
pub(super) struct Launched {
    shapes: Vec<Shape>,
    pub(super) writes: Vec<Arc<DeviceWrite>>,
    lists: Vec<(Argument, Tensor)>,
}

impl Launched {
    pub(super) fn new(
        updates: &[TensorView],
        writes: Vec<Arc<DeviceWrite>>,
        lists: Vec<(Argument, Tensor)>,
    ) -> Self {
        Self { shapes: updates.iter().map(TensorView::shape).cloned().collect(), writes, lists }
    }

    /// Returns `true` if a bad position gives the same error in this write as in another one of the same
    /// caches.
    fn has_same_errors_as(&self, other: &Self) -> bool {
        self.shapes == other.shapes && !self.needs_lengths() && !other.needs_lengths()
    }

    /// Returns `true` if the length of a sample is part of its error. In a write of one row, the length is taken
    /// to be 1.
    fn needs_lengths(&self) -> bool {
        let lengths = self.lists.iter().any(|(argument, _)| *argument == Argument::Lengths);
        lengths && self.writes.iter().any(|write| write.prepared().device_interface().row_limits().max > 1)
    }
}

/// The writes whose bad positions a status counts.
#[derive(Debug, Default)]
pub(super) struct LaunchLog {
    last: Option<Launched>,
    /// Whether a bad position gives the same error in all of these writes.
    alike: bool,
    /// Whether the status was zero or cleared after the last write. Replays of a graph do not count as
    /// writes.
    is_clear: bool,
}

impl LaunchLog {
    pub(super) fn add(&mut self, launched: Launched) -> &Launched {
        self.alike = match &self.last {
            Some(before) if !self.is_clear => self.alike && before.has_same_errors_as(&launched),
            _ => true,
        };
        self.is_clear = false;
        self.last.insert(launched)
    }

    /// Records that the status has been cleared, so that earlier writes do not count any more.
    pub(super) fn mark_clear(&mut self) {
        self.is_clear = true;
    }

    pub(super) fn lists(&self) -> impl Iterator<Item = &(Argument, Tensor)> {
        self.last.iter().flat_map(|launched| &launched.lists)
    }

    /// Returns the error that a status reports, or `Ok` if the writes do not determine one.
    ///
    /// # Safety
    /// `indices` must be the lists of [`lists`](Self::lists). The 16 bytes of the status must be memory of
    /// the current context, and so must all values of each list. All launches with this status must have run,
    /// so that nothing writes to this memory.
    pub(super) unsafe fn error(
        &self,
        words: StatusWords,
        status: DeviceStatus,
        indices: &DeviceCallIndices,
    ) -> Result<(), CandleError> {
        let Some(last) = self.last.as_ref().filter(|_| self.alike) else { return Ok(()) };
        // The launches are checked in their order. The first launch whose caches the value does not fit has
        // counted it.
        for write in &last.writes {
            let outcome = if last.needs_lengths() {
                // SAFETY: The 16 bytes of the status and the values of the lists are memory of the current
                // context, and all launches with this status have run (this function's contract).
                unsafe { write.check(status, indices) }
            } else {
                write.check_words(words)
            };
            match outcome {
                Err(CudaError::BadIndices { .. }) => {} // The value fits these caches.
                outcome => outcome?,
            }
        }
        Ok(())
    }
}
