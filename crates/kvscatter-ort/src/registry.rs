//! Registers the kernels of the execution provider.

use core::ffi::CStr;

use crate::kernel::EpKernel;
use crate::operators::{Operator, TensorScatter};
use crate::owned::Owned;
use crate::runtime::Runtime;
use crate::status::Failure;
use crate::sys::{ONNX_DOMAIN, OrtDataType, OrtKernelDef, OrtKernelDefBuilder, OrtKernelRegistry};

/// The first and last version of ONNX's operators whose `TensorScatter` this is: there is one definition so far,
/// and a node of any later opset without a newer one has it.
const SINCE_VERSION: (i32, i32) = (24, 24);

/// The registry with the kernel of `TensorScatter`, for every element type that the runtime supports.
pub(crate) struct Registry {
    registry: Owned<OrtKernelRegistry>,
    /// The state that kernels are made with. The registry has its address.
    _runtime: Box<Runtime>,
}

impl Registry {
    /// # Errors
    /// The status of a function of the runtime.
    pub(crate) fn new(runtime: Runtime, provider: &'static CStr) -> Result<Self, Failure> {
        let ep = runtime.ep;
        let runtime = Box::new(runtime);
        let definition = tensor_scatter(*runtime, provider)?;
        // SAFETY: the answer is written to a pointer of `Owned`'s.
        let registry =
            Owned::new(*runtime, ep.ReleaseKernelRegistry, |out| unsafe { (ep.CreateKernelRegistry)(out) })?;
        let state = (&raw const *runtime).cast_mut().cast();
        // SAFETY: both are owned here. The registry copies the definition; the state stays where it is as long as
        // the registry.
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

fn tensor_scatter(runtime: Runtime, provider: &'static CStr) -> Result<Owned<OrtKernelDef>, Failure> {
    let ep = runtime.ep;
    // SAFETY: the answer is written to a pointer of `Owned`'s.
    let builder = Owned::<OrtKernelDefBuilder>::new(runtime, ep.ReleaseKernelDefBuilder, |out| unsafe {
        (ep.CreateKernelDefBuilder)(out)
    })?;
    let raw = builder.as_ptr();
    // SAFETY: the builder is owned here; the name is a string, which is copied.
    runtime.check(unsafe { (ep.KernelDefBuilder_SetOperatorType)(raw, TensorScatter::NAME.as_ptr()) })?;
    // SAFETY: as above.
    runtime.check(unsafe { (ep.KernelDefBuilder_SetDomain)(raw, ONNX_DOMAIN.as_ptr()) })?;
    let (first, last) = SINCE_VERSION;
    // SAFETY: as above.
    runtime.check(unsafe { (ep.KernelDefBuilder_SetSinceVersion)(raw, first, last) })?;
    // SAFETY: as above.
    runtime.check(unsafe { (ep.KernelDefBuilder_SetExecutionProvider)(raw, provider.as_ptr()) })?;
    let types: Vec<*const OrtDataType> =
        runtime.supported_elements().map(|(_, data_type)| data_type).collect();
    // SAFETY: as above; the list has this many types of the runtime's.
    let status =
        unsafe { (ep.KernelDefBuilder_AddTypeConstraint)(raw, c"T".as_ptr(), types.as_ptr(), types.len()) };
    runtime.check(status)?;
    let (past_cache, present_cache) = (0, 0);
    // SAFETY: as above; one pair of indices.
    let status = unsafe {
        (ep.KernelDefBuilder_AddInputOutputMutableAliases)(
            raw,
            &raw const past_cache,
            &raw const present_cache,
            1,
        )
    };
    runtime.check(status)?;
    // SAFETY: the builder is owned here; the answer is written to a pointer of `Owned`'s.
    Owned::new(runtime, ep.ReleaseKernelDef, |out| unsafe { (ep.KernelDefBuilder_Build)(raw, out) })
}
