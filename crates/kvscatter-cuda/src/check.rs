//! What launches have found, as the error that the CPU returns for it.

use kvscatter::{Error as CoreError, Lists, Refused};

use crate::abi::{LAYER, LENGTH, SPAN, StatusWords};
use crate::cuda::Status;
use crate::memory::{DeviceList, Indices};
use crate::write::Form;
use crate::{Error, Write};

impl Write {
    /// Reads a status at the caller's own synchronisation point, when launches with these lists have run. It is left as
    /// it is: [`Cuda::clear`](crate::Cuda::clear) it for what follows.
    ///
    /// The first bad value is in the status. What belongs to it, such as the length of the sample whose start is bad, is
    /// read from the lists.
    ///
    /// # Errors
    /// For the first bad index the error that `plan` returns on the CPU: [`Error::Write`]. Where several are bad, those
    /// of a packed update's rows come first, in a padded one those of lower samples, a sample's length before its start.
    /// [`Error::BadIndices`] if the lists say something else by now; [`Error::Driver`], which may be one of an earlier
    /// launch; those of [`launch`](Self::launch) for lists of the wrong length.
    ///
    /// # Safety
    /// The status and the lists lie in memory of the current context, as large as they were said to be.
    pub unsafe fn check(&self, status: Status, indices: &Indices) -> Result<(), Error> {
        // SAFETY: the caller's.
        let words = unsafe { self.cuda.read(status) }?;
        if words.bad_samples == 0 {
            return Ok(());
        }
        let samples = self.check_indices(indices, Some(status))?;
        let read = |list: Option<DeviceList>, index: usize| {
            let (list, address) = (list?, list?.place(index)?);
            Some(if list.is_i64() {
                // SAFETY: the caller's; the number lies in the list.
                unsafe { self.cuda.driver().read::<i64>(address) }
            } else {
                // SAFETY: as above.
                unsafe { self.cuda.driver().read::<i32>(address) }.map(i64::from)
            })
        };
        let read = |list, index| read(list, index).transpose();
        let refused = self.refused(words, samples, indices, read)?;
        Err(self.error(words, refused))
    }

    /// The same for a status that the caller has copied: nothing is read from the device. Where a length or a number of
    /// rows on the device belongs to the error, it is taken to be all rows, or the error is [`Error::BadIndices`].
    ///
    /// # Errors
    /// As [`check`](Self::check), but for the driver's.
    pub fn check_words(&self, words: StatusWords) -> Result<(), Error> {
        if words.bad_samples == 0 {
            return Ok(());
        }
        let samples = self.geometry().cache_batch();
        let refused = self.refused(words, samples, &Indices::zero(), |_, _| Ok(None))?;
        Err(self.error(words, refused))
    }

    fn error(&self, words: StatusWords, refused: Option<Refused>) -> Error {
        let StatusWords { bad_samples, first_sample, first_value } = words;
        let error: Option<CoreError> = refused.and_then(|refused| self.geometry().refuse(refused));
        error.map_or(Error::BadIndices { bad_samples, first_sample, first_value }, Error::Write)
    }

    /// What a status says, with what belongs to it. `None` if it cannot be told.
    fn refused(
        &self,
        words: StatusWords,
        samples: usize,
        indices: &Indices,
        read: impl Fn(Option<DeviceList>, usize) -> Result<Option<i64>, Error>,
    ) -> Result<Option<Refused>, Error> {
        let StatusWords { first_sample, first_value: value, .. } = words;
        if first_sample == LAYER {
            return Ok(Some(Refused::Layer { value }));
        }
        let sample = usize::try_from(first_sample & !SPAN).unwrap_or(usize::MAX);
        let rows = |sample: usize| {
            let spans = indices.spans;
            Ok::<_, Error>(match self.geometry().lists() {
                Lists::RunningTotals => {
                    let totals = (read(spans, sample)?, read(spans, sample.saturating_add(1))?);
                    totals.0.zip(totals.1)
                }
                Lists::Ends => read(spans, sample)?.map(|rows| (0, rows)),
                _ if matches!(self.form, Form::Slots { .. }) => Some((0, 1)),
                // A padded update brings as many for each.
                _ => i64::try_from(self.geometry().span_limits().1).ok().map(|rows| (0, rows)),
            })
        };
        if first_sample & SPAN == SPAN {
            return Ok(match self.geometry().lists() {
                // Without samples a total of 0 is that of the list, and another one its first number.
                _ if sample == samples && (samples > 0 || value == 0) => Some(Refused::Sum { value }),
                Lists::RunningTotals => self.totals(sample, value, rows(sample)?, read(indices.spans, 0)?),
                _ => Some(Refused::Span { sample, value }),
            });
        }
        let Some((previous, next)) = rows(sample)? else { return Ok(None) };
        let Ok(span) = usize::try_from(next.saturating_sub(previous)) else { return Ok(None) };
        if first_sample & LENGTH != 0 {
            return Ok(Some(Refused::Length { sample, value, span }));
        }
        let length = read(indices.lengths, sample)?.map_or(Some(span), |length| usize::try_from(length).ok());
        Ok(length.map(|length| Refused::Start { sample, value, span, length }))
    }

    /// What is wrong with running totals: the first of all, or the two of a sample.
    fn totals(
        &self,
        sample: usize,
        value: i64,
        two: Option<(i64, i64)>,
        first: Option<i64>,
    ) -> Option<Refused> {
        match two {
            _ if sample == 0 && first == Some(value) && value != 0 => {
                Some(Refused::Totals { sample, previous: value, value })
            }
            Some((previous, next)) if next.wrapping_sub(previous) == value => {
                Some(Refused::Totals { sample, previous, value: next })
            }
            _ => None,
        }
    }
}
