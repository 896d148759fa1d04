//! The prepare functions of the three operators and of paged writes.
//!
//! `lib.rs` defines C1 to C3.

use kvscatter::spec::ascend::KvCacheOperation;
use kvscatter::spec::onnx::TensorScatter;
use kvscatter::spec::paged::PagedWrite;
use kvscatter::spec::same_element_type;
use kvscatter::spec::tensorrt::AttentionIoForm;
use kvscatter::{Argument, ElementType, Error, Layout, Prepared};

use crate::boundary::{check_pointer, structure};
use crate::call_error::CallError;
use crate::guard::guarded;
use crate::options::{
    kvs_kv_cache_operation_options, kvs_kv_cache_update_options, kvs_paged_write_options,
    kvs_tensor_scatter_options, optional,
};
use crate::prepared::kvs_prepared;
use crate::status::kvs_status;
use crate::tensor::{Description, kvs_tensor};

/// Prepares ONNX TensorScatter-24. `past_cache` is [batch, D1, ..., capacity, ..., Dn]. `update` has the same
/// shape except for the sequence dimension (`axis`), where it is at most as long as `past_cache`. All element
/// types are accepted.
///
/// Besides `KVS_OK`, returns one of these errors:
/// - `KVS_ERROR_NULL_POINTER`, `KVS_ERROR_MISALIGNED`, `KVS_ERROR_ADDRESS_SPACE` or `KVS_ERROR_STRUCT_SIZE`
///   if a pointer or a `struct_size` is not valid.
/// - `KVS_ERROR_UNKNOWN_ELEMENT_TYPE`, `KVS_ERROR_RANK_LIMIT`, `KVS_ERROR_NEGATIVE_DIMENSION` or
///   `KVS_ERROR_TOO_LARGE` if the type, the shape or the strides of a tensor are not valid.
/// - `KVS_ERROR_UNKNOWN_OPTION` if an option has a value without a meaning.
/// - `KVS_ERROR_ELEMENT_TYPE_MISMATCH`, `KVS_ERROR_RANK_TOO_LOW`, `KVS_ERROR_AXIS_OUT_OF_RANGE`,
///   `KVS_ERROR_AXIS_IS_BATCH`, `KVS_ERROR_RANK_MISMATCH`, `KVS_ERROR_DIMENSION_MISMATCH` or
///   `KVS_ERROR_UPDATE_LONGER_THAN_CACHE` if the tensors do not fit the operator or each other.
/// - `KVS_ERROR_CACHE_OVERLAPS_ITSELF` or `KVS_ERROR_TOO_MANY_LOOPS` if strides are not supported.
///
/// # Safety
/// - `options` is either NULL, which means the defaults, or points to a struct of `struct_size` bytes.
/// - `past_cache` and `update` are either NULL or each point to a struct of `struct_size` bytes. Their
///   `shape` and `strides` are either NULL or point to `rank` numbers.
/// - Nothing writes these structs and numbers before this returns.
/// - `out` is either NULL or points to memory for the handle's address, which nothing else uses before this
///   returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvs_tensor_scatter_prepare(
    options: *const kvs_tensor_scatter_options,
    past_cache: *const kvs_tensor,
    update: *const kvs_tensor,
    out: *mut *mut kvs_prepared,
) -> kvs_status {
    guarded(|| {
        // SAFETY: This function's contract requires C1 and C2 for `options`.
        let options = unsafe { optional(options) }?;
        let operator = options.map_or(Ok(TensorScatter::new()), |options| options.operator())?;
        let arguments = PrepareArguments {
            operator: "TensorScatter",
            cache: NamedTensor { argument: Argument::PastCache, tensor: past_cache },
            update: NamedTensor { argument: Argument::Update, tensor: update },
            present: Argument::PresentCache,
        };
        let prepare =
            |element, cache: Layout<'_>, update: Layout<'_>| operator.prepare(element, cache, update);
        // SAFETY: This function's contract requires C1 and C2 for the tensors and C3 for `out`.
        unsafe { arguments.prepare(out, prepare) }
    })
}

