//! The copies of a hand-written loop. They depend only on the case, not on the library.
#![expect(unsafe_code, reason = "the loop copies without bounds checks")]

use std::hint::black_box;
use std::ops::Range;
use std::ptr;

use super::case::{Dims, UpdateLayout, Write};
use super::writer::Task;

/// A strided series of copies of equal length, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Series {
    count: usize,
    len: usize,
    dst: usize,
    dst_step: usize,
    src: usize,
    src_step: usize,
}

/// The copies of one call, with precomputed offsets.
///
/// **B1** Every byte of every series is inside buffers of `dst_len` and `src_len` bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Copies {
    series: Vec<Series>,
    dst_len: usize,
    src_len: usize,
}

/// Consecutive slots that receive consecutive rows of one sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Segment {
    sample: usize,
    slot: usize,
    row: usize,
    rows: usize,
}

impl Copies {
    /// Returns the copies of a task, from the update into the cache or the present.
    ///
    /// If 4-bit rows begin or end within a byte, each copy is rounded to whole bytes. Only the memcpy yardstick and the
    /// read after a write use such copies, because a correct write must not change neighbouring elements.
    pub(super) fn new(case: &Write, task: Task, starts: &[i64]) -> Self {
        let (dims, update) = (case.dims(), case.update_bytes());
        let cache = case.cache_bytes();
        if task == Task::Memcpy && !straddles(&dims) {
            // The cache is treated as a list of updates. New positions give another offset, as cold as that of the
            // write.
            let index = starts.first().map_or(0, |&start| start as usize) % (cache / update);
            let flat =
                Series { count: 1, len: update, dst: index * update, dst_step: 0, src: 0, src_step: 0 };
            return Self::checked(vec![flat], cache, update);
        }
        let series = segments(case, task, starts).into_iter().flat_map(|segment| match case.update {
            UpdateLayout::Bshd => bshd(case, segment),
            UpdateLayout::Dense if straddles(&dims) => one_by_one(&dims, dense(case, segment)),
            UpdateLayout::Dense => vec![in_bytes(&dims, dense(case, segment))],
        });
        Self::checked(series.collect(), cache, update)
    }

    /// Checks that every series is inside buffers of these lengths (B1).
    ///
    /// # Panics
    /// Panics if a series is not inside, which is an error in the code that computed it.
    fn checked(series: Vec<Series>, dst_len: usize, src_len: usize) -> Self {
        let end = |count: usize, first: usize, step: usize, len| match count.checked_sub(1) {
            None => Some(0),
            Some(last) => last.checked_mul(step)?.checked_add(first)?.checked_add(len),
        };
        for one in &series {
            let inside = end(one.count, one.dst, one.dst_step, one.len).is_some_and(|end| end <= dst_len)
                && end(one.count, one.src, one.src_step, one.len).is_some_and(|end| end <= src_len);
            assert!(inside, "{one:?} in buffers of {dst_len} and {src_len} bytes");
        }
        Self { series, dst_len, src_len }
    }

    /// Makes every copy with libc's memcpy.
    ///
    /// # Panics
    /// Panics if the buffers do not have the lengths of the case.
    #[inline]
    pub(super) fn copy(&self, dst: &mut [u8], src: &[u8]) {
        assert_eq!((dst.len(), src.len()), (self.dst_len, self.src_len), "buffers of these copies");
        let (dst, src) = (dst.as_mut_ptr(), src.as_ptr());
        for one in &self.series {
            // If the compiler knew the length, it would replace the call of memcpy by a few moves.
            let len = black_box(one.len);
            for i in 0..one.count {
                // SAFETY: The offset plus `len` is at most `dst_len` (B1), the length of `dst` (asserted above).
                let to = unsafe { dst.add(one.dst + i * one.dst_step) };
                // SAFETY: The offset plus `len` is at most `src_len` (B1), the length of `src` (asserted above).
                let from = unsafe { src.add(one.src + i * one.src_step) };
                // SAFETY: Both runs of `len` bytes are inside their buffers (B1). The buffers are an exclusive and a
                // shared slice, so they do not overlap.
                unsafe { ptr::copy_nonoverlapping(from, to, len) };
            }
        }
    }

