//! Copying runs: the algorithms once, and per instruction set a thin function that compiles them.
//!
//! A kernel is called once for a batch of blocks that differ only in where they begin, never per run. Which one
//! is decided when a geometry is prepared, by the length that its runs will have ([`Kernels::choose`]); blocks
//! of another length (a ring's wrap, `lengths`) go to the one for any length. Everything here counts bytes.

use core::{ptr, slice};

use super::Isa;
use super::limits::SHORT;
#[cfg(target_arch = "x86_64")]
use super::x86;
use crate::mapping::Loop;

/// Where one row of runs begins on either side.
#[derive(Clone, Copy, Debug)]
pub(super) struct Begin {
    pub(super) dst: *mut u8,
    pub(super) src: *const u8,
}

/// What the blocks of a batch have in common.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pattern {
    /// The runs, and how far one is from the next.
    pub(super) runs: Loop,
    /// Bytes of one run.
    pub(super) len: usize,
    /// How many runs ahead of the copy destinations are asked for; [`NEVER`] where the machine sees for itself
    /// what comes next.
    pub(super) lead: usize,
}

/// More runs than any batch has.
pub(super) const NEVER: usize = usize::MAX >> 1;

/// Copies all runs of a batch.
///
/// # Safety
/// P1: every run, which is `len` bytes at a beginning moved by a multiple of the pattern's steps below its
/// count, is valid for writes on the left and for reads on the right; no run that is written overlaps one that
/// is read. The machine has the instruction set that the kernel was chosen for.
pub(super) type Kernel = unsafe fn(&[Begin], &Pattern);

/// The kernels of one mapping.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kernels {
    /// The length that [`usual`](Self::usual) is for.
    pub(super) len: usize,
    pub(super) usual: Kernel,
    pub(super) any: Kernel,
    /// Past the caches: for writes that no cache can hold.
    pub(super) stream: Kernel,
}

impl Kernels {
    pub(super) fn choose(isa: Isa, len: usize) -> Self {
        match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => x86::avx512_kernels(len),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => x86::avx2_kernels(len),
            #[cfg(target_arch = "x86_64")]
            Isa::Sse2 => x86::sse2_kernels(len),
            _ => Self::portable(len),
        }
    }

    pub(super) fn portable(len: usize) -> Self {
        let usual = match len {
            1 => copy_runs::<Fixed<1>>,
            2 => copy_runs::<Fixed<2>>,
            4 => copy_runs::<Fixed<4>>,
            8 => copy_runs::<Fixed<8>>,
            16 => copy_runs::<Fixed<16>>,
            32 => copy_runs::<Fixed<32>>,
            64 => copy_runs::<Fixed<64>>,
            128 => copy_runs::<Fixed<128>>,
            _ => copy_runs::<Memcpy>,
        };
        Self { len, usual, any: copy_runs::<Memcpy>, stream: copy_runs::<Memcpy> }
    }
}

/// Makes streamed stores visible to other threads before anything that follows.
pub(super) fn fence() {
    #[cfg(target_arch = "x86_64")]
    x86::fence();
}

/// How one run is copied.
pub(super) trait Run {
    /// # Safety
    /// `dst` is valid for `len` bytes of writes, `src` for as many of reads, and they do not overlap. The
    /// machine has the instruction set that the caller is compiled for.
    unsafe fn copy(dst: *mut u8, src: *const u8, len: usize);

    /// Asks for a destination that will be written soon.
    #[inline(always)]
    fn announce(dst: *mut u8, len: usize) {
        #[cfg(target_arch = "x86_64")]
        x86::announce(dst, len);
        #[cfg(not(target_arch = "x86_64"))]
        let _ = (dst, len);
    }
}

