//! The caches that a call writes.

use core::mem::MaybeUninit;
use core::slice;

use kvscatter::{Executor, RawBuffer};

use super::inputs::{Sizes, Slots};
use crate::threads::for_each;

/// The smallest number of bytes for which a call uses the threads of the session.
const MIN_SHARED_BYTES: usize = 1 << 18;

/// A cache before and after a call.
#[derive(Clone, Copy)]
pub(super) struct Present {
    pub(super) past: RawBuffer,
    pub(super) memory: RawBuffer,
}

impl Present {
    /// Returns whether the cache after the call has the memory of the one before it.
    pub(super) fn is_in_place(&self) -> bool {
        self.memory == self.past
    }
}

/// Copies the rows before the new ones of each sample and head, and fills the slots after the new ones with zeros.
/// Caches that are written in place keep what they have.
///
/// # Safety
/// Both caches have these sizes, with `slots` slots and elements of `width` bytes. The past is initialised and valid
/// for reads, and the present valid for writes. A present that is not in place shares no memory with anything else.
pub(super) unsafe fn copy_past(
    presents: [Present; 2],
    sizes: Sizes,
    slots: usize,
    positions: &Slots,
    width: usize,
    threads: &dyn Executor,
) {
    let Sizes { new, kv_heads, size, past, .. } = sizes;
    let row = size * width;
    let copied = presents.map(|present| {
        // SAFETY: The past is initialised and valid for reads, by this function's contract.
        let from = unsafe { bytes(present.past) };
        // SAFETY: The present is valid for writes, and if it is used, it shares no memory with anything else, by this
        // function's contract.
        (!present.is_in_place()).then(|| (from, unsafe { bytes_mut(present.memory) }))
    });
    let heads = copied.into_iter().flatten().flat_map(|(from, to)| {
        from_heads(from, past * row).zip(to.chunks_exact_mut(slots * row)).enumerate()
    });
    let is_large =
        presents.iter().any(|present| !present.is_in_place() && present.memory.len >= MIN_SHARED_BYTES);
    for_each(heads, Some(threads).filter(|_| is_large), |(index, (from, to))| {
        let kept = positions.kept(index / kv_heads, new == 0).min(past);
        let (old, rest) = to.split_at_mut(kept * row);
        old.write_copy_of_slice(&from[..old.len()]);
        rest.get_mut(new * row..).unwrap_or_default().fill(MaybeUninit::new(0));
    });
}

/// Returns the heads of a cache, which may have no slots.
fn from_heads(cache: &[u8], head: usize) -> impl Iterator<Item = &[u8]> + Send {
    let empty: &[u8] = &[];
    cache.chunks_exact(head.max(1)).chain(core::iter::repeat(empty))
}

/// # Safety
/// The memory is initialised and valid for reads for `'a`, and nothing writes to it until then.
unsafe fn bytes<'a>(memory: RawBuffer) -> &'a [u8] {
    if memory.len == 0 {
        return &[];
    }
    // SAFETY: This function's contract.
    unsafe { slice::from_raw_parts(memory.ptr, memory.len) }
}

/// # Safety
/// The memory is valid for writes for `'a`, and nothing else uses it until then.
unsafe fn bytes_mut<'a>(memory: RawBuffer) -> &'a mut [MaybeUninit<u8>] {
    if memory.len == 0 {
        return &mut [];
    }
    // SAFETY: This function's contract.
    unsafe { slice::from_raw_parts_mut(memory.ptr.cast(), memory.len) }
}
