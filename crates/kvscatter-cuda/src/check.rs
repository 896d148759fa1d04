//! What launches have found, as the error that the CPU returns for it.

use kvscatter::device::ListValue;
use kvscatter::{Convention, Error as CoreError};

use crate::abi::{LAYER, LENGTH, SPAN, StatusWords};
use crate::cuda::Status;
use crate::list::{FirstBad, List};
use crate::memory::{DeviceList, Indices};
use crate::write::Form;
use crate::{CudaError, DeviceWrite};

impl StatusWords {
    /// The first bad index that launches have found since the status was cleared, or `None` if there is none. Nothing is
    /// read from the device: the words may be a copy that the caller has made without waiting.
    #[must_use]
    pub fn first(self) -> Option<FirstBad> {
        (self.bad_samples > 0).then(|| self.first_bad())
    }

    /// The same for words that have one.
    fn first_bad(self) -> FirstBad {
        let Self { first_sample, first_value: value, .. } = self;
        let list = match first_sample & SPAN {
            _ if first_sample == LAYER => return FirstBad { list: List::Layer, sample: None, value },
            SPAN => List::RowCounts,
            LENGTH => List::Lengths,
            _ => List::Positions,
        };
        FirstBad { list, sample: usize::try_from(first_sample & !SPAN).ok(), value }
    }
}

impl DeviceWrite {
    /// Reads a status at the caller's own synchronisation point, when launches with these lists have run. It is left as
    /// it is: [`Cuda::clear`](crate::Cuda::clear) it for what follows.
    ///
    /// The first bad value is in the status. What belongs to it, such as the length of the sample whose start is bad, is
    /// read from the lists.
    ///
    /// # Errors
    /// For the first bad index the error that `plan` returns on the CPU: [`CudaError::Write`]. Where several are bad, those
    /// of a packed update's rows come first, in a padded one those of lower samples, a sample's length before its start.
    /// [`CudaError::BadIndices`] if the lists say something else by now; [`CudaError::Driver`], which may be one of an earlier
    /// launch; those of [`launch`](Self::launch) for lists of the wrong length.
    ///
    /// # Safety
    /// The status and the lists lie in memory of the current context, as large as they were said to be, and nothing writes
    /// to them: launches with this status have run.
    pub unsafe fn check(&self, status: Status, indices: &Indices) -> Result<(), CudaError> {
        // SAFETY: the status lies in memory of the current context, and nothing writes to it (this function's contract).
        let words = unsafe { self.cuda.read(status) }?;
        if words.bad_samples == 0 {
            return Ok(());
        }
        let samples = self.check_indices(indices, Some(status))?;
        let read = |list: Option<DeviceList>, index: usize| {
            let (list, address) = (list?, list?.place(index)?);
            Some(if list.is_i64() {
                // SAFETY: the list is memory of the current context, as large as it was said to be (this function's
                // contract). `place` returns addresses inside the list alone, and its numbers are 64 bits wide.
                unsafe { self.cuda.driver().read::<i64>(address) }
            } else {
                // SAFETY: the list is memory of the current context, as large as it was said to be (this function's
                // contract). `place` returns addresses inside the list alone, and its numbers are 32 bits wide.
                unsafe { self.cuda.driver().read::<i32>(address) }.map(i64::from)
            })
        };
        let read = |list, index| read(list, index).transpose();
        let refused = self.refused(words, samples, indices, read)?;
        Err(self.error(words, refused))
    }

    /// The same for a status that the caller has copied: nothing is read from the device. Where a length or a number of
    /// rows on the device belongs to the error, it is taken to be all rows, or the error is [`CudaError::BadIndices`].
    ///
    /// # Errors
    /// As [`check`](Self::check), but for the driver's.
    pub fn check_words(&self, words: StatusWords) -> Result<(), CudaError> {
        if words.bad_samples == 0 {
            return Ok(());
        }
        let samples = self.prepared.geometry().cache_batch();
        let refused = self.refused(words, samples, &Indices::zero(), |_, _| Ok(None))?;
        Err(self.error(words, refused))
    }

