//! The functions that prepare the three operators.

use std::ffi::CStr;

use kvscatter::spec::ascend::KvCacheOperation;
use kvscatter::spec::onnx::TensorScatter;
use kvscatter::spec::tensorrt::KvCacheUpdate;
use kvscatter::{Argument, ElementType, Error, Layout};

use crate::boundary::{check_pointer, structure};
use crate::failure::{Failure, Kind};
use crate::guard::guarded;
use crate::options::{
    kvs_kv_cache_operation_options, kvs_kv_cache_update_options, kvs_tensor_scatter_options, optional,
};
use crate::prepared::{Write, kvs_prepared};
use crate::status::kvs_status;
use crate::tensor::{Description, kvs_tensor};

/// Prepares ONNX TensorScatter-24. `past_cache` is [batch, D1, ..., capacity, ..., Dn], and `update` differs from it
/// in the sequence dimension (`axis`) alone, where it is no longer. All element types.
///
/// Errors: those of pointers, structs and tensors; `KVS_ERROR_UNKNOWN_OPTION`; `KVS_ERROR_ELEMENT_TYPE_MISMATCH`;
/// `KVS_ERROR_RANK_TOO_LOW`, `_AXIS_OUT_OF_RANGE`, `_AXIS_IS_BATCH`, `_RANK_MISMATCH`; `_TOO_LARGE`;
/// `_DIMENSION_MISMATCH`, `_UPDATE_LONGER_THAN_CACHE`; `_CACHE_OVERLAPS_ITSELF`, `_LAYOUT`.
///
/// # Safety
/// `options` is either NULL, which means the defaults, or points to options; `past_cache` and `update` are either
/// NULL or point to tensors whose `shape` is NULL or has `rank` numbers, and so have `strides`; `out` is either NULL
/// or points to where the handle is to be put.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvs_tensor_scatter_prepare(
    options: *const kvs_tensor_scatter_options,
    past_cache: *const kvs_tensor,
    update: *const kvs_tensor,
    out: *mut *mut kvs_prepared,
) -> kvs_status {
    guarded(|| {
        // SAFETY: C1 and C2 for `options`, by this function's contract.
        let options = unsafe { optional(options) }?;
        let operator = options.map_or(Ok(TensorScatter::new()), |options| options.operator())?;
        let arguments = PrepareArguments {
            cache: NamedTensor { argument: c"past_cache", tensor: past_cache },
            update: NamedTensor { argument: c"update", tensor: update },
            update_argument: Argument::Update,
            present: c"present_cache",
        };
        let prepare = |element, cache: Layout<'_>, update: Layout<'_>| {
            Ok(Write::Starts(operator.prepare(element, cache, update)?, "TensorScatter"))
        };
        // SAFETY: C1 and C2 for the tensors and C3 for `out`, by this function's contract.
        unsafe { arguments.prepare(out, prepare) }
    })
}

/// Prepares TensorRT KVCacheUpdate. `cache` is [b, d, s_max, h]; `update` is [b, d, s, h], with as many samples as
/// the cache or fewer, or packed, [totalTokens, d, h]. float32, float16 and bfloat16.
///
/// Errors: those of pointers, structs and tensors; `KVS_ERROR_UNKNOWN_OPTION`; `KVS_ERROR_ELEMENT_TYPE_MISMATCH`;
/// `KVS_ERROR_ELEMENT_TYPE`, `_RANK`; `_TOO_LARGE`; `_DIMENSION_MISMATCH`; `_UPDATE_LONGER_THAN_CACHE`,
/// `_BATCH_TOO_LARGE`; `_CACHE_OVERLAPS_ITSELF`, `_LAYOUT`.
///
/// # Safety
/// As for `kvs_tensor_scatter_prepare`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvs_kv_cache_update_prepare(
    options: *const kvs_kv_cache_update_options,
    cache: *const kvs_tensor,
    update: *const kvs_tensor,
    out: *mut *mut kvs_prepared,
) -> kvs_status {
    guarded(|| {
        // SAFETY: C1 and C2 for `options`, by this function's contract.
        let options = unsafe { optional(options) }?;
        let (operator, packed) =
            options.map_or(Ok((KvCacheUpdate::new(), false)), |options| options.operator())?;
        let arguments = PrepareArguments {
            cache: NamedTensor { argument: c"cache", tensor: cache },
            update: NamedTensor { argument: c"update", tensor: update },
            update_argument: Argument::Update,
            present: c"output",
        };
        let prepare = |element, cache: Layout<'_>, update: Layout<'_>| {
            if packed {
                Ok(Write::Packed(operator.prepare_packed(element, cache, update)?))
            } else {
                Ok(Write::Starts(operator.prepare(element, cache, update)?, "a padded KVCacheUpdate"))
            }
        };
        // SAFETY: C1 and C2 for the tensors and C3 for `out`, by this function's contract.
        unsafe { arguments.prepare(out, prepare) }
    })
}

