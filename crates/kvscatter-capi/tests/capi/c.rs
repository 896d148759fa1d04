//! The functions of the header, with results instead of statuses. Every pointer that they get points to
//! memory of a test.

use std::ffi::{CStr, c_char};
use std::ptr;

use kvscatter_capi::*;

/// The error that `kvs_last_error` returns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refused {
    pub(crate) code: &'static str,
    pub(crate) argument: Option<&'static str>,
    pub(crate) index: Option<i64>,
    pub(crate) value: Option<i64>,
    pub(crate) limit: Option<i64>,
    pub(crate) message: String,
}

/// A tensor that owns its numbers.
#[derive(Clone, Debug)]
pub(crate) struct OwnedTensor {
    pub(crate) code: kvs_element_type,
    pub(crate) shape: Vec<i64>,
    pub(crate) strides: Option<Vec<i64>>,
}

/// An operator and its options.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Operator {
    TensorScatter(kvs_tensor_scatter_options),
    KvCacheUpdate(kvs_kv_cache_update_options),
    KvCacheOperation(kvs_kv_cache_operation_options),
    PagedWrite(kvs_paged_write_options),
}

/// A handle that is destroyed when it is dropped.
#[derive(Debug)]
pub(crate) struct PreparedHandle(*mut kvs_prepared);

pub(crate) const TENSOR_SCATTER: kvs_tensor_scatter_options = kvs_tensor_scatter_options {
    struct_size: size_of::<kvs_tensor_scatter_options>(),
    axis: -2,
    mode: kvs_mode::KVS_MODE_LINEAR as i32,
    out_of_range: kvs_out_of_range::KVS_OUT_OF_RANGE_ERROR as i32,
    negative_index: kvs_negative_index::KVS_NEGATIVE_INDEX_MODULO as i32,
};

pub(crate) const KV_CACHE_UPDATE: kvs_kv_cache_update_options = kvs_kv_cache_update_options {
    struct_size: size_of::<kvs_kv_cache_update_options>(),
    cache_mode: kvs_cache_mode::KVS_CACHE_MODE_LINEAR as i32,
    update_form: kvs_update_form::KVS_UPDATE_FORM_PADDED as i32,
    out_of_range: kvs_out_of_range::KVS_OUT_OF_RANGE_ERROR as i32,
};

pub(crate) const KV_CACHE_OPERATION: kvs_kv_cache_operation_options = kvs_kv_cache_operation_options {
    struct_size: size_of::<kvs_kv_cache_operation_options>(),
    out_of_range: kvs_out_of_range::KVS_OUT_OF_RANGE_ERROR as i32,
};

pub(crate) const PAGED_WRITE: kvs_paged_write_options =
    kvs_paged_write_options { struct_size: size_of::<kvs_paged_write_options>(), axis: 1, skip_negative: 0 };

pub(crate) const ABSENT: kvs_indices = kvs_indices { values: ptr::null(), count: 0, bits: 0 };

pub(crate) const CALL: kvs_call = kvs_call {
    struct_size: size_of::<kvs_call>(),
    write_indices: ABSENT,
    slot_mapping: ABSENT,
    lengths: ABSENT,
    update_lengths: ABSENT,
    layer_id: ABSENT,
    token_offset: ABSENT,
    seq_len: ABSENT,
    executor: ptr::null(),
};

pub(crate) fn wide(values: &[i64]) -> kvs_indices {
    kvs_indices { values: values.as_ptr().cast(), count: values.len(), bits: 64 }
}

pub(crate) fn narrow(values: &[i32]) -> kvs_indices {
    kvs_indices { values: values.as_ptr().cast(), count: values.len(), bits: 32 }
}

impl OwnedTensor {
    pub(crate) fn dense(code: kvs_element_type_code, shape: &[i64]) -> Self {
        Self { code: code as kvs_element_type, shape: shape.to_vec(), strides: None }
    }

    pub(crate) fn strided(code: kvs_element_type_code, shape: &[i64], strides: &[i64]) -> Self {
        Self { strides: Some(strides.to_vec()), ..Self::dense(code, shape) }
    }

    /// Returns the tensor whose element `[0, 0, …]` has this address.
    pub(crate) fn at<T>(&self, data: *mut T) -> kvs_tensor {
        kvs_tensor {
            struct_size: size_of::<kvs_tensor>(),
            data: data.cast(),
            r#type: self.code,
            rank: self.shape.len() as u32,
            shape: self.shape.as_ptr(),
            strides: self.strides.as_ref().map_or(ptr::null(), |strides| strides.as_ptr()),
        }
    }

    /// Returns the tensor for calls that do not use its data.
    pub(crate) fn anywhere(&self) -> kvs_tensor {
        self.at(ptr::null_mut::<u8>())
    }
}

