//! Writes through pointers to memory that a foreign caller owns. The checks here, made before the first byte moves,
//! replace what the types of slices guarantee: no null pointers, no overlap, no end beyond the address space.

use core::ptr;

use super::{WritePlan, Written};
use crate::argument::Argument;
use crate::cpu::CpuKernels;
use crate::error::{Error, LengthUnit};
use crate::geometry::Geometry;
use crate::plan::Integers;

/// The memory of one tensor, by address and length, as a C caller or a host runtime gives it.
///
/// A dense tensor takes all of it; a strided one lies somewhere in it. No alignment is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawBuffer {
    /// The address of the first byte. If `len` is 0, it may be null or dangling.
    pub ptr: *mut u8,
    /// Bytes from there on.
    pub len: usize,
}

/// Writing through pointers. On an error nothing has been written (X1), and no byte outside the plan ever changes
/// (X2).
impl WritePlan<'_> {
    /// [`write_bytes`](Self::write_bytes) for a cache and an update that a foreign caller owns.
    ///
    /// # Errors
    /// [`Error::BufferLength`], [`Error::NullBuffer`], [`Error::AddressSpace`]; [`Error::Overlap`] if the cache shares a byte
    /// with the update or with the plan's indices, which are read again while it is written; [`Error::ElementWidth`] for
    /// strings.
    ///
    /// # Safety
    /// Each buffer is null, which is refused unless its length is 0, or valid for reads of its length, the cache for writes
    /// as well. If elements have 4 bits, both are initialised. While this runs nothing else writes to either, and nothing
    /// else reads the cache.
    pub unsafe fn write_raw(&self, cache: RawBuffer, update: RawBuffer) -> Result<Written, Error> {
        // SAFETY: both buffers are null or valid, initialised where elements have 4 bits, and nothing else uses them in a
        // way that conflicts. An array yields the same pair each time.
        unsafe { self.write_many_raw([(cache, update)]) }
    }

    /// [`write_many`](Self::write_many) for buffers that a foreign caller owns. All pairs of a cache and
    /// its update are checked before the first byte moves. Strided caches may interleave, as long as no two positions
    /// overlap. If the address range of the updates includes caches, each of those is compared with each update. That
    /// takes 35 µs for 160 pairs, measured on an Intel Xeon.
    ///
    /// # Errors
    /// As [`write_raw`](Self::write_raw), naming the pair; [`Error::Overlap`] also if a cache shares a byte with
    /// another pair's update, or a bit with another cache.
    ///
    /// # Safety
    /// As [`write_raw`](Self::write_raw), for every pair; and the iterator, each time it or a clone of it is walked,
    /// yields the same pairs.
    pub unsafe fn write_many_raw(
        &self,
        pairs: impl IntoIterator<Item = (RawBuffer, RawBuffer), IntoIter: Clone>,
    ) -> Result<Written, Error> {
        let pairs = pairs.into_iter();
        let Self { moves, cpu, threads } = *self;
        let names = moves.geometry().names();
        check_pairs(moves.geometry(), cpu, pairs.clone())?;
        for (pair, (cache, _)) in pairs.clone().enumerate() {
            self.check_lists(names.cache, pair, cache)?;
        }
        for (cache, update) in pairs {
            // SAFETY: K1: both are of this plan. `check_pairs` has compared the width and the lengths of the same pairs
            // with the geometry. V1: it has seen that the cache shares no byte with an update, both are valid for their
            // lengths, and nothing else uses the cache or writes to the update. `slice` is never null. Elements of 4
            // bits are initialised.
            unsafe { cpu.write_raw(&moves, threads, cache.slice(), update.slice()) };
        }
        Ok(self.written())
    }

    /// [`write_present_bytes`](Self::write_present_bytes) for buffers that a foreign caller owns. The present need
    /// not be initialised.
    ///
    /// # Errors
    /// As [`write_raw`](Self::write_raw); [`Error::Overlap`] if the present shares a byte with the past, the update or
    /// the indices. (Where it *is* the past, write in place.)
    ///
    /// # Safety
    /// Each buffer is null, which is refused unless its length is 0, or valid for its length: past and update for reads, the
    /// present for writes and, if elements have 4 bits, for reads as well. If elements have 4 bits, past and update are initialised. While this
    /// runs nothing else writes to any of them, and nothing else reads the present.
    pub unsafe fn write_present_raw(
        &self,
        past: RawBuffer,
        update: RawBuffer,
        present: RawBuffer,
    ) -> Result<Written, Error> {
        let Self { moves, cpu, threads } = *self;
        check_present(moves.geometry(), cpu, past, update, present)?;
        self.check_lists(moves.geometry().names().present, 0, present)?;
        if cpu.reads_present() && present.len > 0 {
            // SAFETY: the present is valid for writes of its length, which is not 0, and nothing else uses it.
            unsafe { ptr::write_bytes(present.ptr, 0, present.len) };
        }
        let sources = [past.slice().cast_const(), update.slice().cast_const()];
        // SAFETY: K1: both are of this plan. `check_present` has compared the width and all lengths with the geometry.
        // V1: it has seen that the present shares no byte with the others, all three are valid for their lengths, and
        // nothing else uses the present or writes to the others. `slice` is never null. If kernels read the present, it
        // was just initialised, and the others are, since elements have 4 bits.
        unsafe { cpu.write_present_raw(&moves, threads, sources, present.slice()) };
        Ok(self.written())
    }

    /// Checks that `written` shares no byte with the index lists, because they are read again while bytes move.
    fn check_lists(&self, argument: Argument, pair: usize, written: RawBuffer) -> Result<(), Error> {
        match self.moves.lists().find(|(_, values)| written.overlaps(RawBuffer::of(*values))) {
            Some((with, _)) => Err(Error::Overlap { argument, with, pair, with_pair: pair }),
            None => Ok(()),
        }
    }
}

