//! The keywords of an operator, as the core's types.

use kvscatter::spec::onnx::TensorScatter;
use kvscatter::{Mode, NegativeIndex, OutOfRange};
use pyo3::exceptions::PyOverflowError;
use pyo3::prelude::*;

use crate::failure::Failure;

/// `axis`: any integer, of which those beyond 64 bits are no dimension either.
pub(crate) fn axis(value: &Bound<'_, PyAny>) -> PyResult<i64> {
    let beyond = |error: PyErr| match error.is_instance_of::<PyOverflowError>(value.py()) {
        true => Failure::Axis { value: value.to_string() }.into(),
        false => error,
    };
    value.extract().map_err(beyond)
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
