//! The ids of the blocks of a step's tokens. Tokens of a block see each other, such as those of an image.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::error::SessionError;
use crate::interface::{Interface, Purpose, TEXT};
use crate::model_runs::ModelRun;
use crate::sample::Sample;
use crate::tensor::check_value;

/// A sample whose new tokens are not all text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InBlocks<'b> {
    pub(crate) sample: Sample,
    /// The ids of the blocks of its new tokens.
    pub(crate) ids: &'b [i64],
}

impl<'b> InBlocks<'b> {
    /// Checks the ids of the new tokens of each sample. Returns the samples that are not all text.
    ///
    /// # Errors
    /// - Returns [`SessionError::NoBlockIds`] if the model takes no ids.
    /// - Returns [`SessionError::BlockCount`], [`SessionError::BlockId`] or [`SessionError::BlockOverlap`] for ids that
    ///   are not those of consecutive tokens.
    /// - Returns [`SessionError::InputType`] if the type of the input cannot represent an id.
    pub(crate) fn checked(
        interface: &Interface,
        given: &[(Sample, &[i64], &'b [i64])],
    ) -> Result<Vec<Self>, SessionError> {
        let mut ports = interface.feeds.iter().filter(|feed| feed.purpose == Purpose::BlockIds);
        let port = ports.next().ok_or(SessionError::NoBlockIds)?;
        for &(sample, tokens, ids) in given {
            if ids.len() != tokens.len() {
                return Err(SessionError::BlockCount { sample, tokens: tokens.len(), ids: ids.len() });
            }
            if let Some((index, &id)) = ids.iter().enumerate().find(|(_, id)| **id < TEXT) {
                return Err(SessionError::BlockId { sample, index, id });
            }
            if let Some((index, id)) = first_overlap(ids) {
                return Err(SessionError::BlockOverlap { sample, index, id });
            }
            ids.iter().try_for_each(|id| check_value(port.element, *id))?;
        }
        let in_blocks = given.iter().filter(|(_, _, ids)| ids.iter().any(|id| *id != TEXT));
        Ok(in_blocks.map(|&(sample, _, ids)| Self { sample, ids }).collect())
    }

    /// Checks that no run ends within a block.
    ///
    /// # Errors
    /// Returns [`SessionError::BlockSplit`] with the first token that begins a run within a block.
    pub(crate) fn check_runs(&self, runs: &[ModelRun]) -> Result<(), SessionError> {
        let widths = runs.iter().map(|run| run.tokens_of(self.sample.batch_index()).len());
        match first_cut(self.ids, widths) {
            Some((index, id)) => Err(SessionError::BlockSplit { sample: self.sample, index, id }),
            None => Ok(()),
        }
    }

    /// Returns the ids of the tokens that a run feeds a sample. `before` is the number of cached tokens of each sample
    /// before the step.
    pub(crate) fn ids_in(&self, run: &ModelRun, batch_index: usize, before: &[usize]) -> &'b [i64] {
        let before = before.get(batch_index).filter(|_| batch_index == self.sample.batch_index());
        let Range { start, end } = run.tokens_of(batch_index);
        let ids =
            before.and_then(|before| self.ids.get(start.checked_sub(*before)?..end.checked_sub(*before)?));
        ids.unwrap_or_default()
    }
}

/// Returns the first token of a block that has ended before, with the id of the block.
fn first_overlap(ids: &[i64]) -> Option<(usize, i64)> {
    let mut last = BTreeMap::new();
    ids.iter().enumerate().filter(|(_, id)| **id != TEXT).find_map(|(index, &id)| {
        let before = last.insert(id, index);
        before.is_some_and(|before| before + 1 != index).then_some((index, id))
    })
}

/// Returns the first token that begins a run within a block, with the id of the block. `widths` are the numbers of
/// tokens of the runs.
fn first_cut(ids: &[i64], widths: impl Iterator<Item = usize>) -> Option<(usize, i64)> {
    let mut end = 0;
    widths.filter(|width| *width > 0).find_map(|width| {
        end += width;
        let (before, after) = (ids.get(end.checked_sub(1)?)?, ids.get(end)?);
        (before == after && *after != TEXT).then_some((end, *after))
    })
}

#[cfg(test)]
mod tests {
    use super::{first_cut, first_overlap};

    #[test]
    fn blocks_are_consecutive() {
        for (ids, overlap) in [
            (&[][..], None),
            (&[-1, -1, 0, 0, -1], None),
            (&[4, 4, 0, 0, 7, -1], None),
            (&[0, 1, 0], Some((2, 0))),
            (&[5, -1, 6, 6, -1, 5, 5], Some((5, 5))),
        ] {
            assert_eq!(first_overlap(ids), overlap, "{ids:?}");
        }
    }

    #[test]
    fn a_run_may_end_between_blocks() {
        let ids = [-1, -1, 3, 3, 3, 4, 4];
        for (widths, cut) in [
            (&[7][..], None),
            (&[1, 0, 1, 3, 2], None),
            (&[2, 2, 3], Some((4, 3))),
            (&[5, 1, 1], Some((6, 4))),
        ] {
            assert_eq!(first_cut(&ids, widths.iter().copied()), cut, "{widths:?}");
        }
    }
}
