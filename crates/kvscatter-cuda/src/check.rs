//! Converts the bad indices that launches have counted to the errors that the CPU returns for them.

use kvscatter::device::ListValue;
use kvscatter::{Convention, Error as CoreError};

use crate::abi::{LAYER, LENGTH, ROW_COUNT, StatusWords};
use crate::cuda::DeviceStatus;
use crate::launch_argument::{FirstBad, LaunchArgument};
use crate::memory::{DeviceCallIndices, DeviceList};
use crate::write::Form;
use crate::{CudaError, DeviceWrite};

impl StatusWords {
    /// Returns the first bad index since the status was cleared, or `None` if no index was bad.
    ///
    /// Nothing is read from the device, so the words may be a copy that the caller made without waiting.
    #[must_use]
    pub fn first(self) -> Option<FirstBad> {
        (self.bad_samples > 0).then(|| self.first_bad())
    }

    /// Returns the first bad index of words in which `bad_samples` is not 0.
    fn first_bad(self) -> FirstBad {
        let Self { first_sample, first_value: value, .. } = self;
        let list = match first_sample & ROW_COUNT {
            _ if first_sample == LAYER => {
                return FirstBad { list: LaunchArgument::Layer, sample: None, value };
            }
            ROW_COUNT => LaunchArgument::RowCounts,
            LENGTH => LaunchArgument::Lengths,
            _ => LaunchArgument::Positions,
        };
        FirstBad { list, sample: usize::try_from(first_sample & !ROW_COUNT).ok(), value }
    }
}

impl DeviceWrite {
    /// Reads a status and returns the error for its first bad index.
    ///
    /// Call this at a synchronisation point, after launches with these lists have run. The status keeps its
    /// value, so [`clear`](crate::Cuda::clear) it before later launches.
    ///
    /// The status contains the first bad value. The other fields of its error, such as the length of a sample
    /// whose position is bad, are read from the lists.
    ///
    /// # Errors
    /// * Returns [`CudaError::Write`] if there is a bad index, with the error that `plan` returns on the CPU
    ///   for the first one. If there are several, row counts of a packed update come first, then lower
    ///   samples, and a sample's length comes before its position.
    /// * Returns [`CudaError::BadIndices`] if the lists no longer contain the bad index.
    /// * Returns [`CudaError::Driver`] if the driver returns an error. The error may come from an earlier
    ///   launch.
    /// * Returns an error for invalid lists or an invalid status, as [`launch`](Self::launch) describes.
    ///
    /// # Safety
    /// The 16 bytes of the status and all values of each list (its length times its width) are memory of the
    /// current context. Nothing writes to them, so launches with this status must have run.
    pub unsafe fn check(&self, status: DeviceStatus, indices: &DeviceCallIndices) -> Result<(), CudaError> {
        // SAFETY: The 16 bytes of the status are memory of the current context, and nothing writes to them
        // (this function's contract).
        let words = unsafe { self.cuda.read(status) }?;
        if words.bad_samples == 0 {
            return Ok(());
        }
        let samples = self.check_indices(indices, Some(status))?;
        let read = |list: Option<DeviceList>, index: usize| {
            let (list, address) = (list?, list?.address_of(index)?);
            Some(if list.is_i64() {
                // SAFETY: The list has `len` values of 64 bits in memory of the current context (this
                // function's contract), and `address_of` returned the address of one of them.
                unsafe { self.cuda.driver().read::<i64>(address) }
            } else {
                // SAFETY: The list has `len` values of 32 bits in memory of the current context (this
                // function's contract), and `address_of` returned the address of one of them.
                unsafe { self.cuda.driver().read::<i32>(address) }.map(i64::from)
            })
        };
        let read = |list, index| read(list, index).transpose();
        let refused = self.refused(words, samples, indices, read)?;
        Err(self.error(words, refused))
    }

    /// Returns the error for a status that the caller has copied, as [`check`](Self::check) does.
    ///
    /// Nothing is read from the device. If the error has a length or a row count that is on the device, this
    /// assumes all rows, or returns [`CudaError::BadIndices`].
    ///
    /// # Errors
    /// Returns [`CudaError::Write`] or [`CudaError::BadIndices`] if there is a bad index, as
    /// [`check`](Self::check) describes.
    pub fn check_words(&self, words: StatusWords) -> Result<(), CudaError> {
        if words.bad_samples == 0 {
            return Ok(());
        }
        let samples = self.prepared.geometry().cache_batch();
        let refused = self.refused(words, samples, &DeviceCallIndices::zero(), |_, _| Ok(None))?;
        Err(self.error(words, refused))
    }

    fn error(&self, words: StatusWords, refused: Option<ListValue>) -> CudaError {
        let error: Option<CoreError> =
            refused.and_then(|refused| self.prepared.device_interface().error_for(refused));
        let (bad_samples, first) = (words.bad_samples, words.first_bad());
        error.map_or(CudaError::BadIndices { bad_samples, first }, CudaError::Write)
    }

    /// Returns the bad value of a status with the other values of its error, or `None` if the lists do not
    /// determine them.
    fn refused(
        &self,
        words: StatusWords,
        samples: usize,
        indices: &DeviceCallIndices,
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
                // A padded update brings the same number of rows for each sample.
                _ => i64::try_from(self.prepared.device_interface().row_limits().max)
                    .ok()
                    .map(|rows| (0, rows)),
            })
        };
        if list == LaunchArgument::RowCounts {
            return Ok(match self.prepared.convention() {
                // Without samples, the value 0 is the sum of the list, and any other value is its first
                // number.
                _ if sample == samples && (samples > 0 || value == 0) => Some(ListValue::Sum { value }),
                Convention::StartsAndCumulativeLengths => {
                    Self::cumulative(sample, value, rows(sample)?, read(indices.row_counts, 0)?)
                }
                _ => Some(ListValue::RowCount { sample, value }),
            });
        }
        let Some((previous, next)) = rows(sample)? else { return Ok(None) };
        let Ok(rows) = usize::try_from(next.saturating_sub(previous)) else { return Ok(None) };
        if list == LaunchArgument::Lengths {
            return Ok(Some(ListValue::Length { sample, value, rows }));
        }
        let length = read(indices.lengths, sample)?.map_or(Some(rows), |length| usize::try_from(length).ok());
        Ok(length.map(|length| ListValue::Position { sample, value, rows, length }))
    }

    /// Returns the bad cumulative lengths, either the first number or the two numbers of a sample.
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
    use crate::abi::{LAYER, LENGTH, ROW_COUNT};
    use crate::launch_argument::{FirstBad, LaunchArgument};

    #[test]
    fn words_name_the_bad_list_and_the_sample() {
        let first =
            |bad_samples, first_sample| StatusWords { bad_samples, first_sample, first_value: -9 }.first();
        assert_eq!(first(0, 0), None);
        let bad = |list, sample| Some(FirstBad { list, sample, value: -9 });
        assert_eq!(first(1, 0), bad(LaunchArgument::Positions, Some(0)));
        assert_eq!(first(9, (1 << 30) - 1), bad(LaunchArgument::Positions, Some((1 << 30) - 1)));
        assert_eq!(first(1, LENGTH | 5), bad(LaunchArgument::Lengths, Some(5)));
        assert_eq!(first(1, ROW_COUNT | 5), bad(LaunchArgument::RowCounts, Some(5)));
        assert_eq!(first(u32::MAX, LAYER), bad(LaunchArgument::Layer, None));
    }
}
