//! The functional form over whole-byte elements: all of a present, from a past and an update.

use core::mem::MaybeUninit;
use core::ptr;

use super::Isa;
use super::copy::{Copier, Stores};
use super::executor::Share;
use super::kernel::{Kernel, NO_PREFETCH, Pattern, Pointers};
use super::limits::{SLAB_OVERWRITE_MAX, SLAB_STREAM_MAX, SLAB_STREAM_MIN, SLAB_TILE};
use super::prefetch::{Hint, LINE};
use crate::geometry::{Block, Geometry, Loop, RowRange, SampleRows, Source};
use crate::plan::Moves;
use crate::size::Width;

/// How a present is written, decided when a write is prepared.
#[derive(Clone, Debug)]
pub(super) struct PresentKernels {
    width: Width,
    /// Bytes of one row, over all outer and inner dimensions.
    row_bytes: usize,
    from_update: Copier,
    from_past: Copier,
    stores: Stores,
    slabs: Option<Slabs>,
}

impl PresentKernels {
    pub(super) fn new(isa: Isa, width: Width, geometry: &Geometry, rows: usize) -> Self {
        let Geometry { present, capacity, row_elements, .. } = geometry;
        let from_update = Copier::new(isa, &present.from_update, width, rows);
        let from_past = Copier::new(isa, &present.from_past, width, *capacity);
        let stores = Stores::for_bytes(present.buffer.bytes);
        let slabs = Slabs::new(&from_past, &from_update, rows, *capacity, stores);
        Self { width, row_bytes: width.bytes(*row_elements), from_update, from_past, stores, slabs }
    }
}

/// The functional form of one call.
pub(super) struct PresentWrite<'a> {
    pub(super) kernels: &'a PresentKernels,
    pub(super) moves: &'a Moves<'a>,
    /// The present and the past.
    pub(super) past: Pointers,
    /// The present and the update.
    pub(super) update: Pointers,
}

impl PresentWrite<'_> {
    /// Writes what this share has of the present.
    ///
    /// # Safety
    /// P1 for all blocks of the plan's functional form, and the present is reached through nothing else.
    pub(super) unsafe fn run(&self, share: &mut Share<'_>) {
        let PresentKernels { from_past, stores, slabs, .. } = self.kernels;
        let mut lines = LineWriter::new(from_past.line_kernel());
        self.moves.for_each_sample(|sample| match slabs {
            // SAFETY: P1, by this function's contract.
            None => unsafe { self.copy_pieces(share, &sample) },
            Some(slabs) => slabs.for_each(share, |part| match slabs.order {
                // SAFETY: P1, by this function's contract.
                Order::Overwrite => unsafe { self.overwrite(&sample, part) },
                // SAFETY: P1, by this function's contract.
                Order::Sequential => unsafe { self.append_pieces(&sample, part, &mut lines) },
            }),
        });
        // SAFETY: P1: what was appended lies in the present, which is valid for writes by this function's contract.
        unsafe { lines.finish() };
        stores.finish();
    }

    /// Where a layer's sample 0 begins in the present and in a source, and what copies from there.
    fn pointers(&self, layer: usize, source: Source) -> (Pointers, &Copier) {
        let (pointers, copier) = match source {
            Source::Past => (self.past, &self.kernels.from_past),
            Source::Update => (self.update, &self.kernels.from_update),
        };
        let first = self.moves.geometry().present_offsets(layer, source);
        (pointers.offset(self.kernels.width, first), copier)
    }

    /// Copies the pieces of the sample, from the past and from the update.
    ///
    /// # Safety
    /// As [`run`](Self::run).
    #[inline(always)]
    unsafe fn copy_pieces(&self, share: &mut Share<'_>, sample: &SampleRows) {
        for (source, rows) in sample.pieces {
            let (pointers, copier) = self.pointers(sample.layer, source);
            // SAFETY: P1, by this function's contract: rows of the functional form.
            unsafe { copier.copy_shared(pointers, rows, self.kernels.row_bytes, self.kernels.stores, share) };
        }
    }

    /// Copies whole slabs from the past, and overwrites a part of them while they are still in the cache.
    ///
    /// # Safety
    /// As [`run`](Self::run).
    unsafe fn overwrite(&self, sample: &SampleRows, part: SlabRange) {
        let whole =
            RowRange { sample: sample.sample, dst_row: 0, src_row: 0, count: self.moves.geometry().capacity };
        let (pointers, copier) = self.pointers(sample.layer, Source::Past);
        if let Some(block) = part.block(copier, whole) {
            let run = Block { len: block.elements(), loops: [Loop::ONCE; 3], ..block };
            // SAFETY: the slabs of a sample are contiguous on both pointers (`Slabs::new`), and P1.
            unsafe { copier.copy_block(pointers, &run, Stores::Cached) };
        }
        let (pointers, copier) = self.pointers(sample.layer, Source::Update);
        let updated = sample.pieces.into_iter().filter(|(source, _)| *source == Source::Update);
        for block in updated.filter_map(|(_, rows)| part.block(copier, rows)) {
            // SAFETY: P1; these are rows of the slabs just copied, so they belong to this thread.
            unsafe { copier.copy_block(pointers, &block, Stores::Cached) };
        }
    }

    /// Copies the pieces of each slab in the order of their addresses.
    ///
    /// # Safety
    /// As [`run`](Self::run).
    unsafe fn append_pieces(&self, sample: &SampleRows, part: SlabRange, lines: &mut LineWriter) {
        let mut pieces = sample.pieces.map(|(source, rows)| {
            let (pointers, copier) = self.pointers(sample.layer, source);
            let outer = copier.mapping().outer()?;
            let Block { dst_offset: dst, src_offset: src, len, .. } =
                part.block(copier, rows).filter(|block| block.len > 0)?;
            Some((pointers.dst.wrapping_add(dst), pointers.src.wrapping_add(src), len, outer.src_stride))
        });
        if let Some((dst, ..)) = pieces.iter().flatten().next() {
            // SAFETY: P1: what is still to be stored lies in the present, which this function's contract makes valid.
            unsafe { lines.seek(*dst) };
        }
        for _ in 0..part.count {
            for (_, src, len, step) in pieces.iter_mut().flatten() {
                // SAFETY: P1; pieces are contiguous, and so are slabs (`Slabs::new`).
                unsafe { lines.append(*src, *len) };
                *src = src.wrapping_offset(*step);
            }
        }
    }
}

