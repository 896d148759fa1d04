//! Copies the rows of one mapping by calling a kernel, for a whole write or for a thread's share of it.
//!
//! The rows of several samples are collected into a batch, which one call of a kernel copies. A sample whose runs
//! do not have the usual length uses the kernel for any length.
//!
//! The crate documentation defines G1, and `cpu/kernel.rs` defines V1 to V3.

use core::mem::MaybeUninit;

use super::Isa;
use super::dispatch::Kernels;
use super::executor::Share;
use super::kernel::{Kernel, NO_PREFETCH, Pattern, Pointers};
use super::limits::{Limits, MAX_SAMPLES_PER_CALL, Tuning};
use super::prefetch::{self, Hint};
use crate::geometry::{Block, Loop, Mapping, Offsets, RowRange};
use crate::size::Width;

/// A mapping in bytes and its kernels, chosen once per shape.
#[derive(Clone, Debug)]
pub(crate) struct Copier {
    mapping: Mapping,
    kernels: Kernels,
    limits: &'static Limits,
    /// The usual number of rows of a sample. It is 0 if these rows are not one block without outer loops.
    usual_rows: usize,
    /// The pattern of the block of `usual_rows` rows.
    pattern: Pattern,
}

/// Whether stores go to the CPU caches or bypass them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stores {
    Cached,
    Streamed,
}

impl Stores {
    pub(super) fn for_bytes(bytes: usize, limits: &Limits) -> Self {
        if bytes < limits.stream_min_bytes { Self::Cached } else { Self::Streamed }
    }

    /// Makes streamed stores visible to other threads before any later store.
    pub(super) fn finish(self) {
        if self == Self::Streamed {
            prefetch::fence();
        }
    }
}

impl Copier {
    /// Creates a copier for a mapping of elements of this width that usually moves `rows` rows of a sample.
    pub(super) fn new(Tuning { isa, limits }: Tuning, mapping: &Mapping, width: Width, rows: usize) -> Self {
        let mapping = mapping.in_bytes(width);
        let kernels = Kernels::choose(isa, mapping.run_of(rows));
        let prefetches = isa != Isa::Portable && kernels.len <= limits.prefetch_max_run;
        let prefetch_distance = limits
            .prefetch_distance
            .checked_div(kernels.len)
            .filter(|_| prefetches)
            .map_or(NO_PREFETCH, |runs| runs.max(1));
        let (usual_rows, (runs, len)) =
            mapping.single_loop(rows).map_or((0, (Loop::ONCE, 0)), |only| (rows, only));
        Self {
            mapping,
            kernels,
            limits,
            usual_rows,
            pattern: Pattern { runs, len, prefetch_distance, hint: Hint::here() },
        }
    }

    pub(super) fn mapping(&self) -> &Mapping {
        &self.mapping
    }

