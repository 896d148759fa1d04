//! Functions of integers that a caller passes for one sample or for a batch.

use numpy::PyArray1;
use pyo3::prelude::*;

use crate::error::{Class, Field, raise};
use crate::failure::plural;
use crate::indices::Indices;

/// Calls a function for each sample of the arguments. Returns an `int`, or an array of int64 for a batch.
pub(crate) fn for_each_sample<'py>(
    py: Python<'py>,
    arguments: &[Indices],
    function: impl Fn(usize) -> PyResult<i64>,
) -> PyResult<Bound<'py, PyAny>> {
    let Some(batch) = batch(arguments) else { return Ok(function(0)?.into_pyobject(py)?.into_any()) };
    for numbers in arguments {
        if let Some(got) = numbers.batch()
            && got != batch
        {
            let message = format!("{} has {got} value{}, must have {batch}", numbers.argument, plural(got));
            let fields = [("got", Field::Size(got)), ("expected", Field::Size(batch))];
            return Err(raise(py, Class::Position, "list_length", Some(numbers.argument), message, &fields));
        }
    }
    let results = (0..batch).map(function).collect::<PyResult<Vec<i64>>>()?;
    Ok(PyArray1::from_vec(py, results).into_any())
}

/// Returns the number of samples, or `None` if every argument is one number.
pub(crate) fn batch(arguments: &[Indices]) -> Option<usize> {
    arguments.iter().find_map(Indices::batch)
}
