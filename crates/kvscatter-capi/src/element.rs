//! Element types and their ONNX numbers.

/// An element type, one of `kvs_element_type_code`.
pub type kvs_element_type = i32;

/// The element types, with their numbers in ONNX's TensorProto.DataType. 4-bit types are packed two to a byte
/// without gaps between rows. The first element is in the low nibble.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum kvs_element_type_code {
    /// 32-bit IEEE float.
    KVS_FLOAT32 = 1,
    /// 8-bit unsigned integer.
    KVS_UINT8 = 2,
    /// 8-bit signed integer.
    KVS_INT8 = 3,
    /// 16-bit unsigned integer.
    KVS_UINT16 = 4,
    /// 16-bit signed integer.
    KVS_INT16 = 5,
    /// 32-bit signed integer.
    KVS_INT32 = 6,
    /// 64-bit signed integer.
    KVS_INT64 = 7,
    /// Strings of any representation. They can be planned (`kvs_for_each_block`), but not run.
    KVS_STRING = 8,
    /// Boolean, one byte.
    KVS_BOOL = 9,
    /// 16-bit IEEE float.
    KVS_FLOAT16 = 10,
    /// 64-bit IEEE float.
    KVS_FLOAT64 = 11,
    /// 32-bit unsigned integer.
    KVS_UINT32 = 12,
    /// 64-bit unsigned integer.
    KVS_UINT64 = 13,
    /// Complex number of two 32-bit floats.
    KVS_COMPLEX64 = 14,
    /// Complex number of two 64-bit floats.
    KVS_COMPLEX128 = 15,
    /// 16-bit brain float.
    KVS_BFLOAT16 = 16,
    /// 8-bit float, finite values and NaN.
    KVS_FLOAT8E4M3FN = 17,
    /// 8-bit float, finite values and NaN, unsigned zero.
    KVS_FLOAT8E4M3FNUZ = 18,
    /// 8-bit float with infinities.
    KVS_FLOAT8E5M2 = 19,
    /// 8-bit float, finite values and NaN, unsigned zero.
    KVS_FLOAT8E5M2FNUZ = 20,
    /// 4-bit unsigned integer.
    KVS_UINT4 = 21,
    /// 4-bit signed integer.
    KVS_INT4 = 22,
    /// 4-bit float.
    KVS_FLOAT4E2M1 = 23,
    /// 8-bit exponent-only float.
    KVS_FLOAT8E8M0 = 24,
}
