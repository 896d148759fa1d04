//! A library without the standard library that links `kvscatter`. `cargo xtask no-std` builds it and never
//! runs it.
//!
//! Its own panic handler and allocator conflict with those of `std`. It therefore compiles only if neither
//! `kvscatter` nor any of its dependencies links `std`.
#![no_std]

extern crate kvscatter;

use core::alloc::{GlobalAlloc, Layout};
use core::panic::PanicInfo;

struct NoMemory;

// SAFETY: A null pointer is the documented result of an allocator that has no memory. This allocator never
// returns memory, so no memory can be passed back to it.
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
