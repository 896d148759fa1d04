//! A prepared write and its status.

use std::sync::Arc;

use kvscatter_cuda::{Cuda, DeviceCallIndices, DeviceStatus, Stream};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use super::array::KeptAlive;
use super::error;
use super::operator::Operator;
use super::status_words;
use super::stream::{self, Current};
use crate::failure::Failure;
use crate::torch;

/// A write whose shapes and addresses are checked: prepare it once, launch it every step, or capture it in a CUDA graph.
///
/// It keeps the arrays alive that it was prepared with. Any number of threads may launch it, if its device is current on
/// them.
#[pyclass(frozen, module = "kvscatter.cuda", name = "Write")]
pub(crate) struct CudaWrite(Arc<Launch>);

/// What launches of a write have found since the status was cleared: 16 bytes on the device.
#[pyclass(frozen, module = "kvscatter.cuda", name = "Status")]
pub(crate) struct CudaStatus(Arc<Launch>);

/// All that a launch needs.
pub(crate) struct Launch {
    pub(crate) cuda: Cuda,
    pub(crate) operator: &'static Operator,
    pub(crate) write: kvscatter_cuda::DeviceWrite,
    pub(crate) indices: DeviceCallIndices,
    pub(crate) status: DeviceStatus,
    /// Where it lies.
    pub(crate) array: Py<PyAny>,
    pub(crate) device: i32,
    pub(crate) current: Current,
    /// PyTorch's tensors among what is written, which count their writes.
    pub(crate) counted: Py<PyTuple>,
    #[expect(dead_code, reason = "kept alive, not read: it keeps the memory where it is")]
    pub(crate) kept_alive: Vec<KeptAlive>,
}

#[pymethods]
impl CudaWrite {
    /// Launches the write, on the stream that is current in the library of the caches, or on this one. It waits for
    /// nothing and allocates nothing on the device, and may be captured in a CUDA graph: what the arrays hold counts when
    /// the graph runs.
    ///
    /// Args:
    ///     stream: A stream of PyTorch, CuPy or another library with `__cuda_stream__`, or its address; the caller orders
    ///         it after the work that fills the arrays. Needed where the first cache is of neither library, and no array
    ///         names a stream in `__cuda_array_interface__`.
    ///
    /// Raises:
    ///     CudaError: The driver refuses, possibly for the fault of any earlier launch.
    ///     DeviceError: Another device is current on this thread than when the write was prepared.
    ///     OptionError: There is no stream.
    #[pyo3(signature = (stream=None))]
    fn launch(&self, py: Python<'_>, stream: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        let Launch { write, indices, status, counted, .. } = &*self.0;
        let stream = self.0.stream(py, stream)?;
        self.0.check_current(py)?;
        // SAFETY: the arrays lie on the device that is current (`check_current`), this write keeps them alive, and their
        // sizes were checked when it was prepared. With another context of the device the driver refuses the kernel. As in
        // the arrays' own libraries, `stream` must be a stream of that device, and the Python program orders other uses of
        // the caches.
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
    /// after `torch.cuda.synchronize()`. The status stays as it is until it is cleared.
    ///
    /// Args:
    ///     words: The status's words, as `read` returns them, or a copy of `array` that the caller has made and waited for:
    ///         16 bytes on the CPU. Nothing is read from the device then, and no driver is asked. What else belongs to the
    ///         error is not known: of a length all rows are taken, or the kind is `bad_indices`.
    ///
    /// Raises:
    ///     PositionError: As `tensor_scatter_` and its like; of kind `bad_indices` if the lists hold other values by now.
    ///     CudaError: The driver refuses, possibly for the fault of any earlier launch.
    ///     DeviceError: Another device is current on this thread; or `words` lie on one.
    ///     ShapeError: `words` of another size.
    #[pyo3(signature = (words=None))]
    fn check(&self, py: Python<'_>, words: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        let Launch { write, indices, status, .. } = &*self.0;
        if let Some(words) = words {
            return write
                .check_words(status_words::from_python(words)?)
                .map_err(|refused| self.0.raise(py, refused));
        }
        self.0.check_current(py)?;
        // SAFETY: this write keeps the status and the lists alive, and they lie on the device that is current
        // (`check_current`). The Python program calls this when the launches have run, as the docstring asks.
        py.detach(|| unsafe { write.check(*status, indices) }).map_err(|refused| self.0.raise(py, refused))
    }

    /// The status itself: how many samples had a bad index, each counted once per launch; the first of them, with bit 31
    /// for a bad length, bits 31 and 30 for bad rows of a packed update, all bits for the layer; and the bad value. It
    /// waits as `check` does.
    fn read<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let Launch { cuda, status, .. } = &*self.0;
        self.0.check_current(py)?;
        // SAFETY: this write keeps the status alive, and it lies on the device that is current (`check_current`). The
        // Python program calls this when the launches have run, as the docstring asks.
        let words = py.detach(|| unsafe { cuda.read(*status) });
        status_words::to_python(py, words.map_err(|refused| self.0.raise(py, refused))?)
    }

    /// The array of 16 bytes that it lies in: what was given as `status`, or what PyTorch or CuPy has made, two int64.
    /// To poll without waiting, copy it on another stream and call `check` with the copy.
    #[getter]
    fn array(&self, py: Python<'_>) -> Py<PyAny> {
        self.0.array.clone_ref(py)
    }

    /// Clears the status, in the order of the stream: the one that `launch` takes.
    #[pyo3(signature = (stream=None))]
    fn clear(&self, py: Python<'_>, stream: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        let Launch { cuda, status, .. } = &*self.0;
        let stream = self.0.stream(py, stream)?;
        self.0.check_current(py)?;
        // SAFETY: this write keeps the status alive, and it lies on the device that is current (`check_current`). As in
        // the array's own library, `stream` must be a stream of that device.
        py.detach(|| unsafe { cuda.clear(*status, stream) }).map_err(|refused| self.0.raise(py, refused))
    }

    fn __repr__(&self) -> String {
        let Launch { operator, device, .. } = &*self.0;
        let Operator { update, written, .. } = operator;
        format!("<kvscatter.cuda.Status: of {update} into {written} on cuda:{device}>")
    }
}

impl From<Launch> for CudaWrite {
    fn from(launch: Launch) -> Self {
        Self(Arc::new(launch))
    }
}

impl Launch {
    fn stream(&self, py: Python<'_>, given: Option<&Bound<'_, PyAny>>) -> PyResult<Stream> {
        given.map_or_else(|| self.current.stream(py), stream::from_python)
    }

    fn check_current(&self, py: Python<'_>) -> PyResult<()> {
        let current = self.cuda.device().map_err(|refused| self.raise(py, refused))?;
        if current == self.device {
            return Ok(());
        }
        Err(Failure::NotCurrent { argument: self.operator.written, device: self.device, current }.into())
    }

    fn raise(&self, py: Python<'_>, refused: kvscatter_cuda::CudaError) -> PyErr {
        error::raise(py, self.operator, refused)
    }
}
