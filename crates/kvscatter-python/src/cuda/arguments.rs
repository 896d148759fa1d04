//! Prepares a write from the arguments of a call, for every operator, in place and functional.
//!
//! Several errors are reported in this order:
//!
//! 1. the first argument that is not an array on a CUDA device
//! 2. types, in the order of the call
//! 3. shapes, in the order of the call
//! 4. devices, in the order of the call
//! 5. limits of the driver and of the memory

use kvscatter::{ElementType, Layout, Prepared};
use kvscatter_cuda::{BufferPair, Cuda, DeviceStatus, PresentBuffers};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use super::array::DeviceArray;
use super::error;
use super::lists::ListArguments;
use super::operator::{ONNX, Operator, PrepareFn};
use super::stream::{self, Current};
use super::write::{CudaWrite, Launch};
use crate::dlpack::library;
use crate::failure::{Failure, STATUS_BYTES, class_name};
use crate::lazy::Lazy;
use crate::prepared_scatter;

/// The arguments that every call has besides its tensors.
pub(super) struct CommonArguments<'a, 'py> {
    pub(super) lists: ListArguments<'a, 'py>,
    pub(super) skip_all: bool,
    pub(super) status: Option<&'a Bound<'py, PyAny>>,
}

/// The shapes that a write is checked with.
pub(super) struct Shapes<'a> {
    pub(super) element: ElementType,
    pub(super) cache: Layout<'a>,
    pub(super) update: Layout<'a>,
}

/// Prepares a write of these pairs or triples.
pub(super) fn prepare<'py>(
    operator: &'static Operator,
    tensors: &Bound<'py, PyAny>,
    CommonArguments { lists, skip_all, status }: CommonArguments<'_, 'py>,
    check: impl FnOnce(Shapes<'_>) -> Result<Prepared, kvscatter::Error>,
) -> PyResult<CudaWrite> {
    let py = tensors.py();
    let raise = |refused| error::raise(py, operator, refused);

    let rows = Row::read(operator, tensors)?;
    let [first, ..] = &*rows else {
        return Err(Failure::NoPairs { argument: operator.make.argument() }.into());
    };
    let lists = lists.read(operator)?;
    let status = status.map(|status| DeviceArray::written(status, "status")).transpose()?;

    first.check_types(&rows)?;
    lists.check_types()?;

    first.check_forms(&rows)?;
    let prepared = check(first.shapes()).map_err(|refused| raise(refused.into()))?;
    let indices = lists.indices()?;
    status.as_ref().map(status_address).transpose()?;

    let cuda = driver(py)?;
    let device = cuda.device().map_err(raise)?;
    for array in rows.iter().flat_map(Row::iter).chain(lists.iter()).chain(&status) {
        array.check_on(device)?;
    }

    let write = make(py, cuda, operator, &prepared, &rows).map_err(raise)?.skip_all(skip_all);
    let cache = &first.written().object;
    let current = Current::choose(
        cache,
        device,
        stream::streams_of(rows.iter().flat_map(Row::iter).chain(lists.iter())),
    )?;
    let status = match status {
        Some(status) => status,
        None => new_status(cache, device, &current)?,
    };
    let memory = DeviceStatus::at(status_address(&status)?).map_err(raise)?;
    write.check_indices(&indices, Some(memory)).map_err(raise)?;

    let counted = tensors_of_torch(py, &rows)?;
    let array = status.object.clone().unbind();
    let kept_alive = rows.into_iter().flat_map(Row::into_arrays).chain(lists.into_arrays()).chain([status]);
    let kept_alive = kept_alive.map(DeviceArray::keep_alive).collect();
    let cuda = cuda.clone();
    let launch = Launch {
        cuda,
        operator,
        write,
        indices,
        status: memory,
        array,
        device,
        current,
        counted,
        kept_alive,
    };
    Ok(launch.into())
}

/// Returns PyTorch's tensors among the written arrays. PyTorch counts their writes.
fn tensors_of_torch(py: Python<'_>, rows: &[Row<'_>]) -> PyResult<Py<PyTuple>> {
    let written = rows.iter().map(|row| &row.written().object);
    let counted = written.filter(|object| library(object).is_ok_and(|name| name == "torch"));
    Ok(PyTuple::new(py, counted.collect::<Vec<_>>())?.unbind())
}

/// A cache and its update, or a past, its update and its present.
struct Row<'py> {
    cache: DeviceArray<'py>,
    update: DeviceArray<'py>,
    present: Option<DeviceArray<'py>>,
}

impl<'py> Row<'py> {
    fn read(operator: &Operator, tensors: &Bound<'py, PyAny>) -> PyResult<Vec<Self>> {
        if let PrepareFn::InPlace(_) = operator.make {
            let row = |(cache, update): &(_, _)| {
                let cache = DeviceArray::written(cache, operator.cache)?;
                Ok(Self { cache, update: DeviceArray::read(update, operator.update)?, present: None })
            };
            return prepared_scatter::pairs(tensors)?.iter().map(row).collect();
        }
        let row = |(past, update, present): &(_, _, _)| {
            let (cache, update) =
                (DeviceArray::read(past, operator.cache)?, DeviceArray::read(update, operator.update)?);
            Ok(Self { cache, update, present: Some(DeviceArray::written(present, operator.written)?) })
        };
        triples(tensors)?.iter().map(row).collect()
    }

