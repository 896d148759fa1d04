//! Each kernel once, for the vectors of any instruction set.
//!
//! The functions are inlined into functions that enable the instruction set. Their contracts are those of the
//! function types in `vector`.

#![expect(
    clippy::multiple_unsafe_ops_per_block,
    reason = "each step is one expression over a few vectors, whose contracts are the same: the instruction \
              set is there, and the addresses are those that the function's contract covers"
)]

use core::ops::Range;

use super::vector::{GROUP, LANES, Load, Rows, STREAMS, Scaled, Stream, Streams, Vector};

/// All rows and columns of so many slots of each stream are summed before those of the next slots. So the values stay
/// in the first-level cache.
const STEPS: usize = 4;

/// The number of bytes of a line of the CPU cache.
const LINE: usize = 64;

/// The number of vectors of one row of sums that stay in registers.
const ROW_VECTORS: usize = 8;

/// See [`Products`](super::vector::Products). `W` is the number of keys that three or four rows multiply at a time.
/// `K1` is that of one row, whose columns are read `B` vectors at a time.
///
/// # Safety
/// See [`Products`](super::vector::Products).
#[inline(always)]
pub(super) unsafe fn products<V: Load<T>, T: Copy, const W: usize, const K1: usize, const B: usize>(
    queries: Rows,
    keys: Streams<T>,
    size: usize,
    scores: Rows,
) {
    // SAFETY: The contract is the same.
    unsafe {
        if keys.is_listed() {
            products_of::<V, T, true, W, K1, B>(queries, keys, size, scores);
        } else {
            products_of::<V, T, false, W, K1, B>(queries, keys, size, scores);
        }
    }
}

/// Does what [`products`] does. With `L`, a list places the slots.
///
/// # Safety
/// See [`Products`](super::vector::Products).
#[inline(always)]
unsafe fn products_of<V: Load<T>, T: Copy, const L: bool, const W: usize, const K1: usize, const B: usize>(
    queries: Rows,
    keys: Streams<T>,
    size: usize,
    scores: Rows,
) {
    let mut row = 0;
    while row < queries.count {
        let (queries, scores) = (queries.after(row), scores.after(row));
        // SAFETY: The rows `row..row + R` exist. The rest is the contract of this function.
        row += unsafe {
            match queries.count {
                4.. => tiles::<V, T, L, 4, W, 4>(queries, &keys, size, scores),
                3 => tiles::<V, T, L, 3, W, 4>(queries, &keys, size, scores),
                2.. => tiles::<V, T, L, 2, 4, 4>(queries, &keys, size, scores),
                _ => tiles::<V, T, L, 1, K1, B>(queries, &keys, size, scores),
            }
        };
    }
}

/// Multiplies the first `R` rows with all keys, `K` at a time, and returns `R`.
///
/// # Safety
/// The contract of [`products`] is met for rows 0 to `R`.
#[inline(always)]
unsafe fn tiles<V: Load<T>, T: Copy, const L: bool, const R: usize, const K: usize, const B: usize>(
    queries: Rows,
    keys: &Streams<T>,
    size: usize,
    scores: Rows,
) -> usize {
    for at in 0..keys.count {
        let soon = requested::<T, R>(keys, at);
        let (tiles, rest) = keys.used().as_chunks::<K>();
        for streams in tiles {
            // SAFETY: The slot `at` of each stream exists. The rest is the contract of this function.
            unsafe { tile::<V, T, L, R, K, B>(queries, streams, at, soon, size, scores) };
        }
        // Two keys are left of eight if `K` is 3.
        let (pairs, rest) =
            if STREAMS.is_multiple_of(K) { (&[] as &[_], rest) } else { rest.as_chunks::<2>() };
        for streams in pairs {
            // SAFETY: The slot `at` of each stream exists. The rest is the contract of this function.
            unsafe { tile::<V, T, L, R, 2, B>(queries, streams, at, soon, size, scores) };
        }
        for stream in rest {
            // SAFETY: The slot `at` of each stream exists. The rest is the contract of this function.
            unsafe {
                tile::<V, T, L, R, 1, B>(queries, core::array::from_ref(stream), at, soon, size, scores)
            };
        }
    }
    R
}

