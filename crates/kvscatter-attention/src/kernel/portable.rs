//! The kernels without instructions of one architecture. The compiler vectorises the arrays.

use super::generic;
use super::vector::{Kernels, Load, Rows, Scaled, Streams, Vector};
use super::wide::{self, Panel, SlotList, Soon, WideKernels};
use crate::element::Element;

/// Eight numbers, whose products are rounded before they are added.
#[derive(Clone, Copy)]
struct Portable([f32; 8]);

impl Portable {
    fn zip(self, other: Self, f: impl Fn(f32, f32) -> f32) -> Self {
        Self(core::array::from_fn(|lane| f(self.0[lane], other.0[lane])))
    }
}

impl Vector for Portable {
    const LANES: usize = 8;

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        Self([value; 8])
    }

    #[inline(always)]
    unsafe fn load(at: *const f32) -> Self {
        // SAFETY: `at` is valid for reads of 8 numbers, by the contract of this method.
        Self(unsafe { at.cast::<[f32; 8]>().read_unaligned() })
    }

    #[inline(always)]
    unsafe fn store(self, at: *mut f32) {
        // SAFETY: `at` is valid for writes of 8 numbers, by the contract of this method.
        unsafe { at.cast::<[f32; 8]>().write_unaligned(self.0) };
    }

    #[inline(always)]
    unsafe fn mul_add(self, factor: Self, addend: Self) -> Self {
        Self(core::array::from_fn(|lane| self.0[lane] * factor.0[lane] + addend.0[lane]))
    }

    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        self.zip(other, |left, right| left + right)
    }

    #[inline(always)]
    unsafe fn sub(self, other: Self) -> Self {
        self.zip(other, |left, right| left - right)
    }

    #[inline(always)]
    unsafe fn max(self, other: Self) -> Self {
        self.zip(other, |left, right| if left > right { left } else { right })
    }

    #[inline(always)]
    unsafe fn times_power_of_two(self, n: Self) -> Self {
        self.zip(n, |number, n| number * f32::from_bits(((n as i32 + 127) as u32) << 23))
    }

    #[inline(always)]
    unsafe fn round(self) -> Self {
        /// Adding and subtracting this number rounds small numbers to whole ones.
        const MAGIC: f32 = 12_582_912.0;
        Self(self.0.map(|value| (value + MAGIC) - MAGIC))
    }

    #[inline(always)]
    unsafe fn zero_where_below(self, value: Self, limit: Self) -> Self {
        Self(core::array::from_fn(|lane| if value.0[lane] < limit.0[lane] { 0.0 } else { self.0[lane] }))
    }

    #[inline(always)]
    unsafe fn replaced_below(self, value: Self, limit: Self, other: Self) -> Self {
        let lane = |lane: usize| if value.0[lane] < limit.0[lane] { other.0[lane] } else { self.0[lane] };
        Self(core::array::from_fn(lane))
    }

    #[inline(always)]
    unsafe fn sums(vectors: [Self; 4]) -> [f32; 4] {
        vectors.map(|Self([a, b, c, d, e, f, g, h])| ((a + e) + (c + g)) + ((b + f) + (d + h)))
    }
}

impl<T: Element> Load<T> for Portable {
    #[inline(always)]
    unsafe fn load_wide(at: *const T) -> Self {
        // SAFETY: `at` is valid for reads of 8 elements, by the contract of this method.
        Self(unsafe { at.cast::<[T; 8]>().read_unaligned() }.map(Element::to_f32))
    }

    #[inline(always)]
    unsafe fn load_first(at: *const T, count: usize) -> Self {
        let mut lanes = [0.0; 8];
        for (index, lane) in lanes.iter_mut().enumerate().take(count) {
            // SAFETY: `at` is valid for reads of `count` elements, by the contract of this method.
            *lane = unsafe { at.wrapping_add(index).read_unaligned() }.to_f32();
        }
        Self(lanes)
    }
}

pub(super) fn kernels<T: Element>() -> Kernels<T> {
    Kernels { products: products::<T>, weighted_sums: weighted_sums::<T>, weights, scale, widen: widen::<T> }
}

unsafe fn products<T: Element>(queries: Rows, keys: Streams<T>, size: usize, scores: Rows) {
    // SAFETY: The contract is the same.
    unsafe { generic::products::<Portable, T, 2, 4, 4>(queries, keys, size, scores) }
}

unsafe fn weighted_sums<T: Element>(weights: Rows, values: Streams<T>, size: usize, group: Rows, sums: Rows) {
    // SAFETY: The contract is the same.
    unsafe { generic::weighted_sums::<Portable, T, 2>(weights, values, size, group, sums) }
}

unsafe fn weights(scores: *mut f32, count: usize) -> (f32, f32) {
    // SAFETY: The contract is the same.
    unsafe { generic::weights::<Portable>(scores, count) }
}

unsafe fn scale(of: Scaled, numbers: *mut f32, factors: &[f32]) {
    // SAFETY: The contract is the same.
    unsafe { generic::scale::<Portable>(of, numbers, factors) }
}

unsafe fn widen<T: Element>(from: *const T, count: usize, to: *mut f32) {
    // SAFETY: The contract is the same.
    unsafe { generic::widen::<Portable, T>(from, count, to) }
}

/// The kernels of wide blocks.
pub(super) const WIDE: WideKernels = WideKernels {
    products: wide_products,
    weights: wide_weights,
    weighted_sums: wide_sums,
    sums_with_weight: wide_sums_with_weight,
};

unsafe fn wide_products(
    queries: *const f32,
    keys: SlotList<'_>,
    soon: Soon<'_>,
    panel: &Panel,
    scores: *mut f32,
) {
    // SAFETY: The contract is the same.
    unsafe { wide::products::<Portable, 1, 5>(queries, keys, soon, panel, scores) }
}

unsafe fn wide_weights(scores: *mut f32, count: usize, panel: &mut Panel, indices: Option<&[f32]>) {
    // SAFETY: The contract is the same.
    unsafe { wide::weights::<Portable>(scores, count, panel, indices) }
}

unsafe fn wide_sums(weights: *const f32, values: SlotList<'_>, panel: &Panel, sums: *mut f32) {
    // SAFETY: The contract is the same.
    unsafe { wide::weighted_sums::<Portable, 4, 1>(weights, values, panel, sums) }
}

unsafe fn wide_sums_with_weight(weights: *const f32, values: SlotList<'_>, panel: &Panel, sums: *mut f32) {
    // SAFETY: The contract is the same.
    unsafe { wide::sums_with_weight::<Portable>(weights, values, panel, sums) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No kernel of 8 lanes adds 16 vectors at once, so no call of attention reaches this.
    #[test]
    fn sums_of_16_vectors_are_those_of_4() {
        let vectors: [Portable; 16] =
            core::array::from_fn(|vector| Portable(core::array::from_fn(|lane| (vector * 8 + lane) as f32)));
        // SAFETY: The sums need no instruction set.
        let all = unsafe { Portable::sums_of_16(vectors) };
        // The lanes of a vector are eight integers that follow each other, and the first is eight times its number.
        let expected: [f32; 16] = core::array::from_fn(|vector| (vector * 64 + 28) as f32);
        assert_eq!(all, expected);
    }
}
