//! Divides a call between the threads of an executor.
//!
//! Threads get blocks, or chunks of blocks if there are fewer than two blocks for each thread.

use core::sync::atomic::{AtomicUsize, Ordering};

use kvscatter::Executor;

use crate::block::CallMemory;
use crate::float::Float;
use crate::kernel::CacheElement;
use crate::room::{Room, Scratch};

/// Computes every item of a call. Threads claim items, or chunks of items if there are few, until none are left.
/// The calling thread computes those that no other thread has claimed.
///
/// The results of chunks are always merged in the order of their positions, so the result does not depend on
/// the threads.
pub(crate) fn run<T: Float, C: CacheElement>(
    call: &CallMemory<'_, T, C>,
    scratch: &mut Scratch,
    executor: Option<&dyn Executor>,
) {
    let items = call.setup.items();
    let threads = scratch.rooms.len();
    let Some(room) = scratch.rooms.first_mut() else { return };
    let is_long = threads > 1 && call.has_multiplications(scratch.min_shared, room);
    let Some(executor) = executor.filter(|_| is_long) else {
        (0..items).for_each(|item| call.item(item, room));
        return;
    };
    // The scratch has room for the longest call. This call may have fewer chunks.
    let chunks = if call.setup.divides_items(threads) { call.max_chunks(room).max(1) } else { 1 };
    if chunks == 1 {
        share(executor, &mut scratch.rooms, items, |item, room| call.item(item, room));
        return;
    }
    let used = scratch.partials.len().min(items * chunks);
    let partials = Shared::new(&mut scratch.partials[..used]);
    share(executor, &mut scratch.rooms, partials.count, |index, room| {
        // SAFETY: Each index is claimed once.
        if let Some(partial) = unsafe { partials.get(index) } {
            call.partial(index / chunks, index % chunks, room, partial);
        }
    });
    if let Some(room) = scratch.rooms.first_mut() {
        for (item, partials) in scratch.partials[..used].chunks_exact(chunks).enumerate() {
            call.join(item, partials, room);
        }
    }
}

/// Calls `work` once with each index below `count`, on the threads of the executor.
fn share(executor: &dyn Executor, rooms: &mut [Room], count: usize, work: impl Fn(usize, &mut Room) + Sync) {
    let (next, arrived) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let claim = |room: &mut Room| {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= count {
                return;
            }
            work(index, room);
        }
    };
    let shared = Shared::new(rooms);
    executor.broadcast(&|| {
        // SAFETY: Each number is returned by the counter once.
        if let Some(room) = unsafe { shared.get(arrived.fetch_add(1, Ordering::Relaxed)) } {
            claim(room);
        }
    });
    // By the executor's contract, every call of the closure has returned, so the first room is free again.
    if let Some(room) = rooms.first_mut() {
        claim(room);
    }
}

/// A slice whose elements are used by one thread each.
struct Shared<'a, T> {
    first: *mut T,
    count: usize,
    borrows: core::marker::PhantomData<&'a mut [T]>,
}

// SAFETY: `get` returns each element to one thread only, and the elements may be used on any thread.
unsafe impl<T: Send> Sync for Shared<'_, T> {}

impl<'a, T> Shared<'a, T> {
    fn new(slice: &'a mut [T]) -> Self {
        Self { first: slice.as_mut_ptr(), count: slice.len(), borrows: core::marker::PhantomData }
    }

    /// Returns an element, or `None` if the index is not in the slice.
    ///
    /// # Safety
    /// No index may be passed twice.
    #[expect(clippy::mut_from_ref, reason = "each element is returned once")]
    unsafe fn get(&self, index: usize) -> Option<&mut T> {
        // SAFETY: The index is in the slice, which is borrowed mutably, and no other call returns this element.
        (index < self.count).then(|| unsafe { &mut *self.first.wrapping_add(index) })
    }
}
