//! The kernels for AVX-512 F, BW and VL.

#![expect(
    clippy::multiple_unsafe_ops_per_block,
    reason = "each block is one expression of instructions, which need only that the machine has them"
)]

use core::arch::x86_64::*;
use core::array::from_fn;

use half::{bf16, f16};

use super::generic;
use super::vector::{Kernels, Load, Rows, Scaled, Streams, Vector};
use super::wide::{self, Panel, SlotList, Soon, WideKernels};

/// A register of 16 numbers.
#[derive(Clone, Copy)]
pub(super) struct Avx512(__m512);

impl Vector for Avx512 {
    const LANES: usize = 16;

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        // SAFETY: The machine has the instruction set.
        Self(unsafe { _mm512_set1_ps(value) })
    }

    #[inline(always)]
    unsafe fn load(at: *const f32) -> Self {
        // SAFETY: `at` is valid for reads of 16 numbers. The machine has the instruction set.
        Self(unsafe { _mm512_loadu_ps(at) })
    }

    #[inline(always)]
    unsafe fn store(self, at: *mut f32) {
        // SAFETY: `at` is valid for writes of 16 numbers. The machine has the instruction set.
        unsafe { _mm512_storeu_ps(at, self.0) }
    }

    #[inline(always)]
    unsafe fn mul_add(self, factor: Self, addend: Self) -> Self {
        // SAFETY: The machine has the instruction set.
        Self(unsafe { _mm512_fmadd_ps(self.0, factor.0, addend.0) })
    }

    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        // SAFETY: The machine has the instruction set.
        Self(unsafe { _mm512_add_ps(self.0, other.0) })
    }

    #[inline(always)]
    unsafe fn sub(self, other: Self) -> Self {
        // SAFETY: The machine has the instruction set.
        Self(unsafe { _mm512_sub_ps(self.0, other.0) })
    }

    #[inline(always)]
    unsafe fn max(self, other: Self) -> Self {
        // SAFETY: The machine has the instruction set.
        Self(unsafe { _mm512_max_ps(self.0, other.0) })
    }

    #[inline(always)]
    unsafe fn times_power_of_two(self, n: Self) -> Self {
        // SAFETY: The machine has the instruction set.
        Self(unsafe { _mm512_scalef_ps(self.0, n.0) })
    }

    #[inline(always)]
    unsafe fn round(self) -> Self {
        // SAFETY: The machine has the instruction set.
        Self(unsafe { _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(self.0) })
    }

    #[inline(always)]
    unsafe fn zero_where_below(self, value: Self, limit: Self) -> Self {
        // SAFETY: The machine has the instruction set.
        let below = unsafe { _mm512_cmp_ps_mask::<_CMP_LT_OQ>(value.0, limit.0) };
        // SAFETY: The machine has the instruction set.
        Self(unsafe { _mm512_maskz_mov_ps(!below, self.0) })
    }

    #[inline(always)]
    unsafe fn replaced_below(self, value: Self, limit: Self, other: Self) -> Self {
        // SAFETY: The machine has the instruction set.
        let below = unsafe { _mm512_cmp_ps_mask::<_CMP_LT_OQ>(value.0, limit.0) };
        // SAFETY: The machine has the instruction set.
        Self(unsafe { _mm512_mask_blend_ps(below, self.0, other.0) })
    }

    #[inline(always)]
    fn prefetch(at: *const u8) {
        // SAFETY: Every machine with these vectors has the instruction, which accepts any address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) }
    }

    #[inline(always)]
    unsafe fn sums(vectors: [Self; 4]) -> [f32; 4] {
        // The halves are added first, and then the quarters. The function is not passed to `map`: a closure lacks the
        // instruction set, so it could stay a call.
        let [a, b, c, d] = vectors;
        // SAFETY: The machine has the instruction set.
        let halves = unsafe { [add_half(a.0), add_half(b.0), add_half(c.0), add_half(d.0)] };
        // SAFETY: The machine has the instruction set.
        let (ab, cd) =
            unsafe { (_mm256_hadd_ps(halves[0], halves[1]), _mm256_hadd_ps(halves[2], halves[3])) };
        // SAFETY: The machine has the instruction set.
        let abcd = unsafe { _mm256_hadd_ps(ab, cd) };
        // SAFETY: The machine has the instruction set.
        let quarters = unsafe { (_mm256_castps256_ps128(abcd), _mm256_extractf128_ps(abcd, 1)) };
        // SAFETY: The machine has the instruction set.
        let sums = unsafe { _mm_add_ps(quarters.0, quarters.1) };
        // SAFETY: Both types are 16 bytes without padding, and any bits are four numbers.
        unsafe { core::mem::transmute::<__m128, [f32; 4]>(sums) }
    }

    #[inline(always)]
    unsafe fn sums_of_16(vectors: [Self; 16]) -> [f32; 16] {
        // Each step halves the number of vectors. It adds in the order of `sums`: halves, neighbours twice, quarters.
        // SAFETY: The machine has the instruction set.
        let halves: [__m512; 8] =
            from_fn(|i| unsafe { add_halves(vectors[INPUTS[2 * i]].0, vectors[INPUTS[2 * i + 1]].0) });
        // SAFETY: As before.
        let pairs: [__m512; 4] = from_fn(|i| unsafe { add_neighbours(halves[2 * i], halves[2 * i + 1]) });
        // SAFETY: As before.
        let fours: [__m512; 2] = from_fn(|i| unsafe { add_neighbours(pairs[2 * i], pairs[2 * i + 1]) });
        // SAFETY: As before.
        let sums = unsafe { add_quarters(fours[0], fours[1]) };
        // SAFETY: Both types are 64 bytes without padding, and any bits are sixteen numbers.
        unsafe { core::mem::transmute::<__m512, [f32; 16]>(sums) }
    }
}

