//! The functional form for elements of whole bytes. It writes all of a present, from a past and an update.
//!
//! This file decides how a sample is copied: in pieces before, in and after the update, as a whole copy that the
//! update then overwrites, or in the order of addresses past the CPU caches.
//!
//! The crate documentation defines P1, `cpu.rs` defines K1, and `cpu/kernel.rs` defines V1 to V3.

use core::mem::MaybeUninit;
use core::ptr;

use super::copy::{Copier, Stores};
use super::executor::Share;
use super::kernel::{Kernel, NO_PREFETCH, Pattern, Pointers};
use super::limits::{Limits, Tuning};
use super::prefetch::{Hint, LINE};
use crate::error::LengthUnit;
use crate::geometry::{Block, Geometry, Loop, RowRange, SampleRows, Source};
use crate::plan::Moves;
use crate::size::Width;

/// How a present is written, decided when a write is prepared.
#[derive(Clone, Debug)]
pub(super) struct PresentKernels {
    width: Width,
    /// The number of bytes in one row, over all outer and inner dimensions.
    row_bytes: usize,
    from_update: Copier,
    from_past: Copier,
    stores: Stores,
    slabs: Option<Slabs>,
}

impl PresentKernels {
    /// Creates the kernels for elements of this width and for the number of rows that samples usually bring.
    pub(super) fn new(tuning: Tuning, width: Width, geometry: &Geometry, rows: usize) -> Self {
        let (capacity, row_bytes) = (geometry.capacity(), width.bytes(geometry.row_elements()));
        let from_update = Copier::new(tuning, geometry.present_mapping(Source::Update), width, rows);
        let from_past = Copier::new(tuning, geometry.present_mapping(Source::Past), width, capacity);
        let stores = Stores::for_bytes(geometry.present_len(LengthUnit::Bytes), tuning.limits);
        let slabs = Slabs::new(tuning.limits, [&from_past, &from_update], [rows, capacity], stores);
        Self { width, row_bytes, from_update, from_past, stores, slabs }
    }
}

/// The functional form of one call.
pub(super) struct PresentWrite<'a> {
    pub(super) kernels: &'a PresentKernels,
    pub(super) moves: &'a Moves<'a>,
    /// The buffers of the present and of the past.
    pub(super) past: Pointers,
    /// The buffers of the present and of the update.
    pub(super) update: Pointers,
}

