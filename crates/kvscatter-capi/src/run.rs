//! Runs a prepared write.
//!
//! `lib.rs` defines C1 to C6.

use std::ffi::CStr;

use kvscatter::{RawBuffer, Written};

use crate::boundary::{Versioned, array, struct_size, structure};
use crate::call::{Arguments, kvs_call};
use crate::call_error::{CallError, CallErrorKind};
use crate::guard::guarded;
use crate::prepared::kvs_prepared;
use crate::status::kvs_status;
use crate::tensor::kvs_tensor;

/// A cache and the update that is written into it, such as the keys or the values of a layer.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvs_pair {
    /// The cache, which KVCacheOperation calls past.
    pub cache: kvs_tensor,
    /// The update, which KVCacheOperation calls newKv.
    pub update: kvs_tensor,
}

/// The result of a run.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvs_written {
    /// The caller sets this to `sizeof(kvs_written)`, as the `KVS_WRITTEN_INIT` macro does.
    pub struct_size: usize,
    /// The number of samples that `KVS_OUT_OF_RANGE_SKIP_SAMPLE` skipped, or of tokens that `skip_negative` of a
    /// paged write skipped. It is the same in each cache.
    pub skipped: usize,
}

// SAFETY: The struct is `repr(C)` and begins with `struct_size: usize`.
unsafe impl Versioned for kvs_written {}

/// Writes the update into the cache. The tensors must have the type, rank, shape and strides that were
/// prepared, but their data may be at other addresses in each call. A dense tensor may give its strides or
/// omit them. Allocates nothing, unless a paged write has more than 128 runs of consecutive slots that are not in
/// ascending order, or a slot that occurs twice. It frees this memory before it returns.
///
/// Besides `KVS_OK`, returns one of these errors:
/// - `KVS_ERROR_NULL_POINTER`, `KVS_ERROR_MISALIGNED`, `KVS_ERROR_ADDRESS_SPACE`, `KVS_ERROR_TOO_LARGE` or
///   `KVS_ERROR_STRUCT_SIZE` if a pointer, an array or a `struct_size` is not valid.
/// - `KVS_ERROR_INDEX_WIDTH`, `KVS_ERROR_UNEXPECTED_ARGUMENT` or `KVS_ERROR_TENSOR_MISMATCH` if an argument
///   differs from what was prepared.
/// - `KVS_ERROR_LIST_LENGTH`, `KVS_ERROR_NEGATIVE_START`, `KVS_ERROR_START_OUT_OF_RANGE` or
///   `KVS_ERROR_LENGTH_OUT_OF_RANGE` if an index is not valid.
/// - For a packed update, also `KVS_ERROR_BATCH_TOO_LARGE`, `KVS_ERROR_CUMULATIVE_START`,
///   `KVS_ERROR_CUMULATIVE_ORDER`, `KVS_ERROR_CUMULATIVE_LENGTH` or `KVS_ERROR_TOKEN_SUM`.
/// - For KVCacheOperation, also `KVS_ERROR_LAYER_OUT_OF_RANGE`, `KVS_ERROR_END_OUT_OF_RANGE` or
///   `KVS_ERROR_TOKEN_SUM`.
/// - For a paged write, also `KVS_ERROR_SLOT_OUT_OF_RANGE` or `KVS_ERROR_DUPLICATE_SLOT`.
/// - `KVS_ERROR_NULL_BUFFER`, `KVS_ERROR_OVERLAP` or `KVS_ERROR_ELEMENT_WIDTH` if the data of the tensors
///   cannot be written.
///
/// # Safety
/// - `prepared` is either NULL or comes from a prepare function, and nothing destroys it before this returns.
/// - `call`, `cache` and `update` are either NULL or each point to a struct of `struct_size` bytes.
/// - Each pointer in these structs is either NULL or points to the number of values that the field beside it
///   gives. Nothing writes the structs and these values before this returns.
/// - The elements of each tensor are in one allocation, at the addresses that `data`, `shape` and `strides`
///   give them. Elements of 4 bits are initialised in the cache and the update.
///   Before this returns, nothing else writes the elements, and nothing else reads the elements of
///   the cache that this writes.
/// - The `broadcast` of the call's executor may be called with the `user` beside it, and it returns. It calls
///   `work` with its `context` only, and does not call it after it has returned.
/// - `written` is either NULL or points to memory of `struct_size` bytes, which nothing else uses before this
///   returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvs_write(
    prepared: *const kvs_prepared,
    call: *const kvs_call,
    cache: *const kvs_tensor,
    update: *const kvs_tensor,
    written: *mut kvs_written,
) -> kvs_status {
    guarded(|| {
        // SAFETY: This function's contract requires C4 for `prepared`.
        let prepared = unsafe { kvs_prepared::read(prepared) }?;
        // SAFETY: This function's contract requires C1, C2 and C6 for `call` and its pointers.
        let call = unsafe { Arguments::read(call) }?;
        // SAFETY: This function's contract requires C1 and C2 for `cache`.
        let cache = unsafe { structure(cache, prepared.cache.argument) }?;
        // SAFETY: This function's contract requires C1 and C2 for `update`.
        let update = unsafe { structure(update, prepared.update.argument) }?;
        // SAFETY: This function's contract requires C2 and C3 for `written`.
        let out = unsafe { WrittenOut::new(written) }?;
        // SAFETY: This function's contract requires C1 for the shapes and strides of both tensors.
        let buffers = unsafe { checked_pair(prepared, 0, cache, update) }?;
        let plan = prepared.plan(&call)?;
        // SAFETY: `checked_pair` returned the buffers of tensors that have the prepared layout. This
        // function's contract requires C5 for these tensors.
        out.put(unsafe { plan.write_raw(buffers.0, buffers.1) }?);
        Ok(())
    })
}

