//! The words of a status on the host, either read from the device or copied by the caller.

use kvscatter::RawBuffer;
use kvscatter_cuda::StatusWords;
use pyo3::prelude::*;
use pyo3::types::{PyTuple, PyType};

use crate::array::Array;
use crate::failure::{Failure, STATUS_BYTES, class_name};
use crate::lazy::Lazy;

/// Converts the words to `kvscatter.cuda.StatusWords`.
pub(crate) fn to_python(py: Python<'_>, words: StatusWords) -> PyResult<Bound<'_, PyAny>> {
    static CLASS: Lazy<Py<PyType>> = Lazy::new();
    let StatusWords { bad_samples, first_sample, first_value } = words;
    CLASS.import(py, "kvscatter._status", "StatusWords")?.call1((bad_samples, first_sample, first_value))
}

/// Reads three numbers, or an array of 16 bytes on the CPU.
pub(crate) fn from_python(words: &Bound<'_, PyAny>) -> PyResult<StatusWords> {
    let argument = "words";
    if words.is_instance_of::<PyTuple>() {
        let unfit = |_| Failure::Keyword {
            argument,
            class: class_name(&words.get_type()),
            wanted: "what read() returns, or a copy of the status's array",
        };
        let (bad_samples, first_sample, first_value) = words.extract().map_err(unfit)?;
        return Ok(StatusWords { bad_samples, first_sample, first_value });
    }
    let array = Array::read(words, argument)?;
    let bytes = array.dense_bytes()?;
    if bytes != STATUS_BYTES {
        return Err(Failure::StatusBytes { argument, got: bytes, expected: STATUS_BYTES }.into());
    }
    let RawBuffer { ptr, .. } = array.buffer(Some(bytes));
    // SAFETY: The array has this number of bytes there. It is borrowed, and no Python code has run since it
    // was imported.
    let bytes = unsafe { ptr.cast::<[u8; STATUS_BYTES]>().read_unaligned() };
    let [a, b, c, d, e, f, g, h, value @ ..] = bytes;
    Ok(StatusWords {
        bad_samples: u32::from_ne_bytes([a, b, c, d]),
        first_sample: u32::from_ne_bytes([e, f, g, h]),
        first_value: i64::from_ne_bytes(value),
    })
}
