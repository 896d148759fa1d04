//! The CPU backend: a plan and buffers in, bytes moved. It sees no axis, no mode and no specification.
//!
//! Functions here are safe because they check, against the plan's geometry, the two things a plan cannot know:
//! how long the buffers are and how wide their elements. P1 does the rest.
//!
//! `ARCHITECTURE.md` says which file does what.

mod copier;
mod copiers;
mod executor;
mod fill;
mod isa;
mod kernel;
mod limits;
mod lines;
mod nibbles;
mod parts;
mod raw;
#[cfg(test)]
mod tests;
#[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
mod x86;

use alloc::boxed::Box;
use core::mem::MaybeUninit;

use bytemuck::NoUninit;

pub(crate) use self::copiers::{Copiers, Shapes};
pub use self::executor::Executor;
pub(crate) use self::executor::Host;
pub use self::isa::Isa;
pub(crate) use self::limits::SHARED;
use self::nibbles::Nibbles;
pub use self::raw::RawBuffer;
use crate::size::Width;
use crate::{ElementType, Error, Geometry, WritePlan};

/// What is decided when a geometry is prepared.
#[derive(Clone, Debug)]
pub(crate) struct Cpu {
    pub(crate) isa: Isa,
    by: By,
}

/// How elements of a type are moved.
#[derive(Clone, Debug)]
enum By {
    Bytes(Box<Copiers>),
    /// 4-bit elements some of which move without the one they share a byte with.
    Nibbles(Nibbles),
    /// Strings: no bytes of theirs are ever copied.
    Clone,
}

impl Cpu {
    pub(crate) fn new(element: ElementType, shapes: &Shapes<'_>) -> Self {
        let isa = Isa::allowed();
        let bytes = |width| By::Bytes(Box::new(Copiers::new(isa, width, shapes)));
        let by = match element.bits() {
            None => By::Clone,
            Some(4) => match shapes.half() {
                Some(half) => bytes(half),
                None => By::Nibbles(Nibbles::new(isa, shapes.write, shapes.rows)),
            },
            Some(bits) => bytes(Width::Bytes(bits.div_euclid(8))),
        };
        Self { isa, by }
    }
}

/// Checks that a plan moves elements as wide as `T`, and that buffers of these lengths hold its tensors.
/// `buffer` is the place an error names.
#[inline]
pub(crate) fn check<'a, T>(
    plan: &WritePlan<'a>,
    buffer: usize,
    cache: usize,
    update: usize,
) -> Result<&'a Copiers, Error> {
    let geometry = plan.geometry();
    match &geometry.cpu.by {
        By::Bytes(copiers) if copiers.moves::<T>() => {
            geometry.check_buffers(buffer, cache, update, |buffer| buffer.len)?;
            Ok(copiers)
        }
        _ => Err(Error::ElementWidth { got: size_of::<T>().saturating_mul(8), element: geometry.element() }),
    }
}

/// The same for raw bytes, which may be elements of any fixed width.
pub(crate) fn check_bytes<'a>(
    plan: &WritePlan<'a>,
    buffer: usize,
    cache: usize,
    update: usize,
) -> Result<Raw<'a>, Error> {
    check_lengths(plan.geometry(), buffer, cache, update)
}

fn check_lengths(geometry: &Geometry, buffer: usize, cache: usize, update: usize) -> Result<Raw<'_>, Error> {
    let raw = match &geometry.cpu.by {
        By::Bytes(copiers) => Raw::Bytes(copiers),
        By::Nibbles(nibbles) => Raw::Nibbles(nibbles),
        By::Clone => return Err(Error::ElementWidth { got: 8, element: geometry.element() }),
    };
    geometry.check_buffers(buffer, cache, update, |buffer| buffer.bytes)?;
    Ok(raw)
}

/// What moves raw bytes.
pub(crate) enum Raw<'a> {
    Bytes(&'a Copiers),
    Nibbles(&'a Nibbles),
}

/// Writes in place.
#[inline]
pub(crate) fn write<T: NoUninit>(
    plan: &WritePlan<'_>,
    buffer: usize,
    cache: &mut [T],
    update: &[T],
) -> Result<(), Error> {
    let copiers = check::<T>(plan, buffer, cache.len(), update.len())?;
    // SAFETY: just checked; the cache is borrowed exclusively, and values of `T` are moved whole.
    unsafe { copiers.write(plan, cache.as_mut_ptr().cast(), update.as_ptr().cast()) };
    Ok(())
}

/// [`write`] over raw bytes.
pub(crate) fn write_bytes(
    plan: &WritePlan<'_>,
    buffer: usize,
    cache: &mut [u8],
    update: &[u8],
) -> Result<(), Error> {
    match check_bytes(plan, buffer, cache.len(), update.len())? {
        Raw::Nibbles(nibbles) => nibbles.write(plan, cache, update),
        // SAFETY: just checked; the cache is borrowed exclusively.
        Raw::Bytes(copiers) => unsafe { copiers.write(plan, cache.as_mut_ptr(), update.as_ptr()) },
    }
    Ok(())
}

/// Fills all of `present`: the update where the plan writes, the past everywhere else.
pub(crate) fn into_present<T: NoUninit>(
    plan: &WritePlan<'_>,
    past: &[T],
    update: &[T],
    present: &mut [T],
) -> Result<(), Error> {
    let copiers = check::<T>(plan, 0, past.len(), update.len())?;
    plan.geometry().check_present(present.len(), |buffer| buffer.len)?;
    let present = present.as_mut_ptr().cast();
    // SAFETY: just checked; the present is borrowed exclusively, and values of `T` are moved whole.
    unsafe { copiers.fill(plan, present, past.as_ptr().cast(), update.as_ptr().cast()) };
    Ok(())
}

/// [`into_present`] into memory that need not be initialised.
pub(crate) fn into_present_uninit<'p, T: NoUninit>(
    plan: &WritePlan<'_>,
    past: &[T],
    update: &[T],
    present: &'p mut [MaybeUninit<T>],
) -> Result<&'p mut [T], Error> {
    let copiers = check::<T>(plan, 0, past.len(), update.len())?;
    plan.geometry().check_present(present.len(), |buffer| buffer.len)?;
    let start = present.as_mut_ptr().cast();
    // SAFETY: just checked; the present is borrowed exclusively.
    unsafe { copiers.fill(plan, start, past.as_ptr().cast(), update.as_ptr().cast()) };
    // SAFETY: the elements are exactly as wide as `T` and the present is exactly as long as the plan's (both
    // just checked), and the blocks from the past and from the update partition it: each element was copied
    // whole from a valid `T`.
    Ok(unsafe { present.assume_init_mut() })
}

/// [`into_present`] over raw bytes.
pub(crate) fn into_present_bytes(
    plan: &WritePlan<'_>,
    past: &[u8],
    update: &[u8],
    present: &mut [u8],
) -> Result<(), Error> {
    let raw = check_bytes(plan, 0, past.len(), update.len())?;
    plan.geometry().check_present(present.len(), |buffer| buffer.bytes)?;
    match raw {
        Raw::Nibbles(nibbles) => nibbles.fill(plan, present, past, update),
        // SAFETY: just checked; the present is borrowed exclusively.
        Raw::Bytes(copiers) => unsafe {
            copiers.fill(plan, present.as_mut_ptr(), past.as_ptr(), update.as_ptr());
        },
    }
    Ok(())
}
