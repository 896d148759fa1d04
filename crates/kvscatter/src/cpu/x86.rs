//! The kernels of x86-64: copies compiled for wider registers, and non-temporal stores, which bypass the CPU
//! caches.
//!
//! `cpu/kernel.rs` defines V1 to V3.

use core::arch::x86_64::{
    __m128i, __m256i, __m512i, _mm_loadu_si128, _mm_stream_si128, _mm256_loadu_si256, _mm256_stream_si256,
    _mm512_loadu_si512, _mm512_stream_si512,
};
use core::marker::PhantomData;

use super::kernel::{CopyRun, Instructions, Kernel, Memcpy, Overlapping, Pattern, Pointers, copy_runs};
use super::limits::STREAM_PREFETCH_DISTANCE;
use super::prefetch::{LINE, prefetch_line};

pub(super) struct Sse2;
pub(super) struct Avx2;
pub(super) struct Avx512;

impl Instructions for Sse2 {
    const LONGEST: usize = 128;
    type Any = Memcpy;
    type Stream = Stream<__m128i>;
    type Lines = Lines<__m128i>;

    fn kernel<R: CopyRun>() -> Kernel {
        copy_runs::<R>
    }
}

impl Instructions for Avx2 {
    const LONGEST: usize = 256;
    type Any = Overlapping<32>;
    type Stream = Stream<__m256i>;
    type Lines = Lines<__m256i>;

    fn kernel<R: CopyRun>() -> Kernel {
        avx2::<R>
    }
}

impl Instructions for Avx512 {
    const LONGEST: usize = 512;
    type Any = Overlapping<64>;
    type Stream = Stream<__m512i>;
    type Lines = Lines<__m512i>;

    fn kernel<R: CopyRun>() -> Kernel {
        avx512::<R>
    }
}

/// Copies every run of a batch with AVX-512 instructions.
///
/// # Safety
/// V1, V2 and V3 hold for `R` and every run of the batch, as [`Kernel`] defines the runs. The machine has
/// AVX-512 F, BW and VL.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn avx512<R: CopyRun>(batch: &[Pointers], pattern: &Pattern) {
    // SAFETY: V1 to V3 hold for every run of this same batch.
    unsafe { copy_runs::<R>(batch, pattern) };
}

/// Copies every run of a batch with AVX2 instructions.
///
/// # Safety
/// V1, V2 and V3 hold for `R` and every run of the batch, as [`Kernel`] defines the runs. The machine has
/// AVX2.
#[target_feature(enable = "avx2")]
unsafe fn avx2<R: CopyRun>(batch: &[Pointers], pattern: &Pattern) {
    // SAFETY: V1 to V3 hold for every run of this same batch.
    unsafe { copy_runs::<R>(batch, pattern) };
}

/// Copies runs of any length. The whole lines of a run are stored past the CPU caches, so that the processor
/// does not read them first. The rest of its first and of its last line uses `memcpy`, and so does a run
/// without a line boundary. The caller calls [`fence`](super::prefetch::fence) after the last run.
pub(super) struct Stream<V>(PhantomData<V>);

impl<V: Vector> CopyRun for Stream<V> {
    #[inline(always)]
    unsafe fn copy(dst: *mut u8, src: *const u8, len: usize) {
        let head = dst.align_offset(LINE);
        let Some(body) = len.checked_sub(head) else {
            // SAFETY: V1 holds for the same run. V2 and V3: `Memcpy` needs no instruction set and takes all
            // runs.
            return unsafe { Memcpy::copy(dst, src, len) };
        };
        // SAFETY: V1: both pointers are valid for `len` bytes, and `head <= len`. V2 and V3: `Memcpy` needs
        // no instruction set and takes all runs.
        unsafe { Memcpy::copy(dst, src, head) };
        let (dst, src) = (dst.wrapping_add(head), src.wrapping_add(head));
        let tail = body.wrapping_rem(LINE);
        let end = body.wrapping_sub(tail);
        // SAFETY: V1: both pointers are valid for the `body` bytes that are left, and `end <= body`. V2 holds
        // for `Self`, which needs the same instruction set. V3: `dst` has moved on by `head` bytes, so it is
        // aligned to a line, and `end` is a multiple of a line.
        unsafe { Lines::<V>::copy(dst, src, end) };
        // SAFETY: V1: both pointers are valid for the `body` bytes that are left, and `end + tail == body`.
        // V2 and V3: `Memcpy` needs no instruction set and takes all runs.
        unsafe { Memcpy::copy(dst.wrapping_add(end), src.wrapping_add(end), tail) };
    }
}

