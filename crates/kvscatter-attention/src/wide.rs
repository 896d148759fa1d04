//! One chunk of a wide block, which has many rows of one head.
//!
//! A chunk is processed in sections, and the rows in panels. The scores of a section and a panel are converted to
//! weights relative to the largest score so far. The weighted values are then added to the sums, which are made
//! relative to the same score. So only these scores are in memory, and they stay in the first-level cache. The keys and
//! values of a section are read from memory once for all panels. The module `kernel::wide` explains the layouts.
//!
//! A slot that a row does not see has the weight 0 in this row, and 0 times NaN is NaN. So a chunk is computed again if
//! one of its sums is not finite, without the values of weight 0. Rows whose sums were finite get the same bits again.

use core::ops::Range;

use crate::aligned::{Aligned, padded, spread};
use crate::block::{Block, CallMemory};
use crate::chunk::{is_finite, with_bias};
use crate::float::Float;
use crate::kernel::{CacheElement, LANES, PANEL, Panel, SECTION, SlotList, Soon, WIDE_ROWS};
use crate::operands::Source;
use crate::room::Room;
use crate::slots::Slots;

/// The panels of a wide block.
type Panels = [Panel; WIDE_ROWS / PANEL];

/// The slots of a section that are read, in the order of their positions.
struct Section {
    count: usize,
    /// The index of each position, counted from the first one of the section.
    indices: [f32; SECTION],
    keys: [*const f32; SECTION],
    values: [*const f32; SECTION],
    /// The key and the value that are probably at the same index of the next section.
    soon: [[*const u8; 2]; SECTION],
}

