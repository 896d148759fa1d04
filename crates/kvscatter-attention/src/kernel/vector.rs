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
    /// Returns `self * 2^n` for each lane. Every lane of `n` must be a whole number between -126 and 127. The result
    /// for NaN is any number, or NaN if `self` is NaN.
    ///
    /// # Safety
    /// See [`splat`](Self::splat).
    unsafe fn times_power_of_two(self, n: Self) -> Self;
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
    /// Returns `self`, with the lane of `other` in each lane where `value < limit`.
    ///
    /// # Safety
    /// See [`splat`](Self::splat).
    unsafe fn replaced_below(self, value: Self, limit: Self, other: Self) -> Self;
    /// Brings the line of memory at any address into the first-level cache, if the machine can do so.
    #[inline(always)]
    fn prefetch(_at: *const u8) {}
    /// Returns the sums of the lanes of four vectors.
    ///
    /// # Safety
    /// See [`splat`](Self::splat).
    unsafe fn sums(vectors: [Self; 4]) -> [f32; 4];
    /// Returns the sums of the lanes of sixteen vectors, with the bits of [`sums`](Self::sums).
    ///
    /// # Safety
    /// See [`splat`](Self::splat).
    #[inline(always)]
    unsafe fn sums_of_16(vectors: [Self; 16]) -> [f32; 16] {
        let mut all = [0.0; 16];
        for (sums, vectors) in all.as_chunks_mut::<4>().0.iter_mut().zip(vectors.as_chunks::<4>().0) {
            // SAFETY: The contract is the same.
            *sums = unsafe { Self::sums(*vectors) };
        }
        all
    }
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
    unsafe fn load_first(at: *const T, count: usize) -> Self;
}

/// The largest number of streams that are read in turn.
pub(crate) const STREAMS: usize = 8;

/// A slot is requested from memory so many slots of its stream before its use, if there are several rows. The processor
/// computes too long with them to request the next slots itself.
pub(crate) const AHEAD: usize = 6;

/// The number of slots of each stream whose weighted values are added one after the other.
pub(crate) const GROUP: usize = 16;

/// Keys or values of one head that are read in this order: the first slot of each stream, then the second slot
/// of each stream, and so on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Streams<T> {
    pub(crate) all: [Stream<T>; STREAMS],
    /// The number of streams that are read.
    pub(crate) used: usize,
    /// The number of slots of each stream.
    pub(crate) count: usize,
    /// The number of slots of each stream that were read before, by other calls.
    pub(crate) before: usize,
    /// The number of slots of each stream that may be requested from memory, counted from the first one.
    pub(crate) reach: usize,
}

/// Slots of one head that are equally far apart, or that a list places.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stream<T> {
    /// The first element of the first slot, or the element that the offsets of a list count from.
    pub(crate) first: *const T,
    /// The distance between slots, in elements. It is 0 with a list.
    pub(crate) stride: usize,
    /// The offset of the slot of each index, in elements, or null if slots are equally far apart.
    pub(crate) offsets: *const usize,
    /// The index of the first slot in a row of scores.
    pub(crate) index: usize,
    /// The distance between the indices of slots.
    pub(crate) step: usize,
}

impl<T: Copy> Streams<T> {
    /// Returns the same slots of a later head, whose elements are this far away.
    pub(crate) fn of_head(mut self, distance: usize) -> Self {
        self.all.iter_mut().for_each(|stream| stream.first = stream.first.wrapping_add(distance));
        self
    }

    /// Returns the steps from `first` on that read the same streams as `first`. A step reads a stream if `is_read`
    /// returns `true` for the index of the stream's slot in this step.
    ///
    /// The result has no slot that `self` does not have, so the proof that the slots can be read (A2) covers it.
    pub(crate) fn steps_from(&self, first: usize, is_read: impl Fn(usize) -> bool) -> Self {
        let reads = |step| -> [bool; STREAMS] {
            let is_read = |stream: &Stream<T>| is_read(stream.after(step).index);
            core::array::from_fn(|at| self.used().get(at).is_some_and(is_read))
        };
        let streams = reads(first);
        let count = (first..self.count).take_while(|step| reads(*step) == streams).count();
        let (before, reach) = (self.before + first, self.reach.saturating_sub(first));
        let mut steps = Self { used: 0, count, before, reach, ..*self };
        for (stream, _) in self.used().iter().zip(streams).filter(|(_, is_read)| *is_read) {
            steps.all[steps.used] = stream.after(first);
            steps.used += 1;
        }
        steps
    }

    /// Returns which slot of each stream is requested when the slot `at` is read.
    #[inline(always)]
    pub(crate) fn soon(&self, at: usize) -> Option<usize> {
        Some(at + AHEAD).filter(|soon| *soon < self.reach)
    }

