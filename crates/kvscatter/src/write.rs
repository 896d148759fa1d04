//! A plan: the moves of one call and the kernels that execute them. A plan writes typed slices, raw bytes and
//! clonable values.
//!
//! The crate documentation defines P1, P2, X1 and X2.

#[expect(
    unsafe_code,
    reason = "writes through pointers that the caller of an unsafe function guarantees to be valid"
)]
mod raw;

use alloc::{boxed::Box, vec::Vec};
use core::fmt;
use core::mem::MaybeUninit;

use bytemuck::NoUninit;

pub use self::raw::RawBuffer;
pub(crate) use self::raw::{check_pairs, check_present};
use crate::cpu::{CpuKernels, Executor, Threads};
use crate::error::{Error, LengthUnit};
use crate::geometry::{Block, Geometry, Offsets, SampleRows, Source};
use crate::plan::{Moves, Segment};
use crate::size;

/// A write whose positions have been checked. It combines a [`Prepared`](crate::Prepared) with the indices of
/// one call.
///
/// A plan allocates nothing. It borrows the indices that it was made from, so they cannot change while it
/// exists. Create it once per step and use it for the key cache, the value cache and every layer that shares
/// the positions.
///
/// A plan has two properties:
///
/// * **P1** Every destination bit of every block lies inside the cache, and every source bit inside the
///   update.
/// * **P2** The blocks of one plan are disjoint in the destination, so they may run in any order.
#[derive(Clone, Copy)]
pub struct WritePlan<'a> {
    // `Prepared::plan` makes every plan, so both have the same geometry.
    moves: Moves<'a>,
    cpu: &'a CpuKernels,
    threads: Threads<'a>,
}

/// The result of a write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[must_use = "it contains the number of samples or tokens that were skipped"]
#[non_exhaustive]
pub struct Written {
    /// The number of samples that [`OutOfRange::SkipSample`](crate::OutOfRange::SkipSample) left unchanged, or of
    /// tokens with a negative slot of a paged cache.
    pub skipped: usize,
}

/// Pairs of a cache and its update, borrowed one at a time.
///
/// Slices, arrays and vectors of `(&mut cache, &update)` implement this trait. The pairs may also own their
/// memory ([`CacheMemory`]). Implement the trait for your own type to avoid building a slice of borrows.
///
/// `count` and the lengths of every pair must not change during a call. A set that changes them can violate
/// X1, because some pairs may have been written when the error is returned. It cannot violate memory safety.
pub trait BufferPairs<T> {
    /// Returns the number of pairs.
    fn count(&self) -> usize;
    /// Returns the cache and the update of one pair. `index` is less than `count()`.
    fn pair(&mut self, index: usize) -> (&mut [T], &[T]);
}

/// The cache of a pair: a borrowed slice, or a vector or box that the pair owns.
///
/// An array does not implement this trait. The pair would contain a copy of the array, and the write would
/// change the copy.
pub trait CacheMemory<T>: AsMut<[T]> {}

impl<T, C: AsMut<[T]> + ?Sized> CacheMemory<T> for &mut C {}
impl<T> CacheMemory<T> for Vec<T> {}
impl<T> CacheMemory<T> for Box<[T]> {}

impl<T, C: CacheMemory<T>, U: AsRef<[T]>> BufferPairs<T> for [(C, U)] {
    fn count(&self) -> usize {
        self.len()
    }

    fn pair(&mut self, index: usize) -> (&mut [T], &[T]) {
        self.get_mut(index).map_or((&mut [], &[]), |pair| (pair.0.as_mut(), pair.1.as_ref()))
    }
}

impl<T, C: CacheMemory<T>, U: AsRef<[T]>, const N: usize> BufferPairs<T> for [(C, U); N] {
    fn count(&self) -> usize {
        N
    }

    fn pair(&mut self, index: usize) -> (&mut [T], &[T]) {
        self.as_mut_slice().pair(index)
    }
}