/// Checks pairs of a cache and its update for a write in place, by addresses and lengths alone.
pub(crate) fn check_pairs(
    geometry: &Geometry,
    cpu: &CpuKernels,
    pairs: impl Iterator<Item = (RawBuffer, RawBuffer)> + Clone,
) -> Result<(), Error> {
    let names = geometry.names();
    cpu.check_fixed_width(geometry)?;
    for (pair, (cache, update)) in pairs.clone().enumerate() {
        geometry.check_buffers(pair, [cache.len, update.len], LengthUnit::Bytes)?;
        check_addresses(pair, [(names.cache, cache), (names.update, update)])?;
    }
    check_overlap(geometry, &pairs)
}

/// The same for the functional form.
pub(crate) fn check_present(
    geometry: &Geometry,
    cpu: &CpuKernels,
    past: RawBuffer,
    update: RawBuffer,
    present: RawBuffer,
) -> Result<(), Error> {
    let names = geometry.names();
    cpu.check_fixed_width(geometry)?;
    geometry.check_buffers(0, [past.len, update.len], LengthUnit::Bytes)?;
    geometry.check_present(present.len, LengthUnit::Bytes)?;
    let sources = [(names.cache, past), (names.update, update)];
    check_addresses(0, sources)?;
    check_addresses(0, [(names.present, present)])?;
    match sources.into_iter().find(|(_, source)| present.overlaps(*source)) {
        Some((with, _)) => Err(Error::Overlap { argument: names.present, with, pair: 0, with_pair: 0 }),
        None => Ok(()),
    }
}

fn check_addresses<const N: usize>(pair: usize, buffers: [(Argument, RawBuffer); N]) -> Result<(), Error> {
    for (argument, raw) in buffers {
        let RawBuffer { ptr, len } = raw;
        if ptr.is_null() && len > 0 {
            return Err(Error::NullBuffer { argument, pair, len });
        }
        if raw.wraps() {
            return Err(Error::AddressSpace { argument, pair, address: ptr.addr(), len });
        }
    }
    Ok(())
}

/// No cache shares a byte with an update, nor a bit with another cache.
fn check_overlap(
    geometry: &Geometry,
    pairs: &(impl Iterator<Item = (RawBuffer, RawBuffer)> + Clone),
) -> Result<(), Error> {
    let names = geometry.names();
    let caches_overlap = |one: RawBuffer, other: RawBuffer| {
        let distance = one.ptr.addr().wrapping_sub(other.ptr.addr()).cast_signed();
        one.overlaps(other) && geometry.caches_overlap_at(distance)
    };
    // A cache outside of all updates needs no second look.
    let updates = pairs.clone().fold(RawBuffer::NONE, |all, (_, update)| all.join(update));
    let mut caches = RawBuffer::NONE;
    for (pair, (cache, _)) in pairs.clone().enumerate() {
        let error = |with, with_pair| Err(Error::Overlap { argument: names.cache, with, pair, with_pair });
        if cache.overlaps(updates)
            && let Some(with_pair) = pairs.clone().position(|(_, update)| cache.overlaps(update))
        {
            return error(names.update, with_pair);
        }
        if cache.overlaps(caches)
            && let Some(with_pair) =
                pairs.clone().take(pair).position(|(other, _)| caches_overlap(cache, other))
        {
            return error(names.cache, with_pair);
        }
        caches = caches.join(cache);
    }
    Ok(())
}

impl RawBuffer {
    const NONE: Self = Self { ptr: ptr::null_mut(), len: 0 };

    fn of(integers: Integers<'_>) -> Self {
        let (ptr, len) = integers.memory();
        Self { ptr: ptr.cast_mut(), len }
    }

    fn end(self) -> usize {
        self.ptr.addr().saturating_add(self.len)
    }

    /// Whether it reaches past the end of the address space, as no memory does. If strides lead to lower
    /// addresses, this also catches a first byte that would lie below address 0, because `wrapping_sub` then
    /// gives a high address.
    ///
    /// A buffer without bytes never does.
    #[must_use]
    pub fn wraps(self) -> bool {
        self.len > 0 && self.ptr.addr().checked_add(self.len).is_none()
    }

    /// Whether the two share a byte.
    #[must_use]
    pub fn overlaps(self, other: Self) -> bool {
        let disjoint = self.end() <= other.ptr.addr() || other.end() <= self.ptr.addr();
        self.len > 0 && other.len > 0 && !disjoint
    }

    /// The smallest buffer that holds both.
    fn join(self, other: Self) -> Self {
        if self.len == 0 || other.len == 0 {
            return if self.len == 0 { other } else { self };
        }
        let first = if self.ptr.addr() < other.ptr.addr() { self } else { other };
        let end = self.end().max(other.end());
        Self { len: end.saturating_sub(first.ptr.addr()), ..first }
    }

    /// The memory as a slice that is safe to borrow if its bytes are: one of no bytes does not point to null.
    fn slice(self) -> *mut [u8] {
        if self.len == 0 { &mut [] } else { ptr::slice_from_raw_parts_mut(self.ptr, self.len) }
    }
}