/// Stores the products of `R` rows and the slot `at` of each stream, and requests the slot `soon`.
///
/// # Safety
/// The contract of [`products`] is met for these rows and streams, and `at` is below the number of slots.
#[inline(always)]
unsafe fn tile<V: Load<T>, T: Copy, const L: bool, const R: usize, const K: usize, const B: usize>(
    queries: Rows,
    keys: &[Stream<T>; K],
    at: usize,
    soon: Option<usize>,
    size: usize,
    scores: Rows,
) {
    let query = |r: usize, column: usize| queries.first.wrapping_add(r * queries.stride + column);
    if let Some(soon) = soon {
        for key in keys {
            // SAFETY: A list has an offset for this slot.
            unsafe { prefetch::<V, T, L>(key, soon, 0..size) };
        }
    }
    // SAFETY: The machine has the instruction set. A list has the slot. Each load is within `size` elements of a key,
    // or within the padded size of a query. Each store is to the score of a row and a key.
    unsafe {
        let mut sums = [[V::splat(0.0); K]; R];
        let mut column = 0;
        if R == 1 {
            // One query is bound by memory. It stays in registers while each key is read in the order of its
            // addresses, which the processor prefetches best.
            while column + B * V::LANES <= size {
                let query: [V; B] = core::array::from_fn(|b| V::load(query(0, column + b * V::LANES)));
                for (key, sum) in keys.iter().zip(&mut sums[0]) {
                    let key = key.slot::<L>(at);
                    let mut second = V::splat(0.0);
                    for (b, query) in query.into_iter().enumerate() {
                        let key = V::load_wide(key.wrapping_add(column + b * V::LANES));
                        if b % 2 == 0 {
                            *sum = query.mul_add(key, *sum);
                        } else {
                            second = query.mul_add(key, second);
                        }
                    }
                    *sum = sum.add(second);
                }
                column += B * V::LANES;
            }
        }
        while column + V::LANES <= size {
            // No closure loads the keys: it lacks the instruction set, so it could stay a call.
            let mut key = [V::splat(0.0); K];
            for (loaded, key) in key.iter_mut().zip(keys) {
                *loaded = V::load_wide(key.slot::<L>(at).wrapping_add(column));
            }
            for (r, sums) in sums.iter_mut().enumerate() {
                let query = V::load(query(r, column));
                for (sum, key) in sums.iter_mut().zip(key) {
                    *sum = query.mul_add(key, *sum);
                }
            }
            column += V::LANES;
        }
        if column < size {
            for (k, key) in keys.iter().enumerate() {
                let key = V::load_first(key.slot::<L>(at).wrapping_add(column), size - column);
                for (r, sums) in sums.iter_mut().enumerate() {
                    sums[k] = V::load(query(r, column)).mul_add(key, sums[k]);
                }
            }
        }
        if R * K == 16 {
            let sums = V::sums_of_16(core::array::from_fn(|i| sums[i / K][i % K]));
            for (i, sum) in sums.into_iter().enumerate() {
                scores.first.wrapping_add(i / K * scores.stride + keys[i % K].after(at).index).write(sum);
            }
            return;
        }
        for (r, sums) in sums.iter().enumerate() {
            let scores = scores.first.wrapping_add(r * scores.stride);
            let mut k = 0;
            while k < K {
                let vectors = core::array::from_fn(|i| if k + i < K { sums[k + i] } else { V::splat(0.0) });
                for (sum, key) in V::sums(vectors).into_iter().zip(&keys[k..]) {
                    scores.wrapping_add(key.after(at).index).write(sum);
                }
                k += 4;
            }
        }
    }
}

/// Returns which slot of each stream is requested from memory when `R` rows read the slot `at`. One row requests none
/// if each stream is at another place, because the processor then reads ahead of it.
#[inline(always)]
fn requested<T: Copy, const R: usize>(streams: &Streams<T>, at: usize) -> Option<usize> {
    let is_in_turn = || size_of::<T>() < size_of::<f32>() && streams.all[0].step > 1;
    if R > 1 || is_in_turn() { streams.soon(at) } else { None }
}

/// Requests columns of the slot `at` of a stream from memory.
///
/// # Safety
/// If `L`, the list has an offset for the slot.
#[inline(always)]
unsafe fn prefetch<V: Vector, T, const L: bool>(stream: &Stream<T>, at: usize, columns: Range<usize>) {
    // SAFETY: The contract is the same.
    let slot = unsafe { stream.slot::<L>(at) };
    for column in columns.step_by(LINE / size_of::<T>()) {
        V::prefetch(slot.wrapping_add(column).cast());
    }
}

/// See [`WeightedSums`](super::vector::WeightedSums). `W` is the number of vectors of columns that three or four rows
/// add to at a time.
///
/// # Safety
/// See [`WeightedSums`](super::vector::WeightedSums).
#[inline(always)]
pub(super) unsafe fn weighted_sums<V: Load<T>, T: Copy, const W: usize>(
    weights: Rows,
    values: Streams<T>,
    size: usize,
    group: Rows,
    sums: Rows,
) {
    // SAFETY: The contract is the same.
    unsafe {
        if values.is_listed() {
            sums_of::<V, T, true, W>(weights, values, size, group, sums);
        } else {
            sums_of::<V, T, false, W>(weights, values, size, group, sums);
        }
    }
}

