//! The core's conversions between position conventions, over one sample or a batch.

use kvscatter::{Error, Mode, positions};
use pyo3::prelude::*;

use crate::indices::Indices;
use crate::{error, numbers, options};

/// The module `kvscatter._native.positions`, whose functions are documented in `positions.py`.
#[pymodule(submodule, name = "positions", gil_used = false)]
pub(crate) mod module {
    use super::*;

    #[pyfunction]
    fn length_after<'py>(start: &Bound<'py, PyAny>, rows: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        convert(start, "start", rows, positions::length_after)
    }

    #[pyfunction]
    fn start_from_length_after<'py>(
        length: &Bound<'py, PyAny>,
        rows: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        convert(length, "length", rows, positions::start_from_length_after)
    }

    #[pyfunction]
    fn token_offset<'py>(start: &Bound<'py, PyAny>, rows: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        convert(start, "start", rows, positions::token_offset)
    }

    #[pyfunction]
    fn start_from_token_offset<'py>(
        token_offset: &Bound<'py, PyAny>,
        rows: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        convert(token_offset, "token_offset", rows, positions::start_from_token_offset)
    }

    #[pyfunction]
    fn seqlens_k<'py>(start: &Bound<'py, PyAny>, rows: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        convert(start, "start", rows, positions::seqlens_k)
    }

    #[pyfunction]
    fn start_from_seqlens_k<'py>(
        last: &Bound<'py, PyAny>,
        rows: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        convert(last, "last", rows, positions::start_from_seqlens_k)
    }

    #[pyfunction]
    fn nonpad_kv_seqlen<'py>(
        start: &Bound<'py, PyAny>,
        rows: &Bound<'py, PyAny>,
        capacity: &Bound<'py, PyAny>,
        #[pyo3(from_py_with = options::mode)] mode: Mode,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (capacity, mode) = cache(capacity, mode)?;
        let function = |start, rows| positions::nonpad_kv_seqlen(start, rows, capacity, mode);
        convert(start, "start", rows, function)
    }

    #[pyfunction]
    fn start_from_nonpad_kv_seqlen<'py>(
        length: &Bound<'py, PyAny>,
        rows: &Bound<'py, PyAny>,
        capacity: &Bound<'py, PyAny>,
        #[pyo3(from_py_with = options::mode)] mode: Mode,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (capacity, mode) = cache(capacity, mode)?;
        let function = |length, rows| positions::start_from_nonpad_kv_seqlen(length, rows, capacity, mode);
        convert(length, "length", rows, function)
    }
}

/// Converts one position to an `int`, or a batch to an array of int64.
fn convert<'py>(
    values: &Bound<'py, PyAny>,
    argument: &'static str,
    rows: &Bound<'py, PyAny>,
    function: impl Fn(i64, usize) -> Result<i64, Error>,
) -> PyResult<Bound<'py, PyAny>> {
    let py = values.py();
    let arguments = [Indices::list_or_one(values, argument)?, Indices::list_or_one(rows, "rows")?];
    let (batch, [values, rows]) = (numbers::batch(&arguments), &arguments);
    numbers::for_each_sample(py, &arguments, |sample| {
        let refused = |error| error::core_of_sample(py, error, argument, batch.map(|_| sample));
        function(values.value(sample), rows.size(sample)?).map_err(refused)
    })
}

fn cache(capacity: &Bound<'_, PyAny>, mode: Mode) -> PyResult<(usize, Mode)> {
    let capacity = Indices::one(capacity, "capacity")?.size(0)?;
    Ok((capacity, mode))
}
