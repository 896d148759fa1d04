//! Copying runs: the algorithms once, and per instruction set a thin function that compiles them.
//!
//! A kernel is called once for a batch of blocks that differ only in where they begin, never per run. Which one
//! is decided when a write is prepared, by the length that its runs will have (`dispatch.rs`); blocks of another
//! length (a ring's wrap, `lengths`) go to the one for any length. Everything here counts bytes.
//!
//! The caller of a kernel proves three conditions, by P1 and by K1 of [`CpuKernels`](super::CpuKernels). `SAFETY`
//! comments cite all of them:
//!
//! * **V1** every run is valid for writes at `dst` and for reads at `src`, and no run that is written overlaps one that
//!   is read. Until all runs are copied, nothing else uses what is written or writes to what is read.
//! * **V2** the machine has the instruction set that the kernel is compiled for.
//! * **V3** the kernel takes the run. [`Fixed`] takes runs of its length, and `Lines` takes whole lines whose `dst` is
//!   aligned to a [`LINE`]. Every other kernel takes all runs.

use core::ptr;

use super::limits::INLINE_MAX_RUN;
use super::prefetch::{Hint, LINE, prefetch_run};
use crate::geometry::{Loop, Offsets};
use crate::size::Width;

/// An address in the destination and one in the source.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pointers {
    pub(super) dst: *mut u8,
    pub(super) src: *const u8,
}

// SAFETY: only unsafe code reaches the bytes. There, threads that share the pointers write disjoint bytes (P3), and no
// thread writes those at `src` (V1).
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

/// Copies all runs of a batch, whose blocks begin at these pointers. The runs of a block are `len` bytes each. Run `i`,
/// below the pattern's count, begins `i` strides after the block on either side.
///
/// # Safety
/// * V1 for every run.
/// * V2: the machine has the instruction set that the kernel is compiled for.
/// * V3: the kernel takes runs of `len` bytes. If it takes only whole lines, `dst` of every run is aligned to a
///   [`LINE`].
pub(super) type Kernel = unsafe fn(&[Pointers], &Pattern);

/// An instruction set that kernels are compiled for.
pub(super) trait Instructions {
    /// The longest run that is moved through registers at once.
    const LONGEST: usize;
    /// Runs of any length.
    type Any: CopyRun;
    /// Runs that bypass the caches.
    type Stream: CopyRun;
    /// The same, where destinations begin and end with a [`LINE`].
    type Lines: CopyRun;
    fn kernel<R: CopyRun>() -> Kernel;
}

/// How one run is copied.
pub(super) trait CopyRun {
    /// # Safety
    /// * V1: `dst` is valid for writes of `len` bytes, `src` for reads of as many, and they do not overlap.
    /// * V2: the machine has the instruction set of `Self`.
    /// * V3: `Self` takes the run. For [`Fixed`], `len` is its `N`. For `Lines`, `len` is a multiple of [`LINE`] and
    ///   `dst` is aligned to it.
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
/// V1, V2 and V3 for `R` and every run of the batch, as [`Kernel`] defines the runs.
#[inline(always)]
pub(super) unsafe fn copy_runs<R: CopyRun>(batch: &[Pointers], pattern: &Pattern) {
    let Pattern { runs, len, prefetch_distance, hint } = *pattern;
    if batch.len().wrapping_mul(runs.count) <= prefetch_distance {
        for &pointers in batch {
            // SAFETY: V1 to V3 hold for every run of the batch, and these are the runs of one of its blocks.
            unsafe { copy_block::<R>(pointers, runs, len) };
        }
        return;
    }
    match hint {
        // SAFETY: V1 to V3 hold for every run of the batch, which is the same.
        Hint::L1 => unsafe { prefetch_and_copy_runs::<R, true>(batch, pattern) },
        // SAFETY: V1 to V3 hold for every run of the batch, which is the same.
        Hint::L2 => unsafe { prefetch_and_copy_runs::<R, false>(batch, pattern) },
    }
}

/// Copies every run of a batch, each `prefetch_distance` runs after its destination was prefetched.
///
/// # Safety
/// V1, V2 and V3 for `R` and every run of the batch, as [`Kernel`] defines the runs.
#[inline(always)]
unsafe fn prefetch_and_copy_runs<R: CopyRun, const L1: bool>(batch: &[Pointers], pattern: &Pattern) {
    let Pattern { runs, len, prefetch_distance, .. } = *pattern;
    // A block of up to `prefetch_distance` runs prefetches the block that many runs further on, so the loop needs only
    // one pointer more than the copy. A longer block first prefetches its own later runs, and those of the next block
    // while it copies its last ones.
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
            // SAFETY: V1 to V3 hold for every run of the batch, and these are the first `own` runs of a block.
            unsafe {
                copy_and_prefetch::<R, L1>(Pointers { dst, src }, ahead, Loop { count: own, ..runs }, len)
            };
            dst = dst.wrapping_offset(runs.dst_stride.wrapping_mul(own.cast_signed()));
            src = src.wrapping_offset(runs.src_stride.wrapping_mul(own.cast_signed()));
        }
        match next.next() {
            // SAFETY: V1 to V3 hold for every run of the batch, and these are the last `rest.count` runs of a block:
            // the pointers have moved on by `own` strides.
            Some(next) => unsafe { copy_and_prefetch::<R, L1>(Pointers { dst, src }, next.dst, rest, len) },
            // SAFETY: V1 to V3 hold for every run of the batch, and these are the last `rest.count` runs of a block:
            // the pointers have moved on by `own` strides.
            None => unsafe { copy_block::<R>(Pointers { dst, src }, rest, len) },
        }
    }
}

