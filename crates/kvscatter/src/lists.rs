//! Which lists a call brings, and how many values each must have.

use crate::geometry::{Geometry, Samples};
use crate::{Argument, Error};

/// The lists that a call brings beside its update. The specification decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Lists {
    /// The first slot written, for each sample of a padded update: ONNX, and TensorRT.
    Starts,
    /// The same for a packed update, and running totals of its rows from 0, one more than samples: TensorRT's
    /// `updateLengths`.
    RunningTotals,
    /// The length after the write, and the rows that each sample brings: Ascend's `tokenOffset` and `seqLen`. There is
    /// one of each for every sample of the cache, and a layer.
    Ends,
}

/// How many values the lists of a call have; `None` where there is no such list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ListLengths {
    /// The positions.
    pub starts: Option<usize>,
    /// The rows that samples bring, in either form.
    pub spans: Option<usize>,
    /// Rows that are written.
    pub lengths: Option<usize>,
}

/// Rows that each sample brings at least where a list says how many: Ascend's rule.
pub(crate) const LEAST: usize = 1;

impl Geometry {
    /// Which lists a call brings.
    #[must_use]
    pub fn lists(&self) -> Lists {
        self.rules.lists
    }

    /// The least and the most rows that each sample may bring. For a padded update the two are the same, unless no
    /// number is allowed.
    #[must_use]
    pub fn span_limits(&self) -> (usize, usize) {
        let (least, most) = match self.samples {
            Samples::Padded { rows, .. } => (rows, rows),
            Samples::Packed { .. } => (0, self.capacity()),
        };
        if self.lists() == Lists::Ends { (least.max(LEAST), most) } else { (least, most) }
    }

    /// Holds lists against each other and against the cache, by their lengths alone: one value per sample, and no more
    /// samples than the cache has. Returns the number of samples.
    ///
    /// This is the first check of `plan`, for backends that cannot see the values.
    ///
    /// # Errors
    /// [`Error::Count`], [`Error::BatchTooLarge`].
    pub fn check_counts(&self, lists: ListLengths) -> Result<usize, Error> {
        let Self { words, rules, .. } = self;
        let ListLengths { starts, spans, lengths } = lists;
        let want = match (rules.lists, self.samples) {
            (Lists::Starts, Samples::Padded { batch, .. }) => batch,
            (Lists::Starts, Samples::Packed { .. }) => 0,
            (Lists::Ends, _) => self.cache_batch(),
            (Lists::RunningTotals, _) => {
                spans.and_then(|totals| totals.checked_sub(1)).ok_or(Error::Count {
                    argument: words.spans,
                    got: 0,
                    want: starts.unwrap_or(0).saturating_add(1),
                })?
            }
        };
        if starts.is_none() && !rules.optional_starts {
            return Err(Error::Count { argument: words.starts, got: 0, want });
        }
        let cache = self.cache_batch();
        if want > cache {
            return Err(Error::BatchTooLarge { cache, update: want });
        }
        let check = |argument, got: Option<usize>, want| match got {
            Some(got) if got != want => Err(Error::Count { argument, got, want }),
            _ => Ok(()),
        };
        check(words.starts, starts, want)?;
        match rules.lists {
            Lists::Starts => check(words.spans, spans, 0)?,
            Lists::Ends => check(words.spans, spans.or(Some(0)), want)?,
            Lists::RunningTotals => {}
        }
        check(Argument::Lengths, lengths, want)?;
        Ok(want)
    }
}

#[cfg(test)]
mod tests {
    use super::{ListLengths, Lists};
    use crate::spec::{ascend::KvCacheOperation, onnx::TensorScatter, tensorrt::KvCacheUpdate};
    use crate::{Argument, ElementType, Error};

    const HALF: ElementType = ElementType::Float16;

    fn lengths(starts: usize, spans: Option<usize>) -> ListLengths {
        ListLengths { starts: Some(starts), spans, lengths: None }
    }

    #[test]
    fn padded_updates_have_starts_and_no_rows() {
        let onnx = TensorScatter::new().prepare(HALF, &[2, 5, 1], &[2, 3, 1]).unwrap();
        let onnx = onnx.geometry();
        assert_eq!((onnx.lists(), onnx.span_limits()), (Lists::Starts, (3, 3)));
        assert_eq!(onnx.check_counts(lengths(2, None)), Ok(2));
        assert_eq!(onnx.check_counts(ListLengths::default()), Ok(2), "absent starts are 0");
        let count = |argument, got, want| Err(Error::Count { argument, got, want });
        assert_eq!(onnx.check_counts(lengths(3, None)), count(Argument::WriteIndices, 3, 2));
        assert_eq!(onnx.check_counts(lengths(2, Some(2))), count(Argument::Update, 2, 0));
        let long = ListLengths { lengths: Some(1), ..lengths(2, None) };
        assert_eq!(onnx.check_counts(long), count(Argument::Lengths, 1, 2));

        let tensorrt = KvCacheUpdate::new().prepare(HALF, &[2, 1, 5, 1], &[1, 1, 3, 1]).unwrap();
        let absent = tensorrt.geometry().check_counts(ListLengths::default());
        assert_eq!(absent, count(Argument::TensorRtWriteIndices, 0, 1));
    }

    #[test]
    fn packed_updates_have_as_many_samples_as_their_lists_say() {
        let totals = KvCacheUpdate::new().prepare_packed(HALF, &[3, 1, 5, 1], &[7, 1, 1]).unwrap();
        let totals = totals.geometry();
        assert_eq!((totals.lists(), totals.span_limits()), (Lists::RunningTotals, (0, 5)));
        assert_eq!(totals.check_counts(lengths(2, Some(3))), Ok(2));
        assert_eq!(
            totals.check_counts(lengths(4, Some(5))),
            Err(Error::BatchTooLarge { cache: 3, update: 4 })
        );
        let count = |argument, got, want| Err(Error::Count { argument, got, want });
        assert_eq!(totals.check_counts(lengths(2, None)), count(Argument::UpdateLengths, 0, 3));
        assert_eq!(totals.check_counts(lengths(2, Some(4))), count(Argument::TensorRtWriteIndices, 2, 3));
    }

    #[test]
    fn ascend_has_a_number_for_every_sample_of_the_cache() {
        let count = |argument, got, want| Err(Error::Count { argument, got, want });
        for (new_kv, limits) in
            [(&[4_usize, 2][..], (1, 5)), (&[3, 2, 1, 2], (2, 2)), (&[3, 0, 1, 2], (1, 0))]
        {
            let write = KvCacheOperation::new().prepare(HALF, new_kv, &[2, 3, 5, 2]).unwrap();
            let ends = write.geometry();
            assert_eq!((ends.lists(), ends.span_limits()), (Lists::Ends, limits));
            assert_eq!(ends.check_counts(lengths(3, Some(3))), Ok(3));
            assert_eq!(ends.check_counts(lengths(2, Some(2))), count(Argument::TokenOffset, 2, 3));
            assert_eq!(ends.check_counts(lengths(3, Some(2))), count(Argument::SeqLen, 2, 3));
            assert_eq!(ends.check_counts(lengths(3, None)), count(Argument::SeqLen, 0, 3));
        }
    }
}
