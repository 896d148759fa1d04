//! Caches of int8 codes, whose scales are inputs: one for each tensor, or one for each element of a head.

use core::mem::size_of_val;

use half::{bf16, f16};
use kvscatter_attention::{CacheElement, Float, Scales};

use crate::workspace::{elements_mut, words};

/// An element type of caches, and the type that new rows have before they are stored as it.
pub(super) trait CacheRows: CacheElement {
    /// The type of new rows. It is `Self` unless elements are codes.
    type Row: Float;
}

impl CacheRows for f32 {
    type Row = Self;
}

impl CacheRows for f16 {
    type Row = Self;
}

impl CacheRows for bf16 {
    type Row = Self;
}

impl CacheRows for i8 {
    type Row = f32;
}

/// The scales of keys and of values of a call, for each element of each head. They are empty if there are none.
#[derive(Debug, Default)]
pub(super) struct CacheScales {
    scales: [Vec<f32>; 2],
    /// The numbers that new rows are multiplied with.
    inverses: [Vec<f32>; 2],
}

impl CacheScales {
    /// Takes the scales of a call for so many elements of all heads. A list of one scale is that of all elements.
    pub(super) fn set(&mut self, given: [&[f32]; 2], elements: usize) {
        for ((scales, inverses), given) in self.scales.iter_mut().zip(&mut self.inverses).zip(given) {
            scales.clear();
            scales.extend(given.iter().cycle().take(elements));
            inverses.clear();
            // The runtime divides by 1 if a scale is 0.
            inverses.extend(scales.iter().map(|&scale| if scale == 0.0 { 1.0 } else { scale.recip() }));
        }
    }

    pub(super) fn as_scales(&self) -> Option<Scales<'_>> {
        let [key, value] = &self.scales;
        (!key.is_empty()).then_some(Scales::Channels { key, value })
    }

    /// Returns the size of the memory that [`stored`](Self::stored) needs for so many elements.
    pub(super) fn memory<C: CacheRows>(elements: usize) -> usize {
        if size_of::<C>() == size_of::<C::Row>() { 0 } else { words(elements) }
    }

    /// Returns the bytes that are written for new keys or new values, which are token after token.
    pub(super) fn stored<'m, C: CacheRows>(
        &self,
        part: usize,
        rows: &'m [C::Row],
        memory: &'m mut [u64],
    ) -> &'m [u8] {
        if size_of::<C>() == size_of::<C::Row>() {
            return bytemuck::cast_slice(rows);
        }
        let rows: &[f32] = bytemuck::cast_slice(rows);
        let (codes, inverses) = (elements_mut::<i8>(memory, rows.len()), &self.inverses[part]);
        for (rows, codes) in rows.chunks_exact(inverses.len()).zip(codes.chunks_exact_mut(inverses.len())) {
            for ((x, inverse), code) in rows.iter().zip(inverses).zip(codes) {
                *code = code_of(x * inverse);
            }
        }
        debug_assert_eq!(size_of_val(codes), rows.len());
        bytemuck::cast_slice(codes)
    }
}

/// Returns the code of a number, as the runtime rounds it: to the nearest, ties to even, from -128 to 127. NaN becomes
/// 127.
fn code_of(number: f32) -> i8 {
    let number = if number < 127.0 { number } else { 127.0 };
    number.max(-128.0).round_ties_even() as i8
}

#[cfg(test)]
mod tests {
    use super::{CacheScales, code_of};

    #[test]
    fn codes_are_rounded_to_even_and_saturate() {
        for (number, code) in [
            (0.5, 0),
            (1.5, 2),
            (-2.5, -2),
            (126.49, 126),
            (127.4, 127),
            (1e9, 127),
            (-128.4, -128),
            (f32::NEG_INFINITY, -128),
            (f32::NAN, 127),
        ] {
            assert_eq!(code_of(number), code, "{number}");
        }
    }

    #[test]
    fn elements_are_multiplied_with_the_inverse_of_their_scale() {
        let mut scales = CacheScales::default();
        scales.set([&[0.5], &[0.25, 0.0, 2.0]], 3);
        let memory = &mut [0; 8];
        assert_eq!(scales.stored::<i8>(0, &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], memory), [2, 4, 6, 8, 10, 12]);
        assert_eq!(scales.stored::<i8>(1, &[1.0, 2.0, 3.0], memory), [4, 2, 2]);
        assert_eq!(scales.stored::<f32>(0, &[1.0], &mut []), 1.0_f32.to_ne_bytes());
    }
}