/// Does what [`weighted_sums`] does. With `L`, a list places the slots.
///
/// # Safety
/// See [`WeightedSums`](super::vector::WeightedSums).
#[inline(always)]
unsafe fn sums_of<V: Load<T>, T: Copy, const L: bool, const W: usize>(
    weights: Rows,
    values: Streams<T>,
    size: usize,
    group: Rows,
    sums: Rows,
) {
    // All rows and columns of a few slots are summed before those of the next ones, unless there is one tile.
    let steps = if weights.count == 1 && size <= ROW_VECTORS * V::LANES { GROUP } else { STEPS };
    let mut at = 0;
    while at < values.count {
        let in_group = (values.before + at) % GROUP;
        let slots = at..values.count.min(at + steps - in_group % steps);
        let mut row = 0;
        while row < weights.count {
            let (weights, group) = (weights.after(row), group.after(row));
            // SAFETY: The rows `row..row + R` and the slots of each stream exist. The rest is the contract of
            // this function.
            row += unsafe {
                match weights.count {
                    4.. => columns::<V, T, L, 4, W>(weights, &values, slots.clone(), size, group),
                    3 => columns::<V, T, L, 3, W>(weights, &values, slots.clone(), size, group),
                    2.. => columns::<V, T, L, 2, 4>(weights, &values, slots.clone(), size, group),
                    _ => columns::<V, T, L, 1, ROW_VECTORS>(weights, &values, slots.clone(), size, group),
                }
            };
        }
        at = slots.end;
        if (values.before + at).is_multiple_of(GROUP) {
            // SAFETY: The contract is the same.
            unsafe { finish_group::<V>(size, group, sums) };
        }
    }
}

/// Adds a group to the sums, and clears it.
///
/// # Safety
/// The contract of [`weighted_sums`] is met.
#[inline(always)]
unsafe fn finish_group<V: Vector>(size: usize, group: Rows, sums: Rows) {
    for row in 0..group.count {
        let (group, sums) = (group.after(row).first, sums.after(row).first);
        for column in (0..size).step_by(V::LANES) {
            let (group, sum) = (group.wrapping_add(column), sums.wrapping_add(column));
            // SAFETY: The column is within the padded size of a row.
            unsafe {
                V::load(sum).add(V::load(group)).store(sum);
                V::splat(0.0).store(group);
            }
        }
    }
}

/// Adds to all columns of the first `R` rows, `C` vectors at a time, and returns `R`.
///
/// # Safety
/// The contract of [`weighted_sums`] is met for rows 0 to `R`, and the range `slots` is within the number of slots.
#[inline(always)]
unsafe fn columns<V: Load<T>, T: Copy, const L: bool, const R: usize, const C: usize>(
    weights: Rows,
    values: &Streams<T>,
    slots: Range<usize>,
    size: usize,
    sums: Rows,
) -> usize {
    let weight = |row: usize, index: usize| weights.first.wrapping_add(row * weights.stride + index);
    // SAFETY: The machine has the instruction set. Each load of a value is within `size` elements of a slot.
    // Each load and store of a sum is within the padded size of a row.
    unsafe {
        let mut column = 0;
        if R == 1 && size > C * V::LANES {
            // The sums of the row do not fit in registers.
            let end = size / V::LANES * V::LANES;
            for at in slots.clone() {
                if let Some(soon) = requested::<T, R>(values, at) {
                    for stream in values.used() {
                        prefetch::<V, T, L>(stream, soon, 0..end);
                    }
                }
                let (tiles, rest) = values.used().as_chunks::<STREAMS>();
                for streams in tiles {
                    row_tile::<V, T, L, STREAMS>(weights, streams, at, end, sums);
                }
                for stream in rest {
                    row_tile::<V, T, L, 1>(weights, core::array::from_ref(stream), at, end, sums);
                }
            }
            column = end;
        }
        // Four vectors are two tiles of two, which is faster than three and one.
        while column + C * V::LANES <= size && (C != 3 || size - column != 4 * V::LANES) {
            column_tile::<V, T, L, R, C>(weights, values, slots.clone(), sums, column);
            column += C * V::LANES;
        }
        // With one row, two vectors would wait for each other's sums.
        while R == 1 && column + 4 * V::LANES <= size {
            column_tile::<V, T, L, R, 4>(weights, values, slots.clone(), sums, column);
            column += 4 * V::LANES;
        }
        while column + 2 * V::LANES <= size {
            column_tile::<V, T, L, R, 2>(weights, values, slots.clone(), sums, column);
            column += 2 * V::LANES;
        }
        while column + V::LANES <= size {
            column_tile::<V, T, L, R, 1>(weights, values, slots.clone(), sums, column);
            column += V::LANES;
        }
        if column < size {
            for row in 0..R {
                let sum = sums.first.wrapping_add(row * sums.stride + column);
                let mut total = V::load(sum);
                for at in slots.clone() {
                    for stream in values.used() {
                        let value = stream.slot::<L>(at).wrapping_add(column);
                        let value = V::load_first(value, size - column);
                        total = value.mul_add(V::splat(weight(row, stream.after(at).index).read()), total);
                    }
                }
                total.store(sum);
            }
        }
    }
    R
}

