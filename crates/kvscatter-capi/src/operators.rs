//! The three operators with their options: what is checked once per shape.

use std::ffi::CStr;

use kvscatter::spec::ascend::{KvCacheOperation, KvCacheParam};
use kvscatter::spec::onnx::TensorScatter;
use kvscatter::spec::tensorrt::KvCacheUpdate;
use kvscatter::{Argument, ElementType, Error, Layout, Mode, NegativeIndex, OutOfRange};

use crate::boundary::{Versioned, check_pointer, guarded, structure};
use crate::failure::{Failure, Kind};
use crate::prepared::{Write, kvs_prepared};
use crate::status::kvs_status;
use crate::tensor::{Description, kvs_tensor};

/// How positions beyond the capacity are meant: ONNX's `mode`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum kvs_mode {
    /// Every row lies inside the cache.
    KVS_MODE_LINEAR = 0,
    /// The cache is a ring: positions are taken modulo the capacity.
    KVS_MODE_CIRCULAR = 1,
}

/// What happens to a sample whose position does not fit. An extension of this library to all three operators.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum kvs_out_of_range {
    /// The call is refused and nothing is written.
    KVS_OUT_OF_RANGE_ERROR = 0,
    /// The sample is left as it is, the others are written, and `kvs_written` counts it.
    KVS_OUT_OF_RANGE_SKIP_SAMPLE = 1,
}

/// What a negative index means in a ring. In linear mode it never fits.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum kvs_negative_index {
    /// Floor-modulo, as in ONNX's reference: -1 is the last slot.
    KVS_NEGATIVE_INDEX_MODULO = 0,
    /// It does not fit, as in ONNX Runtime.
    KVS_NEGATIVE_INDEX_REJECT = 1,
}

/// TensorRT's `cacheMode`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum kvs_cache_mode {
    /// kLINEAR, the only one there is.
    KVS_CACHE_MODE_LINEAR = 0,
}

/// TensorRT's `updateForm`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum kvs_update_form {
    /// kPADDED_BHND: the update is [b, d, s, h].
    KVS_UPDATE_FORM_PADDED = 0,
    /// kPACKED_NHD: the update is [totalTokens, d, h], and calls bring `update_lengths`.
    KVS_UPDATE_FORM_PACKED_NHD = 1,
}

/// Attributes of ONNX TensorScatter, and two extensions.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvs_tensor_scatter_options {
    /// `sizeof(kvs_tensor_scatter_options)`; the `KVS_TENSOR_SCATTER_OPTIONS_INIT` macro sets it and the defaults.
    pub struct_size: usize,
    /// The sequence dimension: 1 to rank - 1, or counted from the end, 1 - rank to -1. Default: -2.
    pub axis: i64,
    /// One of `kvs_mode`.
    pub mode: i32,
    /// One of `kvs_out_of_range`.
    pub out_of_range: i32,
    /// One of `kvs_negative_index`.
    pub negative_index: i32,
}

/// Attributes of TensorRT KVCacheUpdate, and an extension.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvs_kv_cache_update_options {
    /// `sizeof(kvs_kv_cache_update_options)`; the `KVS_KV_CACHE_UPDATE_OPTIONS_INIT` macro sets it.
    pub struct_size: usize,
    /// One of `kvs_cache_mode`.
    pub cache_mode: i32,
    /// One of `kvs_update_form`.
    pub update_form: i32,
    /// One of `kvs_out_of_range`.
    pub out_of_range: i32,
}

/// Ascend's KVCacheParam, and an extension.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvs_kv_cache_operation_options {
    /// `sizeof(kvs_kv_cache_operation_options)`; the `KVS_KV_CACHE_OPERATION_OPTIONS_INIT` macro sets it.
    pub struct_size: usize,
    /// Reserved by Ascend: all zero.
    pub rsv: [u8; 8],
    /// One of `kvs_out_of_range`.
    pub out_of_range: i32,
}

