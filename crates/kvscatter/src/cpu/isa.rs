//! The instruction sets that the kernels may use.

use core::fmt;

/// An instruction set that kernels are compiled for.
///
/// [`Isa::detected`] returns the widest instruction set of this machine. A write uses the instruction set
/// that was chosen when it was prepared ([`Prepared::isa`](crate::Prepared::isa)), normally the detected one.
///
/// With the feature `std`, the environment variable `KVSCATTER_MAX_ISA` can select a narrower one:
/// `portable`, `sse2`, `avx2` or `avx512`. The variable is for finding out which kernel has a fault. It is read
/// once, and any other value sets no limit. [`Prepared::with_isa`](crate::Prepared::with_isa) sets a limit for
/// one handle.
///
/// A write may use less than this. 4-bit rows that straddle bytes use at most AVX2, and strings are cloned
/// without a kernel.
///
/// An instruction set is greater than those that it contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Isa {
    /// The instructions of the compiler's target, without any that are specific to one architecture.
    Portable,
    /// The x86-64 baseline, with prefetches and stores that bypass the CPU caches.
    Sse2,
    /// AVX2, with 32-byte vectors.
    Avx2,
    /// AVX-512 F, BW and VL, with 64-byte vectors.
    Avx512,
}

impl Isa {
    const ALL: [Self; 4] = [Self::Portable, Self::Sse2, Self::Avx2, Self::Avx512];

    /// Returns the widest instruction set that this machine has. Without the feature `std`, returns the
    /// widest one that the target is compiled for.
    #[must_use]
    pub fn detected() -> Self {
        #[cfg(all(target_arch = "x86_64", target_feature = "sse2", feature = "std"))]
        {
            use std::arch::is_x86_feature_detected as has;
            if has!("avx2") {
                let wide = has!("avx512f") && has!("avx512bw") && has!("avx512vl");
                return if wide { Self::Avx512 } else { Self::Avx2 };
            }
        }
        let has_avx512 =
            cfg!(all(target_feature = "avx512f", target_feature = "avx512bw", target_feature = "avx512vl"));
        match () {
            () if cfg!(not(all(target_arch = "x86_64", target_feature = "sse2"))) => Self::Portable,
            () if has_avx512 => Self::Avx512,
            () if cfg!(target_feature = "avx2") => Self::Avx2,
            () => Self::Sse2,
        }
    }

    /// Returns the widest instruction set that kernels may use: the detected one, or a narrower one that
    /// `KVSCATTER_MAX_ISA` selects.
    #[cfg(feature = "std")]
    #[must_use]
    pub fn allowed() -> Self {
        use std::sync::OnceLock;
        static ALLOWED: OnceLock<Isa> = OnceLock::new();
        *ALLOWED.get_or_init(|| {
            let limit = std::env::var("KVSCATTER_MAX_ISA").ok();
            let limit = limit.and_then(|name| Self::detected().up_to().find(|isa| isa.name() == name));
            limit.unwrap_or(Self::detected())
        })
    }

    /// Returns the widest instruction set that kernels may use, which is the detected one.
    #[cfg(not(feature = "std"))]
    #[must_use]
    pub fn allowed() -> Self {
        Self::detected()
    }

    /// Returns the narrower instruction sets and this one, narrowest first.
    pub fn up_to(self) -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(move |isa| *isa <= self)
    }

    fn name(self) -> &'static str {
        match self {
            Self::Portable => "portable",
            Self::Sse2 => "sse2",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
        }
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
