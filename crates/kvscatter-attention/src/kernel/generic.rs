//! Each kernel once, for the vectors of any instruction set.
//!
//! The functions are inlined into functions that enable the instruction set. Their contracts are those of the
//! function types in `kernel`.

#![expect(
    clippy::multiple_unsafe_ops_per_block,
    reason = "each step is one expression over a few vectors, whose contracts are the same: the instruction \
              set is there, and the addresses are those that the function's contract covers"
)]

use super::vector::{LANES, Load, Rows, Run, Vector};

/// The number of slots whose values are summed before the next columns of the same slots. They stay in the
/// first-level cache.
const SLOTS: usize = 32;

/// The number of bytes of a cache line.
const LINE: usize = 64;

/// See [`Products`](super::vector::Products). `KEYS` is the number of keys that one row multiplies at a time.
///
/// # Safety
/// See [`Products`](super::vector::Products).
#[inline(always)]
pub(super) unsafe fn products<V: Load<T>, T: Copy, const W: usize, const K1: usize, const B: usize>(
    queries: Rows,
    keys: Run<T>,
    size: usize,
    scores: Rows,
) {
    let mut row = 0;
    while row < queries.count {
        let left = queries.count - row;
        let at = |key: usize| {
            let queries = queries.first.wrapping_add(row * queries.stride);
            let scores = scores.first.wrapping_add(row * scores.stride + key);
            (queries, keys.first.wrapping_add(key * keys.stride), scores)
        };
        let strides = (queries.stride, keys.stride, scores.stride, keys.ahead);
        // SAFETY: `tile` reads and writes rows `row..row + R` and keys `key..key + K`, which exist.
        let rows = unsafe {
            match left {
                4.. => tiles::<V, T, 4, W, 4>(at, strides, keys.count, size),
                2.. => tiles::<V, T, 2, 4, 4>(at, strides, keys.count, size),
                _ => tiles::<V, T, 1, K1, B>(at, strides, keys.count, size),
            }
        };
        row += rows;
    }
}

/// Multiplies `R` rows with all keys, `K` at a time, and returns `R`.
///
/// # Safety
/// `at(key)` returns addresses for which the contract of [`products`] is met, for rows 0 to `R`.
#[inline(always)]
unsafe fn tiles<V: Load<T>, T: Copy, const R: usize, const K: usize, const B: usize>(
    at: impl Fn(usize) -> (*mut f32, *const T, *mut f32),
    strides: (usize, usize, usize, usize),
    count: usize,
    size: usize,
) -> usize {
    let mut key = 0;
    while key + K <= count {
        // SAFETY: The keys `key..key + K` exist. The rest is the contract of this function.
        unsafe { tile::<V, T, R, K, B>(at(key), strides, size) };
        key += K;
    }
    while key < count {
        // SAFETY: The key exists. The rest is the contract of this function.
        unsafe { tile::<V, T, R, 1, B>(at(key), strides, size) };
        key += 1;
    }
    R
}