    /// Returns the destination and the source of every copy, in order.
    pub(super) fn ranges(&self) -> impl Iterator<Item = [Range<usize>; 2]> {
        self.series.iter().flat_map(|one| {
            let range = |first: usize| first..first + one.len;
            (0..one.count)
                .map(move |i| [range(one.dst + i * one.dst_step), range(one.src + i * one.src_step)])
        })
    }
}

/// Returns the first slots of a task.
///
/// In an unwrapped task, a sample that would wrap starts at an earlier slot. The samples still have different slots,
/// because at the same slot they would all compete for the same sets of a CPU cache.
pub(super) fn starts_of(case: &Write, task: Task, starts: &[i64]) -> Vec<i64> {
    let linear = (case.dims().capacity - case.rows + 1) as i64;
    starts.iter().map(|&start| if task == Task::Unwrapped { start % linear } else { start }).collect()
}

/// Returns `true` if some row of the cache begins or ends within a byte.
pub(super) fn straddles(dims: &Dims) -> bool {
    !(dims.inner * dims.bits).is_multiple_of(8)
}

/// Returns `true` if every run of a case's first call must be shifted by half a byte. This is possible with 4-bit
/// elements: a run begins in one half of a byte in the update, and in the other half in the cache.
#[cfg(test)]
pub(super) fn crosses_halves(case: &Write) -> bool {
    let half = |element: usize| element * case.dims().bits % 8;
    segments(case, Task::Write, &case.starts_at(0)).into_iter().map(|segment| dense(case, segment)).all(
        |run| (0..run.count).all(|i| half(run.dst + i * run.dst_step) != half(run.src + i * run.src_step)),
    )
}

/// Returns the segments of a call: one for each sample, or two if a ring wraps.
fn segments(case: &Write, task: Task, starts: &[i64]) -> Vec<Segment> {
    let (rows, capacity) = (case.rows, case.dims().capacity);
    let of_sample = |(sample, start): (usize, i64)| {
        // The starts of a case are 0 to capacity - 1. In linear mode, the rows also end within the capacity.
        let slot = start as usize;
        let first = rows.min(capacity - slot);
        let wrapped = Segment { sample, slot: 0, row: first, rows: rows - first };
        [Segment { sample, slot, row: 0, rows: first }, wrapped]
            .into_iter()
            .filter(|segment| segment.rows > 0)
    };
    starts_of(case, task, starts).into_iter().enumerate().flat_map(of_sample).collect()
}

/// Returns the copies of a segment in elements: one copy for each head, with all rows of the segment.
fn dense(case: &Write, segment: Segment) -> Series {
    let Dims { outer, capacity, inner, .. } = case.dims();
    Series {
        count: outer,
        len: segment.rows * inner,
        dst: (segment.sample * outer * capacity + segment.slot) * inner,
        dst_step: capacity * inner,
        src: (segment.sample * outer * case.rows + segment.row) * inner,
        src_step: case.rows * inner,
    }
}

/// Returns the copies of a segment in bytes, for an update in the order `[batch, rows, heads, head size]`: one copy for
/// each row and head.
fn bshd(case: &Write, Segment { sample, slot, row, rows }: Segment) -> Vec<Series> {
    let dims @ Dims { outer, capacity, inner, .. } = case.dims();
    let first_row = sample * case.rows + row;
    let series = |i| Series {
        count: outer,
        len: inner,
        dst: (sample * outer * capacity + slot + i) * inner,
        dst_step: capacity * inner,
        src: (first_row + i) * outer * inner,
        src_step: inner,
    };
    (0..rows).map(|i| in_bytes(&dims, series(i))).collect()
}

