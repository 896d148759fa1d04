//! Visits the blocks of a plan, for programs with their own kernels.

use std::ffi::c_void;

use kvscatter::{Block, Loop};

use crate::call::{Arguments, kvs_call};
use crate::failure::FailureKind;
use crate::guard::guarded;
use crate::prepared::kvs_prepared;
use crate::status::kvs_status;

/// A strided loop, which repeats the runs of a block. Strides are in elements.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct kvs_loop {
    /// Iterations: 1 for a loop that is not needed.
    pub count: usize,
    /// How far each iteration moves in the cache.
    pub dst_stride: isize,
    /// How far each iteration moves in the update.
    pub src_stride: isize,
}

/// One strided copy of a write: a contiguous run of elements inside three loops, outermost first. In the cache, the
/// run at iterations i, j, k begins at the offset
/// `dst_offset + i * loops[0].dst_stride + j * loops[1].dst_stride + k * loops[2].dst_stride`, and in the update at
/// the same sum of `src_offset` and `src_stride`. Offsets are in elements and count from the address of the tensor's
/// element [0, 0, ...], which is its `data`. They are negative where strides lead to lower addresses.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct kvs_block {
    /// Offset of the first run in the cache.
    pub dst_offset: isize,
    /// Offset of the first run in the update.
    pub src_offset: isize,
    /// Elements of one run.
    pub len: usize,
    /// The loops that repeat it.
    pub loops: [kvs_loop; 3],
}

/// Checks the call's indices, and visits the blocks of the write in place: what to move, for a kernel of your own.
/// Blocks are disjoint in the cache and may be executed in any order. Nothing is moved, the call's `executor` is not
/// used, and `visit` runs on the calling thread.
///
/// A visitor that does not return 0 stops it: `KVS_ERROR_STOPPED`, with what it returned as the error's value. The
/// block is valid until the visitor returns; the visitor may call other functions of this library.
///
/// Errors: as for `kvs_write`, but for those of tensors and data.
///
/// # Safety
/// - `prepared` is either NULL or comes from a prepare function, and nothing destroys it before this returns.
/// - `call` is either NULL or points to a struct of `struct_size` bytes. Each pointer in it is either
///   NULL or points to as many values as the number beside it gives. Nothing writes the call and these values before this
///   returns.
/// - `visit` is either NULL or may be called with `user` and a block, and it returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvs_for_each_block(
    prepared: *const kvs_prepared,
    call: *const kvs_call,
    visit: Option<unsafe extern "C" fn(user: *mut c_void, block: *const kvs_block) -> i32>,
    user: *mut c_void,
) -> kvs_status {
    guarded(|| {
        // SAFETY: C4 for `prepared`, by this function's contract.
        let prepared = unsafe { kvs_prepared::read(prepared) }?;
        // SAFETY: C1, C2 and C6 for `call` and its pointers, by this function's contract.
        let call = unsafe { Arguments::read(call) }?;
        let visit = visit.ok_or(FailureKind::NullPointer { subject: c"visit".into() })?;
        let plan = prepared.plan(&call)?;
        let geometry = prepared.geometry();
        let offsets = (geometry.cache_offset(), geometry.update_offset());
        for block in plan.blocks() {
            let block = kvs_block::new(&block, offsets);
            // SAFETY: C6 for `visit` and `user`, by this function's contract; `block` lives until it returns.
            let value = unsafe { visit(user, &raw const block) };
            if value != 0 {
                return Err(FailureKind::Stopped { value }.into());
            }
        }
        Ok(())
    })
}

impl kvs_block {
    /// `cache` and `update` are the offsets of element `[0, 0, …]` in the two buffers. Both are below `isize::MAX` (G1).
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
