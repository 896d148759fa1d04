//! Executing a plan over Rust slices: typed, raw bytes, clonable values, one buffer or many.

use core::mem::MaybeUninit;

use bytemuck::NoUninit;

use crate::cpu;
use crate::mapping::Block;
use crate::plan::Source;
use crate::{Error, WritePlan};

/// What a write did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Written {
    /// Samples left as they were under [`OutOfRange::SkipSample`](crate::OutOfRange::SkipSample).
    pub skipped: usize,
}

/// Pairs of a cache and its update, lent one at a time, so that no slice of borrows has to be built.
///
/// `count` and the lengths of every pair must not change during a call: a set that breaks this breaks X1 (some
/// pairs may have been written when the error is returned), never memory safety.
pub trait Buffers<T> {
    /// How many pairs.
    fn count(&self) -> usize;
    /// The cache and the update of one pair; `index < count()`.
    fn pair(&mut self, index: usize) -> (&mut [T], &[T]);
}

impl<T, C: AsMut<[T]>, U: AsRef<[T]>> Buffers<T> for [(C, U)] {
    fn count(&self) -> usize {
        self.len()
    }

    fn pair(&mut self, index: usize) -> (&mut [T], &[T]) {
        self.get_mut(index).map_or((&mut [], &[]), |pair| (pair.0.as_mut(), pair.1.as_ref()))
    }
}

