//! Counts the steps of a piece of code: how often each part of it runs, and what it allocates.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};

/// The number of allocated bytes that count as one step.
const BYTES_A_STEP: u64 = 64;

/// Counts the steps of `work`. No other work may run in the process at the same time.
pub(crate) fn steps(work: impl FnOnce()) -> u64 {
    let before = total();
    work();
    total() - before
}

fn total() -> u64 {
    regions() + ALLOCATED.load(Ordering::Relaxed)
}

/// Returns how often the regions of all instrumented functions have run.
fn regions() -> u64 {
    unsafe extern "C" {
        safe fn __llvm_profile_begin_counters() -> *mut u64;
        safe fn __llvm_profile_end_counters() -> *mut u64;
    }
    let (begin, end) = (__llvm_profile_begin_counters(), __llvm_profile_end_counters());
    let count = (end.addr() - begin.addr()) / size_of::<u64>();
    // SAFETY: The compiler's runtime provides the two ends of the array of its counters. The array is valid
    // as long as the process lives. Only the thread of the one test changes the counters, and that thread is
    // executing this function.
    let counters = unsafe { std::slice::from_raw_parts(begin, count) };
    counters.iter().sum()
}

static ALLOCATED: AtomicU64 = AtomicU64::new(0);

/// The system's allocator with a counter. An allocation is a step, and so are every [`BYTES_A_STEP`] bytes of
/// it.
struct Counting;

impl Counting {
    fn note(layout: Layout) {
        let bytes = u64::try_from(layout.size()).unwrap_or(u64::MAX);
        ALLOCATED.fetch_add(1 + bytes / BYTES_A_STEP, Ordering::Relaxed);
    }
}

// SAFETY: Every call is passed to the system's allocator unchanged. Counting neither allocates nor unwinds.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Self::note(layout);
        // SAFETY: The caller of `alloc` guarantees a layout of at least one byte, which is what the system's
        // allocator requires.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: All memory comes from `System`, in `alloc` above, with this layout.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;
