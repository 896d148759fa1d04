//! PyTorch's tensors: their properties besides memory, and quick access to the memory.

use std::convert::Infallible;
use std::ffi::{c_int, c_void};

use dlpark::DlpackFlags;
use dlpark::ffi::{DLDevice, DLPACK_MAJOR_VERSION, DLPackExchangeAPI, DLTensor};
use dlpark::tensor::TensorRef;
use pyo3::exceptions::PyModuleNotFoundError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyCapsuleMethods, PyTuple, PyType};
use smallvec::SmallVec;

use crate::array::{Array, Form, Owner};
use crate::element::Element;
use crate::failure::Failure;
use crate::lazy::Lazy;

/// Checks for properties of a tensor that a write would ignore.
pub(crate) fn check(tensor: &Bound<'_, PyAny>, argument: &'static str) -> PyResult<()> {
    check_gradient(tensor, argument)?;
    check_values(tensor, argument)
}

/// Rejects a tensor whose gradient would be lost.
pub(crate) fn check_gradient(tensor: &Bound<'_, PyAny>, argument: &'static str) -> PyResult<()> {
    if tensor.getattr(intern!(tensor.py(), "requires_grad"))?.is_truthy()? {
        let why = "requires grad, but this write records no gradient: detach it, or use kvscatter.torch";
        return Err(Failure::Tensor { argument, why }.into());
    }
    if has_tangent(tensor)? {
        let why = "has a tangent, which this write would drop: unpack it, or use kvscatter.torch";
        return Err(Failure::Tensor { argument, why }.into());
    }
    Ok(())
}

/// Returns `true` if forward-mode differentiation is active and the tensor has a tangent.
fn has_tangent(tensor: &Bound<'_, PyAny>) -> PyResult<bool> {
    static FORWARD_AD: Lazy<Py<PyModule>> = Lazy::new();
    let py = tensor.py();
    let module = FORWARD_AD.get_or_try_make(py, || py.import("torch.autograd.forward_ad").map(Bound::unbind));
    let module = match module {
        Ok(module) => module.bind(py),
        // A module that calls itself PyTorch but has no forward mode has no tangents.
        Err(error) if error.is_instance_of::<PyModuleNotFoundError>(py) => return Ok(false),
        Err(error) => return Err(error),
    };
    // The level is checked first, because unpacking takes longer than writing a row. No tensor has a tangent
    // outside of a level.
    if module.getattr(intern!(py, "_current_level"))?.extract::<i64>()? < 0
        || !module.getattr(intern!(py, "_is_fwd_grad_enabled"))?.call0()?.is_truthy()?
    {
        return Ok(false);
    }
    let unpacked = module.getattr(intern!(py, "unpack_dual"))?.call1((tensor,))?;
    Ok(!unpacked.getattr(intern!(py, "tangent"))?.is_none())
}

/// Rejects a negated or conjugated view, whose values differ from its memory.
pub(crate) fn check_values(tensor: &Bound<'_, PyAny>, argument: &'static str) -> PyResult<()> {
    let py = tensor.py();
    let refuse = |why| Err(Failure::Tensor { argument, why }.into());
    if tensor.call_method0(intern!(py, "is_neg"))?.is_truthy()? {
        return refuse("is a negated view of its memory: resolve_neg() it first");
    }
    if tensor.call_method0(intern!(py, "is_conj"))?.is_truthy()? {
        return refuse("is a conjugated view of its memory: resolve_conj() it first");
    }
    Ok(())
}

/// Counts a write as PyTorch's own operators do, so that autograd notices that the old values it needs are
/// gone.
pub(crate) fn note_written(tensor: &Bound<'_, PyAny>) -> PyResult<()> {
    match increment(tensor)? {
        Increment::InC(increment) => increment.call1(tensor.py(), ((tensor,),)).map(drop),
        Increment::InPython(increment) => increment.call1(tensor.py(), (tensor,)).map(drop),
    }
}

/// Counts a write to each tensor of a tuple.
pub(crate) fn note_all_written(tensors: &Bound<'_, PyTuple>) -> PyResult<()> {
    let Ok(first) = tensors.get_item(0) else { return Ok(()) };
    match increment(&first)? {
        Increment::InC(increment) | Increment::InPython(increment) => {
            increment.call1(tensors.py(), (tensors,)).map(drop)
        }
    }
}

fn increment<'py>(tensor: &Bound<'py, PyAny>) -> PyResult<&'py Increment> {
    static INCREMENT: Lazy<Increment> = Lazy::new();
    INCREMENT.get_or_try_make(tensor.py(), || Increment::choose(tensor))
}

/// The function `torch.autograd.graph.increment_version`, or the C function that it calls, which takes half
/// the time.
enum Increment {
    InC(Py<PyAny>),
    InPython(Py<PyAny>),
}

impl Increment {
    /// Chooses the function. The C function is used only if it counts a write to this tensor by one, because
    /// another PyTorch may have a different function of that name.
    fn choose(tensor: &Bound<'_, PyAny>) -> PyResult<Self> {
        let py = tensor.py();
        let version = || tensor.getattr(intern!(py, "_version")).and_then(|version| version.extract::<u64>());
        let in_c = py.import("torch._C").and_then(|module| module.getattr("_increment_version"));
        if let (Ok(in_c), Ok(before)) = (in_c, version())
            && in_c.call1(((tensor,),)).is_ok()
            && version().is_ok_and(|after| after.checked_sub(before) == Some(1))
        {
            return Ok(Self::InC(in_c.unbind()));
        }
        let module = py.import("torch.autograd.graph")?;
        Ok(Self::InPython(module.getattr("increment_version")?.unbind()))
    }
}

