//! Copying runs: the algorithms once, and per instruction set a thin function that compiles them.
//!
//! A kernel is called once for a batch of blocks that differ only in where they begin, never per run. Which one
//! is decided when a write is prepared, by the length that its runs will have (`dispatch.rs`); blocks of another
//! length (a ring's wrap, `lengths`) go to the one for any length. Everything here counts bytes.

use core::ptr;

use super::limits::INLINE_MAX_RUN;
use super::prefetch::{Hint, LINE, prefetch_run};
use crate::geometry::{Loop, Offsets};
use crate::size::Width;

/// A place on either side.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pointers {
    pub(super) dst: *mut u8,
    pub(super) src: *const u8,
}

// SAFETY: threads that share the pointers write disjoint bytes (P2, P3) and only read those at `src`.
unsafe impl Sync for Pointers {}

impl Pointers {
    /// These pointers, moved on by so many elements.
    pub(super) fn offset(self, width: Width, by: Offsets) -> Self {
        let Offsets { dst, src } = by;
        Self { dst: self.dst.wrapping_add(width.bytes(dst)), src: self.src.wrapping_add(width.bytes(src)) }
    }
}

/// What the blocks of a batch have in common.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pattern {
    /// The runs, and how far one is from the next.
    pub(super) runs: Loop,
    /// Bytes of one run.
    pub(super) len: usize,
    /// How many runs ahead of the copy destinations are prefetched; [`NO_PREFETCH`] where the machine sees for itself
    /// what comes next.
    pub(super) prefetch_distance: usize,
    /// The cache that they are prefetched into.
    pub(super) hint: Hint,
}

/// More runs than any batch has.
pub(super) const NO_PREFETCH: usize = usize::MAX >> 1;

/// Copies all runs of a batch, the blocks of which begin at these places.
///
/// # Safety
/// The pattern's runs are as long as those that the kernel was chosen for, unless it takes any length. P1: every
/// run, which is `len` bytes at a beginning moved by a multiple of the pattern's steps below its count, is valid
/// for writes on the left and for reads on the right; no run that is written overlaps one that is read. The
/// machine has the instruction set that the kernel was chosen for.
pub(super) type Kernel = unsafe fn(&[Pointers], &Pattern);

/// An instruction set that kernels are compiled for.
pub(super) trait Instructions {
    /// The longest run that is moved through registers at once.
    const LONGEST: usize;
    /// Runs of any length.
    type Any: Run;
    /// Runs that bypass the caches.
    type Stream: Run;
    /// The same, where destinations begin and end with a [`LINE`].
    type Lines: Run;
    fn kernel<R: Run>() -> Kernel;
}

/// How one run is copied.
pub(super) trait Run {
    /// # Safety
    /// `dst` is valid for `len` bytes of writes, `src` for as many of reads, and they do not overlap. The
    /// machine has the instruction set that the caller is compiled for.
    unsafe fn copy(dst: *mut u8, src: *const u8, len: usize);

    /// Prefetches a destination that will be written soon.
    #[inline(always)]
    fn prefetch<const L1: bool>(dst: *mut u8, len: usize) {
        prefetch_run::<L1>(dst, len);
    }
}

/// Every run of a batch. `R` sees two pointers and a length.
///
/// # Safety
/// As [`Kernel`].
#[inline(always)]
pub(super) unsafe fn copy_runs<R: Run>(batch: &[Pointers], pattern: &Pattern) {
    let Pattern { runs, len, prefetch_distance, hint } = *pattern;
    if batch.len().wrapping_mul(runs.count) <= prefetch_distance {
        for &pointers in batch {
            // SAFETY: P1, by the contract of `Kernel`, for every run of the block.
            unsafe { copy_block::<R>(pointers, runs, len) };
        }
        return;
    }
    match hint {
        // SAFETY: P1 for every run of the batch, by the contract of `Kernel`, which is this function's.
        Hint::L1 => unsafe { prefetch_and_copy_runs::<R, true>(batch, pattern) },
        // SAFETY: P1 for every run of the batch, by the contract of `Kernel`, which is this function's.
        Hint::L2 => unsafe { prefetch_and_copy_runs::<R, false>(batch, pattern) },
    }
}

/// Copies every run of a batch, each `prefetch_distance` runs after its destination was prefetched.
///
/// # Safety
/// As [`Kernel`].
#[inline(always)]
unsafe fn prefetch_and_copy_runs<R: Run, const L1: bool>(batch: &[Pointers], pattern: &Pattern) {
    let Pattern { runs, len, prefetch_distance, .. } = *pattern;
    // A block of up to `prefetch_distance` runs prefetches the block that many runs further on, so the loop needs only one
    // pointer more than the copy. A longer block first prefetches its own later runs, and those of the next
    // block while it copies its last ones.
    let (blocks, within) = match prefetch_distance.checked_div(runs.count) {
        Some(blocks @ 1..) => (blocks, 0),
        _ => (1, prefetch_distance),
    };
    let own = if within == 0 { 0 } else { runs.count.wrapping_sub(within) };
    let rest = Loop { count: runs.count.wrapping_sub(own), ..runs };
    for &Pointers { mut dst, .. } in batch.iter().take(blocks) {
        for _ in 0..rest.count {
            R::prefetch::<L1>(dst, len);
            dst = dst.wrapping_offset(runs.dst_stride);
        }
    }
    let mut next = batch.iter().skip(blocks);
    for &Pointers { mut dst, mut src } in batch {
        if own > 0 {
            let ahead = dst.wrapping_offset(runs.dst_stride.wrapping_mul(within.cast_signed()));
            // SAFETY: P1, by the contract of `Kernel`, for the first `own` runs of the block.
            unsafe {
                copy_and_prefetch::<R, L1>(Pointers { dst, src }, ahead, Loop { count: own, ..runs }, len)
            };
            dst = dst.wrapping_offset(runs.dst_stride.wrapping_mul(own.cast_signed()));
            src = src.wrapping_offset(runs.src_stride.wrapping_mul(own.cast_signed()));
        }
        match next.next() {
            // SAFETY: P1, by the contract of `Kernel`, for the last `rest.count` runs of the block.
            Some(next) => unsafe { copy_and_prefetch::<R, L1>(Pointers { dst, src }, next.dst, rest, len) },
            // SAFETY: P1, by the contract of `Kernel`, for the last `rest.count` runs of the block.
            None => unsafe { copy_block::<R>(Pointers { dst, src }, rest, len) },
        }
    }
}

