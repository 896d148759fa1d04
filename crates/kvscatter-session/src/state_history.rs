//! The states that a sample has had since a point.
//!
//! A run returns the states after its last token. The state of a convolution is the last columns of its input, so the
//! columns of the past and of a run's tokens, `[channels, size + tokens]`, contain the state after each of the tokens:
//! after `n` of them, the columns from `n` on, also for 0. The columns of the last [`TOKENS`] tokens that were fed are
//! kept, in whole runs.

use std::collections::VecDeque;
use std::ops::Range;

use crate::error::SessionError;
use crate::memory_report::bytes;
use crate::states::States;

/// The number of tokens whose columns a sample keeps at least, and the largest number of a run that returns them. A
/// draft has fewer.
pub(crate) const TOKENS: usize = 128;

/// The states of a sample at a point, and those after the last tokens since then.
#[derive(Debug, Default)]
pub(crate) struct StateHistory {
    /// The states at the point, one after the other.
    point: Vec<u8>,
    /// The last runs, in order.
    runs: VecDeque<RunColumns>,
}

/// The columns of all states that a run returned for a sample, one state after the other.
#[derive(Debug)]
struct RunColumns {
    /// The positions of the tokens.
    tokens: Range<usize>,
    /// The number of tokens of the run, of which the last ones may have been dropped.
    width: usize,
    columns: Vec<u8>,
}

impl StateHistory {
    /// Begins at a sample as it is.
    pub(crate) fn begin(&mut self, batch_index: usize, states: &States) {
        self.clear();
        states.copy_out(batch_index, &mut self.point);
    }

    /// Forgets all states.
    pub(crate) fn clear(&mut self) {
        self.point.clear();
        self.runs.clear();
    }

    /// Keeps the columns that the last run returned for a sample, if it returned any. Returns
    /// [`SessionError::UndoMemory`] if there is no memory for them.
    ///
    /// The columns of tokens before `step`, where the step began, are kept in any case, because it may fail.
    pub(crate) fn keep(
        &mut self,
        batch_index: usize,
        step: usize,
        tokens: Range<usize>,
        states: &States,
    ) -> Result<(), SessionError> {
        let Some(parts) = states.columns(batch_index).filter(|_| !tokens.is_empty()) else { return Ok(()) };
        let needed = parts.iter().map(|part| part.len()).sum();
        let mut columns = Vec::new();
        columns.try_reserve_exact(needed).map_err(|_| SessionError::UndoMemory { needed: bytes(needed) })?;
        parts.iter().for_each(|part| columns.extend_from_slice(part));
        // This run contains the states after no token of a run that began here and whose tokens were dropped.
        self.runs.retain(|run| !run.tokens.is_empty());
        self.runs.push_back(RunColumns { width: tokens.len(), tokens, columns });
        self.drop_old(step);
        Ok(())
    }

    /// Drops the columns of tokens from `from` on that are older than the last tokens.
    pub(crate) fn drop_old(&mut self, from: usize) {
        let mut later = 0;
        let is_old = |run: &RunColumns| {
            later += run.width;
            later - run.width >= TOKENS
        };
        let first = self.runs.partition_point(|run| run.tokens.start < from);
        let end = self.runs.iter().rposition(is_old).map_or(0, |last| last + 1);
        self.runs.drain(first..end.max(first));
    }

    /// Returns `true` if the states after `to` tokens are known, which are not those at the point.
    pub(crate) fn reaches(&self, to: usize) -> bool {
        self.run_to(to).is_some()
    }

    /// Sets the states of a sample to those at the point.
    pub(crate) fn restore_point(&mut self, batch_index: usize, states: &mut States) {
        states.copy_in(batch_index, &self.point);
        self.runs.clear();
    }

    /// Sets the states of a sample to those after `to` tokens, if they are known, and forgets later ones.
    pub(crate) fn restore(&mut self, batch_index: usize, to: usize, states: &mut States) {
        if let Some(run) = self.run_to(to) {
            states.set_from_columns(batch_index, &run.columns, run.width, to - run.tokens.start);
        }
        self.forget_after(to);
    }

    /// Forgets the states after more than `to` tokens.
    pub(crate) fn forget_after(&mut self, to: usize) {
        self.runs.retain_mut(|run| {
            run.tokens.end = run.tokens.end.min(to);
            run.tokens.start <= to
        });
    }

    /// Returns the number of bytes allocated.
    pub(crate) fn allocated(&self) -> usize {
        self.point.capacity() + self.runs.iter().map(|run| run.columns.capacity()).sum::<usize>()
    }

    fn run_to(&self, to: usize) -> Option<&RunColumns> {
        self.runs.iter().find(|run| run.tokens.start <= to && to <= run.tokens.end)
    }
}
