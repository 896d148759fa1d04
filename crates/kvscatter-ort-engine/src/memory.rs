//! Tensors in ONNX Runtime's memory.

use std::ops::Range;
use std::slice;

use kvscatter::ElementType;
use kvscatter_session::{Memory, SessionError, Tensor};
use ort::value::DynTensor;

use crate::element::core_element;

/// The memory of an output that ONNX Runtime has allocated. It is freed when both this and the binding of the output
/// are gone.
pub(crate) struct OutputMemory {
    value: DynTensor,
    len: usize,
}

impl OutputMemory {
    /// Returns a pointer to the bytes that may be used only to read.
    pub(crate) fn as_ptr(&self) -> *const u8 {
        self.value.data_ptr().cast()
    }
}

impl Memory for OutputMemory {
    fn bytes(&self) -> &[u8] {
        if self.len == 0 {
            return &[];
        }
        // SAFETY: `value` is a dense tensor of `len` bytes in main memory, which its run has written ([`output`]
        // computes `len` from its type and shape). `value` keeps the memory, and nothing else writes it: no tensor of
        // the step and no other output has it, and later runs write the output to other memory (`Binding::bind`).
        unsafe { slice::from_raw_parts(self.as_ptr(), self.len) }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        if self.len == 0 {
            return &mut [];
        }
        // SAFETY: As in `bytes`. Nothing else reads it either.
        unsafe { slice::from_raw_parts_mut(self.value.data_ptr_mut().cast::<u8>(), self.len) }
    }
}

/// Returns an output of a run as a tensor. It is copied if its memory overlaps one of the `taken` addresses, because a
/// model can return one of its inputs.
pub(crate) fn output(value: DynTensor, taken: &[Range<usize>]) -> Result<Tensor, SessionError> {
    // Types without a counterpart are an error, as strings are.
    let element = core_element(*value.data_type()).unwrap_or(ElementType::String);
    let shape: Vec<usize> =
        value.shape().iter().map(|&dim| usize::try_from(dim).unwrap_or(usize::MAX)).collect();
    let too_large = || SessionError::TensorTooLarge { element, shape: shape.clone() };
    let is_string = element == ElementType::String;
    let len = (!is_string).then(|| element.storage_len(&shape)).flatten().ok_or_else(too_large)?;
    let first = value.data_ptr().addr();
    let is_taken = taken.iter().any(|of| of.start < first.saturating_add(len) && first < of.end);
    let memory = OutputMemory { value, len };
    if !is_taken {
        return Tensor::of_memory(element, &shape, Box::new(memory));
    }
    let mut copy = Tensor::zeros(element, &shape)?;
    copy.bytes_mut().copy_from_slice(memory.bytes());
    Ok(copy)
}