/// A slab is the slots of one outer index. A sample is written slab by slab if slabs are so short that pieces would be
/// tiny, or if stores should go to ascending addresses.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slabs {
    /// Slabs of one sample, contiguous and in the same order on both pointers.
    count: usize,
    /// Bytes of one; not 0.
    bytes: usize,
    order: Order,
}

/// How slabs are written.
#[derive(Clone, Copy, Debug)]
enum Order {
    /// They are copied whole from the past, then overwritten from the update.
    Overwrite,
    /// Their pieces are stored in the order of their addresses.
    Sequential,
}

/// Some slabs of a sample.
#[derive(Clone, Copy, Debug)]
struct SlabRange {
    first: usize,
    count: usize,
}

impl Slabs {
    pub(super) fn new(
        from_past: &Copier,
        from_update: &Copier,
        rows: usize,
        capacity: usize,
        stores: Stores,
    ) -> Option<Self> {
        let (Loop { count, dst_stride: dst, src_stride: src }, bytes) =
            from_past.mapping().outer_runs(capacity)?;
        let update = from_update.mapping();
        let contiguous = dst == src && usize::try_from(dst) == Ok(bytes) && bytes > 0;
        let alike = update.outer().is_some_and(|outer| outer.count == count);
        let order = match stores {
            Stores::Streamed
                if (SLAB_STREAM_MIN..=SLAB_STREAM_MAX).contains(&bytes)
                    && update.outer_runs(rows).is_some() =>
            {
                Order::Sequential
            }
            // An update of most of the slots would write most bytes twice.
            _ if bytes < SLAB_OVERWRITE_MAX && rows <= capacity.div_euclid(2) => Order::Overwrite,
            _ => return None,
        };
        (contiguous && alike).then_some(Self { count, bytes, order })
    }

    /// Visits the parts that belong to a share.
    fn for_each(self, share: &mut Share<'_>, mut visit: impl FnMut(SlabRange)) {
        let bytes = match self.order {
            Order::Overwrite => SLAB_TILE,
            Order::Sequential => SLAB_STREAM_MAX,
        };
        share.groups(self.count, self.bytes, bytes, |first, count| visit(SlabRange { first, count }));
    }
}

impl SlabRange {
    /// The part of these rows that lies in these slabs.
    fn block(self, copier: &Copier, rows: RowRange) -> Option<Block> {
        copier.mapping().slabs(rows, self.first, self.count)
    }
}

