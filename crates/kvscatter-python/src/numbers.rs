//! Integers that a caller passes for one sample or for a batch.

use numpy::PyArray1;
use pyo3::prelude::*;

use crate::error::{Class, Field, raise};
use crate::failure::plural;
use crate::indices::Indices;

/// Calls a function for each sample of the arguments. Returns an `int`, or an array of int64 for a batch.
pub(crate) fn for_each_sample<'py, const N: usize>(
    py: Python<'py>,
    arguments: [&Numbers; N],
    function: impl Fn(usize) -> PyResult<i64>,
) -> PyResult<Bound<'py, PyAny>> {
    let batch = Numbers::batch_of(arguments);
    for numbers in arguments {
        numbers.check_count(py, batch)?;
    }
    match batch {
        None => Ok(function(0)?.into_pyobject(py)?.into_any()),
        Some(batch) => {
            let results = (0..batch).map(function).collect::<PyResult<Vec<i64>>>()?;
            Ok(PyArray1::from_vec(py, results).into_any())
        }
    }
}

/// A number for each sample, or one number for all samples.
pub(crate) struct Numbers {
    argument: &'static str,
    indices: Indices,
    is_one: bool,
}

impl Numbers {
    pub(crate) fn of(object: &Bound<'_, PyAny>, argument: &'static str) -> PyResult<Self> {
        if !object.hasattr("__len__")? {
            return Self::one(argument, object);
        }
        Ok(Self { argument, indices: Indices::of(Some(object), argument)?, is_one: false })
    }

    pub(crate) fn one(argument: &'static str, number: &Bound<'_, PyAny>) -> PyResult<Self> {
        Ok(Self { argument, indices: Indices::one(number, argument)?, is_one: true })
    }

    /// Returns the number of samples, or `None` if every argument is one number.
    pub(crate) fn batch_of<const N: usize>(all: [&Self; N]) -> Option<usize> {
        all.into_iter().find_map(Self::batch)
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

    pub(crate) fn at(&self, sample: usize) -> i64 {
        let place = if self.is_one { 0 } else { sample };
        self.values()[place]
    }

    /// Returns a value that must not be negative.
    pub(crate) fn size(&self, sample: usize) -> PyResult<usize> {
        let place = if self.is_one { 0 } else { sample };
        Ok(self.indices.size(place)?)
    }
}