impl PresentWrite<'_> {
    /// Writes the parts of the present that this share takes.
    ///
    /// # Safety
    /// * K1: the kernels and the moves have the same geometry.
    /// * V1: the buffers are as long as that geometry's. The present is valid for writes, the past and the
    ///   update are valid for reads, and neither overlaps the present. Until this function returns, nothing
    ///   else uses the parts of the present that the share takes, and nothing writes to the past or the
    ///   update.
    pub(super) unsafe fn run(&self, share: &mut Share<'_>) {
        let PresentKernels { from_past, stores, slabs, .. } = self.kernels;
        let mut lines = LineWriter::new(from_past.line_kernel());
        self.moves.for_each_sample(|sample| match slabs {
            // SAFETY: K1 holds for the same kernels and moves. V1 holds for the parts that the share takes,
            // and `sample` has the pieces of one sample.
            None => unsafe { self.copy_pieces(share, &sample) },
            Some(slabs) => slabs.for_each(share, |part| match slabs.order {
                // SAFETY: K1 holds for the same kernels and moves. V1 holds for these slabs, which the share
                // takes.
                Order::Overwrite => unsafe { self.overwrite(&sample, part) },
                // SAFETY: K1 holds for the same kernels and moves. V1 holds for these slabs, which the share
                // takes, until `finish`.
                Order::Sequential => unsafe { self.append_pieces(&sample, part, &mut lines) },
            }),
        });
        // SAFETY: V1: the bytes that were appended are slabs that the share takes, and the present is valid
        // for writes. V2 and V3: the kernel is `from_past`'s for whole lines.
        unsafe { lines.finish() };
        stores.finish();
    }

    /// Returns the addresses of a layer's sample 0 in the present and in a source, and the copier for that
    /// source.
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
    /// K1 and V1 hold as [`run`](Self::run) states them, for the buffers of which this share takes a part.
    #[inline(always)]
    unsafe fn copy_pieces(&self, share: &mut Share<'_>, sample: &SampleRows) {
        for (source, rows) in sample.pieces {
            let (pointers, copier) = self.pointers(sample.layer, source);
            // SAFETY: V1: by K1 and P1 the rows lie inside the buffers, which are valid for the parts that
            // the share takes.
            unsafe { copier.copy_shared(pointers, rows, self.kernels.row_bytes, self.kernels.stores, share) };
        }
    }

    /// Copies whole slabs from the past, and overwrites a part of them while they are still in the CPU cache.
    ///
    /// # Safety
    /// K1 and V1 hold as [`run`](Self::run) states them, for the buffers of which these slabs are a part.
    unsafe fn overwrite(&self, sample: &SampleRows, part: SlabRange) {
        let whole = RowRange {
            sample: sample.sample,
            dst_row: 0,
            src_row: 0,
            count: self.moves.geometry().capacity(),
        };
        let (pointers, copier) = self.pointers(sample.layer, Source::Past);
        if let Some(block) = part.block(copier, whole) {
            let run = Block { len: block.elements(), loops: [Loop::ONCE; 3], ..block };
            // SAFETY: V1: by K1 and P1 the slabs lie inside the present and the past, which are valid there.
            // The slabs are one run, because the slabs of a sample are contiguous and in the same order in
            // both buffers (`Slabs::new`).
            unsafe { copier.copy_block(pointers, &run, Stores::Cached) };
        }
        let (pointers, copier) = self.pointers(sample.layer, Source::Update);
        let updated = sample.pieces.into_iter().filter(|(source, _)| *source == Source::Update);
        for block in updated.filter_map(|(_, rows)| part.block(copier, rows)) {
            // SAFETY: V1: by K1 and P1 the rows lie inside the update, which is valid there, and inside the
            // slabs of the present that were just copied.
            unsafe { copier.copy_block(pointers, &block, Stores::Cached) };
        }
    }

    /// Copies the pieces of each slab in the order of their addresses.
    ///
    /// # Safety
    /// * K1 and V1 hold as [`run`](Self::run) states them, for the buffers of which these slabs are a part,
    ///   until [`LineWriter::finish`].
    /// * The destination of all bytes that were appended to `lines` before is valid for writes.
    /// * The kernel of `lines` is that of [`Copier::line_kernel`].
    unsafe fn append_pieces(&self, sample: &SampleRows, part: SlabRange, lines: &mut LineWriter) {
        let mut pieces = sample.pieces.map(|(source, rows)| {
            let (pointers, copier) = self.pointers(sample.layer, source);
            let outer = copier.mapping().outer()?;
            let Block { dst_offset: dst, src_offset: src, len, .. } =
                part.block(copier, rows).filter(|block| block.len > 0)?;
            Some((pointers.dst.wrapping_add(dst), pointers.src.wrapping_add(src), len, outer.src_stride))
        });
        if let Some((dst, ..)) = pieces.iter().flatten().next() {
            // SAFETY: V1: the destination of all bytes that were appended before is valid for writes. V2 and
            // V3: the kernel is a `line_kernel`.
            unsafe { lines.seek(*dst) };
        }
        for _ in 0..part.count {
            for (_, src, len, step) in pieces.iter_mut().flatten() {
                // SAFETY: V1: by K1 and P1 the piece lies inside its source, which is valid there, and it is
                // one run. All pieces together are these slabs of the present from `seek` on, which are
                // contiguous (`Slabs::new`). V2 and V3: the kernel is a `line_kernel`.
                unsafe { lines.append(*src, *len) };
                *src = src.wrapping_offset(*step);
            }
        }
    }
}

/// The slabs of a sample, if the sample is written slab by slab. A slab is the slots of one outer index. A
/// sample is written slab by slab if its slabs are so short that pieces would be tiny, or if stores should go
/// to ascending addresses.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slabs {
    /// The number of slabs in one sample. They are contiguous and in the same order in the present and in the
    /// past. If the order is [`Order::Sequential`], the rows of the update in one slab are one run.
    count: usize,
    /// The number of bytes in one slab. It is not 0.
    bytes: usize,
    order: Order,
    /// The largest number of bytes of slabs that are written together. It is at least one slab.
    group_bytes: usize,
}

/// How slabs are written.
#[derive(Clone, Copy, Debug)]
enum Order {
    /// Slabs are copied whole from the past, then overwritten from the update.
    Overwrite,
    /// The pieces of slabs are stored in the order of their addresses.
    Sequential,
}

