//! The options of the three operators and of paged writes.
//!
//! `lib.rs` defines C1 and C2.

use std::ffi::CStr;

use kvscatter::spec::ascend::KvCacheOperation;
use kvscatter::spec::onnx::TensorScatter;
use kvscatter::spec::paged::PagedWrite;
use kvscatter::spec::tensorrt::{AttentionIoForm, KvCacheUpdate};
use kvscatter::{Mode, NegativeIndex, OutOfRange};

use crate::boundary::{Versioned, structure};
use crate::call_error::{CallError, CallErrorKind};

/// How positions beyond the capacity are treated (ONNX's `mode` attribute).
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum kvs_mode {
    /// Every row must be inside the cache.
    KVS_MODE_LINEAR = 0,
    /// The cache is a ring, so positions are taken modulo the capacity.
    KVS_MODE_CIRCULAR = 1,
}

/// What happens to a sample whose position does not fit. kvscatter extension; not part of the specification.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum kvs_out_of_range {
    /// The call returns an error and writes nothing.
    KVS_OUT_OF_RANGE_ERROR = 0,
    /// The sample is not written, the other samples are, and `kvs_written` counts the samples that were
    /// skipped.
    KVS_OUT_OF_RANGE_SKIP_SAMPLE = 1,
}

/// How a negative index in a ring is treated. In linear mode, a negative index never fits.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum kvs_negative_index {
    /// The index is taken modulo the capacity, rounded down as in ONNX's reference implementation, so that -1
    /// is the last slot.
    KVS_NEGATIVE_INDEX_MODULO = 0,
    /// The index does not fit, as in ONNX Runtime.
    KVS_NEGATIVE_INDEX_REJECT = 1,
}

/// TensorRT's `cacheMode`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum kvs_cache_mode {
    /// kLINEAR, the only mode.
    KVS_CACHE_MODE_LINEAR = 0,
}

/// TensorRT's `updateForm`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum kvs_update_form {
    /// kPADDED_BHND: the update is [b, d, s, h].
    KVS_UPDATE_FORM_PADDED = 0,
    /// kPACKED_NHD: the update is [totalTokens, d, h], and calls give `update_lengths`.
    KVS_UPDATE_FORM_PACKED_NHD = 1,
}

/// The attributes of ONNX TensorScatter. `out_of_range` and `negative_index` are kvscatter extensions; they
/// are not part of the specification.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvs_tensor_scatter_options {
    /// `sizeof(kvs_tensor_scatter_options)`. The `KVS_TENSOR_SCATTER_OPTIONS_INIT` macro sets it and the
    /// defaults.
    pub struct_size: usize,
    /// The sequence dimension, from 1 to rank - 1, or from 1 - rank to -1 if it is counted from the end. The
    /// default is -2.
    pub axis: i64,
    /// One of `kvs_mode`.
    pub mode: i32,
    /// One of `kvs_out_of_range`.
    pub out_of_range: i32,
    /// One of `kvs_negative_index`.
    pub negative_index: i32,
}

/// The attributes of TensorRT KVCacheUpdate. `out_of_range` is a kvscatter extension; it is not part of the
/// specification.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvs_kv_cache_update_options {
    /// `sizeof(kvs_kv_cache_update_options)`. The `KVS_KV_CACHE_UPDATE_OPTIONS_INIT` macro sets it and the
    /// defaults.
    pub struct_size: usize,
    /// One of `kvs_cache_mode`.
    pub cache_mode: i32,
    /// One of `kvs_update_form`.
    pub update_form: i32,
    /// One of `kvs_out_of_range`.
    pub out_of_range: i32,
}

/// The options of Ascend KVCacheOperation, whose only attributes are reserved bytes. `out_of_range` is a
/// kvscatter extension; it is not part of the specification.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvs_kv_cache_operation_options {
    /// `sizeof(kvs_kv_cache_operation_options)`. The `KVS_KV_CACHE_OPERATION_OPTIONS_INIT` macro sets it and the
    /// defaults.
    pub struct_size: usize,
    /// One of `kvs_out_of_range`.
    pub out_of_range: i32,
}

