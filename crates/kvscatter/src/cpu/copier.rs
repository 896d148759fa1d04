//! How the rows of whole-byte elements are copied: a mapping in bytes and the kernels for its runs.

use core::mem::MaybeUninit;

use super::Isa;
use super::executor::Share;
use super::kernel::{self, Hint, Kernel, Kernels, NEVER, Pattern, Sides};
use super::limits::{BATCH, FORESEEN, LEAD, PIECE, STREAMED};
use super::lines::Lines;
use crate::mapping::{Block, Loop, Mapping, Rows};
use crate::size::Width;

/// A mapping in bytes and its kernels, chosen once per shape.
#[derive(Clone, Debug)]
pub(crate) struct Copier {
    mapping: Mapping,
    kernels: Kernels,
    /// The rows that a sample usually brings, where they are one block without outer loops; otherwise 0.
    rows: usize,
    /// That block.
    pattern: Pattern,
}

/// Whether stores go to the caches or past them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stores {
    Cached,
    Streamed,
}

impl Stores {
    pub(super) fn for_bytes(bytes: usize) -> Self {
        if bytes < STREAMED { Self::Cached } else { Self::Streamed }
    }

    /// Makes streamed stores visible to other threads before anything that follows.
    pub(super) fn finish(self) {
        if self == Self::Streamed {
            kernel::fence();
        }
    }
}

impl Copier {
    /// For a mapping of elements of this width that usually moves `rows` rows of a sample.
    pub(super) fn new(isa: Isa, mapping: &Mapping, width: Width, rows: usize) -> Self {
        let mapping = mapping.in_bytes(width);
        let kernels = Kernels::choose(isa, mapping.run_of(rows));
        let asks = isa != Isa::Portable && kernels.len <= FORESEEN;
        let lead = LEAD.checked_div(kernels.len).filter(|_| asks).map_or(NEVER, |runs| runs.max(1));
        let (rows, (runs, len)) = mapping.only_loop(rows).map_or((0, (Loop::ONCE, 0)), |only| (rows, only));
        Self { mapping, kernels, rows, pattern: Pattern { runs, len, lead, hint: Hint::here() } }
    }

    pub(super) fn mapping(&self) -> &Mapping {
        &self.mapping
    }