/// Prepares TensorRT KVCacheUpdate. `cache` is [b, d, s_max, h]. A padded `update` is [b, d, s, h] and has no
/// more samples than the cache. A packed `update` is [totalTokens, d, h]. The element types are float32,
/// float16 and bfloat16.
///
/// Besides `KVS_OK`, returns one of these errors:
/// - `KVS_ERROR_NULL_POINTER`, `KVS_ERROR_MISALIGNED`, `KVS_ERROR_ADDRESS_SPACE` or `KVS_ERROR_STRUCT_SIZE`
///   if a pointer or a `struct_size` is not valid.
/// - `KVS_ERROR_UNKNOWN_ELEMENT_TYPE`, `KVS_ERROR_RANK_LIMIT`, `KVS_ERROR_NEGATIVE_DIMENSION` or
///   `KVS_ERROR_TOO_LARGE` if the type, the shape or the strides of a tensor are not valid.
/// - `KVS_ERROR_UNKNOWN_OPTION` if an option has a value without a meaning.
/// - `KVS_ERROR_ELEMENT_TYPE_MISMATCH`, `KVS_ERROR_ELEMENT_TYPE`, `KVS_ERROR_RANK`,
///   `KVS_ERROR_DIMENSION_MISMATCH`, `KVS_ERROR_UPDATE_LONGER_THAN_CACHE` or `KVS_ERROR_BATCH_TOO_LARGE` if
///   the tensors do not fit the operator or each other.
/// - `KVS_ERROR_CACHE_OVERLAPS_ITSELF` or `KVS_ERROR_TOO_MANY_LOOPS` if strides are not supported.
///
/// # Safety
/// - `options` is either NULL, which means the defaults, or points to a struct of `struct_size` bytes.
/// - `cache` and `update` are either NULL or each point to a struct of `struct_size` bytes. Their `shape` and
///   `strides` are either NULL or point to `rank` numbers.
/// - Nothing writes these structs and numbers before this returns.
/// - `out` is either NULL or points to memory for the handle's address, which nothing else uses before this
///   returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvs_kv_cache_update_prepare(
    options: *const kvs_kv_cache_update_options,
    cache: *const kvs_tensor,
    update: *const kvs_tensor,
    out: *mut *mut kvs_prepared,
) -> kvs_status {
    guarded(|| {
        // SAFETY: This function's contract requires C1 and C2 for `options`.
        let options = unsafe { optional(options) }?;
        let (operator, form) = options.map_or(Ok(Default::default()), |options| options.operator())?;
        let arguments = PrepareArguments {
            operator: match form {
                AttentionIoForm::PaddedBhnd => "a padded KVCacheUpdate",
                AttentionIoForm::PackedNhd => "a packed KVCacheUpdate",
            },
            cache: NamedTensor { argument: Argument::Cache, tensor: cache },
            update: NamedTensor { argument: Argument::Update, tensor: update },
            present: Argument::Output,
        };
        let prepare = |element, cache: Layout<'_>, update: Layout<'_>| match form {
            AttentionIoForm::PaddedBhnd => operator.prepare(element, cache, update),
            AttentionIoForm::PackedNhd => operator.prepare_packed(element, cache, update),
        };
        // SAFETY: This function's contract requires C1 and C2 for the tensors and C3 for `out`.
        unsafe { arguments.prepare(out, prepare) }
    })
}