/// Every run of a batch. `R` sees two pointers and a length.
///
/// # Safety
/// As [`Kernel`].
#[inline(always)]
pub(super) unsafe fn copy_runs<R: Run>(batch: &[Begin], pattern: &Pattern) {
    let Pattern { runs, len, lead } = *pattern;
    // P1: every run lies inside its buffer; the step past the last one is computed but never used, and wrapping
    // arithmetic makes that defined.
    if batch.len().wrapping_mul(runs.count) <= lead {
        for &Begin { mut dst, mut src } in batch {
            for _ in 0..runs.count {
                // SAFETY: the caller's.
                unsafe { R::copy(dst, src, len) };
                dst = dst.wrapping_offset(runs.dst);
                src = src.wrapping_offset(runs.src);
            }
        }
        return;
    }
    let mut ahead = Ahead { batch: batch.iter(), runs, dst: ptr::null_mut(), left: 0 };
    ahead.by_ref().take(lead).for_each(|dst| R::announce(dst, len));
    for &Begin { mut dst, mut src } in batch {
        for _ in 0..runs.count {
            ahead.next().into_iter().for_each(|dst| R::announce(dst, len));
            // SAFETY: the caller's.
            unsafe { R::copy(dst, src, len) };
            dst = dst.wrapping_offset(runs.dst);
            src = src.wrapping_offset(runs.src);
        }
    }
}

/// The destinations of a batch's runs.
struct Ahead<'a> {
    batch: slice::Iter<'a, Begin>,
    runs: Loop,
    dst: *mut u8,
    /// How many runs begin at `dst` and behind it, before the next block does.
    left: usize,
}

impl Iterator for Ahead<'_> {
    type Item = *mut u8;

    #[inline(always)]
    fn next(&mut self) -> Option<*mut u8> {
        if self.left == 0 {
            self.dst = self.batch.next()?.dst;
            self.left = self.runs.count;
        }
        let dst = self.dst;
        self.dst = dst.wrapping_offset(self.runs.dst);
        self.left = self.left.wrapping_sub(1);
        Some(dst)
    }
}

/// Runs of `N` bytes: the length is in the code, and the compiler moves it through registers.
pub(super) struct Fixed<const N: usize>;

impl<const N: usize> Run for Fixed<N> {
    #[inline(always)]
    unsafe fn copy(dst: *mut u8, src: *const u8, _: usize) {
        // That of overlapping memory, because it loads all before it stores any: a load behind a store to the
        // same place in another page waits for it.
        // SAFETY: the caller's, for `N` bytes: the kernel is chosen by that length.
        unsafe { ptr::copy_nonoverlapping(src, dst, N) };
    }

    #[inline(always)]
    fn announce(dst: *mut u8, _: usize) {
        #[cfg(target_arch = "x86_64")]
        x86::announce(dst, N);
        #[cfg(not(target_arch = "x86_64"))]
        let _ = dst;
    }
}

/// Runs of any length, by the C library.
pub(super) struct Memcpy;

impl Run for Memcpy {
    #[inline(always)]
    unsafe fn copy(dst: *mut u8, src: *const u8, len: usize) {
        // SAFETY: the caller's.
        unsafe { ptr::copy_nonoverlapping(src, dst, len) };
    }
}

/// Runs of any length: short ones in pieces of `N` bytes, the last of which overlaps the one before it, without
/// the cost of a call.
pub(super) struct Pieces<const N: usize>;

impl<const N: usize> Run for Pieces<N> {
    #[inline(always)]
    unsafe fn copy(dst: *mut u8, src: *const u8, len: usize) {
        let Some(last) = len.checked_sub(N).filter(|_| len <= SHORT) else {
            // SAFETY: the caller's.
            return unsafe { Memcpy::copy(dst, src, len) };
        };
        let mut at = 0;
        while at < last {
            // SAFETY: `at + N < len`.
            unsafe { Fixed::<N>::copy(dst.wrapping_add(at), src.wrapping_add(at), N) };
            at = at.wrapping_add(N);
        }
        // SAFETY: `last + N == len`.
        unsafe { Fixed::<N>::copy(dst.wrapping_add(last), src.wrapping_add(last), N) };
    }
}
