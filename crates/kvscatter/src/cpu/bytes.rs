//! The kernels for elements of whole bytes. They write in place and in the functional form, on one thread or
//! many.
//!
//! This file decides whether one thread or the host's threads write, and whether stores go through the CPU caches
//! or bypass them.
//!
//! The crate documentation defines P1 and P3, `cpu.rs` defines K1, and `cpu/kernel.rs` defines V1 and V2.

use super::copy::{BlockBatch, Copier, Stores};
use super::executor::{self, Share, Threads};
use super::kernel::Pointers;
use super::limits::{Limits, Tuning};
use super::present::{PresentKernels, PresentWrite};
use crate::error::LengthUnit;
use crate::geometry::Geometry;
use crate::plan::Moves;
use crate::size::Width;

/// How elements of whole bytes are copied, decided when a write is prepared.
#[derive(Clone, Debug)]
pub(super) struct ByteKernels {
    width: Width,
    limits: &'static Limits,
    /// The number of bytes in one row, over all outer and inner dimensions.
    row_bytes: usize,
    write: Copier,
    present: PresentKernels,
}

impl ByteKernels {
    /// Creates the kernels for elements of this width and for the number of rows that samples usually bring.
    pub(super) fn new(tuning: Tuning, width: Width, geometry: &Geometry, rows: usize) -> Self {
        let row_bytes = width.bytes(geometry.row_elements());
        let write = Copier::new(tuning, geometry.write_mapping(), width, rows);
        let present = PresentKernels::new(tuning, width, geometry, rows);
        Self { width, limits: tuning.limits, row_bytes, write, present }
    }

    /// Returns `true` if elements are as wide as `T`. The result is always false for a type of size 0.
    #[inline(always)]
    pub(super) fn are_as_wide_as<T>(&self) -> bool {
        self.width == Width::Bytes(size_of::<T>())
    }

    /// Writes in place.
    ///
    /// # Safety
    /// * K1: the moves have the geometry that these kernels were made for.
    /// * V1: `cache` is valid for writes of the number of bytes of the geometry's cache, and `update` is
    ///   valid for reads of the number of bytes of its update. They do not overlap. Until this function
    ///   returns, nothing else uses the cache or writes to the update.
    pub(super) unsafe fn write(
        &self,
        moves: &Moves<'_>,
        threads: Threads<'_>,
        cache: *mut u8,
        update: *const u8,
    ) {
        if moves.geometry().has_slots_of_tokens() {
            // SAFETY: K1 and V1 hold for the same arguments.
            unsafe { self.write_paged(moves, threads, cache, update) };
        } else {
            // SAFETY: K1 and V1 hold for the same arguments.
            unsafe { self.write_rows::<false>(moves, threads, cache, update) };
        }
    }

    /// Writes the tokens of a paged cache. A separate function keeps other writes short.
    ///
    /// # Safety
    /// K1 and V1 as for [`write`](Self::write).
    #[inline(never)]
    unsafe fn write_paged(&self, moves: &Moves<'_>, threads: Threads<'_>, cache: *mut u8, update: *const u8) {
        // SAFETY: K1 and V1 hold for the same arguments.
        unsafe { self.write_rows::<true>(moves, threads, cache, update) };
    }

    /// Writes into a paged cache if `PAGED` is true, or into another cache if it is false.
    ///
    /// # Safety
    /// K1 and V1 as for [`write`](Self::write). `PAGED` is true if the geometry has slots of tokens.
    #[inline(always)]
    unsafe fn write_rows<const PAGED: bool>(
        &self,
        moves: &Moves<'_>,
        threads: Threads<'_>,
        cache: *mut u8,
        update: *const u8,
    ) {
        let first = moves.geometry().write_offsets(moves.layer());
        let pointers = Pointers { dst: cache, src: update }.offset(self.width, first);
        let bytes = self.width.bytes(moves.elements());
        let stores = Stores::for_bytes(bytes, self.limits);
        match threads.for_bytes(bytes, self.limits) {
            Some(executor) => {
                let write = |share: &mut Share<'_>| {
                    // SAFETY: V1: by K1 and P1 every run lies inside both buffers, which are valid and do not
                    // overlap. By P3 no other thread writes the rows that this share takes.
                    moves.for_each_row_range_of::<PAGED>(|rows| unsafe {
                        self.write.copy_shared(pointers, rows, self.row_bytes, stores, share);
                    });
                    stores.finish();
                };
                executor::share(executor, bytes, write);
            }
            None => {
                let walk = |batch: &mut BlockBatch<'_>| {
                    // SAFETY: V1: by K1 and P1 every run lies inside both buffers, which are valid and do not
                    // overlap until this function returns. `for_each_row_range` visits no empty range.
                    moves.for_each_row_range_of::<PAGED>(|rows| unsafe { batch.copy(rows) });
                };
                // SAFETY: V1: by K1 and P1 every run of all ranges lies inside both buffers, which are valid
                // and do not overlap until this function returns.
                unsafe { self.write.copy_many(pointers, stores, walk) };
                stores.finish();
            }
        }
    }

    /// Writes all of `present`: the update where the plan writes, and the past everywhere else.
    ///
    /// # Safety
    /// * K1: the moves have the geometry that these kernels were made for.
    /// * V1: `present` is valid for writes of the number of bytes of the geometry's present. `past` and
    ///   `update` are valid for reads of the number of bytes of its cache and its update. Neither source
    ///   overlaps the present. Until this function returns, nothing else uses the present or writes to the
    ///   sources.
    pub(super) unsafe fn write_present(
        &self,
        moves: &Moves<'_>,
        threads: Threads<'_>,
        present: *mut u8,
        [past, update]: [*const u8; 2],
    ) {
        let bytes = moves.geometry().present_len(LengthUnit::Bytes);
        let (past, update) = (Pointers { dst: present, src: past }, Pointers { dst: present, src: update });
        let write = PresentWrite { kernels: &self.present, moves, past, update };
        // SAFETY: K1 holds for the moves and `self.present`, which `new` makes for the same geometry. V1: the
        // three buffers are as long as the geometry's and valid, and neither source overlaps the present. By
        // P3 no other thread writes the rows that this share takes.
        let run = |share: &mut Share<'_>| unsafe { write.run(share) };
        match threads.for_bytes(bytes, self.limits) {
            Some(executor) => executor::share(executor, bytes, run),
            None => run(&mut Share::All),
        }
    }
}