    fn error(&self, words: StatusWords, refused: Option<ListValue>) -> CudaError {
        let error: Option<CoreError> =
            refused.and_then(|refused| self.prepared.device_interface().error_for(refused));
        let (bad_samples, first) = (words.bad_samples, words.first_bad());
        error.map_or(CudaError::BadIndices { bad_samples, first }, CudaError::Write)
    }

    /// What a status says, with what belongs to it. `None` if it cannot be told.
    fn refused(
        &self,
        words: StatusWords,
        samples: usize,
        indices: &Indices,
        read: impl Fn(Option<DeviceList>, usize) -> Result<Option<i64>, CudaError>,
    ) -> Result<Option<ListValue>, CudaError> {
        let FirstBad { list, sample, value } = words.first_bad();
        let Some(sample) = sample else { return Ok(Some(ListValue::Layer { value })) };
        let rows = |sample: usize| {
            let list = indices.row_counts;
            Ok::<_, CudaError>(match self.prepared.convention() {
                Convention::StartsAndCumulativeLengths => {
                    let two = (read(list, sample)?, read(list, sample.saturating_add(1))?);
                    two.0.zip(two.1)
                }
                Convention::EndsAndRowCounts => read(list, sample)?.map(|rows| (0, rows)),
                _ if matches!(self.form, Form::Slots { .. }) => Some((0, 1)),
                // A padded update brings as many for each.
                _ => i64::try_from(self.prepared.device_interface().row_limits().max)
                    .ok()
                    .map(|rows| (0, rows)),
            })
        };
        if list == List::RowCounts {
            return Ok(match self.prepared.convention() {
                // Without samples a sum of 0 is that of the list, and any other number is its first.
                _ if sample == samples && (samples > 0 || value == 0) => Some(ListValue::Sum { value }),
                Convention::StartsAndCumulativeLengths => {
                    Self::cumulative(sample, value, rows(sample)?, read(indices.row_counts, 0)?)
                }
                _ => Some(ListValue::RowCount { sample, value }),
            });
        }
        let Some((previous, next)) = rows(sample)? else { return Ok(None) };
        let Ok(rows) = usize::try_from(next.saturating_sub(previous)) else { return Ok(None) };
        if list == List::Lengths {
            return Ok(Some(ListValue::Length { sample, value, rows }));
        }
        let length = read(indices.lengths, sample)?.map_or(Some(rows), |length| usize::try_from(length).ok());
        Ok(length.map(|length| ListValue::Position { sample, value, rows, length }))
    }

    /// What is wrong with cumulative lengths: the first of all, or the two of a sample.
    fn cumulative(
        sample: usize,
        value: i64,
        two: Option<(i64, i64)>,
        first: Option<i64>,
    ) -> Option<ListValue> {
        match two {
            _ if sample == 0 && first == Some(value) && value != 0 => {
                Some(ListValue::CumulativeLengths { sample, previous: value, value })
            }
            Some((previous, next)) if next.wrapping_sub(previous) == value => {
                Some(ListValue::CumulativeLengths { sample, previous, value: next })
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::StatusWords;
    use crate::abi::{LAYER, LENGTH, SPAN};
    use crate::list::{FirstBad, List};

    #[test]
    fn words_say_what_is_bad_and_whose_it_is() {
        let first =
            |bad_samples, first_sample| StatusWords { bad_samples, first_sample, first_value: -9 }.first();
        assert_eq!(first(0, 0), None);
        let of = |list, sample| Some(FirstBad { list, sample, value: -9 });
        assert_eq!(first(1, 0), of(List::Positions, Some(0)));
        assert_eq!(first(9, (1 << 30) - 1), of(List::Positions, Some((1 << 30) - 1)));
        assert_eq!(first(1, LENGTH | 5), of(List::Lengths, Some(5)));
        assert_eq!(first(1, SPAN | 5), of(List::RowCounts, Some(5)));
        assert_eq!(first(u32::MAX, LAYER), of(List::Layer, None));
    }
}