    /// Iterates over the arrays in the order of the call.
    fn iter(&self) -> impl Iterator<Item = &DeviceArray<'py>> {
        [&self.cache, &self.update].into_iter().chain(&self.present)
    }

    fn into_arrays(self) -> impl Iterator<Item = DeviceArray<'py>> {
        [self.cache, self.update].into_iter().chain(self.present)
    }

    fn written(&self) -> &DeviceArray<'py> {
        self.present.as_ref().unwrap_or(&self.cache)
    }

    fn shapes(&self) -> Shapes<'_> {
        let (cache, update) = (&self.cache.array.form, &self.update.array.form);
        Shapes { element: cache.element.stored(), cache: cache.layout(), update: update.layout() }
    }

    /// Checks that all rows have the types of this one, whose arrays must have one type.
    fn check_types(&self, rows: &[Self]) -> Result<(), Failure> {
        self.update.array.check_same_element(&self.cache.array)?;
        for (place, row) in rows.iter().enumerate() {
            self.cache.array.form.check_prepared_type(&row.cache.array, place)?;
            self.update.array.form.check_prepared_type(&row.update.array, place)?;
            if let Some(present) = &row.present {
                present.array.check_same_element(&self.cache.array)?;
            }
        }
        Ok(())
    }

    /// Checks that all rows have the shapes and strides of this one.
    fn check_forms(&self, rows: &[Self]) -> Result<(), Failure> {
        for (place, row) in rows.iter().enumerate() {
            self.cache.array.form.check_prepared(&row.cache.array, place)?;
            self.update.array.form.check_prepared(&row.update.array, place)?;
            if let Some(present) = &row.present {
                self.cache.array.form.check_out(&present.array)?;
            }
        }
        Ok(())
    }
}

/// The elements of a tuple of three.
type Triple<'py> = (Bound<'py, PyAny>, Bound<'py, PyAny>, Bound<'py, PyAny>);

fn triples<'py>(triples: &Bound<'py, PyAny>) -> PyResult<Vec<Triple<'py>>> {
    let triples = triples.try_iter()?.map(|triple| {
        let triple = triple?;
        let unfit = |_| Failure::Keyword {
            argument: "triples",
            class: class_name(&triple.get_type()),
            wanted: "tuples of a past, its update and its present",
        };
        Ok(triple.extract().map_err(unfit)?)
    });
    triples.collect()
}

/// Calls the driver, while other Python threads may run.
fn make(
    py: Python<'_>,
    cuda: &Cuda,
    operator: &Operator,
    prepared: &Prepared,
    rows: &[Row<'_>],
) -> Result<kvscatter_cuda::DeviceWrite, kvscatter_cuda::CudaError> {
    let geometry = prepared.geometry();
    let cache = |row: &Row<'_>| row.cache.buffer(geometry.cache_bytes());
    let update = |row: &Row<'_>| row.update.buffer(geometry.update_bytes());
    match operator.make {
        PrepareFn::InPlace(make) => {
            let pair = |row| BufferPair { cache: cache(row), update: update(row) };
            let pairs: Vec<_> = rows.iter().map(pair).collect();
            py.detach(|| make(cuda, prepared, &pairs))
        }
        PrepareFn::Present(make) => {
            let present = |row: &Row<'_>| row.written().buffer(geometry.present_bytes());
            let triple =
                |row| PresentBuffers { past: cache(row), update: update(row), present: present(row) };
            let triples: Vec<_> = rows.iter().map(triple).collect();
            py.detach(|| make(cuda, prepared, &triples))
        }
    }
}

/// Returns the address of a status, if it has the right size.
fn status_address(status: &DeviceArray<'_>) -> Result<u64, Failure> {
    let memory = status.dense()?;
    if memory.bytes == STATUS_BYTES {
        Ok(memory.address)
    } else {
        Err(Failure::StatusBytes { argument: "status", got: memory.bytes, expected: STATUS_BYTES })
    }
}

/// Allocates a status with the library of the caches, on their device. It is zero before any stream can
/// launch.
fn new_status<'py>(cache: &Bound<'py, PyAny>, device: i32, current: &Current) -> PyResult<DeviceArray<'py>> {
    let py = cache.py();
    let library = library(cache)?;
    let keywords = PyDict::new(py);
    match &*library {
        "torch" => {
            keywords.set_item("dtype", py.import("torch")?.getattr("int64")?)?;
            keywords.set_item("device", cache.getattr("device")?)?;
        }
        "cupy" => keywords.set_item("dtype", "int64")?,
        _ => return Err(Failure::Unknown { argument: "status", library }.into()),
    }
    let zeros = py.import(&*library)?.call_method("zeros", (2,), Some(&keywords))?;
    let status = DeviceArray::written(&zeros, "status")?;
    status.check_on(device)?;
    // Launches may be on other streams, which could otherwise add to the status before it is zero. No other
    // code uses the new status.
    current.wait(py)?;
    Ok(status)
}

/// Returns the driver of this machine. It is loaded when it is first needed.
pub(super) fn driver(py: Python<'_>) -> PyResult<&Cuda> {
    static DRIVER: Lazy<Cuda> = Lazy::new();
    DRIVER.get_or_try_make(py, || py.detach(Cuda::new).map_err(|refused| error::raise(py, &ONNX, refused)))
}