    /// Returns whether a list places the slots.
    #[inline(always)]
    pub(crate) fn is_listed(&self) -> bool {
        !self.all[0].offsets.is_null()
    }

    #[inline(always)]
    pub(crate) fn used(&self) -> &[Stream<T>] {
        &self.all[..self.used.min(STREAMS)]
    }
}

impl<T> Stream<T> {
    /// Returns the stream from a later slot on.
    #[inline(always)]
    pub(crate) fn after(&self, slots: usize) -> Self {
        let Self { first, index, stride, step, .. } = *self;
        Self { first: first.wrapping_add(slots * stride), index: index + slots * step, ..*self }
    }

    /// Returns the first element of a later slot.
    ///
    /// # Safety
    /// If `LISTED`, the list has an offset for the index of the slot.
    #[inline(always)]
    pub(crate) unsafe fn slot<const LISTED: bool>(&self, at: usize) -> *const T {
        if LISTED {
            // SAFETY: The list has this offset.
            self.first.wrapping_add(unsafe { self.offsets.wrapping_add(self.index + at * self.step).read() })
        } else {
            self.first.wrapping_add(at * self.stride)
        }
    }
}

/// Rows of float32 numbers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rows {
    /// The first number of the first row.
    pub(crate) first: *mut f32,
    /// The distance between rows, in numbers.
    pub(crate) stride: usize,
    pub(crate) count: usize,
}

impl Rows {
    /// Returns the rows from a later one on.
    #[inline(always)]
    pub(crate) fn after(&self, rows: usize) -> Self {
        let Self { first, stride, count } = *self;
        Self { first: first.wrapping_add(rows * stride), stride, count: count - rows }
    }
}

/// Stores the dot products of each query with each key: `scores[row][index of the key]`. The arguments are the
/// queries, the keys, the head size and the scores.
///
/// # Safety
/// 1. The machine has the instruction set of the kernel.
/// 2. Each slot of a stream that is used is valid for reads of `size` elements. A list has an offset for each index of
///    a stream up to `reach`.
/// 3. Each query is valid for reads of `size` numbers, rounded up to a multiple of [`LANES`]. The numbers
///    after `size` are 0.
/// 4. Each row of scores is valid for writes of a number at the index of each key.
pub(crate) type Products<T> = unsafe fn(queries: Rows, keys: Streams<T>, size: usize, scores: Rows);

/// Adds weighted values to the sums: `sums[row] += weights[row][index of the slot] * value`.
///
/// The values of [`GROUP`] slots of each stream are added one after the other, in the order of [`Streams`], and
/// then their sum to the sums. So the rounding error grows with the size of a group. `group` contains the sum of
/// an unfinished group. The arguments are the weights, the values, the value size, the group and the sums.
///
/// # Safety
/// 1. The machine has the instruction set of the kernel.
/// 2. Each slot of a stream that is used is valid for reads of `size` elements. A list has an offset for each index of
///    a stream up to `reach`.
/// 3. Each row of weights is valid for reads of a number at the index of each slot.
/// 4. Each row of the group and of the sums is valid for reads and writes of `size` numbers, rounded up to a
///    multiple of [`LANES`].
pub(crate) type WeightedSums<T> =
    unsafe fn(weights: Rows, values: Streams<T>, size: usize, group: Rows, sums: Rows);

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

/// What is multiplied with the scales of slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scaled {
    /// Scores with the scales of keys.
    Scores,
    /// Weights with the scales of values. A weight of 0 stays 0, even if the scale is NaN. So a row
    /// ignores the scales of slots that it does not see.
    Weights,
}

/// Multiplies numbers with the scales of their slots.
///
/// # Safety
/// 1. The machine has the instruction set of the kernel.
/// 2. The second argument is valid for reads and writes of a number for each factor.
pub(crate) type Scale = unsafe fn(of: Scaled, numbers: *mut f32, factors: &[f32]);

/// Converts the elements of a slot to float32. The arguments are the first element, their number, and the address of
/// the first number.
///
/// # Safety
/// 1. The machine has the instruction set of the kernel.
/// 2. The first argument is valid for reads of `count` elements.
/// 3. The last argument is valid for writes of `count` numbers, rounded up to a multiple of [`LANES`]. Those after
///    `count` become 0.
pub(crate) type Widen<T> = unsafe fn(from: *const T, count: usize, to: *mut f32);

/// The kernels of one instruction set for one element type.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub struct Kernels<T> {
    pub(crate) products: Products<T>,
    pub(crate) weighted_sums: WeightedSums<T>,
    pub(crate) weights: Weights,
    pub(crate) scale: Scale,
    pub(crate) widen: Widen<T>,
}
