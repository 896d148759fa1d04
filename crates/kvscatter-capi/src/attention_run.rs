//! Runs prepared attention.
//!
//! `lib.rs` defines C1 to C7.

use kvscatter::{Executor, Integers, RawBuffer};
use kvscatter_attention::{AttentionError, Operand as Name, Valid};

use crate::attention::{Operands, Scale, kvs_attention, kvs_attention_scratch};
use crate::attention_kernel::{Memory, ScaleMemory};
use crate::boundary::{Versioned, check_pointer, reference, structure};
use crate::call::{as_i32, kvs_indices, read_indices};
use crate::call_error::{CallError, CallErrorKind};
use crate::executor::{CExecutor, kvs_executor};
use crate::fields::operand_name;
use crate::guard::guarded;
use crate::options::choice;
use crate::status::kvs_status;
use crate::tensor::{Operand, kvs_tensor};

/// The arguments of one call of attention besides queries, keys, values and the output. A tensor that is not given
/// is NULL.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvs_attention_call {
    /// `sizeof(kvs_attention_call)`. The `KVS_ATTENTION_CALL_INIT` macro sets it.
    pub struct_size: usize,
    /// The number of tokens of each sample, including those of this step, which are the slots that contain tokens.
    /// In a ring it may exceed the capacity. If this argument is not given, all slots contain tokens, and query i
    /// has the position i.
    pub lengths: kvs_indices,
    /// The position of the first token of each sample that is not padding on the left. No query sees a position
    /// before it. If this argument is not given, it is 0 for every sample.
    pub starts: kvs_indices,
    /// The blocks of each sample, [batch, blocks per sample], 32 bits, if `blocks_per_sample` was prepared. Entries
    /// for positions that no query sees may have any value.
    pub block_table: kvs_indices,
    /// One of `kvs_query_positions`.
    pub query_positions: i32,
    /// The mask, if it was prepared.
    pub mask: *const kvs_tensor,
    /// The score of the sink of each query head, [query heads] of the type of `query`, if `has_sinks` was prepared.
    pub sinks: *const kvs_tensor,
    /// The scales of keys of int8, float32 and dense: one for each row, [batch or blocks, heads, slots], or one for
    /// each element of a head, [heads, head size].
    pub key_scales: *const kvs_tensor,
    /// The scales of values of int8, of the same rank: [batch or blocks, heads, slots] or [heads, value size].
    pub value_scales: *const kvs_tensor,
    /// Threads for long calls. If this is NULL, the whole call runs on the calling thread. At most as many threads
    /// are used as the scratch was made for.
    pub executor: *const kvs_executor,
}

// SAFETY: The struct is `repr(C)` and begins with `struct_size: usize`.
unsafe impl Versioned for kvs_attention_call {}

