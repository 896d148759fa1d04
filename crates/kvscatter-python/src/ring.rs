//! The core's rule for the steps of a ring, over one sample or a batch.

use kvscatter::ring::{self, Feeding, Ring};
use pyo3::prelude::*;

use crate::indices::Indices;
use crate::{numbers, options};

/// The module `kvscatter._native.ring`, whose functions are documented in `ring.py`.
#[pymodule(submodule, name = "ring", gil_used = false)]
pub(crate) mod module {
    use super::*;

    #[pyfunction]
    fn most_rows<'py>(
        capacity: &Bound<'py, PyAny>,
        window: &Bound<'py, PyAny>,
        high: &Bound<'py, PyAny>,
        start: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let ring = ring(capacity, window)?;
        sizes([(high, "high"), (start, "start")], |[high, start]| ring.most_rows(high, start))
    }

    #[pyfunction]
    fn least_start<'py>(
        capacity: &Bound<'py, PyAny>,
        window: &Bound<'py, PyAny>,
        high: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let ring = ring(capacity, window)?;
        sizes([(high, "high")], |[high]| ring.least_start(high))
    }

    #[pyfunction]
    fn high_after<'py>(
        high: &Bound<'py, PyAny>,
        start: &Bound<'py, PyAny>,
        rows: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let arguments = [(high, "high"), (start, "start"), (rows, "rows")];
        sizes(arguments, |[high, start, rows]| ring::high_after(high, start, rows))
    }

    #[pyfunction]
    fn least_capacity(
        window: &Bound<'_, PyAny>,
        rows: &Bound<'_, PyAny>,
        rewind: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = options::feeding)] feeding: Feeding,
    ) -> PyResult<i64> {
        let (window, rows) = (size(window, "window")?, size(rows, "rows")?);
        Ok(signed(ring::least_capacity(window, rows, size(rewind, "rewind")?, feeding)))
    }
}

fn ring(capacity: &Bound<'_, PyAny>, window: &Bound<'_, PyAny>) -> PyResult<Ring> {
    Ok(Ring::new(size(capacity, "capacity")?, size(window, "window")?))
}

fn size(number: &Bound<'_, PyAny>, argument: &'static str) -> PyResult<usize> {
    Ok(Indices::one(number, argument)?.size(0)?)
}

/// Calls a function with the sizes of each sample.
fn sizes<'py, const N: usize>(
    arguments: [(&Bound<'py, PyAny>, &'static str); N],
    function: impl Fn([usize; N]) -> usize,
) -> PyResult<Bound<'py, PyAny>> {
    let py = arguments[0].0.py();
    let lists = arguments.map(|(values, argument)| Indices::list_or_one(values, argument));
    let lists = lists.into_iter().collect::<PyResult<Vec<_>>>()?;
    numbers::for_each_sample(py, &lists, |sample| {
        let mut sizes = [0; N];
        for (size, list) in sizes.iter_mut().zip(&lists) {
            *size = list.size(sample)?;
        }
        Ok(signed(function(sizes)))
    })
}

/// Converts a result. No memory has room for more than `i64::MAX` slots.
fn signed(size: usize) -> i64 {
    i64::try_from(size).unwrap_or(i64::MAX)
}
