//! The core's conversions between position conventions, over one sample or a batch.

use kvscatter::{Error, Mode, positions};
use numpy::PyArray1;
use pyo3::prelude::*;

use crate::error::{self, Class, Field, raise};
use crate::failure::plural;
use crate::indices::Indices;
use crate::options;

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
    let values = Numbers::of(values, argument)?;
    let rows = Numbers::of(rows, "rows")?;
    let batch = values.batch().or(rows.batch());
    for numbers in [&values, &rows] {
        numbers.check_count(py, batch)?;
    }
    let one = |sample| {
        let refused = |error| error::core_of_sample(py, error, argument, batch.map(|_| sample));
        function(values.at(sample), rows.size(py, sample)?).map_err(refused)
    };
    match batch {
        None => Ok(one(0)?.into_pyobject(py)?.into_any()),
        Some(batch) => {
            let converted = (0..batch).map(one).collect::<PyResult<Vec<i64>>>()?;
            Ok(PyArray1::from_vec(py, converted).into_any())
        }
    }
}

fn cache(capacity: &Bound<'_, PyAny>, mode: Mode) -> PyResult<(usize, Mode)> {
    let py = capacity.py();
    let capacity = Numbers::one("capacity", capacity)?.size(py, 0)?;
    Ok((capacity, mode))
}

/// A number for each sample, or one number for all samples.
struct Numbers {
    argument: &'static str,
    indices: Indices,
    is_one: bool,
}

impl Numbers {
    fn of(object: &Bound<'_, PyAny>, argument: &'static str) -> PyResult<Self> {
        if !object.hasattr("__len__")? {
            return Self::one(argument, object);
        }
        Ok(Self { argument, indices: Indices::of(Some(object), argument)?, is_one: false })
    }

    fn one(argument: &'static str, number: &Bound<'_, PyAny>) -> PyResult<Self> {
        Ok(Self { argument, indices: Indices::one(number, argument)?, is_one: true })
    }

    fn values(&self) -> &[i64] {
        self.indices.values().unwrap_or_default()
    }

    fn batch(&self) -> Option<usize> {
        (!self.is_one).then(|| self.values().len())
    }

    fn check_count(&self, py: Python<'_>, batch: Option<usize>) -> PyResult<()> {
        match (self.batch(), batch) {
            (Some(got), Some(expected)) if got != expected => {
                let message =
                    format!("{} has {got} value{}, must have {expected}", self.argument, plural(got));
                let fields = [("got", Field::Size(got)), ("expected", Field::Size(expected))];
                Err(raise(py, Class::Position, "list_length", Some(self.argument), message, &fields))
            }
            _ => Ok(()),
        }
    }

    fn at(&self, sample: usize) -> i64 {
        let place = if self.is_one { 0 } else { sample };
        self.values()[place]
    }

    /// Returns a value that must not be negative.
    fn size(&self, py: Python<'_>, sample: usize) -> PyResult<usize> {
        let value = self.at(sample);
        usize::try_from(value).map_err(|_| {
            let argument = self.argument;
            let mut fields = vec![("value", Field::Int(value))];
            let place = if self.is_one {
                String::new()
            } else {
                fields.push(("index", Field::Size(sample)));
                format!("[{sample}]")
            };
            let message = format!("{argument}{place} = {value}: must not be negative");
            raise(py, Class::Position, "negative_size", Some(argument), message, &fields)
        })
    }
}
