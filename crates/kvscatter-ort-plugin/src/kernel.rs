//! The kernels, which combine a node's operator with the functions that the runtime calls.

use core::ffi::c_void;
use std::sync::Arc;

use ort_sys::{OrtKernelContext, OrtKernelInfo, OrtStatusPtr};

use crate::context::Context;
use crate::node::Node;
use crate::operators::Operator;
use crate::runtime::RuntimeApi;
use crate::status::{CallError, catch_panic, guarded};
use crate::sys::{API_VERSION, KernelImpl};
use crate::workspace::Workspace;

/// What the kernels of a provider share.
pub(crate) struct KernelState {
    pub(crate) runtime: RuntimeApi,
    pub(crate) workspace: Arc<Workspace>,
}

/// A kernel of one node, with the operator and the runtime that calls it.
pub(crate) struct Kernel<O> {
    runtime: RuntimeApi,
    operator: O,
    inputs: usize,
}

impl<O: Operator> Kernel<O> {
    /// Creates the kernel of a node. Returns an error if an attribute has an unknown value, or if the inputs would make
    /// every call fail.
    ///
    /// # Safety
    /// `info` is an object of the runtime and valid until this returns.
    pub(crate) unsafe fn new(state: &KernelState, info: *const OrtKernelInfo) -> Result<Self, CallError> {
        let KernelState { runtime, workspace } = state;
        // SAFETY: `info` is valid until this returns, by this function's contract, and `node` is not used
        // longer.
        let node = unsafe { Node::new(*runtime, info, workspace) };
        let operator = O::new(&node).map_err(O::with_operator_name)?;
        let inputs = node.inputs()?;
        operator.check(&inputs).map_err(O::with_operator_name)?;
        Ok(Self { runtime: *runtime, operator, inputs: inputs.len() })
    }

    /// Executes one call.
    ///
    /// # Safety
    /// The runtime calls this kernel with `context`, which is valid until this returns.
    pub(crate) unsafe fn compute(&self, context: *mut OrtKernelContext) -> OrtStatusPtr {
        guarded(self.runtime.api, || {
            // SAFETY: `context` is valid until this returns and has `self.inputs` inputs, by this function's
            // contract.
            let context = unsafe { Context::new(self.runtime, context, self.inputs) };
            self.operator.compute(&context).map_err(O::with_operator_name)
        })
    }
}

/// A kernel of the execution provider. It begins with the struct that the runtime reads.
#[repr(C)]
pub(crate) struct EpKernel<O> {
    base: KernelImpl,
    kernel: Kernel<O>,
}

impl<O: Operator> EpKernel<O> {
    /// Creates a kernel. The function is a `KernelCreateFn` of the runtime.
    ///
    /// # Safety
    /// R2 for `info`, R3 for `out`, and `state` is the [`KernelState`] that the kernel was registered with.
    pub(crate) unsafe extern "system" fn create(
        state: *mut c_void,
        info: *const OrtKernelInfo,
        out: *mut *mut KernelImpl,
    ) -> OrtStatusPtr {
        // SAFETY: This function's contract requires that `state` is the `KernelState` that the kernel was
        // registered with.
        let state = unsafe { &*state.cast::<KernelState>() };
        guarded(state.runtime.api, || {
            let base = KernelImpl {
                ort_version_supported: API_VERSION,
                flags: 0,
                Compute: Self::compute,
                Release: Self::release,
                PrePackWeight: None,
                SetSharedPrePackedWeight: None,
            };
            // SAFETY: This function's contract requires that `info` is valid until this returns (R2).
            let kernel = unsafe { Kernel::new(state, info) }?;
            let kernel = Box::into_raw(Box::new(Self { base, kernel }));
            // SAFETY: This function's contract requires that `out` points to a variable for the result (R3).
            unsafe { out.write(kernel.cast()) };
            Ok(())
        })
    }

    unsafe extern "system" fn compute(this: *mut KernelImpl, context: *mut OrtKernelContext) -> OrtStatusPtr {
        // SAFETY: The runtime passes the address of a kernel of ours, which it has not released yet (R4).
        let this = unsafe { &*this.cast::<Self>() };
        // SAFETY: `context` is valid until this returns (R2), and belongs to this kernel.
        unsafe { this.kernel.compute(context) }
    }

    unsafe extern "system" fn release(this: *mut KernelImpl) {
        // SAFETY: `create` made `this` from a `Box`, and the runtime releases it once, after its last use
        // (R4).
        let kernel = unsafe { Box::from_raw(this.cast::<Self>()) };
        catch_panic(|| drop(kernel));
    }
}