/// Adds the slot `at` of each stream to the first `end` columns of one row.
///
/// # Safety
/// The contract of [`weighted_sums`] is met for one row and the slot `at` of each stream. `end` is a multiple of a
/// vector's length, and at most the value size.
#[inline(always)]
unsafe fn row_tile<V: Load<T>, T: Copy, const L: bool, const K: usize>(
    weights: Rows,
    values: &[Stream<T>; K],
    at: usize,
    end: usize,
    sums: Rows,
) {
    // SAFETY: A list has the slot.
    let slots = values.each_ref().map(|stream| unsafe { stream.slot::<L>(at) });
    // SAFETY: The machine has the instruction set. Each vector of a value ends at or before `end`, which is within its
    // slot. Each sum is within the padded size of the row.
    unsafe {
        let weights = values.each_ref().map(|stream| {
            let weight = weights.first.wrapping_add(stream.after(at).index);
            V::splat(weight.read())
        });
        for column in (0..end).step_by(V::LANES) {
            let sum = sums.first.wrapping_add(column);
            let mut total = V::load(sum);
            for (weight, slot) in weights.iter().zip(slots) {
                total = V::load_wide(slot.wrapping_add(column)).mul_add(*weight, total);
            }
            total.store(sum);
        }
    }
}

/// Adds to `C` vectors of columns of `R` rows.
///
/// # Safety
/// The contract of [`weighted_sums`] is met for `R` rows and these slots, and `column + C * V::LANES` is at most the
/// value size.
#[inline(always)]
unsafe fn column_tile<V: Load<T>, T: Copy, const L: bool, const R: usize, const C: usize>(
    weights: Rows,
    values: &Streams<T>,
    slots: Range<usize>,
    sums: Rows,
    column: usize,
) {
    let sum = |r: usize, c: usize| sums.first.wrapping_add(r * sums.stride + column + c * V::LANES);
    // SAFETY: The machine has the instruction set. Each vector of a value is within its slot, and each one of the sums
    // within its row, because the columns end at or before the value size.
    unsafe {
        let mut totals: [[V; C]; R] = core::array::from_fn(|r| core::array::from_fn(|c| V::load(sum(r, c))));
        for at in slots {
            let soon = requested::<T, R>(values, at);
            for stream in values.used() {
                if let Some(soon) = soon {
                    prefetch::<V, T, L>(stream, soon, column..column + C * V::LANES);
                }
                let value = stream.slot::<L>(at).wrapping_add(column);
                let value: [V; C] = core::array::from_fn(|c| V::load_wide(value.wrapping_add(c * V::LANES)));
                for (r, totals) in totals.iter_mut().enumerate() {
                    let weight = weights.first.wrapping_add(r * weights.stride + stream.after(at).index);
                    let weight = V::splat(weight.read());
                    for (total, value) in totals.iter_mut().zip(value) {
                        *total = value.mul_add(weight, *total);
                    }
                }
            }
        }
        for (r, totals) in totals.into_iter().enumerate() {
            for (c, total) in totals.into_iter().enumerate() {
                total.store(sum(r, c));
            }
        }
    }
}

