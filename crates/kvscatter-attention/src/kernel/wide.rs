//! The kernels of wide blocks, whose lanes are rows.
//!
//! A block of few rows is bound by memory, and its products are dot products along a key. A block of many rows is bound
//! by arithmetic. There, the sums of the lanes of a dot product would take a large share of the time. So the queries of
//! a wide block are transposed once, and a vector contains the same element of several rows:
//!
//! - A score is a sum over the elements of a key. Each element is multiplied with the vectors of its queries.
//! - A score becomes a weight in its own lane. The largest score and the sum of weights of a row are lanes too.
//! - A weight is multiplied with the vectors of its value. So the sums of values are not transposed.
//!
//! A wide block is divided into panels of [`PANEL`] rows. In a panel, queries are `[element][row]`, scores and weights
//! are `[slot][row]`, and sums are `[row][element]`. The scores of a panel stay in the first-level cache. A panel of
//! fewer rows is padded to a multiple of [`LANES`], and the rows that are added have no influence on the others.
//!
//! The slots are those of one section of a chunk ([`SECTION`]). The values of a section are added one after the other,
//! in the order of their positions, and their sum is then added to that of the sections before it.

#![expect(
    clippy::multiple_unsafe_ops_per_block,
    reason = "each step is one expression over a few vectors, whose contracts are the same: the instruction \
              set is there, and the addresses are those that the function's contract covers"
)]

use super::generic::exp;
use super::vector::{LANES, Vector};

/// The largest number of rows of a panel.
pub(crate) const PANEL: usize = 32;

/// The largest number of rows of a wide block.
pub(crate) const WIDE_ROWS: usize = 4 * PANEL;

/// The largest number of slots of a section.
pub(crate) const SECTION: usize = 128;

/// A number for each row of a panel, with those that are added.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(crate) struct PerRow(pub(crate) [f32; PANEL]);

/// What is known about the rows of a panel while the sections of a chunk are added.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Panel {
    /// The number of rows.
    pub(crate) rows: usize,
    /// The index of the first position of the section that a row sees.
    pub(crate) first: PerRow,
    /// The index after the last one.
    pub(crate) end: PerRow,
    /// The largest score so far.
    pub(crate) most: PerRow,
    /// The sum of the weights so far, which are relative to the largest score.
    pub(crate) weight: PerRow,
    /// The factor that makes the sums of the sections before this one relative to the largest score.
    pub(crate) factor: PerRow,
}

impl Panel {
    /// Returns a panel of this many rows that have seen nothing.
    pub(crate) fn new(rows: usize) -> Self {
        let zero = PerRow([0.0; PANEL]);
        let most = PerRow([f32::NEG_INFINITY; PANEL]);
        Self { rows: rows.min(PANEL), first: zero, end: zero, most, weight: zero, factor: zero }
    }

    /// Returns the number of vectors from a row on, with those of rows that are added.
    #[inline(always)]
    fn vectors<V: Vector>(&self, row: usize) -> usize {
        (self.rows.next_multiple_of(LANES) - row) / V::LANES
    }
}

/// The keys or values of a section.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SlotList<'a> {
    /// The first element of each slot.
    pub(crate) first: &'a [*const f32],
    /// The number of elements of a slot.
    pub(crate) size: usize,
}

/// Slots that are read soon, a key and a value for each key of a section. Any address is allowed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Soon<'a> {
    /// The first byte of each slot.
    pub(crate) first: &'a [[*const u8; 2]],
    /// The number of bytes of an element.
    pub(crate) bytes: usize,
}

/// The kernels of wide blocks of one instruction set.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WideKernels {
    pub(crate) products: WideProducts,
    pub(crate) weights: WideWeights,
    pub(crate) weighted_sums: WideSums,
    /// Like `weighted_sums`, without the values and sums whose weight or factor is 0, even if they are NaN or infinite.
    /// The bits of other sums are the same.
    pub(crate) sums_with_weight: WideSums,
}

/// Stores the dot products of each query with each key. Meanwhile, requests the slots that are read soon from memory.
/// The arguments are the queries, the keys, these slots, the panel, and the scores.
///
/// # Safety
/// 1. The machine has the instruction set of the kernel.
/// 2. Each key is valid for reads of `size` numbers.
/// 3. The queries are valid for reads of [`PANEL`] numbers for each element of a key.
/// 4. The scores are valid for writes of [`PANEL`] numbers for each key.
pub(crate) type WideProducts =
    unsafe fn(queries: *const f32, keys: SlotList<'_>, soon: Soon<'_>, panel: &Panel, scores: *mut f32);

