//! The CUDA driver of this machine.

use kvscatter_cuda::Cuda;
use pyo3::prelude::*;

use super::error;
use super::operator::ONNX;
use crate::lazy::Lazy;

/// Returns the driver of this machine. It is loaded when it is first needed.
pub(super) fn load(py: Python<'_>) -> PyResult<&Cuda> {
    static DRIVER: Lazy<Cuda> = Lazy::new();
    DRIVER.get_or_try_make(py, || py.detach(Cuda::new).map_err(|refused| error::raise(py, &ONNX, refused)))
}