// SAFETY: as the struct above begins.
unsafe impl Versioned for kvs_tensor_scatter_options {}
// SAFETY: as the struct above begins.
unsafe impl Versioned for kvs_kv_cache_update_options {}
// SAFETY: as the struct above begins.
unsafe impl Versioned for kvs_kv_cache_operation_options {}

/// Prepares ONNX TensorScatter-24. `past_cache` is [batch, D1, ..., capacity, ..., Dn], and `update` differs from it in the
/// sequence dimension (`axis`) alone, where it is no longer. All element types.
///
/// Errors: those of pointers, structs and tensors; `KVS_ERROR_UNKNOWN_OPTION`; `KVS_ERROR_ELEMENT_TYPE_MISMATCH`;
/// `KVS_ERROR_RANK_TOO_LOW`, `_AXIS_OUT_OF_RANGE`, `_AXIS_IS_BATCH`, `_RANK_MISMATCH`; `_TOO_LARGE`;
/// `_DIMENSION_MISMATCH`, `_UPDATE_LONGER_THAN_CACHE`; `_CACHE_OVERLAPS_ITSELF`, `_LAYOUT`.
///
/// # Safety
/// `options` is either NULL, which means the defaults, or points to options; `past_cache` and `update` are either NULL
/// or point to tensors whose `shape` is NULL or has `rank` numbers, and so have `strides`; `out` is either NULL or
/// points to where the handle is to be put.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvs_tensor_scatter_prepare(
    options: *const kvs_tensor_scatter_options,
    past_cache: *const kvs_tensor,
    update: *const kvs_tensor,
    out: *mut *mut kvs_prepared,
) -> kvs_status {
    guarded(|| {
        let mut operator = TensorScatter::new();
        // SAFETY: the caller's.
        if let Some(options) = unsafe { given(options) }? {
            operator = operator
                .axis(options.axis)
                .mode(choice(c"mode", options.mode, &[Mode::Linear, Mode::Circular])?)
                .out_of_range(out_of_range(options.out_of_range)?)
                .negative_index(choice(
                    c"negative_index",
                    options.negative_index,
                    &[NegativeIndex::Modulo, NegativeIndex::Reject],
                )?);
        }
        let tensors = Tensors {
            cache: Tensor { argument: c"past_cache", tensor: past_cache },
            update: Tensor { argument: c"update", tensor: update },
            update_argument: Argument::Update,
        };
        let front = |element, cache: Layout<'_>, update: Layout<'_>| {
            Ok(Write::Starts(operator.prepare(element, cache, update)?, "TensorScatter"))
        };
        // SAFETY: the caller's.
        unsafe { tensors.prepare(out, front) }
    })
}

/// Prepares TensorRT KVCacheUpdate. `cache` is [b, d, s_max, h]; `update` is [b, d, s, h], with as many samples as the cache
/// or fewer, or packed, [totalTokens, d, h]. float32, float16 and bfloat16.
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
        let (mut operator, mut packed) = (KvCacheUpdate::new(), false);
        // SAFETY: the caller's.
        if let Some(options) = unsafe { given(options) }? {
            choice(c"cache_mode", options.cache_mode, &[()])?;
            packed = choice(c"update_form", options.update_form, &[false, true])?;
            operator = operator.out_of_range(out_of_range(options.out_of_range)?);
        }
        let tensors = Tensors {
            cache: Tensor { argument: c"cache", tensor: cache },
            update: Tensor { argument: c"update", tensor: update },
            update_argument: Argument::Update,
        };
        let front = |element, cache: Layout<'_>, update: Layout<'_>| {
            if packed {
                Ok(Write::Packed(operator.prepare_packed(element, cache, update)?))
            } else {
                Ok(Write::Starts(operator.prepare(element, cache, update)?, "a padded KVCacheUpdate"))
            }
        };
        // SAFETY: the caller's.
        unsafe { tensors.prepare(out, front) }
    })
}

