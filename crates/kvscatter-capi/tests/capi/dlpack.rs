//! DLPack tensors with the layout of dlpack.h.

use std::ffi::c_void;
use std::ptr;

use kvscatter::ElementType;
use kvscatter_capi::*;

use crate::c::{Refused, result};

#[repr(C)]
#[derive(Clone, Copy)]
struct DlTensor {
    data: *mut c_void,
    device: (i32, i32),
    ndim: i32,
    dtype: (u8, u8, u16),
    shape: *const i64,
    strides: *const i64,
    byte_offset: u64,
}

const SHAPE: [i64; 3] = [2, 3, 4];
const STRIDES: [i64; 3] = [-12, 4, 1];

fn float32(data: &mut [f32; 24]) -> DlTensor {
    DlTensor {
        data: data.as_mut_ptr().cast(),
        device: (1, 0),
        ndim: 3,
        dtype: (2, 32, 1),
        shape: SHAPE.as_ptr(),
        strides: STRIDES.as_ptr(),
        byte_offset: 48,
    }
}

fn described(tensor: &DlTensor) -> Result<kvs_tensor, Refused> {
    let mut out = kvs_tensor {
        struct_size: size_of::<kvs_tensor>(),
        data: ptr::null_mut(),
        r#type: -1,
        rank: 99,
        shape: ptr::null(),
        strides: ptr::null(),
    };
    // SAFETY: `tensor` is a reference to a struct with the fields of a `DLTensor`, and `out` a local variable
    // with its `struct_size` set.
    let status = unsafe { kvs_tensor_from_dlpack((&raw const *tensor).cast(), &mut out) };
    assert_eq!(out.rank == 99, status != 0, "an output is set where there is one");
    result(status).map(|()| out)
}

#[test]
fn a_tensor_is_what_it_says() {
    let mut data = [0.0; 24];
    let tensor = float32(&mut data);
    let out = described(&tensor).unwrap();
    assert_eq!((out.r#type, out.rank), (kvs_element_type_code::KVS_FLOAT32 as i32, 3));
    assert_eq!(
        (out.data.addr(), out.shape, out.strides),
        (data.as_ptr().addr() + 48, tensor.shape, tensor.strides)
    );
    let empty = DlTensor { data: ptr::null_mut(), byte_offset: 0, strides: ptr::null(), ..tensor };
    let out = described(&empty).unwrap();
    assert!(out.data.is_null() && out.strides.is_null());
}

#[test]
fn all_types_that_onnx_has() {
    let mut data = [0.0; 24];
    for element in ElementType::ALL {
        let Some(dtype) = element.dlpack() else { continue };
        let tensor = DlTensor { dtype: (dtype.code, dtype.bits, 1), ..float32(&mut data) };
        assert_eq!(described(&tensor).unwrap().r#type, element.onnx_code());
        let vector = DlTensor { dtype: (dtype.code, dtype.bits, 2), ..tensor };
        assert_eq!(described(&vector).unwrap_err().code, "KVS_ERROR_UNKNOWN_ELEMENT_TYPE");
    }
    let none = DlTensor { dtype: (3, 64, 1), ..float32(&mut data) };
    let refused = described(&none).unwrap_err();
    assert_eq!((refused.argument, refused.value), (Some("dtype"), Some(3)));
    assert_eq!(refused.message, "a cache cannot have DLPack type code 3 with 64 bits and 1 lanes");
}

#[test]
fn wrong_tensors_are_refused() {
    let mut data = [0.0; 24];
    let good = float32(&mut data);
    let refused = |tensor: DlTensor| {
        let refused = described(&tensor).unwrap_err();
        (refused.code, refused.value, refused.limit)
    };
    assert_eq!(refused(DlTensor { device: (2, 0), ..good }), ("KVS_ERROR_DEVICE", Some(2), Some(1)));
    assert_eq!(refused(DlTensor { ndim: 17, ..good }), ("KVS_ERROR_RANK_LIMIT", Some(17), Some(16)));
    assert_eq!(refused(DlTensor { ndim: -1, ..good }), ("KVS_ERROR_RANK_LIMIT", Some(-1), Some(0)));
    let far = u64::MAX - 7;
    assert_eq!(
        refused(DlTensor { byte_offset: far, ..good }),
        ("KVS_ERROR_BYTE_OFFSET", Some(i64::MAX), None)
    );
    let from_null = DlTensor { data: ptr::null_mut(), byte_offset: 4, ..good };
    assert_eq!(refused(from_null), ("KVS_ERROR_BYTE_OFFSET", Some(4), None));
}
