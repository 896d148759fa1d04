//! The kernels for AVX2, FMA and F16C.

#![expect(
    clippy::multiple_unsafe_ops_per_block,
    reason = "each block is one expression of instructions, which need only that the machine has them"
)]

use core::arch::x86_64::*;

use half::{bf16, f16};

use super::generic;
use super::vector::{Kernels, Load, Rows, Scaled, Streams, Vector};
use super::wide::{self, Panel, SlotList, Soon, WideKernels};

/// A register of 8 numbers.
#[derive(Clone, Copy)]
pub(super) struct Avx2(__m256);

impl Vector for Avx2 {
    const LANES: usize = 8;

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        // SAFETY: The machine has the instruction set.
        Self(unsafe { _mm256_set1_ps(value) })
    }

    #[inline(always)]
    unsafe fn load(at: *const f32) -> Self {
        // SAFETY: `at` is valid for reads of 8 numbers. The machine has the instruction set.
        Self(unsafe { _mm256_loadu_ps(at) })
    }

    #[inline(always)]
    unsafe fn store(self, at: *mut f32) {
        // SAFETY: `at` is valid for writes of 8 numbers. The machine has the instruction set.
        unsafe { _mm256_storeu_ps(at, self.0) }
    }

    #[inline(always)]
    unsafe fn mul_add(self, factor: Self, addend: Self) -> Self {
        // SAFETY: The machine has the instruction set.
        Self(unsafe { _mm256_fmadd_ps(self.0, factor.0, addend.0) })
    }

    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        // SAFETY: The machine has the instruction set.
        Self(unsafe { _mm256_add_ps(self.0, other.0) })
    }

    #[inline(always)]
    unsafe fn sub(self, other: Self) -> Self {
        // SAFETY: The machine has the instruction set.
        Self(unsafe { _mm256_sub_ps(self.0, other.0) })
    }

    #[inline(always)]
    unsafe fn max(self, other: Self) -> Self {
        // SAFETY: The machine has the instruction set.
        Self(unsafe { _mm256_max_ps(self.0, other.0) })
    }

    #[inline(always)]
    unsafe fn times_power_of_two(self, n: Self) -> Self {
        // SAFETY: The machine has the instruction set.
        let exponent = unsafe { _mm256_add_epi32(_mm256_cvtps_epi32(n.0), _mm256_set1_epi32(127)) };
        // SAFETY: The machine has the instruction set.
        Self(unsafe { _mm256_mul_ps(self.0, _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23))) })
    }

    #[inline(always)]
    unsafe fn round(self) -> Self {
        // SAFETY: The machine has the instruction set.
        Self(unsafe { _mm256_round_ps(self.0, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC) })
    }

    #[inline(always)]
    unsafe fn zero_where_below(self, value: Self, limit: Self) -> Self {
        // SAFETY: The machine has the instruction set.
        let below = unsafe { _mm256_cmp_ps::<_CMP_LT_OQ>(value.0, limit.0) };
        // SAFETY: The machine has the instruction set.
        Self(unsafe { _mm256_andnot_ps(below, self.0) })
    }

    #[inline(always)]
    unsafe fn replaced_below(self, value: Self, limit: Self, other: Self) -> Self {
        // SAFETY: The machine has the instruction set.
        let below = unsafe { _mm256_cmp_ps::<_CMP_LT_OQ>(value.0, limit.0) };
        // SAFETY: The machine has the instruction set.
        Self(unsafe { _mm256_blendv_ps(self.0, other.0, below) })
    }

    #[inline(always)]
    fn prefetch(at: *const u8) {
        // SAFETY: Every machine with these vectors has the instruction, which accepts any address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) }
    }

    #[inline(always)]
    unsafe fn sums([a, b, c, d]: [Self; 4]) -> [f32; 4] {
        // SAFETY: The machine has the instruction set.
        let (ab, cd) = unsafe { (_mm256_hadd_ps(a.0, b.0), _mm256_hadd_ps(c.0, d.0)) };
        // SAFETY: The machine has the instruction set.
        let abcd = unsafe { _mm256_hadd_ps(ab, cd) };
        // SAFETY: The machine has the instruction set.
        let halves = unsafe { (_mm256_castps256_ps128(abcd), _mm256_extractf128_ps(abcd, 1)) };
        // SAFETY: The machine has the instruction set.
        let sums = unsafe { _mm_add_ps(halves.0, halves.1) };
        // SAFETY: Both types are 16 bytes without padding, and any bits are four numbers.
        unsafe { core::mem::transmute::<__m128, [f32; 4]>(sums) }
    }
}

impl Load<f32> for Avx2 {
    #[inline(always)]
    unsafe fn load_wide(at: *const f32) -> Self {
        // SAFETY: The contract is the same.
        unsafe { Self::load(at) }
    }

    #[inline(always)]
    unsafe fn load_first(at: *const f32, count: usize) -> Self {
        // SAFETY: The contract is the same.
        unsafe { load_first(at, count) }
    }
}

impl Load<f16> for Avx2 {
    #[inline(always)]
    unsafe fn load_wide(at: *const f16) -> Self {
        // SAFETY: `at` is valid for reads of 8 elements. The machine has the instruction set.
        Self(unsafe { _mm256_cvtph_ps(_mm_loadu_si128(at.cast())) })
    }

