//! Executing a plan over whole-byte elements: in place and in the functional form, on one thread or many.

use core::mem::MaybeUninit;

use super::Isa;
use super::copier::{Copier, Stores};
use super::executor::{self, Share};
use super::kernel::Sides;
use super::limits::{STREAMED, TILE, WIDE};
use crate::WritePlan;
use crate::geometry::Present;
use crate::mapping::{Block, Loop, Mapping, Rows};
use crate::plan::Target;
use crate::size::Width;

/// Everything about copying that is decided when a geometry is prepared.
#[derive(Clone, Debug)]
pub(crate) struct Copiers {
    width: Width,
    /// Bytes of one row of one sample, over all outer dimensions.
    row: usize,
    write: Copier,
    from_update: Copier,
    from_past: Copier,
    slabs: Option<Slabs>,
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
        let slabs = Slabs::new(&from_past, &from_update, rows, capacity);
        Self { width, row, write: copier(shapes.write, rows), from_update, from_past, slabs }
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
        let sides = self.sides((cache, update), plan.bases());
        let bytes = self.bytes(plan.elements());
        let stores = Stores::for_bytes(bytes);
        match plan.executor(bytes) {
            Some(executor) => {
                // SAFETY: P1, by this function's contract.
                let copy = |rows| unsafe { self.write.copy(sides, rows, stores) };
                let write = |share: &mut Share<'_>| {
                    plan.for_each_rows(|rows| share.rows(rows, self.row, copy));
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
        let fill = Fill {
            copiers: self,
            plan,
            update: self.sides((present, update), plan.present_bases()),
            memory: Sides { dst: present, src: past },
            stores: Stores::for_bytes(bytes),
        };
        // SAFETY: P1, by this function's contract.
        let run = |share: &mut Share<'_>| unsafe { fill.run(share) };
        match plan.executor(bytes) {
            Some(executor) => executor::share(executor, bytes, run),
            None => run(&mut Share::All),
        }
    }

    fn sides(&self, (dst, src): (*mut u8, *const u8), bases: (usize, usize)) -> Sides {
        Sides { dst: dst.wrapping_add(self.bytes(bases.0)), src: src.wrapping_add(self.bytes(bases.1)) }
    }

    fn bytes(&self, elements: usize) -> usize {
        self.width.bytes(elements)
    }
}

impl Stores {
    fn for_bytes(bytes: usize) -> Self {
        if bytes < STREAMED { Self::Cached } else { Self::Streamed }
    }
}

/// The functional form of one call.
struct Fill<'a> {
    copiers: &'a Copiers,
    plan: &'a WritePlan<'a>,
    update: Sides,
    /// The present and the past.
    memory: Sides,
    stores: Stores,
}

