//! The CUDA driver of this machine.

use kvscatter_cuda::Cuda;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

use super::error;
use super::operator::ONNX;

/// Returns the driver of this machine. It is loaded when it is first needed.
pub(super) fn load(py: Python<'_>) -> PyResult<&Cuda> {
    static DRIVER: PyOnceLock<Cuda> = PyOnceLock::new();
    DRIVER.get_or_try_init(py, || py.detach(Cuda::new).map_err(|refused| error::raise(py, &ONNX, refused)))
}
