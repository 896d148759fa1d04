//! The three operators: what is checked once per shape.

use std::ffi::CStr;

use kvscatter::spec::ascend::KvCacheOperation;
use kvscatter::spec::onnx::TensorScatter;
use kvscatter::spec::tensorrt::KvCacheUpdate;
use kvscatter::{Argument, ElementType, Error, Layout};

use crate::boundary::{check_pointer, structure};
use crate::failure::{Failure, Kind};
use crate::guard::guarded;
use crate::options::{
    given, kvs_kv_cache_operation_options, kvs_kv_cache_update_options, kvs_tensor_scatter_options,
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
        let options = unsafe { given(options) }?;
        let operator = options.map_or(Ok(TensorScatter::new()), |options| options.operator())?;
        let tensors = Tensors {
            cache: Tensor { argument: c"past_cache", tensor: past_cache },
            update: Tensor { argument: c"update", tensor: update },
            update_argument: Argument::Update,
            present: c"present_cache",
        };
        let front = |element, cache: Layout<'_>, update: Layout<'_>| {
            Ok(Write::Starts(operator.prepare(element, cache, update)?, "TensorScatter"))
        };
        // SAFETY: C1 and C2 for the tensors and C3 for `out`, by this function's contract.
        unsafe { tensors.prepare(out, front) }
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
        let options = unsafe { given(options) }?;
        let (operator, packed) =
            options.map_or(Ok((KvCacheUpdate::new(), false)), |options| options.operator())?;
        let tensors = Tensors {
            cache: Tensor { argument: c"cache", tensor: cache },
            update: Tensor { argument: c"update", tensor: update },
            update_argument: Argument::Update,
            present: c"output",
        };
        let front = |element, cache: Layout<'_>, update: Layout<'_>| {
            if packed {
                Ok(Write::Packed(operator.prepare_packed(element, cache, update)?))
            } else {
                Ok(Write::Starts(operator.prepare(element, cache, update)?, "a padded KVCacheUpdate"))
            }
        };
        // SAFETY: C1 and C2 for the tensors and C3 for `out`, by this function's contract.
        unsafe { tensors.prepare(out, front) }
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
        let options = unsafe { given(options) }?;
        let operator = options.map_or(Ok(KvCacheOperation::new()), |options| options.operator())?;
        let tensors = Tensors {
            cache: Tensor { argument: c"past", tensor: past },
            update: Tensor { argument: c"newKv", tensor: new_kv },
            update_argument: Argument::NewKv,
            present: c"present",
        };
        let front = |element, past: Layout<'_>, new_kv: Layout<'_>| {
            Ok(Write::Operation(operator.prepare(element, new_kv, past)?))
        };
        // SAFETY: C1 and C2 for the tensors and C3 for `out`, by this function's contract.
        unsafe { tensors.prepare(out, front) }
    })
}

/// A tensor and what the operator's specification calls it.
struct Tensor {
    argument: &'static CStr,
    tensor: *const kvs_tensor,
}

/// The tensors of a prepare function.
struct Tensors {
    cache: Tensor,
    update: Tensor,
    /// The update's name, for the core.
    update_argument: Argument,
    /// What the specification calls the result of the functional form.
    present: &'static CStr,
}

impl Tensors {
    /// # Safety
    /// C1 and C2 for both tensors, C1 for the pointers in them, and C3 for `out`.
    unsafe fn prepare(
        self,
        out: *mut *mut kvs_prepared,
        front: impl FnOnce(ElementType, Layout<'_>, Layout<'_>) -> Result<Write, Error>,
    ) -> Result<(), Failure> {
        let Self { cache, update, update_argument, present } = self;
        check_pointer(out, 1, c"out".into())?;
        // SAFETY: C1 and C2 for `cache`, by this function's contract.
        let old = unsafe { cache.describe() }?;
        // SAFETY: C1 and C2 for `update`, by this function's contract.
        let new = unsafe { update.describe() }?;
        if old.element != new.element {
            let (cache, argument, element) = (old.element, update_argument, new.element);
            return Err(Error::ElementTypeMismatch { cache, argument, element }.into());
        }
        let write = front(old.element, old.layout()?, new.layout()?).map_err(|error| {
            let tensor = match error {
                Error::UpdateLongerThanCache { .. } => Some(new.argument),
                Error::CacheOverlapsItself => Some(old.argument),
                _ => None,
            };
            Kind::Core(error, tensor)
        })?;
        let prepared = Box::into_raw(Box::new(kvs_prepared::new(write, &old, &new, present)));
        // SAFETY: `check_pointer` refuses NULL and misaligned pointers; C3 for the others, by this function's
        // contract.
        unsafe { out.write(prepared) };
        Ok(())
    }
}

impl Tensor {
    /// # Safety
    /// C1 and C2 for `self.tensor`, and C1 for the pointers in it.
    unsafe fn describe(&self) -> Result<Description, Failure> {
        // SAFETY: C1 and C2 for `self.tensor`, by this function's contract.
        let tensor = unsafe { structure(self.tensor, self.argument) }?;
        // SAFETY: C1 for the shape and strides of `tensor`, by this function's contract.
        unsafe { Description::read(tensor, self.argument) }
    }
}
