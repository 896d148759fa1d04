//! Running a prepared write.

use std::ffi::CStr;

use kvscatter::{RawBuffer, Written};

use crate::boundary::{Versioned, array, struct_size, structure};
use crate::call::{Arguments, kvs_call};
use crate::failure::{Failure, FailureKind};
use crate::guard::guarded;
use crate::prepared::kvs_prepared;
use crate::status::kvs_status;
use crate::tensor::kvs_tensor;

/// A cache and the update that is to be written into it: keys, values, or those of a layer.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvs_pair {
    /// The cache (for KVCacheOperation: past).
    pub cache: kvs_tensor,
    /// The update (for KVCacheOperation: newKv).
    pub update: kvs_tensor,
}

/// What a run did.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvs_written {
    /// In: `sizeof(kvs_written)`; the `KVS_WRITTEN_INIT` macro sets it.
    pub struct_size: usize,
    /// Samples that `KVS_OUT_OF_RANGE_SKIP_SAMPLE` has left as they were, in each cache alike.
    pub skipped: usize,
}

// SAFETY: the struct is `repr(C)` and begins with `struct_size: usize`.
unsafe impl Versioned for kvs_written {}

/// Writes the update into the cache. The tensors are those that were prepared, in type, rank, shape and strides (a
/// dense one may give its strides or not); their data may lie elsewhere in each call. Allocates nothing.
///
/// Errors: those of pointers and structs; `KVS_ERROR_INDEX_WIDTH`, `_UNEXPECTED_ARGUMENT`; `_TENSOR_MISMATCH`; for
/// the indices, `_LIST_LENGTH`, `_NEGATIVE_START`, `_START_OUT_OF_RANGE`, `_LENGTH_OUT_OF_RANGE`, and with a packed update
/// `_BATCH_TOO_LARGE` and `_CUMULATIVE_...`, `_TOKEN_SUM`, and in KVCacheOperation `_LAYER_OUT_OF_RANGE`,
/// `_END_OUT_OF_RANGE`, `_TOKEN_SUM`; for the data, `_MISALIGNED`, `_NULL_BUFFER`, `_ADDRESS_SPACE`, `_OVERLAP`, `_ELEMENT_WIDTH`.
///
/// # Safety
/// - `prepared` is either NULL or comes from a prepare function, and nothing destroys it before this returns.
/// - `call`, `cache` and `update` are either NULL or each point to a struct of `struct_size` bytes.
/// - Each pointer in these structs is either NULL or points to as many values as the number beside it gives. Nothing
///   writes the structs and these values before this returns.
/// - The elements of each tensor lie in one allocation, at the addresses that `data`, `shape` and `strides` give them.
///   Nothing else writes them before this returns, and nothing else reads those that this writes, which are in the cache.
/// - The `broadcast` of the call's executor may be called with the `user` beside it, and it returns. It calls `work` with
///   its `context` only, and not after it has returned.
/// - `written` is either NULL, which is allowed, or points to memory of `struct_size` bytes, which
///   nothing else uses before this returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvs_write(
    prepared: *const kvs_prepared,
    call: *const kvs_call,
    cache: *const kvs_tensor,
    update: *const kvs_tensor,
    written: *mut kvs_written,
) -> kvs_status {
    guarded(|| {
        // SAFETY: C4 for `prepared`, by this function's contract.
        let prepared = unsafe { kvs_prepared::read(prepared) }?;
        // SAFETY: C1, C2 and C6 for `call` and its pointers, by this function's contract.
        let call = unsafe { Arguments::read(call) }?;
        // SAFETY: C1 and C2 for `cache`, by this function's contract.
        let cache = unsafe { structure(cache, prepared.cache.argument) }?;
        // SAFETY: C1 and C2 for `update`, by this function's contract.
        let update = unsafe { structure(update, prepared.update.argument) }?;
        // SAFETY: C2 and C3 for `written`, by this function's contract.
        let out = unsafe { WrittenOut::new(written) }?;
        // SAFETY: C1 for the shapes and strides of both tensors, by this function's contract.
        let buffers = unsafe { checked_pair(prepared, 0, cache, update) }?;
        let plan = prepared.plan(&call)?;
        // SAFETY: `checked_pair` returned the buffers of tensors that have the prepared layout: C5 for them, by this
        // function's contract.
        out.put(unsafe { plan.write_raw(buffers.0, buffers.1) }?);
        Ok(())
    })
}

