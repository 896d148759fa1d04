//! The instruction sets for which the kernels are compiled.
//!
//! The kernels are safe code on arrays, which the compiler turns into vector instructions. Only the calls of functions
//! that are compiled for an instruction set are unsafe.

#![expect(
    unsafe_code,
    reason = "a function that is compiled for an instruction set needs a machine that has it"
)]

use kvscatter::Isa;

use super::kernel::KernelCall;

/// An instruction set that the machine has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Level(Kind);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    #[cfg(target_arch = "x86_64")]
    Avx512,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    Portable,
}

impl Level {
    /// Returns the level for an instruction set, or a narrower one if the machine lacks an extension that the kernels
    /// need too.
    pub(super) fn new(isa: Isa) -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::is_x86_feature_detected as has;
            let has_avx2 = has!("avx2") && has!("fma");
            let has_avx512 = has!("avx512f") && has!("avx512bw") && has!("avx512dq") && has!("avx512vl");
            match isa {
                Isa::Avx512 if has_avx512 && has_avx2 => return Self(Kind::Avx512),
                Isa::Avx512 | Isa::Avx2 if has_avx2 => return Self(Kind::Avx2),
                _ => {}
            }
        }
        let _ = isa;
        Self(Kind::Portable)
    }

    /// Calls a kernel.
    pub(super) fn run(self, call: impl KernelCall) {
        match self.0 {
            // SAFETY: `new` has checked that the machine has these instructions.
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512 => unsafe { avx512(call) },
            // SAFETY: `new` has checked that the machine has these instructions.
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => unsafe { avx2(call) },
            Kind::Portable => portable(call),
        }
    }
}

/// Registers have 512 numbers. A quarter of them contain sums, which is enough to keep the units busy.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
fn avx512(call: impl KernelCall) {
    call.run::<128, true>();
}

/// Registers have 128 numbers. Half of them contain sums.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn avx2(call: impl KernelCall) {
    call.run::<64, true>();
}

fn portable(call: impl KernelCall) {
    call.run::<32, false>();
}
