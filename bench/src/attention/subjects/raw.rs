//! The loops of the yardsticks, compiled for an instruction set.
#![expect(unsafe_code, reason = "functions with target features are called after a check")]

use kvscatter::Isa;

/// The accumulators of a loop. A multiply-add takes four cycles, and two begin in each.
const ACCUMULATORS: usize = 12;

/// Returns the sum of the bytes as little-endian words. A rest that fills no word is left out.
pub(super) fn sum(bytes: &[u8]) -> u64 {
    #[cfg(target_arch = "x86_64")]
    match Isa::detected() {
        // SAFETY: This machine has AVX-512 F.
        Isa::Avx512 => return unsafe { x86::sum_512(bytes) },
        // SAFETY: This machine has AVX2.
        Isa::Avx2 => return unsafe { x86::sum_256(bytes) },
        _ => (),
    }
    sum_words(bytes)
}

/// Returns the number of elements that one instruction multiplies and adds. Returns `None` if there is no loop
/// for this instruction set on this machine.
pub(super) fn lanes(isa: Isa) -> Option<usize> {
    match (isa, Isa::detected()) {
        (Isa::Avx512, Isa::Avx512) => Some(16),
        #[cfg(target_arch = "x86_64")]
        (Isa::Avx2, Isa::Avx2 | Isa::Avx512) if is_x86_feature_detected!("fma") => Some(8),
        _ => None,
    }
}

/// Makes at least this many multiply-adds of float32 elements, and returns how many.
pub(super) fn multiply_adds(isa: Isa, count: usize) -> usize {
    let Some(lanes) = lanes(isa) else { return 0 };
    let turns = count.div_ceil(lanes * ACCUMULATORS);
    #[cfg(target_arch = "x86_64")]
    match isa {
        // SAFETY: `lanes` has checked that this machine has AVX-512 F.
        Isa::Avx512 => unsafe { x86::multiply_adds_512(turns) },
        // SAFETY: `lanes` has checked that this machine has AVX2 and FMA.
        _ => unsafe { x86::multiply_adds_256(turns) },
    }
    turns * lanes * ACCUMULATORS
}

/// The multiply-adds for each conversion in [`converted_multiply_adds`]: the query heads that share a head of keys.
pub(super) const PER_CONVERSION: usize = 4;

/// The conversions in each turn of [`converted_multiply_adds`]. All its vectors fit in the 16 registers.
const VECTORS: usize = 2;

/// Makes at least this many multiply-adds of float32 elements with AVX2, and returns how many. Each vector of one
/// operand is converted from float16 and used [`PER_CONVERSION`] times. Returns `None` if the machine cannot do it.
pub(super) fn converted_multiply_adds(count: usize) -> Option<usize> {
    let per_turn = lanes(Isa::Avx2)? * VECTORS * PER_CONVERSION;
    let turns = count.div_ceil(per_turn);
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("f16c") {
        // SAFETY: `lanes` has checked that this machine has AVX2 and FMA, and it has F16C.
        unsafe { x86::converted_multiply_adds(turns) };
        return Some(turns * per_turn);
    }
    None
}

fn sum_words(bytes: &[u8]) -> u64 {
    bytes.as_chunks().0.iter().map(|&word| u64::from_le_bytes(word)).fold(0, u64::wrapping_add)
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;
    use std::hint::black_box;

    use super::{ACCUMULATORS, PER_CONVERSION, VECTORS, sum_words};

    /// The parts of a buffer that are read at once. Hardware fetches ahead within a page, so that one part alone
    /// would wait at the end of each.
    const PARTS: usize = 8;

    macro_rules! sum {
        ($name:ident, $features:literal, $vector:ty, $zero:ident, $load:ident, $add:ident) => {
            #[target_feature(enable = $features)]
            pub(super) fn $name(bytes: &[u8]) -> u64 {
                const WIDE: usize = 4;
                const VECTOR: usize = size_of::<$vector>();
                const CHUNK: usize = WIDE * VECTOR;
                let mut sums = [[$zero(); WIDE]; PARTS];
                let (chunks, rest) = bytes.as_chunks::<CHUNK>();
                // An odd number, so that the parts use different sets of the nearest cache.
                let each = if chunks.len() < PARTS { 0 } else { (chunks.len() / PARTS - 1) | 1 };
                let (parts, others) = chunks.split_at(each * PARTS);
                for at in 0..each {
                    for (part, sums) in sums.iter_mut().enumerate() {
                        let chunk = parts[part * each + at].as_chunks::<VECTOR>().0;
                        for (sum, vector) in sums.iter_mut().zip(chunk) {
                            // SAFETY: `vector` has as many bytes as are loaded.
                            *sum = $add(*sum, unsafe { $load(vector.as_ptr().cast()) });
                        }
                    }
                }
                let sum = sums.into_iter().flatten().fold($zero(), |sum, other| $add(sum, other));
                let others = others.iter().fold(0_u64, |sum, chunk| sum.wrapping_add(sum_words(chunk)));
                return lanes(sum).into_iter().fold(others, u64::wrapping_add).wrapping_add(sum_words(rest));

                fn lanes(sum: $vector) -> [u64; VECTOR / 8] {
                    // SAFETY: Both types have the same size, and all bits are valid words.
                    unsafe { std::mem::transmute(sum) }
                }
            }
        };
    }

    sum!(sum_512, "avx512f", __m512i, _mm512_setzero_si512, _mm512_loadu_si512, _mm512_add_epi64);
    sum!(sum_256, "avx2", __m256i, _mm256_setzero_si256, _mm256_loadu_si256, _mm256_add_epi64);

    macro_rules! multiply_adds {
        ($name:ident, $features:literal, $set:ident, $fma:ident) => {
            #[target_feature(enable = $features)]
            pub(super) fn $name(turns: usize) {
                let (factor, addend) = ($set(black_box(0.5)), $set(black_box(1.0)));
                let mut sums = black_box([addend; ACCUMULATORS]);
                for _ in 0..turns {
                    for sum in &mut sums {
                        *sum = $fma(*sum, factor, addend);
                    }
                }
                black_box(sums);
            }
        };
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) fn converted_multiply_adds(turns: usize) {
        // Several vectors in the nearest cache, so that the compiler cannot convert one before the loop.
        let halves = black_box([[[0x3800_u16; 8]; VECTORS]; 64]);
        let factors = black_box([_mm256_set1_ps(0.5); PER_CONVERSION]);
        let mut sums = [[_mm256_set1_ps(1.0); PER_CONVERSION]; VECTORS];
        for turn in 0..turns {
            for (sums, halves) in sums.iter_mut().zip(&halves[turn % halves.len()]) {
                // SAFETY: The array has the eight elements that are loaded.
                let converted = _mm256_cvtph_ps(unsafe { _mm_loadu_si128(halves.as_ptr().cast()) });
                for (sum, factor) in sums.iter_mut().zip(factors) {
                    *sum = _mm256_fmadd_ps(converted, factor, *sum);
                }
            }
        }
        black_box(sums);
    }

    multiply_adds!(multiply_adds_512, "avx512f", _mm512_set1_ps, _mm512_fmadd_ps);
    multiply_adds!(multiply_adds_256, "avx2,fma", _mm256_set1_ps, _mm256_fmadd_ps);
}
