//! Copies blocks of 4-bit elements. Two elements share a byte, and the first is in the low nibble.
//!
//! A row of odd length begins or ends in the middle of a byte. The other half of that byte belongs to a
//! neighbour and must not change (X2). If no row can begin or end in the middle of a byte,
//! [`ByteKernels`](super::bytes::ByteKernels) moves whole bytes instead.
//!
//! Two comparisons check that a run lies inside its slices. The run is then moved through pointers, because
//! indexing the slices would repeat these checks several times for a row that is one vector long. A run that
//! fails the check means that the proof of P1 is broken. A broken proof must stop the program, not corrupt
//! its memory.
//!
//! The crate documentation defines P1 and X2, and `cpu/kernel.rs` defines V1 to V3.

use core::hint;

use super::executor::Threads;
use super::kernel::{CopyRun, Overlapping};
use super::limits::{Limits, Tuning};
use super::{Isa, parts};
use crate::error::LengthUnit;
use crate::geometry::{Block, Geometry, Loop, Offsets, SampleRows, Source};
use crate::plan::Moves;

const LOW: u8 = 0x0f;
const HIGH: u8 = 0xf0;
const OUTSIDE: &str = "a run lies outside of its buffer";

/// The number of bytes that are moved at once: one vector of AVX2, two of SSE2.
const VECTOR_BYTES: usize = 32;

/// How 4-bit elements are moved.
#[derive(Clone, Copy, Debug)]
pub(super) struct NibbleKernels {
    kernel: NibbleKernel,
    limits: &'static Limits,
    /// The number of rows that a sample usually brings to a write in place. It is 0 if these rows are not one
    /// loop.
    usual_rows: usize,
    /// That loop.
    usual: NibbleRuns,
}

/// Runs at equal distances. All numbers count nibbles.
#[derive(Clone, Copy, Debug)]
struct NibbleRuns {
    runs: Loop,
    /// The length of one run.
    len: usize,
}

/// Copies all runs of a pattern, the first of which begins at these nibbles of the slices. Panics if a run
/// does not lie in its slice.
///
/// # Safety
/// V2: the machine has the instruction set that the kernel is compiled for.
type NibbleKernel = unsafe fn(&mut [u8], usize, &[u8], usize, &NibbleRuns);

impl NibbleKernels {
    /// Creates the kernels for the number of rows that samples usually bring.
    pub(super) fn new(Tuning { isa, limits }: Tuning, geometry: &Geometry, rows: usize) -> Self {
        let usual = geometry.write_mapping().single_loop(rows);
        let (usual_rows, (runs, len)) = usual.map_or((0, (Loop::ONCE, 0)), |usual| (rows, usual));
        Self { kernel: kernel(isa), limits, usual_rows, usual: NibbleRuns { runs, len } }
    }

    pub(super) fn write(&self, moves: &Moves<'_>, threads: Threads<'_>, cache: &mut [u8], update: &[u8]) {
        let geometry = moves.geometry();
        let bytes = moves.elements().div_ceil(2);
        let written = bytes.checked_div(moves.batch()).unwrap_or(0);
        // The parts of threads need samples in ascending order. Tokens come in any order.
        let is_divisible = geometry.is_cache_dense() && !geometry.has_slots_of_tokens();
        let executor = threads.for_bytes(bytes, self.limits).filter(|_| is_divisible);
        let layer = moves.layer();
        let first = geometry.write_offsets(layer);
        parts::share(geometry, cache, [written, self.limits.thread_grain], executor, |mine| {
            moves.for_each_row_range(|rows| {
                let Some(part) = mine.part_of(layer, rows.sample) else { return };
                let first = Offsets { dst: first.dst.wrapping_sub(part.first), ..first };
                if rows.count == self.usual_rows {
                    let Offsets { dst: to, src: from } = geometry.write_mapping().offsets(first, rows);
                    // SAFETY: V2: `Tuning` has an instruction set of the machine.
                    unsafe { (self.kernel)(part.bytes, to, update, from, &self.usual) };
                } else {
                    geometry
                        .write_mapping()
                        .for_each(first, rows, |block| self.copy(block, part.bytes, update));
                }
            });
        });
    }