/// Stores consecutive bytes from several sources past the caches, in whole lines.
///
/// A line that is stored in part must be read first, and all later stores wait for it (`docs/rejected.md` has the cost).
/// So a line in which sources meet is put together first. Everything appended is in the destination after
/// [`finish`](Self::finish).
pub(super) struct LineWriter {
    kernel: Kernel,
    /// The start of the line that is stored next.
    dst: *mut u8,
    line: [MaybeUninit<u8>; LINE],
    /// The first byte of the line that is not in the destination yet and is ours to write.
    from: usize,
    /// Bytes up to here are known; below `LINE` between calls.
    to: usize,
}

impl LineWriter {
    /// For a kernel that copies runs of whole lines.
    pub(super) fn new(kernel: Kernel) -> Self {
        let line = [MaybeUninit::uninit(); LINE];
        Self { kernel, dst: ptr::null_mut(), line, from: 0, to: 0 }
    }

    /// What is appended from now on begins at `dst`.
    ///
    /// # Safety
    /// As [`append`](Self::append), for what is still to be stored.
    pub(super) unsafe fn seek(&mut self, dst: *mut u8) {
        if self.dst.wrapping_add(self.to) != dst {
            // SAFETY: the destination of what was appended is valid, by this function's contract.
            unsafe { self.finish() };
            let from = dst.addr().wrapping_rem(LINE);
            (self.dst, self.from, self.to) = (dst.wrapping_sub(from), from, from);
        }
    }

    /// Stores `len` bytes after what was appended before, now or later.
    ///
    /// # Safety
    /// The destination is valid for writes of all that was appended since [`seek`](Self::seek), and reached
    /// through nothing else until [`finish`](Self::finish); `src` is valid for reads of `len` bytes and does not
    /// overlap it. The machine has the instruction set that the kernel was chosen for.
    #[inline]
    pub(super) unsafe fn append(&mut self, mut src: *const u8, mut len: usize) {
        if self.to > 0 {
            let count = len.min(LINE.wrapping_sub(self.to));
            // SAFETY: `count <= len`, and `to + count <= LINE`.
            unsafe { self.buffer(src, count) };
            if self.to < LINE {
                return;
            }
            // SAFETY: the destination of what was appended is valid, by this function's contract.
            unsafe { self.finish() };
            (src, len) = (src.wrapping_add(count), len.wrapping_sub(count));
        }
        let rest = len.wrapping_rem(LINE);
        let whole = len.wrapping_sub(rest);
        if whole > 0 {
            // SAFETY: `src` has `whole <= len` bytes, by this function's contract, and `dst` is the start of a line.
            unsafe { store(self.kernel, Pointers { dst: self.dst, src }, whole) };
            self.dst = self.dst.wrapping_add(whole);
        }
        // SAFETY: `rest` bytes are left, fewer than a line, and the line is empty.
        unsafe { self.buffer(src.wrapping_add(whole), rest) };
    }

    /// Stores what is not yet in the destination.
    ///
    /// # Safety
    /// As [`append`](Self::append), for what is still to be stored.
    pub(super) unsafe fn finish(&mut self) {
        let line = self.line.as_ptr().cast::<u8>();
        if (self.from, self.to) == (0, LINE) {
            // SAFETY: all of the line was appended.
            unsafe { store(self.kernel, Pointers { dst: self.dst, src: line }, LINE) };
        } else {
            let (dst, line) = (self.dst.wrapping_add(self.from), line.wrapping_add(self.from));
            // SAFETY: these bytes of the line were appended, the others were not.
            unsafe { ptr::copy_nonoverlapping(line, dst, self.to.wrapping_sub(self.from)) };
        }
        if self.to == LINE {
            (self.dst, self.to) = (self.dst.wrapping_add(LINE), 0);
        }
        self.from = self.to;
    }

    /// # Safety
    /// `src` is valid for reads of `count` bytes, and `to + count <= LINE`.
    unsafe fn buffer(&mut self, src: *const u8, count: usize) {
        let line = self.line.as_mut_ptr().cast::<u8>().wrapping_add(self.to);
        // SAFETY: `src` is valid for `count` bytes and the line has room for them, by this function's contract. The line
        // is borrowed exclusively, so it does not overlap `src`.
        unsafe { ptr::copy_nonoverlapping(src, line, count) };
        self.to = self.to.wrapping_add(count);
    }
}

/// # Safety
/// As [`LineWriter::append`], for a whole number of lines.
unsafe fn store(kernel: Kernel, pointers: Pointers, len: usize) {
    let pattern = Pattern { runs: Loop::ONCE, len, prefetch_distance: NO_PREFETCH, hint: Hint::L2 };
    // SAFETY: one run of `len` bytes, valid on both pointers by this function's contract; the kernel is for whole lines.
    unsafe { kernel(&[pointers], &pattern) };
}
