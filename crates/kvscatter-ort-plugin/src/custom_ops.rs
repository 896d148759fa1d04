//! The operators of the domain `com.kvscatter`, which run in graphs whose nodes no execution provider of ours
//! takes.
//!
//! The runtime accepts at most one input of a custom operator with an open type, but both cache and update
//! would need one. Each operator is therefore registered once for every element type. The runtime chooses by
//! the types of a node's inputs, and rejects a node whose types do not agree when it loads the model.
//!
//! The runtime passes the address of an operator as `op` to the `extern` functions below. The address comes
//! from `CustomOp::as_ptr`, and the runtime has not released the operator yet (R4). `SAFETY` comments refer
//! to this condition as "`op` is live".

use core::ffi::{CStr, c_char, c_int, c_void};
use core::ptr::{null, null_mut};
use std::sync::Arc;

use kvscatter::ElementType;
use kvscatter::spec::{ascend, tensorrt};
use ort_sys::{
    ONNXTensorElementDataType, OrtApi, OrtCustomOp, OrtCustomOpInputOutputCharacteristic as Characteristic,
    OrtKernelContext, OrtKernelInfo, OrtMemType, OrtShapeInferContext, OrtStatusPtr,
};

use crate::kernel::{Kernel, KernelState};
use crate::operators::{KvCacheOperation, KvCacheUpdate, Operator, TensorScatter};
use crate::runtime::{RuntimeApi, tensor_element};
use crate::status::{CallError, catch_panic, guarded};
use crate::sys::API_VERSION;
use crate::tensor_info::TensorInfo;
use crate::workspace::Workspace;

/// The domain of the operators.
pub(crate) const DOMAIN: &CStr = c"com.kvscatter";

/// The only version of the operators so far.
const VERSION: c_int = 1;

/// Returns each operator, once for each element type that the runtime supports.
pub(crate) fn all(runtime: RuntimeApi) -> Vec<CustomOp> {
    use ElementType::{Int32, Int64};
    let supported: Vec<ElementType> = runtime.supported_elements().map(|(element, _)| element).collect();
    let tensor_scatter = supported.iter().map(|&element| {
        let inputs = vec![required(element), required(element), optional(Int64), optional(Int64)];
        CustomOp::new::<TensorScatter, 0>(runtime, inputs)
    });
    let kv_cache_update = tensorrt::KvCacheUpdate::ELEMENT_TYPES.iter().flat_map(|&element| {
        tensorrt::KvCacheUpdate::INDEX_TYPES.iter().map(move |&index| {
            let inputs = vec![required(element), required(element), required(index), optional(Int32)];
            CustomOp::new::<KvCacheUpdate, 0>(runtime, inputs)
        })
    });
    let kv_cache_operation = ascend::KvCacheOperation::ELEMENT_TYPES.iter().map(|&element| {
        let positions = [Int32, Int32].map(required);
        let inputs = [required(element), required(Int32), required(element)].into_iter().chain(positions);
        CustomOp::new::<KvCacheOperation, 2>(runtime, inputs.collect())
    });
    tensor_scatter.chain(kv_cache_update).chain(kv_cache_operation).collect()
}

/// An operator for one element type. It begins with the struct that the runtime reads.
#[repr(C)]
pub(crate) struct CustomOp {
    base: OrtCustomOp,
    runtime: RuntimeApi,
    name: &'static CStr,
    inputs: Vec<Input>,
    output: ONNXTensorElementDataType,
}

/// The properties of an input that the runtime checks.
struct Input {
    element: ONNXTensorElementDataType,
    characteristic: Characteristic,
}

fn required(element: ElementType) -> Input {
    Input { element: tensor_element(element), characteristic: Characteristic::INPUT_OUTPUT_REQUIRED }
}

fn optional(element: ElementType) -> Input {
    Input { characteristic: Characteristic::INPUT_OUTPUT_OPTIONAL, ..required(element) }
}

