//! Memory that a plan may write.

use core::marker::PhantomData;
use core::mem::MaybeUninit;

use bytemuck::NoUninit;

/// Bytes borrowed for writing, initialised or not: the borrow makes every byte of the slice valid for writes
/// and reachable through nothing else.
///
/// A type's values stay valid because kernels only ever copy whole values of the same type, or bytes into
/// bytes.
#[derive(Debug)]
pub(crate) struct Destination<'a> {
    start: *mut u8,
    borrow: PhantomData<&'a mut [MaybeUninit<u8>]>,
}

impl<'a> Destination<'a> {
    pub(crate) fn new<T: NoUninit>(slice: &'a mut [T]) -> Self {
        Self { start: slice.as_mut_ptr().cast(), borrow: PhantomData }
    }

    pub(crate) fn uninit<T: NoUninit>(slice: &'a mut [MaybeUninit<T>]) -> Self {
        Self { start: slice.as_mut_ptr().cast(), borrow: PhantomData }
    }

    pub(crate) fn start(&mut self) -> *mut u8 {
        self.start
    }
}
