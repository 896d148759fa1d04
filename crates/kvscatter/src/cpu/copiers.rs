//! Executing a plan over whole-byte elements, on one thread or many.

use super::Isa;
use super::copier::{Copier, Stores};
use super::executor::{self, Share};
use super::fill::{Fill, Slabs};
use super::kernel::Sides;
use crate::WritePlan;
use crate::geometry::Present;
use crate::mapping::Mapping;
use crate::size::Width;

/// Everything about copying that is decided when a geometry is prepared.
#[derive(Clone, Debug)]
pub(crate) struct Copiers {
    width: Width,
    /// Bytes of one row of one sample, over all outer dimensions.
    pub(super) row: usize,
    write: Copier,
    pub(super) from_update: Copier,
    pub(super) from_past: Copier,
    pub(super) present_stores: Stores,
    pub(super) slabs: Option<Slabs>,
}

/// What a geometry knows when its copiers are chosen.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shapes<'a> {
    pub(crate) write: &'a Mapping,
    pub(crate) present: &'a Present,
    /// Rows that a sample usually brings.
    pub(crate) rows: usize,
    pub(crate) row_elements: usize,
    pub(crate) capacity: usize,
    /// Whether sample 0 of every layer begins at an even element of its buffer.
    pub(crate) even: bool,
}

impl Shapes<'_> {
    /// What 4-bit elements are if none ever moves without the one it shares a byte with.
    pub(super) fn half(&self) -> Option<Width> {
        let mappings = [self.write, &self.present.from_update, &self.present.from_past];
        let even = self.even && self.present.layer_stride % 2 == 0;
        (even && mappings.iter().all(|mapping| mapping.is_even())).then_some(Width::Half)
    }
}

impl Copiers {
    /// For elements of this width.
    pub(crate) fn new(isa: Isa, width: Width, shapes: &Shapes<'_>) -> Self {
        let Shapes { rows, capacity, .. } = *shapes;
        let row = width.bytes(shapes.row_elements);
        let copier = |mapping, rows| Copier::new(isa, mapping, width, rows);
        let from_update = copier(&shapes.present.from_update, rows);
        let from_past = copier(&shapes.present.from_past, capacity);
        let present_stores = Stores::for_bytes(shapes.present.buffer.bytes);
        let slabs = Slabs::new(&from_past, &from_update, rows, capacity, present_stores);
        let write = copier(shapes.write, rows);
        Self { width, row, write, from_update, from_past, present_stores, slabs }
    }

    /// Whether elements are as wide as `T`, which is then no type without a size.
    #[inline(always)]
    pub(super) fn moves<T>(&self) -> bool {
        self.width == Width::Bytes(size_of::<T>())
    }

    /// Writes in place.
    ///
    /// # Safety
    /// P1 for every block of the plan, whose geometry these are: `cache` is as long as the plan's cache, valid
    /// for writes and reached through nothing else; `update` is as long as its update and valid for reads.
    pub(super) unsafe fn write(&self, plan: &WritePlan<'_>, cache: *mut u8, update: *const u8) {
        let sides = self.sides(Sides { dst: cache, src: update }, plan.bases());
        let bytes = self.bytes(plan.elements());
        let stores = Stores::for_bytes(bytes);
        match plan.executor(bytes) {
            Some(executor) => {
                let write = |share: &mut Share<'_>| {
                    // SAFETY: P1, by this function's contract.
                    plan.for_each_rows(|rows| unsafe {
                        self.write.copy_shared(sides, rows, self.row, stores, share);
                    });
                    stores.finish();
                };
                executor::share(executor, bytes, write);
            }
            None => {
                // SAFETY: as above.
                unsafe {
                    self.write.copy_many(sides, stores, |batch| plan.for_each_rows(|rows| batch.copy(rows)));
                }
                stores.finish();
            }
        }
    }

    /// Fills all of `present`: the update where the plan writes, the past everywhere else.
    ///
    /// # Safety
    /// As [`write`](Self::write), for `present` as the destination and for `past` and `update` as sources.
    pub(super) unsafe fn fill(
        &self,
        plan: &WritePlan<'_>,
        present: *mut u8,
        past: *const u8,
        update: *const u8,
    ) {
        let bytes = plan.geometry().present.buffer.bytes;
        let (past, update) = (Sides { dst: present, src: past }, Sides { dst: present, src: update });
        let fill = Fill { copiers: self, plan, past, update };
        // SAFETY: P1, by this function's contract.
        let run = |share: &mut Share<'_>| unsafe { fill.run(share) };
        match plan.executor(bytes) {
            Some(executor) => executor::share(executor, bytes, run),
            None => run(&mut Share::All),
        }
    }

    pub(super) fn sides(&self, Sides { dst, src }: Sides, bases: (usize, usize)) -> Sides {
        Sides { dst: dst.wrapping_add(self.bytes(bases.0)), src: src.wrapping_add(self.bytes(bases.1)) }
    }

    fn bytes(&self, elements: usize) -> usize {
        self.width.bytes(elements)
    }
}