    /// Copies the rows of many samples, which `walk` puts into the batch.
    ///
    /// # Safety
    /// V1 holds for every run of the rows that `walk` puts into the batch, where `pointers` are those of
    /// sample 0.
    #[inline(always)]
    pub(super) unsafe fn copy_many(
        &self,
        pointers: Pointers,
        stores: Stores,
        walk: impl FnOnce(&mut BlockBatch<'_>),
    ) {
        let kernel = match stores {
            Stores::Cached => self.kernels.usual,
            Stores::Streamed => self.kernel(self.pattern.len, stores),
        };
        let mut block_pointers = [const { MaybeUninit::uninit() }; MAX_SAMPLES_PER_CALL];
        let mut batch = BlockBatch {
            copier: self,
            pointers,
            stores,
            kernel,
            block_pointers: &mut block_pointers,
            count: 0,
        };
        walk(&mut batch);
        // SAFETY: V1 holds for every run of the rows that `walk` has put into the batch.
        unsafe { batch.finish() };
    }

    /// Copies rows of one sample, regardless of how many blocks they form.
    ///
    /// # Safety
    /// V1 holds for every run of the rows, where `pointers` are those of sample 0.
    #[inline(never)]
    pub(super) unsafe fn copy(&self, pointers: Pointers, rows: RowRange, stores: Stores) {
        // SAFETY: V1 holds for every run of the rows, and these are their blocks.
        self.mapping.for_each(Offsets { dst: 0, src: 0 }, rows, |block| unsafe {
            self.copy_block(pointers, block, stores)
        });
    }

    /// Copies the chunks of the rows that a share takes. A row has `row_bytes` bytes over all outer indices.
    ///
    /// Runs are as long as possible. A chunk is either all rows of some outer indices, or some rows of one
    /// outer index.
    ///
    /// # Safety
    /// V1 holds for every run of those chunks, where `pointers` are those of sample 0.
    #[inline(always)]
    pub(super) unsafe fn copy_shared(
        &self,
        pointers: Pointers,
        rows: RowRange,
        row_bytes: usize,
        stores: Stores,
        share: &mut Share<'_>,
    ) {
        if let Share::All = share {
            // SAFETY: V1 holds for every run that the share takes, and it takes all of the rows.
            return unsafe { self.copy(pointers, rows, stores) };
        }
        let outer = self.mapping.outer().filter(|_| row_bytes > 0 && rows.count > 0);
        let Some(Loop { count: outer, .. }) = outer else {
            // SAFETY: V1 holds for every run that the share takes, and it takes these rows.
            return share.rows(rows, row_bytes, self.limits.thread_grain, |rows| unsafe {
                self.copy(pointers, rows, stores)
            });
        };
        let inner_row = row_bytes.checked_div(outer).unwrap_or(row_bytes);
        // G1: these rows are a part of a tensor.
        let bytes = inner_row.wrapping_mul(rows.count);
        let copy = |rows, first, count| {
            if let Some(block) = self.mapping.slabs(rows, first, count) {
                // SAFETY: V1 holds for every run that the share takes. It takes these rows of these outer
                // indices, which are below `outer`.
                unsafe { self.copy_block(pointers, &block, stores) };
            }
        };
        if bytes > self.limits.thread_grain {
            (0..outer).for_each(|first| {
                share.rows(rows, inner_row, self.limits.thread_grain, |rows| copy(rows, first, 1))
            });
        } else {
            share.groups(outer, bytes, self.limits.thread_grain, |first, count| copy(rows, first, count));
        }
    }

    /// Copies one block.
    ///
    /// # Safety
    /// V1 holds for every run of the block, where its offsets count from `pointers`.
    #[inline(always)]
    pub(super) unsafe fn copy_block(&self, pointers: Pointers, block: &Block, stores: Stores) {
        let block = block.with_innermost_loop();
        let [outer, middle, runs] = block.loops;
        let kernel = self.kernel(block.len, stores);
        let pattern = Pattern { runs, len: block.len, prefetch_distance: NO_PREFETCH, hint: Hint::L2 };
        let outer_loops = Block { loops: [Loop::ONCE, outer, middle], ..block };
        outer_loops.for_each_run(|dst, src| {
            let begin = Pointers { dst: pointers.dst.wrapping_add(dst), src: pointers.src.wrapping_add(src) };
            // SAFETY: V1 holds for every run of the block, and these are the runs of one iteration of its two
            // outer loops. V2: `Tuning` has an instruction set of the machine. V3: the kernel takes runs
            // of `block.len` bytes.
            unsafe { kernel(&[begin], &pattern) };
        });
    }

    /// Returns the kernel for runs of whole lines that bypass the CPU caches. `dst` must be aligned to a line
    /// (V3).
    pub(super) fn line_kernel(&self) -> Kernel {
        self.kernels.lines
    }

    /// Returns a kernel that takes runs of this length at any address (V3).
    pub(super) fn kernel(&self, len: usize, stores: Stores) -> Kernel {
        match stores {
            Stores::Streamed if len >= self.limits.stream_min_run => self.kernels.stream,
            _ if len == self.kernels.len => self.kernels.usual,
            _ => self.kernels.any,
        }
    }
}

/// Blocks of many samples that one call of a kernel copies.
pub(super) struct BlockBatch<'a> {
    copier: &'a Copier,
    pointers: Pointers,
    stores: Stores,
    kernel: Kernel,
    block_pointers: &'a mut [MaybeUninit<Pointers>; MAX_SAMPLES_PER_CALL],
    /// The number of initialised elements of `block_pointers`.
    count: usize,
}

impl BlockBatch<'_> {
    /// Copies rows of one sample, now or before [`Copier::copy_many`] returns.
    ///
    /// # Safety
    /// * V1 holds for every run of the rows until [`finish`](Self::finish), where the batch's pointers are
    ///   those of sample 0.
    /// * There is at least one row.
    #[inline(always)]
    pub(super) unsafe fn copy(&mut self, rows: RowRange) {
        if rows.count != self.copier.usual_rows {
            // SAFETY: V1 holds for every run of these same rows.
            return unsafe { self.copier.copy(self.pointers, rows, self.stores) };
        }
        let Offsets { dst, src } = self.copier.mapping.offsets(Offsets { dst: 0, src: 0 }, rows);
        let begin =
            Pointers { dst: self.pointers.dst.wrapping_add(dst), src: self.pointers.src.wrapping_add(src) };
        if let Some(next) = self.block_pointers.get_mut(self.count) {
            next.write(begin);
        }
        self.count = self.count.wrapping_add(1);
        if self.count == self.copier.limits.samples_per_call {
            // SAFETY: V1 holds for every run of these rows. It also holds, until `finish`, for the rows that
            // were put into the batch before.
            unsafe { self.finish() };
        }
    }

    /// Copies the batch.
    ///
    /// # Safety
    /// V1 holds for every run of the rows that are in the batch.
    #[inline(always)]
    unsafe fn finish(&mut self) {
        if let Some(block_pointers) = self.block_pointers.get(..self.count) {
            // SAFETY: `copy` has initialised the first `count` pointers.
            let block_pointers = unsafe { block_pointers.assume_init_ref() };
            // SAFETY: V1 holds for every run of the rows in the batch. The pattern's runs are these runs,
            // because `copy` adds rows only if their number is `usual_rows` and not 0, and `Copier::new` made
            // the pattern from the one block that they form. V2: `Tuning` has an instruction set of the
            // machine. V3: `kernel` is the kernel for the length of the pattern's runs, or it takes
            // all runs.
            unsafe { (self.kernel)(block_pointers, &self.copier.pattern) };
        }
        self.count = 0;
    }
}