/// Computes attention of `query` over a cache, `key` and `value`, and writes it to `output`. The tensors must have
/// the type, rank, shape and strides that were prepared, but their data may be at other addresses in each call.
/// Slots that no query sees are not read. A query that sees nothing gives zeros. Allocates nothing.
///
/// Besides `KVS_OK`, returns one of these errors, after which `output` has not changed:
/// - `KVS_ERROR_NULL_POINTER`, `KVS_ERROR_MISALIGNED`, `KVS_ERROR_ADDRESS_SPACE`, `KVS_ERROR_TOO_LARGE` or
///   `KVS_ERROR_STRUCT_SIZE` if a pointer, an array or a `struct_size` is not valid.
/// - `KVS_ERROR_INDEX_WIDTH`, `KVS_ERROR_UNKNOWN_OPTION`, `KVS_ERROR_UNEXPECTED_ARGUMENT`,
///   `KVS_ERROR_MISSING_ARGUMENT` or `KVS_ERROR_TENSOR_MISMATCH` if an argument differs from what was prepared.
/// - `KVS_ERROR_LIST_LENGTH`, `KVS_ERROR_LENGTH_OUT_OF_RANGE`, `KVS_ERROR_NEGATIVE_START` or
///   `KVS_ERROR_BLOCK_OUT_OF_RANGE` if a length, a start or an entry of the block table is not valid.
/// - `KVS_ERROR_NULL_BUFFER` or `KVS_ERROR_OVERLAP` if the data of a tensor are NULL, or if `output` overlaps
///   memory that the call reads.
/// - `KVS_ERROR_SCRATCH` if `scratch` was made for other shapes.
///
/// # Safety
/// - `attention` is either NULL or comes from `kvs_attention_prepare`, and nothing destroys it before this returns.
/// - `call` and the tensors are either NULL or each point to a struct of `struct_size` bytes.
/// - Each pointer in these structs is either NULL or points to the number of values that the field beside it
///   gives. Nothing writes the structs and these values before this returns.
/// - The memory of each tensor, from its first to its last element, is in one allocation. It is initialised, except
///   that of `output`. Before this returns, nothing else writes it, and nothing else reads that of `output`.
/// - The `broadcast` of the call's executor may be called with the `user` beside it, and it returns. It calls
///   `work` with its `context` only, and does not call it after it has returned.
/// - `scratch` is either NULL or comes from `kvs_attention_scratch_new`. Nothing else uses or destroys it before
///   this returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvs_attention_run(
    attention: *const kvs_attention,
    call: *const kvs_attention_call,
    query: *const kvs_tensor,
    key: *const kvs_tensor,
    value: *const kvs_tensor,
    output: *const kvs_tensor,
    scratch: *mut kvs_attention_scratch,
) -> kvs_status {
    guarded(|| {
        // SAFETY: This function's contract requires C4 for `attention`.
        let kvs_attention { prepared, run, operands } = unsafe { reference(attention, c"attention") }?;
        // SAFETY: This function's contract requires C1 and C2 for `call`.
        let call = unsafe { structure(call, c"call") }?;
        check_pointer(scratch, 1, c"scratch".into())?;
        // SAFETY: `check_pointer` rejects NULL and misaligned pointers. For other pointers, this function's
        // contract requires C7.
        let kvs_attention_scratch { scratch, numbers: room } = unsafe { &mut *scratch };
        // SAFETY: This function's contract requires C1 and C6 for the executor.
        let executor = unsafe { CExecutor::read(call.executor) }?;
        // SAFETY: This function's contract requires C1 for `call.lengths`.
        let lengths = unsafe { read_indices(&call.lengths, c"lengths") }?;
        // SAFETY: This function's contract requires C1 for `call.starts`.
        let starts = unsafe { read_indices(&call.starts, c"starts") }?;
        // SAFETY: This function's contract requires C1 for `call.block_table`.
        let block_table = unsafe { read_indices(&call.block_table, c"block_table") }?;
        let block_table = block_table.map(|table| as_i32(Some(table), c"block_table")).transpose()?;
        // SAFETY: This function's contract requires C1 and C2 for `query`.
        let query = unsafe { memory(&operands.query, query) }?;
        // SAFETY: This function's contract requires C1 and C2 for `key`.
        let key = unsafe { memory(&operands.key, key) }?;
        // SAFETY: This function's contract requires C1 and C2 for `value`.
        let value = unsafe { memory(&operands.value, value) }?;
        // SAFETY: This function's contract requires C1 and C2 for `output`.
        let output = unsafe { memory(&operands.output, output) }?;
        // SAFETY: This function's contract requires C1 and C2 for the tensors in `call`.
        let (mask, sinks, scales) = unsafe { optional_tensors(operands, call) }?;
        let expected = prepared.elements(Name::Lengths);
        let (of_lengths, of_starts) = room.split_at_mut(room.len() / 2);
        let widen = |room, name| move |numbers| widened(numbers, room, name, expected);
        let lengths = lengths.map(widen(of_lengths, Name::Lengths)).transpose()?;
        let starts = starts.map(widen(of_starts, Name::Starts)).transpose()?;
        let of_queries = [Valid::Lengths, Valid::Prompt];
        let of_queries = choice(c"query_positions", call.query_positions, &of_queries)?;
        let valid = lengths.map_or(Valid::All, of_queries);
        let memory = Memory { query, key, value, output, mask, sinks, scales, valid, starts, block_table };
        check_apart(&memory, call)?;
        let executor = executor.as_ref().map(|executor| -> &dyn Executor { executor });
        // SAFETY: `memory` and `optional_tensors` returned buffers of the prepared sizes and types, aligned and not
        // NULL. `check_apart` compared the output with all other memory. This function's contract requires C8 for
        // the tensors.
        unsafe { run.run(prepared, &memory, scratch, executor) }?;
        Ok(())
    })
}

/// Returns the buffer of a tensor, or an error if it differs from the prepared one.
///
/// # Safety
/// `tensor` satisfies C1 and C2, and so do its shape and strides.
unsafe fn memory(operand: &Operand, tensor: *const kvs_tensor) -> Result<RawBuffer, CallError> {
    // SAFETY: This function's contract requires C1 and C2 for `tensor`.
    let tensor = unsafe { structure(tensor, operand.argument) }?;
    // SAFETY: This function's contract requires C1 for the shape and strides.
    unsafe { operand.memory(tensor) }
}

