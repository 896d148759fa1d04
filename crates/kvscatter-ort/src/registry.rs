//! Registers the kernels of the execution provider.
//!
//! The conditions R1 to R6 that comments cite are defined in the crate's documentation.

use core::ffi::CStr;

use crate::kernel::EpKernel;
use crate::operators::{Operator, TensorScatter};
use crate::owned::Owned;
use crate::runtime::RuntimeApi;
use crate::status::Failure;
use crate::sys::{ONNX_DOMAIN, OrtDataType, OrtKernelDef, OrtKernelDefBuilder, OrtKernelRegistry};

/// The first and last version of ONNX's operators whose `TensorScatter` this kernel implements. ONNX has one
/// definition so far, and a node of a later opset uses it until ONNX adds a newer one.
const SINCE_VERSION: (i32, i32) = (24, 24);

/// A registry with the kernel of `TensorScatter`, for every element type that the runtime supports.
pub(crate) struct Registry {
    registry: Owned<OrtKernelRegistry>,
    /// The state that kernels are made with. The registry contains its address.
    _runtime: Box<RuntimeApi>,
}

impl Registry {
    /// Registers the kernel.
    ///
    /// # Errors
    /// Returns the status of a function of the runtime that fails.
    pub(crate) fn new(runtime: RuntimeApi, provider: &'static CStr) -> Result<Self, Failure> {
        let ep = runtime.ep;
        let runtime = Box::new(runtime);
        let definition = tensor_scatter(*runtime, provider)?;
        // SAFETY: `out` takes the result (R1).
        let registry =
            Owned::new(*runtime, ep.ReleaseKernelRegistry, |out| unsafe { (ep.CreateKernelRegistry)(out) })?;
        let state = (&raw const *runtime).cast_mut().cast();
        // SAFETY: `registry` and `definition` are not released yet. The registry copies the definition.
        // `runtime`, the state, stays at its address until after the registry is released.
        let status = unsafe {
            (ep.KernelRegistry_AddKernel)(registry.as_ptr(), definition.as_ptr(), EpKernel::create, state)
        };
        runtime.check(status)?;
        Ok(Self { registry, _runtime: runtime })
    }

    /// Returns the address of the registry, which lives as long as `self`.
    pub(crate) fn as_ptr(&self) -> *const OrtKernelRegistry {
        self.registry.as_ptr()
    }
}

fn tensor_scatter(runtime: RuntimeApi, provider: &'static CStr) -> Result<Owned<OrtKernelDef>, Failure> {
    let ep = runtime.ep;
    // SAFETY: `out` takes the result (R1).
    let builder = Owned::<OrtKernelDefBuilder>::new(runtime, ep.ReleaseKernelDefBuilder, |out| unsafe {
        (ep.CreateKernelDefBuilder)(out)
    })?;
    // `raw` is live in all calls below, because `builder` releases it at the end of this function. The runtime
    // copies the names and lists that it is given (R1).
    let raw = builder.as_ptr();
    // SAFETY: `raw` is live, and the name is copied (R1).
    runtime.check(unsafe { (ep.KernelDefBuilder_SetOperatorType)(raw, TensorScatter::NAME.as_ptr()) })?;
    // SAFETY: `raw` is live, and the name is copied (R1).
    runtime.check(unsafe { (ep.KernelDefBuilder_SetDomain)(raw, ONNX_DOMAIN.as_ptr()) })?;
    let (first, last) = SINCE_VERSION;
    // SAFETY: `raw` is live (R1).
    runtime.check(unsafe { (ep.KernelDefBuilder_SetSinceVersion)(raw, first, last) })?;
    // SAFETY: `raw` is live, and the name is copied (R1).
    runtime.check(unsafe { (ep.KernelDefBuilder_SetExecutionProvider)(raw, provider.as_ptr()) })?;
    let types: Vec<*const OrtDataType> =
        runtime.supported_elements().map(|(_, data_type)| data_type).collect();
    // SAFETY: `raw` is live, and the name and the `types.len()` elements of `types` are copied (R1).
    let status =
        unsafe { (ep.KernelDefBuilder_AddTypeConstraint)(raw, c"T".as_ptr(), types.as_ptr(), types.len()) };
    runtime.check(status)?;
    let (past_cache, present_cache) = (0, 0);
    // SAFETY: `raw` is live, and both indices are copied, one for each list (R1).
    let status = unsafe {
        (ep.KernelDefBuilder_AddInputOutputMutableAliases)(
            raw,
            &raw const past_cache,
            &raw const present_cache,
            1,
        )
    };
    runtime.check(status)?;
    // SAFETY: `raw` is live, and `out` takes the result (R1).
    Owned::new(runtime, ep.ReleaseKernelDef, |out| unsafe { (ep.KernelDefBuilder_Build)(raw, out) })
}
