//! The vectors that the kernels are written with, and what the kernels do.

/// The number of scores that are padded and processed together. No vector is wider.
pub(crate) const LANES: usize = 16;

/// A register of float32 numbers.
pub(crate) trait Vector: Copy {
    const LANES: usize;

    /// # Safety
    /// The machine must have the instruction set. This is a condition of every method of this trait and of
    /// [`Load`].
    unsafe fn splat(value: f32) -> Self;
    /// # Safety
    /// `at` must be valid for reads of `LANES` numbers.
    unsafe fn load(at: *const f32) -> Self;
    /// # Safety
    /// `at` must be valid for writes of `LANES` numbers.
    unsafe fn store(self, at: *mut f32);
    /// Returns `self * factor + addend`.
    ///
    /// # Safety
    /// See [`splat`](Self::splat).
    unsafe fn mul_add(self, factor: Self, addend: Self) -> Self;
    /// # Safety
    /// See [`splat`](Self::splat).
    unsafe fn add(self, other: Self) -> Self;
    /// # Safety
    /// See [`splat`](Self::splat).
    unsafe fn sub(self, other: Self) -> Self;
    /// Returns the larger number of each lane, or `other` if one of them is NaN.
    ///
    /// # Safety
    /// See [`splat`](Self::splat).
    unsafe fn max(self, other: Self) -> Self;
    /// Returns `2^n` for each lane. Every lane must be a whole number between -126 and 127. The result
    /// for NaN is any number.
    ///
    /// # Safety
    /// See [`splat`](Self::splat).
    unsafe fn power_of_two(self) -> Self;
    /// Rounds each lane to the nearest whole number.
    ///
    /// # Safety
    /// See [`splat`](Self::splat).
    unsafe fn round(self) -> Self;
    /// Returns `self`, with 0 in each lane where `value < limit`.
    ///
    /// # Safety
    /// See [`splat`](Self::splat).
    unsafe fn zero_where_below(self, value: Self, limit: Self) -> Self;
    /// Asks for the cache line at an address, which need not be valid.
    fn prefetch<T>(at: *const T);
    /// Returns the sums of the lanes of four vectors.
    ///
    /// # Safety
    /// See [`splat`](Self::splat).
    unsafe fn sums(vectors: [Self; 4]) -> [f32; 4];
}

/// Loads elements of a type as float32.
pub(crate) trait Load<T>: Vector {
    /// # Safety
    /// `at` must be valid for reads of `LANES` elements.
    unsafe fn load_wide(at: *const T) -> Self;
    /// Loads the first `count` elements, and 0 in the other lanes.
    ///
    /// # Safety
    /// `at` must be valid for reads of `count` elements. `count` must be at most `LANES`.
    unsafe fn load_part(at: *const T, count: usize) -> Self;
}

/// Consecutive slots of one head.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run<T> {
    /// The first element of the first slot.
    pub(crate) first: *const T,
    /// The distance between slots, in elements.
    pub(crate) stride: usize,
    /// The number of slots.
    pub(crate) count: usize,
    /// The distance of the slot to prefetch when a slot is read, in elements, or 0.
    pub(crate) ahead: usize,
}

/// Rows of float32 numbers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rows {
    /// The first number of the first row.
    pub(crate) first: *mut f32,
    /// The distance between rows, in numbers.
    pub(crate) stride: usize,
    /// The number of rows.
    pub(crate) count: usize,
}

/// Stores the dot products of each query with each key of a run: `scores[row][key]`. The arguments are the
/// queries, the keys, the head size and the scores.
///
/// # Safety
/// 1. The machine has the instruction set of the kernel.
/// 2. The run is valid for reads of `size` elements in each slot.
/// 3. Each query is valid for reads of `size` numbers, rounded up to a multiple of [`LANES`]. The numbers
///    after `size` are 0.
/// 4. The scores are valid for writes of one number for each query and key.
pub(crate) type Products<T> = unsafe fn(queries: Rows, keys: Run<T>, size: usize, scores: Rows);

/// Adds the weighted values of a run to the sums: `sums[row] += weights[row][key] * values[key]`, one key
/// after the other. The arguments are the weights, the values, the value size and the sums.
///
/// # Safety
/// 1. The machine has the instruction set of the kernel.
/// 2. The run is valid for reads of `size` elements in each slot.
/// 3. The weights are valid for reads of one number for each row and key.
/// 4. Each row of the sums is valid for reads and writes of `size` numbers, rounded up to a multiple of
///    [`LANES`].
pub(crate) type WeightedSums<T> = unsafe fn(weights: Rows, values: Run<T>, size: usize, sums: Rows);

/// Converts scores to weights: `exp(score - max)`. Returns the largest score, and the sum of the weights.
///
/// The largest score is negative infinity if no score is larger. NaN scores are not compared, and their
/// weight is NaN.
///
/// # Safety
/// 1. The machine has the instruction set of the kernel.
/// 2. The first argument is valid for reads and writes of `count` numbers, and `count` is a multiple of
///    [`LANES`].
pub(crate) type Weights = unsafe fn(scores: *mut f32, count: usize) -> (f32, f32);

/// The kernels of one instruction set for one element type.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub struct Kernels<T> {
    pub(crate) products: Products<T>,
    pub(crate) weighted_sums: WeightedSums<T>,
    pub(crate) weights: Weights,
}
