//! The CPU backend. It takes the moves of one call and the buffers, and moves the bytes. It does not know
//! axes, modes or specifications.
//!
//! The moves do not contain the lengths of the buffers and the width of their elements. The safe functions
//! here check both against the geometry, and P1 and K1 establish the rest. The crate documentation defines G1
//! and P1 to P3, [`CpuKernels`] defines K1, and `kernel.rs` defines V1 to V3.
//!
//! `bytes.rs` and `present.rs` handle the moves of a call, `copy.rs` collects rows, and `kernel.rs` and `x86.rs` copy
//! them. `nibbles.rs` moves 4-bit elements that straddle bytes. The comment of each file describes what it decides.

mod bytes;
mod copy;
mod dispatch;
mod executor;
mod isa;
mod kernel;
mod limits;
mod nibbles;
mod parts;
mod prefetch;
mod present;
#[cfg(test)]
mod tests;
#[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
mod x86;

use alloc::boxed::Box;
use core::mem::MaybeUninit;
use core::slice;

use bytemuck::NoUninit;

use self::bytes::ByteKernels;
pub use self::executor::Executor;
pub(crate) use self::executor::Threads;
pub use self::isa::Isa;
pub(crate) use self::limits::{Limits, Tuning};
use self::nibbles::NibbleKernels;
use crate::error::{Error, LengthUnit};
use crate::geometry::Geometry;
use crate::plan::Moves;
use crate::size::Width;

/// The kernels for a geometry, chosen when a write is prepared.
///
/// **K1** The moves that a method here takes have the geometry of these kernels. `Prepared::plan` makes every
/// `WritePlan` from the rules and the kernels of one `Prepared`. Only `WritePlan` calls these methods, and it
/// passes its own moves. Lengths that fit the geometry of the moves therefore also fit the kernels.
#[derive(Clone, Debug)]
pub(crate) struct CpuKernels {
    pub(crate) tuning: Tuning,
    kind: KernelKind,
}

/// How elements of a type are moved.
#[derive(Clone, Debug)]
enum KernelKind {
    Bytes(Box<ByteKernels>),
    /// 4-bit elements, some of which move without the other element of their byte.
    Nibbles(NibbleKernels),
    /// Strings, whose bytes are never copied.
    Clone,
}

impl CpuKernels {
    pub(crate) fn new(geometry: &Geometry, tuning: Tuning) -> Self {
        let rows = geometry.usual_rows();
        let bytes = |width| KernelKind::Bytes(Box::new(ByteKernels::new(tuning, width, geometry, rows)));
        let kind = match geometry.element().bits() {
            None => KernelKind::Clone,
            Some(4) if geometry.is_even() => bytes(Width::Nibble),
            Some(4) => KernelKind::Nibbles(NibbleKernels::new(tuning, geometry, rows)),
            Some(bits) => bytes(Width::Bytes(bits.div_euclid(8))),
        };
        Self { tuning, kind }
    }

    /// Checks that elements are as wide as `T` and that buffers of these lengths hold the tensors.
    #[inline]
    pub(crate) fn check<T>(&self, moves: &Moves<'_>, pair: usize, lens: [usize; 2]) -> Result<(), Error> {
        self.kernels_for::<T>(moves, pair, lens).map(|_| ())
    }

    /// Returns the kernels for elements as wide as `T`. The errors are those of [`check`](Self::check).
    #[inline]
    fn kernels_for<T>(
        &self,
        moves: &Moves<'_>,
        pair: usize,
        lens: [usize; 2],
    ) -> Result<&ByteKernels, Error> {
        match &self.kind {
            KernelKind::Bytes(bytes) if bytes.are_as_wide_as::<T>() => {
                moves.geometry().check_buffers(pair, lens, LengthUnit::Elements)?;
                Ok(bytes)
            }
            _ => {
                let (got, element) = (size_of::<T>().saturating_mul(8), moves.geometry().element());
                Err(Error::ElementWidth { got, element })
            }
        }
    }

    /// Checks that elements have a fixed width, so that their bytes may be copied.
    pub(crate) fn check_fixed_width(&self, geometry: &Geometry) -> Result<(), Error> {
        match self.kind {
            KernelKind::Bytes(_) | KernelKind::Nibbles(_) => Ok(()),
            KernelKind::Clone => Err(Error::ElementWidth { got: 8, element: geometry.element() }),
        }
    }

