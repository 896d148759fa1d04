//! Chooses the kernels of a mapping by instruction set and by the length of its runs.
//!
//! The usual lengths are compiled as constants, if the instruction set has enough registers for them. A kernel for
//! any length copies all other runs.

use super::Isa;
use super::kernel::{CopyRun, Fixed, Instructions, Kernel, Memcpy, copy_runs};
#[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
use super::x86;

/// The kernels of one mapping.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kernels {
    /// The run length that [`usual`](Self::usual) takes.
    pub(super) len: usize,
    pub(super) usual: Kernel,
    pub(super) any: Kernel,
    /// The kernel that bypasses the CPU caches, for writes that are too large for them.
    pub(super) stream: Kernel,
    /// The kernel that bypasses the CPU caches, for runs of whole lines.
    pub(super) lines: Kernel,
}

impl Kernels {
    /// Chooses the kernels for runs that usually have `len` bytes.
    pub(super) fn choose(isa: Isa, len: usize) -> Self {
        match isa {
            #[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
            Isa::Avx512 => Self::of::<x86::Avx512>(len),
            #[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
            Isa::Avx2 => Self::of::<x86::Avx2>(len),
            #[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
            Isa::Sse2 => Self::of::<x86::Sse2>(len),
            _ => Self::of::<Portable>(len),
        }
    }

    fn of<I: Instructions>(len: usize) -> Self {
        let usual = match len {
            1 => I::kernel::<Fixed<1>>(),
            2 => I::kernel::<Fixed<2>>(),
            4 => I::kernel::<Fixed<4>>(),
            8 => I::kernel::<Fixed<8>>(),
            16 => I::kernel::<Fixed<16>>(),
            32 => I::kernel::<Fixed<32>>(),
            64 => I::kernel::<Fixed<64>>(),
            128 => I::kernel::<Fixed<128>>(),
            192 if len <= I::LONGEST => I::kernel::<Fixed<192>>(),
            256 if len <= I::LONGEST => I::kernel::<Fixed<256>>(),
            512 if len <= I::LONGEST => I::kernel::<Fixed<512>>(),
            _ => I::kernel::<I::Any>(),
        };
        let (any, stream, lines) = (I::kernel::<I::Any>(), I::kernel::<I::Stream>(), I::kernel::<I::Lines>());
        Self { len, usual, any, stream, lines }
    }
}

struct Portable;

impl Instructions for Portable {
    const LONGEST: usize = 128;
    type Any = Memcpy;
    type Stream = Memcpy;
    type Lines = Memcpy;

    fn kernel<R: CopyRun>() -> Kernel {
        copy_runs::<R>
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;
    use core::ptr::fn_addr_eq;

    use super::{Isa, Kernels};

    #[test]
    fn usual_lengths_have_kernels_for_one_length() {
        let usual = [1, 2, 4, 8, 16, 32, 64, 128, 192, 256, 512];
        for isa in Isa::Avx512.up_to() {
            let longest = match isa {
                Isa::Avx512 => 512,
                Isa::Avx2 => 256,
                Isa::Sse2 | Isa::Portable => 128,
            };
            for len in 0..=1024 {
                let kernels = Kernels::choose(isa, len);
                let has_own = !fn_addr_eq(kernels.usual, kernels.any);
                assert_eq!(has_own, usual.contains(&len) && len <= longest, "{isa}, {len} bytes");
                assert_eq!(kernels.len, len);
            }
        }
    }

    #[test]
    #[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
    fn every_instruction_set_has_its_own_kernels() {
        // Only these differ for every pair: without AVX2, kernels for any length are `copy_runs::<Memcpy>`.
        let chosen: Vec<_> = Isa::Avx512.up_to().map(|isa| Kernels::choose(isa, 64).stream).collect();
        for (at, &one) in chosen.iter().enumerate() {
            assert!(chosen.iter().take(at).all(|&other| !fn_addr_eq(one, other)));
        }
    }
}