impl PreparedHandle {
    pub(crate) fn new(operator: &Operator, cache: &kvs_tensor, update: &kvs_tensor) -> Result<Self, Refused> {
        let mut out = ptr::null_mut();
        let status = match operator {
            // SAFETY: `options`, `cache`, `update` and `out` are references, and the tests own the tensors'
            // arrays.
            Operator::TensorScatter(options) => unsafe {
                kvs_tensor_scatter_prepare(options, cache, update, &mut out)
            },
            // SAFETY: `options`, `cache`, `update` and `out` are references, and the tests own the tensors'
            // arrays.
            Operator::KvCacheUpdate(options) => unsafe {
                kvs_kv_cache_update_prepare(options, cache, update, &mut out)
            },
            // SAFETY: `options`, `cache`, `update` and `out` are references, and the tests own the tensors'
            // arrays.
            Operator::KvCacheOperation(options) => unsafe {
                kvs_kv_cache_operation_prepare(options, cache, update, &mut out)
            },
            // SAFETY: `options`, `cache`, `update` and `out` are references, and the tests own the tensors'
            // arrays.
            Operator::PagedWrite(options) => unsafe {
                kvs_paged_write_prepare(options, cache, update, &mut out)
            },
        };
        assert_eq!(out.is_null(), status != 0, "the handle is put where it belongs, or nothing is");
        result(status).map(|()| Self(out))
    }

    pub(crate) fn handle(&self) -> *const kvs_prepared {
        self.0
    }

    /// Returns the number of samples that were skipped.
    pub(crate) fn in_place(
        &self,
        call: &kvs_call,
        cache: &kvs_tensor,
        update: &kvs_tensor,
    ) -> Result<usize, Refused> {
        let mut written = unwritten();
        // SAFETY: `call`, `cache`, `update` and `written` are references, the test owns the memory that they
        // point to, and `self` keeps the handle.
        let status = unsafe { kvs_write(self.0, call, cache, update, &mut written) };
        skipped(status, written)
    }

    pub(crate) fn write_many(&self, call: &kvs_call, pairs: &[kvs_pair]) -> Result<usize, Refused> {
        let mut written = unwritten();
        // SAFETY: `call` and `written` are references, `pairs` is a slice, the test owns the memory that they
        // point to, and `self` keeps the handle.
        let status = unsafe { kvs_write_many(self.0, call, pairs.as_ptr(), pairs.len(), &mut written) };
        skipped(status, written)
    }

    pub(crate) fn functional(
        &self,
        call: &kvs_call,
        [past, update, present]: [&kvs_tensor; 3],
    ) -> Result<usize, Refused> {
        let mut written = unwritten();
        // SAFETY: `call`, the tensors and `written` are references, the test owns the memory that they point
        // to, and `self` keeps the handle.
        let status = unsafe { kvs_write_present(self.0, call, past, update, present, &mut written) };
        skipped(status, written)
    }
}

impl Drop for PreparedHandle {
    fn drop(&mut self) {
        // SAFETY: A prepare function made the handle, and `drop` is its last use.
        unsafe { kvs_prepared_destroy(self.0) };
    }
}

/// Converts the status to a result with the thread's last error.
pub(crate) fn result(status: kvs_status) -> Result<(), Refused> {
    if status == kvs_status_code::KVS_OK as kvs_status {
        return Ok(());
    }
    let error = last_error();
    assert_eq!(error.code, status, "the last error is that of the last call");
    Err(error.into())
}

pub(crate) fn last_error() -> kvs_error {
    let mut error = kvs_error {
        struct_size: size_of::<kvs_error>(),
        code: -1,
        fields: u32::MAX,
        argument: ptr::null(),
        index: -1,
        value: -1,
        limit: -1,
        message: [1; 256],
    };
    // SAFETY: `error` is a local variable with its `struct_size` set.
    assert_eq!(unsafe { kvs_last_error(&mut error) }, kvs_status_code::KVS_OK as kvs_status);
    error
}

impl From<kvs_error> for Refused {
    fn from(error: kvs_error) -> Self {
        let field_value = |field: kvs_error_field, number: i64| {
            let given = error.fields & field as u32 != 0;
            assert!(given || number == 0, "{number}");
            given.then_some(number)
        };
        Self {
            code: text(kvs_status_name(error.code)),
            argument: (!error.argument.is_null()).then(|| text(error.argument)),
            index: field_value(kvs_error_field::KVS_ERROR_HAS_INDEX, error.index),
            value: field_value(kvs_error_field::KVS_ERROR_HAS_VALUE, error.value),
            limit: field_value(kvs_error_field::KVS_ERROR_HAS_LIMIT, error.limit),
            message: text(error.message.as_ptr()).to_owned(),
        }
    }
}

fn text(line: *const c_char) -> &'static str {
    // SAFETY: The library ends its strings with a zero byte, and strings in errors live as long as the tests
    // read them.
    unsafe { CStr::from_ptr(line) }.to_str().expect("messages are UTF-8")
}

fn unwritten() -> kvs_written {
    kvs_written { struct_size: size_of::<kvs_written>(), skipped: usize::MAX }
}

fn skipped(status: kvs_status, written: kvs_written) -> Result<usize, Refused> {
    let is_set = written.skipped != usize::MAX;
    assert_eq!(is_set, status == 0, "an output is set where there is one");
    result(status).map(|()| written.skipped)
}