    /// Checks that elements have a fixed width and that buffers of so many bytes hold the tensors.
    #[inline(always)]
    pub(crate) fn check_bytes(&self, moves: &Moves<'_>, pair: usize, lens: [usize; 2]) -> Result<(), Error> {
        self.check_fixed_width(moves.geometry())?;
        moves.geometry().check_buffers(pair, lens, LengthUnit::Bytes)
    }

    /// Returns `true` if writing a present reads bytes of it first. A store of 4 bits must read the byte to
    /// keep its other half.
    pub(crate) fn reads_present(&self) -> bool {
        matches!(self.kind, KernelKind::Nibbles(_))
    }

    /// Writes in place. An error names the pair.
    #[inline]
    pub(crate) fn write<T: NoUninit>(
        &self,
        moves: &Moves<'_>,
        threads: Threads<'_>,
        pair: usize,
        cache: &mut [T],
        update: &[T],
    ) -> Result<(), Error> {
        let bytes = self.kernels_for::<T>(moves, pair, [cache.len(), update.len()])?;
        // SAFETY: K1 holds for the moves of a plan. V1: `kernels_for` has compared both lengths with the
        // geometry of `moves`. The update is borrowed, and the cache is borrowed exclusively. `T` is as wide
        // as an element, so only whole values of `T` are moved.
        unsafe { bytes.write(moves, threads, cache.as_mut_ptr().cast(), update.as_ptr().cast()) };
        Ok(())
    }

    /// Writes raw bytes in place, as [`write`](Self::write) does for typed slices.
    #[inline(always)]
    pub(crate) fn write_bytes(
        &self,
        moves: &Moves<'_>,
        threads: Threads<'_>,
        cache: &mut [u8],
        update: &[u8],
    ) -> Result<(), Error> {
        self.check_bytes(moves, 0, [cache.len(), update.len()])?;
        // SAFETY: K1 holds for the moves of a plan. V1: `check_bytes` has compared both lengths with the geometry of
        // `moves`, whose elements have a fixed width. The update is borrowed, and the cache is borrowed
        // exclusively.
        unsafe { self.write_raw(moves, threads, cache, update) };
        Ok(())
    }

    /// Writes raw bytes without the checks of [`write_bytes`](Self::write_bytes).
    ///
    /// # Safety
    /// * K1: the moves have the geometry that these kernels were made for.
    /// * [`check_fixed_width`](Self::check_fixed_width) accepts that geometry, and
    ///   [`Geometry::check_buffers`] accepts the lengths.
    /// * V1: `cache` is valid for reads and writes of its length, and `update` for reads of its length. They
    ///   do not overlap. Until this function returns, nothing else uses the cache or writes to the update.
    ///   Neither pointer is null.
    /// * If elements move by half bytes ([`reads_present`](Self::reads_present)), both buffers are
    ///   initialised.
    #[inline(always)]
    pub(crate) unsafe fn write_raw(
        &self,
        moves: &Moves<'_>,
        threads: Threads<'_>,
        cache: *mut [u8],
        update: *const [u8],
    ) {
        match &self.kind {
            // SAFETY: K1 holds for `moves`. V1: the lengths are those of the geometry, `cache` is valid for
            // writes, `update` is valid for reads, and they do not overlap. Nothing else uses the cache or
            // writes to the update.
            KernelKind::Bytes(bytes) => unsafe { bytes.write(moves, threads, cache.cast(), update.cast()) },
            KernelKind::Nibbles(nibbles) => {
                // SAFETY: `cache` is not null, initialised, and valid for reads and writes of its length.
                // Nothing else uses it until this function returns.
                let cache = unsafe { &mut *cache };
                // SAFETY: `update` is not null, initialised, and valid for reads of its length. Nothing
                // writes to it until this function returns.
                let update = unsafe { &*update };
                nibbles.write(moves, threads, cache, update);
            }
            KernelKind::Clone => {} // `check_fixed_width` rejects strings
        }
    }

    /// Writes all of `present`: the update where the plan writes, and the past everywhere else.
    #[inline]
    pub(crate) fn write_present<T: NoUninit>(
        &self,
        moves: &Moves<'_>,
        threads: Threads<'_>,
        past: &[T],
        update: &[T],
        present: &mut [T],
    ) -> Result<(), Error> {
        // SAFETY: `MaybeUninit<T>` has the layout of `T`, the slice is borrowed exclusively, and only whole
        // values of `T` are stored there.
        let present = unsafe { slice::from_raw_parts_mut(present.as_mut_ptr().cast(), present.len()) };
        self.write_present_uninit(moves, threads, past, update, present).map(|_| ())
    }

