//! Imports tensors of other libraries through DLPack, without a copy. The libraries' own interfaces are used
//! only for properties that DLPack cannot express.

use dlpark::DlpackFlags;
use dlpark::ffi::{DLDevice, DLDeviceType, DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION};
use dlpark::python::consumer::exchange::ExchangeApi;
use dlpark::python::{ImportedDlpack, dlpack_device, from_dlpack};
use dlpark::tensor::TensorRef;
use pyo3::exceptions::{
    PyAttributeError, PyBufferError, PyOverflowError, PyRuntimeError, PyTypeError, PyValueError,
};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyType};

use crate::array::{Access, Array, Form, Owner};
use crate::element::Element;
use crate::failure::{Failure, MemoryKind, class_name};
use crate::lazy::Lazy;
use crate::torch;

pub(crate) fn array<'py>(
    object: &Bound<'py, PyAny>,
    argument: &'static str,
    access: Access,
) -> PyResult<Array<'py>> {
    check_library(object, argument, access, MemoryKind::Host)?;
    let tensor = import(object, argument, MemoryKind::Host)?;
    described(object, tensor, argument, access, MemoryKind::Host).map(|(array, _)| array)
}

/// Imports an array on a CUDA device, and returns the number of the device. No stream waits for another, see
/// [`capsule`].
pub(crate) fn on_cuda<'py>(
    object: &Bound<'py, PyAny>,
    argument: &'static str,
    access: Access,
) -> PyResult<(Array<'py>, i32)> {
    check_library(object, argument, access, MemoryKind::Cuda)?;
    let tensor = import(object, argument, MemoryKind::Cuda)?;
    described(object, tensor, argument, access, MemoryKind::Cuda)
}

/// Imports the same array again if its library can do so without running Python code.
pub(crate) fn reimport<'py>(
    object: &Bound<'py, PyAny>,
    argument: &'static str,
) -> PyResult<Option<Array<'py>>> {
    let tensor = exchanged(object, argument)?;
    let Some(tensor) = tensor else { return Ok(None) };
    described(object, tensor, argument, Access::Read, MemoryKind::Host).map(|(array, _)| Some(array))
}

fn described<'py>(
    object: &Bound<'py, PyAny>,
    tensor: ImportedDlpack,
    argument: &'static str,
    access: Access,
    kind: MemoryKind,
) -> PyResult<(Array<'py>, i32)> {
    if access == Access::Write && tensor.flags().contains(DlpackFlags::READ_ONLY) {
        return Err(Failure::ReadOnly { argument }.into());
    }
    if access == Access::Write && tensor.flags().contains(DlpackFlags::IS_COPIED) {
        return Err(Failure::Tensor { argument, why: "is exported as a copy: a write would be lost" }.into());
    }
    let unreadable = |why: dlpark::tensor::Error| match why {
        // PyTorch exports tensors without memory with the address 0.
        dlpark::tensor::Error::NullData if is_of(object, "torch") => {
            let class = class_name(&object.get_type());
            let advice = match &*class {
                "torch.Tensor" | "torch.nn.parameter.Parameter" => {
                    "its storage has 0 bytes, so give it memory again before the write"
                }
                // The tensors of a trace have other classes.
                _ => "such tensors are for torch.ops.kvscatter, which kvscatter.torch registers",
            };
            Failure::NoMemory { argument, class, advice }
        }
        why => Failure::Export { argument, why: why.to_string() },
    };
    let described = tensor.validate().map_err(unreadable)?;
    let device = described.device();
    check_device(device, argument, kind)?;
    let element = Element::of_dlpack(described.dtype(), tensor.flags(), argument)?;
    let form = Form::new(element, shape(&described), strides(&described).map_err(unreadable)?);
    // SAFETY: DLPack requires of an exporter that the offset leads to the first element.
    let data = unsafe { described.offset_bytes_ptr() }.map_err(unreadable)?;
    let owner = Owner::Dlpack { object: object.clone(), tensor };
    Ok((Array::new(argument, form, data.cast_mut(), owner), device.device_id))
}

fn shape(tensor: &TensorRef<'_>) -> crate::array::Shape {
    // `validate` has checked that no size is negative.
    tensor.shape().iter().map(|&size| usize::try_from(size).unwrap_or(usize::MAX)).collect()
}

fn strides(tensor: &TensorRef<'_>) -> Result<crate::array::Strides, dlpark::tensor::Error> {
    let strides = tensor.strides_or_compact()?;
    Ok(strides.iter().map(|&stride| isize::try_from(stride).unwrap_or(isize::MAX)).collect())
}

/// Imports through the C functions of DLPack 1.3 if the library has them, because the Python functions take
/// microseconds.
fn exchanged(object: &Bound<'_, PyAny>, argument: &'static str) -> PyResult<Option<ImportedDlpack>> {
    let object = object.as_borrowed();
    let refused = |error| refused(&object, argument, error);
    let Some(api) = ExchangeApi::from_object(object).map_err(refused)? else { return Ok(None) };
    let tensor = api.import_managed_no_sync(object).map_err(refused)?;
    Ok(Some(ImportedDlpack::Versioned(tensor.into_parts().0)))
}