/// Copies the runs of one block.
///
/// # Safety
/// V1, V2 and V3 for `R` and every run of the block: `len` bytes at the pointers moved on by fewer strides than
/// `runs.count`.
#[inline(always)]
unsafe fn copy_block<R: CopyRun>(Pointers { mut dst, mut src }: Pointers, runs: Loop, len: usize) {
    for _ in 0..runs.count {
        // SAFETY: V1 to V3 hold for every run of the block, and the pointers have moved on by one stride for each run
        // before this one.
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
/// V1, V2 and V3 for `R` and every run of the block: `len` bytes at the pointers moved on by fewer strides than
/// `runs.count`.
#[inline(always)]
unsafe fn copy_and_prefetch<R: CopyRun, const L1: bool>(
    Pointers { mut dst, mut src }: Pointers,
    mut ahead: *mut u8,
    runs: Loop,
    len: usize,
) {
    for _ in 0..runs.count {
        R::prefetch::<L1>(ahead, len);
        // SAFETY: V1 to V3 hold for every run of the block, and the pointers have moved on by one stride for each run
        // before this one.
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

impl<const N: usize> CopyRun for Fixed<N> {
    #[inline(always)]
    unsafe fn copy(dst: *mut u8, src: *const u8, len: usize) {
        const { assert!(N < LINE || N.is_multiple_of(LINE)) };
        debug_assert_eq!(len, N, "a kernel for other runs");
        let mut at = 0;
        // A line's worth at a time: of one longer copy the compiler makes stores that go down, and those take twice
        // as long where destinations do not begin with a line and meet in one set of the first-level cache.
        while at < N {
            let piece = if N < LINE { N } else { LINE };
            // SAFETY: V1: `dst` is valid for writes of `len` bytes, `src` for reads of them, and they do not overlap.
            // V3: `len` is `N`. `N` is less than a line or a number of them, as asserted above, so `at + piece <= N`.
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

impl CopyRun for Memcpy {
    #[inline(always)]
    unsafe fn copy(dst: *mut u8, src: *const u8, len: usize) {
        // SAFETY: V1: `dst` is valid for writes of `len` bytes, `src` for reads of them, and they do not overlap.
        unsafe { ptr::copy_nonoverlapping(src, dst, len) };
    }
}

/// Runs of any length: short ones in pieces of `N` bytes, the last of which overlaps the one before it, without
/// the cost of a call.
pub(super) struct Overlapping<const N: usize>;

impl<const N: usize> CopyRun for Overlapping<N> {
    #[inline(always)]
    unsafe fn copy(dst: *mut u8, src: *const u8, len: usize) {
        let Some(last) = len.checked_sub(N).filter(|_| len <= INLINE_MAX_RUN) else {
            // SAFETY: V1 for the same run. V2 and V3: `Memcpy` needs no instruction set and takes all runs.
            return unsafe { Memcpy::copy(dst, src, len) };
        };
        let mut at = 0;
        while at < last {
            // SAFETY: V1: both pointers are valid for `len` bytes, and `at < last`, so `at + N < len`. V2: `Fixed`
            // needs no instruction set. V3: the length is `N`.
            unsafe { Fixed::<N>::copy(dst.wrapping_add(at), src.wrapping_add(at), N) };
            at = at.wrapping_add(N);
        }
        // SAFETY: V1: both pointers are valid for `len` bytes, and `last + N == len`. V2: `Fixed` needs no instruction
        // set. V3: the length is `N`.
        unsafe { Fixed::<N>::copy(dst.wrapping_add(last), src.wrapping_add(last), N) };
    }
}
