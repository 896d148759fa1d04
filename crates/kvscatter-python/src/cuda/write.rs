//! A prepared write and its status.

use std::sync::Arc;

use kvscatter::{ElementType, Layout};
use kvscatter_cuda::{Cuda, Indices, Status, StatusWords, Stream};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use super::array::{DeviceArray, Held};
use super::operator::Operator;
use super::stream::{self, Current};
use super::{driver, error};
use crate::dlpack::library;
use crate::failure::{Failure, STATUS_BYTES};
use crate::torch;

/// A write whose shapes and addresses are checked: prepare it once, launch it every step, or capture it in a CUDA graph.
///
/// It keeps the arrays alive that it was prepared with. Any number of threads may launch it, if its device is current on
/// them.
#[pyclass(frozen, module = "kvscatter.cuda", name = "CudaWrite")]
pub(crate) struct CudaWrite(Arc<Launch>);

/// What launches of a write have found since the status was cleared: 16 bytes on the device.
#[pyclass(frozen, module = "kvscatter.cuda", name = "CudaStatus")]
pub(crate) struct CudaStatus(Arc<Launch>);

/// All that a launch needs.
struct Launch {
    cuda: Cuda,
    operator: &'static Operator,
    write: kvscatter_cuda::Write,
    indices: Indices,
    status: Status,
    device: i32,
    current: Current,
    /// PyTorch's tensors among what is written, which count their writes.
    counted: Py<PyTuple>,
    #[expect(dead_code, reason = "held, not read: it keeps the memory where it is")]
    held: Vec<Held>,
}

#[pymethods]
impl CudaWrite {
    /// Launches the write, on the stream that is current in the library of the caches, or on this one. It waits for
    /// nothing and allocates nothing on the device, and may be captured in a CUDA graph: what the arrays hold counts when
    /// the graph runs.
    ///
    /// Args:
    ///     stream: A stream of PyTorch, CuPy or another library with `__cuda_stream__`, or its address; the caller orders
    ///         it behind whatever fills the arrays. Needed where the first cache is of neither library, and no array
    ///         names a stream in `__cuda_array_interface__`.
    ///
    /// Raises:
    ///     CudaError: The driver refuses, possibly for the fault of an earlier launch of anybody's.
    ///     DeviceError: Another device is current on this thread than when the write was prepared.
    ///     OptionError: There is no stream.
    #[pyo3(signature = (stream=None))]
    fn launch(&self, py: Python<'_>, stream: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        let Launch { write, indices, status, counted, .. } = &*self.0;
        let stream = self.0.stream(py, stream)?;
        self.0.check_current(py)?;
        // SAFETY: the arrays lie on the device that is current, and this write holds them; what they are was checked when
        // it was prepared. With another context of the device the driver refuses the kernel. That a stream is one, and
        // that nobody else uses the caches meanwhile, is the caller's part, as in the arrays' own libraries.
        let launched = py.detach(|| unsafe { write.launch(stream, indices, Some(*status)) });
        launched.map_err(|refused| self.0.raise(py, refused))?;
        torch::note_all_written(counted.bind(py))
    }

    /// Where launches report bad indices.
    #[getter]
    fn status(&self) -> CudaStatus {
        CudaStatus(Arc::clone(&self.0))
    }

    /// Bytes that a thread of the device moves at a time: 16 where addresses, strides and rows allow it. `None` where rows
    /// of 4-bit elements straddle bytes.
    #[getter]
    fn width(&self) -> Option<usize> {
        self.0.write.width()
    }

    fn __repr__(&self) -> String {
        let Launch { operator, device, .. } = &*self.0;
        format!("<kvscatter.cuda.Write: {} into {} on cuda:{device}>", operator.update, operator.written)
    }
}

#[pymethods]
impl CudaStatus {
    /// Raises the error that the CPU raises, for the first bad index that launches have found; does nothing if they have
    /// found none. It waits for the legacy default stream and for no other: call it where the launches have run, such as
    /// behind `torch.cuda.synchronize()`. The status stays as it is until it is cleared.
    ///
    /// Raises:
    ///     PositionError: As `tensor_scatter_` and its like; of kind `bad_indices` if the lists hold other values by now.
    ///     CudaError: The driver refuses, possibly for the fault of an earlier launch of anybody's.
    ///     DeviceError: Another device is current on this thread.
    fn check(&self, py: Python<'_>) -> PyResult<()> {
        let Launch { write, indices, status, .. } = &*self.0;
        self.0.check_current(py)?;
        // SAFETY: status and lists are held, on the device that is current.
        py.detach(|| unsafe { write.check(*status, indices) }).map_err(|refused| self.0.raise(py, refused))
    }

    /// The status itself: how many samples had a bad index, each counted once per launch; the first of them, with bit 31
    /// for a bad length, bits 31 and 30 for bad rows of a packed update, all bits for the layer; and the bad value. It
    /// waits as `check` does.
    fn read(&self, py: Python<'_>) -> PyResult<(u32, u32, i64)> {
        let Launch { cuda, status, .. } = &*self.0;
        self.0.check_current(py)?;
        // SAFETY: as above.
        let words = py.detach(|| unsafe { cuda.read(*status) });
        let StatusWords { bad_samples, first_sample, first_value } =
            words.map_err(|refused| self.0.raise(py, refused))?;
        Ok((bad_samples, first_sample, first_value))
    }