impl<T, C: CacheMemory<T>, U: AsRef<[T]>> BufferPairs<T> for Vec<(C, U)> {
    fn count(&self) -> usize {
        self.len()
    }

    fn pair(&mut self, index: usize) -> (&mut [T], &[T]) {
        self.as_mut_slice().pair(index)
    }
}

impl<'a> WritePlan<'a> {
    #[inline(always)]
    pub(crate) fn new(moves: Moves<'a>, cpu: &'a CpuKernels) -> Self {
        Self { moves, cpu, threads: Threads(None) }
    }

    /// Returns the same plan, but allows large writes to use the threads of `executor`.
    ///
    /// The `*_cloned` methods always run on the calling thread. If rows of 4-bit elements begin or end in the
    /// middle of a byte, each thread writes whole samples of a dense cache. Any other cache of such rows is
    /// written on the calling thread.
    #[must_use]
    pub fn with_executor<'b>(self, executor: &'b dyn Executor) -> WritePlan<'b>
    where
        'a: 'b,
    {
        WritePlan { threads: Threads(Some(executor)), ..self }
    }

    /// Returns the checked shapes of this plan.
    #[must_use]
    pub fn geometry(&self) -> &'a Geometry {
        self.moves.geometry()
    }

    /// Returns the number of samples in the update. For a paged cache, each token is a sample.
    #[must_use]
    pub fn batch(&self) -> usize {
        self.moves.batch()
    }

    /// Returns the layer that is written, or 0 if the operator has no layers.
    #[must_use]
    pub fn layer(&self) -> usize {
        self.moves.layer()
    }

    /// Returns how many samples [`OutOfRange::SkipSample`](crate::OutOfRange::SkipSample) leaves unchanged, or how
    /// many tokens have a negative slot of a paged cache.
    #[must_use]
    pub fn skipped(&self) -> usize {
        self.moves.skipped()
    }

    /// Returns the position of a sample as the caller passed it: `write_indices[sample]`, Ascend's `tokenOffset`,
    /// or the slot of a token of a paged cache.
    #[must_use]
    pub fn position(&self, sample: usize) -> Option<i64> {
        self.moves.position(sample)
    }

    /// Returns `true` if [`OutOfRange::SkipSample`](crate::OutOfRange::SkipSample) leaves this sample
    /// unchanged, or if this token has a negative slot of a paged cache.
    #[must_use]
    pub fn skips(&self, sample: usize) -> bool {
        self.moves.skips(sample)
    }

    /// Returns the samples that [`skips`](Self::skips) names, in ascending order.
    pub fn skipped_samples(&self) -> impl Iterator<Item = usize> + use<'a> {
        let moves = self.moves;
        // A batch of which no sample is skipped may be too large to be searched.
        (0..moves.batch()).filter(move |sample| moves.skips(*sample)).take(moves.skipped())
    }

    /// Returns the number of elements that the write moves. A write in place reads and writes only these
    /// elements.
    #[must_use]
    pub fn elements(&self) -> usize {
        self.moves.elements()
    }

    /// Returns the number of bytes that the write moves, or `None` for strings. If 4-bit elements end on half
    /// a byte, the number is rounded up.
    #[must_use]
    pub fn bytes(&self) -> Option<usize> {
        size::bytes(self.elements(), self.geometry().element().bits()?)
    }

    /// Visits every [`Block`]. Backends execute a plan through this method.
    #[inline]
    pub fn for_each_block(&self, mut visit: impl FnMut(&Block)) {
        let (geometry, first) = (self.geometry(), self.offsets());
        self.moves.for_each_row_range(|rows| geometry.write_mapping().for_each(first, rows, &mut visit));
    }

    /// Returns the blocks one by one, for pictures and tests. [`for_each_block`](Self::for_each_block) is
    /// faster.
    pub fn blocks(&self) -> impl Iterator<Item = Block> + use<'a> {
        let (geometry, first) = (self.geometry(), self.offsets());
        self.moves.row_ranges().flat_map(move |rows| geometry.write_mapping().blocks(first, rows))
    }

    /// Returns the number of [`blocks`](Self::blocks). The time grows with the lists of the call, and not with
    /// the batch.
    #[must_use]
    pub fn block_count(&self) -> usize {
        let blocks = |rows| self.geometry().write_mapping().block_count(rows);
        let mut ranges = self.moves.row_ranges();
        if self.moves.lists().next().is_none() {
            // Every sample has one range, because it is written from slot 0. G1: a block moves at least one element of
            // the update, so the product does not wrap.
            return ranges.next().map_or(0, blocks).wrapping_mul(self.batch());
        }
        ranges.map(blocks).sum()
    }

    /// Returns the slots that are written, in the order of the update's rows.
    pub fn segments(&self) -> impl Iterator<Item = Segment> + use<'a> {
        self.moves.segments()
    }

    /// Visits the blocks of the functional form.
    pub(crate) fn for_each_present(&self, mut visit: impl FnMut(Source, &Block)) {
        let geometry = self.geometry();
        self.moves.for_each_sample(|SampleRows { layer, pieces, .. }| {
            for (source, rows) in pieces {
                let first = geometry.present_offsets(layer, source);
                geometry.present_mapping(source).for_each(first, rows, |block| visit(source, block));
            }
        });
    }

    /// Returns the offsets of sample 0 of the written layer in the cache and in the update.
    fn offsets(&self) -> Offsets {
        self.geometry().write_offsets(self.layer())
    }
}

