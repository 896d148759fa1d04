//! Storing consecutive bytes, whatever they are put together from, past the caches and in whole lines.
//!
//! A line of which only a part is stored must be read first, and all stores behind it wait (`docs/rejected.md` has
//! what that costs). So where sources meet within a line, it is put together before it is stored.

use core::mem::MaybeUninit;
use core::ptr;

use super::kernel::{Hint, Kernel, LINE, NEVER, Pattern, Sides};
use crate::mapping::Loop;

/// What has been appended is in the destination after [`finish`](Self::finish).
pub(super) struct Lines {
    kernel: Kernel,
    /// Where the line begins that is stored next.
    dst: *mut u8,
    line: [MaybeUninit<u8>; LINE],
    /// Bytes from here on belong to us: those before are another's, or in the destination already.
    from: usize,
    /// Bytes up to here are known; below `LINE` between calls.
    to: usize,
}

impl Lines {
    /// For a kernel that copies runs of whole lines.
    pub(super) fn new(kernel: Kernel) -> Self {
        let line = [MaybeUninit::uninit(); LINE];
        Self { kernel, dst: ptr::null_mut(), line, from: 0, to: 0 }
    }

    /// What is appended from now on begins at `dst`.
    ///
    /// # Safety
    /// As [`append`](Self::append), for what is still to be stored.
    pub(super) unsafe fn go_on_at(&mut self, dst: *mut u8) {
        if self.dst.wrapping_add(self.to) != dst {
            // SAFETY: the caller's.
            unsafe { self.finish() };
            let from = dst.addr().wrapping_rem(LINE);
            (self.dst, self.from, self.to) = (dst.wrapping_sub(from), from, from);
        }
    }

    /// Stores `len` bytes behind what was appended before, now or later.
    ///
    /// # Safety
    /// The destination is valid for writes of all that was appended since [`go_on_at`](Self::go_on_at), and reached
    /// through nothing else until [`finish`](Self::finish); `src` is valid for reads of `len` bytes and does not
    /// overlap it. The machine has the instruction set that the kernel was chosen for.
    #[inline]
    pub(super) unsafe fn append(&mut self, mut src: *const u8, mut len: usize) {
        if self.to > 0 {
            let count = len.min(LINE.wrapping_sub(self.to));
            // SAFETY: `count <= len`, and `to + count <= LINE`.
            unsafe { self.hold(src, count) };
            if self.to < LINE {
                return;
            }
            // SAFETY: the caller's.
            unsafe { self.finish() };
            (src, len) = (src.wrapping_add(count), len.wrapping_sub(count));
        }
        let rest = len.wrapping_rem(LINE);
        let whole = len.wrapping_sub(rest);
        if whole > 0 {
            // SAFETY: the caller's, for as many bytes at `src`; `dst` is where a line begins.
            unsafe { store(self.kernel, Sides { dst: self.dst, src }, whole) };
            self.dst = self.dst.wrapping_add(whole);
        }
        // SAFETY: `rest` bytes are left, fewer than a line, and the line is empty.
        unsafe { self.hold(src.wrapping_add(whole), rest) };
    }

    /// Stores what is not yet in the destination.
    ///
    /// # Safety
    /// As [`append`](Self::append), for what is still to be stored.
    pub(super) unsafe fn finish(&mut self) {
        let line = self.line.as_ptr().cast::<u8>();
        if (self.from, self.to) == (0, LINE) {
            // SAFETY: all of the line was appended.
            unsafe { store(self.kernel, Sides { dst: self.dst, src: line }, LINE) };
        } else {
            let (dst, line) = (self.dst.wrapping_add(self.from), line.wrapping_add(self.from));
            // SAFETY: these bytes of the line were appended, the others were not.
            unsafe { ptr::copy_nonoverlapping(line, dst, self.to.wrapping_sub(self.from)) };
        }
        if self.to == LINE {
            (self.dst, self.to) = (self.dst.wrapping_add(LINE), 0);
        }
        self.from = self.to;
    }

    /// # Safety
    /// `src` is valid for reads of `count` bytes, and `to + count <= LINE`.
    unsafe fn hold(&mut self, src: *const u8, count: usize) {
        let line = self.line.as_mut_ptr().cast::<u8>().wrapping_add(self.to);
        // SAFETY: the caller's.
        unsafe { ptr::copy_nonoverlapping(src, line, count) };
        self.to = self.to.wrapping_add(count);
    }
}

/// # Safety
/// As [`Lines::append`], for a whole number of lines.
unsafe fn store(kernel: Kernel, sides: Sides, len: usize) {
    let pattern = Pattern { runs: Loop::ONCE, len, lead: NEVER, hint: Hint::SecondLevel };
    // SAFETY: the caller's.
    unsafe { kernel(&[sides], &pattern) };
}