/// Writes many updates, each into its own cache, at the same positions, such as the keys and values of a
/// layer, or all layers that share their positions. After an error, none of the updates is written. Two
/// caches may share a range of memory only if their strides interleave without sharing a byte.
///
/// Overlaps are checked before anything moves. If updates are between caches in memory, the check compares
/// each cache with each update, so its time grows with the square of the number of pairs. If there are
/// hundreds of pairs, keep the updates away from the caches.
///
/// The `struct_size` of every tensor must be exactly `sizeof(kvs_tensor)`, because an array has no room for
/// larger structs.
///
/// Returns the same errors as `kvs_write`.
///
/// # Safety
/// - `prepared` is either NULL or comes from a prepare function, and nothing destroys it before this returns.
/// - `call` is either NULL or points to a struct of `struct_size` bytes. `pairs` is either NULL or points to
///   `count` pairs.
/// - Each pointer in these structs is either NULL or points to the number of values that the field beside it
///   gives. Nothing writes the structs and these values before this returns.
/// - The elements of each tensor are in one allocation, at the addresses that `data`, `shape` and `strides`
///   give them. Elements of 4 bits are initialised in the caches and the updates.
///   Before this returns, nothing else writes the elements, and nothing else reads the elements of
///   the caches that this writes.
/// - The `broadcast` of the call's executor may be called with the `user` beside it, and it returns. It calls
///   `work` with its `context` only, and does not call it after it has returned.
/// - `written` is either NULL or points to memory of `struct_size` bytes, which nothing else uses before this
///   returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvs_write_many(
    prepared: *const kvs_prepared,
    call: *const kvs_call,
    pairs: *const kvs_pair,
    count: usize,
    written: *mut kvs_written,
) -> kvs_status {
    guarded(|| {
        // SAFETY: This function's contract requires C4 for `prepared`.
        let prepared = unsafe { kvs_prepared::read(prepared) }?;
        // SAFETY: This function's contract requires C1, C2 and C6 for `call` and its pointers.
        let call = unsafe { Arguments::read(call) }?;
        // SAFETY: This function's contract requires C1 for `pairs`.
        let pairs = unsafe { array(pairs, count, c"pairs".into()) }?;
        // SAFETY: This function's contract requires C2 and C3 for `written`.
        let out = unsafe { WrittenOut::new(written) }?;
        for (index, kvs_pair { cache, update }) in pairs.iter().enumerate() {
            let in_pair = |error: CallError| error.in_pair(index);
            check_exact_size(cache, prepared.cache.argument).map_err(in_pair)?;
            check_exact_size(update, prepared.update.argument).map_err(in_pair)?;
            // SAFETY: This function's contract requires C1 for the shapes and strides in `pairs`.
            unsafe { checked_pair(prepared, index, cache, update) }?;
        }
        let plan = prepared.plan(&call)?;
        let buffers = pairs
            .iter()
            .map(|pair| (prepared.cache.buffer(&pair.cache), prepared.update.buffer(&pair.update)));
        check_pairs(pairs, prepared.cache.argument, buffers.clone().map(|(cache, _)| cache))?;
        // SAFETY: `checked_pair` compared every tensor with the prepared layout, and this function's contract
        // requires C5 for the tensors. Every iteration over `pairs` yields the same buffers, because nothing
        // writes `pairs` (C1).
        out.put(unsafe { plan.write_many_raw(buffers) }?);
        Ok(())
    })
}