/// Prepares Ascend ATB KVCacheOperation. `new_kv` is [nTokens, hiddenSize] or [batch, seq_len, head_num, head_size],
/// `past` is [layer, batch, maxSeqLen, hiddenSize]. float16, bfloat16 and int8.
///
/// The tensors stand in the order of Ascend's document: the new values first. The functions that run it take the
/// cache first, as for all operators.
///
/// Errors: those of pointers, structs and tensors; `KVS_ERROR_UNKNOWN_OPTION`; `KVS_ERROR_ELEMENT_TYPE_MISMATCH`;
/// `KVS_ERROR_RESERVED`, `_ELEMENT_TYPE`, `_RANK`; `_TOO_LARGE`; `_DIMENSION_MISMATCH`, `_HIDDEN_SIZE`;
/// `_UPDATE_LONGER_THAN_CACHE`; `_CACHE_OVERLAPS_ITSELF`, `_LAYOUT`.
///
/// # Safety
/// As for `kvs_tensor_scatter_prepare`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvs_kv_cache_operation_prepare(
    options: *const kvs_kv_cache_operation_options,
    new_kv: *const kvs_tensor,
    past: *const kvs_tensor,
    out: *mut *mut kvs_prepared,
) -> kvs_status {
    guarded(|| {
        // SAFETY: C1 and C2 for `options`, by this function's contract.
        let options = unsafe { optional(options) }?;
        let operator = options.map_or(Ok(KvCacheOperation::new()), |options| options.operator())?;
        let arguments = PrepareArguments {
            cache: NamedTensor { argument: c"past", tensor: past },
            update: NamedTensor { argument: c"newKv", tensor: new_kv },
            update_argument: Argument::NewKv,
            present: c"present",
        };
        let prepare = |element, past: Layout<'_>, new_kv: Layout<'_>| {
            Ok(Write::Operation(operator.prepare(element, new_kv, past)?))
        };
        // SAFETY: C1 and C2 for the tensors and C3 for `out`, by this function's contract.
        unsafe { arguments.prepare(out, prepare) }
    })
}

/// A tensor with the specification's name for it.
struct NamedTensor {
    argument: &'static CStr,
    tensor: *const kvs_tensor,
}

/// The arguments of a prepare function.
struct PrepareArguments {
    cache: NamedTensor,
    update: NamedTensor,
    /// The update's name, for the core.
    update_argument: Argument,
    /// The specification's name for the result of the functional form.
    present: &'static CStr,
}

impl PrepareArguments {
    /// # Safety
    /// C1 and C2 for both tensors, C1 for the pointers in them, and C3 for `out`.
    unsafe fn prepare(
        self,
        out: *mut *mut kvs_prepared,
        prepare: impl FnOnce(ElementType, Layout<'_>, Layout<'_>) -> Result<Write, Error>,
    ) -> Result<(), Failure> {
        let Self { cache, update, update_argument, present } = self;
        check_pointer(out, 1, c"out".into())?;
        // SAFETY: C1 and C2 for `cache`, by this function's contract.
        let cache = unsafe { cache.describe() }?;
        // SAFETY: C1 and C2 for `update`, by this function's contract.
        let update = unsafe { update.describe() }?;
        if cache.element != update.element {
            let (cache, argument, element) = (cache.element, update_argument, update.element);
            return Err(Error::ElementTypeMismatch { cache, argument, element }.into());
        }
        let write = prepare(cache.element, cache.layout()?, update.layout()?).map_err(|error| {
            let tensor = match error {
                Error::UpdateLongerThanCache { .. } => Some(update.argument),
                Error::CacheOverlapsItself => Some(cache.argument),
                _ => None,
            };
            Kind::Core(error, tensor)
        })?;
        let prepared = Box::into_raw(Box::new(kvs_prepared::new(write, &cache, &update, present)));
        // SAFETY: `check_pointer` refuses NULL and misaligned pointers; C3 for the others, by this function's
        // contract.
        unsafe { out.write(prepared) };
        Ok(())
    }
}

impl NamedTensor {
    /// # Safety
    /// C1 and C2 for `self.tensor`, and C1 for the pointers in it.
    unsafe fn describe(&self) -> Result<Description, Failure> {
        // SAFETY: C1 and C2 for `self.tensor`, by this function's contract.
        let tensor = unsafe { structure(self.tensor, self.argument) }?;
        // SAFETY: C1 for the shape and strides of `tensor`, by this function's contract.
        unsafe { Description::read(tensor, self.argument) }
    }
}