    /// Writes all of `present`: the update where the plan writes, and the past everywhere else.
    pub(super) fn write_present(
        &self,
        moves: &Moves<'_>,
        threads: Threads<'_>,
        present: &mut [u8],
        past: &[u8],
        update: &[u8],
    ) {
        let geometry = moves.geometry();
        let written = geometry.sample_elements().div_ceil(2);
        let executor = threads.for_bytes(geometry.present_len(LengthUnit::Bytes), self.limits);
        parts::share(geometry, present, [written, self.limits.thread_grain], executor, |mine| {
            moves.for_each_sample(|SampleRows { layer, sample, pieces }| {
                let Some(part) = mine.part_of(layer, sample) else { return };
                for (source, rows) in pieces {
                    let bytes = match source {
                        Source::Past => past,
                        Source::Update => update,
                    };
                    let first = geometry.present_offsets(layer, source);
                    let first = Offsets { dst: first.dst.wrapping_sub(part.first), ..first };
                    let copy = |block: &Block| self.copy(block, part.bytes, bytes);
                    geometry.present_mapping(source).for_each(first, rows, copy);
                }
            });
        });
        clear_padding(present, geometry.present_len(LengthUnit::Elements));
    }

    fn copy(&self, block: &Block, dst: &mut [u8], src: &[u8]) {
        let [outer, middle, runs] = block.loops;
        let pattern = NibbleRuns { runs, len: block.len };
        let outer_loops = Block { loops: [Loop::ONCE, outer, middle], ..*block };
        outer_loops.for_each_run(|to, from| {
            // SAFETY: V2: `Tuning` has an instruction set of the machine.
            unsafe { (self.kernel)(dst, to, src, from, &pattern) };
        });
    }
}

fn kernel(isa: Isa) -> NibbleKernel {
    match isa {
        #[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
        Isa::Avx512 | Isa::Avx2 => copy_avx2,
        _ => copy,
    }
}

#[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
#[target_feature(enable = "avx2")]
fn copy_avx2(dst: &mut [u8], to: usize, src: &[u8], from: usize, pattern: &NibbleRuns) {
    copy(dst, to, src, from, pattern);
}

#[inline(always)]
fn copy(dst: &mut [u8], mut to: usize, src: &[u8], mut from: usize, pattern: &NibbleRuns) {
    let NibbleRuns { runs, len } = *pattern;
    if len == 0 {
        return;
    }
    let (dst_len, src_len) = (dst.len().saturating_mul(2), src.len().saturating_mul(2));
    assert!(len <= dst_len && len <= src_len, "{OUTSIDE}");
    let (last_to, last_from) = (dst_len.wrapping_sub(len), src_len.wrapping_sub(len));
    let (dst, src) = (dst.as_mut_ptr(), src.as_ptr());
    for _ in 0..runs.count {
        assert!(to <= last_to && from <= last_from, "{OUTSIDE}");
        // SAFETY: The assertions above leave room for `len` nibbles, which is not 0, at `to` and at `from` in
        // their slices. Nothing else uses an exclusive slice, so the two do not overlap.
        unsafe { copy_run(dst, to, src, from, len) };
        // By P1 the next run is in its slices, or the assertion fails. After the last run the sums are not
        // used.
        (to, from) = (to.wrapping_add_signed(runs.dst_stride), from.wrapping_add_signed(runs.src_stride));
    }
}

