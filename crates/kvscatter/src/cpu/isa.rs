//! Which instructions the kernels may use.

use core::fmt;

/// The instruction sets that kernels are written for.
///
/// [`Isa::detected`] is what this machine has. What a geometry uses ([`Prepared::isa`](crate::Prepared::isa))
/// is chosen when it is prepared: the detected one, or with the feature `std` a narrower one that the
/// environment variable `KVSCATTER_MAX_ISA` names (`portable`, `sse2`, `avx2`, `avx512`). The variable is for
/// tests, and for telling a kernel's fault from another's; it is read once, and a word that is none of these
/// sets no limit. 4-bit rows that straddle bytes have no kernel of their own for AVX-512, and strings have none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Isa {
    /// What the compiler's target has, and nothing of an architecture's own.
    Portable,
    /// The x86-64 baseline: prefetching and stores that bypass the caches.
    Sse2,
    /// 32-byte vectors.
    Avx2,
    /// 64-byte vectors: AVX-512 F, BW and VL.
    Avx512,
}

impl Isa {
    /// Narrowest first.
    #[cfg(any(feature = "std", test))]
    const ALL: [Self; 4] = [Self::Portable, Self::Sse2, Self::Avx2, Self::Avx512];

    /// The widest one that this machine has; without the feature `std`, that the target is compiled for.
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

    /// The widest one that kernels may use.
    #[cfg(feature = "std")]
    pub(crate) fn allowed() -> Self {
        use std::sync::OnceLock;
        static ALLOWED: OnceLock<Isa> = OnceLock::new();
        *ALLOWED.get_or_init(|| {
            let limit = std::env::var("KVSCATTER_MAX_ISA").ok();
            let limit = limit.and_then(|name| Self::detected().up_to().find(|isa| isa.name() == name));
            limit.unwrap_or(Self::detected())
        })
    }

    /// The widest one that kernels may use.
    #[cfg(not(feature = "std"))]
    pub(crate) fn allowed() -> Self {
        Self::detected()
    }

    /// The narrower ones, and this one.
    #[cfg(any(feature = "std", test))]
    pub(super) fn up_to(self) -> impl Iterator<Item = Self> {
        let mut done = false;
        Self::ALL.into_iter().take_while(move |&isa| !core::mem::replace(&mut done, isa == self))
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
