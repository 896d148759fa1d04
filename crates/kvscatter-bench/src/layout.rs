//! Computes where a hand-written loop copies the rows of a call. It depends only on the case, not on the
//! library.

use crate::call::Task;
use crate::case::{CacheDims, Case, UpdateLayout};
use crate::raw::{Runs, Series};

/// Consecutive slots that receive consecutive rows of one sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ExpectedSegment {
    pub(crate) sample: usize,
    pub(crate) slot: usize,
    pub(crate) row: usize,
    pub(crate) rows: usize,
}

/// Returns the first slots of a task.
///
/// In an unwrapped task, a sample that would wrap starts at an earlier slot. The samples still have different
/// slots, because at the same slot they would all compete for the same sets of a CPU cache.
pub(crate) fn starts_of(case: &Case, task: Task, starts: &[i64]) -> Vec<i64> {
    let start_count = (case.dims().capacity - case.parameters().rows + 1) as i64;
    let wrapped = |&start: &i64| if task == Task::Unwrapped { start % start_count } else { start };
    starts.iter().map(wrapped).collect()
}

/// Returns the segments of a call: one for each sample, or two if a ring wraps.
pub(crate) fn segments(case: &Case, task: Task, starts: &[i64]) -> Vec<ExpectedSegment> {
    let (rows, capacity) = (case.parameters().rows, case.dims().capacity);
    let of_sample = |(sample, start): (usize, i64)| {
        // The starts of a case are 0 to capacity - 1. In linear mode, the rows also end within the capacity.
        let slot = start as usize;
        let first = rows.min(capacity - slot);
        let wrapped = ExpectedSegment { sample, slot: 0, row: first, rows: rows - first };
        [ExpectedSegment { sample, slot, row: 0, rows: first }, wrapped]
            .into_iter()
            .filter(|segment| segment.rows > 0)
    };
    starts_of(case, task, starts).into_iter().enumerate().flat_map(of_sample).collect()
}

/// Returns `true` if some row of the cache begins or ends within a byte.
pub(crate) fn straddles(dims: &CacheDims) -> bool {
    !(dims.inner * dims.bits).is_multiple_of(8)
}

/// Returns `true` if every run of a case's first call must be shifted by half a byte. This is possible with
/// 4-bit elements: a run begins in one half of a byte in the update, and in the other half in the cache.
#[must_use]
pub fn crosses_halves(case: &Case) -> bool {
    crosses_halves_at(case, &case.starts_at(0))
}

/// Returns `true` if every run of a call at these positions must be shifted by half a byte.
fn crosses_halves_at(case: &Case, starts: &[i64]) -> bool {
    let half = |element: usize| element * case.dims().bits % 8;
    let is_crossed = |run: &Series| {
        (0..run.count).all(|i| half(run.dst + i * run.dst_step) != half(run.src + i * run.src_step))
    };
    case.parameters().update == UpdateLayout::Dense
        && segments(case, Task::Write, starts).iter().all(|segment| is_crossed(&dense(case, segment)))
}

/// Returns the copies of a task, from the update into the cache or the present.
///
/// If 4-bit rows begin or end within a byte, each copy is rounded to whole bytes. Only the memcpy yardstick
/// and the read after a write use such copies, because a correct write must not change neighbouring elements.
pub(crate) fn runs(case: &Case, task: Task, starts: &[i64]) -> Runs {
    let dims = case.dims();
    let (cache, update) = (case.cache_bytes(), case.update_bytes());
    if task == Task::Memcpy && !straddles(&dims) {
        // The cache is treated as a list of updates. New positions give another offset, as cold as that of
        // the write.
        let index = starts.first().map_or(0, |&start| start as usize) % (cache / update);
        let flat = Series { count: 1, len: update, dst: index * update, dst_step: 0, src: 0, src_step: 0 };
        return Runs::new(vec![flat], cache, update);
    }
    let segments = segments(case, task, starts);
    let series = match case.parameters().update {
        UpdateLayout::Bshd => segments.iter().flat_map(|segment| bshd(case, segment)).collect(),
        UpdateLayout::Dense if straddles(&dims) => {
            segments.iter().flat_map(|segment| one_by_one(dims, dense(case, segment))).collect()
        }
        UpdateLayout::Dense => segments.iter().map(|segment| in_bytes(&dims, dense(case, segment))).collect(),
    };
    Runs::new(series, cache, update)
}

/// Returns the copies of a segment in elements: one copy for each head, with all rows of the segment.
fn dense(case: &Case, segment: &ExpectedSegment) -> Series {
    let CacheDims { outer, capacity, inner, .. } = case.dims();
    let rows = case.parameters().rows;
    Series {
        count: outer,
        len: segment.rows * inner,
        dst: (segment.sample * outer * capacity + segment.slot) * inner,
        dst_step: capacity * inner,
        src: (segment.sample * outer * rows + segment.row) * inner,
        src_step: rows * inner,
    }
}