/// Copies `len` nibbles, where `len` is not 0. It copies at most one nibble in the high half of the first
/// byte, then whole bytes, then at most one nibble in the low half of the last byte.
///
/// The first branch is on the half in which each side begins, because the later branches then go the same way
/// for many runs.
///
/// # Safety
/// The bytes that contain nibbles `from..from + len` at `src` are valid for reads. The bytes that contain
/// nibbles `to..to + len` at `dst` are valid for reads and writes. They do not overlap.
#[inline(always)]
unsafe fn copy_run(dst: *mut u8, to: usize, src: *const u8, from: usize, len: usize) {
    let (dst, src) = (dst.wrapping_add(to / 2), src.wrapping_add(from / 2));
    match (to % 2, from % 2) {
        // SAFETY: The bytes of the same nibbles are valid and do not overlap. Both sides begin with nibble 0.
        (0, 0) => unsafe { copy_alike(dst, src, 0, len) },
        // SAFETY: The bytes of the same nibbles are valid and do not overlap. `dst` begins with nibble 0,
        // `src` with nibble 1.
        (0, _) => unsafe { copy_shifted(dst, src, 0, len) },
        // SAFETY: The bytes of the same nibbles are valid and do not overlap. `dst` begins with nibble 1,
        // `src` with nibble 0.
        (_, 0) => unsafe { copy_shifted(dst, src, 1, len) },
        // SAFETY: The bytes of the same nibbles are valid and do not overlap. Both sides begin with nibble 1.
        _ => unsafe { copy_alike(dst, src, 1, len) },
    }
}

/// Copies `len` nibbles, where `len` is not 0. Both sides begin at nibble `odd` of their first byte.
///
/// # Safety
/// The bytes that contain nibbles `odd..odd + len` at `src` are valid for reads. The bytes that contain the
/// same nibbles at `dst` are valid for reads and writes. They do not overlap.
#[inline(always)]
unsafe fn copy_alike(dst: *mut u8, src: *const u8, odd: usize, len: usize) {
    if odd == 1 {
        // SAFETY: The first byte of either side contains nibble 1, which is one of the nibbles to copy, so
        // `src` is valid for reads, and `dst` is valid for reads and writes.
        unsafe { replace(dst, HIGH, src, |byte| byte) };
    }
    let rest = len.wrapping_sub(odd);
    let (dst, src, whole) = (dst.wrapping_add(odd), src.wrapping_add(odd), rest / 2);
    if rest % 2 == 1 {
        // SAFETY: This byte of either side contains the last nibble, so it is valid for reads, and at `dst`
        // also for writes.
        unsafe { replace(dst.wrapping_add(whole), LOW, src.wrapping_add(whole), |byte| byte) };
    }
    // SAFETY: V1: each of these `whole` bytes contains two of the nibbles, so `src` is valid for reads of
    // them and `dst` for writes. They do not overlap. V2 and V3: `Overlapping` needs no instruction set and
    // takes all runs.
    unsafe { Overlapping::<VECTOR_BYTES>::copy(dst, src, whole) };
}

/// Copies `len` nibbles, where `len` is not 0. `dst` begins at nibble `odd` of its first byte, and `src`
/// begins at the other nibble of its first byte.
///
/// # Safety
/// The bytes that contain nibbles `1 - odd..1 - odd + len` at `src` are valid for reads. The bytes that
/// contain nibbles `odd..odd + len` at `dst` are valid for reads and writes. They do not overlap.
#[inline(always)]
unsafe fn copy_shifted(dst: *mut u8, src: *const u8, odd: usize, len: usize) {
    if odd == 1 {
        // SAFETY: The first byte of either side contains the first nibble, so `src` is valid for reads, and
        // `dst` is valid for reads and writes.
        unsafe { replace(dst, HIGH, src, |byte| byte << 4) };
    }
    let rest = len.wrapping_sub(odd);
    let (dst, whole) = (dst.wrapping_add(odd), rest / 2);
    if rest % 2 == 1 {
        // SAFETY: This byte of either side contains the last nibble, so it is valid for reads, and at `dst`
        // also for writes. At `src` the last nibble is nibble `rest`, which is `2 * whole + 1`.
        unsafe { replace(dst.wrapping_add(whole), LOW, src.wrapping_add(whole), |byte| byte >> 4) };
    }
    // SAFETY: Each of these `whole` bytes of `dst` contains two of the nibbles, so it is valid for writes. If
    // `whole` is not 0, each of `whole + 1` bytes of `src` contains some of the nibbles, the last of which is
    // nibble `rest`. So these bytes are valid for reads. They do not overlap the bytes of `dst`.
    unsafe { shift(dst, src, whole) };
}

