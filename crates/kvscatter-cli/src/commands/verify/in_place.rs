//! Judges the call in place of another implementation.

use kvscatter_onnx::Tensor;

use super::actual::{Actual, InPlaceCall, InPlaceStatus};
use super::cache::CacheWrite;
use super::finding::{Finding, InPlaceFault};
use super::verdict::InPlace;
use crate::compare::{Mismatch, Tolerance, compare};

/// The buffer of the past after the call, or the present if the call returned another buffer.
const BUFFER: &str = "in_place_0";
/// The buffer of the past after a call that returned another buffer.
const PAST: &str = "past_0";

/// A write that another implementation was asked to do in place.
pub(super) struct InPlaceWrite<'a> {
    pub(super) write: &'a CacheWrite<'a>,
    /// The expected present, or `None` if the call must be refused.
    pub(super) present: Option<&'a Tensor>,
    /// Whether no node and no output reads the past after the write.
    pub(super) may_overwrite: bool,
    pub(super) tolerance: Option<Tolerance>,
}

/// The verdict, with the fault of a call that is not right. There is no verdict if a file cannot be read.
pub(super) type Judged = (Option<InPlace>, Option<InPlaceFault>);

impl InPlaceWrite<'_> {
    /// Judges the call. Returns `None` if the implementation has not called anything in place.
    pub(super) fn judge(&self, actual: &Actual) -> Option<Judged> {
        let judged = self.judge_files(actual);
        judged.unwrap_or_else(|finding| Some((None, Some(InPlaceFault::File(finding.into())))))
    }

    fn judge_files(&self, actual: &Actual) -> Result<Option<Judged>, Finding> {
        let past = self.write.past;
        let [buffer, past_after] =
            [actual.tensor(BUFFER, past.element()), actual.tensor(PAST, past.element())];
        let (buffer, past_after) = (buffer?, past_after?);
        let call = match (&actual.in_place, &buffer) {
            (Some(call), _) => call.clone(),
            (None, None) => return Ok(None),
            // Without answer.json, the buffer belongs to a call that did what it must do.
            (None, Some(_)) => InPlaceCall {
                status: match self.present {
                    Some(_) => InPlaceStatus::Returned,
                    None => InPlaceStatus::Refused,
                },
                message: None,
                same_memory: None,
            },
        };
        let message = call.message;
        let judged = match call.status {
            InPlaceStatus::NotPossible => (Some(InPlace::NotPossible), None),
            InPlaceStatus::Crashed => (Some(InPlace::Crashes), Some(InPlaceFault::Crashed(message))),
            InPlaceStatus::Timeout => (Some(InPlace::Timeout), Some(InPlaceFault::Timeout(message))),
            InPlaceStatus::Refused => {
                let buffer = buffer.ok_or_else(|| actual.missing(BUFFER))?;
                match (self.difference(&buffer, past), self.present) {
                    (Some(mismatch), _) => partly_written(mismatch),
                    (None, None) => (Some(InPlace::Exact), None),
                    (None, Some(_)) => (Some(InPlace::Refuses), Some(InPlaceFault::Refused(message))),
                }
            }
            InPlaceStatus::Returned => match self.present {
                None => (Some(InPlace::Differs), Some(InPlaceFault::Accepted)),
                Some(present) => {
                    let buffer = buffer.ok_or_else(|| actual.missing(BUFFER))?;
                    let is_other = call.same_memory == Some(false);
                    self.judge_returned(&buffer, past_after.as_ref(), present, is_other)
                }
            },
        };
        Ok(Some(judged))
    }

    /// Judges a valid call that returned. `is_other` is whether its present is another buffer than the past's.
    fn judge_returned(
        &self,
        buffer: &Tensor,
        past_after: Option<&Tensor>,
        present: &Tensor,
        is_other: bool,
    ) -> Judged {
        if let Some(mismatch) = self.difference(buffer, present) {
            return (Some(InPlace::Differs), Some(InPlaceFault::Differs(mismatch)));
        }
        let past_after = if is_other { past_after } else { Some(buffer) };
        let changed = past_after.and_then(|after| self.difference(after, self.write.past));
        match (changed, self.may_overwrite) {
            (Some(mismatch), false) => {
                (Some(InPlace::CorruptsPast), Some(InPlaceFault::CorruptsPast(mismatch)))
            }
            (None, false) => (Some(InPlace::Exact), None),
            (_, true) if !is_other => (Some(InPlace::Exact), None),
            // The buffer of the past may contain the past or the present.
            (Some(mismatch), true)
                if past_after.is_some_and(|after| self.difference(after, present).is_some()) =>
            {
                (Some(InPlace::Differs), Some(InPlaceFault::Differs(mismatch)))
            }
            (_, true) => (Some(InPlace::Copies), None),
        }
    }

    fn difference(&self, buffer: &Tensor, expected: &Tensor) -> Option<Mismatch> {
        let mismatch = compare(&[buffer], std::slice::from_ref(expected), self.tolerance);
        mismatch.map(|mismatch| mismatch.of_output(self.write.present))
    }
}

fn partly_written(mismatch: Mismatch) -> Judged {
    (Some(InPlace::PartlyWritten), Some(InPlaceFault::PartlyWritten(mismatch)))
}

/// Returns the fault of outputs that read the past, if one of them differs. Their values show that the write changed
/// the past too early.
pub(super) fn corrupted_past(
    write: &CacheWrite<'_>,
    outputs: &[&Tensor],
    expected: &[Tensor],
    tolerance: Option<Tolerance>,
) -> Option<InPlaceFault> {
    write.of_past.iter().find_map(|&output| {
        let (actual, expected) = (outputs.get(output)?, expected.get(output)?);
        let mismatch = compare(&[actual], std::slice::from_ref(expected), tolerance)?;
        Some(InPlaceFault::CorruptsPast(mismatch.of_output(output)))
    })
}
