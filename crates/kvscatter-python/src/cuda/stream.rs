//! The streams that callers pass, and the streams that are current in the library of a write's caches.

use std::ptr;

use kvscatter_cuda::Stream;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyInt};

use super::array::DeviceArray;
use crate::dlpack::library;
use crate::error::Class;
use crate::failure::{Failure, class_name};
use crate::options::Bounds;

/// The stream of launches without the argument `stream`.
pub(crate) enum Current {
    /// The function `torch.cuda.current_stream`, and its argument, the device.
    Torch(Py<PyAny>, i32),
    /// The function `cupy.cuda.get_current_stream`.
    Cupy(Py<PyAny>),
    /// The stream that all arrays of the write name.
    Named(Stream),
    /// A library, by its name, whose current stream is unknown.
    Unknown(String),
}

impl Current {
    /// Chooses the stream. `named` are the streams of the write's arrays.
    pub(crate) fn choose(
        cache: &Bound<'_, PyAny>,
        device: i32,
        named: impl IntoIterator<Item = usize>,
    ) -> PyResult<Self> {
        let py = cache.py();
        let library = library(cache)?;
        let mut named = named.into_iter();
        Ok(match (&*library, named.next()) {
            ("torch", _) => {
                let cuda = py.import("torch.cuda")?;
                Self::Torch(cuda.getattr("current_stream")?.unbind(), device)
            }
            ("cupy", _) => Self::Cupy(py.import("cupy.cuda")?.getattr("get_current_stream")?.unbind()),
            (_, Some(stream)) if named.all(|other| other == stream) => Self::Named(at(stream)),
            _ => Self::Unknown(library),
        })
    }

    pub(crate) fn stream(&self, py: Python<'_>) -> PyResult<Stream> {
        let (stream, address) = match self {
            Self::Torch(current, device) => (current.call1(py, (*device,))?, intern!(py, "cuda_stream")),
            Self::Cupy(current) => (current.call0(py)?, intern!(py, "ptr")),
            Self::Named(stream) => return Ok(*stream),
            Self::Unknown(library) => {
                return Err(Failure::Unknown { argument: "stream", library: library.clone() }.into());
            }
        };
        Ok(at(stream.getattr(py, address)?.extract(py)?))
    }

    /// Waits until the work that the library has put on its current stream is done.
    pub(crate) fn wait(&self, py: Python<'_>) -> PyResult<()> {
        let stream = match self {
            Self::Torch(current, device) => current.call1(py, (*device,))?,
            Self::Cupy(current) => current.call0(py)?,
            Self::Named(_) | Self::Unknown(_) => return Ok(()),
        };
        stream.call_method0(py, intern!(py, "synchronize")).map(drop)
    }
}

/// Returns the streams that the arrays are ready on, if their libraries report them.
pub(crate) fn streams_of<'a, 'py: 'a>(
    arrays: impl IntoIterator<Item = &'a DeviceArray<'py>>,
) -> impl Iterator<Item = usize> {
    arrays.into_iter().filter_map(|array| array.stream)
}

/// Reads a stream's address, or an object with one. Both PyTorch's and CuPy's streams have
/// `__cuda_stream__`.
pub(crate) fn from_python(stream: &Bound<'_, PyAny>) -> PyResult<Stream> {
    let py = stream.py();
    let unfit = || Failure::Keyword {
        argument: "stream",
        class: class_name(&stream.get_type()),
        wanted: "a stream of PyTorch, CuPy or another library with __cuda_stream__, or its address",
    };
    if stream.is_instance_of::<PyBool>() {
        return Err(unfit().into());
    }
    if stream.is_instance_of::<PyInt>() {
        let max = usize::MAX.try_into().unwrap_or(i128::MAX);
        return Bounds { argument: "stream", class: Class::Option, min: 0, max }.number(stream).map(at);
    }
    if let Some(protocol) = stream.getattr_opt(intern!(py, "__cuda_stream__"))? {
        let answer = if protocol.is_callable() { protocol.call0()? } else { protocol };
        let (_version, handle): (usize, usize) = answer.extract().map_err(|_| unfit())?;
        return Ok(at(handle));
    }
    for name in [intern!(py, "cuda_stream"), intern!(py, "ptr")] {
        if let Some(handle) = stream.getattr_opt(name)? {
            return handle.extract().map(at).map_err(|_| unfit().into());
        }
    }
    Err(unfit().into())
}

fn at(address: usize) -> Stream {
    Stream::new(ptr::without_provenance_mut(address))
}