impl Load<f32> for Avx512 {
    #[inline(always)]
    unsafe fn load_wide(at: *const f32) -> Self {
        // SAFETY: The contract is the same.
        unsafe { Self::load(at) }
    }

    #[inline(always)]
    unsafe fn load_first(at: *const f32, count: usize) -> Self {
        // SAFETY: Only the first `count` elements are read, which `at` is valid for. The machine has the
        // instruction set.
        Self(unsafe { _mm512_maskz_loadu_ps(first(count), at) })
    }
}

impl Load<f16> for Avx512 {
    #[inline(always)]
    unsafe fn load_wide(at: *const f16) -> Self {
        // SAFETY: `at` is valid for reads of 16 elements. The machine has the instruction set.
        Self(unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(at.cast())) })
    }

    #[inline(always)]
    unsafe fn load_first(at: *const f16, count: usize) -> Self {
        // SAFETY: Only the first `count` elements are read, which `at` is valid for. The machine has the
        // instruction set.
        let narrow = unsafe { _mm256_maskz_loadu_epi16(first(count), at.cast()) };
        // SAFETY: The machine has the instruction set.
        Self(unsafe { _mm512_cvtph_ps(narrow) })
    }
}

impl Load<bf16> for Avx512 {
    #[inline(always)]
    unsafe fn load_wide(at: *const bf16) -> Self {
        // SAFETY: `at` is valid for reads of 16 elements. The machine has the instruction set.
        let wide = unsafe { _mm512_cvtepu16_epi32(_mm256_loadu_si256(at.cast())) };
        // SAFETY: The machine has the instruction set.
        Self(unsafe { _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16)) })
    }

    #[inline(always)]
    unsafe fn load_first(at: *const bf16, count: usize) -> Self {
        // SAFETY: Only the first `count` elements are read, which `at` is valid for. The machine has the
        // instruction set.
        let narrow = unsafe { _mm256_maskz_loadu_epi16(first(count), at.cast()) };
        // SAFETY: The machine has the instruction set.
        let wide = unsafe { _mm512_cvtepu16_epi32(narrow) };
        // SAFETY: The machine has the instruction set.
        Self(unsafe { _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16)) })
    }
}

impl Load<i8> for Avx512 {
    #[inline(always)]
    unsafe fn load_wide(at: *const i8) -> Self {
        // SAFETY: `at` is valid for reads of 16 elements. The machine has the instruction set.
        let wide = unsafe { _mm512_cvtepi8_epi32(_mm_loadu_si128(at.cast())) };
        // SAFETY: The machine has the instruction set.
        Self(unsafe { _mm512_cvtepi32_ps(wide) })
    }

    #[inline(always)]
    unsafe fn load_first(at: *const i8, count: usize) -> Self {
        // SAFETY: Only the first `count` elements are read, which `at` is valid for. The machine has the
        // instruction set.
        let narrow = unsafe { _mm_maskz_loadu_epi8(first(count), at) };
        // SAFETY: The machine has the instruction set.
        Self(unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(narrow)) })
    }
}

/// The order of the inputs of `sums_of_16` for which the sums are in the order of the vectors.
const INPUTS: [usize; 16] = [0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15];

/// Returns the sum of the halves.
///
/// # Safety
/// The machine has the instruction set.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn add_half(a: __m512) -> __m256 {
    let second = _mm512_extractf64x4_pd::<1>(_mm512_castps_pd(a));
    _mm256_add_ps(_mm512_castps512_ps256(a), _mm256_castpd_ps(second))
}

/// Returns the sum of the halves of `a`, and then that of `b`.
///
/// # Safety
/// The machine has the instruction set.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn add_halves(a: __m512, b: __m512) -> __m512 {
    _mm512_add_ps(_mm512_shuffle_f32x4::<0b01_00_01_00>(a, b), _mm512_shuffle_f32x4::<0b11_10_11_10>(a, b))
}

/// Returns the sums of neighbours: in each quarter two of `a`, and then two of `b`.
///
/// # Safety
/// The machine has the instruction set.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn add_neighbours(a: __m512, b: __m512) -> __m512 {
    _mm512_add_ps(_mm512_shuffle_ps::<0b10_00_10_00>(a, b), _mm512_shuffle_ps::<0b11_01_11_01>(a, b))
}

