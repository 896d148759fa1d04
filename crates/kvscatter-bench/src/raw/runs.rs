//! The hand-written loop: libc memcpys at precomputed offsets.

use std::hint::black_box;
use std::ops::Range;
use std::ptr;

/// A strided series of copies of equal length. All numbers are in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Series {
    pub(crate) count: usize,
    pub(crate) len: usize,
    pub(crate) dst: usize,
    pub(crate) dst_step: usize,
    pub(crate) src: usize,
    pub(crate) src_step: usize,
}

/// The copies of a hand-written loop of memcpys, with precomputed offsets.
///
/// **B1** Every byte of every series is inside buffers of `dst_len` and `src_len` bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Runs {
    series: Vec<Series>,
    dst_len: usize,
    src_len: usize,
}

impl Series {
    /// Returns the end of the last byte, on the destination's or the source's side.
    fn end(&self, first: usize, step: usize) -> Option<usize> {
        match self.count.checked_sub(1) {
            None => Some(0),
            Some(last) => last.checked_mul(step)?.checked_add(first)?.checked_add(self.len),
        }
    }
}

impl Runs {
    /// Checks that every series is inside buffers of these lengths (B1).
    ///
    /// # Panics
    /// Panics if a series is not inside, which is an error in the code that computed it.
    pub(crate) fn new(series: Vec<Series>, dst_len: usize, src_len: usize) -> Self {
        for one in &series {
            let inside = one.end(one.dst, one.dst_step).is_some_and(|end| end <= dst_len)
                && one.end(one.src, one.src_step).is_some_and(|end| end <= src_len);
            assert!(inside, "{one:?} in buffers of {dst_len} and {src_len} bytes");
        }
        Self { series, dst_len, src_len }
    }

    /// Copies every run with libc's memcpy.
    ///
    /// # Panics
    /// Panics if the buffers do not have the lengths that were passed to `new`.
    #[inline]
    pub(crate) fn copy(&self, dst: &mut [u8], src: &[u8]) {
        assert_eq!((dst.len(), src.len()), (self.dst_len, self.src_len), "buffers of these runs");
        let (dst, src) = (dst.as_mut_ptr(), src.as_ptr());
        for one in &self.series {
            // If the compiler knew the length, it would replace the call of memcpy by a few moves.
            let len = black_box(one.len);
            for i in 0..one.count {
                let (to, from) = (one.dst + i * one.dst_step, one.src + i * one.src_step);
                // SAFETY: `to + len` is at most `dst_len` (B1), which is the length of `dst` (asserted
                // above).
                let to = unsafe { dst.add(to) };
                // SAFETY: `from + len` is at most `src_len` (B1), which is the length of `src` (asserted
                // above).
                let from = unsafe { src.add(from) };
                // SAFETY: Both runs of `len` bytes are inside their buffers (B1). The buffers are an
                // exclusive and a shared slice, so they do not overlap.
                unsafe { ptr::copy_nonoverlapping(from, to, len) };
            }
        }
    }

    /// Reads the destination of every run, as attention does after the write, and returns a sum.
    ///
    /// # Panics
    /// Panics if the buffer does not have the length that was passed to `new`.
    #[must_use]
    pub(crate) fn read(&self, dst: &[u8]) -> u64 {
        assert_eq!(dst.len(), self.dst_len, "buffer of these runs");
        self.destinations().fold(0, |sum, range| sum.wrapping_add(checksum(&dst[range])))
    }

    /// Returns the destination of every run, in order.
    pub(crate) fn destinations(&self) -> impl Iterator<Item = Range<usize>> {
        self.series.iter().flat_map(|one| ranges(one, one.dst, one.dst_step))
    }

    /// Returns the source of every run, in order.
    pub(crate) fn sources(&self) -> impl Iterator<Item = Range<usize>> {
        self.series.iter().flat_map(|one| ranges(one, one.src, one.src_step))
    }
}

fn ranges(series: &Series, first: usize, step: usize) -> impl Iterator<Item = Range<usize>> {
    let len = series.len;
    (0..series.count).map(move |i| first + i * step..first + i * step + len)
}

/// Returns a sum of all bytes, read eight at a time.
pub(crate) fn checksum(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    let words = words.iter().fold(0, |sum: u64, &word| sum.wrapping_add(u64::from_le_bytes(word)));
    rest.iter().fold(words, |sum, &byte| sum.wrapping_add(byte.into()))
}

#[cfg(test)]
mod tests {
    use super::{Runs, Series, checksum};

    const TWO: Series = Series { count: 2, len: 3, dst: 1, dst_step: 5, src: 0, src_step: 3 };

    #[test]
    fn copies_and_reads_what_it_says() {
        let runs = Runs::new(vec![TWO], 9, 6);
        let mut dst = [0; 9];
        runs.copy(&mut dst, &[1, 2, 3, 4, 5, 6]);
        assert_eq!(dst, [0, 1, 2, 3, 0, 0, 4, 5, 6]);
        assert_eq!(runs.read(&[9, 1, 2, 3, 9, 9, 4, 5, 6]), 21);
    }

    #[test]
    fn a_run_that_ends_outside_is_refused() {
        let whole = |count, dst_step, src_step| Series { count, len: 3, dst: 1, dst_step, src: 0, src_step };
        for (series, dst_len, src_len) in
            [(TWO, 8, 6), (TWO, 9, 5), (whole(2, usize::MAX, 3), 9, 6), (whole(usize::MAX, 5, 3), 9, 6)]
        {
            let new = || Runs::new(vec![series], dst_len, src_len);
            assert!(std::panic::catch_unwind(new).is_err(), "{series:?}");
        }
        assert_eq!(Runs::new(vec![whole(0, 5, 3)], 0, 0).destinations().count(), 0);
    }

    #[test]
    #[should_panic(expected = "buffers of these runs")]
    fn other_buffers_are_refused() {
        Runs::new(vec![TWO], 9, 6).copy(&mut [0; 8], &[0; 6]);
    }

    #[test]
    fn every_byte_counts() {
        let sum = checksum(&[1; 13]);
        for place in 0..13 {
            let mut bytes = [1; 13];
            bytes[place] = 2;
            assert_ne!(checksum(&bytes), sum, "{place}");
        }
    }
}
