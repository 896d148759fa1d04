//! Visits the blocks of a plan, for programs with their own kernels.
//!
//! `lib.rs` defines C1, C2, C4 and C6, and the documentation of `kvscatter` defines G1.

use std::ffi::c_void;

use kvscatter::{Block, Loop};

use crate::call::{Arguments, kvs_call};
use crate::call_error::CallErrorKind;
use crate::guard::guarded;
use crate::prepared::kvs_prepared;
use crate::status::kvs_status;

/// A strided loop that repeats the runs of a block. Strides are in elements.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct kvs_loop {
    /// The number of iterations. A loop that is not needed has 1.
    pub count: usize,
    /// The distance that each iteration moves in the cache.
    pub dst_stride: isize,
    /// The distance that each iteration moves in the update.
    pub src_stride: isize,
}

/// One strided copy of a write: a contiguous run of elements inside three loops, outermost first. In the
/// cache, the run at iterations i, j, k begins at the offset `dst_offset + i * loops[0].dst_stride + j *
/// loops[1].dst_stride + k * loops[2].dst_stride`. In the update, it begins at the same sum of `src_offset`
/// and the `src_stride` of each loop. Offsets are in elements and count from the `data` of the tensor, the
/// address of element [0, 0, ...]. An offset is negative if strides lead to lower addresses.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct kvs_block {
    /// The offset of the first run in the cache.
    pub dst_offset: isize,
    /// The offset of the first run in the update.
    pub src_offset: isize,
    /// The number of elements in one run.
    pub len: usize,
    /// The loops that repeat the run.
    pub loops: [kvs_loop; 3],
}

/// Checks the indices of a call and visits the blocks of its write in place, so that your own kernel can
/// execute them. The blocks are disjoint in the cache, so they may be executed in any order. This function
/// moves no data and does not use the call's `executor`. `visit` runs on the calling thread.
///
/// If `visit` returns a value other than 0, the visit stops and this function returns `KVS_ERROR_STOPPED`.
/// The error's `value` is the value that `visit` returned. The block is valid until `visit` returns. `visit`
/// may call other functions of this library.
///
/// Also returns the errors of `kvs_write`, except `KVS_ERROR_TENSOR_MISMATCH`, `KVS_ERROR_NULL_BUFFER`,
/// `KVS_ERROR_OVERLAP` and `KVS_ERROR_ELEMENT_WIDTH`.
///
/// # Safety
/// - `prepared` is either NULL or comes from a prepare function, and nothing destroys it before this returns.
/// - `call` is either NULL or points to a struct of `struct_size` bytes. Each pointer in it is either NULL or
///   points to the number of values that the field beside it gives. Nothing writes the call and these values
///   before this returns.
/// - The executor of the call, if it has one, satisfies the condition that `kvs_write` states for it.
/// - `visit` is either NULL or may be called with `user` and a block, and it returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvs_for_each_block(
    prepared: *const kvs_prepared,
    call: *const kvs_call,
    visit: Option<unsafe extern "C" fn(user: *mut c_void, block: *const kvs_block) -> i32>,
    user: *mut c_void,
) -> kvs_status {
    guarded(|| {
        // SAFETY: This function's contract requires C4 for `prepared`.
        let prepared = unsafe { kvs_prepared::read(prepared) }?;
        // SAFETY: This function's contract requires C1, C2 and C6 for `call` and its pointers.
        let call = unsafe { Arguments::read(call) }?;
        let visit = visit.ok_or(CallErrorKind::NullPointer { subject: c"visit".into() })?;
        let plan = prepared.plan(&call)?;
        let geometry = prepared.geometry();
        let offsets = (geometry.cache_offset(), geometry.update_offset());
        for block in plan.blocks() {
            let block = kvs_block::new(&block, offsets);
            // SAFETY: This function's contract requires C6 for `visit` and `user`. `block` lives until
            // `visit` returns.
            let value = unsafe { visit(user, &raw const block) };
            if value != 0 {
                return Err(CallErrorKind::Stopped { value }.into());
            }
        }
        Ok(())
    })
}

impl kvs_block {
    /// Converts a block. `cache` and `update` are the offsets of element `[0, 0, …]` in the two buffers. Both
    /// are below `isize::MAX` (G1).
    fn new(block: &Block, (cache, update): (usize, usize)) -> Self {
        let to_c =
            |&Loop { count, dst_stride, src_stride }: &Loop| kvs_loop { count, dst_stride, src_stride };
        Self {
            dst_offset: block.dst_offset.wrapping_sub(cache).cast_signed(),
            src_offset: block.src_offset.wrapping_sub(update).cast_signed(),
            len: block.len,
            loops: block.loops.each_ref().map(to_c),
        }
    }
}
