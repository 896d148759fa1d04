//! Prefetches of destinations, and the fence after streamed stores. On architectures other than x86-64 these
//! functions do nothing.
//!
//! This file decides into which CPU cache destinations are prefetched.

pub(super) use self::machine::{fence, prefetch_line};

/// The number of bytes in a cache line.
pub(super) const LINE: usize = 64;

/// The CPU cache that destinations are prefetched into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hint {
    L1,
    L2,
}

impl Hint {
    /// Returns the CPU cache that suits this machine.
    ///
    /// On AMD it is the first-level CPU cache. Cold rows gain at least as much as from prefetching into the
    /// second-level CPU cache, and rows that are already in the second-level CPU cache then wait once less.
    /// On Intel, prefetching into the first-level CPU cache would cost cold rows most of the gain.
    /// `docs/decisions.md` has the figures of both.
    pub(super) fn here() -> Self {
        if machine::is_amd() { Self::L1 } else { Self::L2 }
    }
}

/// Prefetches the lines of a run that will be written. A run that does not begin at the start of a line
/// reaches into one more line, which the processor fetches without a hint.
#[inline(always)]
pub(super) fn prefetch_run<const L1: bool>(dst: *mut u8, len: usize) {
    let mut at = 0;
    while machine::PREFETCHES && at < len {
        prefetch_line::<L1>(dst.wrapping_add(at));
        at = at.wrapping_add(LINE);
    }
}

#[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
mod machine {
    use core::arch::x86_64::{__cpuid, _MM_HINT_T0, _MM_HINT_T2, _mm_prefetch, _mm_sfence, CpuidResult};
    use core::sync::atomic::{AtomicU8, Ordering::Relaxed};

    pub(super) const PREFETCHES: bool = true;

    /// Returns `true` if AMD made the processor, or Hygon, whose processors have AMD's design.
    pub(super) fn is_amd() -> bool {
        // The answer is kept, because in a virtual machine `cpuid` exits to the host, and that takes longer
        // than preparing a write.
        static IS_AMD: AtomicU8 = AtomicU8::new(UNKNOWN);
        const UNKNOWN: u8 = 2;
        let mut is_amd = IS_AMD.load(Relaxed);
        if is_amd == UNKNOWN {
            let CpuidResult { ebx, edx, ecx, .. } = __cpuid(0);
            let vendor = [ebx, edx, ecx].map(u32::to_le_bytes);
            is_amd =
                [b"AuthenticAMD", b"HygonGenuine"].iter().any(|amd| vendor.as_flattened() == &amd[..]).into();
            IS_AMD.store(is_amd, Relaxed);
        }
        is_amd == 1
    }

    /// Makes streamed stores visible to other threads before any later store.
    pub(crate) fn fence() {
        // SAFETY: Every x86-64 processor has SSE.
        unsafe { _mm_sfence() };
    }

    /// Prefetches a line into the first-level CPU cache or the second-level one. The hint for the second
    /// level is `_MM_HINT_T2` (`prefetcht2`), because its gain was measured, on an Intel Xeon.
    #[inline(always)]
    pub(crate) fn prefetch_line<const L1: bool>(at: *const u8) {
        if L1 {
            // SAFETY: A hint reads nothing, so it takes any address. Every x86-64 processor has SSE.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) };
        } else {
            // SAFETY: A hint reads nothing, so it takes any address. Every x86-64 processor has SSE.
            unsafe { _mm_prefetch::<_MM_HINT_T2>(at.cast()) };
        }
    }
}

#[cfg(not(all(target_arch = "x86_64", target_feature = "sse2")))]
mod machine {
    pub(super) const PREFETCHES: bool = false;

    pub(super) fn is_amd() -> bool {
        false
    }

    pub(crate) fn fence() {}

    pub(crate) fn prefetch_line<const L1: bool>(_: *const u8) {}
}
