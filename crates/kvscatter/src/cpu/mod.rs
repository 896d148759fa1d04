//! The CPU backend: a plan and buffers in, bytes moved. It sees no axis, no mode and no specification.
//!
//! Functions here are safe because they check, against the plan's geometry, the two things a plan cannot know:
//! how long the buffers are and how wide their elements. P1 does the rest. One thread runs a plan, so P3 holds
//! without further care.

mod bytes;
mod destination;
mod nibbles;

use core::mem::MaybeUninit;

use bytemuck::NoUninit;

use self::destination::Destination;
use crate::{Error, WritePlan};

/// Checks that a plan moves elements as wide as `T`, and that buffers of these lengths hold its tensors.
/// `buffer` is the place an error names.
pub(crate) fn check<T>(
    plan: &WritePlan<'_>,
    buffer: usize,
    cache: usize,
    update: usize,
) -> Result<(), Error> {
    let element = plan.geometry().element();
    let got = size_of::<T>().saturating_mul(8);
    if element.bits() != Some(got) {
        return Err(Error::ElementWidth { got, element });
    }
    plan.geometry().check_buffers(buffer, cache, update, |buffer| buffer.len)
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
pub(crate) fn write<T: NoUninit>(
    plan: &WritePlan<'_>,
    buffer: usize,
    cache: &mut [T],
    update: &[T],
) -> Result<(), Error> {
    check::<T>(plan, buffer, cache.len(), update.len())?;
    copy_whole(plan, Destination::new(cache), bytemuck::cast_slice(update));
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
    if plan.geometry().is_packed() {
        plan.for_each(|block| nibbles::copy(block, cache, update));
    } else {
        copy_whole(plan, Destination::new(cache), update);
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
    let (past, update) = (bytemuck::cast_slice(past), bytemuck::cast_slice(update));
    fill_whole(plan, past, update, Destination::new(present));
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
    let (past, update) = (bytemuck::cast_slice(past), bytemuck::cast_slice(update));
    fill_whole(plan, past, update, Destination::uninit(present));
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
    if plan.geometry().is_packed() {
        plan.for_each_kept(|block| nibbles::copy(block, present, past));
        plan.for_each_present(|block| nibbles::copy(block, present, update));
        nibbles::clear_padding(present, plan.geometry().present.buffer.len);
    } else {
        fill_whole(plan, past, update, Destination::new(present));
    }
    Ok(())
}

/// Executes the plan on elements of whole bytes. The callers have checked lengths and width.
fn copy_whole(plan: &WritePlan<'_>, mut cache: Destination<'_>, update: &[u8]) {
    let width = plan.geometry().element_bytes();
    // SAFETY: P1 for every block of the plan; the callers have checked that the buffers hold its tensors.
    plan.for_each(|block| unsafe { bytes::copy(block, width, &mut cache, update) });
}

/// The functional form of [`copy_whole`].
fn fill_whole(plan: &WritePlan<'_>, past: &[u8], update: &[u8], mut present: Destination<'_>) {
    let width = plan.geometry().element_bytes();
    // SAFETY: P1 for the blocks from the past; the callers have checked the buffers.
    plan.for_each_kept(|block| unsafe { bytes::copy(block, width, &mut present, past) });
    // SAFETY: P1 for the blocks from the update, over the same buffers.
    plan.for_each_present(|block| unsafe { bytes::copy(block, width, &mut present, update) });
}