/// Writes many updates into as many caches at the same positions: keys and values, or all layers that share them. All
/// of them or, after an error, none. With each other, caches may share memory only where their strides interleave
/// without meeting.
///
/// Overlaps are checked before anything moves. If updates are between caches in memory, each cache is compared with
/// each update, and the time for that grows with the square of the number of pairs. If there are hundreds, keep the
/// updates away from the caches.
///
/// `struct_size` of every tensor must be exactly `sizeof(kvs_tensor)`, since an array has no room for larger ones.
///
/// Errors: as for `kvs_write`; `index` is the pair.
///
/// # Safety
/// - `prepared` is either NULL or comes from a prepare function, and nothing destroys it before this returns.
/// - `call` is either NULL or points to a struct of `struct_size` bytes. `pairs` is either NULL or
///   points to `count` pairs.
/// - Each pointer in these structs is either NULL or points to as many values as the number beside it gives. Nothing
///   writes the structs and these values before this returns.
/// - The elements of each tensor lie in one allocation, at the addresses that `data`, `shape` and `strides` give them.
///   Nothing else writes them before this returns, and nothing else reads those that this writes, which are in the caches.
/// - The `broadcast` of the call's executor may be called with the `user` beside it, and it returns. It calls `work` with
///   its `context` only, and not after it has returned.
/// - `written` is either NULL, which is allowed, or points to memory of `struct_size` bytes, which
///   nothing else uses before this returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvs_write_many(
    prepared: *const kvs_prepared,
    call: *const kvs_call,
    pairs: *const kvs_pair,
    count: usize,
    written: *mut kvs_written,
) -> kvs_status {
    guarded(|| {
        // SAFETY: C4 for `prepared`, by this function's contract.
        let prepared = unsafe { kvs_prepared::read(prepared) }?;
        // SAFETY: C1, C2 and C6 for `call` and its pointers, by this function's contract.
        let call = unsafe { Arguments::read(call) }?;
        // SAFETY: C1 for `pairs`, by this function's contract.
        let pairs = unsafe { array(pairs, count, c"pairs".into()) }?;
        // SAFETY: C2 and C3 for `written`, by this function's contract.
        let out = unsafe { WrittenOut::new(written) }?;
        for (index, kvs_pair { cache, update }) in pairs.iter().enumerate() {
            let in_pair = |failure: Failure| failure.in_pair(index);
            check_exact_size(cache, prepared.cache.argument).map_err(in_pair)?;
            check_exact_size(update, prepared.update.argument).map_err(in_pair)?;
            // SAFETY: C1 for the shapes and strides in `pairs`, by this function's contract.
            unsafe { checked_pair(prepared, index, cache, update) }?;
        }
        let plan = prepared.plan(&call)?;
        let buffers = pairs
            .iter()
            .map(|pair| (prepared.cache.buffer(&pair.cache), prepared.update.buffer(&pair.update)));
        check_pairs(pairs, prepared.cache.argument, buffers.clone().map(|(cache, _)| cache))?;
        // SAFETY: `checked_pair` compared every tensor with the prepared layout: C5 for their buffers, by this
        // function's contract. Every walk over `pairs`, which nothing writes (C1), yields the same buffers.
        out.put(unsafe { plan.write_many_raw(buffers) }?);
        Ok(())
    })
}

