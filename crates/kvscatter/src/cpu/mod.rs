//! The CPU backend: the moves of one call and buffers in, bytes moved. It sees no axis, no mode and no specification.
//!
//! Functions here are safe because they check, against the geometry, the two things that moves cannot know: how long
//! the buffers are and how wide their elements. P1 does the rest.
//!
//! `ARCHITECTURE.md` has a table of the files.

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
use self::nibbles::NibbleKernels;
use crate::error::Error;
use crate::geometry::{Geometry, Samples, Unit};
use crate::plan::Moves;
use crate::size::Width;

/// The kernels for a geometry, chosen when a write is prepared. The moves that it is given are of this geometry:
/// `Prepared::plan` is the one place that joins the two, so lengths that fit the geometry of the moves fit the kernels.
#[derive(Clone, Debug)]
pub(crate) struct CpuKernels {
    pub(crate) isa: Isa,
    kind: KernelKind,
}

/// How elements of a type are moved.
#[derive(Clone, Debug)]
enum KernelKind {
    Bytes(Box<ByteKernels>),
    /// 4-bit elements some of which move without the one they share a byte with.
    Nibbles(NibbleKernels),
    /// Strings: their bytes are never copied.
    Clone,
}

impl CpuKernels {
    pub(crate) fn new(geometry: &Geometry) -> Self {
        let isa = Isa::allowed();
        let rows = usual_rows(geometry);
        let bytes = |width| KernelKind::Bytes(Box::new(ByteKernels::new(isa, width, geometry, rows)));
        let kind = match geometry.element.bits() {
            None => KernelKind::Clone,
            Some(4) if nibbles::is_even(geometry) => bytes(Width::Nibble),
            Some(4) => KernelKind::Nibbles(NibbleKernels::new(isa, geometry, rows)),
            Some(bits) => bytes(Width::Bytes(bits.div_euclid(8))),
        };
        Self { isa, kind }
    }

    /// Checks that elements are as wide as `T` and that buffers of these lengths hold the tensors.
    #[inline]
    pub(crate) fn check<T>(&self, moves: &Moves<'_>, pair: usize, lens: [usize; 2]) -> Result<(), Error> {
        self.kernels_for::<T>(moves, pair, lens).map(|_| ())
    }

    /// The kernels for elements as wide as `T`. The errors are those of [`check`](Self::check).
    #[inline]
    fn kernels_for<T>(
        &self,
        moves: &Moves<'_>,
        pair: usize,
        lens: [usize; 2],
    ) -> Result<&ByteKernels, Error> {
        match &self.kind {
            KernelKind::Bytes(bytes) if bytes.are_as_wide_as::<T>() => {
                moves.geometry().check_buffers(pair, lens, Unit::Elements)?;
                Ok(bytes)
            }
            _ => {
                let (got, element) = (size_of::<T>().saturating_mul(8), moves.geometry().element);
                Err(Error::ElementWidth { got, element })
            }
        }
    }

    /// Checks that elements have a fixed width, so that their bytes may be copied.
    pub(crate) fn check_fixed_width(&self, geometry: &Geometry) -> Result<(), Error> {
        match self.kind {
            KernelKind::Bytes(_) | KernelKind::Nibbles(_) => Ok(()),
            KernelKind::Clone => Err(Error::ElementWidth { got: 8, element: geometry.element }),
        }
    }

