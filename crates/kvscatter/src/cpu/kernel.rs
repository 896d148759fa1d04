//! Copies runs. The algorithms are written once, and a thin function per instruction set compiles them.
//!
//! A kernel is called once for a batch of blocks, not once per run. The blocks of a batch differ only in
//! where they begin. `dispatch.rs` chooses the kernel when a write is prepared, by the usual length of its
//! runs. Blocks with runs of another length (after a ring's wrap, or with `lengths`) use the kernel for any
//! length. All numbers here count bytes.
//!
//! The caller of a kernel proves three conditions, by P1 (crate documentation) and by K1 (see
//! [`CpuKernels`](super::CpuKernels)). `SAFETY` comments cite all of them:
//!
//! * **V1** Every run is valid for writes at `dst` and for reads at `src`. No run that is written overlaps a
//!   run that is read. Until all runs are copied, nothing else uses the written runs or writes to the runs
//!   that are read.
//! * **V2** The machine has the instruction set that the kernel is compiled for.
//! * **V3** The kernel takes the run. [`Fixed`] takes runs of its length. `Lines` takes whole lines whose
//!   `dst` is aligned to a [`LINE`]. Every other kernel takes all runs.

use core::ptr;

use super::limits::INLINE_MAX_RUN;
use super::prefetch::{Hint, LINE, prefetch_run};
use crate::geometry::{Loop, Offsets};
use crate::size::Width;

/// An address in the destination and an address in the source.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pointers {
    pub(super) dst: *mut u8,
    pub(super) src: *const u8,
}

// SAFETY: Only unsafe code accesses the bytes. In that code, threads that share the pointers write disjoint
// bytes (P3), and no thread writes the bytes at `src` (V1).
unsafe impl Sync for Pointers {}

impl Pointers {
    /// Returns these pointers, moved on by the given numbers of elements.
    pub(super) fn offset(self, width: Width, by: Offsets) -> Self {
        let Offsets { dst, src } = by;
        Self { dst: self.dst.wrapping_add(width.bytes(dst)), src: self.src.wrapping_add(width.bytes(src)) }
    }
}

/// The properties that all blocks of a batch have in common.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pattern {
    /// The number of runs and the distances between them.
    pub(super) runs: Loop,
    /// The number of bytes in a run.
    pub(super) len: usize,
    /// How many runs ahead of the copy the destinations are prefetched. It is [`NO_PREFETCH`] if the
    /// processor prefetches the runs without hints.
    pub(super) prefetch_distance: usize,
    /// The CPU cache that the destinations are prefetched into.
    pub(super) hint: Hint,
}

/// A distance in runs that is longer than any batch.
pub(super) const NO_PREFETCH: usize = usize::MAX >> 1;

/// Copies all runs of a batch, whose blocks begin at these pointers. Each run of a block has `len` bytes. Run
/// `i`, which is below the pattern's count, begins `i` strides after the start of the block on either side.
///
/// # Safety
/// * V1 holds for every run.
/// * V2: the machine has the instruction set that the kernel is compiled for.
/// * V3: the kernel takes runs of `len` bytes. If it takes only whole lines, `dst` of every run is aligned to
///   a [`LINE`].
pub(super) type Kernel = unsafe fn(&[Pointers], &Pattern);

/// An instruction set that kernels are compiled for.
pub(super) trait Instructions {
    /// The length of the longest run that is moved through registers at once.
    const LONGEST: usize;
    /// The copy for runs of any length.
    type Any: CopyRun;
    /// The copy for runs of any length that bypasses the CPU caches.
    type Stream: CopyRun;
    /// The copy that bypasses the CPU caches, for destinations that begin and end at a [`LINE`].
    type Lines: CopyRun;
    fn kernel<R: CopyRun>() -> Kernel;
}

