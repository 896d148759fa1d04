//! Registers the kernels of the execution provider.

use core::ffi::{CStr, c_int};

use std::sync::Arc;

use kvscatter::ElementType;

use crate::kernel::{EpKernel, KernelState};
use crate::operators::{Attention, FLOATS, GroupQueryAttention, Operator, TensorScatter};
use crate::owned::Owned;
use crate::runtime::RuntimeApi;
use crate::status::CallError;
use crate::sys::{
    KernelCreateFn, ONNX_DOMAIN, OrtDataType, OrtKernelDef, OrtKernelDefBuilder, OrtKernelRegistry,
};
use crate::workspace::Workspace;

/// A registry with all kernels.
pub(crate) struct Registry {
    registry: Owned<OrtKernelRegistry>,
    /// The state that kernels are made with. The registry contains its address.
    state: Box<KernelState>,
}

impl Registry {
    /// Registers the kernels.
    pub(crate) fn new(runtime: RuntimeApi, provider: &'static CStr) -> Result<Self, CallError> {
        let ep = runtime.ep;
        let state = Box::new(KernelState { runtime, workspace: Arc::new(Workspace::new()) });
        // SAFETY: `out` takes the result (R1).
        let registry =
            Owned::new(runtime, ep.ReleaseKernelRegistry, |out| unsafe { (ep.CreateKernelRegistry)(out) })?;
        let address = (&raw const *state).cast_mut().cast();
        for kernel in [tensor_scatter(runtime), attention(runtime), group_query_attention(runtime)] {
            let definition = kernel.define(runtime, provider)?;
            // SAFETY: `registry` and `definition` are not released yet. The registry copies the definition.
            // `state` stays at its address until after the registry is released.
            let status = unsafe {
                (ep.KernelRegistry_AddKernel)(registry.as_ptr(), definition.as_ptr(), kernel.create, address)
            };
            runtime.check(status)?;
        }
        Ok(Self { registry, state })
    }

    /// Returns the memory in which kernels work.
    pub(crate) fn workspace(&self) -> Arc<Workspace> {
        Arc::clone(&self.state.workspace)
    }

    /// Returns the address of the registry, which lives as long as `self`.
    pub(crate) fn as_ptr(&self) -> *const OrtKernelRegistry {
        self.registry.as_ptr()
    }
}

/// A kernel, and the nodes that the runtime may use it for.
struct KernelEntry {
    operator: &'static CStr,
    domain: &'static CStr,
    /// The first and last version of the domain's operators whose definition the kernel implements. A node of a
    /// later opset uses the last one until ONNX adds a newer one. The range must end, because the runtime
    /// takes a range without an end for its first version only.
    versions: (c_int, c_int),
    /// The types that each type parameter of the operator may have. A parameter of absent inputs may have any.
    types: Vec<(&'static CStr, Vec<*const OrtDataType>)>,
    /// Inputs, and the output that may have the memory of each.
    in_place: (&'static [c_int], &'static [c_int]),
    create: KernelCreateFn,
}

/// `TensorScatter` for every element type that the runtime supports, with the present in the past's memory.
fn tensor_scatter(runtime: RuntimeApi) -> KernelEntry {
    KernelEntry {
        operator: TensorScatter::NAME,
        domain: ONNX_DOMAIN,
        versions: (24, 24),
        types: vec![(c"T", runtime.supported_elements().map(|(_, data_type)| data_type).collect())],
        in_place: (&[0], &[0]),
        create: EpKernel::<TensorScatter>::create,
    }
}

/// `Attention`, whose nodes [`Attention::check_node`] restricts further.
fn attention(runtime: RuntimeApi) -> KernelEntry {
    let floats = of_types(runtime, &FLOATS);
    let masks = [floats.clone(), of_types(runtime, &[ElementType::Bool])].concat();
    KernelEntry {
        operator: Attention::NAME,
        domain: ONNX_DOMAIN,
        versions: (23, 25),
        types: vec![(c"T1", floats.clone()), (c"T2", floats), (c"U", masks)],
        in_place: (&[], &[]),
        create: EpKernel::<Attention>::create,
    }
}

/// `GroupQueryAttention`. [`GroupQueryAttention::takes`] restricts its nodes further. It also compares the types of
/// caches, whose parameter has other names in other versions.
///
/// A present has the memory of its past only if a program binds both to it. Inside a graph, the runtime would choose so
/// if a model declares one shape for both. It would then refuse each step in which the cache grows, and leave rows in
/// the slots after the tokens, which the runtime's own kernel fills with zeros.
fn group_query_attention(runtime: RuntimeApi) -> KernelEntry {
    KernelEntry {
        operator: GroupQueryAttention::NAME,
        domain: GroupQueryAttention::DOMAIN,
        versions: (1, 1),
        types: vec![(c"T", of_types(runtime, &FLOATS))],
        in_place: (&[], &[]),
        create: EpKernel::<GroupQueryAttention>::create,
    }
}

fn of_types(runtime: RuntimeApi, elements: &[ElementType]) -> Vec<*const OrtDataType> {
    let is_one = |element: &ElementType| elements.contains(element);
    runtime.supported_elements().filter(|(element, _)| is_one(element)).map(|(_, it)| it).collect()
}

impl KernelEntry {
    fn define(&self, runtime: RuntimeApi, provider: &'static CStr) -> Result<Owned<OrtKernelDef>, CallError> {
        let ep = runtime.ep;
        // SAFETY: `out` takes the result (R1).
        let builder = Owned::<OrtKernelDefBuilder>::new(runtime, ep.ReleaseKernelDefBuilder, |out| unsafe {
            (ep.CreateKernelDefBuilder)(out)
        })?;
        // `raw` is live in all calls below, because `builder` releases it at the end of this function. The
        // runtime copies the names and lists that it is given (R1).
        let raw = builder.as_ptr();
        // SAFETY: `raw` is live, and the name is copied (R1).
        runtime.check(unsafe { (ep.KernelDefBuilder_SetOperatorType)(raw, self.operator.as_ptr()) })?;
        // SAFETY: `raw` is live, and the name is copied (R1).
        runtime.check(unsafe { (ep.KernelDefBuilder_SetDomain)(raw, self.domain.as_ptr()) })?;
        let (first, last) = self.versions;
        // SAFETY: `raw` is live (R1).
        runtime.check(unsafe { (ep.KernelDefBuilder_SetSinceVersion)(raw, first, last) })?;
        // SAFETY: `raw` is live, and the name is copied (R1).
        runtime.check(unsafe { (ep.KernelDefBuilder_SetExecutionProvider)(raw, provider.as_ptr()) })?;
        for (name, types) in &self.types {
            // SAFETY: `raw` is live, and the name and the `types.len()` elements of `types` are copied (R1).
            let status = unsafe {
                (ep.KernelDefBuilder_AddTypeConstraint)(raw, name.as_ptr(), types.as_ptr(), types.len())
            };
            runtime.check(status)?;
        }
        // The runtime refuses an empty list.
        let (inputs, outputs) = self.in_place;
        if !inputs.is_empty() {
            // SAFETY: `raw` is live, and the indices are copied, as many of one list as of the other (R1).
            let status = unsafe {
                (ep.KernelDefBuilder_AddInputOutputMutableAliases)(
                    raw,
                    inputs.as_ptr(),
                    outputs.as_ptr(),
                    inputs.len(),
                )
            };
            runtime.check(status)?;
        }
        // SAFETY: `raw` is live, and `out` takes the result (R1).
        Owned::new(runtime, ep.ReleaseKernelDef, |out| unsafe { (ep.KernelDefBuilder_Build)(raw, out) })
    }
}
