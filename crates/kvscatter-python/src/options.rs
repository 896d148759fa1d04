//! The keywords of an operator, as the core's types.

use kvscatter::picture::Picture;
use kvscatter::spec::onnx::TensorScatter;
use kvscatter::{Mode, NegativeIndex, OutOfRange};
use pyo3::exceptions::{PyOverflowError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::PyBool;

use crate::failure::{Failure, class_name};

/// `axis`: any integer, of which those beyond 64 bits are no dimension either.
pub(crate) fn axis(value: &Bound<'_, PyAny>) -> PyResult<i64> {
    integer(value, "axis")?.ok_or_else(|| Failure::Axis { value: value.to_string() }.into())
}

/// `width`: columns of a picture.
pub(crate) fn width(value: &Bound<'_, PyAny>) -> PyResult<usize> {
    picture(value, "width")
}

/// `samples`: lanes of a picture.
pub(crate) fn samples(value: &Bound<'_, PyAny>) -> PyResult<usize> {
    picture(value, "samples")
}

/// As many as the core draws lanes: more of either fill no screen, but memory.
fn picture(value: &Bound<'_, PyAny>, argument: &'static str) -> PyResult<usize> {
    const LIMIT: usize = Picture::MOST_LANES;
    integer(value, argument)?
        .and_then(|size| usize::try_from(size).ok())
        .filter(|size| (1..=LIMIT).contains(size))
        .ok_or_else(|| Failure::Picture { argument, value: value.to_string(), limit: LIMIT }.into())
}

/// `None` for an integer beyond 64 bits. A truth value is none, although Python takes it for one.
fn integer(value: &Bound<'_, PyAny>, argument: &'static str) -> PyResult<Option<i64>> {
    let py = value.py();
    let unfit = || Failure::Keyword { argument, class: class_name(&value.get_type()), want: "an integer" };
    if value.is_instance_of::<PyBool>() {
        return Err(unfit().into());
    }
    match value.extract() {
        Ok(integer) => Ok(Some(integer)),
        Err(error) if error.is_instance_of::<PyOverflowError>(py) => Ok(None),
        Err(error) if error.is_instance_of::<PyTypeError>(py) => Err(unfit().into()),
        Err(error) => Err(error),
    }
}

/// `mode`.
pub(crate) fn mode(value: &str) -> Result<Mode, Failure> {
    const CHOICES: &[&str] = &["linear", "circular"];
    value.parse().map_err(|_| Failure::Choice { argument: "mode", value: value.to_owned(), choices: CHOICES })
}

/// `out_of_range`.
pub(crate) fn out_of_range(value: &str) -> Result<OutOfRange, Failure> {
    match value {
        "error" => Ok(OutOfRange::Error),
        "skip" => Ok(OutOfRange::SkipSample),
        _ => Err(Failure::Choice {
            argument: "out_of_range",
            value: value.to_owned(),
            choices: &["error", "skip"],
        }),
    }
}

/// `negative_index`.
pub(crate) fn negative_index(value: &str) -> Result<NegativeIndex, Failure> {
    const CHOICES: &[&str] = &["modulo", "reject"];
    match value {
        "modulo" => Ok(NegativeIndex::Modulo),
        "reject" => Ok(NegativeIndex::Reject),
        _ => Err(Failure::Choice { argument: "negative_index", value: value.to_owned(), choices: CHOICES }),
    }
}

/// The attributes of `TensorScatter`, and our policies.
pub(crate) fn tensor_scatter(
    axis: i64,
    mode_name: &str,
    out_of_range_name: &str,
    negative_index_name: &str,
) -> PyResult<TensorScatter> {
    Ok(TensorScatter::new()
        .axis(axis)
        .mode(mode(mode_name)?)
        .out_of_range(out_of_range(out_of_range_name)?)
        .negative_index(negative_index(negative_index_name)?))
}