/// Converts scores to weights: `exp(score - most)`, where `most` is the largest score of a row so far. Updates `most`,
/// `weight` and `factor`.
///
/// The last argument has the index of each slot in its section. If it is given, the weight is 0 where a row does not
/// see the slot, and the score is not compared. NaN scores are not compared either, and their weight is NaN.
///
/// # Safety
/// 1. The machine has the instruction set of the kernel.
/// 2. The scores are valid for reads and writes of [`PANEL`] numbers for each of `count` slots.
pub(crate) type WideWeights =
    unsafe fn(scores: *mut f32, count: usize, panel: &mut Panel, indices: Option<&[f32]>);

/// Adds weighted values to the sums: `sum = factor * sum + weights * values`. The arguments are the weights, the
/// values, the panel, and the sums.
///
/// # Safety
/// 1. The machine has the instruction set of the kernel.
/// 2. `size` is a multiple of [`LANES`]. Each value is valid for reads of `size` numbers.
/// 3. The weights are valid for reads of [`PANEL`] numbers for each value.
/// 4. The sums are valid for reads and writes of `size` numbers for each row of the panel.
pub(crate) type WideSums =
    unsafe fn(weights: *const f32, values: SlotList<'_>, panel: &Panel, sums: *mut f32);

/// See [`WideProducts`]. `R` is the largest number of vectors of rows, and `K` the number of keys, that are multiplied
/// at a time.
///
/// # Safety
/// See [`WideProducts`].
#[inline(always)]
pub(super) unsafe fn products<V: Vector, const R: usize, const K: usize>(
    queries: *const f32,
    keys: SlotList<'_>,
    soon: Soon<'_>,
    panel: &Panel,
    scores: *mut f32,
) {
    let mut row = 0;
    while row < panel.rows {
        let (queries, scores) = (queries.wrapping_add(row), scores.wrapping_add(row));
        // SAFETY: These vectors of rows exist. The rest is the contract of this function.
        row += V::LANES
            * unsafe {
                match R.min(panel.vectors::<V>(row)) {
                    2.. => key_tiles::<V, 2, K>(queries, keys, soon, scores),
                    _ => key_tiles::<V, 1, K>(queries, keys, soon, scores),
                }
            };
    }
}

/// Multiplies `R` vectors of rows with all keys, and returns `R`.
///
/// # Safety
/// The contract of [`products`] is met for these rows.
#[inline(always)]
unsafe fn key_tiles<V: Vector, const R: usize, const K: usize>(
    queries: *const f32,
    keys: SlotList<'_>,
    soon: Soon<'_>,
    scores: *mut f32,
) -> usize {
    let (tiles, rest) = keys.first.as_chunks::<K>();
    let mut scores = scores;
    // SAFETY: The keys and scores of each tile exist. The rest is the contract of this function.
    unsafe {
        for (tile, first) in tiles.iter().zip(soon.first.chunks_exact(K)) {
            let soon = Soon { first, ..soon };
            product_tile::<V, R, K>(queries, tile, soon, keys.size, scores);
            scores = scores.wrapping_add(K * PANEL);
        }
        for (key, first) in rest.iter().zip(soon.first.chunks_exact(K).remainder().chunks_exact(1)) {
            let soon = Soon { first, ..soon };
            product_tile::<V, R, 1>(queries, core::array::from_ref(key), soon, keys.size, scores);
            scores = scores.wrapping_add(PANEL);
        }
    }
    R
}

/// Stores the products of `R` vectors of rows with `K` keys.
///
/// # Safety
/// The contract of [`products`] is met for these rows and keys.
#[inline(always)]
unsafe fn product_tile<V: Vector, const R: usize, const K: usize>(
    queries: *const f32,
    keys: &[*const f32; K],
    soon: Soon<'_>,
    size: usize,
    scores: *mut f32,
) {
    // SAFETY: The machine has the instruction set. Each load is an element of a key or of the queries, and each store
    // is to the scores of a key.
    unsafe {
        let mut sums = [[V::splat(0.0); R]; K];
        let mut query = queries;
        for element in 0..size {
            if element.is_multiple_of(LANES) {
                for at in soon.first.as_flattened() {
                    V::prefetch(at.wrapping_add(element * soon.bytes));
                }
            }
            let vectors: [V; R] = core::array::from_fn(|r| V::load(query.wrapping_add(r * V::LANES)));
            for (sums, key) in sums.iter_mut().zip(keys) {
                let key = V::splat(key.wrapping_add(element).read());
                for (sum, vector) in sums.iter_mut().zip(vectors) {
                    *sum = vector.mul_add(key, *sum);
                }
            }
            query = query.wrapping_add(PANEL);
        }
        for (k, sums) in sums.into_iter().enumerate() {
            for (r, sum) in sums.into_iter().enumerate() {
                sum.store(scores.wrapping_add(k * PANEL + r * V::LANES));
            }
        }
    }
}

/// See [`WideWeights`].
///
/// # Safety
/// See [`WideWeights`].
#[inline(always)]
pub(super) unsafe fn weights<V: Vector>(
    scores: *mut f32,
    count: usize,
    panel: &mut Panel,
    indices: Option<&[f32]>,
) {
    let mut row = 0;
    while row < panel.rows {
        // SAFETY: These vectors of rows exist. The rest is the contract of this function.
        row += V::LANES
            * unsafe {
                match panel.vectors::<V>(row) {
                    2.. => lanes::<V, 2>(scores, count, panel, row, indices),
                    _ => lanes::<V, 1>(scores, count, panel, row, indices),
                }
            };
    }
}

/// Converts the scores of `R` vectors of rows from `row` on, and returns `R`.
///
/// # Safety
/// The contract of [`weights`] is met, and these rows exist.
#[inline(always)]
unsafe fn lanes<V: Vector, const R: usize>(
    scores: *mut f32,
    count: usize,
    panel: &mut Panel,
    row: usize,
    indices: Option<&[f32]>,
) -> usize {
    let score = |slot: usize, r: usize| scores.wrapping_add(slot * PANEL + row + r * V::LANES);
    // SAFETY: The machine has the instruction set. Each load and store is within the scores of a slot, or within a
    // `PerRow`, because the rows exist.
    unsafe {
        let load = |numbers: &PerRow| -> [V; R] {
            core::array::from_fn(|r| V::load(numbers.0.as_ptr().wrapping_add(row + r * V::LANES)))
        };
        let store = |numbers: &mut PerRow, vectors: [V; R]| {
            for (r, vector) in vectors.into_iter().enumerate() {
                vector.store(numbers.0.as_mut_ptr().wrapping_add(row + r * V::LANES));
            }
        };
        let before = load(&panel.most);
        let mut most = before;
        if let Some(indices) = indices {
            let (first, end) = (load(&panel.first), load(&panel.end));
            let hidden = V::splat(f32::NEG_INFINITY);
            for (slot, &index) in indices.iter().enumerate().take(count) {
                let index = V::splat(index);
                for (r, most) in most.iter_mut().enumerate() {
                    let score = score(slot, r);
                    let seen = V::load(score).replaced_below(index, first[r], hidden);
                    let seen = hidden.replaced_below(index, end[r], seen);
                    seen.store(score);
                    *most = seen.max(*most);
                }
            }
        } else {
            for slot in 0..count {
                for (r, most) in most.iter_mut().enumerate() {
                    // The score is the first operand, so a NaN score leaves the maximum as it is.
                    *most = V::load(score(slot, r)).max(*most);
                }
            }
        }
        // If every score is negative infinity, every weight must be 0 and not NaN.
        let shift = most.map(|most| most.zero_where_below(most, V::splat(f32::MIN)));
        let mut sums = [V::splat(0.0); R];
        for slot in 0..count {
            for (r, sum) in sums.iter_mut().enumerate() {
                let score = score(slot, r);
                let weight = exp(V::load(score).sub(shift[r]));
                weight.store(score);
                *sum = sum.add(weight);
            }
        }
        let (mut factor, mut weight) = (before, load(&panel.weight));
        for r in 0..R {
            factor[r] = exp(before[r].sub(shift[r]));
            weight[r] = weight[r].mul_add(factor[r], sums[r]);
        }
        store(&mut panel.weight, weight);
        store(&mut panel.factor, factor);
        store(&mut panel.most, most);
    }
    R
}

/// See [`WideSums`]. `R` is the largest number of rows, and `C` that of vectors of a value, that are added to at a
/// time.
///
/// # Safety
/// See [`WideSums`].
#[inline(always)]
pub(super) unsafe fn weighted_sums<V: Vector, const R: usize, const C: usize>(
    weights: *const f32,
    values: SlotList<'_>,
    panel: &Panel,
    sums: *mut f32,
) {
    let mut column = 0;
    while column < values.size {
        // SAFETY: These vectors of columns exist. The rest is the contract of this function.
        column += V::LANES
            * unsafe {
                match C.min((values.size - column) / V::LANES) {
                    4.. => row_tiles::<V, R, 4>(weights, values, panel, sums, column),
                    2.. => row_tiles::<V, R, 2>(weights, values, panel, sums, column),
                    _ => row_tiles::<V, R, 1>(weights, values, panel, sums, column),
                }
            };
    }
}

/// Adds to `C` vectors of columns of all rows, and returns `C`.
///
/// # Safety
/// The contract of [`weighted_sums`] is met for these columns.
#[inline(always)]
unsafe fn row_tiles<V: Vector, const R: usize, const C: usize>(
    weights: *const f32,
    values: SlotList<'_>,
    panel: &Panel,
    sums: *mut f32,
    column: usize,
) -> usize {
    let mut row = 0;
    while row < panel.rows {
        // SAFETY: The rows of the tile exist. The rest is the contract of this function.
        row += unsafe {
            match R.min(panel.rows - row) {
                6.. => sum_tile::<V, 6, C, false>(weights, values, panel, sums, [row, column]),
                4.. => sum_tile::<V, 4, C, false>(weights, values, panel, sums, [row, column]),
                2.. => sum_tile::<V, 2, C, false>(weights, values, panel, sums, [row, column]),
                _ => sum_tile::<V, 1, C, false>(weights, values, panel, sums, [row, column]),
            }
        };
    }
    C
}

/// Like [`weighted_sums`], without the values and sums whose weight or factor is 0.
///
/// # Safety
/// See [`WideSums`].
#[inline(always)]
pub(super) unsafe fn sums_with_weight<V: Vector>(
    weights: *const f32,
    values: SlotList<'_>,
    panel: &Panel,
    sums: *mut f32,
) {
    for row in 0..panel.rows {
        for column in (0..values.size).step_by(V::LANES) {
            // SAFETY: The row and the columns exist. The rest is the contract of this function.
            unsafe { sum_tile::<V, 1, 1, true>(weights, values, panel, sums, [row, column]) };
        }
    }
}

/// Adds to `C` vectors of columns of `R` rows, and returns `R`. If `SKIPS`, leaves out what has the weight or the
/// factor 0.
///
/// # Safety
/// The contract of [`weighted_sums`] is met for these rows and columns, which begin at `row` and `column`.
#[inline(always)]
unsafe fn sum_tile<V: Vector, const R: usize, const C: usize, const SKIPS: bool>(
    weights: *const f32,
    values: SlotList<'_>,
    panel: &Panel,
    sums: *mut f32,
    [row, column]: [usize; 2],
) -> usize {
    // SAFETY: The machine has the instruction set. The vectors of a value and of the sums end at or before `size`. The
    // weights and the factors are those of these rows.
    unsafe {
        let mut totals = [[V::splat(0.0); C]; R];
        let mut weight = weights.wrapping_add(row);
        for value in values.first {
            let value = value.wrapping_add(column);
            let value: [V; C] = core::array::from_fn(|c| V::load(value.wrapping_add(c * V::LANES)));
            for (r, totals) in totals.iter_mut().enumerate() {
                let weight = weight.wrapping_add(r).read();
                if SKIPS && weight == 0.0 {
                    continue;
                }
                for (total, value) in totals.iter_mut().zip(value) {
                    *total = value.mul_add(V::splat(weight), *total);
                }
            }
            weight = weight.wrapping_add(PANEL);
        }
        for (r, totals) in totals.into_iter().enumerate() {
            let sum = sums.wrapping_add((row + r) * values.size + column);
            let factor = panel.factor.0.as_ptr().wrapping_add(row + r).read();
            for (c, total) in totals.into_iter().enumerate() {
                let sum = sum.wrapping_add(c * V::LANES);
                let before = if SKIPS && factor == 0.0 { V::splat(0.0) } else { V::load(sum) };
                before.mul_add(V::splat(factor), total).store(sum);
            }
        }
    }
    R
}