/// Writes in place and in the functional form. If a method returns an error, nothing has been written (X1).
/// Bytes outside the plan never change (X2).
///
/// `T` is any type without padding that is as wide as the element type, such as `f32`, `u16` or `bool`.
/// `half::f16` and `half::bf16` also work if the crate `half` has its feature `bytemuck`.
///
/// The `*_bytes` methods take raw little-endian bytes, with 4-bit elements packed two to a byte. The
/// `*_cloned` methods take whole values, such as strings.
///
/// The lengths of the buffers are those of the prepared shapes. For a dense tensor the length is exact. For a
/// strided tensor it is the minimum.
impl WritePlan<'_> {
    /// Checks everything that [`write`](Self::write) checks, and writes nothing.
    ///
    /// A write of the same buffers then returns no error. [`write_all`] checks several plans in this way.
    ///
    /// # Errors
    /// Returns the errors of [`write`](Self::write).
    pub fn check<T: NoUninit>(&self, cache: &[T], update: &[T]) -> Result<(), Error> {
        self.cpu.check::<T>(&self.moves, 0, [cache.len(), update.len()])
    }

    /// Checks everything that [`write_bytes`](Self::write_bytes) checks, and writes nothing. See
    /// [`check`](Self::check).
    ///
    /// # Errors
    /// Returns the errors of [`write_bytes`](Self::write_bytes).
    pub fn check_bytes(&self, cache: &[u8], update: &[u8]) -> Result<(), Error> {
        self.cpu.check_bytes(&self.moves, 0, [cache.len(), update.len()])
    }

    /// Writes the update into the cache.
    ///
    /// # Errors
    /// * Returns [`Error::ElementWidth`] if `T` is not as wide as an element.
    /// * Returns [`Error::BufferLength`] if a buffer has the wrong length.
    #[inline]
    pub fn write<T: NoUninit>(&self, cache: &mut [T], update: &[T]) -> Result<Written, Error> {
        self.cpu.write(&self.moves, self.threads, 0, cache, update)?;
        Ok(self.written())
    }

    /// Writes raw bytes of the update into the cache. See [`write`](Self::write) for typed slices.
    ///
    /// # Errors
    /// * Returns [`Error::BufferLength`] if a buffer has the wrong length.
    /// * Returns [`Error::ElementWidth`] if the elements are strings.
    pub fn write_bytes(&self, cache: &mut [u8], update: &[u8]) -> Result<Written, Error> {
        self.cpu.write_bytes(&self.moves, self.threads, cache, update)?;
        Ok(self.written())
    }

    /// Clones values, such as strings, from the update into the cache.
    ///
    /// The lengths are counted in elements, and the width of `T` is not checked.
    ///
    /// If a `Clone` panics, the rows before it have been written.
    ///
    /// # Errors
    /// Returns [`Error::BufferLength`] if a buffer has the wrong length.
    pub fn write_cloned<T: Clone>(&self, cache: &mut [T], update: &[T]) -> Result<Written, Error> {
        self.geometry().check_buffers(0, [cache.len(), update.len()], LengthUnit::Elements)?;
        self.for_each_block(|block| clone_block(block, cache, update));
        Ok(self.written())
    }

    /// Writes every pair, such as keys and values, or all layers that share the positions.
    ///
    /// This method checks every length before the first byte moves. The pairs must not change between that
    /// check and the write (see [`BufferPairs`]).
    ///
    /// The pairs have the shapes and the element type of the plan. [`write_all`] writes other caches with them.
    ///
    /// Strings and 4-bit elements have separate methods. Write each pair of them with
    /// [`write_bytes`](Self::write_bytes) or [`write_cloned`](Self::write_cloned).
    ///
    /// A cache cannot be in the set twice:
    ///
    /// ```compile_fail,E0499
    /// # let write = kvscatter::spec::onnx::TensorScatter::new();
    /// # let write = write.prepare(kvscatter::ElementType::UInt8, &[1, 4, 1], &[1, 1, 1]).unwrap();
    /// # let plan = write.plan(&[0_i64]).unwrap();
    /// let mut cache = [0_u8; 4];
    /// plan.write_many(&mut [(&mut cache, &[1]), (&mut cache, &[2])]).unwrap();
    /// ```
    ///
    /// A pair borrows its cache. An array passed by value would be copied, and the write would change only
    /// the copy:
    ///
    /// ```compile_fail,E0277
    /// # let write = kvscatter::spec::onnx::TensorScatter::new();
    /// # let write = write.prepare(kvscatter::ElementType::UInt8, &[1, 4, 1], &[1, 1, 1]).unwrap();
    /// # let plan = write.plan(&[0_i64]).unwrap();
    /// let (cache, update) = ([0_u8; 4], [1]);
    /// plan.write_many(&mut [(cache, update)]).unwrap();
    /// ```
    ///
    /// # Errors
    /// Returns the errors of [`write`](Self::write). [`Error::BufferLength`] names the pair.
    pub fn write_many<T: NoUninit>(
        &self,
        pairs: &mut (impl BufferPairs<T> + ?Sized),
    ) -> Result<Written, Error> {
        for index in 0..pairs.count() {
            let (cache, update) = pairs.pair(index);
            self.cpu.check::<T>(&self.moves, index, [cache.len(), update.len()])?;
        }
        for index in 0..pairs.count() {
            let (cache, update) = pairs.pair(index);
            self.cpu.write(&self.moves, self.threads, index, cache, update)?;
        }
        Ok(self.written())
    }

    /// Writes the functional form. `present` becomes a copy of the past that contains the update, in one pass
    /// over memory.
    ///
    /// The arguments are in ONNX's order, with the inputs before the output. `present` is dense, even if the
    /// past is strided.
    ///
    /// # Errors
    /// Returns the errors of [`write`](Self::write).
    pub fn write_present<T: NoUninit>(
        &self,
        past: &[T],
        update: &[T],
        present: &mut [T],
    ) -> Result<Written, Error> {
        self.cpu.write_present(&self.moves, self.threads, past, update, present)?;
        Ok(self.written())
    }

    /// Writes the functional form into memory that need not be initialised. Returns the same memory,
    /// initialised.
    ///
    /// See [`write_present`](Self::write_present).
    ///
    /// # Errors
    /// Returns the errors of [`write`](Self::write).
    pub fn write_present_uninit<'p, T: NoUninit>(
        &self,
        past: &[T],
        update: &[T],
        present: &'p mut [MaybeUninit<T>],
    ) -> Result<(&'p mut [T], Written), Error> {
        let present = self.cpu.write_present_uninit(&self.moves, self.threads, past, update, present)?;
        Ok((present, self.written()))
    }

    /// Writes the functional form over raw bytes. See [`write_present`](Self::write_present).
    ///
    /// If the number of 4-bit elements is odd, the pad nibble of `present` is zero, as ONNX stores it.
    ///
    /// # Errors
    /// Returns the errors of [`write_bytes`](Self::write_bytes).
    pub fn write_present_bytes(
        &self,
        past: &[u8],
        update: &[u8],
        present: &mut [u8],
    ) -> Result<Written, Error> {
        self.cpu.write_present_bytes(&self.moves, self.threads, past, update, present)?;
        Ok(self.written())
    }

    /// Writes the functional form by cloning values, such as strings. See
    /// [`write_present`](Self::write_present).
    ///
    /// # Errors
    /// Returns the errors of [`write_cloned`](Self::write_cloned).
    pub fn write_present_cloned<T: Clone>(
        &self,
        past: &[T],
        update: &[T],
        present: &mut [T],
    ) -> Result<Written, Error> {
        self.geometry().check_buffers(0, [past.len(), update.len()], LengthUnit::Elements)?;
        self.geometry().check_present(present.len(), LengthUnit::Elements)?;
        self.for_each_present(|source, block| {
            let source = match source {
                Source::Past => past,
                Source::Update => update,
            };
            clone_block(block, present, source);
        });
        Ok(self.written())
    }

    pub(crate) fn written(&self) -> Written {
        Written { skipped: self.skipped() }
    }
}