/// Some slabs of a sample.
#[derive(Clone, Copy, Debug)]
struct SlabRange {
    first: usize,
    count: usize,
}

impl Slabs {
    fn new(
        limits: &Limits,
        [from_past, from_update]: [&Copier; 2],
        [rows, capacity]: [usize; 2],
        stores: Stores,
    ) -> Option<Self> {
        let (Loop { count, dst_stride: dst, src_stride: src }, bytes) =
            from_past.mapping().outer_runs(capacity)?;
        let update = from_update.mapping();
        let contiguous = dst == src && usize::try_from(dst) == Ok(bytes) && bytes > 0;
        let alike = update.outer().is_some_and(|outer| outer.count == count);
        let (order, group_bytes) = match stores {
            Stores::Streamed
                if (limits.slab_stream_min..=limits.slab_stream_max).contains(&bytes)
                    && update.outer_runs(rows).is_some() =>
            {
                (Order::Sequential, limits.slab_stream_max)
            }
            // An update of most of the slots would write most bytes twice.
            _ if bytes < limits.slab_overwrite_max && rows <= capacity.div_euclid(2) => {
                (Order::Overwrite, limits.slab_tile)
            }
            _ => return None,
        };
        (contiguous && alike).then_some(Self { count, bytes, order, group_bytes })
    }

    /// Visits the groups of slabs that a share takes.
    fn for_each(self, share: &mut Share<'_>, mut visit: impl FnMut(SlabRange)) {
        share.groups(self.count, self.bytes, self.group_bytes, |first, count| {
            visit(SlabRange { first, count })
        });
    }
}

impl SlabRange {
    /// Returns the part of these rows that lies in these slabs.
    fn block(self, copier: &Copier, rows: RowRange) -> Option<Block> {
        copier.mapping().slabs(rows, self.first, self.count)
    }
}

/// Stores consecutive bytes from several sources past the CPU caches, in whole lines.
///
/// If a line is stored in part, the processor must read it first, and all later stores wait for that read
/// (`docs/decisions.md` has the cost). A line that takes bytes from several sources is therefore assembled
/// before it is stored. All appended bytes are in the destination after [`finish`](Self::finish).
pub(super) struct LineWriter {
    /// The kernel for runs of whole lines.
    kernel: Kernel,
    /// The start of the line that is stored next. It is aligned to a [`LINE`].
    dst: *mut u8,
    /// The bytes of that line. Those in `from..to` are initialised.
    line: [MaybeUninit<u8>; LINE],
    /// The index of the first appended byte of the line that is not yet in the destination. It is at most
    /// `to`.
    from: usize,
    /// The end of the bytes that were appended. It is below `LINE` between calls.
    to: usize,
}

impl LineWriter {
    /// Creates a writer with a kernel that copies runs of whole lines.
    pub(super) fn new(kernel: Kernel) -> Self {
        let line = [MaybeUninit::uninit(); LINE];
        Self { kernel, dst: ptr::null_mut(), line, from: 0, to: 0 }
    }

    /// Moves the destination of the next appended byte to `dst`.
    ///
    /// # Safety
    /// V1, V2 and V3 hold for all bytes that were appended before, as [`finish`](Self::finish) states them.
    pub(super) unsafe fn seek(&mut self, dst: *mut u8) {
        if self.dst.wrapping_add(self.to) != dst {
            // SAFETY: V1 holds for all bytes that were appended, and V2 and V3 hold for the kernel. These are
            // the conditions of this function.
            unsafe { self.finish() };
            let from = dst.addr().wrapping_rem(LINE);
            (self.dst, self.from, self.to) = (dst.wrapping_sub(from), from, from);
        }
    }

