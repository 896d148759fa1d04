//! The arguments of a call, without the tensors.
//!
//! `lib.rs` defines C1, C2 and C6.

use std::ffi::{CStr, c_void};

use kvscatter::{Integers, RawBuffer};

use crate::boundary::{Versioned, array, structure};
use crate::call_error::{CallError, CallErrorKind};
use crate::executor::{CExecutor, kvs_executor};

/// An index argument: `count` numbers of 32 or 64 bits (`int32_t` or `int64_t`) with the alignment of their
/// type. An argument whose fields are all zero is not given.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvs_indices {
    /// The first number. It may be NULL if `count` is 0.
    pub values: *const c_void,
    /// The number of values.
    pub count: usize,
    /// The width of each number, 32 or 64. It is 0 if the argument is not given.
    pub bits: i32,
}

/// The arguments of one call, and the executor that may help with it. A call must give only arguments of the
/// prepared operator.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvs_call {
    /// `sizeof(kvs_call)`. The `KVS_CALL_INIT` macro sets it.
    pub struct_size: usize,
    /// TensorScatter, KVCacheUpdate: the first slot that is written, one per sample of the update. In
    /// TensorScatter this argument is optional, and without it every sample begins at slot 0.
    pub write_indices: kvs_indices,
    /// Paged writes: the slot of each token of the update, block * block_size + offset. The slots of a call are
    /// different, in any order.
    pub slot_mapping: kvs_indices,
    /// All operators except paged writes: the number of real rows of each sample. The other rows are padding and
    /// are not written. If this argument is not given, all rows are real. kvscatter extension; not part of the
    /// specification.
    pub lengths: kvs_indices,
    /// KVCacheUpdate with a packed update: the cumulative lengths, which begin with 0. Value i is the
    /// position at which the rows of sample i begin. The last value is the number of all rows, so there is
    /// one value more than samples. 32 bits.
    pub update_lengths: kvs_indices,
    /// KVCacheOperation: the layer. One value of 32 bits.
    pub layer_id: kvs_indices,
    /// KVCacheOperation: the length after the write, one per batch of past. 32 bits.
    pub token_offset: kvs_indices,
    /// KVCacheOperation: the number of tokens of each batch. 32 bits.
    pub seq_len: kvs_indices,
    /// Threads for writes that are large enough to be faster with them. If this is NULL, the whole write runs
    /// on the calling thread.
    pub executor: *const kvs_executor,
}

// SAFETY: The struct is `repr(C)` and begins with `struct_size: usize`.
unsafe impl Versioned for kvs_call {}

/// The arguments in a `kvs_call`.
#[derive(Debug)]
pub(crate) struct Arguments<'a> {
    pub(crate) write_indices: Option<Integers<'a>>,
    pub(crate) slot_mapping: Option<Integers<'a>>,
    pub(crate) lengths: Option<Integers<'a>>,
    pub(crate) update_lengths: Option<Integers<'a>>,
    pub(crate) layer_id: Option<Integers<'a>>,
    pub(crate) token_offset: Option<Integers<'a>>,
    pub(crate) seq_len: Option<Integers<'a>>,
    pub(crate) executor: Option<CExecutor>,
}

impl<'a> Arguments<'a> {
    /// Reads the arguments.
    ///
    /// # Safety
    /// For the lifetime `'a`, `call` satisfies C1 and C2, the pointers in it satisfy C1, and its executor
    /// satisfies C6.
    #[inline(always)]
    pub(crate) unsafe fn read(call: *const kvs_call) -> Result<Self, CallError> {
        // SAFETY: This function's contract requires C1 and C2 for `call`.
        let call = unsafe { structure(call, c"call") }?;
        // SAFETY: This function's contract requires C1 for `call.write_indices`.
        let write_indices = unsafe { read_indices(&call.write_indices, c"write_indices") }?;
        // SAFETY: This function's contract requires C1 for `call.slot_mapping`.
        let slot_mapping = unsafe { read_indices(&call.slot_mapping, c"slot_mapping") }?;
        // SAFETY: This function's contract requires C1 for `call.lengths`.
        let lengths = unsafe { read_indices(&call.lengths, c"lengths") }?;
        // SAFETY: This function's contract requires C1 for `call.update_lengths`.
        let update_lengths = unsafe { read_indices(&call.update_lengths, c"update_lengths") }?;
        // SAFETY: This function's contract requires C1 for `call.layer_id`.
        let layer_id = unsafe { read_indices(&call.layer_id, c"layer_id") }?;
        // SAFETY: This function's contract requires C1 for `call.token_offset`.
        let token_offset = unsafe { read_indices(&call.token_offset, c"token_offset") }?;
        // SAFETY: This function's contract requires C1 for `call.seq_len`.
        let seq_len = unsafe { read_indices(&call.seq_len, c"seq_len") }?;
        // SAFETY: This function's contract requires C1 and C6 for `call.executor`.
        let executor = unsafe { CExecutor::read(call.executor) }?;
        Ok(Self {
            write_indices,
            slot_mapping,
            lengths,
            update_lengths,
            layer_id,
            token_offset,
            seq_len,
            executor,
        })
    }
}

impl kvs_indices {
    /// Returns the memory of values that `read_indices` accepted.
    pub(crate) fn buffer(&self) -> RawBuffer {
        let bytes = if self.bits == 32 { size_of::<i32>() } else { size_of::<i64>() };
        RawBuffer { ptr: self.values.cast_mut().cast(), len: self.count.saturating_mul(bytes) }
    }
}

/// Returns the values of a `kvs_indices`, or `None` if the argument is not given.
///
/// # Safety
/// `given.values` satisfies C1 for the lifetime `'a`, as a pointer to `given.count` numbers of `given.bits`
/// bits.
#[inline(always)]
pub(crate) unsafe fn read_indices<'a>(
    given: &kvs_indices,
    argument: &'static CStr,
) -> Result<Option<Integers<'a>>, CallError> {
    let kvs_indices { values, count, bits } = *given;
    match bits {
        // SAFETY: This function's contract requires C1, so `values` points to `count` numbers of 32 bits.
        32 => Ok(Some(Integers::I32(unsafe { array(values.cast(), count, argument.into()) }?))),
        // SAFETY: This function's contract requires C1, so `values` points to `count` numbers of 64 bits.
        64 => Ok(Some(Integers::I64(unsafe { array(values.cast(), count, argument.into()) }?))),
        0 if values.is_null() && count == 0 => Ok(None),
        _ => Err(CallErrorKind::IndexWidth { argument, bits, only_32: false }.into()),
    }
}

/// Returns the values of an argument that must have 32 bits. An argument that is not given becomes an empty
/// list, which the core rejects if the operator needs values.
#[inline]
pub(crate) fn as_i32<'a>(
    indices: Option<Integers<'a>>,
    argument: &'static CStr,
) -> Result<&'a [i32], CallError> {
    match indices {
        None => Ok(&[]),
        Some(Integers::I32(values)) => Ok(values),
        Some(_) => Err(CallErrorKind::IndexWidth { argument, bits: 64, only_32: true }.into()),
    }
}