/// Writes a copy of `past` that contains the update to `present`, in one pass over memory. This is the
/// functional form. `present` has the type and shape of `past` and must be dense. It need not be initialised,
/// and it must not share memory with the other tensors. If the result may replace `past`, write in place with
/// `kvs_write` instead. Allocates nothing.
///
/// Returns the same errors as `kvs_write`, and `KVS_ERROR_IN_PLACE_ONLY` for a paged write.
///
/// # Safety
/// - `prepared` is either NULL or comes from a prepare function, and nothing destroys it before this returns.
/// - `call`, `past`, `update` and `present` are either NULL or each point to a struct of `struct_size` bytes.
/// - Each pointer in these structs is either NULL or points to the number of values that the field beside it
///   gives. Nothing writes the structs and these values before this returns.
/// - The elements of each tensor are in one allocation, at the addresses that `data`, `shape` and `strides`
///   give them. Elements of 4 bits are initialised in `past` and `update`.
///   Before this returns, nothing else writes the elements, and nothing else reads the elements of
///   `present`, which this writes.
/// - The `broadcast` of the call's executor may be called with the `user` beside it, and it returns. It calls
///   `work` with its `context` only, and does not call it after it has returned.
/// - `written` is either NULL or points to memory of `struct_size` bytes, which nothing else uses before this
///   returns.
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
        // SAFETY: This function's contract requires C4 for `prepared`.
        let prepared = unsafe { kvs_prepared::read(prepared) }?;
        // SAFETY: This function's contract requires C1, C2 and C6 for `call` and its pointers.
        let call = unsafe { Arguments::read(call) }?;
        // SAFETY: This function's contract requires C1 and C2 for `past`.
        let past = unsafe { structure(past, prepared.cache.argument) }?;
        // SAFETY: This function's contract requires C1 and C2 for `update`.
        let update = unsafe { structure(update, prepared.update.argument) }?;
        // SAFETY: This function's contract requires C1 and C2 for `present`.
        let present = unsafe { structure(present, prepared.present.argument) }?;
        // SAFETY: This function's contract requires C2 and C3 for `written`.
        let out = unsafe { WrittenOut::new(written) }?;
        // SAFETY: This function's contract requires C1 for the shape and strides of `past`.
        let past = unsafe { prepared.cache.checked(past) }.map_err(in_only_pair)?;
        // SAFETY: This function's contract requires C1 for the shape and strides of `update`.
        let update = unsafe { prepared.update.checked(update) }.map_err(in_only_pair)?;
        // SAFETY: This function's contract requires C1 for the shape and strides of `present`.
        let present = unsafe { prepared.present.checked(present) }.map_err(in_only_pair)?;
        let plan = prepared.plan(&call)?;
        // SAFETY: `checked` returned the buffers of tensors that have the prepared layout. This function's
        // contract requires C5 for these tensors.
        out.put(unsafe { plan.write_present_raw(past, update, present) }?);
        Ok(())
    })
}

/// Compares a cache and its update with the prepared tensors and returns their buffers.
///
/// # Safety
/// The shapes and strides of both tensors satisfy C1.
#[inline(always)]
unsafe fn checked_pair(
    prepared: &kvs_prepared,
    pair: usize,
    cache: &kvs_tensor,
    update: &kvs_tensor,
) -> Result<(RawBuffer, RawBuffer), CallError> {
    // SAFETY: This function's contract requires C1 for the shape and strides of `cache`.
    let cache = unsafe { prepared.cache.checked(cache) };
    // SAFETY: This function's contract requires C1 for the shape and strides of `update`.
    let update = unsafe { prepared.update.checked(update) };
    match (cache, update) {
        (Ok(cache), Ok(update)) => Ok((cache, update)),
        (Err(error), _) | (_, Err(error)) => Err(error.in_pair(pair)),
    }
}

/// Returns the error with the index of the only pair.
#[cold]
fn in_only_pair(error: CallError) -> CallError {
    error.in_pair(0)
}

fn check_exact_size(tensor: &kvs_tensor, argument: &'static CStr) -> Result<(), CallError> {
    let (got, expected) = (tensor.struct_size, size_of::<kvs_tensor>());
    if got == expected { Ok(()) } else { Err(CallErrorKind::StructSize { argument, got, expected }.into()) }
}

/// Checks that no cache overlaps `pairs`, because `pairs` is read again while bytes move. The core checks for
/// overlaps between tensors and with indices.
fn check_pairs(
    pairs: &[kvs_pair],
    argument: &'static CStr,
    mut caches: impl Iterator<Item = RawBuffer>,
) -> Result<(), CallError> {
    let pairs = RawBuffer { ptr: pairs.as_ptr().cast::<u8>().cast_mut(), len: size_of_val(pairs) };
    match caches.position(|cache| cache.overlaps(pairs)) {
        Some(pair) => Err(CallError::from(CallErrorKind::PairsOverlap { argument }).in_pair(pair)),
        None => Ok(()),
    }
}

/// The optional result of a run.
struct WrittenOut(Option<(*mut kvs_written, usize)>);

impl WrittenOut {
    /// Checks the struct in which the result is stored. NULL is allowed.
    ///
    /// # Safety
    /// `written` satisfies C2 and C3 while this value lives.
    #[inline]
    unsafe fn new(written: *mut kvs_written) -> Result<Self, CallError> {
        if written.is_null() {
            return Ok(Self(None));
        }
        // SAFETY: This function's contract requires C2 and C3 for `written`.
        let struct_size = unsafe { struct_size(written, c"written") }?;
        Ok(Self(Some((written, struct_size))))
    }

    #[inline]
    fn put(self, Written { skipped, .. }: Written) {
        if let Self(Some((written, struct_size))) = self {
            // SAFETY: `new` rejects NULL and misaligned pointers. For other pointers, its contract requires
            // C3.
            unsafe { written.write(kvs_written { struct_size, skipped }) };
        }
    }
}