/// Prepares Ascend ATB KVCacheOperation. `new_kv` is [nTokens, hiddenSize] or [batch, seq_len, head_num, head_size], `past`
/// is [layer, batch, maxSeqLen, hiddenSize]. float16, bfloat16 and int8.
///
/// The tensors stand in the order of Ascend's document: the new values first. The functions that run it take the cache
/// first, as for all operators.
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
        let mut operator = KvCacheOperation::new();
        // SAFETY: the caller's.
        if let Some(options) = unsafe { given(options) }? {
            let param = KvCacheParam { rsv: options.rsv };
            operator = operator.param(param).out_of_range(out_of_range(options.out_of_range)?);
        }
        let tensors = Tensors {
            cache: Tensor { argument: c"past", tensor: past },
            update: Tensor { argument: c"new_kv", tensor: new_kv },
            update_argument: Argument::NewKv,
        };
        let front = |element, past: Layout<'_>, new_kv: Layout<'_>| {
            Ok(Write::Operation(operator.prepare(element, new_kv, past)?))
        };
        // SAFETY: the caller's.
        unsafe { tensors.prepare(out, front) }
    })
}

/// A tensor and the name of the parameter.
struct Tensor {
    argument: &'static CStr,
    tensor: *const kvs_tensor,
}

/// The tensors of a prepare function.
struct Tensors {
    cache: Tensor,
    update: Tensor,
    /// What the core calls the update.
    update_argument: Argument,
}

impl Tensors {
    /// # Safety
    /// As for the functions of the header.
    unsafe fn prepare(
        self,
        out: *mut *mut kvs_prepared,
        front: impl FnOnce(ElementType, Layout<'_>, Layout<'_>) -> Result<Write, Error>,
    ) -> Result<(), Failure> {
        let Self { cache, update, update_argument } = self;
        check_pointer(out, c"out".into())?;
        // SAFETY: the caller's.
        let old = unsafe { cache.describe() }?;
        // SAFETY: the caller's.
        let new = unsafe { update.describe() }?;
        if old.element != new.element {
            let (cache, argument, element) = (old.element, update_argument, new.element);
            return Err(Error::ElementTypeMismatch { cache, argument, element }.into());
        }
        let layouts = (old.layout(cache.argument)?, new.layout(update.argument)?);
        let write = front(old.element, layouts.0, layouts.1)?;
        let prepared = Box::into_raw(Box::new(kvs_prepared::new(write, &old, &new)));
        // SAFETY: neither NULL nor misaligned; the rest is the caller's.
        unsafe { out.write(prepared) };
        Ok(())
    }
}

impl Tensor {
    /// # Safety
    /// As for the functions of the header.
    unsafe fn describe(&self) -> Result<Description, Failure> {
        // SAFETY: the caller's.
        let tensor = unsafe { structure(self.tensor, self.argument) }?;
        // SAFETY: the caller's.
        unsafe { Description::read(tensor, self.argument) }
    }
}

/// Options, if there are any.
///
/// # Safety
/// `options` is either NULL, misaligned, or points to options with the size that they say they have.
unsafe fn given<'a, T: Versioned>(options: *const T) -> Result<Option<&'a T>, Failure> {
    if options.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller's.
    unsafe { structure(options, c"options") }.map(Some)
}

fn out_of_range(value: i32) -> Result<OutOfRange, Failure> {
    choice(c"out_of_range", value, &[OutOfRange::Error, OutOfRange::SkipSample])
}

/// What a constant stands for: they are numbered from 0.
fn choice<T: Copy>(option: &'static CStr, value: i32, meanings: &[T]) -> Result<T, Failure> {
    let meaning = usize::try_from(value).ok().and_then(|at| meanings.get(at));
    let greatest = meanings.len().saturating_sub(1);
    meaning.copied().ok_or(Kind::UnknownOption { option, value, greatest }.into())
}