    #[inline(always)]
    unsafe fn load_first(at: *const f16, count: usize) -> Self {
        // SAFETY: The contract is the same.
        unsafe { load_first(at, count) }
    }
}

impl Load<bf16> for Avx2 {
    #[inline(always)]
    unsafe fn load_wide(at: *const bf16) -> Self {
        // SAFETY: `at` is valid for reads of 8 elements. The machine has the instruction set.
        let wide = unsafe { _mm256_cvtepu16_epi32(_mm_loadu_si128(at.cast())) };
        // SAFETY: The machine has the instruction set.
        Self(unsafe { _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16)) })
    }

    #[inline(always)]
    unsafe fn load_first(at: *const bf16, count: usize) -> Self {
        // SAFETY: The contract is the same.
        unsafe { load_first(at, count) }
    }
}

impl Load<i8> for Avx2 {
    #[inline(always)]
    unsafe fn load_wide(at: *const i8) -> Self {
        // SAFETY: `at` is valid for reads of 8 elements. The machine has the instruction set.
        let wide = unsafe { _mm256_cvtepi8_epi32(_mm_loadl_epi64(at.cast())) };
        // SAFETY: The machine has the instruction set.
        Self(unsafe { _mm256_cvtepi32_ps(wide) })
    }

    #[inline(always)]
    unsafe fn load_first(at: *const i8, count: usize) -> Self {
        // SAFETY: The contract is the same.
        unsafe { load_first(at, count) }
    }
}

/// Loads the first elements of a vector through an array.
///
/// # Safety
/// `at` must be valid for reads of `count` elements, and `count` at most 8. The machine must have the
/// instruction set.
#[inline(always)]
unsafe fn load_first<T: Copy + Default>(at: *const T, count: usize) -> Avx2
where
    Avx2: Load<T>,
{
    // A copy of a length that the compiler does not know is a call, which takes longer than this loop.
    let elements: [T; 8] = core::array::from_fn(|index| {
        // SAFETY: `at` is valid for reads of `count` elements.
        if index < count { unsafe { at.wrapping_add(index).read() } } else { T::default() }
    });
    // SAFETY: The array has 8 elements. The machine has the instruction set.
    unsafe { Avx2::load_wide(elements.as_ptr()) }
}

pub(super) fn kernels<T: Copy>() -> Kernels<T>
where
    Avx2: Load<T>,
{
    Kernels { products: products::<T>, weighted_sums: weighted_sums::<T>, weights, scale, widen: widen::<T> }
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn products<T: Copy>(queries: Rows, keys: Streams<T>, size: usize, scores: Rows)
where
    Avx2: Load<T>,
{
    // SAFETY: The contract is the same.
    unsafe { generic::products::<Avx2, T, 3, 4, 8>(queries, keys, size, scores) }
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn weighted_sums<T: Copy>(weights: Rows, values: Streams<T>, size: usize, group: Rows, sums: Rows)
where
    Avx2: Load<T>,
{
    // SAFETY: The contract is the same.
    unsafe { generic::weighted_sums::<Avx2, T, 3>(weights, values, size, group, sums) }
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn weights(scores: *mut f32, count: usize) -> (f32, f32) {
    // SAFETY: The contract is the same.
    unsafe { generic::weights::<Avx2>(scores, count) }
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn scale(of: Scaled, numbers: *mut f32, factors: &[f32]) {
    // SAFETY: The contract is the same.
    unsafe { generic::scale::<Avx2>(of, numbers, factors) }
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn widen<T: Copy>(from: *const T, count: usize, to: *mut f32)
where
    Avx2: Load<T>,
{
    // SAFETY: The contract is the same.
    unsafe { generic::widen::<Avx2, T>(from, count, to) }
}

/// The kernels of wide blocks.
pub(super) const WIDE: WideKernels = WideKernels {
    products: wide_products,
    weights: wide_weights,
    weighted_sums: wide_sums,
    sums_with_weight: wide_sums_with_weight,
};

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn wide_products(
    queries: *const f32,
    keys: SlotList<'_>,
    soon: Soon<'_>,
    panel: &Panel,
    scores: *mut f32,
) {
    // SAFETY: The contract is the same.
    unsafe { wide::products::<Avx2, 2, 6>(queries, keys, soon, panel, scores) }
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn wide_weights(scores: *mut f32, count: usize, panel: &mut Panel, indices: Option<&[f32]>) {
    // SAFETY: The contract is the same.
    unsafe { wide::weights::<Avx2>(scores, count, panel, indices) }
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn wide_sums(weights: *const f32, values: SlotList<'_>, panel: &Panel, sums: *mut f32) {
    // SAFETY: The contract is the same.
    unsafe { wide::weighted_sums::<Avx2, 6, 2>(weights, values, panel, sums) }
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn wide_sums_with_weight(weights: *const f32, values: SlotList<'_>, panel: &Panel, sums: *mut f32) {
    // SAFETY: The contract is the same.
    unsafe { wide::sums_with_weight::<Avx2>(weights, values, panel, sums) }
}
