//! What an implementation did with a TensorScatter that it must refuse.

use std::fmt;

use kvscatter::spec::onnx::TensorScatter;
use kvscatter::{Layout, OutOfRange};
use kvscatter_onnx::Tensor;

use super::cache::{CacheWrite, Scatter};
use super::verdict::Answer;
use crate::refused::RefusedRule;

/// What an implementation did with the first sample that does not fit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Behaviour {
    pub(super) answer: Answer,
    sample: usize,
    /// The slots of the sample's rows, or `None` for a row that is not written.
    slots: Vec<Option<usize>>,
}

/// The slot of a row, for the start of its sample. `None` if the row is not written.
type Place = fn(start: i64, row: usize, sizes: Sizes) -> Option<usize>;

#[derive(Clone, Copy)]
struct Sizes {
    rows: usize,
    capacity: usize,
}

/// The behaviours in the order in which they are compared. Two of them may give the same cache. Below slot 0, clamped
/// rows give the cache of dropped rows, because the row of slot 0 is the last one there.
const PLACES: [(Answer, Place); 7] = [
    (Answer::Clamps, clamped_start),
    (Answer::Wraps, modulo),
    (Answer::Wraps, from_end),
    (Answer::Skips, skipped),
    (Answer::Ignores, |_, _, _| None),
    (Answer::DropsRows, inside),
    (Answer::Clamps, clamped_row),
];

impl Behaviour {
    /// Returns the behaviour that gives this present, if it is one of those that [`Answer`] names.
    pub(super) fn identify(write: &CacheWrite<'_>, rule: RefusedRule, present: &Tensor) -> Option<Self> {
        use RefusedRule::{NegativeStart, OutOfRange, UpdateTooLong};
        match write.scatter() {
            Some(scatter) if matches!(rule, NegativeStart | OutOfRange | UpdateTooLong) => {
                Self::identify_scatter(&scatter, present)
            }
            // Without valid shapes and starts, only an unchanged cache can be recognised.
            _ if present == write.past => {
                Some(Self { answer: Answer::Ignores, sample: 0, slots: Vec::new() })
            }
            _ => None,
        }
    }

    fn identify_scatter(scatter: &Scatter<'_>, present: &Tensor) -> Option<Self> {
        let sizes = Sizes {
            rows: *scatter.update.shape().get(scatter.axis)?,
            capacity: *scatter.past.shape().get(scatter.axis)?,
        };
        let is_outside = |start: &i64| {
            let end = i128::from(*start).checked_add(i128::try_from(sizes.rows).ok()?)?;
            Some(*start < 0 || end > i128::try_from(sizes.capacity).ok()?)
        };
        let sample = scatter.starts.iter().position(|start| is_outside(start) == Some(true))?;
        let start = *scatter.starts.get(sample)?;
        PLACES.into_iter().find_map(|(answer, place)| {
            let slots: Vec<_> = (0..sizes.rows).map(|row| place(start, row, sizes)).collect();
            let must_write = matches!(answer, Answer::Clamps | Answer::Wraps);
            if must_write && slots.iter().all(Option::is_none) {
                return None;
            }
            (written(scatter, sizes, place)? == *present).then_some(Self { answer, sample, slots })
        })
    }
}

/// Returns the present after a write of each row to its place.
fn written(scatter: &Scatter<'_>, sizes: Sizes, place: Place) -> Option<Tensor> {
    let Scatter { past, update, axis, starts } = scatter;
    let mut strides = Vec::new();
    let mut stride = 1_isize;
    for &size in update.shape().iter().rev() {
        strides.insert(0, stride);
        stride = stride.checked_mul(isize::try_from(size).ok()?)?;
    }
    let mut shape = update.shape().to_vec();
    *shape.get_mut(*axis)? = 1;
    let operator = TensorScatter::new().axis(i64::try_from(*axis).ok()?).out_of_range(OutOfRange::SkipSample);
    let row_stride = usize::try_from(*strides.get(*axis)?).ok()?;
    let mut present = (*past).clone();
    for row in 0..sizes.rows {
        let layout = Layout::strided(&shape, &strides).with_offset(row.checked_mul(row_stride)?);
        let prepared = operator.prepare(past.element(), past.shape(), layout).ok()?;
        // A negative start skips its sample.
        let slots = starts.iter().map(|&start| place(start, row, sizes));
        let slots: Vec<i64> =
            slots.map(|slot| slot.and_then(|slot| i64::try_from(slot).ok()).unwrap_or(-1)).collect();
        let _ = present.write(&prepared.plan(slots.as_slice()).ok()?, update).ok()?;
    }
    Some(present)
}

/// The start is moved so that all rows fit, as in `jax.lax.dynamic_update_slice`.
fn clamped_start(start: i64, row: usize, sizes: Sizes) -> Option<usize> {
    let last = sizes.capacity.checked_sub(sizes.rows)?;
    let start = usize::try_from(start.max(0)).unwrap_or(usize::MAX).min(last);
    start.checked_add(row).filter(|slot| *slot < sizes.capacity)
}

/// Each row is moved into the cache by itself.
fn clamped_row(start: i64, row: usize, sizes: Sizes) -> Option<usize> {
    let last = sizes.capacity.checked_sub(1)?;
    Some(usize::try_from(slot(start, row)?.max(0)).unwrap_or(usize::MAX).min(last))
}

fn modulo(start: i64, row: usize, sizes: Sizes) -> Option<usize> {
    let capacity = i128::try_from(sizes.capacity).ok()?;
    usize::try_from(slot(start, row)?.checked_rem_euclid(capacity)?).ok()
}

/// A negative start is counted from the end, as an index in Python. Other starts must fit.
fn from_end(start: i64, row: usize, sizes: Sizes) -> Option<usize> {
    let from_end = start.checked_add(i64::try_from(sizes.capacity).ok()?)?;
    if start < 0 { inside(from_end, row, sizes) } else { skipped(start, row, sizes) }
}

fn skipped(start: i64, row: usize, sizes: Sizes) -> Option<usize> {
    let last_row = sizes.rows.checked_sub(1)?;
    inside(start, 0, sizes).and(inside(start, last_row, sizes)).and(inside(start, row, sizes))
}

fn inside(start: i64, row: usize, sizes: Sizes) -> Option<usize> {
    usize::try_from(slot(start, row)?).ok().filter(|slot| *slot < sizes.capacity)
}

fn slot(start: i64, row: usize) -> Option<i128> {
    i128::from(start).checked_add(i128::try_from(row).ok()?)
}

/// Formats a behaviour as `clamps: row 0 of sample 1 went to slot 2`.
impl fmt::Display for Behaviour {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { answer, sample, slots } = self;
        write!(f, "{}: ", answer.word())?;
        match answer {
            Answer::Ignores => write!(f, "the cache did not change"),
            Answer::Skips => write!(f, "sample {sample} did not change, and the others were written"),
            Answer::DropsRows => {
                let written = slots.iter().flatten().count();
                write!(f, "{written} of {} rows of sample {sample} were written", slots.len())
            }
            _ => match slots.iter().enumerate().find_map(|(row, slot)| Some((row, (*slot)?))) {
                Some((row, slot)) => write!(f, "row {row} of sample {sample} went to slot {slot}"),
                None => write!(f, "no row of sample {sample} was written"),
            },
        }
    }
}