/// Returns the sums of the first and the second quarter of each half of `a`, and then of `b`.
///
/// # Safety
/// The machine has the instruction set.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn add_quarters(a: __m512, b: __m512) -> __m512 {
    _mm512_add_ps(_mm512_shuffle_f32x4::<0b10_00_10_00>(a, b), _mm512_shuffle_f32x4::<0b11_01_11_01>(a, b))
}

/// Returns a mask of the first `count` lanes.
#[inline(always)]
fn first(count: usize) -> __mmask16 {
    u16::MAX.checked_shr(16 - count as u32).unwrap_or(0)
}

pub(super) fn kernels<T: Copy>() -> Kernels<T>
where
    Avx512: Load<T>,
{
    Kernels { products: products::<T>, weighted_sums: weighted_sums::<T>, weights, scale, widen: widen::<T> }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2,fma,f16c")]
unsafe fn products<T: Copy>(queries: Rows, keys: Streams<T>, size: usize, scores: Rows)
where
    Avx512: Load<T>,
{
    // SAFETY: The contract is the same.
    unsafe { generic::products::<Avx512, T, 4, 8, 8>(queries, keys, size, scores) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2,fma,f16c")]
unsafe fn weighted_sums<T: Copy>(weights: Rows, values: Streams<T>, size: usize, group: Rows, sums: Rows)
where
    Avx512: Load<T>,
{
    // SAFETY: The contract is the same.
    unsafe { generic::weighted_sums::<Avx512, T, 4>(weights, values, size, group, sums) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2,fma,f16c")]
unsafe fn weights(scores: *mut f32, count: usize) -> (f32, f32) {
    // SAFETY: The contract is the same.
    unsafe { generic::weights::<Avx512>(scores, count) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2,fma,f16c")]
unsafe fn scale(of: Scaled, numbers: *mut f32, factors: &[f32]) {
    // SAFETY: The contract is the same.
    unsafe { generic::scale::<Avx512>(of, numbers, factors) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2,fma,f16c")]
unsafe fn widen<T: Copy>(from: *const T, count: usize, to: *mut f32)
where
    Avx512: Load<T>,
{
    // SAFETY: The contract is the same.
    unsafe { generic::widen::<Avx512, T>(from, count, to) }
}

/// The kernels of wide blocks.
pub(super) const WIDE: WideKernels = WideKernels {
    products: wide_products,
    weights: wide_weights,
    weighted_sums: wide_sums,
    sums_with_weight: wide_sums_with_weight,
};

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2,fma,f16c")]
unsafe fn wide_products(
    queries: *const f32,
    keys: SlotList<'_>,
    soon: Soon<'_>,
    panel: &Panel,
    scores: *mut f32,
) {
    // SAFETY: The contract is the same.
    unsafe { wide::products::<Avx512, 2, 8>(queries, keys, soon, panel, scores) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2,fma,f16c")]
unsafe fn wide_weights(scores: *mut f32, count: usize, panel: &mut Panel, indices: Option<&[f32]>) {
    // SAFETY: The contract is the same.
    unsafe { wide::weights::<Avx512>(scores, count, panel, indices) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2,fma,f16c")]
unsafe fn wide_sums(weights: *const f32, values: SlotList<'_>, panel: &Panel, sums: *mut f32) {
    // SAFETY: The contract is the same.
    unsafe { wide::weighted_sums::<Avx512, 6, 4>(weights, values, panel, sums) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2,fma,f16c")]
unsafe fn wide_sums_with_weight(weights: *const f32, values: SlotList<'_>, panel: &Panel, sums: *mut f32) {
    // SAFETY: The contract is the same.
    unsafe { wide::sums_with_weight::<Avx512>(weights, values, panel, sums) }
}

#[cfg(test)]
mod tests {
    use kvscatter::Isa;

    use super::{Avx512, Vector};

    #[test]
    fn sums_of_sixteen_have_the_bits_of_sums_of_four() {
        if Isa::allowed() != Isa::Avx512 {
            return;
        }
        let mut state = 1_u32;
        let mut number = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (f64::from(state) / 2_f64.powi(31) - 1.0) as f32
        };
        for _ in 0..100 {
            let numbers: [[f32; 16]; 16] = core::array::from_fn(|_| core::array::from_fn(|_| number()));
            // SAFETY: The machine has the instruction set. Each row has 16 numbers.
            let vectors = unsafe { numbers.each_ref().map(|row| Avx512::load(row.as_ptr())) };
            // SAFETY: The machine has the instruction set.
            let all = unsafe { Avx512::sums_of_16(vectors) };
            for (sums, vectors) in all.as_chunks().0.iter().zip(vectors.as_chunks().0) {
                // SAFETY: The machine has the instruction set.
                let expected: [f32; 4] = unsafe { Avx512::sums(*vectors) };
                assert_eq!(*sums, expected);
            }
        }
    }
}