/// Replaces one half of a byte with the same half of another byte, after `shift` has moved the bits there.
///
/// # Safety
/// `src` is valid for reads of a byte. `dst` is valid for reads and writes of a byte.
#[inline(always)]
unsafe fn replace(dst: *mut u8, half: u8, src: *const u8, shift: impl Fn(u8) -> u8) {
    // SAFETY: `src` is valid for reads of a byte.
    let new = unsafe { src.read() };
    // SAFETY: `dst` is valid for reads of a byte.
    let old = unsafe { dst.read() };
    // SAFETY: `dst` is valid for writes of a byte.
    unsafe { dst.write((old & !half) | (shift(new) & half)) };
}

/// Writes `len` bytes. Each consists of the high nibble of a source byte and the low nibble of the next
/// source byte.
///
/// # Safety
/// `dst` is valid for writes of `len` bytes. Unless `len` is 0, `src` is valid for reads of `len + 1` bytes.
/// They do not overlap.
#[inline(always)]
unsafe fn shift(dst: *mut u8, src: *const u8, len: usize) {
    match len {
        // SAFETY: `dst` is valid for `len` bytes and `src` for `len + 1`, and they do not overlap. The pattern
        // ensures that `VECTOR_BYTES <= len`.
        VECTOR_BYTES.. => unsafe { shift_by::<VECTOR_BYTES>(dst, src, len) },
        // SAFETY: As for the first pattern, with `16 <= len`.
        16.. => unsafe { shift_by::<16>(dst, src, len) },
        // SAFETY: As for the first pattern, with `8 <= len`.
        8.. => unsafe { shift_by::<8>(dst, src, len) },
        0 => {}
        // SAFETY: As for the first pattern, with `1 <= len`.
        _ => unsafe { shift_by::<1>(dst, src, len) },
    }
}

/// Writes the bytes in pieces of `N`, the last of which overlaps the one before it.
///
/// # Safety
/// `dst` is valid for writes of `len` bytes, `src` is valid for reads of `len + 1` bytes, and they do not
/// overlap. `N <= len`.
#[inline(always)]
unsafe fn shift_by<const N: usize>(dst: *mut u8, src: *const u8, len: usize) {
    let last = len.wrapping_sub(N);
    let mut at = 0;
    // `black_box` hides the bound from the compiler, which would otherwise make vectors across the pieces,
    // byte by byte.
    while at < hint::black_box(last) {
        // SAFETY: `dst` is valid for `len` bytes and `src` for `len + 1`. `at < last`, so `at + N < len`.
        unsafe { shift_piece::<N>(dst.wrapping_add(at), src.wrapping_add(at)) };
        at = at.wrapping_add(N);
    }
    // SAFETY: `dst` is valid for `len` bytes and `src` for `len + 1`, and `last + N == len`.
    unsafe { shift_piece::<N>(dst.wrapping_add(last), src.wrapping_add(last)) };
}