/// Returns the copies of a segment in bytes, for an update in the order `[batch, rows, heads, head size]`:
/// one copy for each row and head.
fn bshd(case: &Case, segment: &ExpectedSegment) -> impl Iterator<Item = Series> {
    let dims @ CacheDims { outer, capacity, inner, .. } = case.dims();
    let ExpectedSegment { sample, slot, row, rows } = *segment;
    let first_row = sample * case.parameters().rows + row;
    (0..rows).map(move |i| {
        let elements = Series {
            count: outer,
            len: inner,
            dst: (sample * outer * capacity + slot + i) * inner,
            dst_step: capacity * inner,
            src: (first_row + i) * outer * inner,
            src_step: inner,
        };
        in_bytes(&dims, elements)
    })
}

fn in_bytes(dims: &CacheDims, elements: Series) -> Series {
    let bytes = |elements: usize| elements * dims.bits / 8;
    Series {
        count: elements.count,
        len: bytes(elements.len),
        dst: bytes(elements.dst),
        dst_step: bytes(elements.dst_step),
        src: bytes(elements.src),
        src_step: bytes(elements.src_step),
    }
}

/// Returns a series for each copy, because the steps between copies are not whole bytes.
fn one_by_one(dims: CacheDims, elements: Series) -> impl Iterator<Item = Series> {
    let (bits, Series { count, len, dst, dst_step, src, src_step }) = (dims.bits, elements);
    (0..count).map(move |i| Series {
        count: 1,
        len: (len * bits).div_ceil(8),
        dst: (dst + i * dst_step) * bits / 8,
        dst_step: 0,
        src: (src + i * src_step) * bits / 8,
        src_step: 0,
    })
}

#[cfg(test)]
mod tests {
    use kvscatter::ElementType;

    use super::{ExpectedSegment, crosses_halves_at, runs, segments};
    use crate::call::Task;
    use crate::case::{Case, Form, Pages, Parameters, Starts, Temperature, UpdateLayout};

    fn ring(element: ElementType, inner: usize) -> Case {
        Case::new(Parameters {
            name: String::new(),
            shape: vec![2, 2, 8, inner],
            axis: -2,
            rows: 3,
            element,
            mode: kvscatter::Mode::Circular,
            starts: Starts::List(vec![7, 1]),
            form: Form::InPlace,
            temperature: Temperature::Hot,
            layers: 1,
            pages: Pages::Small,
            update: UpdateLayout::Dense,
            threads: 1,
        })
        .unwrap()
    }

    #[test]
    fn a_ring_wraps_once() {
        let case = ring(ElementType::UInt8, 4);
        let segment = |sample, slot, row, rows| ExpectedSegment { sample, slot, row, rows };
        let wrapped = [segment(0, 7, 0, 1), segment(0, 0, 1, 2), segment(1, 1, 0, 3)];
        assert_eq!(segments(&case, Task::Write, &[7, 1]), wrapped);
        assert_eq!(segments(&case, Task::Unwrapped, &[7, 1]), [segment(0, 1, 0, 3), segment(1, 1, 0, 3)]);
        let [to, from]: [Vec<_>; 2] = {
            let runs = runs(&case, Task::Write, &[7, 1]);
            [runs.destinations().collect(), runs.sources().collect()]
        };
        assert_eq!(to, [28..32, 60..64, 0..8, 32..40, 68..80, 100..112]);
        assert_eq!(from, [0..4, 12..16, 4..12, 16..24, 24..36, 36..48]);
    }

    #[test]
    fn memcpy_moves_as_much_in_one_run_at_offsets_that_advance() {
        let case = ring(ElementType::UInt8, 4);
        let run = |start| runs(&case, Task::Memcpy, &[start, 0]).destinations().collect::<Vec<_>>();
        assert_eq!([run(0), run(1), run(2)].concat(), [0..48, 48..96, 0..48]);
    }

    #[test]
    fn halves_cross_in_every_run_or_not_at_all() {
        let case = ring(ElementType::Int4, 3);
        // The stride of heads is 24 elements in the cache and 9 in the update, so every second head begins in
        // the same half.
        assert!(!crosses_halves_at(&case, &[1, 1]) && !crosses_halves_at(&case, &[0, 0]));
        let even = Case::new(Parameters { rows: 2, ..case.parameters().clone() }).unwrap();
        assert!(crosses_halves_at(&even, &[1, 3]) && !crosses_halves_at(&even, &[1, 2]));
        assert!(!crosses_halves_at(&ring(ElementType::UInt8, 3), &[1, 3]));
    }

    #[test]
    fn half_bytes_are_rounded_up_row_by_row() {
        let case = ring(ElementType::Int4, 3);
        let runs = runs(&case, Task::Memcpy, &[7, 1]);
        assert_eq!(runs.destinations().collect::<Vec<_>>(), [10..12, 22..24, 0..3, 12..15, 25..30, 37..42]);
    }
}
