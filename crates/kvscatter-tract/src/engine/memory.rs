//! Conversion between tract's tensors and those of a session.

use std::mem;
use std::sync::Arc;

use kvscatter::ElementType;
use kvscatter_session::{Memory, SessionError, Tensor};
use tract_onnx::prelude::{DatumType, TValue, Tensor as Theirs, TractResult};
use tract_onnx::tract_hir::internal::bail;

use crate::element;

/// A tract tensor that is the memory of a session's tensor. A cache is moved into a plan and back, and other
/// inputs are shared with the plan. A write to memory that a plan still shares copies it first.
pub(super) struct TractMemory(Arc<Theirs>);

impl TractMemory {
    /// Creates a session's tensor from a tract tensor.
    pub(super) fn wrap(theirs: Theirs) -> Result<Tensor, SessionError> {
        // Strings and types that only tract has cannot be read as bytes. The session rejects strings, so both
        // become strings here.
        let element = element::ours(theirs.datum_type()).unwrap_or(ElementType::String);
        let shape = theirs.shape().to_vec();
        Tensor::of_memory(element, &shape, Box::new(Self(Arc::new(theirs))))
    }

    /// Takes the tensor out and leaves an empty one until [`put`](Self::put).
    pub(super) fn take(&mut self) -> TValue {
        TValue::from_const(mem::take(&mut self.0))
    }

    /// Puts a tensor of the same type and shape back.
    pub(super) fn put(&mut self, theirs: Theirs) {
        self.0 = Arc::new(theirs);
    }
}

impl Memory for TractMemory {
    fn bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        Arc::make_mut(&mut self.0).as_bytes_mut()
    }
}

/// Allocates a tensor of zeros in tract's memory.
pub(super) fn zeros(element: ElementType, shape: &[usize]) -> Result<Tensor, SessionError> {
    let too_large = || SessionError::TensorTooLarge { element, shape: shape.to_vec() };
    let datum = element::theirs(element).filter(|datum| datum.is_number() || *datum == DatumType::Bool);
    let datum = datum.ok_or_else(too_large)?;
    let len = element.storage_len(shape).ok_or_else(too_large)?;
    // tract panics if there is not enough memory, so the same size is first reserved and freed here.
    Vec::<u8>::new().try_reserve_exact(len).map_err(|_| too_large())?;
    TractMemory::wrap(Theirs::zero_dt(datum, shape).map_err(|_| too_large())?)
}

/// Returns a tensor that a plan only reads. tract's memory is shared with the plan, and other memory is
/// copied. Of bools, every byte is checked, so this takes longer for a larger mask.
pub(super) fn read(ours: &Tensor) -> TractResult<TValue> {
    let element = ours.element();
    // A bool of another value would be undefined behaviour. A search that stops early would be slower.
    if element == ElementType::Bool && ours.bytes().iter().fold(0, |most, byte| (*byte).max(most)) > 1 {
        bail!("a bool is neither 0 nor 1");
    }
    if let Some(memory) = ours.memory::<TractMemory>() {
        return Ok(TValue::from_const(Arc::clone(&memory.0)));
    }
    let Some(datum) = element::theirs(element) else { bail!("tract has no tensors of {element}") };
    let mut theirs = Theirs::zero_dt(datum, ours.shape())?;
    theirs.as_bytes_mut().copy_from_slice(ours.bytes());
    Ok(theirs.into())
}

/// Returns `true` if a tract tensor has the type and shape of a session's tensor.
pub(super) fn fits(theirs: &Theirs, ours: &Tensor) -> bool {
    element::ours(theirs.datum_type()) == Some(ours.element()) && theirs.shape() == ours.shape()
}
