//! The CPU backend: a plan and buffers in, bytes moved. It sees no axis, no mode and no specification.
//!
//! Functions here are safe because they check, against the plan's geometry, the two things a plan cannot know:
//! how long the buffers are and how wide their elements. P1 does the rest.
//!
//! | module | what |
//! |---|---|
//! | [`copiers`] | one call: in place or functional, on one thread or a host's |
//! | [`copier`] | one sample: its blocks, and which kernel each goes to |
//! | [`kernel`], [`x86`] | one block: every run of it |
//! | [`limits`] | the numbers that choose between them |
//! | [`nibbles`] | a plan over 4-bit elements that do not keep to bytes |
//! | [`parts`] | the destination of those for many threads |

mod copier;
mod copiers;
mod executor;
mod isa;
mod kernel;
mod limits;
mod nibbles;
mod parts;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
mod x86;

use alloc::boxed::Box;
use core::mem::MaybeUninit;

use bytemuck::NoUninit;

pub(crate) use self::copiers::{Copiers, Shapes};
pub use self::executor::Executor;
pub(crate) use self::executor::Host;
pub use self::isa::Isa;
use self::nibbles::Nibbles;
use crate::size::Width;
use crate::{ElementType, Error, WritePlan};

/// What is decided when a geometry is prepared.
#[derive(Clone, Debug)]
pub(crate) struct Cpu {
    pub(crate) isa: Isa,
    /// Bytes of one element; 0 where elements are not whole bytes.
    width: usize,
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
        let width = element.bits().unwrap_or(0).div_euclid(8);
        let bytes = |width| By::Bytes(Box::new(Copiers::new(isa, width, shapes)));
        let by = match element.bits() {
            None => By::Clone,
            Some(4) => match shapes.half() {
                Some(half) => bytes(half),
                None => By::Nibbles(Nibbles::new(isa, shapes.write, shapes.rows)),
            },
            Some(_) => bytes(Width::Bytes(width)),
        };
        Self { isa, width, by }
    }
}

/// Checks that a plan moves elements as wide as `T`, and that buffers of these lengths hold its tensors.
/// `buffer` is the place an error names.
#[inline]
pub(crate) fn check<T>(
    plan: &WritePlan<'_>,
    buffer: usize,
    cache: usize,
    update: usize,
) -> Result<(), Error> {
    let geometry = plan.geometry();
    if size_of::<T>() == 0 || size_of::<T>() != geometry.cpu.width {
        return Err(Error::ElementWidth {
            got: size_of::<T>().saturating_mul(8),
            element: geometry.element(),
        });
    }
    geometry.check_buffers(buffer, cache, update, |buffer| buffer.len)
}

/// The same for raw bytes, which may be elements of any fixed width.
pub(crate) fn check_bytes(
    plan: &WritePlan<'_>,
    buffer: usize,
    cache: usize,
    update: usize,
) -> Result<(), Error> {
    let element = plan.geometry().element();
    element.bits().ok_or(Error::ElementWidth { got: 8, element })?;
    plan.geometry().check_buffers(buffer, cache, update, |buffer| buffer.bytes)
}

/// Writes in place.
#[inline]
pub(crate) fn write<T: NoUninit>(
    plan: &WritePlan<'_>,
    buffer: usize,
    cache: &mut [T],
    update: &[T],
) -> Result<(), Error> {
    check::<T>(plan, buffer, cache.len(), update.len())?;
    // SAFETY: just checked; the cache is borrowed exclusively, and values of `T` are moved whole.
    unsafe { write_raw(plan, cache.as_mut_ptr().cast(), update.as_ptr().cast()) };
    Ok(())
}

/// [`write`] over raw bytes.
pub(crate) fn write_bytes(
    plan: &WritePlan<'_>,
    buffer: usize,
    cache: &mut [u8],
    update: &[u8],
) -> Result<(), Error> {
    check_bytes(plan, buffer, cache.len(), update.len())?;
    match &plan.geometry().cpu.by {
        By::Nibbles(nibbles) => nibbles.write(plan, cache, update),
        // SAFETY: just checked; the cache is borrowed exclusively.
        _ => unsafe { write_raw(plan, cache.as_mut_ptr(), update.as_ptr()) },
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
    check::<T>(plan, 0, past.len(), update.len())?;
    plan.geometry().check_present(present.len(), |buffer| buffer.len)?;
    // SAFETY: just checked; the present is borrowed exclusively, and values of `T` are moved whole.
    unsafe { fill_raw(plan, present.as_mut_ptr().cast(), past.as_ptr().cast(), update.as_ptr().cast()) };
    Ok(())
}

/// [`into_present`] into memory that need not be initialised.
pub(crate) fn into_present_uninit<'p, T: NoUninit>(
    plan: &WritePlan<'_>,
    past: &[T],
    update: &[T],
    present: &'p mut [MaybeUninit<T>],
) -> Result<&'p mut [T], Error> {
    check::<T>(plan, 0, past.len(), update.len())?;
    plan.geometry().check_present(present.len(), |buffer| buffer.len)?;
    // SAFETY: just checked; the present is borrowed exclusively.
    unsafe { fill_raw(plan, present.as_mut_ptr().cast(), past.as_ptr().cast(), update.as_ptr().cast()) };
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
    check_bytes(plan, 0, past.len(), update.len())?;
    plan.geometry().check_present(present.len(), |buffer| buffer.bytes)?;
    match &plan.geometry().cpu.by {
        By::Nibbles(nibbles) => nibbles.fill(plan, present, past, update),
        // SAFETY: just checked; the present is borrowed exclusively.
        _ => unsafe { fill_raw(plan, present.as_mut_ptr(), past.as_ptr(), update.as_ptr()) },
    }
    Ok(())
}

/// Executes the plan on elements of whole bytes; the checks above let no others come here.
///
/// # Safety
/// As [`Copiers::write`].
unsafe fn write_raw(plan: &WritePlan<'_>, cache: *mut u8, update: *const u8) {
    if let By::Bytes(copiers) = &plan.geometry().cpu.by {
        // SAFETY: the caller's.
        unsafe { copiers.write(plan, cache, update) };
    }
}

/// The functional form of [`write_raw`].
///
/// # Safety
/// As [`Copiers::fill`].
unsafe fn fill_raw(plan: &WritePlan<'_>, present: *mut u8, past: *const u8, update: *const u8) {
    if let By::Bytes(copiers) = &plan.geometry().cpu.by {
        // SAFETY: the caller's.
        unsafe { copiers.fill(plan, present, past, update) };
    }
}
