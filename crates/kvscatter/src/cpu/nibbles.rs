//! Blocks of 4-bit elements, two to a byte, the first in the low nibble: a row of odd length begins or ends in
//! the middle of a byte whose other half belongs to a neighbour and stays as it is (X2).
//!
//! Everything here is safe code over slices. An index that is out of bounds would be a broken proof of P1, and
//! a broken proof must stop the program, not skip a write.

use super::Isa;
use crate::mapping::Block;

const LOW: u8 = 0x0f;
const HIGH: u8 = 0xf0;
/// [`LOW`] in every byte of a word.
const LOWS: u64 = u64::from_ne_bytes([LOW; 8]);

/// Copies one block; offsets and lengths are in nibbles.
///
/// # Safety
/// The machine has the instruction set that the kernel was chosen for. Nothing else: the code is safe, compiled
/// for it.
pub(super) type Kernel = unsafe fn(&Block, &mut [u8], &[u8]);

pub(super) fn kernel(isa: Isa) -> Kernel {
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 | Isa::Avx2 => copy_avx2,
        _ => copy,
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn copy_avx2(block: &Block, dst: &mut [u8], src: &[u8]) {
    copy(block, dst, src);
}

#[inline(always)]
fn copy(block: &Block, dst: &mut [u8], src: &[u8]) {
    block.for_each_run(|to, from| copy_run(dst, to, src, from, block.len));
}

/// Makes the nibble behind the last of `elements` zero, as ONNX stores it.
pub(crate) fn clear_padding(packed: &mut [u8], elements: usize) {
    if !elements.is_multiple_of(2)
        && let Some(last) = packed.last_mut()
    {
        *last &= LOW;
    }
}

/// Copies `len` nibbles: up to one in the high half of the first byte, whole bytes, up to one in the low half
/// of the last.
#[expect(clippy::indexing_slicing, reason = "P1 bounds every run; see the module's documentation")]
#[expect(
    clippy::arithmetic_side_effects,
    reason = "G1: nibble offsets inside a buffer fit `usize`; `len > 0` is checked"
)]
#[inline(always)]
fn copy_run(dst: &mut [u8], to: usize, src: &[u8], from: usize, len: usize) {
    let (mut to, mut from, mut len) = (to, from, len);
    if len > 0 && !to.is_multiple_of(2) {
        let byte = &mut dst[to / 2];
        *byte = (*byte & LOW) | (nibble(src, from) << 4);
        (to, from, len) = (to + 1, from + 1, len - 1);
    }
    let (first, whole) = (to / 2, len / 2);
    let body = &mut dst[first..first + whole];
    if from.is_multiple_of(2) {
        body.copy_from_slice(&src[from / 2..from / 2 + whole]);
    } else if whole > 0 {
        let both = &src[from / 2..=from / 2 + whole];
        shift(body, &both[..whole], &both[1..]);
    }
    if !len.is_multiple_of(2) {
        let byte = &mut dst[first + whole];
        *byte = (*byte & HIGH) | nibble(src, from + len - 1);
    }
}

/// Makes bytes of the high nibbles of `low` and the low nibbles of `high`. All three are of one length.
#[inline(always)]
fn shift(dst: &mut [u8], low: &[u8], high: &[u8]) {
    match dst.len() {
        32.. => shift_by::<32>(dst, low, high),
        8.. => shift_by::<8>(dst, low, high),
        _ => {
            for ((byte, low), high) in dst.iter_mut().zip(low).zip(high) {
                *byte = (low >> 4) | (high << 4);
            }
        }
    }
}

/// In pieces of `N` bytes, words that the compiler makes vectors of; the last piece may overlap the one before.
#[inline(always)]
fn shift_by<const N: usize>(dst: &mut [u8], low: &[u8], high: &[u8]) {
    let piece = |dst: &mut [u8; N], low: &[u8; N], high: &[u8; N]| {
        let sources = low.as_chunks().0.iter().zip(high.as_chunks().0);
        for (dst, (low, high)) in dst.as_chunks_mut().0.iter_mut().zip(sources) {
            let (low, high) = (u64::from_le_bytes(*low) >> 4, u64::from_le_bytes(*high) << 4);
            *dst = ((low & LOWS) | (high & !LOWS)).to_le_bytes();
        }
    };
    let sources = low.as_chunks().0.iter().zip(high.as_chunks().0);
    for (dst, (low, high)) in dst.as_chunks_mut().0.iter_mut().zip(sources) {
        piece(dst, low, high);
    }
    if !dst.len().is_multiple_of(N)
        && let (Some(dst), Some(low), Some(high)) =
            (dst.last_chunk_mut(), low.last_chunk(), high.last_chunk())
    {
        piece(dst, low, high);
    }
}

#[expect(clippy::indexing_slicing, reason = "P1 bounds every run; see the module's documentation")]
#[inline(always)]
fn nibble(packed: &[u8], at: usize) -> u8 {
    let byte = packed[at / 2];
    if at.is_multiple_of(2) { byte & LOW } else { byte >> 4 }
}

#[cfg(test)]
mod tests {
    use super::{clear_padding, copy_run};
    use alloc::vec::Vec;

    #[test]
    fn every_parity_and_length_leaves_the_neighbours_alone() {
        let src: Vec<u8> = (0..16).map(|i: u8| i.wrapping_mul(37) ^ 0x5a).collect();
        let unpack = |bytes: &[u8]| bytes.iter().flat_map(|b| [b & 15, b >> 4]).collect::<Vec<u8>>();
        for to in 0..5 {
            for from in 0..5 {
                for len in 0..=20 {
                    let mut dst = [0xc3_u8; 16];
                    let mut want = unpack(&dst);
                    want[to..to + len].copy_from_slice(&unpack(&src)[from..from + len]);
                    copy_run(&mut dst, to, &src, from, len);
                    assert_eq!(unpack(&dst), want, "to {to} from {from} len {len}");
                }
            }
        }
    }

    #[test]
    fn only_an_odd_count_has_padding() {
        let mut bytes = [0xff, 0xff];
        clear_padding(&mut bytes, 4);
        assert_eq!(bytes, [0xff, 0xff]);
        clear_padding(&mut bytes, 3);
        assert_eq!(bytes, [0xff, 0x0f]);
        clear_padding(&mut [], 0);
    }
}