/// A way to copy one run.
pub(super) trait CopyRun {
    /// Copies one run.
    ///
    /// # Safety
    /// * V1: `dst` is valid for writes of `len` bytes, `src` is valid for reads of `len` bytes, and they do
    ///   not overlap.
    /// * V2: the machine has the instruction set of `Self`.
    /// * V3: `Self` takes the run. For [`Fixed`], `len` is its `N`. For `Lines`, `len` is a multiple of
    ///   [`LINE`] and `dst` is aligned to it.
    unsafe fn copy(dst: *mut u8, src: *const u8, len: usize);

    /// Prefetches a destination that will be written soon.
    #[inline(always)]
    fn prefetch<const L1: bool>(dst: *mut u8, len: usize) {
        prefetch_run::<L1>(dst, len);
    }
}

/// Copies every run of a batch. `R` copies one run, from two pointers and a length.
///
/// # Safety
/// V1, V2 and V3 hold for `R` and every run of the batch, as [`Kernel`] defines the runs.
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
        // SAFETY: V1 to V3 hold for every run of this same batch.
        Hint::L1 => unsafe { prefetch_and_copy_runs::<R, true>(batch, pattern) },
        // SAFETY: V1 to V3 hold for every run of this same batch.
        Hint::L2 => unsafe { prefetch_and_copy_runs::<R, false>(batch, pattern) },
    }
}

/// Copies every run of a batch, each `prefetch_distance` runs after its destination was prefetched.
///
/// # Safety
/// V1, V2 and V3 hold for `R` and every run of the batch, as [`Kernel`] defines the runs.
#[inline(always)]
unsafe fn prefetch_and_copy_runs<R: CopyRun, const L1: bool>(batch: &[Pointers], pattern: &Pattern) {
    let Pattern { runs, len, prefetch_distance, .. } = *pattern;
    // A block of up to `prefetch_distance` runs prefetches the block that many runs further on, so the loop
    // needs only one pointer more than the copy. A longer block first prefetches its own later runs. While it
    // copies its last runs, it prefetches those of the next block.
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
            // SAFETY: V1 to V3 hold for every run of the batch, and these are the first `own` runs of a
            // block.
            unsafe {
                copy_and_prefetch::<R, L1>(Pointers { dst, src }, ahead, Loop { count: own, ..runs }, len)
            };
            dst = dst.wrapping_offset(runs.dst_stride.wrapping_mul(own.cast_signed()));
            src = src.wrapping_offset(runs.src_stride.wrapping_mul(own.cast_signed()));
        }
        match next.next() {
            // SAFETY: V1 to V3 hold for every run of the batch. These are the last `rest.count` runs of a
            // block, because the pointers have moved on by `own` strides.
            Some(next) => unsafe { copy_and_prefetch::<R, L1>(Pointers { dst, src }, next.dst, rest, len) },
            // SAFETY: V1 to V3 hold for every run of the batch. These are the last `rest.count` runs of a
            // block, because the pointers have moved on by `own` strides.
            None => unsafe { copy_block::<R>(Pointers { dst, src }, rest, len) },
        }
    }
}

/// Copies the runs of one block.
///
/// # Safety
/// V1, V2 and V3 hold for `R` and every run of the block. Run `i`, for `i < runs.count`, is the `len` bytes
/// at the pointers moved on by `i` strides.
#[inline(always)]
unsafe fn copy_block<R: CopyRun>(Pointers { mut dst, mut src }: Pointers, runs: Loop, len: usize) {
    for _ in 0..runs.count {
        // SAFETY: V1 to V3 hold for every run of the block. The pointers have moved on by one stride for each
        // run before this one.
        unsafe { R::copy(dst, src, len) };
        // The step past the last run is computed but never used. Wrapping arithmetic makes it defined.
        dst = dst.wrapping_offset(runs.dst_stride);
        src = src.wrapping_offset(runs.src_stride);
    }
}

