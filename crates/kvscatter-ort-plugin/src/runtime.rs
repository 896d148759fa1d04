//! The runtime that loaded this library, and its functions in the version that this library is written
//! against.

use core::ffi::CStr;
use core::ptr::null;

use kvscatter::ElementType;
use ort_sys::{ONNXTensorElementDataType, OrtApi, OrtApiBase, OrtErrorCode, OrtStatusPtr};

use crate::status::{CallError, new_status};
use crate::sys::{self, API_VERSION, EpApi, OLDEST_RUNTIME, OrtDataType};

/// The function tables of one runtime. A process may contain several runtimes, so each object keeps the
/// tables of the runtime that it belongs to.
#[derive(Clone, Copy)]
pub(crate) struct RuntimeApi {
    /// The functions for every program.
    pub(crate) api: &'static OrtApi,
    /// The functions for execution providers.
    pub(crate) ep: &'static EpApi,
}

impl RuntimeApi {
    /// Creates the tables by requesting them from the runtime. Returns a status of the runtime if it is too old. The
    /// message contains its version and the version that is needed.
    ///
    /// # Safety
    /// `base` is what a runtime passes to a library that it loads (R6).
    pub(crate) unsafe fn negotiate(base: *const OrtApiBase) -> Result<Self, OrtStatusPtr> {
        // SAFETY: This function's contract requires that `base` is a runtime's table, which lives as long as
        // this library is loaded (R6).
        let base: &'static OrtApiBase = unsafe { &*base };
        // SAFETY: `GetApi` accepts every number (R1).
        let api = unsafe { (base.GetApi)(API_VERSION) };
        if api.is_null() {
            return Err(too_old(base));
        }
        // SAFETY: `api` is not NULL, so it is the table of this version, which lives as long as this library
        // is loaded (R6).
        let api: &'static OrtApi = unsafe { &*api };
        // SAFETY: The function takes no arguments and may be called at any time (R1).
        let ep = unsafe { (api.GetEpApi)() };
        // SAFETY: In runtimes without execution providers, `ep` is NULL. In all others it is a table that
        // lives as long as this library is loaded (R6) and that begins with `EpApi` in every version from
        // `API_VERSION` on.
        match unsafe { ep.cast::<EpApi>().as_ref() } {
            Some(ep) => Ok(Self { api, ep }),
            None => Err(new_status(
                api.CreateStatus,
                OrtErrorCode::ORT_NOT_IMPLEMENTED,
                "kvscatter needs an ONNX Runtime with support for plugin execution providers",
            )),
        }
    }

    /// Returns `true` if both are tables of the same copy of the runtime.
    pub(crate) fn is_same(self, other: Self) -> bool {
        core::ptr::eq(self.api, other.api)
    }

    /// Returns the element types of fixed width that the runtime supports. Each comes with the runtime's
    /// description of tensors of that type.
    pub(crate) fn supported_elements(self) -> impl Iterator<Item = (ElementType, *const OrtDataType)> {
        // Runtimes without float8e8m0 read its number as int2, and have no type with the number of uint2.
        let has_float8e8m0 =
            self.data_type(ONNXTensorElementDataType::ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT2 as i32).is_some();
        let fixed_size = ElementType::ALL.into_iter().filter(move |&element| {
            element.bits().is_some() && (element != ElementType::Float8E8M0 || has_float8e8m0)
        });
        fixed_size.filter_map(move |element| Some((element, self.data_type(element_code(element))?)))
    }

    fn data_type(self, code: i32) -> Option<*const OrtDataType> {
        // SAFETY: `GetTensorDataType` accepts every number, and `out` takes the result (R1).
        let data_type = self.result(null(), |out| unsafe { (self.ep.GetTensorDataType)(code, out) }).ok();
        data_type.filter(|data_type| !data_type.is_null())
    }

    /// Returns what a function of the runtime writes to the address that `call` passes to it. It is `initial` before.
    pub(crate) fn result<T>(
        self,
        initial: T,
        call: impl FnOnce(*mut T) -> OrtStatusPtr,
    ) -> Result<T, CallError> {
        let mut result = initial;
        self.check(call(&raw mut result))?;
        Ok(result)
    }

    /// Returns a list of addresses. `count` calls the function of the runtime that counts them, and `fill` the one that
    /// writes them to a list with room for so many.
    pub(crate) fn addresses<T>(
        self,
        count: impl FnOnce(*mut usize) -> OrtStatusPtr,
        fill: impl FnOnce(*mut *const T, usize) -> OrtStatusPtr,
    ) -> Result<Vec<*const T>, CallError> {
        let count = self.result(0, count)?;
        let mut addresses = vec![null(); count];
        self.check(fill(addresses.as_mut_ptr(), count))?;
        Ok(addresses)
    }

    /// Converts the status of a call to a result that owns the status.
    pub(crate) fn check(self, status: OrtStatusPtr) -> Result<(), CallError> {
        CallError::from_status(self.api, status)
    }
}

/// Returns the runtime's number of an element type. The order of the last types differs from that of ONNX.
pub(crate) fn element_code(element: ElementType) -> i32 {
    tensor_element(element) as i32
}

/// Returns the element type with this number of the runtime, if it is one of the 24 types of `TensorScatter`.
pub(crate) fn element_type(code: i32) -> Option<ElementType> {
    ElementType::ALL.into_iter().find(|&element| element_code(element) == code)
}

