//! The ids of the blocks of a step's tokens. Tokens of a block see each other, such as those of an image.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::error::SessionError;
use crate::interface::{Interface, Purpose, TEXT};
use crate::sample::Sample;
use crate::tensor::check_value;

/// The ids of the samples that have blocks, by batch index.
#[derive(Debug, Default)]
pub(crate) struct Blocks<'b> {
    by_index: BTreeMap<usize, (Sample, &'b [i64])>,
}

impl<'b> Blocks<'b> {
    /// Checks the ids of the new tokens of each sample.
    ///
    /// # Errors
    /// - Returns [`SessionError::NoBlockIds`] if the model takes no ids.
    /// - Returns [`SessionError::BlockCount`], [`SessionError::BlockId`] or [`SessionError::BlockOverlap`] for ids that
    ///   are not those of consecutive tokens.
    /// - Returns [`SessionError::InputType`] if the type of the input cannot represent an id.
    pub(crate) fn checked(
        interface: &Interface,
        given: &[(Sample, &[i64], &'b [i64])],
    ) -> Result<Self, SessionError> {
        let mut ports = interface.feeds.iter().filter(|feed| feed.purpose == Purpose::BlockIds);
        let port = ports.next().ok_or(SessionError::NoBlockIds)?;
        let mut by_index = BTreeMap::new();
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
            if ids.iter().any(|id| *id != TEXT) {
                by_index.insert(sample.batch_index(), (sample, ids));
            }
        }
        Ok(Self { by_index })
    }

    /// Returns the samples with blocks, and the ids of their new tokens.
    pub(crate) fn samples(&self) -> impl Iterator<Item = (Sample, &'b [i64])> {
        self.by_index.values().copied()
    }

    /// Returns the ids of the new tokens of a sample, or nothing if all are text.
    pub(crate) fn ids(&self, batch_index: usize) -> &'b [i64] {
        self.by_index.get(&batch_index).map_or(&[], |(_, ids)| ids)
    }

    /// Returns the ids of the tokens at these positions. `before` is the number of cached tokens of each sample before
    /// the step.
    pub(crate) fn fed(&self, batch_index: usize, positions: Range<usize>, before: &[usize]) -> &'b [i64] {
        let before = before.get(batch_index).copied().unwrap_or_default();
        let [start, end] = [positions.start, positions.end].map(|position| position.saturating_sub(before));
        self.ids(batch_index).get(start..end).unwrap_or_default()
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
pub(crate) fn first_cut(ids: &[i64], widths: impl Iterator<Item = usize>) -> Option<(usize, i64)> {
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