/// Prepares Ascend ATB KVCacheOperation. `past` is [layer, batch, maxSeqLen, hiddenSize]. `new_kv` is
/// [nTokens, hiddenSize] or [batch, seq_len, head_num, head_size]. The element types are float16, bfloat16
/// and int8.
///
/// The cache is the first tensor, as in the other prepare functions, although Ascend's document lists newKv
/// first.
///
/// Besides `KVS_OK`, returns one of these errors:
/// - `KVS_ERROR_NULL_POINTER`, `KVS_ERROR_MISALIGNED`, `KVS_ERROR_ADDRESS_SPACE` or `KVS_ERROR_STRUCT_SIZE`
///   if a pointer or a `struct_size` is not valid.
/// - `KVS_ERROR_UNKNOWN_ELEMENT_TYPE`, `KVS_ERROR_RANK_LIMIT`, `KVS_ERROR_NEGATIVE_DIMENSION` or
///   `KVS_ERROR_TOO_LARGE` if the type, the shape or the strides of a tensor are not valid.
/// - `KVS_ERROR_UNKNOWN_OPTION` if an option has a value without a meaning.
/// - `KVS_ERROR_ELEMENT_TYPE_MISMATCH`, `KVS_ERROR_ELEMENT_TYPE`, `KVS_ERROR_RANK`,
///   `KVS_ERROR_DIMENSION_MISMATCH`, `KVS_ERROR_HIDDEN_SIZE` or `KVS_ERROR_UPDATE_LONGER_THAN_CACHE` if the
///   tensors do not fit the operator or each other.
/// - `KVS_ERROR_CACHE_OVERLAPS_ITSELF` or `KVS_ERROR_TOO_MANY_LOOPS` if strides are not supported.
///
/// # Safety
/// - `options` is either NULL, which means the defaults, or points to a struct of `struct_size` bytes.
/// - `past` and `new_kv` are either NULL or each point to a struct of `struct_size` bytes. Their `shape` and
///   `strides` are either NULL or point to `rank` numbers.
/// - Nothing writes these structs and numbers before this returns.
/// - `out` is either NULL or points to memory for the handle's address, which nothing else uses before this
///   returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvs_kv_cache_operation_prepare(
    options: *const kvs_kv_cache_operation_options,
    past: *const kvs_tensor,
    new_kv: *const kvs_tensor,
    out: *mut *mut kvs_prepared,
) -> kvs_status {
    guarded(|| {
        // SAFETY: This function's contract requires C1 and C2 for `options`.
        let options = unsafe { optional(options) }?;
        let operator = options.map_or(Ok(KvCacheOperation::new()), |options| options.operator())?;
        let arguments = PrepareArguments {
            operator: "KVCacheOperation",
            cache: NamedTensor { argument: Argument::Past, tensor: past },
            update: NamedTensor { argument: Argument::NewKv, tensor: new_kv },
            present: Argument::Present,
        };
        let prepare = |element, past: Layout<'_>, new_kv: Layout<'_>| operator.prepare(element, past, new_kv);
        // SAFETY: This function's contract requires C1 and C2 for the tensors and C3 for `out`.
        unsafe { arguments.prepare(out, prepare) }
    })
}

