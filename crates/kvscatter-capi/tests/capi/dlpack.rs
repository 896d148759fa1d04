//! The element types of DLPack tensors. `tests-c/bad_dlpack.c` has the errors.

use std::ffi::c_void;
use std::ptr;

use kvscatter::ElementType;
use kvscatter_capi::*;

use crate::c::{Refused, result};

/// DLPack's `DLTensor`.
#[repr(C)]
pub(crate) struct DlTensor {
    data: *mut c_void,
    pub(crate) device: (i32, i32),
    pub(crate) ndim: i32,
    dtype: (u8, u8, u16),
    shape: *const i64,
    strides: *const i64,
    pub(crate) byte_offset: u64,
}

impl DlTensor {
    /// Returns a tensor without dimensions whose type has this code, bits and lanes.
    pub(crate) fn new(dtype: (u8, u8, u16)) -> Self {
        let (data, shape, strides) = (ptr::null_mut(), ptr::null(), ptr::null());
        Self { data, device: (1, 0), ndim: 0, dtype, shape, strides, byte_offset: 0 }
    }
}

/// Returns the element type of a tensor.
pub(crate) fn described(tensor: DlTensor) -> Result<kvs_element_type, Refused> {
    let (data, shape, strides) = (ptr::null_mut(), ptr::null(), ptr::null());
    let struct_size = size_of::<kvs_tensor>();
    let mut out = kvs_tensor { struct_size, data, r#type: -1, rank: 99, shape, strides };
    // SAFETY: `tensor` has the fields of a `DLTensor`, and `out` its `struct_size`. Both outlive the call.
    let status = unsafe { kvs_tensor_from_dlpack((&raw const tensor).cast(), &mut out) };
    assert_eq!(out.rank == 99, status != 0, "an output is set where there is one");
    result(status).map(|()| out.r#type)
}

#[test]
fn all_types_that_onnx_has() {
    for element in ElementType::ALL {
        let Some(dtype) = element.dlpack() else { continue };
        assert_eq!(described(DlTensor::new((dtype.code, dtype.bits, 1))), Ok(element.onnx_code()));
        let vectors = described(DlTensor::new((dtype.code, dtype.bits, 2))).unwrap_err();
        assert_eq!(vectors.code, "KVS_ERROR_UNKNOWN_ELEMENT_TYPE");
    }
    let refused = described(DlTensor::new((3, 64, 1))).unwrap_err();
    assert_eq!((refused.argument, refused.value), (Some("dtype"), Some(3)));
    assert_eq!(refused.message, "a cache cannot have DLPack type code 3 with 64 bits and 1 lanes");
}
