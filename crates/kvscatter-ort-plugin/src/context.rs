//! One call of a kernel, with its inputs, its outputs and the threads that it may use.

use core::marker::PhantomData;
use core::ptr::{null, null_mut};

use kvscatter::RawBuffer;
use ort_sys::{OrtKernelContext, OrtValue};

use crate::input::{InputTensor, Named, Role, is_possible};
use crate::runtime::RuntimeApi;
use crate::status::CallError;
use crate::threads::ParallelFor;

/// The arguments of one call of a kernel.
pub(crate) struct Context<'a> {
    runtime: RuntimeApi,
    raw: *mut OrtKernelContext,
    inputs: usize,
    call: PhantomData<&'a ()>,
}

impl<'a> Context<'a> {
    /// Creates a context from that of the runtime.
    ///
    /// # Safety
    /// `raw` is valid for `'a` (R2). The runtime called a kernel with `raw`, and the kernel's node has
    /// `inputs` inputs.
    pub(crate) unsafe fn new(runtime: RuntimeApi, raw: *mut OrtKernelContext, inputs: usize) -> Self {
        Self { runtime, raw, inputs, call: PhantomData }
    }

    /// Returns an input that the operator needs.
    pub(crate) fn input<R: Role>(&self, index: usize, role: R) -> Result<InputTensor<'a, R>, CallError> {
        self.optional_input(index, role)?.ok_or_else(|| role.failure("is missing".to_owned()))
    }

    /// Returns an optional input. The input is absent if the node has fewer inputs, or an empty name for it.
    pub(crate) fn optional_input<R: Role>(
        &self,
        index: usize,
        role: R,
    ) -> Result<Option<InputTensor<'a, R>>, CallError> {
        if index >= self.inputs {
            return Ok(None);
        }
        let Self { runtime, raw, .. } = *self;
        // SAFETY: `raw` is valid by the contract of `new`, the node has this input, and `out` takes the result (R1).
        let call = |out| unsafe { (runtime.api.KernelContext_GetInput)(raw, index, out) };
        let value = runtime.result(null(), call)?;
        if value.is_null() {
            return Ok(None);
        }
        // SAFETY: Inputs are valid until the call returns (R2), which `'a` does not outlive.
        unsafe { InputTensor::new(runtime, role, value) }.map(Some)
    }

    /// Returns the size of a tensor's memory in bytes, as computed by the runtime.
    pub(crate) fn bytes<R: Role>(&self, tensor: &InputTensor<'_, R>) -> Result<usize, CallError> {
        // SAFETY: `tensor` is an input of this call (R2).
        unsafe { self.bytes_of(tensor.as_ptr()) }
    }

    /// Checks that the runtime's memory for an input has the size that its type and its shape require. Returns an error
    /// if it has another size.
    pub(crate) fn check_memory<R: Role>(&self, tensor: &InputTensor<'_, R>) -> Result<(), CallError> {
        let (got, expected) = (self.bytes(tensor)?, tensor.memory()?.len);
        if got == expected {
            return Ok(());
        }
        Err(tensor.role.failure(format!("has {got} bytes, its shape requires {expected}")))
    }

    /// # Safety
    /// `value` is a valid tensor of the runtime.
    unsafe fn bytes_of(&self, value: *const OrtValue) -> Result<usize, CallError> {
        // SAFETY: `value` is valid by this function's contract, and `out` takes the result (R1).
        self.runtime.result(0, |out| unsafe { (self.runtime.api.GetTensorSizeInBytes)(value, out) })
    }

    /// Returns all inputs of a node that has no absent ones. Returns an error if an input is absent, or the status of a
    /// function of the runtime that fails.
    pub(crate) fn inputs(&self) -> Result<Vec<InputTensor<'a, Named>>, CallError> {
        (0..self.inputs).map(|index| self.input(index, Named("an input"))).collect()
    }

    /// Returns the threads of the session.
    pub(crate) fn threads(&self) -> ParallelFor {
        ParallelFor::new(self.runtime, self.raw)
    }

    /// Returns the memory of an output, which has this shape and the type that the model declares. If the runtime
    /// lets the kernel write in place, it is the memory of an input.
    pub(crate) fn output(&self, index: usize, shape: &[i64]) -> Result<RawBuffer, CallError> {
        let Self { runtime, raw, .. } = *self;
        // SAFETY: `raw` is valid by the contract of `new`, `shape` has `shape.len()` dimensions, and `out` takes the
        // result (R1).
        let value = runtime.result(null_mut(), |out| unsafe {
            (runtime.api.KernelContext_GetOutput)(raw, index, shape.as_ptr(), shape.len(), out)
        })?;
        if value.is_null() {
            return Err(CallError::fail("the runtime has no output to write to"));
        }
        // SAFETY: `value` is the output of this call (R2), and `out` takes the result (R1).
        let call = |out| unsafe { (runtime.api.GetTensorMutableData)(value, out) };
        let data = runtime.result(null_mut(), call)?;
        // SAFETY: `value` is the output of this call (R2).
        let len = unsafe { self.bytes_of(value) }?;
        let memory = RawBuffer { ptr: data.cast(), len };
        if is_possible(memory) { Ok(memory) } else { Err(CallError::fail("an output has no memory")) }
    }
}
