//! Kernels: a node's operator with the functions that the runtime calls.

use core::ffi::c_void;

use ort_sys::{OrtKernelContext, OrtKernelInfo, OrtStatusPtr};

use crate::context::Context;
use crate::node::Node;
use crate::operators::{Operator, TensorScatter};
use crate::runtime::Runtime;
use crate::status::{Failure, catch_panic, guarded};
use crate::sys::{API_VERSION, KernelImpl};

/// A kernel of a custom operator: the operator and the runtime that calls it.
pub(crate) struct Kernel<O> {
    runtime: Runtime,
    operator: O,
    inputs: usize,
}

impl<O: Operator> Kernel<O> {
    /// # Errors
    /// If the operator does not know the value of an attribute, or the inputs would make every call fail.
    ///
    /// # Safety
    /// `info` is what the runtime asks for a kernel with.
    pub(crate) unsafe fn new(runtime: Runtime, info: *const OrtKernelInfo) -> Result<Self, Failure> {
        // SAFETY: the caller's.
        let node = unsafe { Node::new(runtime, info) };
        let operator = O::new(&node).map_err(O::with_operator_name)?;
        let inputs = node.inputs()?;
        operator.check(&inputs).map_err(O::with_operator_name)?;
        Ok(Self { runtime, operator, inputs: inputs.len() })
    }

    /// # Safety
    /// `context` is what the runtime calls this kernel with.
    pub(crate) unsafe fn compute(&self, context: *mut OrtKernelContext) -> OrtStatusPtr {
        guarded(self.runtime, || {
            // SAFETY: the caller's.
            let context = unsafe { Context::new(self.runtime, context, self.inputs) };
            self.operator.compute(&context).map_err(O::with_operator_name)
        })
    }
}

/// A kernel of the execution provider. It begins with the struct that the runtime reads.
#[repr(C)]
pub(crate) struct EpKernel {
    base: KernelImpl,
    kernel: Kernel<TensorScatter>,
}

impl EpKernel {
    /// `KernelCreateFn`. The state is the [`Runtime`] that the kernel was registered with.
    ///
    /// # Safety
    /// As the header has it; the state outlives the call.
    pub(crate) unsafe extern "system" fn create(
        state: *mut c_void,
        info: *const OrtKernelInfo,
        out: *mut *mut KernelImpl,
    ) -> OrtStatusPtr {
        // SAFETY: the state that was registered.
        let runtime = unsafe { *state.cast::<Runtime>() };
        guarded(runtime, || {
            let base = KernelImpl {
                ort_version_supported: API_VERSION,
                flags: 0,
                Compute: Self::compute,
                Release: Self::release,
                PrePackWeight: None,
                SetSharedPrePackedWeight: None,
            };
            // SAFETY: the caller's.
            let kernel = unsafe { Kernel::new(runtime, info) }?;
            let kernel = Box::into_raw(Box::new(Self { base, kernel }));
            // SAFETY: the runtime's variable for the answer, which owns it from here on.
            unsafe { out.write(kernel.cast()) };
            Ok(())
        })
    }

    unsafe extern "system" fn compute(this: *mut KernelImpl, context: *mut OrtKernelContext) -> OrtStatusPtr {
        // SAFETY: a kernel that `create` has made; the runtime calls it on many threads, and shares it.
        let this = unsafe { &*this.cast::<Self>() };
        // SAFETY: as the header has it.
        unsafe { this.kernel.compute(context) }
    }

    unsafe extern "system" fn release(this: *mut KernelImpl) {
        // SAFETY: a kernel that `create` has made, which the runtime gives back once.
        let kernel = unsafe { Box::from_raw(this.cast::<Self>()) };
        catch_panic(|| drop(kernel));
    }
}
