//! x86-64: the kernels compiled for wider registers, and non-temporal stores, which bypass the caches.

use core::arch::x86_64::{
    __m128i, __m256i, __m512i, _mm_loadu_si128, _mm_stream_si128, _mm256_loadu_si256, _mm256_stream_si256,
    _mm512_loadu_si512, _mm512_stream_si512,
};
use core::marker::PhantomData;

use super::kernel::{Instructions, Kernel, Memcpy, Overlapping, Pattern, Pointers, Run, copy_runs};
use super::limits::{STREAM_MIN_RUN, STREAM_PREFETCH_DISTANCE};
use super::prefetch::{LINE, prefetch_l1};

pub(super) struct Sse2;
pub(super) struct Avx2;
pub(super) struct Avx512;

impl Instructions for Sse2 {
    const LONGEST: usize = 128;
    type Any = Memcpy;
    type Stream = Stream<__m128i>;
    type Lines = Lines<__m128i>;

    fn kernel<R: Run>() -> Kernel {
        copy_runs::<R>
    }
}

impl Instructions for Avx2 {
    const LONGEST: usize = 256;
    type Any = Overlapping<32>;
    type Stream = Stream<__m256i>;
    type Lines = Lines<__m256i>;

    fn kernel<R: Run>() -> Kernel {
        avx2::<R>
    }
}

impl Instructions for Avx512 {
    const LONGEST: usize = 512;
    type Any = Overlapping<64>;
    type Stream = Stream<__m512i>;
    type Lines = Lines<__m512i>;

    fn kernel<R: Run>() -> Kernel {
        avx512::<R>
    }
}

/// # Safety
/// As [`Kernel`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn avx512<R: Run>(batch: &[Pointers], pattern: &Pattern) {
    // SAFETY: this function's contract is that of `copy_runs`.
    unsafe { copy_runs::<R>(batch, pattern) };
}

/// # Safety
/// As [`Kernel`].
#[target_feature(enable = "avx2")]
unsafe fn avx2<R: Run>(batch: &[Pointers], pattern: &Pattern) {
    // SAFETY: this function's contract is that of `copy_runs`.
    unsafe { copy_runs::<R>(batch, pattern) };
}

/// Runs whose whole lines are stored past the caches, so that they are not read first. [`fence`](super::prefetch::fence) comes after
/// the last one.
pub(super) struct Stream<V>(PhantomData<V>);

impl<V: Vector> Run for Stream<V> {
    #[inline(always)]
    unsafe fn copy(dst: *mut u8, src: *const u8, len: usize) {
        let head = dst.align_offset(LINE);
        let Some(body) = len.checked_sub(head).filter(|&body| body >= STREAM_MIN_RUN) else {
            // SAFETY: `len` bytes that are valid on both pointers and do not overlap, by this function's contract.
            return unsafe { Memcpy::copy(dst, src, len) };
        };
        // SAFETY: `head <= len`.
        unsafe { Memcpy::copy(dst, src, head) };
        let (dst, src) = (dst.wrapping_add(head), src.wrapping_add(head));
        let tail = body.wrapping_rem(LINE);
        let end = body.wrapping_sub(tail);
        // SAFETY: `dst` is aligned to a line, and `end` is a whole number of them.
        unsafe { Lines::<V>::copy(dst, src, end) };
        // SAFETY: `end + tail` is the end of the run.
        unsafe { Memcpy::copy(dst.wrapping_add(end), src.wrapping_add(end), tail) };
    }
}

/// Runs that begin and end with a line of the destination, stored past the caches. [`fence`](super::prefetch::fence) comes after the last
/// one.
pub(super) struct Lines<V>(PhantomData<V>);

impl<V: Vector> Run for Lines<V> {
    #[inline(always)]
    unsafe fn copy(dst: *mut u8, src: *const u8, len: usize) {
        debug_assert_eq!((dst.addr() % LINE, len % LINE), (0, 0), "a part of a line");
        let mut at = 0;
        while at < len {
            prefetch_l1(src.wrapping_add(at.wrapping_add(STREAM_PREFETCH_DISTANCE)));
            let mut within = 0;
            while within < LINE {
                let here = at.wrapping_add(within);
                // SAFETY: the line at `at` lies before `len`, and `LINE` is a multiple of the vector's width.
                let vector = unsafe { V::load(src.wrapping_add(here)) };
                // SAFETY: the line at `at` lies before `len`; `dst` is aligned to a line, and every vector in it to its width.
                unsafe { vector.stream(dst.wrapping_add(here)) };
                within = within.wrapping_add(V::BYTES);
            }
            at = at.wrapping_add(LINE);
        }
    }
}

/// A vector register.
pub(super) trait Vector {
    const BYTES: usize;
    /// # Safety
    /// `src` is valid for `BYTES` of reads; the machine has the register.
    unsafe fn load(src: *const u8) -> Self;
    /// # Safety
    /// `dst` is valid for `BYTES` of writes and a multiple of them; the machine has the register.
    unsafe fn stream(self, dst: *mut u8);
}

impl Vector for __m128i {
    const BYTES: usize = 16;
    #[inline(always)]
    unsafe fn load(src: *const u8) -> Self {
        // SAFETY: the bytes are valid for reads and the machine has the register, by this function's contract.
        unsafe { _mm_loadu_si128(src.cast()) }
    }
    #[inline(always)]
    unsafe fn stream(self, dst: *mut u8) {
        // SAFETY: the bytes are valid for writes and aligned, and the machine has the register, by this function's contract.
        unsafe { _mm_stream_si128(dst.cast(), self) };
    }
}

impl Vector for __m256i {
    const BYTES: usize = 32;
    #[inline(always)]
    unsafe fn load(src: *const u8) -> Self {
        // SAFETY: the bytes are valid for reads and the machine has the register, by this function's contract.
        unsafe { _mm256_loadu_si256(src.cast()) }
    }
    #[inline(always)]
    unsafe fn stream(self, dst: *mut u8) {
        // SAFETY: the bytes are valid for writes and aligned, and the machine has the register, by this function's contract.
        unsafe { _mm256_stream_si256(dst.cast(), self) };
    }
}

impl Vector for __m512i {
    const BYTES: usize = 64;
    #[inline(always)]
    unsafe fn load(src: *const u8) -> Self {
        // SAFETY: the bytes are valid for reads and the machine has the register, by this function's contract.
        unsafe { _mm512_loadu_si512(src.cast()) }
    }
    #[inline(always)]
    unsafe fn stream(self, dst: *mut u8) {
        // SAFETY: the bytes are valid for writes and aligned, and the machine has the register, by this function's contract.
        unsafe { _mm512_stream_si512(dst.cast(), self) };
    }
}
