//! The kernels, which are compiled once for each instruction set.
//!
//! A [`Vector`](vector::Vector) is a register of float32 numbers. `generic` and `wide` have each kernel once, for any
//! vector: `wide` those of blocks with many rows, and `generic` the others. The other files define the vectors of an
//! instruction set and compile the kernels for them.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod generic;
mod portable;
mod vector;
mod wide;

use half::{bf16, f16};
use kvscatter::Isa;

use crate::element::Element;

pub(crate) use vector::{AHEAD, Kernels, LANES, Rows, STREAMS, Scaled, Stream, Streams};
pub(crate) use wide::{PANEL, Panel, SECTION, SlotList, Soon, WIDE_ROWS, WideKernels};

/// An element that the kernels load, which is the type of keys and values: `f32`, [`half::f16`], [`half::bf16`], or
/// `i8` for codes that have scales ([`Scales`](crate::Scales)).
pub trait CacheElement: Element {
    /// Returns the kernels for an instruction set that the machine has, or the portable ones if it lacks FMA or
    /// F16C, which the others need too.
    #[doc(hidden)]
    fn kernels(isa: Isa) -> Kernels<Self>;
}

macro_rules! cache_element {
    ($($element:ty),*) => {$(
        impl CacheElement for $element {
            fn kernels(isa: Isa) -> Kernels<Self> {
                #[cfg(target_arch = "x86_64")]
                if has_vectors() {
                    match isa {
                        Isa::Avx512 => return avx512::kernels(),
                        Isa::Avx2 => return avx2::kernels(),
                        _ => {}
                    }
                }
                portable::kernels()
            }
        }
    )*};
}

cache_element!(f32, f16, bf16, i8);

/// Returns the kernels of wide blocks for an instruction set, like [`CacheElement::kernels`].
pub(crate) fn wide_kernels(isa: Isa) -> WideKernels {
    #[cfg(target_arch = "x86_64")]
    if has_vectors() {
        match isa {
            Isa::Avx512 => return avx512::WIDE,
            Isa::Avx2 => return avx2::WIDE,
            _ => {}
        }
    }
    portable::WIDE
}

/// Returns whether the machine has what all kernels with vectors need.
#[cfg(target_arch = "x86_64")]
fn has_vectors() -> bool {
    is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c")
}
