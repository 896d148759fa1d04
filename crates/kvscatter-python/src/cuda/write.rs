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

/// A write whose shapes and addresses have been checked. It is prepared once, then launched in every step or
/// captured in a CUDA graph.
///
/// It keeps its arrays alive. Any number of threads may launch it, if its device is current on them.
#[pyclass(frozen, module = "kvscatter.cuda", name = "Write")]
pub(crate) struct CudaWrite(Arc<Launch>);

/// The bad indices that launches of a write have counted since the status was cleared, in 16 bytes on the
/// device.
#[pyclass(frozen, module = "kvscatter.cuda", name = "Status")]
pub(crate) struct CudaStatus(Arc<Launch>);

/// Everything that a launch needs.
pub(crate) struct Launch {
    pub(crate) cuda: Cuda,
    pub(crate) operator: &'static Operator,
    pub(crate) write: kvscatter_cuda::DeviceWrite,
    pub(crate) indices: DeviceCallIndices,
    pub(crate) status: DeviceStatus,
    /// The array that contains the status.
    pub(crate) array: Py<PyAny>,
    pub(crate) device: i32,
    pub(crate) current: Current,
    /// PyTorch's tensors among the written arrays. PyTorch counts their writes.
    pub(crate) counted: Py<PyTuple>,
    #[expect(dead_code, reason = "kept alive, not read: it keeps the memory where it is")]
    pub(crate) kept_alive: Vec<KeptAlive>,
}

#[pymethods]
impl CudaWrite {
    /// Launches the write on a stream, by default the stream that is current in the library of the caches.
    ///
    /// A launch does not wait and does not allocate memory on the device. It may be captured in a CUDA
    /// graph, which then uses the contents that the arrays have when the graph runs.
    ///
    /// Args:
    ///     stream: A stream of PyTorch, CuPy or another library with `__cuda_stream__`, or its address. The
    ///         caller must order it after the work that fills the arrays. The argument is required if the
    ///         first cache is of neither library and no array names a stream in `__cuda_array_interface__`.
    ///
    /// Raises:
    ///     CudaError: The driver returns an error, possibly because of an earlier launch.
    ///     DeviceError: The current device of this thread is not the device that the write was prepared on.
    ///     OptionError: There is no stream.
    #[pyo3(signature = (stream=None))]
    fn launch(&self, py: Python<'_>, stream: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        let Launch { write, indices, status, counted, .. } = &*self.0;
        let stream = self.0.stream(py, stream)?;
        self.0.check_current(py)?;
        // SAFETY: The arrays lie on the device that is current (`check_current`). This write keeps them
        // alive, and their sizes were checked when it was prepared. With another context of the device, the
        // driver rejects the kernel. As in the arrays' own libraries, `stream` must be a stream of that
        // device, and the Python program must order other uses of the caches.
        let launched = py.detach(|| unsafe { write.launch(stream, indices, Some(*status)) });
        launched.map_err(|refused| self.0.raise(py, refused))?;
        torch::note_all_written(counted.bind(py))
    }

    /// The status in which launches report bad indices.
    #[getter]
    fn status(&self) -> CudaStatus {
        CudaStatus(Arc::clone(&self.0))
    }

    /// The number of bytes that a thread of the device moves at a time.
    ///
    /// It is 16 if addresses, strides and rows allow it, and `None` if rows of 4-bit elements begin inside a
    /// byte.
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
    /// Raises the CPU's error for the first bad index that launches have reported, if any.
    ///
    /// Without `words`, this waits for the legacy default stream and for no other stream. Call it when the
    /// launches have run, for example after `torch.cuda.synchronize()`. The status does not change until it
    /// is cleared.
    ///
    /// Args:
    ///     words: The words of the status, as `read` returns them, or a copy of `array` in 16 bytes on the
    ///         CPU. The caller makes the copy and waits for it. With `words`, nothing is read from the
    ///         device and the driver is not called. Some details of the error are then unknown. The error
    ///         for a bad length assumes all rows, or the kind is `bad_indices`.
    ///
    /// Raises:
    ///     PositionError: For the same reasons as `tensor_scatter_` and the other operators. The kind is
    ///         `bad_indices` if the lists now have other values.
    ///     CudaError: The driver returns an error, possibly because of an earlier launch.
    ///     DeviceError: The current device of this thread is not the write's, or `words` are on a device.
    ///     ShapeError: `words` have the wrong size.
    #[pyo3(signature = (words=None))]
    fn check(&self, py: Python<'_>, words: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        let Launch { write, indices, status, .. } = &*self.0;
        if let Some(words) = words {
            return write
                .check_words(status_words::from_python(words)?)
                .map_err(|refused| self.0.raise(py, refused));
        }
        self.0.check_current(py)?;
        // SAFETY: This write keeps the status and the lists alive, and they lie on the device that is
        // current (`check_current`). The Python program calls this when the launches have run, as the
        // docstring requires.
        py.detach(|| unsafe { write.check(*status, indices) }).map_err(|refused| self.0.raise(py, refused))
    }

    /// Returns the words of the status, and waits like `check`.
    ///
    /// The first is the number of samples with a bad index, each counted once per launch. The second is the
    /// first of these samples, with bit 31 for a bad length, bits 31 and 30 for bad rows of a packed update,
    /// or all bits for the layer. The third is the bad value.
    fn read<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let Launch { cuda, status, .. } = &*self.0;
        self.0.check_current(py)?;
        // SAFETY: This write keeps the status alive, and it lies on the device that is current
        // (`check_current`). The Python program calls this when the launches have run, as the docstring
        // requires.
        let words = py.detach(|| unsafe { cuda.read(*status) });
        status_words::to_python(py, words.map_err(|refused| self.0.raise(py, refused))?)
    }

    /// The array of 16 bytes that contains the status.
    ///
    /// It is the argument `status`, or two int64 that PyTorch or CuPy allocated. To poll without waiting,
    /// copy it on another stream and call `check` with the copy.
    #[getter]
    fn array(&self, py: Python<'_>) -> Py<PyAny> {
        self.0.array.clone_ref(py)
    }

    /// Clears the status in the order of the stream. See `launch` for the default stream.
    #[pyo3(signature = (stream=None))]
    fn clear(&self, py: Python<'_>, stream: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        let Launch { cuda, status, .. } = &*self.0;
        let stream = self.0.stream(py, stream)?;
        self.0.check_current(py)?;
        // SAFETY: This write keeps the status alive, and it lies on the device that is current (`check_current`). As in
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
        let device = format!("cuda:{}", self.device);
        Err(Failure::NotCurrent { argument: self.operator.written, device, current }.into())
    }

    fn raise(&self, py: Python<'_>, refused: kvscatter_cuda::CudaError) -> PyErr {
        error::raise(py, self.operator, refused)
    }
}
