//! Allocates new arrays for functional writes, in the library of the past cache.

use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::sync::Arc;

use dlpark::ffi::{DLDevice, DLManagedTensor, DLManagedTensorVersioned};
use dlpark::metadata::Dynamic;
use dlpark::python::{DlpackExporter, ExportRequest, export_dlpack};
use dlpark::{DlpackFlags, Managed, ManagedTensorBase};
use pyo3::exceptions::{PyAttributeError, PyBufferError, PyMemoryError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::array::{Array, Form, Owner, Shape};
use crate::dlpack;
use crate::failure::Failure;

/// Returns a dense array of the past's shape and type, filled by `fill`.
pub(crate) fn present<'py>(
    object: &Bound<'py, PyAny>,
    past: &Array<'py>,
    fill: impl FnOnce(&Array<'py>) -> PyResult<()>,
) -> PyResult<Bound<'py, PyAny>> {
    like(object, past, &past.form.shape, fill)
}

/// Returns a dense array of this shape and of the type and the library of another array, filled by `fill`.
pub(crate) fn like<'py>(
    object: &Bound<'py, PyAny>,
    past: &Array<'py>,
    sizes: &Shape,
    fill: impl FnOnce(&Array<'py>) -> PyResult<()>,
) -> PyResult<Bound<'py, PyAny>> {
    let py = object.py();
    if past.numpy().is_some() {
        let keywords = PyDict::new(py);
        keywords.set_item("order", "C")?;
        keywords.set_item("subok", false)?;
        keywords.set_item("shape", PyTuple::new(py, sizes)?)?;
        let made = py.import("numpy")?.call_method("empty_like", (object,), Some(&keywords))?;
        fill(&Array::written(&made, OUT)?)?;
        return Ok(made);
    }
    let shape = PyTuple::new(py, sizes)?;
    if dlpack::library(object)? == "torch" {
        let made = object.call_method1("new_empty", (shape,))?;
        fill(&Array::written(&made, OUT)?)?;
        return Ok(made);
    }
    let no_namespace = |error: PyErr| {
        let why = "belongs to a library that cannot import a new array: pass out";
        let unknown = error.is_instance_of::<PyAttributeError>(py);
        if unknown { Failure::Tensor { argument: past.argument, why }.into() } else { error }
    };
    let namespace = object.call_method0(intern!(py, "__array_namespace__")).map_err(no_namespace)?;
    let memory = Memory::new(Form::dense(past.element(), sizes.clone()))?;
    fill(&Array::new(OUT, memory.form.clone(), memory.data(), Owner::Caller))?;
    namespace.call_method1("from_dlpack", (Bound::new(py, Exported(Arc::new(memory)))?,))
}

const OUT: &str = "out";

/// Memory that another library takes over. Its alignment is what libraries require to import memory without
/// a copy.
struct Memory {
    form: Form,
    lines: Vec<MaybeUninit<Line>>,
}

#[repr(align(64))]
struct Line(#[expect(dead_code, reason = "memory, reached by address")] [u8; 64]);

impl Memory {
    /// Allocates memory for a dense array.
    fn new(form: Form) -> PyResult<Self> {
        let bits = form.extent().wrapping_mul(form.element.bits());
        let count = bits.div_ceil(8 * size_of::<Line>());
        let mut lines: Vec<MaybeUninit<Line>> = Vec::new();
        lines.try_reserve_exact(count).map_err(|error| PyMemoryError::new_err(error.to_string()))?;
        // SAFETY: `try_reserve_exact` has reserved `count`, and `MaybeUninit<Line>` needs no initialisation.
        unsafe { lines.set_len(count) };
        Ok(Self { form, lines })
    }

    fn data(&self) -> *mut u8 {
        self.lines.as_ptr().cast_mut().cast()
    }
}

/// An object that only has `__dlpack__`, which exports the memory.
#[pyclass(frozen)]
struct Exported(Arc<Memory>);

#[pymethods]
impl Exported {
    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<&Bound<'py, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(u32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Py<PyAny>> {
        export_dlpack(self, py, ExportRequest::parse(stream, max_version, dl_device, copy)?)
    }

    fn __dlpack_device__(&self) -> (u32, i32) {
        (DLDevice::CPU.device_type.0, DLDevice::CPU.device_id)
    }
}

impl DlpackExporter for Exported {
    fn device(&self) -> DLDevice {
        DLDevice::CPU
    }

    fn flags(&self) -> DlpackFlags {
        let padded = self.0.form.element.is_padded();
        if padded { DlpackFlags::IS_SUBBYTE_TYPE_PADDED } else { DlpackFlags::empty() }
    }

    fn prepare_export(&self, _py: Python<'_>, _request: &ExportRequest<'_>) -> PyResult<()> {
        Ok(())
    }

    fn export_legacy(&self, _py: Python<'_>) -> PyResult<Managed<DLManagedTensor>> {
        self.managed()
    }

    fn export_versioned(&self, _py: Python<'_>) -> PyResult<Managed<DLManagedTensorVersioned>> {
        self.managed()
    }
}

impl Exported {
    fn managed<M: ManagedTensorBase>(&self) -> PyResult<Managed<M>> {
        let Memory { form, .. } = &*self.0;
        let refused = |error: &dyn std::error::Error| PyBufferError::new_err(error.to_string());
        let Some(dtype) = form.element.dlpack() else {
            return Err(PyBufferError::new_err("DLPack does not support strings"));
        };
        let metadata =
            Dynamic::compact(form.shape.as_slice()).prepare_as::<M>().map_err(|error| refused(&error))?;
        let mut tensor = metadata.initialize(Arc::clone(&self.0));
        tensor.set_data(self.0.data().cast::<c_void>());
        tensor.set_device(DLDevice::CPU);
        tensor.set_dtype(dtype);
        tensor.set_flags(self.flags()).map_err(|error| refused(&error))?;
        // SAFETY: The tensor owns a share of the memory, which is dense and of this type and shape. No code
        // here writes to the memory any more.
        Ok(unsafe { tensor.finish() })
    }
}
