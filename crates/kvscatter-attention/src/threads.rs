//! Divides a call between the threads of an executor.

use core::sync::atomic::{AtomicUsize, Ordering};

use kvscatter::Executor;

use crate::block::{Call, Room};
use crate::element::Float;
use crate::prepared::Scratch;

/// Runs every item of a call. Threads claim items until none are left, and the calling thread computes those
/// that no thread has claimed.
pub(crate) fn run<T: Float>(call: &Call<'_, T>, scratch: &mut Scratch, executor: Option<&dyn Executor>) {
    let items = call.prepared.items();
    match executor {
        Some(executor) if items > 1 && scratch.workers.len() > 1 => {
            let (next, arrived) = (AtomicUsize::new(0), AtomicUsize::new(0));
            let rooms = Rooms { first: scratch.workers.as_mut_ptr(), count: scratch.workers.len() };
            let work = || {
                if let Some(room) = rooms.take(arrived.fetch_add(1, Ordering::Relaxed)) {
                    claim(call, room, &next);
                }
            };
            executor.broadcast(&work);
            // By the executor's contract, every call of `work` has returned, so the first room is free again.
            if let Some(room) = scratch.workers.first_mut() {
                claim(call, room, &next);
            }
        }
        _ => {
            if let Some(room) = scratch.workers.first_mut() {
                (0..items).for_each(|item| call.item(item, room));
            }
        }
    }
}

fn claim<T: Float>(call: &Call<'_, T>, room: &mut Room, next: &AtomicUsize) {
    loop {
        let item = next.fetch_add(1, Ordering::Relaxed);
        if item >= call.prepared.items() {
            return;
        }
        call.item(item, room);
    }
}

/// The rooms of a scratch, each of which one thread uses.
struct Rooms {
    first: *mut Room,
    count: usize,
}

// SAFETY: `take` returns each room to one thread only, and a room may be used on any thread.
unsafe impl Sync for Rooms {}

impl Rooms {
    /// Returns a room, or `None` if more threads arrived than there are rooms.
    #[expect(clippy::mut_from_ref, reason = "each index is passed once")]
    fn take(&self, index: usize) -> Option<&mut Room> {
        // SAFETY: The counter that `index` comes from returns each number once, so nothing else uses this
        // room. The scratch is borrowed mutably while the executor runs.
        (index < self.count).then(|| unsafe { &mut *self.first.wrapping_add(index) })
    }
}
