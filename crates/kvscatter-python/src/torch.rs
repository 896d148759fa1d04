//! PyTorch's tensors: what they keep beside their memory, and the short way to it.

use dlpark::ffi::{DLDevice, DLTensor};
use dlpark::python::consumer::exchange::ExchangeApi;
use dlpark::tensor::TensorRef;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;

use crate::failure::Failure;

/// A gradient would be lost; a view that is conjugated or negated holds other values than its memory.
pub(crate) fn check(tensor: &Bound<'_, PyAny>, argument: &'static str) -> PyResult<()> {
    let py = tensor.py();
    let refuse = |why| Err(Failure::Tensor { argument, why }.into());
    if tensor.getattr(intern!(py, "requires_grad"))?.is_truthy()? {
        return refuse("requires grad, which a write does not record: detach it, or use torch.ops.kvscatter");
    }
    if tensor.call_method0(intern!(py, "is_neg"))?.is_truthy()? {
        return refuse("is a negated view of its memory: resolve_neg() it first");
    }
    if tensor.call_method0(intern!(py, "is_conj"))?.is_truthy()? {
        return refuse("is a conjugated view of its memory: resolve_conj() it first");
    }
    Ok(())
}

/// `torch.Tensor` and its C functions, once one has been seen.
struct TensorClass {
    class: Py<PyType>,
    api: ExchangeApi,
}

// SAFETY: an address of C functions, which live as long as the process and are called with the interpreter attached.
unsafe impl Send for TensorClass {}
// SAFETY: as above.
unsafe impl Sync for TensorClass {}

/// Looks at a tensor of exactly this class, borrowed for as long as no Python code runs. `None` if it is none, if it
/// lies on another device, or if anything about it is unusual: the way over [`dlpack`](crate::dlpack) then says what.
pub(crate) fn look<R>(object: &Bound<'_, PyAny>, look: impl FnOnce(&TensorRef<'_>) -> Option<R>) -> Option<R> {
    let known = tensor_class(object)?;
    let plain = |tensor: &DLTensor| {
        // SAFETY: PyTorch's own, unchanged while no Python code runs.
        let tensor = unsafe { TensorRef::from_raw(tensor) }.ok()?;
        (tensor.device() == DLDevice::CPU).then_some(tensor).and_then(|tensor| look(&tensor))
    };
    known.api.with_tensor_view_no_sync(object.as_borrowed(), |tensor, _| plain(tensor)).ok()?
}

/// The class of an object that is exactly a `torch.Tensor`: not a parameter, nor what stands for other tensors.
fn tensor_class(object: &Bound<'_, PyAny>) -> Option<&'static TensorClass> {
    static CLASS: PyOnceLock<TensorClass> = PyOnceLock::new();
    let py = object.py();
    let class = object.get_type();
    let known = match CLASS.get(py) {
        Some(known) => known,
        None => {
            let is_it = class.name().ok()? == "Tensor" && class.module().ok()? == "torch";
            let api = is_it.then(|| ExchangeApi::from_object(object.as_borrowed()).ok().flatten())??;
            CLASS.get_or_init(py, || TensorClass { class: class.clone().unbind(), api })
        }
    };
    class.is(&known.class).then_some(known)
}