fn import(object: &Bound<'_, PyAny>, argument: &'static str, kind: MemoryKind) -> PyResult<ImportedDlpack> {
    if let Some(tensor) = exchanged(object, argument)? {
        return Ok(tensor);
    }
    let object = object.as_borrowed();
    match dlpack_device(object) {
        Ok(device) => check_device(device, argument, kind)?,
        Err(error) if error.is_instance_of::<PyAttributeError>(object.py()) => {
            return Err(Failure::NotAnArray { argument, class: class_name(&object.get_type()) }.into());
        }
        Err(error) => return Err(refused(&object, argument, error)),
    }
    let capsule = capsule(&object, kind).map_err(|error| refused(&object, argument, error))?;
    from_dlpack(capsule.as_borrowed(), None, None).map_err(|error| refused(&object, argument, error))
}

/// Calls `__dlpack__` without a copy. If the library rejects a keyword, the call is repeated without it: a
/// library without `copy` never copies, and one without `max_version` has no flags.
///
/// On a device, the stream -1 means that no stream waits, because nothing is read before a launch and the
/// caller has ordered the stream of the launch. JAX would take -1 for an address, so it gets no stream and
/// waits itself.
fn capsule<'py>(object: &Bound<'py, PyAny>, kind: MemoryKind) -> PyResult<Bound<'py, PyAny>> {
    const NO_STREAM_WAITS: i32 = -1;
    let py = object.py();
    let plain = PyDict::new(py);
    if kind == MemoryKind::Cuda && !matches!(&*library(object)?, "jax" | "jaxlib") {
        plain.set_item("stream", NO_STREAM_WAITS)?;
    }
    let keywords = plain.copy()?;
    keywords.set_item("max_version", (DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION))?;
    let versioned = keywords.copy()?;
    keywords.set_item("copy", false)?;
    let method = object.getattr(intern!(py, "__dlpack__"))?;
    for words in [keywords, versioned] {
        match method.call((), Some(&words)) {
            Err(error) if error.is_instance_of::<PyTypeError>(py) => {}
            answer => return answer,
        }
    }
    method.call((), Some(&plain))
}

/// Converts the exception of a library that cannot export. Only the first line is kept, because PyTorch adds
/// a stack trace.
fn refused(object: &Bound<'_, PyAny>, argument: &'static str, error: PyErr) -> PyErr {
    let py = object.py();
    let is_a_refusal = error.is_instance_of::<PyBufferError>(py)
        || error.is_instance_of::<PyRuntimeError>(py)
        || error.is_instance_of::<PyTypeError>(py)
        || error.is_instance_of::<PyOverflowError>(py)
        || error.is_instance_of::<PyValueError>(py);
    if !is_a_refusal {
        return error;
    }
    let why = error.value(py).to_string();
    Failure::Export { argument, why: why.lines().next().unwrap_or_default().to_owned() }.into()
}

fn check_device(device: DLDevice, argument: &'static str, kind: MemoryKind) -> Result<(), Failure> {
    let DLDevice { device_type, device_id } = device;
    let (name, got) = match device_type {
        DLDeviceType::CPU | DLDeviceType::CUDAHOST => ("the CPU".to_owned(), MemoryKind::Host),
        DLDeviceType::CUDA => (format!("cuda:{device_id}"), MemoryKind::Cuda),
        DLDeviceType::CUDAMANAGED => (format!("cuda:{device_id} (managed memory)"), MemoryKind::Cuda),
        DLDeviceType::ROCM | DLDeviceType::ROCMHOST => {
            let device = format!("rocm:{device_id} (AMD's, which is not supported)");
            return Err(Failure::Device { argument, device, is: None, wanted: kind });
        }
        _ => {
            let device = format!("a device of DLPack's type {} (number {device_id})", device_type.0);
            return Err(Failure::Device { argument, device, is: None, wanted: kind });
        }
    };
    if got == kind {
        return Ok(());
    }
    Err(Failure::Device { argument, device: name, is: Some(got), wanted: kind })
}

/// Checks properties that DLPack cannot express. An array can be immutable although its memory is not, and
/// PyTorch tensors have properties besides their memory.
fn check_library(
    object: &Bound<'_, PyAny>,
    argument: &'static str,
    access: Access,
    kind: MemoryKind,
) -> PyResult<()> {
    let library = library(object)?;
    let immutable = match &*library {
        // Other objects of PyTorch, such as its shapes, are not arrays.
        "torch" if object.hasattr(intern!(object.py(), "__dlpack__"))? => {
            return torch::check(object, argument);
        }
        "jax" | "jaxlib" if is_tracer(object)? => {
            let class = class_name(&object.get_type());
            let advice = "it is a tracer, and kvscatter works outside of jit, grad and vmap";
            return Err(Failure::NoMemory { argument, class, advice }.into());
        }
        "jax" | "jaxlib" => "JAX",
        "tensorflow" => "TensorFlow",
        "mlx" => "MLX",
        _ => return Ok(()),
    };
    match access {
        Access::Read => Ok(()),
        Access::Write => Err(Failure::Immutable { argument, library: immutable, kind }.into()),
    }
}

/// Returns `true` if the object is a tracer, which JAX passes to a function while it compiles or transforms
/// the function.
fn is_tracer(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    static TRACER: Lazy<Py<PyType>> = Lazy::new();
    object.is_instance(TRACER.import(object.py(), "jax.core", "Tracer")?)
}

fn is_of(object: &Bound<'_, PyAny>, name: &str) -> bool {
    library(object).is_ok_and(|library| library == name)
}

/// Returns the package of an object's class.
pub(crate) fn library(object: &Bound<'_, PyAny>) -> PyResult<String> {
    let module = object.get_type().getattr(intern!(object.py(), "__module__"))?;
    let module: String = module.extract().unwrap_or_default();
    Ok(module.split('.').next().unwrap_or_default().to_owned())
}