/// Stores the products of `R` rows and `K` keys.
///
/// # Safety
/// The contract of [`products`] is met for these rows and keys.
#[inline(always)]
unsafe fn tile<V: Load<T>, T: Copy, const R: usize, const K: usize, const B: usize>(
    (queries, keys, scores): (*mut f32, *const T, *mut f32),
    (query_stride, key_stride, score_stride, ahead): (usize, usize, usize, usize),
    size: usize,
) {
    // SAFETY: The machine has the instruction set. Each load is within `size` elements of a key, or within
    // the padded size of a query. Each store is to the score of a row and a key.
    unsafe {
        for k in 0..K {
            prefetch::<V, T>(keys.wrapping_add(k * key_stride), ahead, size);
        }
        let mut sums = [[V::splat(0.0); K]; R];
        let mut column = 0;
        if R == 1 {
            // One query is bound by memory. It stays in registers while the keys are read in the order of their
            // addresses, which the processor prefetches best.
            while column + B * V::LANES <= size {
                let query: [V; B] =
                    core::array::from_fn(|b| V::load(queries.wrapping_add(column + b * V::LANES)));
                for (k, sum) in sums[0].iter_mut().enumerate() {
                    let mut second = V::splat(0.0);
                    for (b, query) in query.into_iter().enumerate() {
                        let key = V::load_wide(keys.wrapping_add(k * key_stride + column + b * V::LANES));
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
            let key: [V; K] = core::array::from_fn(|k| {
                let at = keys.wrapping_add(k * key_stride + column);
                V::load_wide(at)
            });
            for (r, sums) in sums.iter_mut().enumerate() {
                let query = V::load(queries.wrapping_add(r * query_stride + column));
                for (sum, key) in sums.iter_mut().zip(key) {
                    *sum = query.mul_add(key, *sum);
                }
            }
            column += V::LANES;
        }
        if column < size {
            for k in 0..K {
                let key = V::load_part(keys.wrapping_add(k * key_stride + column), size - column);
                for (r, sums) in sums.iter_mut().enumerate() {
                    let query = V::load(queries.wrapping_add(r * query_stride + column));
                    sums[k] = query.mul_add(key, sums[k]);
                }
            }
        }
        for (r, sums) in sums.iter().enumerate() {
            let scores = scores.wrapping_add(r * score_stride);
            let mut k = 0;
            while k < K {
                let vectors = core::array::from_fn(|i| if k + i < K { sums[k + i] } else { V::splat(0.0) });
                for (i, sum) in V::sums(vectors).into_iter().enumerate().take(K - k) {
                    scores.wrapping_add(k + i).write(sum);
                }
                k += 4;
            }
        }
    }
}

/// Asks for the slot that is `ahead` elements after this one, unless `ahead` is 0.
#[inline(always)]
fn prefetch<V: Vector, T>(slot: *const T, ahead: usize, size: usize) {
    if ahead != 0 {
        let ahead = slot.wrapping_add(ahead).cast::<u8>();
        (0..size * size_of::<T>()).step_by(LINE).for_each(|line| V::prefetch(ahead.wrapping_add(line)));
    }
}

/// See [`WeightedSums`](super::vector::WeightedSums).
///
/// # Safety
/// See [`WeightedSums`](super::vector::WeightedSums).
#[inline(always)]
pub(super) unsafe fn weighted_sums<V: Load<T>, T: Copy, const W: usize, const S: usize>(
    weights: Rows,
    values: Run<T>,
    size: usize,
    sums: Rows,
) {
    let mut slot = 0;
    while slot < values.count {
        let count = if weights.count == 1 { S } else { SLOTS }.min(values.count - slot);
        let values = Run { first: values.first.wrapping_add(slot * values.stride), count, ..values };
        let mut row = 0;
        while row < weights.count {
            let left = weights.count - row;
            let weights = Rows { first: weights.first.wrapping_add(row * weights.stride + slot), ..weights };
            let sums = Rows { first: sums.first.wrapping_add(row * sums.stride), ..sums };
            // SAFETY: The rows `row..row + R` and the slots `slot..slot + count` exist. The rest is the
            // contract of this function.
            row += unsafe {
                match left {
                    4.. => columns::<V, T, 4, W>(weights, values, size, sums),
                    2.. => columns::<V, T, 2, 4>(weights, values, size, sums),
                    _ => columns::<V, T, 1, 8>(weights, values, size, sums),
                }
            };
        }
        slot += count;
    }
}

/// Adds to all columns of `R` rows, `C` vectors at a time, and returns `R`.
///
/// # Safety
/// The contract of [`weighted_sums`] is met for rows 0 to `R`.
#[inline(always)]
unsafe fn columns<V: Load<T>, T: Copy, const R: usize, const C: usize>(
    weights: Rows,
    values: Run<T>,
    size: usize,
    sums: Rows,
) -> usize {
    // SAFETY: The machine has the instruction set. Each load of a value is within `size` elements of a slot.
    // Each load and store of a sum is within the padded size of a row.
    unsafe {
        let mut column = 0;
        while column + C * V::LANES <= size {
            column_tile::<V, T, R, C>(weights, values, sums, column, size);
            column += C * V::LANES;
        }
        while column + V::LANES <= size {
            column_tile::<V, T, R, 1>(weights, values, sums, column, size);
            column += V::LANES;
        }
        if column < size {
            for row in 0..R {
                let sum = sums.first.wrapping_add(row * sums.stride + column);
                let mut total = V::load(sum);
                for slot in 0..values.count {
                    let value = values.first.wrapping_add(slot * values.stride + column);
                    let weight = weights.first.wrapping_add(row * weights.stride + slot).read();
                    total = V::load_part(value, size - column).mul_add(V::splat(weight), total);
                }
                total.store(sum);
            }
        }
    }
    R
}

/// Adds to `C` vectors of columns of `R` rows.
///
/// # Safety
/// The contract of [`weighted_sums`] is met, and the columns exist.
#[inline(always)]
unsafe fn column_tile<V: Load<T>, T: Copy, const R: usize, const C: usize>(
    weights: Rows,
    values: Run<T>,
    sums: Rows,
    column: usize,
    size: usize,
) {
    let sum = |r: usize, c: usize| sums.first.wrapping_add(r * sums.stride + column + c * V::LANES);
    // SAFETY: See `columns`.
    unsafe {
        let mut totals: [[V; C]; R] = core::array::from_fn(|r| core::array::from_fn(|c| V::load(sum(r, c))));
        for slot in 0..values.count {
            let value = values.first.wrapping_add(slot * values.stride + column);
            if column == 0 {
                prefetch::<V, T>(value, values.ahead, size);
            }
            let value: [V; C] = core::array::from_fn(|c| V::load_wide(value.wrapping_add(c * V::LANES)));
            for (r, totals) in totals.iter_mut().enumerate() {
                let weight = V::splat(weights.first.wrapping_add(r * weights.stride + slot).read());
                for (total, value) in totals.iter_mut().zip(value) {
                    *total = value.mul_add(weight, *total);
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

/// Returns `exp(x)` for `x <= 0`, with a relative error of at most 2e-7, 0 for results below the smallest
/// normal number, and NaN for NaN.
///
/// # Safety
/// The machine has the instruction set.
#[inline(always)]
unsafe fn exp<V: Vector>(x: V) -> V {
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
        result.mul_add(n.power_of_two(), V::splat(0.0)).zero_where_below(x, min)
    }
}
