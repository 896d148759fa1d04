//! The arguments of a call, without the tensors.

use std::ffi::{CStr, c_void};

use kvscatter::Integers;

use crate::boundary::{Versioned, array, structure};
use crate::executor::{CExecutor, kvs_executor};
use crate::failure::{Failure, FailureKind};

/// An index argument: `count` numbers of 32 or 64 bits (`int32_t`, `int64_t`), aligned as such. All zero, it is not
/// given.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvs_indices {
    /// The first of them. May be NULL if there are none.
    pub values: *const c_void,
    /// How many there are.
    pub count: usize,
    /// The width of each: 32 or 64; 0 if the argument is not given.
    pub bits: i32,
}

/// The arguments of one call, and who is to help with it. Those of another operator than the prepared one must not be
/// given. Beside the operators' own there is `lengths`, an extension of this library to all of them.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvs_call {
    /// `sizeof(kvs_call)`; the `KVS_CALL_INIT` macro sets it.
    pub struct_size: usize,
    /// TensorScatter, KVCacheUpdate: the first slot written, one per sample of the update. TensorScatter may do
    /// without: then every sample begins at slot 0.
    pub write_indices: kvs_indices,
    /// How many rows of each sample are real: the rest is padding and not written. If not given, all are.
    pub lengths: kvs_indices,
    /// KVCacheUpdate with a packed update: where each sample's rows begin, cumulative from 0, one more than samples;
    /// 32 bits.
    pub update_lengths: kvs_indices,
    /// KVCacheOperation: the layer; one value of 32 bits.
    pub layer_id: kvs_indices,
    /// KVCacheOperation: the length after the write, one per batch of past; 32 bits.
    pub token_offset: kvs_indices,
    /// KVCacheOperation: the tokens of each batch; 32 bits.
    pub seq_len: kvs_indices,
    /// Threads for writes that are large enough to gain by them. NULL: everything runs on the calling thread.
    pub executor: *const kvs_executor,
}

// SAFETY: the struct is `repr(C)` and begins with `struct_size: usize`.
unsafe impl Versioned for kvs_call {}

/// The arguments in a `kvs_call`.
#[derive(Debug)]
pub(crate) struct Arguments<'a> {
    pub(crate) write_indices: Option<Integers<'a>>,
    pub(crate) lengths: Option<Integers<'a>>,
    pub(crate) update_lengths: Option<Integers<'a>>,
    pub(crate) layer_id: Option<Integers<'a>>,
    pub(crate) token_offset: Option<Integers<'a>>,
    pub(crate) seq_len: Option<Integers<'a>>,
    pub(crate) executor: Option<CExecutor>,
}

impl<'a> Arguments<'a> {
    /// # Safety
    /// C1 and C2 for `call`, C1 for the pointers in it, and C6 for its executor, while `'a` lasts.
    #[inline(always)]
    pub(crate) unsafe fn read(call: *const kvs_call) -> Result<Self, Failure> {
        // SAFETY: C1 and C2 for `call`, by this function's contract.
        let call = unsafe { structure(call, c"call") }?;
        // SAFETY: C1 for `call.write_indices`, by this function's contract.
        let write_indices = unsafe { read_indices(&call.write_indices, c"write_indices") }?;
        // SAFETY: C1 for `call.lengths`, by this function's contract.
        let lengths = unsafe { read_indices(&call.lengths, c"lengths") }?;
        // SAFETY: C1 for `call.update_lengths`, by this function's contract.
        let update_lengths = unsafe { read_indices(&call.update_lengths, c"update_lengths") }?;
        // SAFETY: C1 for `call.layer_id`, by this function's contract.
        let layer_id = unsafe { read_indices(&call.layer_id, c"layer_id") }?;
        // SAFETY: C1 for `call.token_offset`, by this function's contract.
        let token_offset = unsafe { read_indices(&call.token_offset, c"token_offset") }?;
        // SAFETY: C1 for `call.seq_len`, by this function's contract.
        let seq_len = unsafe { read_indices(&call.seq_len, c"seq_len") }?;
        // SAFETY: C1 and C6 for `call.executor`, by this function's contract.
        let executor = unsafe { CExecutor::read(call.executor) }?;
        Ok(Self { write_indices, lengths, update_lengths, layer_id, token_offset, seq_len, executor })
    }
}

/// Returns the values of a `kvs_indices`, if it is given.
///
/// # Safety
/// C1 for `given.values`, as `given.count` numbers of `given.bits` bits, while `'a` lasts.
#[inline(always)]
unsafe fn read_indices<'a>(
    given: &kvs_indices,
    argument: &'static CStr,
) -> Result<Option<Integers<'a>>, Failure> {
    let kvs_indices { values, count, bits } = *given;
    match bits {
        // SAFETY: `values` points to `count` numbers of 32 bits (C1), by this function's contract.
        32 => Ok(Some(Integers::I32(unsafe { array(values.cast(), count, argument.into()) }?))),
        // SAFETY: `values` points to `count` numbers of 64 bits (C1), by this function's contract.
        64 => Ok(Some(Integers::I64(unsafe { array(values.cast(), count, argument.into()) }?))),
        0 if values.is_null() && count == 0 => Ok(None),
        _ => Err(FailureKind::IndexWidth { argument, bits, only: None }.into()),
    }
}

/// Returns the values of an argument that must have 32 bits. Absent ones are an empty list, which the core refuses
/// where it needs values.
#[inline]
pub(crate) fn as_i32<'a>(
    indices: Option<Integers<'a>>,
    argument: &'static CStr,
) -> Result<&'a [i32], Failure> {
    match indices {
        None => Ok(&[]),
        Some(Integers::I32(values)) => Ok(values),
        Some(_) => Err(FailureKind::IndexWidth { argument, bits: 64, only: Some(32) }.into()),
    }
}
