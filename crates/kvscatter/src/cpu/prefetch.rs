//! Prefetches of destinations, and the fence after streamed stores. On architectures other than x86-64 these functions
//! do nothing.

#[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
use core::arch::x86_64::{__cpuid, _MM_HINT_T0, _MM_HINT_T2, _mm_prefetch, _mm_sfence, CpuidResult};
#[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
use core::sync::atomic::{AtomicU8, Ordering::Relaxed};

/// Bytes of a cache line.
pub(super) const LINE: usize = 64;

/// The cache that destinations are prefetched into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hint {
    L1,
    L2,
}

impl Hint {
    /// Returns the cache that suits this machine. On AMD, prefetching into the first-level cache gains at least as much
    /// for cold rows as prefetching into the second-level one, and rows that already lie in the second-level cache then
    /// wait once less. On Intel, it costs cold rows most of the gain. `docs/rejected.md` has the figures of both.
    #[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
    pub(super) fn here() -> Self {
        // In a virtual machine `cpuid` exits to the host, which takes longer than preparing a write. So the
        // answer is kept.
        static L1: AtomicU8 = AtomicU8::new(UNKNOWN);
        const UNKNOWN: u8 = 2;
        let mut nearest = L1.load(Relaxed);
        if nearest == UNKNOWN {
            let CpuidResult { ebx, edx, ecx, .. } = __cpuid(0);
            let vendor = [ebx, edx, ecx].map(u32::to_le_bytes);
            nearest =
                [b"AuthenticAMD", b"HygonGenuine"].iter().any(|amd| vendor.as_flattened() == &amd[..]).into();
            L1.store(nearest, Relaxed);
        }
        if nearest == 1 { Self::L1 } else { Self::L2 }
    }

    /// Returns the cache that suits this machine: nothing is prefetched.
    #[cfg(not(all(target_arch = "x86_64", target_feature = "sse2")))]
    pub(super) fn here() -> Self {
        Self::L2
    }
}

/// Makes streamed stores visible to other threads before anything that follows.
pub(super) fn fence() {
    #[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
    // SAFETY: every x86-64 has SSE.
    unsafe {
        _mm_sfence();
    }
}

/// Prefetches the lines of a run that will be written. A run that does not begin at a line's start reaches
/// into one line more, which the machine fetches itself.
#[inline(always)]
pub(super) fn prefetch_run<const L1: bool>(dst: *mut u8, len: usize) {
    let mut at = 0;
    while cfg!(all(target_arch = "x86_64", target_feature = "sse2")) && at < len {
        if L1 {
            prefetch_l1(dst.wrapping_add(at));
        } else {
            prefetch_l2(dst.wrapping_add(at));
        }
        at = at.wrapping_add(LINE);
    }
}

/// Prefetches a line into the first-level cache.
#[inline(always)]
pub(super) fn prefetch_l1(at: *const u8) {
    #[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
    // SAFETY: a hint reads nothing, so it takes any address, and every x86-64 has SSE.
    unsafe {
        _mm_prefetch::<_MM_HINT_T0>(at.cast());
    }
    #[cfg(not(all(target_arch = "x86_64", target_feature = "sse2")))]
    let _ = at;
}

/// Prefetches a line into the second-level cache. `_MM_HINT_T2` is the hint whose gain was measured, on an Intel Xeon.
#[inline(always)]
fn prefetch_l2(at: *const u8) {
    #[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
    // SAFETY: a hint reads nothing, so it takes any address, and every x86-64 has SSE.
    unsafe {
        _mm_prefetch::<_MM_HINT_T2>(at.cast());
    }
    #[cfg(not(all(target_arch = "x86_64", target_feature = "sse2")))]
    let _ = at;
}
