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