impl CustomOp {
    /// Creates the operator `O`, whose cache is input `CACHE`.
    fn new<O: Operator, const CACHE: usize>(runtime: RuntimeApi, inputs: Vec<Input>) -> Self {
        let output = match inputs.get(CACHE) {
            Some(cache) => cache.element,
            None => ONNXTensorElementDataType::ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED,
        };
        let base = OrtCustomOp {
            version: API_VERSION,
            CreateKernel: None,
            GetName: Some(get_name),
            GetExecutionProviderType: Some(get_execution_provider),
            GetInputType: Some(get_input_type),
            GetInputTypeCount: Some(get_input_count),
            GetOutputType: Some(get_output_type),
            GetOutputTypeCount: Some(get_output_count),
            KernelCompute: None,
            KernelDestroy: Some(destroy::<O>),
            GetInputCharacteristic: Some(get_input_characteristic),
            GetOutputCharacteristic: Some(get_output_characteristic),
            GetInputMemoryType: Some(get_input_memory_type),
            GetVariadicInputMinArity: Some(get_no_arity),
            GetVariadicInputHomogeneity: Some(get_no_arity),
            GetVariadicOutputMinArity: Some(get_no_arity),
            GetVariadicOutputHomogeneity: Some(get_no_arity),
            CreateKernelV2: Some(create::<O>),
            KernelComputeV2: Some(compute::<O>),
            InferOutputShapeFn: Some(infer_shape::<CACHE>),
            GetStartVersion: Some(get_version),
            GetEndVersion: Some(get_version),
            GetMayInplace: Some(get_may_inplace::<CACHE>),
            ReleaseMayInplace: Some(release_may_inplace),
            GetAliasMap: None,
            ReleaseAliasMap: None,
        };
        Self { base, runtime, name: O::NAME, inputs, output }
    }

    /// Returns the address that the runtime keeps.
    pub(crate) fn as_ptr(&self) -> *const OrtCustomOp {
        (&raw const *self).cast()
    }

    /// Returns a reference to the operator.
    ///
    /// # Safety
    /// `raw` comes from [`as_ptr`](Self::as_ptr) of an operator that lives for `'a`.
    unsafe fn from_raw<'a>(raw: *const OrtCustomOp) -> &'a Self {
        // SAFETY: `raw` comes from `as_ptr` of an operator that lives for `'a`, by this function's contract,
        // and `CustomOp` begins with an `OrtCustomOp`.
        unsafe { &*raw.cast::<Self>() }
    }
}

unsafe extern "system" fn get_name(op: *const OrtCustomOp) -> *const c_char {
    // SAFETY: `op` is live (R4).
    unsafe { CustomOp::from_raw(op) }.name.as_ptr()
}

/// Returns NULL, which means the runtime's own provider for the CPU.
unsafe extern "system" fn get_execution_provider(_op: *const OrtCustomOp) -> *const c_char {
    null()
}

unsafe extern "system" fn get_input_count(op: *const OrtCustomOp) -> usize {
    // SAFETY: `op` is live (R4).
    unsafe { CustomOp::from_raw(op) }.inputs.len()
}

unsafe extern "system" fn get_input_type(op: *const OrtCustomOp, index: usize) -> ONNXTensorElementDataType {
    // SAFETY: `op` is live (R4).
    match unsafe { CustomOp::from_raw(op) }.inputs.get(index) {
        Some(input) => input.element,
        None => ONNXTensorElementDataType::ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED,
    }
}

unsafe extern "system" fn get_input_characteristic(op: *const OrtCustomOp, index: usize) -> Characteristic {
    // SAFETY: `op` is live (R4).
    match unsafe { CustomOp::from_raw(op) }.inputs.get(index) {
        Some(input) => input.characteristic,
        None => Characteristic::INPUT_OUTPUT_REQUIRED,
    }
}

unsafe extern "system" fn get_input_memory_type(_op: *const OrtCustomOp, _index: usize) -> OrtMemType {
    OrtMemType::OrtMemTypeDefault
}

unsafe extern "system" fn get_output_count(_op: *const OrtCustomOp) -> usize {
    1
}

unsafe extern "system" fn get_output_type(
    op: *const OrtCustomOp,
    _index: usize,
) -> ONNXTensorElementDataType {
    // SAFETY: `op` is live (R4).
    unsafe { CustomOp::from_raw(op) }.output
}

unsafe extern "system" fn get_output_characteristic(
    _op: *const OrtCustomOp,
    _index: usize,
) -> Characteristic {
    Characteristic::INPUT_OUTPUT_REQUIRED
}

/// Returns 1, because no input or output is variadic.
unsafe extern "system" fn get_no_arity(_op: *const OrtCustomOp) -> c_int {
    1
}

unsafe extern "system" fn get_version(_op: *const OrtCustomOp) -> c_int {
    VERSION
}