impl<T: Float, C: CacheElement> CallMemory<'_, T, C> {
    /// Stores the scaled queries of a wide block, transposed.
    pub(crate) fn transpose_queries(&self, block: &Block, room: &mut Room) {
        let (size, scale) = (self.setup.sizes.head_size, self.scale());
        let Room { queries, values: copies, .. } = room;
        // The rows with which a panel is padded are zeros.
        queries.fill(0.0);
        let mut rows = block.each();
        for first in (0..block.rows.len()).step_by(LANES) {
            // The processor reads several queries at a time if nothing else is done meanwhile.
            for (row, query) in rows.by_ref().take(LANES).zip(copies.chunks_exact_mut(size.max(1))) {
                T::widen(self.query(block, row), &mut query[..size]);
                self.scale_channels(Source::Keys, row, &mut query[..size]);
            }
            let panel = &mut queries[first / PANEL * PANEL * size..][..PANEL * size];
            let rows = (first..block.rows.len()).take(LANES).map(|row| row % PANEL);
            for (row, query) in rows.zip(copies.chunks_exact(size.max(1))) {
                for (element, rows) in query.iter().zip(panel.chunks_exact_mut(PANEL)) {
                    rows[row] = *element * scale;
                }
            }
        }
    }

    /// Computes the result of the positions of one chunk of a wide block in `room.partial`. Returns `false` if no row
    /// sees any of them.
    #[inline(never)] // Chunks of other blocks need no memory for the slots of a section.
    pub(crate) fn wide_chunk(&self, block: &Block, positions: &Range<i64>, room: &mut Room) -> bool {
        let is_seen = self.add_sections(block, positions, false, room);
        let sums = block.rows.len() * padded(self.setup.sizes.value_size);
        if !is_finite(&room.partial.sums[..sums]) {
            self.add_sections(block, positions, true, room);
        }
        is_seen
    }

    /// Adds the sections of a chunk. If `skips`, leaves out values of weight 0.
    fn add_sections(&self, block: &Block, positions: &Range<i64>, skips: bool, room: &mut Room) -> bool {
        let rows = block.rows.len();
        let mut panels: Panels = core::array::from_fn(|at| Panel::new(rows.saturating_sub(at * PANEL)));
        let panels = &mut panels[..rows.div_ceil(PANEL)];
        room.partial.sums.fill(0.0);
        let (mut start, mut is_seen) = (positions.start, false);
        while start < positions.end {
            let end = positions.end.min(start.saturating_add(self.setup.blocking.section as i64));
            self.find_runs(block, start, &(start..end), room);
            if !room.runs.is_empty() {
                let section = self.section(block, room);
                for (at, panel) in panels.iter_mut().enumerate() {
                    self.add_section(&section, start, (at, panel), skips, room);
                }
                is_seen = true;
            }
            start = end;
        }
        let results = panels.iter().flat_map(|panel| panel.most.0.into_iter().zip(panel.weight.0));
        let rows = room.partial.most.iter_mut().zip(&mut room.partial.weight);
        rows.zip(results).for_each(|((most, weight), result)| (*most, *weight) = result);
        is_seen
    }

    /// Adds the section that begins at the position `start` to the panel `at`.
    fn add_section(
        &self,
        section: &Section,
        start: i64,
        (at, panel): (usize, &mut Panel),
        skips: bool,
        room: &mut Room,
    ) {
        let [head_size, row_size] = [self.setup.sizes.head_size, padded(self.setup.sizes.value_size)];
        let indices = &section.indices[..section.count];
        // The indices that any row sees are `first..end`. Those that every row sees are `all`.
        let (mut first, mut end, mut all) = (SECTION, 0, 0..SECTION);
        for (row, seen) in room.seen[at * PANEL..].iter().take(PANEL).enumerate() {
            let seen = self.indices(start, seen);
            (panel.first.0[row], panel.end.0[row]) = (seen.start as f32, seen.end as f32);
            if !seen.is_empty() {
                (first, end) = (first.min(seen.start), end.max(seen.end));
            }
            all = all.start.max(seen.start)..all.end.min(seen.end);
        }
        let slots = indices.partition_point(|index| *index < first as f32)
            ..indices.partition_point(|index| *index < end as f32);
        if slots.is_empty() {
            return;
        }
        let is_limited = (first..end) != all;
        let indices = &indices[slots.clone()];
        let kernels = &self.wide_kernels;
        let keys = SlotList { first: &section.keys[slots.clone()], size: head_size };
        let soon = Soon { first: &section.soon[slots.clone()], bytes: size_of::<C>() };
        let queries = room.queries[at * PANEL * head_size..].as_ptr();
        let scores = room.scores.as_mut_ptr();
        // SAFETY: `Setup` has an instruction set of the machine (A4). `slots` proved that the keys can be read. The
        // room has the queries of each panel, and the scores of a panel and a section.
        unsafe { (kernels.products)(queries, keys, soon, panel, scores) };
        let is_finished = self.setup.op.softcap > 0.0 || room.has_bias;
        if is_finished {
            self.finish_panel(indices, (at, panel), room);
        }
        let scores = room.scores.as_mut_ptr();
        let limited = (is_limited && !is_finished).then_some(indices);
        // SAFETY: As before.
        unsafe { (kernels.weights)(scores, slots.len(), panel, limited) };
        let values = SlotList { first: &section.values[slots], size: row_size };
        let add = if skips { kernels.sums_with_weight } else { kernels.weighted_sums };
        let sums = room.partial.sums[at * PANEL * row_size..].as_mut_ptr();
        // SAFETY: As before. The values are copies, which are padded, and so are the sums of each row of a block.
        unsafe { add(scores, values, panel, sums) };
    }

    /// Caps the scores of the panel `at`, adds the mask, and hides the positions that a row does not see.
    fn finish_panel(&self, indices: &[f32], (at, panel): (usize, &Panel), room: &mut Room) {
        let (softcap, section) = (self.setup.op.softcap, self.setup.blocking.section);
        for (scores, &index) in room.scores.chunks_exact_mut(PANEL).zip(indices) {
            for (row, score) in scores[..panel.rows].iter_mut().enumerate() {
                if !(panel.first.0[row]..panel.end.0[row]).contains(&index) {
                    *score = f32::NEG_INFINITY;
                    continue;
                }
                if softcap > 0.0 {
                    *score = softcap * (*score / softcap).tanh();
                }
                if room.has_bias {
                    let bias = room.bias[(at * PANEL + row) * section + index as usize];
                    *score = with_bias::<T>(*score, bias);
                }
            }
        }
    }

    /// Returns the slots of the runs of a section.
    fn section(&self, block: &Block, room: &mut Room) -> Section {
        let Room { runs, keys: key_copies, values: value_copies, .. } = room;
        let count = runs.iter().map(|run| run.slots.len()).sum();
        let keys = self.slots(block, Source::Keys, runs);
        let values = self.slots(block, Source::Values, runs);
        let mut section = Section {
            count,
            indices: [0.0; SECTION],
            // The kernels read single elements of a key, so keys in float32 are not copied.
            keys: if self.setup.blocking.copies_keys {
                self.copied(block, Source::Keys, runs, &keys[..count], key_copies)
            } else {
                keys.map(|[key, _]| key.cast())
            },
            values: self.copied(block, Source::Values, runs, &values[..count], value_copies),
            soon: core::array::from_fn(|at| [keys[at][1].cast(), values[at][1].cast()]),
        };
        let indices = runs.iter().flat_map(|run| run.index..run.end());
        section.indices.iter_mut().zip(indices).for_each(|(to, index)| *to = index as f32);
        section
    }

    /// Returns the first element of each slot of the runs of a section, and that of the slot which is probably at the
    /// same index of the next section.
    fn slots(&self, block: &Block, source: Source, runs: &[Slots]) -> [[*const C; 2]; SECTION] {
        let (tensors, size) = self.tensors(source);
        let mut slots = [[core::ptr::null(); 2]; SECTION];
        let mut to = slots.iter_mut();
        for run in runs.iter().flat_map(|run| self.parts(block.sample, run)) {
            let (rows, strides) = tensors[usize::from(run.is_past)];
            let first = strides.offset(block.sample, block.heads.start, run.slots.start);
            let last = first + (run.slots.len() - 1) * strides.row;
            // This proves to the kernels that the slots are inside the tensor.
            assert!(last + size <= rows.len(), "slots lie inside their tensor");
            for (at, to) in to.by_ref().take(run.slots.len()).enumerate() {
                let next = at + self.setup.blocking.section;
                *to = [at, next].map(|at| rows.as_ptr().wrapping_add(first + at * strides.row));
            }
        }
        slots
    }

    /// Copies the slots of runs in float32, multiplied with their scales, and returns the copies.
    fn copied(
        &self,
        block: &Block,
        source: Source,
        runs: &[Slots],
        slots: &[[*const C; 2]],
        copies: &mut Aligned,
    ) -> [*const f32; SECTION] {
        let (_, size) = self.tensors(source);
        let stride = spread(size);
        let of_run = |run| self.scales_of(source, block.sample, block.heads.start, &run);
        let parts = runs.iter().flat_map(|run| self.parts(block.sample, run));
        let mut scales = parts.filter_map(of_run).flatten();
        for ([slot, _], copy) in slots.iter().zip(copies.chunks_exact_mut(stride)) {
            // SAFETY: `Setup` has an instruction set of the machine (A4). `slots` proved that the slot is in its
            // tensor, and a copy has the size of a slot, rounded up to a multiple of `LANES`.
            unsafe { (self.kernels.widen)(*slot, size, copy.as_mut_ptr()) };
            if let Some(scale) = scales.next() {
                copy[..size].iter_mut().for_each(|element| *element *= scale);
            }
        }
        assert!(slots.len() * stride <= copies.len(), "copies lie inside the room");
        let first = copies.as_ptr();
        core::array::from_fn(|at| first.wrapping_add(at * stride))
    }
}