fn in_bytes(dims: &Dims, elements: Series) -> Series {
    let Series { count, len, dst, dst_step, src, src_step } = elements;
    let [len, dst, dst_step, src, src_step] =
        [len, dst, dst_step, src, src_step].map(|elements| elements * dims.bits / 8);
    Series { count, len, dst, dst_step, src, src_step }
}

/// Returns a series for each copy, because the steps between copies are not whole bytes.
fn one_by_one(dims: &Dims, elements: Series) -> Vec<Series> {
    let (bits, Series { count, len, dst, dst_step, src, src_step }) = (dims.bits, elements);
    let series = |i| Series {
        count: 1,
        len: (len * bits).div_ceil(8),
        dst: (dst + i * dst_step) * bits / 8,
        dst_step: 0,
        src: (src + i * src_step) * bits / 8,
        src_step: 0,
    };
    (0..count).map(series).collect()
}

#[cfg(test)]
mod tests {
    use super::{Copies, Series};
    use crate::write::case::Write;
    use crate::write::writer::Task;

    fn ring(element: &str, inner: usize) -> Write {
        let text = format!(
            "name = 'ring'\nshape = [2, 2, 8, {inner}]\nrows = 3\ntype = '{element}'\nmode = 'circular'\nstarts = [7, 1]"
        );
        toml::from_str(&text).unwrap()
    }

    fn destinations(case: &Write, task: Task, starts: &[i64]) -> Vec<std::ops::Range<usize>> {
        Copies::new(case, task, starts).ranges().map(|[to, _]| to).collect()
    }

    #[test]
    fn a_ring_wraps_once() {
        let case = ring("uint8", 4);
        let to = destinations(&case, Task::Write, &[7, 1]);
        assert_eq!(to, [28..32, 60..64, 0..8, 32..40, 68..80, 100..112]);
        let from: Vec<_> = Copies::new(&case, Task::Write, &[7, 1]).ranges().map(|[_, from]| from).collect();
        assert_eq!(from, [0..4, 12..16, 4..12, 16..24, 24..36, 36..48]);
        assert_eq!(destinations(&case, Task::Unwrapped, &[7, 1]), [4..16, 36..48, 68..80, 100..112]);
    }

    #[test]
    fn memcpy_moves_as_much_at_offsets_that_advance() {
        let case = ring("uint8", 4);
        let run = |start| destinations(&case, Task::Memcpy, &[start, 0]);
        assert_eq!([run(0), run(1), run(2)].concat(), [0..48, 48..96, 0..48]);
        let halves = destinations(&ring("int4", 3), Task::Memcpy, &[7, 1]);
        assert_eq!(halves, [10..12, 22..24, 0..3, 12..15, 25..30, 37..42], "rounded up row by row");
    }

    #[test]
    fn copies_outside_the_buffers_are_refused() {
        let two = Series { count: 2, len: 3, dst: 1, dst_step: 5, src: 0, src_step: 3 };
        let mut dst = [0; 9];
        Copies::checked(vec![two], 9, 6).copy(&mut dst, &[1, 2, 3, 4, 5, 6]);
        assert_eq!(dst, [0, 1, 2, 3, 0, 0, 4, 5, 6]);
        let far = Series { dst_step: usize::MAX, ..two };
        let many = Series { count: usize::MAX, ..two };
        for (series, dst_len, src_len) in [(two, 8, 6), (two, 9, 5), (far, 9, 6), (many, 9, 6)] {
            let new = || Copies::checked(vec![series], dst_len, src_len);
            assert!(std::panic::catch_unwind(new).is_err(), "{series:?}");
        }
        let shorter = || Copies::checked(vec![two], 9, 6).copy(&mut [0; 8], &[0; 6]);
        assert!(std::panic::catch_unwind(shorter).is_err());
    }
}