/// Copies the runs of one block. Before each run, prefetches one destination. These destinations begin at
/// `ahead`, and their number is that of the runs.
///
/// # Safety
/// V1, V2 and V3 hold for `R` and every run of the block. Run `i`, for `i < runs.count`, is the `len` bytes
/// at the pointers moved on by `i` strides.
#[inline(always)]
unsafe fn copy_and_prefetch<R: CopyRun, const L1: bool>(
    Pointers { mut dst, mut src }: Pointers,
    mut ahead: *mut u8,
    runs: Loop,
    len: usize,
) {
    for _ in 0..runs.count {
        R::prefetch::<L1>(ahead, len);
        // SAFETY: V1 to V3 hold for every run of the block. The pointers have moved on by one stride for each
        // run before this one.
        unsafe { R::copy(dst, src, len) };
        // The step past the last run is computed but never used. Wrapping arithmetic makes it defined.
        ahead = ahead.wrapping_offset(runs.dst_stride);
        dst = dst.wrapping_offset(runs.dst_stride);
        src = src.wrapping_offset(runs.src_stride);
    }
}

/// Copies runs of `N` bytes. `N` is less than a [`LINE`] or a multiple of one. The length is a constant of
/// the code, so the compiler moves the run through registers.
pub(super) struct Fixed<const N: usize>;

impl<const N: usize> CopyRun for Fixed<N> {
    #[inline(always)]
    unsafe fn copy(dst: *mut u8, src: *const u8, len: usize) {
        const { assert!(N < LINE || N.is_multiple_of(LINE)) };
        debug_assert_eq!(len, N, "a kernel for other runs");
        let mut at = 0;
        // Copy one line at a time. For a longer copy the compiler emits stores at descending addresses. Those
        // take twice as long if destinations do not begin at a line and share one set of the first-level CPU
        // cache.
        while at < N {
            let piece = if N < LINE { N } else { LINE };
            // SAFETY: V1: `dst` is valid for writes of `len` bytes, `src` is valid for reads of them, and
            // they do not overlap. V3: `len` is `N`. The assertion above ensures that `N` is less than a line
            // or a multiple of one, so `at + piece <= N`.
            unsafe { ptr::copy_nonoverlapping(src.wrapping_add(at), dst.wrapping_add(at), piece) };
            at = at.wrapping_add(piece);
        }
    }

    #[inline(always)]
    fn prefetch<const L1: bool>(dst: *mut u8, _: usize) {
        prefetch_run::<L1>(dst, N);
    }
}

/// Copies runs of any length with the C library's `memcpy`.
pub(super) struct Memcpy;

impl CopyRun for Memcpy {
    #[inline(always)]
    unsafe fn copy(dst: *mut u8, src: *const u8, len: usize) {
        // SAFETY: V1: `dst` is valid for writes of `len` bytes, `src` is valid for reads of them, and they do
        // not overlap.
        unsafe { ptr::copy_nonoverlapping(src, dst, len) };
    }
}

/// Copies runs of any length. A short run is copied in pieces of `N` bytes, the last of which overlaps the
/// one before it. This avoids the cost of a call.
pub(super) struct Overlapping<const N: usize>;

impl<const N: usize> CopyRun for Overlapping<N> {
    #[inline(always)]
    unsafe fn copy(dst: *mut u8, src: *const u8, len: usize) {
        let Some(last) = len.checked_sub(N).filter(|_| len <= INLINE_MAX_RUN) else {
            // SAFETY: V1 holds for the same run. V2 and V3: `Memcpy` needs no instruction set and takes all
            // runs.
            return unsafe { Memcpy::copy(dst, src, len) };
        };
        let mut at = 0;
        while at < last {
            // SAFETY: V1: both pointers are valid for `len` bytes, and `at < last`, so `at + N < len`. V2:
            // `Fixed` needs no instruction set. V3: the length is `N`.
            unsafe { Fixed::<N>::copy(dst.wrapping_add(at), src.wrapping_add(at), N) };
            at = at.wrapping_add(N);
        }
        // SAFETY: V1: both pointers are valid for `len` bytes, and `last + N == len`. V2: `Fixed` needs no
        // instruction set. V3: the length is `N`.
        unsafe { Fixed::<N>::copy(dst.wrapping_add(last), src.wrapping_add(last), N) };
    }
}