/// One write of [`write_all`].
#[derive(Debug)]
pub struct PlannedWrite<'a> {
    /// Where the update goes.
    pub plan: WritePlan<'a>,
    /// The bytes of the cache, with 4-bit elements packed two to a byte.
    pub cache: &'a mut [u8],
    /// The bytes of the update.
    pub update: &'a [u8],
}

/// Writes caches of different element types and rows, such as the codes and the scales of a quantised cache, either all
/// of them or none.
///
/// ```
/// use bytemuck::{bytes_of, cast_slice_mut};
/// use kvscatter::{ElementType, PlannedWrite, spec::onnx::TensorScatter, write_all};
///
/// let codes = TensorScatter::new().prepare(ElementType::Int8, &[1, 4, 64], &[1, 1, 64])?;
/// let scales = TensorScatter::new().prepare(ElementType::Float32, &[1, 4, 1], &[1, 1, 1])?;
/// let (mut code_cache, mut scale_cache) = ([0_i8; 256], [0.0_f32; 4]);
/// write_all(&mut [
///     PlannedWrite {
///         plan: codes.plan(&[3])?,
///         cache: cast_slice_mut(&mut code_cache),
///         update: bytes_of(&[1_i8; 64]),
///     },
///     PlannedWrite {
///         plan: scales.plan(&[3])?,
///         cache: cast_slice_mut(&mut scale_cache),
///         update: bytes_of(&0.5_f32),
///     },
/// ])?;
/// assert_eq!((code_cache[191..193].to_vec(), scale_cache), (vec![0, 1], [0.0, 0.0, 0.0, 0.5]));
/// # Ok::<(), kvscatter::Error>(())
/// ```
///
/// # Errors
/// Returns the errors of [`WritePlan::write_bytes`]. [`Error::BufferLength`] has the index of the write as its pair.
pub fn write_all(writes: &mut [PlannedWrite<'_>]) -> Result<(), Error> {
    for (index, PlannedWrite { plan, cache, update }) in writes.iter().enumerate() {
        plan.cpu.check_bytes(&plan.moves, index, [cache.len(), update.len()])?;
    }
    for PlannedWrite { plan, cache, update } in writes {
        plan.cpu.write_bytes(&plan.moves, plan.threads, cache, update)?;
    }
    Ok(())
}

#[expect(
    clippy::indexing_slicing,
    reason = "P1 bounds every run, and a broken proof must stop the program instead of skipping a write"
)]
fn clone_block<T: Clone>(block: &Block, dst: &mut [T], src: &[T]) {
    block.for_each_run(|to, from| {
        dst[to..to.wrapping_add(block.len)].clone_from_slice(&src[from..from.wrapping_add(block.len)]);
    });
}

