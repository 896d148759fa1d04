//! Keeps some of the tokens that samples were fed since their points.
//!
//! The rows of the first tokens stay where they are. Tokens run again, after the sample has gone back, if their rows
//! alone are not enough:
//!
//! - The model has states, which only the last token of a run leaves, and no outputs with the earlier ones.
//! - A ring no longer has rows that the kept tokens need, and no copies of them.
//! - Tokens before them are dropped, which they have seen. Their positions change as well, and keys depend on those.

use std::collections::BTreeSet;

use crate::error::SessionError;
use crate::sample::Sample;
use crate::sample_store::SampleStore;
use crate::steps::Steps;

/// The tokens to keep, of those that were fed since the point of a sample.
#[derive(Clone, Copy)]
pub(crate) enum Kept<'r> {
    First(usize),
    /// The tokens with these indices.
    Rows(&'r [usize]),
}

/// Keeps tokens of samples, and undoes the others.
///
/// If a run fails, all samples are at their points, which are still set.
pub(crate) fn accept(
    store: &mut SampleStore,
    steps: &mut Steps,
    kept: &[(Sample, Kept<'_>)],
) -> Result<(), SessionError> {
    let mut seen = BTreeSet::new();
    let mut accepted = Vec::new();
    for &(sample, kept) in kept {
        accepted.push(Accepted::new(store, sample, kept)?);
        if !seen.insert(sample) {
            return Err(SessionError::SampleTwice { sample });
        }
    }
    let again = accepted.iter().filter(|of| !of.again.is_empty());
    let again: Vec<_> = again.map(|of| (of.sample, of.again.as_slice())).collect();
    if !again.is_empty() {
        store.check_lost()?;
    }
    let unfinished = Unfinished { store, samples: seen };
    for of in &accepted {
        unfinished.store.truncate(of.sample, of.to)?;
    }
    if !again.is_empty() {
        steps.step_again(unfinished.store, &again)?;
    }
    unfinished.end()
}

/// What happens to a sample.
struct Accepted {
    sample: Sample,
    /// The number of tokens that it goes back to.
    to: usize,
    /// The tokens that run after these.
    again: Vec<i64>,
}

impl Accepted {
    fn new(store: &SampleStore, sample: Sample, kept: Kept<'_>) -> Result<Self, SessionError> {
        let point = store.point(sample)?;
        let fed = store.batch().tokens(sample)?.get(point..).unwrap_or_default();
        let (first, rest) = kept.split(sample, fed.len())?;
        let to = point.saturating_add(first);
        let stays = store.check_truncation(sample, to).is_ok();
        let (to, run) = if stays { (to, 0) } else { (point, first) };
        let rest = rest.iter().filter_map(|row| fed.get(*row));
        let again = fed.iter().take(run).chain(rest).copied().collect();
        Ok(Self { sample, to, again })
    }
}

impl<'r> Kept<'r> {
    /// Returns the number of tokens before the first gap, and the indices of the others. Checks them for a sample to
    /// which `fed` tokens were fed.
    fn split(self, sample: Sample, fed: usize) -> Result<(usize, &'r [usize]), SessionError> {
        let rows = match self {
            Self::First(accepted) if accepted > fed => {
                return Err(SessionError::AcceptBeyond { sample, accepted, fed });
            }
            Self::First(accepted) => return Ok((accepted, &[])),
            Self::Rows(rows) => rows,
        };
        let mut before = None;
        for (index, &row) in rows.iter().enumerate() {
            if let Some(before) = before.filter(|before| row <= *before) {
                return Err(SessionError::PathOrder { sample, index, row, before });
            }
            if row >= fed {
                return Err(SessionError::PathBeyond { sample, index, row, fed });
            }
            before = Some(row);
        }
        let first = rows.iter().enumerate().take_while(|(index, row)| index == *row).count();
        Ok((first, rows.get(first..).unwrap_or_default()))
    }
}

/// Samples whose points are still set. They go back to them unless all have what they accept.
struct Unfinished<'s> {
    store: &'s mut SampleStore,
    samples: BTreeSet<Sample>,
}

impl Unfinished<'_> {
    fn end(mut self) -> Result<(), SessionError> {
        let samples = std::mem::take(&mut self.samples);
        samples.into_iter().try_for_each(|sample| self.store.commit(sample))
    }
}

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        for sample in &self.samples {
            // The sample was in the batch and had a point.
            let _ = self.store.return_to_point(*sample);
        }
    }
}