/// See [`Weights`](super::vector::Weights).
///
/// # Safety
/// See [`Weights`](super::vector::Weights).
#[inline(always)]
pub(super) unsafe fn weights<V: Vector>(scores: *mut f32, count: usize) -> (f32, f32) {
    // SAFETY: The machine has the instruction set. `count` is a multiple of `LANES`, which is a multiple of
    // each vector's length, so each load and store is within the scores.
    unsafe {
        let mut most = [V::splat(f32::NEG_INFINITY); 2];
        let mut at = 0;
        while at < count {
            // The score is the first operand, so a NaN score leaves the maximum as it is.
            most[0] = V::load(scores.wrapping_add(at)).max(most[0]);
            at += V::LANES;
            most.swap(0, 1);
        }
        let mut lanes = [f32::NEG_INFINITY; LANES];
        most[0].max(most[1]).store(lanes.as_mut_ptr());
        let most = lanes.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        // If every score is negative infinity, every weight must be 0 and not NaN.
        let shift = V::splat(if most == f32::NEG_INFINITY { 0.0 } else { most });
        let mut sum = V::splat(0.0);
        at = 0;
        while at < count {
            let weight = exp(V::load(scores.wrapping_add(at)).sub(shift));
            weight.store(scores.wrapping_add(at));
            sum = sum.add(weight);
            at += V::LANES;
        }
        lanes = [0.0; LANES];
        sum.store(lanes.as_mut_ptr());
        (most, lanes.iter().sum())
    }
}

/// See [`Scale`](super::vector::Scale).
///
/// # Safety
/// See [`Scale`](super::vector::Scale).
#[inline(always)]
pub(super) unsafe fn scale<V: Vector>(of: Scaled, numbers: *mut f32, factors: &[f32]) {
    // A weight is 0 or at least this number.
    let least = match of {
        Scaled::Scores => f32::NEG_INFINITY,
        Scaled::Weights => f32::MIN_POSITIVE,
    };
    // SAFETY: The machine has the instruction set. Each load and store is within `factors.len()` numbers.
    unsafe {
        let (zero, least_of_all) = (V::splat(-0.0), V::splat(least));
        let mut at = 0;
        while at + V::LANES <= factors.len() {
            let (number, factor) =
                (V::load(numbers.wrapping_add(at)), V::load(factors.as_ptr().wrapping_add(at)));
            number
                .mul_add(factor, zero)
                .zero_where_below(number, least_of_all)
                .store(numbers.wrapping_add(at));
            at += V::LANES;
        }
        for (at, factor) in factors.iter().enumerate().skip(at) {
            let number = numbers.wrapping_add(at);
            let product = number.read() * factor;
            number.write(if number.read() < least { 0.0 } else { product });
        }
    }
}

/// See [`Widen`](super::vector::Widen).
///
/// # Safety
/// See [`Widen`](super::vector::Widen).
#[inline(always)]
pub(super) unsafe fn widen<V: Load<T>, T>(from: *const T, count: usize, to: *mut f32) {
    let mut at = 0;
    // SAFETY: The machine has the instruction set. Each load is within `count` elements, and each store within `count`
    // numbers, rounded up.
    unsafe {
        while at + V::LANES <= count {
            V::load_wide(from.wrapping_add(at)).store(to.wrapping_add(at));
            at += V::LANES;
        }
        while at < count.next_multiple_of(LANES) {
            let rest = count.saturating_sub(at);
            V::load_first(from.wrapping_add(at), rest).store(to.wrapping_add(at));
            at += V::LANES;
        }
    }
}

/// Returns `exp(x)` for `x <= 0`, with a relative error of at most 2e-7, 0 for results below the smallest
/// normal number, and NaN for NaN.
///
/// # Safety
/// The machine has the instruction set.
#[inline(always)]
pub(super) unsafe fn exp<V: Vector>(x: V) -> V {
    /// The logarithm of 2, split so that the product of the first part and a small whole number is exact.
    const LN_2: [f32; 2] = [0.693_359_4, -2.121_944_4e-4];
    /// The logarithm of the smallest normal number.
    const MIN: f32 = -87.336_54;
    /// The Taylor coefficients of `exp`, highest first. The argument is at most `ln(2) / 2`, so the first
    /// term that is left out is below 1e-8.
    const COEFFICIENTS: [f32; 8] =
        [1.0 / 5040.0, 1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0];
    // SAFETY: The machine has the instruction set.
    unsafe {
        let min = V::splat(MIN);
        // The number is the second operand, so NaN stays NaN.
        let clamped = min.max(x);
        let n = clamped.mul_add(V::splat(core::f32::consts::LOG2_E), V::splat(0.0)).round();
        let rest = n.mul_add(V::splat(-LN_2[0]), clamped);
        let rest = n.mul_add(V::splat(-LN_2[1]), rest);
        let mut result = V::splat(COEFFICIENTS[0]);
        for coefficient in &COEFFICIENTS[1..] {
            result = result.mul_add(rest, V::splat(*coefficient));
        }
        result.times_power_of_two(n).zero_where_below(x, min)
    }
}
