//! A library without the standard library that takes in `kvscatter`; `cargo xtask no-std` builds it.
//!
//! Its own panic handler and allocator collide with those of `std`, so it compiles only while neither
//! `kvscatter` nor anything below it links `std`. It is never run.
#![no_std]

extern crate kvscatter;

use core::alloc::{GlobalAlloc, Layout};
use core::panic::PanicInfo;

struct NoMemory;

// SAFETY: a null pointer is the documented answer of an allocator that has no memory, so nothing it returned
// can ever be given back to it.
unsafe impl GlobalAlloc for NoMemory {
    unsafe fn alloc(&self, _: Layout) -> *mut u8 {
        core::ptr::null_mut()
    }

    unsafe fn dealloc(&self, _: *mut u8, _: Layout) {}
}

#[global_allocator]
static ALLOCATOR: NoMemory = NoMemory;

#[panic_handler]
fn halt(_: &PanicInfo<'_>) -> ! {
    loop {}
}