type OptionalTensors = (Option<(RawBuffer, bool)>, Option<RawBuffer>, Option<ScaleMemory>);

/// Returns the buffers of the mask, the sinks and the scales that are given.
///
/// # Safety
/// The tensors in `call` satisfy C1 and C2, and so do their shapes and strides.
unsafe fn optional_tensors(
    operands: &Operands,
    call: &kvs_attention_call,
) -> Result<OptionalTensors, CallError> {
    let kvs_attention_call { mask, sinks, key_scales, value_scales, .. } = *call;
    let mask = match &operands.mask {
        _ if mask.is_null() => None,
        None => return Err(AttentionError::Presence { operand: Name::Mask, is_expected: false }.into()),
        // SAFETY: This function's contract requires C1 and C2 for the mask.
        Some(prepared) => Some((unsafe { memory(&prepared.tensor, mask) }?, prepared.is_bool)),
    };
    let sinks = match sinks.is_null() {
        true => None,
        // SAFETY: This function's contract requires C1 and C2 for the sinks.
        false => Some(unsafe { memory(&operands.sinks, sinks) }?),
    };
    let scales = match (key_scales.is_null(), value_scales.is_null()) {
        (true, true) => None,
        // SAFETY: This function's contract requires C1 and C2 for the scales.
        (false, false) => Some(unsafe { scales(&operands.scales, key_scales, value_scales) }?),
        (is_key_missing, _) => {
            let missing = if is_key_missing { Name::KeyScales } else { Name::ValueScales };
            return Err(CallErrorKind::MissingArgument { argument: operand_name(missing) }.into());
        }
    };
    Ok((mask, sinks, scales))
}

/// Returns the buffers of the scales, whose form follows from the rank of those of the keys.
///
/// # Safety
/// Both tensors satisfy C1 and C2, and so do their shapes and strides.
unsafe fn scales(
    [of_keys, of_values]: &[Scale; 2],
    key: *const kvs_tensor,
    value: *const kvs_tensor,
) -> Result<ScaleMemory, CallError> {
    // SAFETY: This function's contract requires C1 and C2 for `key`.
    let rank = unsafe { structure(key, of_keys.rows.argument) }?.rank;
    let is_channels = rank == 2;
    // SAFETY: This function's contract requires C1 and C2 for `key`.
    let key = unsafe { memory(of_keys.form(is_channels), key) }?;
    // SAFETY: This function's contract requires C1 and C2 for `value`.
    let value = unsafe { memory(of_values.form(is_channels), value) }?;
    Ok(if is_channels { ScaleMemory::Channels([key, value]) } else { ScaleMemory::Rows([key, value]) })
}

/// Returns numbers of 64 bits. Those of 32 bits are copied to `room`.
fn widened<'a>(
    numbers: Integers<'a>,
    room: &'a mut [i64],
    operand: Name,
    expected: usize,
) -> Result<&'a [i64], CallError> {
    let narrow = match numbers {
        Integers::I64(numbers) => return Ok(numbers),
        other => as_i32(Some(other), operand_name(operand))?,
    };
    let got = narrow.len();
    if got != expected {
        return Err(AttentionError::Length { operand, got, expected }.into());
    }
    let room = room.get_mut(..got).ok_or(AttentionError::Scratch)?;
    room.iter_mut().zip(narrow).for_each(|(to, &number)| *to = number.into());
    Ok(room)
}

/// Checks that the output shares no byte with memory that the call reads.
fn check_apart(memory: &Memory<'_>, call: &kvs_attention_call) -> Result<(), CallError> {
    let Memory { query, key, value, output, mask, sinks, scales, .. } = *memory;
    let [key_scales, value_scales] = scales.map_or([None; 2], |scales| match scales {
        ScaleMemory::Rows(both) | ScaleMemory::Channels(both) => both.map(Some),
    });
    let read = [
        (Name::Query, Some(query)),
        (Name::Key, Some(key)),
        (Name::Value, Some(value)),
        (Name::Mask, mask.map(|(mask, _)| mask)),
        (Name::Sinks, sinks),
        (Name::KeyScales, key_scales),
        (Name::ValueScales, value_scales),
        (Name::Lengths, Some(call.lengths.buffer())),
        (Name::Starts, Some(call.starts.buffer())),
        (Name::BlockTable, Some(call.block_table.buffer())),
    ];
    match read.into_iter().find(|(_, buffer)| buffer.is_some_and(|buffer| buffer.overlaps(output))) {
        None => Ok(()),
        Some((other, _)) => {
            let [argument, other] = [Name::Output, other].map(operand_name);
            Err(CallErrorKind::Overlap { argument, other }.into())
        }
    }
}