    /// Whether a write of a present reads bytes of it first, since a store of 4 bits keeps the other half of its byte.
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
        // SAFETY: `kernels_for` has compared both lengths with the geometry of `moves`. The cache is borrowed exclusively, and
        // values of `T` are moved whole, since `T` is as wide as an element.
        unsafe { bytes.write(moves, threads, cache.as_mut_ptr().cast(), update.as_ptr().cast()) };
        Ok(())
    }

    /// [`write`](Self::write) over raw bytes.
    #[inline(always)]
    pub(crate) fn write_bytes(
        &self,
        moves: &Moves<'_>,
        threads: Threads<'_>,
        cache: &mut [u8],
        update: &[u8],
    ) -> Result<(), Error> {
        self.check_fixed_width(moves.geometry())?;
        moves.geometry().check_buffers(0, [cache.len(), update.len()], Unit::Bytes)?;
        // SAFETY: both lengths have been compared with the geometry of `moves`, and the cache is borrowed exclusively.
        unsafe { self.write_raw(moves, threads, cache, update) };
        Ok(())
    }

    /// [`write_bytes`](Self::write_bytes) without its checks.
    ///
    /// # Safety
    /// [`check_fixed_width`](Self::check_fixed_width) accepts the geometry, and [`Geometry::check_buffers`] the lengths. `update` may be borrowed while this
    /// runs, and `cache` may be borrowed exclusively.
    #[inline(always)]
    pub(crate) unsafe fn write_raw(
        &self,
        moves: &Moves<'_>,
        threads: Threads<'_>,
        cache: *mut [u8],
        update: *const [u8],
    ) {
        match &self.kind {
            // SAFETY: this function's contract states the lengths, the validity and that nothing else uses the cache.
            KernelKind::Bytes(bytes) => unsafe { bytes.write(moves, threads, cache.cast(), update.cast()) },
            KernelKind::Nibbles(nibbles) => {
                // SAFETY: it may be borrowed exclusively, by this function's contract.
                let cache = unsafe { &mut *cache };
                // SAFETY: it may be borrowed, by this function's contract.
                let update = unsafe { &*update };
                nibbles.write(moves, threads, cache, update);
            }
            KernelKind::Clone => {} // `check_fixed_width` refuses strings
        }
    }

    /// Writes all of `present`: the update where the plan writes, the past everywhere else.
    #[inline]
    pub(crate) fn write_present<T: NoUninit>(
        &self,
        moves: &Moves<'_>,
        threads: Threads<'_>,
        past: &[T],
        update: &[T],
        present: &mut [T],
    ) -> Result<(), Error> {
        // SAFETY: `MaybeUninit<T>` has the layout of `T`, the slice is borrowed exclusively, and only whole values of `T`
        // are stored there.
        let present = unsafe { slice::from_raw_parts_mut(present.as_mut_ptr().cast(), present.len()) };
        self.write_present_uninit(moves, threads, past, update, present).map(|_| ())
    }

    /// [`write_present`](Self::write_present) into memory that need not be initialised.
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
        moves.geometry().check_present(present.len(), Unit::Elements)?;
        let (start, sources) = (present.as_mut_ptr().cast(), [past.as_ptr().cast(), update.as_ptr().cast()]);
        // SAFETY: all three lengths have been compared with the geometry of `moves`, and the present is borrowed
        // exclusively.
        unsafe { bytes.write_present(moves, threads, start, sources) };
        // SAFETY: the elements are exactly as wide as `T` and the present is exactly as long as the geometry's (both
        // checked above), and the pieces from the past and from the update partition it: each element was copied whole
        // from a valid `T`.
        Ok(unsafe { present.assume_init_mut() })
    }

    /// [`write_present`](Self::write_present) over raw bytes.
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
        moves.geometry().check_buffers(0, [past.len(), update.len()], Unit::Bytes)?;
        moves.geometry().check_present(present.len(), Unit::Bytes)?;
        // SAFETY: all three lengths have been compared with the geometry of `moves`, and the present is initialised and
        // borrowed exclusively.
        unsafe { self.write_present_raw(moves, threads, [past, update], present) };
        Ok(())
    }

    /// [`write_present_bytes`](Self::write_present_bytes) without its checks.
    ///
    /// # Safety
    /// [`check_fixed_width`](Self::check_fixed_width) accepts the geometry, and [`Geometry::check_buffers`] and
    /// [`Geometry::check_present`] the lengths. The sources may be borrowed while this runs, and nothing else uses
    /// `present`, which is valid for writes. If [`reads_present`](Self::reads_present), it is initialised and may be
    /// borrowed exclusively.
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
                // SAFETY: this function's contract states the lengths, the validity and that nothing else uses the
                // present.
                unsafe { bytes.write_present(moves, threads, present.cast(), [past.cast(), update.cast()]) }
            }
            KernelKind::Nibbles(nibbles) => {
                // SAFETY: it is initialised and may be borrowed exclusively, by this function's contract.
                let present = unsafe { &mut *present };
                // SAFETY: it may be borrowed, by this function's contract.
                let past = unsafe { &*past };
                // SAFETY: it may be borrowed, by this function's contract.
                let update = unsafe { &*update };
                nibbles.write_present(moves, threads, present, past, update);
            }
            KernelKind::Clone => {} // `check_fixed_width` refuses strings
        }
    }
}

/// The rows that a sample usually brings: kernels are chosen for them.
fn usual_rows(geometry: &Geometry) -> usize {
    match geometry.samples {
        Samples::Padded { rows, .. } => rows,
        // As many tokens as samples at most: each brings its next one.
        Samples::Packed { tokens } if tokens <= geometry.cache_batch => 1,
        Samples::Packed { tokens } => tokens.min(geometry.capacity),
    }
}
