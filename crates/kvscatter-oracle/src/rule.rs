//! The rule that maps the rows of a sample to slots. It is the same in all three documents.

use crate::{NegativeIndex, OutOfRange, Refusal};

/// Where the rows of one sample of an update go.
pub(crate) struct SampleRows {
    /// The number of rows of the sample in the update.
    pub(crate) rows: usize,
    /// The slot of each row that is written, from the first row on, or `None` if the sample is skipped.
    pub(crate) slots: Option<Vec<usize>>,
}

/// The settings that all samples of a call have in common.
pub(crate) struct Rule<'a> {
    pub(crate) capacity: usize,
    pub(crate) circular: bool,
    pub(crate) out_of_range: OutOfRange,
    pub(crate) negative_index: NegativeIndex,
    /// The number of rows of each sample that are written, or `None` for all rows. This is a kvscatter
    /// extension; not part of the specification.
    pub(crate) lengths: Option<&'a [i64]>,
}

impl Rule<'_> {
    /// Returns the slots of a sample that has `rows` rows in the update.
    pub(crate) fn sample(&self, sample: usize, start: i128, rows: usize) -> Result<SampleRows, Refusal> {
        let length = self.lengths.map_or(rows as i64, |lengths| lengths[sample]);
        if length < 0 || length as u64 > rows as u64 {
            return Err(Refusal::Length { sample, length, rows });
        }
        let capacity = self.capacity as i128;
        let slots = start..start + i128::from(length);
        let broken = if start < 0 && (!self.circular || self.negative_index == NegativeIndex::Reject) {
            Refusal::NegativeStart { sample, start }
        } else if slots.end > capacity && !self.circular {
            Refusal::OutOfRange { sample, start, rows: length as usize, capacity: self.capacity }
        } else {
            // `rows <= capacity`, so an empty ring has no rows, and there is no division by zero.
            let in_cache = |slot: i128| {
                if self.circular { slot.rem_euclid(capacity) } else { slot }
            };
            let slots = slots.map(|slot| in_cache(slot) as usize).collect();
            return Ok(SampleRows { rows, slots: Some(slots) });
        };
        match self.out_of_range {
            OutOfRange::Error => Err(broken),
            OutOfRange::SkipSample => Ok(SampleRows { rows, slots: None }),
        }
    }
}

pub(crate) fn expect_count(argument: &'static str, given: usize, needed: usize) -> Result<(), Refusal> {
    if given == needed { Ok(()) } else { Err(Refusal::IndexCount { argument, given, needed }) }
}

/// Checks that there is one length per sample, if there are lengths.
pub(crate) fn expect_lengths(lengths: Option<&[i64]>, batch: usize) -> Result<(), Refusal> {
    lengths.map_or(Ok(()), |lengths| expect_count("lengths", lengths.len(), batch))
}

pub(crate) fn skipped(samples: &[SampleRows]) -> usize {
    samples.iter().filter(|sample| sample.slots.is_none()).count()
}
