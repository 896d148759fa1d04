//! Memory that a foreign caller owns: what slices promise by their types is checked here, before the first byte
//! moves.

use core::{ptr, slice};

use super::{Raw, check_bytes, check_lengths};
use crate::{Argument, Error, Geometry, WritePlan, Written};

/// The memory of one tensor, by address and length: what a C caller or a host runtime lends.
///
/// A dense tensor takes all of it; a strided one lies somewhere in it. No alignment is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawBuffer {
    /// The first byte. It may be null, and point anywhere, if there are no bytes.
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
    /// [`Error::BufferLength`], [`Error::NullBuffer`], [`Error::BufferWraps`]; [`Error::Overlap`] if the cache shares a byte
    /// with the update or with the plan's indices, which are read again while it is written; [`Error::ElementWidth`] for
    /// strings.
    ///
    /// # Safety
    /// Each buffer is null with a length of 0, or valid for reads of its length, the cache for writes as well.
    /// While this runs nothing else writes to either, and nothing else reads the cache.
    pub unsafe fn write_raw(&self, cache: RawBuffer, update: RawBuffer) -> Result<Written, Error> {
        // SAFETY: the caller's.
        unsafe { self.write_many_raw([(cache, update)]) }
    }

    /// [`write_many_bytes`](Self::write_many_bytes) for buffers that a foreign caller owns. All pairs of a cache and
    /// its update are checked before the first byte moves. Strided caches may interleave, as long as no two positions
    /// meet. If updates lie between caches, each cache is compared with each update. That takes 35 µs for 160
    /// pairs, measured on an Intel Xeon.
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
        self.geometry().check_raw(pairs.clone())?;
        for (buffer, (cache, _)) in pairs.clone().enumerate() {
            self.check_lists(self.words().cache, buffer, cache)?;
        }
        for (index, (cache, update)) in pairs.enumerate() {
            match check_bytes(self, index, cache.len, update.len)? {
                // SAFETY: just checked, and the caller's.
                Raw::Bytes(copiers) => unsafe { copiers.write(self, cache.ptr, update.ptr) },
                Raw::Nibbles(nibbles) => {
                    // SAFETY: the caller's; no update shares a byte with this cache.
                    let cache = unsafe { cache.bytes_mut() };
                    // SAFETY: as above.
                    nibbles.write(self, cache, unsafe { update.bytes() });
                }
            }
        }
        Ok(self.written())
    }

    /// [`into_present_bytes`](Self::into_present_bytes) for buffers that a foreign caller owns. The present need
    /// not be initialised.
    ///
    /// # Errors
    /// As [`write_raw`](Self::write_raw); [`Error::Overlap`] if the present shares a byte with the past, the update or
    /// the indices. (Where it *is* the past, write in place.)
    ///
    /// # Safety
    /// Each buffer is null with a length of 0, or valid for its length: past and update for reads, the present for
    /// writes. While this runs nothing else writes to any of them, and nothing else reads the present.
    pub unsafe fn into_present_raw(
        &self,
        past: RawBuffer,
        update: RawBuffer,
        present: RawBuffer,
    ) -> Result<Written, Error> {
        self.geometry().check_raw_present(past, update, present)?;
        self.check_lists(self.words().present, 0, present)?;
        match check_bytes(self, 0, past.len, update.len)? {
            // SAFETY: just checked, and the caller's.
            Raw::Bytes(copiers) => unsafe { copiers.fill(self, present.ptr, past.ptr, update.ptr) },
            Raw::Nibbles(nibbles) => {
                // Two elements make a byte, and the first of them reads it.
                if present.len > 0 {
                    // SAFETY: the caller's.
                    unsafe { ptr::write_bytes(present.ptr, 0, present.len) };
                }
                // SAFETY: the caller's; it is initialised, and shares no byte with the others.
                let present = unsafe { present.bytes_mut() };
                // SAFETY: the caller's.
                let past = unsafe { past.bytes() };
                // SAFETY: the caller's.
                nibbles.fill(self, present, past, unsafe { update.bytes() });
            }
        }
        Ok(self.written())
    }

    /// Indices are checked once and read again while bytes move: what is written shares no byte with them.
    fn check_lists(&self, argument: Argument, buffer: usize, written: RawBuffer) -> Result<(), Error> {
        match self.positions().lists().find(|(_, values)| written.overlaps(values.buffer())) {
            Some((with, _)) => Err(Error::Overlap { argument, with, buffer, with_buffer: buffer }),
            None => Ok(()),
        }
    }
}

/// What memory must be like before anything writes to it: its addresses and lengths alone, so that it may lie anywhere,
/// on a device too.
impl Geometry {
    /// Checks pairs of a cache and its update for a write in place, without touching them. Strided caches may
    /// interleave, as long as no two positions meet.
    ///
    /// # Errors
    /// [`Error::BufferLength`], [`Error::NullBuffer`], [`Error::BufferWraps`]; [`Error::Overlap`] if a cache shares a byte
    /// with an update, or a bit with another cache; [`Error::ElementWidth`] for strings.
    pub fn check_raw(
        &self,
        pairs: impl IntoIterator<Item = (RawBuffer, RawBuffer), IntoIter: Clone>,
    ) -> Result<(), Error> {
        let pairs = pairs.into_iter();
        for (index, (cache, update)) in pairs.clone().enumerate() {
            check_lengths(self, index, cache.len, update.len)?;
            Self::check_addresses(index, [(self.words.cache, cache), (self.words.update, update)])?;
        }
        self.check_apart(&pairs)
    }

