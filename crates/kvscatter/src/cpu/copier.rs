//! How the rows of whole-byte elements are copied: a mapping in bytes and the kernels for its runs.

use core::mem::MaybeUninit;

use super::Isa;
use super::kernel::{self, Begin, Kernel, Kernels, NEVER, Pattern};
use super::limits::{BATCH, LEAD, SHORT};
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

/// Where sample 0 of each side begins.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sides {
    pub(super) dst: *mut u8,
    pub(super) src: *const u8,
}

// SAFETY: threads that share the pointers write disjoint bytes (P2, P3) and only read those at `src`.
unsafe impl Sync for Sides {}

/// Whether stores go to the caches or past them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stores {
    Cached,
    Streamed,
}

impl Stores {
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
        let asks = isa != Isa::Portable && kernels.len <= SHORT;
        let lead = LEAD.checked_div(kernels.len).filter(|_| asks).map_or(NEVER, |runs| runs.max(1));
        let (rows, (runs, len)) = mapping.only_loop(rows).map_or((0, (Loop::ONCE, 0)), |only| (rows, only));
        Self { mapping, kernels, rows, pattern: Pattern { runs, len, lead } }
    }

    pub(super) fn mapping(&self) -> &Mapping {
        &self.mapping
    }

    /// A copy of many samples' rows.
    #[inline(always)]
    pub(super) fn batch<'a>(&'a self, sides: Sides, stores: Stores, begins: &'a mut Begins) -> Batch<'a> {
        let kernel = match stores {
            Stores::Cached => self.kernels.usual,
            Stores::Streamed => self.kernels.stream,
        };
        Batch { copier: self, sides, stores, kernel, begins, count: 0 }
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

    /// Copies one block.
    ///
    /// # Safety
    /// As [`copy`](Self::copy).
    pub(super) unsafe fn copy_block(&self, sides: Sides, block: &Block, stores: Stores) {
        let [outer, middle, runs] = block.loops;
        let kernel = self.kernel(block.len, stores);
        let pattern = Pattern { runs, len: block.len, lead: NEVER };
        // P1: every partial sum lies inside its buffer; the step past the last one is computed but never used,
        // and wrapping arithmetic makes that defined.
        let mut at_outer =
            Begin { dst: sides.dst.wrapping_add(block.dst), src: sides.src.wrapping_add(block.src) };
        for _ in 0..outer.count {
            let mut at = at_outer;
            for _ in 0..middle.count {
                // SAFETY: P1, by this function's contract; the kernels are those of an instruction set that the
                // machine has (`Isa::allowed`).
                unsafe { kernel(&[at], &pattern) };
                at = Begin {
                    dst: at.dst.wrapping_offset(middle.dst),
                    src: at.src.wrapping_offset(middle.src),
                };
            }
            at_outer = Begin {
                dst: at_outer.dst.wrapping_offset(outer.dst),
                src: at_outer.src.wrapping_offset(outer.src),
            };
        }
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

/// Room for the beginnings of a batch.
pub(super) type Begins = [MaybeUninit<Begin>; BATCH];

/// Rows of many samples, gathered so that one call of a kernel copies them.
pub(super) struct Batch<'a> {
    copier: &'a Copier,
    sides: Sides,
    stores: Stores,
    kernel: Kernel,
    begins: &'a mut Begins,
    /// How many of them are initialised.
    count: usize,
}

impl Batch<'_> {
    /// Copies rows of one sample, now or when the batch is [finished](Self::finish).
    ///
    /// # Safety
    /// As [`Copier::copy`], until the batch is finished.
    #[inline(always)]
    pub(super) unsafe fn copy(&mut self, rows: Rows) {
        if rows.count != self.copier.rows {
            // SAFETY: the caller's.
            return unsafe { self.copier.copy(self.sides, rows, self.stores) };
        }
        let (dst, src) = self.copier.mapping.begin(0, 0, rows);
        let begin = Begin { dst: self.sides.dst.wrapping_add(dst), src: self.sides.src.wrapping_add(src) };
        if let Some(place) = self.begins.get_mut(self.count) {
            place.write(begin);
        }
        self.count = self.count.wrapping_add(1);
        if self.count == BATCH {
            // SAFETY: the caller's.
            unsafe { self.finish() };
        }
    }

    /// Copies what is still in the batch.
    ///
    /// # Safety
    /// As [`copy`](Self::copy).
    #[inline(always)]
    pub(super) unsafe fn finish(&mut self) {
        if let Some(begins) = self.begins.get(..self.count) {
            // SAFETY: the first `count` are initialised.
            let begins = unsafe { begins.assume_init_ref() };
            // SAFETY: P1, by the contract of `copy`; the kernels are those of an instruction set that the
            // machine has (`Isa::allowed`).
            unsafe { (self.kernel)(begins, &self.copier.pattern) };
        }
        self.count = 0;
    }
}