/// The class `torch.Tensor` and the C function that describes a tensor, stored when the first tensor is
/// seen.
struct TensorClass {
    class: Py<PyType>,
    describe: Describe,
}

/// `DLPackDLTensorFromPyObjectNoSync`, which fills in a description that borrows from the tensor.
type Describe = unsafe extern "C" fn(object: *mut c_void, out: *mut DLTensor) -> c_int;

/// Calls `look` with a tensor of exactly this class, which is borrowed until Python code runs that gives it
/// other memory.
///
/// During a large write, other threads may do that with `set_`, `resize_` or `data`. They can do the same to
/// PyTorch's own operators, and a DLPack handle would not prevent it. Returns `None` if the object is not
/// such a tensor, if it is on another device, or if anything about it is unusual. An import by `dlpack` then
/// reports the problem.
pub(crate) fn look<R>(
    object: &Bound<'_, PyAny>,
    look: impl FnOnce(&TensorRef<'_>) -> Option<R>,
) -> Option<R> {
    let known = tensor_class(object)?;
    let mut tensor = DLTensor::default();
    // SAFETY: PyTorch provides this function for objects of its class, to which the object belongs. The
    // interpreter is attached, and `tensor` has room for the description.
    let status = unsafe { (known.describe)(object.as_ptr().cast(), &raw mut tensor) };
    if status != 0 {
        drop(PyErr::take(object.py()));
        return None;
    }
    // SAFETY: PyTorch has filled in the description, and the memory that it points to does not change while
    // no Python code runs.
    let tensor = unsafe { TensorRef::from_raw(&tensor) }.ok()?;
    if tensor.device() == DLDevice::CPU { look(&tensor) } else { None }
}

/// Returns tensors without an import, if all of them are plain tensors of the CPU. Their memory is looked at after all
/// Python code of the checks has run, so none has moved.
pub(crate) fn plain<'py, const N: usize>(
    tensors: [(&'static str, &Bound<'py, PyAny>); N],
) -> Option<[Array<'py>; N]> {
    for (argument, object) in tensors {
        tensor_class(object)?;
        check(object, argument).ok()?;
    }
    let mut arrays = SmallVec::<[_; N]>::new();
    for (argument, object) in tensors {
        let (form, data) = look(object, form)?;
        arrays.push(Array::new(argument, form, data, Owner::Torch(object.clone())));
    }
    arrays.into_inner().ok()
}

/// Returns the form of a tensor, and its first element.
fn form(tensor: &TensorRef<'_>) -> Option<(Form, *mut u8)> {
    let element = Element::of_dlpack(tensor.dtype(), DlpackFlags::empty(), "").ok()?;
    let shape = tensor.shape().iter().map(|size| usize::try_from(*size).ok()).collect::<Option<_>>()?;
    let strides =
        tensor.strides()?.iter().map(|stride| isize::try_from(*stride).ok()).collect::<Option<_>>()?;
    // SAFETY: PyTorch filled in the description, whose offset leads to the first element.
    let data = unsafe { tensor.offset_bytes_ptr() }.ok()?;
    Some((Form::new(element, shape, strides), data.cast_mut()))
}

/// Returns the class if the object is exactly a `torch.Tensor`, not a parameter and not a placeholder for
/// other tensors.
fn tensor_class(object: &Bound<'_, PyAny>) -> Option<&'static TensorClass> {
    static CLASS: Lazy<TensorClass> = Lazy::new();
    let py = object.py();
    let class = object.get_type();
    let known = match CLASS.get(py) {
        Some(known) => known,
        None if class.name().ok()? == "Tensor" && class.module().ok()? == "torch" => {
            let describe = describe(&class)?;
            let made = || Ok::<_, Infallible>(TensorClass { class: class.clone().unbind(), describe });
            CLASS.get_or_try_make(py, made).ok()?
        }
        None => return None,
    };
    class.is(&known.class).then_some(known)
}

/// Returns PyTorch's function from DLPack's C exchange table, if the table has a known version.
fn describe(class: &Bound<'_, PyType>) -> Option<Describe> {
    let capsule = class.getattr(intern!(class.py(), "__dlpack_c_exchange_api__")).ok()?;
    let capsule = capsule.cast_into::<PyCapsule>().ok()?;
    let table = capsule.pointer_checked(Some(c"dlpack_exchange_api")).ok()?.cast::<DLPackExchangeAPI>();
    // SAFETY: A capsule of this name points to a table that lives as long as the process, and whose header
    // is the same in every version.
    let header = unsafe { &(*table.as_ptr()).header };
    if header.version.major != DLPACK_MAJOR_VERSION {
        return None;
    }
    // SAFETY: A capsule of this name points to a table that lives as long as the process. It has the known
    // major version, whose first minor version already had this field.
    unsafe { (*table.as_ptr()).dltensor_from_py_object_no_sync }
}