    /// Stores `len` bytes after the bytes that were appended before, now or later.
    ///
    /// # Safety
    /// * V1: from the `dst` of [`seek`](Self::seek) on, the destination is valid for writes of all bytes that
    ///   were appended since, including these `len` bytes. Nothing else uses it until
    ///   [`finish`](Self::finish). `src` is valid for reads of `len` bytes and does not overlap the
    ///   destination.
    /// * V2: the machine has the instruction set that the kernel is compiled for.
    /// * V3: the kernel takes whole lines whose `dst` is aligned to a [`LINE`].
    #[inline]
    pub(super) unsafe fn append(&mut self, mut src: *const u8, mut len: usize) {
        if self.to > 0 {
            let count = len.min(LINE.wrapping_sub(self.to));
            // SAFETY: V1: `src` is valid for reads of `len` bytes, and `count <= len`. `to + count <= LINE`.
            unsafe { self.buffer(src, count) };
            if self.to < LINE {
                return;
            }
            // SAFETY: V1 holds for all bytes that were appended, and V2 and V3 hold for the kernel. These are
            // the conditions of this function.
            unsafe { self.finish() };
            (src, len) = (src.wrapping_add(count), len.wrapping_sub(count));
        }
        let rest = len.wrapping_rem(LINE);
        let whole = len.wrapping_sub(rest);
        if whole > 0 {
            // SAFETY: V1: `src` is valid for reads of `len` bytes, the destination is valid for writes of
            // them, and `whole <= len`. The line is empty, so the bytes go to `dst`. V2 holds for the kernel.
            // V3: `dst` is aligned to a line, and `whole` is a multiple of a line.
            unsafe { store(self.kernel, Pointers { dst: self.dst, src }, whole) };
            self.dst = self.dst.wrapping_add(whole);
        }
        // SAFETY: V1: `src` is valid for reads of `len` bytes, and `len` is `whole + rest`. `rest < LINE`,
        // and the line is empty.
        unsafe { self.buffer(src.wrapping_add(whole), rest) };
    }

    /// Stores the appended bytes that are not yet in the destination.
    ///
    /// # Safety
    /// * V1: the destination is valid for writes of all bytes that were appended, and nothing else uses it
    ///   until this function returns.
    /// * V2: the machine has the instruction set that the kernel is compiled for.
    /// * V3: the kernel takes whole lines whose `dst` is aligned to a [`LINE`].
    pub(super) unsafe fn finish(&mut self) {
        let line = self.line.as_ptr().cast::<u8>();
        if (self.from, self.to) == (0, LINE) {
            // SAFETY: V1: all bytes of the line were appended, so the line is initialised and `dst` is valid
            // for writes of it. The line is a field of this struct, so it does not overlap the destination.
            // V2 holds for the kernel. V3: `dst` is aligned to a line, and this is one line.
            unsafe { store(self.kernel, Pointers { dst: self.dst, src: line }, LINE) };
        } else {
            let (dst, line) = (self.dst.wrapping_add(self.from), line.wrapping_add(self.from));
            // SAFETY: V1: these bytes of the line were appended, so they are initialised and `dst` is valid
            // for writes of them. The line is a field of this struct, so it does not overlap the destination.
            unsafe { ptr::copy_nonoverlapping(line, dst, self.to.wrapping_sub(self.from)) };
        }
        if self.to == LINE {
            (self.dst, self.to) = (self.dst.wrapping_add(LINE), 0);
        }
        self.from = self.to;
    }

    /// Copies `count` bytes into the line.
    ///
    /// # Safety
    /// `src` is valid for reads of `count` bytes, and `to + count <= LINE`.
    unsafe fn buffer(&mut self, src: *const u8, count: usize) {
        let line = self.line.as_mut_ptr().cast::<u8>().wrapping_add(self.to);
        // SAFETY: `src` is valid for reads of `count` bytes, and the line has room for them, because
        // `to + count <= LINE`. The line is borrowed exclusively, so it does not overlap `src`.
        unsafe { ptr::copy_nonoverlapping(src, line, count) };
        self.to = self.to.wrapping_add(count);
    }
}

/// Stores whole lines.
///
/// # Safety
/// * V1: `dst` is valid for writes of `len` bytes, `src` is valid for reads of `len` bytes, and they do not
///   overlap.
/// * V2: the machine has the instruction set that the kernel is compiled for.
/// * V3: the kernel takes whole lines whose `dst` is aligned to a [`LINE`]. `dst` is aligned to a line, and
///   `len` is a multiple of one.
unsafe fn store(kernel: Kernel, pointers: Pointers, len: usize) {
    let pattern = Pattern { runs: Loop::ONCE, len, prefetch_distance: NO_PREFETCH, hint: Hint::L2 };
    // SAFETY: V1, V2 and V3 hold for a run of `len` bytes at the pointers, which is the only run of the
    // pattern.
    unsafe { kernel(&[pointers], &pattern) };
}