/// Declares that the output may have the memory of the cache.
unsafe extern "system" fn get_may_inplace<const CACHE: usize>(
    input: *mut *mut c_int,
    output: *mut *mut c_int,
) -> usize {
    /// The indices, which the runtime reads and does not change.
    static INDICES: [c_int; 3] = [0, 1, 2];
    let address_of =
        |index: usize| INDICES.get(index).map_or(null_mut(), |index| (&raw const *index).cast_mut());
    // SAFETY: `input` points to a variable for the result (R3).
    unsafe { input.write(address_of(CACHE)) };
    // SAFETY: `output` points to a variable for the result (R3).
    unsafe { output.write(address_of(0)) };
    1
}

unsafe extern "system" fn release_may_inplace(_input: *mut c_int, _output: *mut c_int) {}

unsafe extern "system" fn infer_shape<const CACHE: usize>(
    op: *const OrtCustomOp,
    context: *mut OrtShapeInferContext,
) -> OrtStatusPtr {
    // SAFETY: `op` is live (R4).
    let runtime = unsafe { CustomOp::from_raw(op) }.runtime;
    // SAFETY: `context` is valid until this returns (R2), and the operator has an input `CACHE`.
    guarded(runtime.api, || unsafe { infer(runtime, context, CACHE) })
}

/// Sets the shape of the output to that of the cache.
///
/// This does not reject any model, because runtimes up to 1.31 neither read nor release the status that it returns. A
/// model that is wrong for all inputs is rejected when its kernel is made.
///
/// # Safety
/// `raw` is an object of the runtime, is valid until this returns, and has an input `cache`.
unsafe fn infer(runtime: RuntimeApi, raw: *mut OrtShapeInferContext, cache: usize) -> Result<(), CallError> {
    // SAFETY: `raw` is valid and has an input `cache`, by this function's contract, and `out` takes the result (R1).
    let call = |out| unsafe { (runtime.api.ShapeInferContext_GetInputTypeShape)(raw, cache, out) };
    let info = runtime.result(null_mut(), call)?;
    // SAFETY: `info` is a part of `raw` (R2), which is valid by this function's contract.
    let cache_info = unsafe { TensorInfo::new(runtime, info) }?;
    if !cache_info.has_every_dimension {
        // The runtime would read unknown dimensions as -1, and an unknown rank as a scalar.
        return Ok(());
    }
    // SAFETY: `raw` is valid by this function's contract, and the runtime copies `info`, which is a part of
    // it (R1).
    runtime.check(unsafe { (runtime.api.ShapeInferContext_SetOutputTypeShape)(raw, 0, info) })
}

unsafe extern "system" fn create<O: Operator>(
    op: *const OrtCustomOp,
    _api: *const OrtApi,
    info: *const OrtKernelInfo,
    out: *mut *mut c_void,
) -> OrtStatusPtr {
    // SAFETY: `op` is live (R4).
    let runtime = unsafe { CustomOp::from_raw(op) }.runtime;
    guarded(runtime.api, || {
        // No operator of the domain uses working memory.
        let state = KernelState { runtime, workspace: Arc::new(Workspace::new()) };
        // SAFETY: `info` is valid until this returns (R2).
        let kernel = unsafe { Kernel::<O>::new(&state, info) }?;
        // SAFETY: `out` points to a variable for the result (R3).
        unsafe { out.write(Box::into_raw(Box::new(kernel)).cast()) };
        Ok(())
    })
}

unsafe extern "system" fn compute<O: Operator>(
    kernel: *mut c_void,
    context: *mut OrtKernelContext,
) -> OrtStatusPtr {
    // SAFETY: `create` made `kernel`, which has not been released yet. Threads may share it (R4).
    let kernel = unsafe { &*kernel.cast::<Kernel<O>>() };
    // SAFETY: `context` is valid until this returns (R2), and belongs to this kernel.
    unsafe { kernel.compute(context) }
}

unsafe extern "system" fn destroy<O: Operator>(kernel: *mut c_void) {
    if kernel.is_null() {
        return;
    }
    // SAFETY: `create` made `kernel` from a `Box`, and the runtime releases it once, after its last use (R4).
    let kernel = unsafe { Box::from_raw(kernel.cast::<Kernel<O>>()) };
    catch_panic(|| drop(kernel));
}
