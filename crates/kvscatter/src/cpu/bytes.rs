//! Blocks of elements that are whole bytes, portable: one `memcpy` per run.

use core::ptr;

use super::Destination;
use crate::mapping::{Block, Loop};

/// Copies one block of elements of `width` bytes.
///
/// # Safety
/// P1: every run of the block, times `width`, lies inside `dst` and inside `src`.
pub(crate) unsafe fn copy(block: &Block, width: usize, dst: &mut Destination<'_>, src: &[u8]) {
    // G1: every offset below is that of a byte inside one of the buffers, or one step past the last, which is
    // computed but never used; wrapping arithmetic makes that defined.
    let scale = |around: Loop| {
        let width = width.cast_signed();
        Loop { count: around.count, dst: around.dst.wrapping_mul(width), src: around.src.wrapping_mul(width) }
    };
    let [outer, middle, inner] = block.loops.map(scale);
    let len = block.len.wrapping_mul(width);
    let mut to = dst.start().wrapping_add(block.dst.wrapping_mul(width));
    let mut from = src.as_ptr().wrapping_add(block.src.wrapping_mul(width));
    for _ in 0..outer.count {
        let (mut to_middle, mut from_middle) = (to, from);
        for _ in 0..middle.count {
            // SAFETY: P1, by this function's own contract.
            unsafe { copy_rows(to_middle, inner.dst, from_middle, inner.src, inner.count, len) };
            to_middle = to_middle.wrapping_offset(middle.dst);
            from_middle = from_middle.wrapping_offset(middle.src);
        }
        to = to.wrapping_offset(outer.dst);
        from = from.wrapping_offset(outer.src);
    }
}

/// The kernel: `rows` runs of `row_len` bytes. Strides are in bytes.
///
/// # Safety
/// For every `i < rows`, `dst + i·dst_stride` is valid for `row_len` bytes of writes, `src + i·src_stride` for
/// as many of reads, and no destination overlaps a source.
unsafe fn copy_rows(
    mut dst: *mut u8,
    dst_stride: isize,
    mut src: *const u8,
    src_stride: isize,
    rows: usize,
    row_len: usize,
) {
    for _ in 0..rows {
        // SAFETY: P1, by this function's contract; a cache is borrowed exclusively, so it overlaps no update.
        unsafe { ptr::copy_nonoverlapping(src, dst, row_len) };
        dst = dst.wrapping_offset(dst_stride);
        src = src.wrapping_offset(src_stride);
    }
}