/// Formats a summary of the call, without the geometry.
impl fmt::Debug for WritePlan<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WritePlan")
            .field("element", &self.geometry().element())
            .field("batch", &self.batch())
            .field("layer", &self.layer())
            .field("elements", &self.elements())
            .field("skipped", &self.skipped())
            .field("isa", &self.cpu.tuning.isa)
            .field("threads", &self.threads)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::WritePlan;
    use crate::geometry::Source;
    use crate::spec::ascend::KvCacheOperationCall;
    use crate::spec::tensorrt::PackedCall;
    use crate::spec::{ascend::KvCacheOperation, onnx::TensorScatter, tensorrt::KvCacheUpdate};
    use crate::{ElementType, Mode, OutOfRange};

    /// Counts the elements that the functional form takes from the past and from the update.
    fn moved(plan: &WritePlan<'_>) -> [usize; 2] {
        [Source::Past, Source::Update].map(|wanted| {
            let mut moved = Vec::new();
            plan.for_each_present(|source, block| {
                moved.extend((source == wanted).then_some(block.elements()));
            });
            moved.iter().sum()
        })
    }

    /// The functional form makes one pass over memory, so it writes every element of the present once.
    #[test]
    fn the_functional_form_partitions_the_present() {
        let int8 = ElementType::Int8;
        let (cache, update) = ([3, 2, 5, 2], [3, 2, 3, 2]); // 20 elements per sample
        let ring = TensorScatter::new().mode(Mode::Circular).prepare(int8, &cache, &update).unwrap();
        for start in -6..=6 {
            assert_eq!(moved(&ring.plan(&[start, 0, 4]).unwrap()), [24, 36], "{start}");
        }
        assert_eq!(moved(&ring.plan_with_lengths(&[4, 4, 4], &[0, 1, 2]).unwrap()), [60 - 12, 12]);

        let skipping = TensorScatter::new().out_of_range(OutOfRange::SkipSample);
        let skipping = skipping.prepare(int8, &cache, &update).unwrap();
        assert_eq!(moved(&skipping.plan(&[0, 3, 2]).unwrap()), [60 - 24, 24]);
        let empty = TensorScatter::new().prepare(int8, &cache, &[3, 2, 0, 2]).unwrap();
        assert_eq!(moved(&empty.plan(&[0, 5, 2]).unwrap()), [60, 0]);

        let half = ElementType::Float16;
        let smaller = KvCacheUpdate::new().prepare(half, &cache, &[1, 2, 3, 2]).unwrap();
        assert_eq!(moved(&smaller.plan(&[2]).unwrap()), [60 - 12, 12]);
        let packed = KvCacheUpdate::new().prepare_packed(half, &cache, &[4, 2, 2]).unwrap();
        assert_eq!(moved(&packed.plan(PackedCall::new(&[2, 0], &[0, 3, 4])).unwrap()), [60 - 16, 16]);
        let layers = KvCacheOperation::new().prepare(half, &[3, 2, 5, 2], &[4, 2]).unwrap();
        let call = KvCacheOperationCall { layer_id: &[1], token_offset: &[5, 3], seq_len: &[1, 3] };
        assert_eq!(moved(&layers.plan(call).unwrap()), [60 - 8, 8]);
    }
}