    /// The same for the functional form.
    ///
    /// # Errors
    /// As [`check_raw`](Self::check_raw); [`Error::Overlap`] if the present shares a byte with the past or the update.
    pub fn check_raw_present(
        &self,
        past: RawBuffer,
        update: RawBuffer,
        present: RawBuffer,
    ) -> Result<(), Error> {
        let words = self.words;
        check_lengths(self, 0, past.len, update.len)?;
        self.check_present(present.len, |buffer| buffer.bytes)?;
        Self::check_addresses(0, [(words.cache, past), (words.update, update)])?;
        Self::check_addresses(0, [(words.present, present)])?;
        match [(words.cache, past), (words.update, update)]
            .into_iter()
            .find(|(_, other)| present.overlaps(*other))
        {
            Some((with, _)) => {
                Err(Error::Overlap { argument: words.present, with, buffer: 0, with_buffer: 0 })
            }
            None => Ok(()),
        }
    }

    fn check_addresses<const N: usize>(
        buffer: usize,
        buffers: [(Argument, RawBuffer); N],
    ) -> Result<(), Error> {
        for (argument, raw) in buffers {
            let RawBuffer { ptr, len } = raw;
            if ptr.is_null() && len > 0 {
                return Err(Error::NullBuffer { argument, buffer, len });
            }
            if raw.wraps() {
                return Err(Error::BufferWraps { argument, buffer, address: ptr.addr(), len });
            }
        }
        Ok(())
    }

    /// No cache shares a byte with an update, nor a bit with another cache.
    fn check_apart(
        &self,
        pairs: &(impl Iterator<Item = (RawBuffer, RawBuffer)> + Clone),
    ) -> Result<(), Error> {
        let words = self.words;
        // What lies outside of all updates needs no second look.
        let updates = pairs.clone().fold(RawBuffer::NONE, |all, (_, update)| all.join(update));
        let mut caches = RawBuffer::NONE;
        for (buffer, (cache, _)) in pairs.clone().enumerate() {
            let refused =
                |with, with_buffer| Err(Error::Overlap { argument: words.cache, with, buffer, with_buffer });
            if cache.overlaps(updates)
                && let Some(pair) = pairs.clone().position(|(_, update)| cache.overlaps(update))
            {
                return refused(words.update, pair);
            }
            let shares = |other: RawBuffer| cache.overlaps(other) && self.caches_meet(cache, other);
            if cache.overlaps(caches)
                && let Some(pair) = pairs.clone().take(buffer).position(|(other, _)| shares(other))
            {
                return refused(words.cache, pair);
            }
            caches = caches.join(cache);
        }
        Ok(())
    }

    fn caches_meet(&self, one: RawBuffer, other: RawBuffer) -> bool {
        let distance = one.ptr.addr().wrapping_sub(other.ptr.addr()).cast_signed();
        self.steps.meet(distance, self.element().size_bits())
    }
}

impl RawBuffer {
    const NONE: Self = Self { ptr: ptr::null_mut(), len: 0 };

    fn end(self) -> usize {
        self.ptr.addr().saturating_add(self.len)
    }

    /// Whether it reaches past the end of the address space, as no memory does. If strides lead to lower
    /// addresses, this also catches a first byte that would lie below address 0, because `wrapping_sub` then
    /// gives a high address.
    ///
    /// A buffer without bytes never does, since it has no place.
    #[must_use]
    pub fn wraps(self) -> bool {
        self.len > 0 && self.ptr.addr().checked_add(self.len).is_none()
    }

    /// Whether the two share a byte.
    #[must_use]
    pub fn overlaps(self, other: Self) -> bool {
        let apart = self.end() <= other.ptr.addr() || other.end() <= self.ptr.addr();
        self.len > 0 && other.len > 0 && !apart
    }

    /// The least buffer that holds both.
    fn join(self, other: Self) -> Self {
        if self.len == 0 || other.len == 0 {
            return if self.len == 0 { other } else { self };
        }
        let first = if self.ptr.addr() < other.ptr.addr() { self } else { other };
        let end = self.end().max(other.end());
        Self { len: end.saturating_sub(first.ptr.addr()), ..first }
    }

    /// # Safety
    /// There are no bytes, or they are valid for reads for as long as the slice lives, and nothing writes there.
    unsafe fn bytes<'a>(self) -> &'a [u8] {
        // SAFETY: the caller's.
        if self.len == 0 { &[] } else { unsafe { slice::from_raw_parts(self.ptr, self.len) } }
    }

    /// # Safety
    /// As [`bytes`](Self::bytes), for writes as well, and nothing else reads there either.
    unsafe fn bytes_mut<'a>(self) -> &'a mut [u8] {
        // SAFETY: the caller's.
        if self.len == 0 { &mut [] } else { unsafe { slice::from_raw_parts_mut(self.ptr, self.len) } }
    }
}