/// The options of writes into paged caches, which no specification defines.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvs_paged_write_options {
    /// `sizeof(kvs_paged_write_options)`. The `KVS_PAGED_WRITE_OPTIONS_INIT` macro sets it and the defaults.
    pub struct_size: usize,
    /// The dimension of the cache that counts the slots of a block, from 1 to rank - 1, or from 1 - rank to -1
    /// if it is counted from the end. The default is 1, for [num_blocks, block_size, heads, size]. It is 2 for
    /// [num_blocks, heads, block_size, size].
    pub axis: i64,
    /// 1 if a token with a negative slot is not written, such as the padding of vLLM, and 0 if it is an error.
    /// `kvs_written` counts the tokens that were skipped.
    pub skip_negative: i32,
}

// SAFETY: The struct is `repr(C)` and begins with `struct_size: usize`.
unsafe impl Versioned for kvs_paged_write_options {}
// SAFETY: The struct is `repr(C)` and begins with `struct_size: usize`.
unsafe impl Versioned for kvs_tensor_scatter_options {}
// SAFETY: The struct is `repr(C)` and begins with `struct_size: usize`.
unsafe impl Versioned for kvs_kv_cache_update_options {}
// SAFETY: The struct is `repr(C)` and begins with `struct_size: usize`.
unsafe impl Versioned for kvs_kv_cache_operation_options {}

impl kvs_tensor_scatter_options {
    pub(crate) fn operator(&self) -> Result<TensorScatter, CallError> {
        let negative_index = [NegativeIndex::Modulo, NegativeIndex::Reject];
        Ok(TensorScatter::new()
            .axis(self.axis)
            .mode(choice(c"mode", self.mode, &[Mode::Linear, Mode::Circular])?)
            .out_of_range(out_of_range(self.out_of_range)?)
            .negative_index(choice(c"negative_index", self.negative_index, &negative_index)?))
    }
}

impl kvs_kv_cache_update_options {
    /// Returns the operator and the form of its updates.
    pub(crate) fn operator(&self) -> Result<(KvCacheUpdate, AttentionIoForm), CallError> {
        choice(c"cache_mode", self.cache_mode, &[()])?; // linear, the only one there is
        let forms = [AttentionIoForm::PaddedBhnd, AttentionIoForm::PackedNhd];
        let form = choice(c"update_form", self.update_form, &forms)?;
        Ok((KvCacheUpdate::new().out_of_range(out_of_range(self.out_of_range)?), form))
    }
}

impl kvs_kv_cache_operation_options {
    pub(crate) fn operator(&self) -> Result<KvCacheOperation, CallError> {
        Ok(KvCacheOperation::new().out_of_range(out_of_range(self.out_of_range)?))
    }
}

impl kvs_paged_write_options {
    pub(crate) fn operator(&self) -> Result<PagedWrite, CallError> {
        let skip = choice(c"skip_negative", self.skip_negative, &[false, true])?;
        Ok(PagedWrite::new().axis(self.axis).skip_negative(skip))
    }
}

/// Returns a reference to options, which may be NULL.
///
/// # Safety
/// `options` satisfies C1 and C2 for the lifetime `'a`.
pub(crate) unsafe fn optional<'a, T: Versioned>(options: *const T) -> Result<Option<&'a T>, CallError> {
    if options.is_null() {
        return Ok(None);
    }
    // SAFETY: This function's contract requires C1 and C2 for `options`.
    unsafe { structure(options, c"options") }.map(Some)
}

fn out_of_range(value: i32) -> Result<OutOfRange, CallError> {
    choice(c"out_of_range", value, &[OutOfRange::Error, OutOfRange::SkipSample])
}

/// Returns the meaning of a constant. Constants are numbered from 0.
pub(crate) fn choice<T: Copy>(option: &'static CStr, value: i32, meanings: &[T]) -> Result<T, CallError> {
    let meaning = usize::try_from(value).ok().and_then(|at| meanings.get(at));
    let max = meanings.len().saturating_sub(1);
    meaning.copied().ok_or(CallErrorKind::UnknownOption { option, value, max }.into())
}