    /// Copies the rows of many samples: those that `walk` puts into the batch.
    ///
    /// # Safety
    /// As [`copy`](Self::copy), for all rows that `walk` puts there.
    #[inline(always)]
    pub(super) unsafe fn copy_many(&self, sides: Sides, stores: Stores, walk: impl FnOnce(&mut Batch<'_>)) {
        let kernel = match stores {
            Stores::Cached => self.kernels.usual,
            Stores::Streamed => self.kernels.stream,
        };
        let mut begins = [const { MaybeUninit::uninit() }; BATCH];
        let mut batch = Batch { copier: self, sides, stores, kernel, begins: &mut begins, count: 0 };
        walk(&mut batch);
        batch.finish();
    }

    /// Copies rows of one sample, however many blocks they are.
    ///
    /// # Safety
    /// P1: the rows lie inside the tensors whose sample 0 the sides point to; those at `dst` are valid for
    /// writes, reached through nothing else meanwhile, and overlap none at `src`, which are valid for reads.
    #[inline(never)]
    pub(super) unsafe fn copy(&self, sides: Sides, rows: Rows, stores: Stores) {
        // SAFETY: the caller's.
        self.mapping.for_each(0, 0, rows, |block| unsafe { self.copy_block(sides, block, stores) });
    }

    /// Copies those parts of the rows that a share takes, in runs as long as can be: some outer indices, or some rows
    /// of one. A row is `row` bytes over all of them.
    ///
    /// # Safety
    /// As [`copy`](Self::copy).
    pub(super) unsafe fn copy_shared(
        &self,
        sides: Sides,
        rows: Rows,
        row: usize,
        stores: Stores,
        share: &mut Share<'_>,
    ) {
        if let Share::All = share {
            // SAFETY: the caller's.
            return unsafe { self.copy(sides, rows, stores) };
        }
        let outer = self.mapping.outer().filter(|_| row > 0 && rows.count > 0);
        let Some(Loop { count: outer, .. }) = outer else {
            // SAFETY: the caller's.
            return share.rows(rows, row, |rows| unsafe { self.copy(sides, rows, stores) });
        };
        let inner_row = row.checked_div(outer).unwrap_or(row);
        // G1: a part of a tensor.
        let bytes = inner_row.wrapping_mul(rows.count);
        let copy = |rows, first, count| {
            if let Some(block) = self.mapping.slabs(rows, first, count) {
                // SAFETY: the caller's.
                unsafe { self.copy_block(sides, &block, stores) };
            }
        };
        if bytes > PIECE {
            (0..outer).for_each(|first| share.rows(rows, inner_row, |rows| copy(rows, first, 1)));
        } else {
            share.groups(outer, bytes, PIECE, |first, count| copy(rows, first, count));
        }
    }

    /// Copies one block.
    ///
    /// # Safety
    /// As [`copy`](Self::copy).
    pub(super) unsafe fn copy_block(&self, sides: Sides, block: &Block, stores: Stores) {
        let block = block.turned();
        let [outer, middle, runs] = block.loops;
        let kernel = self.kernel(block.len, stores);
        let pattern = Pattern { runs, len: block.len, lead: NEVER, hint: Hint::SecondLevel };
        let around = Block { loops: [Loop::ONCE, outer, middle], ..block };
        around.for_each_run(|dst, src| {
            let begin = Sides { dst: sides.dst.wrapping_add(dst), src: sides.src.wrapping_add(src) };
            // SAFETY: P1, by this function's contract; the kernel was just chosen for runs of this length, and is
            // one of an instruction set that the machine has (`Isa::allowed`).
            unsafe { kernel(&[begin], &pattern) };
        });
    }

    /// For bytes that are stored in whole lines.
    pub(super) fn lines(&self) -> Lines {
        Lines::new(self.kernels.lines)
    }

    /// The kernel for runs of this length.
    pub(super) fn kernel(&self, len: usize, stores: Stores) -> Kernel {
        match stores {
            Stores::Streamed => self.kernels.stream,
            Stores::Cached if len == self.kernels.len => self.kernels.usual,
            Stores::Cached => self.kernels.any,
        }
    }
}

/// Rows of many samples, gathered so that one call of a kernel copies them.
pub(super) struct Batch<'a> {
    copier: &'a Copier,
    sides: Sides,
    stores: Stores,
    kernel: Kernel,
    begins: &'a mut [MaybeUninit<Sides>; BATCH],
    /// How many of them are initialised.
    count: usize,
}

impl Batch<'_> {
    /// Copies rows of one sample, now or before [`Copier::copy_many`] returns.
    #[inline(always)]
    pub(super) fn copy(&mut self, rows: Rows) {
        if rows.count != self.copier.rows {
            // SAFETY: P1, by the contract of `copy_many`.
            return unsafe { self.copier.copy(self.sides, rows, self.stores) };
        }
        let (dst, src) = self.copier.mapping.begin(0, 0, rows);
        let begin = Sides { dst: self.sides.dst.wrapping_add(dst), src: self.sides.src.wrapping_add(src) };
        if let Some(place) = self.begins.get_mut(self.count) {
            place.write(begin);
        }
        self.count = self.count.wrapping_add(1);
        if self.count == BATCH {
            self.finish();
        }
    }

    #[inline(always)]
    fn finish(&mut self) {
        if let Some(begins) = self.begins.get(..self.count) {
            // SAFETY: the first `count` are initialised.
            let begins = unsafe { begins.assume_init_ref() };
            // SAFETY: P1, by the contract of `copy_many`; the kernel is the usual one, and the pattern's runs are
            // those of the usual rows, which it was chosen for (`Copier::new`), or it takes any length; it is one of
            // an instruction set that the machine has (`Isa::allowed`).
            unsafe { (self.kernel)(begins, &self.copier.pattern) };
        }
        self.count = 0;
    }
}
