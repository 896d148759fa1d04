//! x86-64: the kernels compiled for wider registers, stores that bypass the caches, prefetching.

use core::arch::x86_64::{
    __cpuid, __m128i, __m256i, __m512i, _MM_HINT_T0, _MM_HINT_T2, _mm_loadu_si128, _mm_prefetch, _mm_sfence,
    _mm_stream_si128, _mm256_loadu_si256, _mm256_stream_si256, _mm512_loadu_si512, _mm512_stream_si512,
    CpuidResult,
};
use core::marker::PhantomData;
use core::sync::atomic::{AtomicU8, Ordering::Relaxed};

use super::kernel::{Hint, Instructions, Kernel, LINE, Memcpy, Pattern, Run, Short, Sides, copy_runs};
use super::limits::AHEAD;

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
    type Any = Short<32>;
    type Stream = Stream<__m256i>;
    type Lines = Lines<__m256i>;

    fn kernel<R: Run>() -> Kernel {
        avx2::<R>
    }
}

impl Instructions for Avx512 {
    const LONGEST: usize = 512;
    type Any = Short<64>;
    type Stream = Stream<__m512i>;
    type Lines = Lines<__m512i>;

    fn kernel<R: Run>() -> Kernel {
        avx512::<R>
    }
}

/// # Safety
/// As [`Kernel`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn avx512<R: Run>(batch: &[Sides], pattern: &Pattern) {
    // SAFETY: the caller's.
    unsafe { copy_runs::<R>(batch, pattern) };
}

/// # Safety
/// As [`Kernel`].
#[target_feature(enable = "avx2")]
unsafe fn avx2<R: Run>(batch: &[Sides], pattern: &Pattern) {
    // SAFETY: the caller's.
    unsafe { copy_runs::<R>(batch, pattern) };
}

/// Runs whose whole lines are stored past the caches, so that they are not read first. [`fence`] comes after
/// the last one.
pub(super) struct Stream<V>(PhantomData<V>);

impl<V: Vector> Run for Stream<V> {
    #[inline(always)]
    unsafe fn copy(dst: *mut u8, src: *const u8, len: usize) {
        let head = dst.align_offset(LINE);
        let Some(body) = len.checked_sub(head).filter(|&body| body >= AHEAD) else {
            // SAFETY: the caller's.
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

/// Runs that begin and end with a line of the destination, stored past the caches. [`fence`] comes after the last
/// one.
pub(super) struct Lines<V>(PhantomData<V>);

impl<V: Vector> Run for Lines<V> {
    #[inline(always)]
    unsafe fn copy(dst: *mut u8, src: *const u8, len: usize) {
        debug_assert_eq!((dst.addr() % LINE, len % LINE), (0, 0), "a part of a line");
        let mut at = 0;
        while at < len {
            prefetch::<_MM_HINT_T0>(src.wrapping_add(at.wrapping_add(AHEAD)));
            let mut within = 0;
            while within < LINE {
                let here = at.wrapping_add(within);
                // SAFETY: the line at `at` lies before `len`, and `LINE` is a multiple of the vector's width.
                let vector = unsafe { V::load(src.wrapping_add(here)) };
                // SAFETY: as above; `dst` is aligned to a line, and every vector in it to its width.
                unsafe { vector.stream(dst.wrapping_add(here)) };
                within = within.wrapping_add(V::BYTES);
            }
            at = at.wrapping_add(LINE);
        }
    }
}

/// Makes streamed stores visible to other threads before anything that follows.
pub(super) fn fence() {
    // SAFETY: every x86-64 has SSE.
    unsafe { _mm_sfence() };
}

/// Returns the prefetch hint that suits this machine. On AMD, prefetching into the first-level cache gains at
/// least as much for cold rows as prefetching into the second-level one, and rows that already lie in the
/// second-level cache then wait once less. On Intel, it costs cold rows most of the gain. `docs/rejected.md`
/// has the figures of both.
pub(super) fn prefetch_hint() -> Hint {
    // In a virtual machine `cpuid` exits to the host, which takes longer than preparing a write. So the
    // answer is kept.
    static NEAREST: AtomicU8 = AtomicU8::new(UNKNOWN);
    const UNKNOWN: u8 = 2;
    let mut nearest = NEAREST.load(Relaxed);
    if nearest == UNKNOWN {
        let CpuidResult { ebx, edx, ecx, .. } = __cpuid(0);
        let vendor = [ebx, edx, ecx].map(u32::to_le_bytes);
        nearest =
            [b"AuthenticAMD", b"HygonGenuine"].iter().any(|amd| vendor.as_flattened() == &amd[..]).into();
        NEAREST.store(nearest, Relaxed);
    }
    if nearest == 1 { Hint::Nearest } else { Hint::SecondLevel }
}

/// Prefetches the lines of a run that will be written. A run that does not begin at a line's start reaches
/// into one line more, which the machine fetches itself.
#[inline(always)]
pub(super) fn prefetch_run<const NEAREST: bool>(dst: *mut u8, len: usize) {
    let mut at = 0;
    while at < len {
        if NEAREST {
            prefetch::<_MM_HINT_T0>(dst.wrapping_add(at));
        } else {
            prefetch::<_MM_HINT_T2>(dst.wrapping_add(at));
        }
        at = at.wrapping_add(LINE);
    }
}

#[inline(always)]
fn prefetch<const HINT: i32>(at: *const u8) {
    // SAFETY: a hint reads nothing, whatever the address, and every x86-64 has SSE.
    unsafe { _mm_prefetch::<HINT>(at.cast()) };
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
        // SAFETY: the caller's.
        unsafe { _mm_loadu_si128(src.cast()) }
    }
    #[inline(always)]
    unsafe fn stream(self, dst: *mut u8) {
        // SAFETY: the caller's.
        unsafe { _mm_stream_si128(dst.cast(), self) };
    }
}

impl Vector for __m256i {
    const BYTES: usize = 32;
    #[inline(always)]
    unsafe fn load(src: *const u8) -> Self {
        // SAFETY: the caller's.
        unsafe { _mm256_loadu_si256(src.cast()) }
    }
    #[inline(always)]
    unsafe fn stream(self, dst: *mut u8) {
        // SAFETY: the caller's.
        unsafe { _mm256_stream_si256(dst.cast(), self) };
    }
}

impl Vector for __m512i {
    const BYTES: usize = 64;
    #[inline(always)]
    unsafe fn load(src: *const u8) -> Self {
        // SAFETY: the caller's.
        unsafe { _mm512_loadu_si512(src.cast()) }
    }
    #[inline(always)]
    unsafe fn stream(self, dst: *mut u8) {
        // SAFETY: the caller's.
        unsafe { _mm512_stream_si512(dst.cast(), self) };
    }
}