/// Writes `N` bytes, as [`shift`] does.
///
/// # Safety
/// `dst` is valid for writes of `N` bytes, and `src` is valid for reads of `N + 1` bytes.
#[inline(always)]
unsafe fn shift_piece<const N: usize>(dst: *mut u8, src: *const u8) {
    // SAFETY: `src` is valid for reads of `N` bytes, and arrays of bytes need no alignment.
    let mut low = unsafe { src.cast::<[u8; N]>().read() };
    // SAFETY: `src` is valid for reads of `N + 1` bytes, and arrays of bytes need no alignment.
    let high = unsafe { src.wrapping_add(1).cast::<[u8; N]>().read() };
    for (byte, high) in low.iter_mut().zip(high) {
        *byte = (*byte >> 4) | (high << 4);
    }
    // SAFETY: `dst` is valid for writes of `N` bytes, and arrays of bytes need no alignment.
    unsafe { dst.cast::<[u8; N]>().write(low) };
}

/// Sets the nibble after the last of `elements` to zero, as ONNX stores it.
fn clear_padding(packed: &mut [u8], elements: usize) {
    if !elements.is_multiple_of(2)
        && let Some(last) = packed.last_mut()
    {
        *last &= LOW;
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;
    use std::panic::catch_unwind;

    use super::{NibbleRuns, clear_padding, kernel};
    use crate::Isa;
    use crate::geometry::Loop;

    fn unpack(bytes: &[u8]) -> Vec<u8> {
        bytes.iter().flat_map(|byte| [byte & 15, byte >> 4]).collect()
    }

    #[test]
    #[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
    fn avx2_has_its_own_kernel() {
        for (isa, has_own) in
            [(Isa::Portable, false), (Isa::Sse2, false), (Isa::Avx2, true), (Isa::Avx512, true)]
        {
            assert_eq!(!core::ptr::fn_addr_eq(kernel(isa), kernel(Isa::Portable)), has_own, "{isa}");
        }
    }

    /// Copies three runs. Each run begins in the other half of a byte than the run before, on one side or on
    /// both.
    #[test]
    fn every_parity_and_length_leaves_the_neighbours_alone() {
        let src: Vec<u8> = (0..=255_u8).map(|i| i.wrapping_mul(37) ^ 0x5a).collect();
        let (nibbles, old) = (unpack(&src), [0xc3_u8; 320]);
        for isa in Isa::detected().up_to() {
            for (to, from, step) in
                [(0, 0, 203), (0, 1, 203), (1, 0, 203), (1, 1, 203), (3, 2, 204), (2, 5, 204)]
            {
                for len in 0..=200 {
                    let mut dst = old;
                    let mut expected = unpack(&old);
                    for run in 0..3 {
                        let (to, from) = (to + run * step, from + run * 101);
                        expected[to..to + len].copy_from_slice(&nibbles[from..from + len]);
                    }
                    let runs = Loop { count: 3, dst_stride: step.cast_signed(), src_stride: 101 };
                    // SAFETY: The machine has the instruction set.
                    unsafe { kernel(isa)(&mut dst, to, &src, from, &NibbleRuns { runs, len }) };
                    assert_eq!(unpack(&dst), expected, "{isa}: to {to} from {from} step {step} len {len}");
                }
            }
        }
    }

    /// No plan has such a run. If a plan had one, the kernel must not corrupt memory.
    #[test]
    fn a_run_outside_of_its_buffer_is_stopped() {
        let fits = |isa, to, from, dst, len| {
            let pattern = NibbleRuns { runs: Loop { count: 2, dst_stride: dst, src_stride: 1 }, len };
            // SAFETY: The machine has the instruction set.
            catch_unwind(|| unsafe { kernel(isa)(&mut [0; 8], to, &[0; 8], from, &pattern) }).is_ok()
        };
        for isa in Isa::detected().up_to() {
            assert!(fits(isa, 0, 0, 11, 5));
            assert!(!fits(isa, 1, 0, 11, 5), "beyond the destination");
            assert!(fits(isa, 0, 10, 0, 5));
            assert!(!fits(isa, 0, 11, 0, 5), "beyond the source");
            assert!(fits(isa, 3, 0, -3, 5));
            assert!(!fits(isa, 2, 0, -3, 5), "before the destination");
            assert!(!fits(isa, 0, 0, 0, 17), "longer than either");
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
