//! The CPU backend: a plan and buffers in, bytes moved. It sees no axis, no mode and no specification.
//!
//! Functions here are safe because they check, against the plan's geometry, the one thing a plan cannot know:
//! how long the buffers are. P1 does the rest. One thread runs a plan, so P3 holds without further care.

mod bytes;
mod destination;
mod nibbles;

pub(crate) use destination::Destination;

use core::mem::MaybeUninit;

use bytemuck::NoUninit;

use crate::geometry::Buffer;
use crate::{Argument, Error, Geometry, WritePlan};

/// How an error tells the length of a buffer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Told {
    /// The buffer's place in a call over many.
    pub(crate) index: usize,
    /// Bytes of the unit that lengths are counted in.
    pub(crate) unit: usize,
}

/// Memory to be written, by how elements lie in it.
#[derive(Debug)]
pub(crate) enum Target<'a> {
    /// Elements of whole bytes.
    Whole(Destination<'a>),
    /// 4-bit elements, two to a byte.
    Packed(&'a mut [u8]),
}

impl Target<'_> {
    fn len(&self) -> usize {
        match self {
            Self::Whole(destination) => destination.len(),
            Self::Packed(bytes) => bytes.len(),
        }
    }
}

/// Checks that the buffers of a write in place are as long as the plan's geometry says. In bytes.
pub(crate) fn check(plan: &WritePlan<'_>, cache: usize, update: usize, told: Told) -> Result<(), Error> {
    let Geometry { words, cache: dst, update: src, .. } = plan.geometry();
    check_bytes(dst, words.cache, cache, told)?;
    check_bytes(src, words.update, update, told)
}

/// Writes in place.
pub(crate) fn write(
    plan: &WritePlan<'_>,
    mut cache: Target<'_>,
    update: &[u8],
    told: Told,
) -> Result<(), Error> {
    check(plan, cache.len(), update.len(), told)?;
    match &mut cache {
        Target::Whole(cache) => {
            let width = plan.geometry().element_bytes();
            // SAFETY: P1 for every block of the plan, over buffers whose lengths were just checked.
            plan.for_each(|block| unsafe { bytes::copy(block, width, cache, update) });
        }
        Target::Packed(cache) => plan.for_each(|block| nibbles::copy(block, cache, update)),
    }
    Ok(())
}

/// Fills all of `present`: the update where the plan writes, the past everywhere else.
pub(crate) fn into_present(
    plan: &WritePlan<'_>,
    past: &[u8],
    update: &[u8],
    mut present: Target<'_>,
    told: Told,
) -> Result<(), Error> {
    let geometry = plan.geometry();
    check(plan, past.len(), update.len(), told)?;
    check_bytes(&geometry.present.buffer, geometry.words.present, present.len(), told)?;
    match &mut present {
        Target::Whole(present) => {
            let width = geometry.element_bytes();
            // SAFETY: P1 for the blocks from the past, over buffers whose lengths were just checked.
            plan.for_each_kept(|block| unsafe { bytes::copy(block, width, present, past) });
            // SAFETY: P1 for the blocks from the update, over the same buffers.
            plan.for_each_present(|block| unsafe { bytes::copy(block, width, present, update) });
        }
        Target::Packed(present) => {
            plan.for_each_kept(|block| nibbles::copy(block, present, past));
            plan.for_each_present(|block| nibbles::copy(block, present, update));
            nibbles::clear_padding(present, geometry.present.buffer.len);
        }
    }
    Ok(())
}

/// [`into_present`] into memory that need not be initialised.
pub(crate) fn into_present_uninit<'p, T: NoUninit>(
    plan: &WritePlan<'_>,
    past: &[T],
    update: &[T],
    present: &'p mut [MaybeUninit<T>],
    told: Told,
) -> Result<&'p mut [T], Error> {
    let (past, update) = (bytemuck::cast_slice(past), bytemuck::cast_slice(update));
    into_present(plan, past, update, Target::Whole(Destination::uninit(present)), told)?;
    // SAFETY: the blocks from the past and from the update partition the present, `into_present` has checked
    // that it is exactly as long, and each element was copied whole from a valid `T`.
    Ok(unsafe { present.assume_init_mut() })
}

fn check_bytes(buffer: &Buffer, argument: Argument, got: usize, told: Told) -> Result<(), Error> {
    let units = |bytes: usize| bytes.checked_div(told.unit).unwrap_or(bytes);
    buffer.check(argument, told.index, units(got), units(buffer.bytes))
}
