//! Converts DLPack tensors.
//!
//! `lib.rs` defines C1 to C3.

use std::ffi::c_void;

use kvscatter::ElementType;

use crate::boundary::{reference, struct_size};
use crate::call_error::{CallError, CallErrorKind};
use crate::guard::guarded;
use crate::status::kvs_status;
use crate::tensor::{KVS_MAX_RANK, kvs_tensor};

/// The value of DLPack's `kDLCPU`.
const CPU: i32 = 1;

/// DLPack's `DLTensor`. It is the same in every version up to 1.3.
#[repr(C)]
struct DlTensor {
    data: *mut c_void,
    device_type: i32,
    device_id: i32,
    ndim: i32,
    code: u8,
    bits: u8,
    lanes: u16,
    shape: *const i64,
    strides: *const i64,
    byte_offset: u64,
}

/// Describes a DLPack tensor as a `kvs_tensor`. `dl_tensor` points to a `DLTensor` of dlpack.h, such as the
/// field `dl_tensor` of a `DLManagedTensor` or `DLManagedTensorVersioned`. (Its type here is `void`, so that
/// this header does not need dlpack.h.) `out` then points to the same data, shape and strides, and is valid
/// as long as they are.
///
/// The function that takes `out` checks its shape and strides. Nothing checks the flags of a
/// `DLManagedTensorVersioned`, because a `DLTensor` does not contain them. Check them yourself first. A
/// read-only tensor must not become a cache, and 4-bit elements must not be padded to bytes.
///
/// Besides `KVS_OK`, returns one of these errors:
/// - `KVS_ERROR_NULL_POINTER`, `KVS_ERROR_MISALIGNED`, `KVS_ERROR_ADDRESS_SPACE` or `KVS_ERROR_STRUCT_SIZE`
///   if a pointer or a `struct_size` is not valid.
/// - `KVS_ERROR_DEVICE` if the tensor is not in the memory of the CPU.
/// - `KVS_ERROR_UNKNOWN_ELEMENT_TYPE` if ONNX does not have the type, or if the type has more than one lane,
///   as pairs of 4-bit floats (float4_e2m1fn_x2) have.
/// - `KVS_ERROR_RANK_LIMIT` if the tensor has more than `KVS_MAX_RANK` dimensions, or fewer than 0.
/// - `KVS_ERROR_BYTE_OFFSET` if `byte_offset` leads out of the address space.
///
/// # Safety
/// - `dl_tensor` is either NULL or points to a `DLTensor`, which nothing writes before this returns.
/// - `out` is either NULL or points to memory of `struct_size` bytes, which nothing else uses before this
///   returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvs_tensor_from_dlpack(
    dl_tensor: *const c_void,
    out: *mut kvs_tensor,
) -> kvs_status {
    guarded(|| {
        // SAFETY: This function's contract requires C1 for `dl_tensor`.
        let tensor = unsafe { reference(dl_tensor.cast::<DlTensor>(), c"dl_tensor") }?;
        // SAFETY: This function's contract requires C2 and C3 for `out`.
        let struct_size = unsafe { struct_size(out, c"out") }?;
        let tensor = tensor.to_tensor(struct_size)?;
        // SAFETY: `struct_size` rejects NULL and misaligned pointers. For other pointers, this function's
        // contract requires C3.
        unsafe { out.write(tensor) };
        Ok(())
    })
}

impl DlTensor {
    fn to_tensor(&self, struct_size: usize) -> Result<kvs_tensor, CallError> {
        let Self { shape, strides, .. } = *self;
        if self.device_type != CPU {
            return Err(CallErrorKind::Device { device: self.device_type, expected: CPU }.into());
        }
        let (element, data) = (self.element()?, self.element_0()?);
        let rank = u32::try_from(self.ndim).ok().filter(|&rank| rank <= KVS_MAX_RANK);
        let (argument, max) = (c"dl_tensor", KVS_MAX_RANK);
        let rank = rank.ok_or(CallErrorKind::RankLimit { argument, rank: self.ndim.into(), max })?;
        Ok(kvs_tensor { struct_size, data, r#type: element.onnx_code(), rank, shape, strides })
    }

    fn element(&self) -> Result<ElementType, CallError> {
        let Self { code, bits, lanes, .. } = *self;
        let element = ElementType::from_dlpack(code, bits).filter(|_| lanes == 1);
        element.ok_or(CallErrorKind::DlpackType { code, bits, lanes }.into())
    }

    /// Returns the address of element `[0, 0, …]`.
    fn element_0(&self) -> Result<*mut c_void, CallError> {
        let offset = usize::try_from(self.byte_offset).ok();
        let inside = offset.filter(|&offset| {
            offset == 0 || !self.data.is_null() && self.data.addr().checked_add(offset).is_some()
        });
        let offset = inside.ok_or(CallErrorKind::ByteOffset { offset: self.byte_offset })?;
        Ok(self.data.wrapping_byte_add(offset))
    }
}