impl Fill<'_> {
    /// # Safety
    /// P1 for all blocks of the plan's functional form.
    unsafe fn run(&self, share: &mut Share<'_>) {
        self.plan.for_each_sample(|layer, sample, target| {
            let past = self.copiers.sides((self.memory.dst, self.memory.src), self.plan.kept_bases(layer));
            match self.copiers.slabs {
                // SAFETY: the caller's.
                Some(slabs) => unsafe { self.over(slabs, share, past, sample, target) },
                // SAFETY: the caller's.
                None => unsafe { self.around(share, past, sample, target) },
            }
        });
        self.stores.finish();
    }

    /// Copies what the sample keeps, and beside it what it receives.
    ///
    /// # Safety
    /// As [`run`](Self::run).
    unsafe fn around(&self, share: &mut Share<'_>, past: Sides, sample: usize, target: Option<Target>) {
        let Copiers { from_past, from_update, row, .. } = self.copiers;
        let capacity = self.plan.geometry().capacity();
        for kept in Target::kept(target, sample, capacity) {
            // SAFETY: the caller's.
            share.rows(kept, *row, |rows| unsafe { from_past.copy(past, rows, self.stores) });
        }
        for written in target.into_iter().flat_map(Target::rows) {
            // SAFETY: the caller's.
            share.rows(written, *row, |rows| unsafe { from_update.copy(self.update, rows, self.stores) });
        }
    }

    /// Copies all of the sample in tiles, each overwritten with what it receives while it is close.
    ///
    /// # Safety
    /// As [`run`](Self::run).
    unsafe fn over(
        &self,
        slabs: Slabs,
        share: &mut Share<'_>,
        past: Sides,
        sample: usize,
        target: Option<Target>,
    ) {
        let Copiers { from_past, from_update, .. } = self.copiers;
        let capacity = self.plan.geometry().capacity();
        let whole = Rows { sample, dst: 0, src: 0, count: capacity };
        let mut tile = [MaybeUninit::<u8>::uninit(); TILE];
        let tile = tile.as_mut_ptr().cast::<u8>();
        let mut first = 0;
        while let Some(left) = slabs.count.checked_sub(first).filter(|&left| left > 0) {
            let count = slabs.in_tile().min(left);
            // G1: a part of a tensor.
            if share.take(slabs.bytes.wrapping_mul(count))
                && let Some(kept) = from_past.mapping().slabs(whole, first, count)
            {
                let len = kept.elements();
                let (present, source) = (past.dst.wrapping_add(kept.dst), past.src.wrapping_add(kept.src));
                // Where the present is too large for the caches, a tile is put together beside it.
                let to = match self.stores {
                    Stores::Cached => present,
                    Stores::Streamed => tile,
                };
                // SAFETY: the slabs of a sample are contiguous on both sides (`Slabs::new`), and P1; a tile
                // holds `in_tile` of them.
                unsafe { copy_run(from_past, Stores::Cached, to, source, len) };
                // As far from there as the present's sample 0 is from this part of the present.
                let back = present.addr().wrapping_sub(self.update.dst.addr());
                let update = Sides { dst: to.wrapping_sub(back), ..self.update };
                for rows in target.into_iter().flat_map(Target::rows) {
                    if let Some(block) = from_update.mapping().slabs(rows, first, count) {
                        // SAFETY: P1; these are rows of the slabs just copied, at the same offsets.
                        unsafe { from_update.copy_block(update, &block, Stores::Cached) };
                    }
                }
                if self.stores == Stores::Streamed {
                    // SAFETY: the tile holds `len` bytes, all of them just copied, for this part of the present.
                    unsafe { copy_run(from_past, self.stores, present, tile, len) };
                }
            }
            // Not past the last.
            first = first.wrapping_add(count);
        }
    }
}

/// Copies one run.
///
/// # Safety
/// As [`Copier::copy`].
unsafe fn copy_run(copier: &Copier, stores: Stores, dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: the caller's.
    unsafe { copier.copy_block(Sides { dst, src }, &Block::run(len), stores) };
}

/// A functional form whose runs would be tiny: the slots of one outer index, a slab, are so few bytes that it
/// costs less to copy slabs whole and write over them while they are in the first-level cache.
#[derive(Clone, Copy, Debug)]
struct Slabs {
    /// Slabs of one sample, contiguous and in the same order on both sides.
    count: usize,
    /// Bytes of one; not 0.
    bytes: usize,
}

impl Slabs {
    fn new(from_past: &Copier, from_update: &Copier, rows: usize, capacity: usize) -> Option<Self> {
        let (Loop { count, dst, src }, bytes) = from_past.mapping().outer_runs(capacity)?;
        let contiguous = dst == src
            && usize::try_from(dst) == Ok(bytes)
            && from_update.mapping().outer().is_some_and(|outer| outer.count == count);
        // An update of most of the slots would write most bytes twice.
        let pays = (1..WIDE).contains(&bytes) && rows <= capacity.div_euclid(2);
        (contiguous && pays).then_some(Self { count, bytes })
    }

    /// Slabs that are copied at once.
    fn in_tile(self) -> usize {
        TILE.checked_div(self.bytes).unwrap_or(1)
    }
}