/// Copies the runs of one block.
///
/// # Safety
/// Every run is valid for [`Run::copy`].
#[inline(always)]
unsafe fn copy_block<R: Run>(Pointers { mut dst, mut src }: Pointers, runs: Loop, len: usize) {
    for _ in 0..runs.count {
        // SAFETY: `len` bytes valid for writes at `dst` and for reads at `src`, by this function's contract for each run.
        unsafe { R::copy(dst, src, len) };
        // The step past the last run is computed but never used, and wrapping arithmetic makes that defined.
        dst = dst.wrapping_offset(runs.dst_stride);
        src = src.wrapping_offset(runs.src_stride);
    }
}

/// Copies the runs of one block. Before each run, prefetches the next one of as many destinations, from
/// `ahead` on.
///
/// # Safety
/// Every run is valid for [`Run::copy`].
#[inline(always)]
unsafe fn copy_and_prefetch<R: Run, const L1: bool>(
    Pointers { mut dst, mut src }: Pointers,
    mut ahead: *mut u8,
    runs: Loop,
    len: usize,
) {
    for _ in 0..runs.count {
        R::prefetch::<L1>(ahead, len);
        // SAFETY: `len` bytes valid for writes at `dst` and for reads at `src`, by this function's contract for each run.
        unsafe { R::copy(dst, src, len) };
        // The step past the last run is computed but never used, and wrapping arithmetic makes that defined.
        ahead = ahead.wrapping_offset(runs.dst_stride);
        dst = dst.wrapping_offset(runs.dst_stride);
        src = src.wrapping_offset(runs.src_stride);
    }
}

/// Runs of `N` bytes, less than a [`LINE`] or a number of them: the length is in the code, and the compiler moves it
/// through registers.
pub(super) struct Fixed<const N: usize>;

impl<const N: usize> Run for Fixed<N> {
    #[inline(always)]
    unsafe fn copy(dst: *mut u8, src: *const u8, len: usize) {
        const { assert!(N < LINE || N.is_multiple_of(LINE)) };
        debug_assert_eq!(len, N, "a kernel for other runs");
        let mut at = 0;
        // A line's worth at a time: of one longer copy the compiler makes stores that go down, and those take twice
        // as long where destinations do not begin with a line and meet in one set of the first-level cache.
        while at < N {
            let piece = if N < LINE { N } else { LINE };
            // SAFETY: both pointers are valid for `len` bytes by this function's contract, and by that of [`Kernel`] `len`
            // is `N`. `N` is less than a line or a number of them, as asserted above, so `at + piece` is at most `N`.
            unsafe { ptr::copy_nonoverlapping(src.wrapping_add(at), dst.wrapping_add(at), piece) };
            at = at.wrapping_add(piece);
        }
    }

    #[inline(always)]
    fn prefetch<const L1: bool>(dst: *mut u8, _: usize) {
        prefetch_run::<L1>(dst, N);
    }
}

/// Runs of any length, by the C library.
pub(super) struct Memcpy;

impl Run for Memcpy {
    #[inline(always)]
    unsafe fn copy(dst: *mut u8, src: *const u8, len: usize) {
        // SAFETY: `len` bytes that are valid on both pointers and do not overlap, by this function's contract.
        unsafe { ptr::copy_nonoverlapping(src, dst, len) };
    }
}

/// Runs of any length: short ones in pieces of `N` bytes, the last of which overlaps the one before it, without
/// the cost of a call.
pub(super) struct Overlapping<const N: usize>;

impl<const N: usize> Run for Overlapping<N> {
    #[inline(always)]
    unsafe fn copy(dst: *mut u8, src: *const u8, len: usize) {
        let Some(last) = len.checked_sub(N).filter(|_| len <= INLINE_MAX_RUN) else {
            // SAFETY: `len` bytes that are valid on both pointers and do not overlap, by this function's contract.
            return unsafe { Memcpy::copy(dst, src, len) };
        };
        let mut at = 0;
        while at < last {
            // SAFETY: `at + N < len`.
            unsafe { Fixed::<N>::copy(dst.wrapping_add(at), src.wrapping_add(at), N) };
            at = at.wrapping_add(N);
        }
        // SAFETY: `last + N == len`.
        unsafe { Fixed::<N>::copy(dst.wrapping_add(last), src.wrapping_add(last), N) };
    }
}