    /// Clears the status, in the order of the stream: the one that `launch` takes.
    #[pyo3(signature = (stream=None))]
    fn clear(&self, py: Python<'_>, stream: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        let Launch { cuda, status, .. } = &*self.0;
        let stream = self.0.stream(py, stream)?;
        self.0.check_current(py)?;
        // SAFETY: the status is held, on the device that is current; the stream is the caller's part.
        py.detach(|| unsafe { cuda.clear(*status, stream) }).map_err(|refused| self.0.raise(py, refused))
    }
}

impl Launch {
    fn stream(&self, py: Python<'_>, given: Option<&Bound<'_, PyAny>>) -> PyResult<Stream> {
        given.map_or_else(|| self.current.stream(py), stream::given)
    }

    fn check_current(&self, py: Python<'_>) -> PyResult<()> {
        let current = self.cuda.device().map_err(|refused| self.raise(py, refused))?;
        if current == self.device {
            return Ok(());
        }
        Err(Failure::NotCurrent { argument: self.operator.written, device: self.device, current }.into())
    }

    fn raise(&self, py: Python<'_>, refused: kvscatter_cuda::Error) -> PyErr {
        error::raise(py, self.operator, refused)
    }
}

/// What the shapes of a write are checked by.
pub(crate) struct Shapes<'a> {
    pub(crate) element: ElementType,
    pub(crate) cache: Layout<'a>,
    pub(crate) update: Layout<'a>,
}

impl<'a> Shapes<'a> {
    pub(crate) fn of(cache: &'a DeviceArray<'_>, update: &'a DeviceArray<'_>) -> Self {
        let (cache, update) = (&cache.array.form, &update.array.form);
        Self { element: cache.element.stored(), cache: cache.layout(), update: update.layout() }
    }
}

/// The lists that an operator has, as they are given.
#[derive(Default)]
pub(crate) struct Lists<'a, 'py> {
    pub(crate) starts: Option<&'a Bound<'py, PyAny>>,
    pub(crate) lengths: Option<&'a Bound<'py, PyAny>>,
    pub(crate) spans: Option<&'a Bound<'py, PyAny>>,
    pub(crate) layer: Option<&'a Bound<'py, PyAny>>,
}

impl<'py> Lists<'_, 'py> {
    /// Where they lie, and the arrays.
    pub(crate) fn read(self, operator: &Operator) -> PyResult<(Indices, Vec<DeviceArray<'py>>)> {
        let read = |list: Option<&Bound<'py, PyAny>>, argument| {
            list.map(|list| DeviceArray::read(list, argument)).transpose()
        };
        let starts = read(self.starts, operator.starts)?;
        let lengths = read(self.lengths, "lengths")?;
        let spans = read(self.spans, operator.spans)?;
        let layer = read(self.layer, "layerId")?;
        let mut indices = match &starts {
            Some(starts) => Indices::new(starts.list()?),
            None => Indices::zero(),
        };
        if let Some(lengths) = &lengths {
            indices = indices.lengths(lengths.list()?);
        }
        if let Some(spans) = &spans {
            indices = indices.spans(spans.list()?);
        }
        if let Some(layer) = &layer {
            indices = indices.layer(layer.layer()?);
        }
        Ok((indices, [starts, lengths, spans, layer].into_iter().flatten().collect()))
    }
}

/// A write without its status.
pub(crate) struct Parts<'py> {
    pub(crate) operator: &'static Operator,
    pub(crate) write: kvscatter_cuda::Write,
    pub(crate) lists: (Indices, Vec<DeviceArray<'py>>),
}

impl<'py> Parts<'py> {
    /// `written` are the caches or presents, one at least, and `read` the other tensors.
    pub(crate) fn finish(
        self,
        status: Option<&Bound<'py, PyAny>>,
        written: Vec<DeviceArray<'py>>,
        read: Vec<DeviceArray<'py>>,
        first: &Bound<'py, PyAny>,
    ) -> PyResult<CudaWrite> {
        let py = first.py();
        let Self { operator, write, lists: (indices, lists) } = self;
        let raise = |refused| error::raise(py, operator, refused);
        let cuda = driver(py)?;
        let device = cuda.device().map_err(raise)?;
        let made = if status.is_none() { Some(new_status(first)?) } else { None };
        let words = DeviceArray::written(status.or(made.as_ref()).unwrap_or(first), "status")?;
        for array in lists.iter().chain([&words]) {
            array.check_on(device)?;
        }
        let memory = words.dense()?;
        if memory.bytes != STATUS_BYTES {
            return Err(Failure::StatusBytes { got: memory.bytes }.into());
        }
        let status = Status::at(memory.address).map_err(raise)?;
        write.check_indices(&indices, Some(status)).map_err(raise)?;
        let named = stream::named(written.iter().chain(&read).chain(&lists));
        let current = Current::of(first, device, named)?;
        if made.is_some() {
            // Launches may be on other streams, which would add to what is not zero yet. Nobody else knows of it.
            current.wait(py)?;
        }
        let tensors = written.iter().map(|array| &array.object);
        let counted = tensors.filter(|object| library(object).is_ok_and(|name| name == "torch"));
        let counted = PyTuple::new(py, counted.collect::<Vec<_>>())?.unbind();
        let held = written.into_iter().chain(read).chain(lists).chain([words]);
        let held = held.map(DeviceArray::hold).collect();
        let cuda = cuda.clone();
        let launch = Launch { cuda, operator, write, indices, status, device, current, counted, held };
        Ok(CudaWrite(Arc::new(launch)))
    }
}

/// A status by the library of the caches, on their device: zeros in the order of its current stream.
fn new_status<'py>(cache: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
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
    py.import(&*library)?.call_method("zeros", (2,), Some(&keywords))
}