/// Returns the runtime's constant for an element type.
pub(crate) fn tensor_element(element: ElementType) -> ONNXTensorElementDataType {
    use ONNXTensorElementDataType::*;
    match element {
        ElementType::BFloat16 => ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16,
        ElementType::Bool => ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL,
        ElementType::Complex128 => ONNX_TENSOR_ELEMENT_DATA_TYPE_COMPLEX128,
        ElementType::Complex64 => ONNX_TENSOR_ELEMENT_DATA_TYPE_COMPLEX64,
        ElementType::Float64 => ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE,
        ElementType::Float32 => ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT,
        ElementType::Float16 => ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16,
        ElementType::Float4E2M1 => ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT4E2M1,
        ElementType::Float8E4M3Fn => ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT8E4M3FN,
        ElementType::Float8E4M3FnUz => ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT8E4M3FNUZ,
        ElementType::Float8E5M2 => ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT8E5M2,
        ElementType::Float8E5M2FnUz => ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT8E5M2FNUZ,
        ElementType::Float8E8M0 => ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT8E8M0,
        ElementType::Int16 => ONNX_TENSOR_ELEMENT_DATA_TYPE_INT16,
        ElementType::Int32 => ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32,
        ElementType::Int4 => ONNX_TENSOR_ELEMENT_DATA_TYPE_INT4,
        ElementType::Int64 => ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64,
        ElementType::Int8 => ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8,
        ElementType::String => ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING,
        ElementType::UInt16 => ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT16,
        ElementType::UInt32 => ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT32,
        ElementType::UInt4 => ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT4,
        ElementType::UInt64 => ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT64,
        ElementType::UInt8 => ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8,
        // The core may add types. A runtime returns an error for this constant.
        _ => ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED,
    }
}

/// Creates a status in a runtime that does not have our version of the interface. The function is the first
/// entry of the table in every version.
fn too_old(base: &OrtApiBase) -> OrtStatusPtr {
    // SAFETY: The function takes no arguments and may be called at any time (R1).
    let version = unsafe { (base.GetVersionString)() };
    // SAFETY: `version` is a string of the runtime, which ends in a zero byte and lives as long as the
    // runtime (R5).
    let version = unsafe { CStr::from_ptr(version) }.to_string_lossy();
    // SAFETY: `GetApi` accepts every number (R1).
    let api = unsafe { (base.GetApi)(1) };
    // SAFETY: Every runtime has the first version of the table, so `api` points to at least its first entry,
    // `CreateStatus`. Nothing is read here.
    let entry = unsafe { &raw const (*api).CreateStatus };
    // SAFETY: `entry` points to the first entry of the table, which every version has.
    let create = unsafe { entry.read() };
    let message = format!("kvscatter needs ONNX Runtime {OLDEST_RUNTIME} or newer, this is {version}");
    new_status(create, OrtErrorCode::ORT_FAIL, &message)
}

// The binding must use the same version as this library.
const _: () = assert!(sys::API_VERSION == ort_sys::ORT_API_VERSION);

#[cfg(test)]
mod tests {
    use core::ffi::{CStr, c_char};
    use core::mem::offset_of;
    use core::ptr;
    use std::cell::RefCell;

    use kvscatter::ElementType;
    use ort_sys::{OrtApi, OrtApiBase, OrtErrorCode, OrtStatusPtr};

    use super::{RuntimeApi, element_code, element_type};

    #[test]
    fn element_types_are_numbered_as_the_runtime_does() {
        for element in ElementType::ALL {
            assert_eq!(element_type(element_code(element)), Some(element));
        }
        assert_eq!(element_type(24), None, "uint2, which ONNX numbers 25");
        assert_eq!(element_type(25), None, "int2");
        assert_eq!([0, -1, 27, i32::MAX].map(element_type), [None; 4]);
    }

    thread_local! {
        static LAST_STATUS: RefCell<Option<(i32, String)>> = const { RefCell::new(None) };
    }

    unsafe extern "system" fn create_status(code: OrtErrorCode, text: *const c_char) -> OrtStatusPtr {
        // SAFETY: `new_status` passes a string that ends in a zero byte.
        let text = unsafe { CStr::from_ptr(text) }.to_str().unwrap().to_owned();
        LAST_STATUS.set(Some((code as i32, text)));
        OrtStatusPtr(ptr::dangling_mut())
    }

    unsafe extern "system" fn version() -> *const c_char {
        c"1.23.2".as_ptr()
    }

    /// Returns tables for versions up to 23, as a runtime of 1.23 does.
    unsafe extern "system" fn get_api(version: u32) -> *const OrtApi {
        type CreateStatus = unsafe extern "system" fn(OrtErrorCode, *const c_char) -> OrtStatusPtr;
        static FIRST_ENTRY: CreateStatus = create_status;
        if version <= 23 { (&raw const FIRST_ENTRY).cast() } else { ptr::null() }
    }

    #[test]
    fn an_older_runtime_is_told_which_it_would_have_to_be() {
        assert_eq!(offset_of!(OrtApi, CreateStatus), 0);
        let base = OrtApiBase { GetApi: get_api, GetVersionString: version };
        // SAFETY: `base` has the functions of a runtime, which return what one returns.
        let refused = unsafe { RuntimeApi::negotiate(&raw const base) };
        assert!(refused.is_err_and(|status| !status.0.is_null()));
        let message = "kvscatter needs ONNX Runtime 1.24 or newer, this is 1.23.2";
        assert_eq!(LAST_STATUS.take(), Some((1, message.to_owned())));
    }
}