    /// Writes the functional form into memory that need not be initialised. See
    /// [`write_present`](Self::write_present).
    #[inline(always)]
    pub(crate) fn write_present_uninit<'p, T: NoUninit>(
        &self,
        moves: &Moves<'_>,
        threads: Threads<'_>,
        past: &[T],
        update: &[T],
        present: &'p mut [MaybeUninit<T>],
    ) -> Result<&'p mut [T], Error> {
        let bytes = self.kernels_for::<T>(moves, 0, [past.len(), update.len()])?;
        moves.geometry().check_present(present.len(), LengthUnit::Elements)?;
        let (start, sources) = (present.as_mut_ptr().cast(), [past.as_ptr().cast(), update.as_ptr().cast()]);
        // SAFETY: K1 holds for the moves of a plan. V1: all three lengths have been compared with the
        // geometry of `moves`. The past and the update are borrowed, and the present is borrowed exclusively.
        unsafe { bytes.write_present(moves, threads, start, sources) };
        // SAFETY: The checks above establish that the elements are exactly as wide as `T` and that the
        // present is exactly as long as the geometry's. By K1 and P2, the pieces from the past and from the
        // update partition the present, so each element was copied whole from a valid `T`.
        Ok(unsafe { present.assume_init_mut() })
    }

    /// Writes the functional form over raw bytes. See [`write_present`](Self::write_present).
    #[inline(always)]
    pub(crate) fn write_present_bytes(
        &self,
        moves: &Moves<'_>,
        threads: Threads<'_>,
        past: &[u8],
        update: &[u8],
        present: &mut [u8],
    ) -> Result<(), Error> {
        self.check_fixed_width(moves.geometry())?;
        moves.geometry().check_buffers(0, [past.len(), update.len()], LengthUnit::Bytes)?;
        moves.geometry().check_present(present.len(), LengthUnit::Bytes)?;
        // SAFETY: K1 holds for the moves of a plan. V1: all three lengths have been compared with the
        // geometry of `moves`, whose elements have a fixed width. The past and the update are borrowed. The
        // present is initialised and borrowed exclusively.
        unsafe { self.write_present_raw(moves, threads, [past, update], present) };
        Ok(())
    }

    /// Writes the functional form without the checks of [`write_present_bytes`](Self::write_present_bytes).
    ///
    /// # Safety
    /// * K1: the moves have the geometry that these kernels were made for.
    /// * [`check_fixed_width`](Self::check_fixed_width) accepts that geometry, and
    ///   [`Geometry::check_buffers`] and [`Geometry::check_present`] accept the lengths.
    /// * V1: `past` and `update` are valid for reads of their lengths, and `present` for writes of its
    ///   length. Neither source overlaps the present. Until this function returns, nothing else uses the
    ///   present or writes to the sources. No pointer is null.
    /// * If [`reads_present`](Self::reads_present) returns true, all three buffers are initialised, and the
    ///   present is also valid for reads.
    #[inline(always)]
    pub(crate) unsafe fn write_present_raw(
        &self,
        moves: &Moves<'_>,
        threads: Threads<'_>,
        [past, update]: [*const [u8]; 2],
        present: *mut [u8],
    ) {
        match &self.kind {
            KernelKind::Bytes(bytes) => {
                // SAFETY: K1 holds for `moves`. V1: the lengths are those of the geometry. `present` is valid
                // for writes. `past` and `update` are valid for reads and do not overlap the present. Nothing
                // else uses the present or writes to the sources.
                unsafe { bytes.write_present(moves, threads, present.cast(), [past.cast(), update.cast()]) }
            }
            KernelKind::Nibbles(nibbles) => {
                // SAFETY: `present` is not null, initialised, and valid for reads and writes of its length.
                // Nothing else uses it until this function returns.
                let present = unsafe { &mut *present };
                // SAFETY: `past` is not null, initialised, and valid for reads of its length. Nothing writes
                // to it until this function returns.
                let past = unsafe { &*past };
                // SAFETY: `update` is not null, initialised, and valid for reads of its length. Nothing
                // writes to it until this function returns.
                let update = unsafe { &*update };
                nibbles.write_present(moves, threads, present, past, update);
            }
            KernelKind::Clone => {} // `check_fixed_width` rejects strings
        }
    }
}