/// Writing in place, and the functional form. On an error nothing has been written (X1), and no byte outside
/// the plan ever changes (X2).
///
/// `T` is any type without padding that is as wide as the element type: `f32`, `u16`, `half::f16`, `bool`.
/// `*_bytes` methods take raw little-endian bytes, 4-bit types packed two to a byte. `*_cloned` methods take
/// whole values, such as strings. Lengths are those of the prepared shapes: exact for dense tensors, the least
/// for strided ones.
impl WritePlan<'_> {
    /// Writes the update into the cache.
    ///
    /// # Errors
    /// [`Error::ElementWidth`] or [`Error::BufferLength`].
    #[inline]
    pub fn write<T: NoUninit>(&self, cache: &mut [T], update: &[T]) -> Result<Written, Error> {
        cpu::write(self, 0, cache, update)?;
        Ok(self.written())
    }

    /// [`write`](Self::write) over raw bytes.
    ///
    /// # Errors
    /// [`Error::BufferLength`], or [`Error::ElementWidth`] for strings.
    pub fn write_bytes(&self, cache: &mut [u8], update: &[u8]) -> Result<Written, Error> {
        cpu::write_bytes(self, 0, cache, update)?;
        Ok(self.written())
    }

    /// [`write`](Self::write) over values that are cloned, such as strings: elements are counted, bits are not.
    ///
    /// A `Clone` that panics leaves the rows before it written.
    ///
    /// # Errors
    /// [`Error::BufferLength`].
    pub fn write_cloned<T: Clone>(&self, cache: &mut [T], update: &[T]) -> Result<Written, Error> {
        self.geometry().check_buffers(0, cache.len(), update.len(), |buffer| buffer.len)?;
        self.for_each(|block| clone_block(block, cache, update));
        Ok(self.written())
    }

    /// Writes every pair: keys and values, or all layers that share the positions. Every length is checked
    /// before the first byte moves; the pairs must not change between that check and the write, see [`Buffers`].
    ///
    /// No cache can be in the set twice:
    ///
    /// ```compile_fail,E0499
    /// # let write = kvscatter::spec::onnx::TensorScatter::new();
    /// # let write = write.prepare(kvscatter::ElementType::UInt8, &[1, 4, 1], &[1, 1, 1]).unwrap();
    /// # let plan = write.plan(&[0_i64]).unwrap();
    /// let mut cache = [0_u8; 4];
    /// plan.write_many(&mut [(&mut cache, &[1]), (&mut cache, &[2])][..]).unwrap();
    /// ```
    ///
    /// # Errors
    /// As [`write`](Self::write); [`Error::BufferLength`] names the pair.
    pub fn write_many<T: NoUninit>(&self, pairs: &mut (impl Buffers<T> + ?Sized)) -> Result<Written, Error> {
        for index in 0..pairs.count() {
            let (cache, update) = pairs.pair(index);
            cpu::check::<T>(self, index, cache.len(), update.len())?;
        }
        for index in 0..pairs.count() {
            let (cache, update) = pairs.pair(index);
            cpu::write(self, index, cache, update)?;
        }
        Ok(self.written())
    }

    /// [`write_many`](Self::write_many) over raw bytes.
    ///
    /// # Errors
    /// As [`write_bytes`](Self::write_bytes); [`Error::BufferLength`] names the pair.
    pub fn write_many_bytes(&self, pairs: &mut (impl Buffers<u8> + ?Sized)) -> Result<Written, Error> {
        for index in 0..pairs.count() {
            let (cache, update) = pairs.pair(index);
            cpu::check_bytes(self, index, cache.len(), update.len())?;
        }
        for index in 0..pairs.count() {
            let (cache, update) = pairs.pair(index);
            cpu::write_bytes(self, index, cache, update)?;
        }
        Ok(self.written())
    }

    /// The functional form: `present` becomes the past with the update written into it, in one pass over
    /// memory. `present` is dense, whatever the layout of the past.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn into_present<T: NoUninit>(
        &self,
        past: &[T],
        update: &[T],
        present: &mut [T],
    ) -> Result<Written, Error> {
        cpu::into_present(self, past, update, present)?;
        Ok(self.written())
    }

    /// [`into_present`](Self::into_present) into memory that need not be initialised. Returns the same memory,
    /// initialised.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn into_present_uninit<'p, T: NoUninit>(
        &self,
        past: &[T],
        update: &[T],
        present: &'p mut [MaybeUninit<T>],
    ) -> Result<(&'p mut [T], Written), Error> {
        Ok((cpu::into_present_uninit(self, past, update, present)?, self.written()))
    }

    /// [`into_present`](Self::into_present) over raw bytes. The pad nibble of an odd number of 4-bit elements
    /// is zero in `present`, as ONNX stores it.
    ///
    /// # Errors
    /// As [`write_bytes`](Self::write_bytes).
    pub fn into_present_bytes(
        &self,
        past: &[u8],
        update: &[u8],
        present: &mut [u8],
    ) -> Result<Written, Error> {
        cpu::into_present_bytes(self, past, update, present)?;
        Ok(self.written())
    }

    /// [`into_present`](Self::into_present) over values that are cloned, such as strings.
    ///
    /// # Errors
    /// As [`write_cloned`](Self::write_cloned).
    pub fn into_present_cloned<T: Clone>(
        &self,
        past: &[T],
        update: &[T],
        present: &mut [T],
    ) -> Result<Written, Error> {
        self.geometry().check_buffers(0, past.len(), update.len(), |buffer| buffer.len)?;
        self.geometry().check_present(present.len(), |buffer| buffer.len)?;
        self.for_each_present(|source, block| {
            let source = match source {
                Source::Past => past,
                Source::Update => update,
            };
            clone_block(block, present, source);
        });
        Ok(self.written())
    }

    /// Checks, without writing, that buffers of these lengths in bytes fit the plan. `buffer` is the place the
    /// error names. Callers that execute several plans as one atomic write check all of them first.
    ///
    /// # Errors
    /// As [`write_bytes`](Self::write_bytes).
    pub fn check_bytes(&self, buffer: usize, cache: usize, update: usize) -> Result<(), Error> {
        cpu::check_bytes(self, buffer, cache, update).map(drop)
    }

    pub(crate) fn written(&self) -> Written {
        Written { skipped: self.skipped() }
    }
}

#[expect(
    clippy::indexing_slicing,
    reason = "P1 bounds every run; a broken proof must stop, not skip a write"
)]
fn clone_block<T: Clone>(block: &Block, dst: &mut [T], src: &[T]) {
    block.for_each_run(|to, from| {
        dst[to..to.wrapping_add(block.len)].clone_from_slice(&src[from..from.wrapping_add(block.len)]);
    });
}