/// Copies runs that begin and end at a line of the destination, and stores them past the CPU caches. The
/// caller calls [`fence`](super::prefetch::fence) after the last run.
pub(super) struct Lines<V>(PhantomData<V>);

impl<V: Vector> CopyRun for Lines<V> {
    #[inline(always)]
    unsafe fn copy(dst: *mut u8, src: *const u8, len: usize) {
        const { assert!(LINE.is_multiple_of(V::BYTES), "a line is whole vectors") };
        debug_assert_eq!((dst.addr() % LINE, len % LINE), (0, 0), "a part of a line");
        let mut at = 0;
        while at < len {
            prefetch_line::<true>(src.wrapping_add(at.wrapping_add(STREAM_PREFETCH_DISTANCE)));
            let mut within = 0;
            while within < LINE {
                let here = at.wrapping_add(within);
                // SAFETY: V1: `src` is valid for reads of `len` bytes. By V3 these are whole lines, and a
                // line is whole vectors. `here < len`, so the vector at `here` ends at `len` or before. V2:
                // the machine has the register.
                let vector = unsafe { V::load(src.wrapping_add(here)) };
                // SAFETY: V1: `dst` is valid for writes of `len` bytes. By V3 the vector at `here` ends at
                // `len` or before, and `dst` is aligned to a line, so `dst + here` is aligned to a vector.
                // V2: the machine has the register.
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
    /// Loads a vector.
    ///
    /// # Safety
    /// `src` is valid for reads of `BYTES` bytes, and the machine has the register (V2).
    unsafe fn load(src: *const u8) -> Self;
    /// Stores the vector past the CPU caches.
    ///
    /// # Safety
    /// `dst` is valid for writes of `BYTES` bytes and aligned to `BYTES`, and the machine has the register
    /// (V2).
    unsafe fn stream(self, dst: *mut u8);
}

impl Vector for __m128i {
    const BYTES: usize = 16;
    #[inline(always)]
    unsafe fn load(src: *const u8) -> Self {
        // SAFETY: `src` is valid for reads of a register, and the machine has the register (V2).
        unsafe { _mm_loadu_si128(src.cast()) }
    }
    #[inline(always)]
    unsafe fn stream(self, dst: *mut u8) {
        // SAFETY: `dst` is valid for writes of a register and aligned to one, and the machine has the
        // register (V2).
        unsafe { _mm_stream_si128(dst.cast(), self) };
    }
}

impl Vector for __m256i {
    const BYTES: usize = 32;
    #[inline(always)]
    unsafe fn load(src: *const u8) -> Self {
        // SAFETY: `src` is valid for reads of a register, and the machine has the register (V2).
        unsafe { _mm256_loadu_si256(src.cast()) }
    }
    #[inline(always)]
    unsafe fn stream(self, dst: *mut u8) {
        // SAFETY: `dst` is valid for writes of a register and aligned to one, and the machine has the
        // register (V2).
        unsafe { _mm256_stream_si256(dst.cast(), self) };
    }
}

impl Vector for __m512i {
    const BYTES: usize = 64;
    #[inline(always)]
    unsafe fn load(src: *const u8) -> Self {
        // SAFETY: `src` is valid for reads of a register, and the machine has the register (V2).
        unsafe { _mm512_loadu_si512(src.cast()) }
    }
    #[inline(always)]
    unsafe fn stream(self, dst: *mut u8) {
        // SAFETY: `dst` is valid for writes of a register and aligned to one, and the machine has the
        // register (V2).
        unsafe { _mm512_stream_si512(dst.cast(), self) };
    }
}