/// Prepares writes into a paged cache, one slot for each token, with the terms of vLLM and FlashInfer. `cache` is
/// [num_blocks, block_size, ...], or its slots are another dimension (`axis`). `update` is [tokens, ...], where
/// the other dimensions are those of `cache` without the blocks and the slots. All element types are accepted.
///
/// A call gives the `slot_mapping`, as `kvs_slot_mapping` computes it. `lengths` do not apply, and there is no
/// functional form, so `kvs_write_present` returns `KVS_ERROR_IN_PLACE_ONLY`.
///
/// Besides `KVS_OK`, returns one of these errors:
/// - `KVS_ERROR_NULL_POINTER`, `KVS_ERROR_MISALIGNED`, `KVS_ERROR_ADDRESS_SPACE` or `KVS_ERROR_STRUCT_SIZE`
///   if a pointer or a `struct_size` is not valid.
/// - `KVS_ERROR_UNKNOWN_ELEMENT_TYPE`, `KVS_ERROR_RANK_LIMIT`, `KVS_ERROR_NEGATIVE_DIMENSION` or
///   `KVS_ERROR_TOO_LARGE` if the type, the shape or the strides of a tensor are not valid.
/// - `KVS_ERROR_UNKNOWN_OPTION` if an option has a value without a meaning.
/// - `KVS_ERROR_ELEMENT_TYPE_MISMATCH`, `KVS_ERROR_RANK`, `KVS_ERROR_AXIS_OUT_OF_RANGE`,
///   `KVS_ERROR_AXIS_IS_BATCH` or `KVS_ERROR_DIMENSION_MISMATCH` if the tensors do not fit the write or each
///   other. A cache has 2 to 8 dimensions.
/// - `KVS_ERROR_CACHE_OVERLAPS_ITSELF` or `KVS_ERROR_TOO_MANY_LOOPS` if strides are not supported.
///
/// # Safety
/// - `options` is either NULL, which means the defaults, or points to a struct of `struct_size` bytes.
/// - `cache` and `update` are either NULL or each point to a struct of `struct_size` bytes. Their `shape` and
///   `strides` are either NULL or point to `rank` numbers.
/// - Nothing writes these structs and numbers before this returns.
/// - `out` is either NULL or points to memory for the handle's address, which nothing else uses before this
///   returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvs_paged_write_prepare(
    options: *const kvs_paged_write_options,
    cache: *const kvs_tensor,
    update: *const kvs_tensor,
    out: *mut *mut kvs_prepared,
) -> kvs_status {
    guarded(|| {
        // SAFETY: This function's contract requires C1 and C2 for `options`.
        let options = unsafe { optional(options) }?;
        let operator = options.map_or(Ok(PagedWrite::new()), |options| options.operator())?;
        let arguments = PrepareArguments {
            operator: "a paged write",
            cache: NamedTensor { argument: Argument::Cache, tensor: cache },
            update: NamedTensor { argument: Argument::Update, tensor: update },
            present: Argument::PresentCache,
        };
        let prepare =
            |element, cache: Layout<'_>, update: Layout<'_>| operator.prepare(element, cache, update);
        // SAFETY: This function's contract requires C1 and C2 for the tensors and C3 for `out`.
        unsafe { arguments.prepare(out, prepare) }
    })
}

/// A tensor with its name in the specification.
struct NamedTensor {
    argument: Argument,
    tensor: *const kvs_tensor,
}

/// The arguments of a prepare function.
struct PrepareArguments {
    /// The operator's name in messages.
    operator: &'static str,
    cache: NamedTensor,
    update: NamedTensor,
    /// The result of the functional form, by its name in the specification.
    present: Argument,
}

impl PrepareArguments {
    /// Prepares the operator and stores the handle in `out`.
    ///
    /// # Safety
    /// Both tensors satisfy C1 and C2, the pointers in them satisfy C1, and `out` satisfies C3.
    unsafe fn prepare(
        self,
        out: *mut *mut kvs_prepared,
        prepare: impl FnOnce(ElementType, Layout<'_>, Layout<'_>) -> Result<Prepared, Error>,
    ) -> Result<(), CallError> {
        let Self { operator, cache, update, present } = self;
        check_pointer(out, 1, c"out".into())?;
        // SAFETY: This function's contract requires C1 and C2 for `cache`.
        let of_cache = unsafe { cache.describe() }?;
        // SAFETY: This function's contract requires C1 and C2 for `update`.
        let of_update = unsafe { update.describe() }?;
        let element = same_element_type(of_cache.element, update.argument, of_update.element)?;
        let write = prepare(element, of_cache.layout()?, of_update.layout()?)?;
        let prepared = kvs_prepared::new(write, operator, &of_cache, &of_update, present.c_name());
        let prepared = Box::into_raw(Box::new(prepared));
        // SAFETY: `check_pointer` rejects NULL and misaligned pointers. For other pointers, this function's
        // contract requires C3.
        unsafe { out.write(prepared) };
        Ok(())
    }
}

impl NamedTensor {
    /// Reads the type, shape and strides of the tensor.
    ///
    /// # Safety
    /// `self.tensor` satisfies C1 and C2, and the pointers in it satisfy C1.
    unsafe fn describe(&self) -> Result<Description, CallError> {
        // SAFETY: This function's contract requires C1 and C2 for `self.tensor`.
        let tensor = unsafe { structure(self.tensor, self.argument.c_name()) }?;
        // SAFETY: This function's contract requires C1 for the shape and strides of `tensor`.
        unsafe { Description::read(tensor, self.argument.c_name()) }
    }
}