/// The functional form: `present` becomes `past` with the update written into it, in one pass over memory. `present`
/// has the type and shape of `past`, is dense, need not be initialised, and shares no memory with the others. Where
/// the result may take the place of the past, write in place instead. Allocates nothing.
///
/// Errors: as for `kvs_write`.
///
/// # Safety
/// - `prepared` is either NULL or comes from a prepare function, and nothing destroys it before this returns.
/// - `call`, `past`, `update` and `present` are either NULL or each point to a struct of `struct_size` bytes.
/// - Each pointer in these structs is either NULL or points to as many values as the number beside it gives. Nothing
///   writes the structs and these values before this returns.
/// - The elements of each tensor lie in one allocation, at the addresses that `data`, `shape` and `strides` give them.
///   Nothing else writes them before this returns, and nothing else reads those that this writes, which are in `present`.
/// - The `broadcast` of the call's executor may be called with the `user` beside it, and it returns. It calls `work` with
///   its `context` only, and not after it has returned.
/// - `written` is either NULL, which is allowed, or points to memory of `struct_size` bytes, which
///   nothing else uses before this returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvs_write_present(
    prepared: *const kvs_prepared,
    call: *const kvs_call,
    past: *const kvs_tensor,
    update: *const kvs_tensor,
    present: *const kvs_tensor,
    written: *mut kvs_written,
) -> kvs_status {
    guarded(|| {
        // SAFETY: C4 for `prepared`, by this function's contract.
        let prepared = unsafe { kvs_prepared::read(prepared) }?;
        // SAFETY: C1, C2 and C6 for `call` and its pointers, by this function's contract.
        let call = unsafe { Arguments::read(call) }?;
        // SAFETY: C1 and C2 for `past`, by this function's contract.
        let past = unsafe { structure(past, prepared.cache.argument) }?;
        // SAFETY: C1 and C2 for `update`, by this function's contract.
        let update = unsafe { structure(update, prepared.update.argument) }?;
        // SAFETY: C1 and C2 for `present`, by this function's contract.
        let present = unsafe { structure(present, prepared.present.argument) }?;
        // SAFETY: C2 and C3 for `written`, by this function's contract.
        let out = unsafe { WrittenOut::new(written) }?;
        // SAFETY: C1 for the shape and strides of `past`, by this function's contract.
        let past = unsafe { prepared.cache.checked(past) }.map_err(in_only_pair)?;
        // SAFETY: C1 for the shape and strides of `update`, by this function's contract.
        let update = unsafe { prepared.update.checked(update) }.map_err(in_only_pair)?;
        // SAFETY: C1 for the shape and strides of `present`, by this function's contract.
        let present = unsafe { prepared.present.checked(present) }.map_err(in_only_pair)?;
        let plan = prepared.plan(&call)?;
        // SAFETY: `checked` returned the buffers of tensors that have the prepared layout: C5 for them, by this
        // function's contract.
        out.put(unsafe { plan.write_present_raw(past, update, present) }?);
        Ok(())
    })
}

/// Returns the buffers of a cache and its update, after comparing both with the prepared ones.
///
/// # Safety
/// C1 for the shapes and strides of both tensors.
#[inline(always)]
unsafe fn checked_pair(
    prepared: &kvs_prepared,
    pair: usize,
    cache: &kvs_tensor,
    update: &kvs_tensor,
) -> Result<(RawBuffer, RawBuffer), Failure> {
    // SAFETY: C1 for the shape and strides of `cache`, by this function's contract.
    let cache = unsafe { prepared.cache.checked(cache) };
    // SAFETY: C1 for the shape and strides of `update`, by this function's contract.
    let update = unsafe { prepared.update.checked(update) };
    match (cache, update) {
        (Ok(cache), Ok(update)) => Ok((cache, update)),
        (Err(failure), _) | (_, Err(failure)) => Err(failure.in_pair(pair)),
    }
}

/// Returns the failure with the index of the only pair.
#[cold]
fn in_only_pair(failure: Failure) -> Failure {
    failure.in_pair(0)
}

fn check_exact_size(tensor: &kvs_tensor, argument: &'static CStr) -> Result<(), Failure> {
    let (got, expected) = (tensor.struct_size, size_of::<kvs_tensor>());
    if got == expected { Ok(()) } else { Err(FailureKind::StructSize { argument, got, expected }.into()) }
}

/// Refuses caches that overlap `pairs`, which are read again while bytes move. The core checks overlaps between tensors
/// and with indices.
fn check_pairs(
    pairs: &[kvs_pair],
    argument: &'static CStr,
    mut caches: impl Iterator<Item = RawBuffer>,
) -> Result<(), Failure> {
    let pairs = RawBuffer { ptr: pairs.as_ptr().cast::<u8>().cast_mut(), len: size_of_val(pairs) };
    match caches.position(|cache| cache.overlaps(pairs)) {
        Some(pair) => Err(Failure::from(FailureKind::PairsOverlap { argument }).in_pair(pair)),
        None => Ok(()),
    }
}

/// The optional result of a run.
struct WrittenOut(Option<(*mut kvs_written, usize)>);

impl WrittenOut {
    /// # Safety
    /// C2 and C3 for `written`, while this lives.
    #[inline]
    unsafe fn new(written: *mut kvs_written) -> Result<Self, Failure> {
        if written.is_null() {
            return Ok(Self(None));
        }
        // SAFETY: C2 and C3 for `written`, by this function's contract.
        let struct_size = unsafe { struct_size(written, c"written") }?;
        Ok(Self(Some((written, struct_size))))
    }

    #[inline]
    fn put(self, Written { skipped, .. }: Written) {
        if let Self(Some((written, struct_size))) = self {
            // SAFETY: `new` refuses NULL and misaligned pointers; C3 for the others, by the contract of `new`.
            unsafe { written.write(kvs_written { struct_size, skipped }) };
        }
    }
}
