//! The keywords of an operator, as the core's types.

use kvscatter::picture::Picture;
use kvscatter::spec::onnx::TensorScatter;
use kvscatter::{Mode, NegativeIndex, OutOfRange};
use pyo3::exceptions::{PyOverflowError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyString};

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
pub(crate) fn mode(value: &Bound<'_, PyAny>) -> PyResult<Mode> {
    word(value, "mode", &["linear", "circular"], |word| word.parse().ok())
}

/// `out_of_range`.
pub(crate) fn out_of_range(value: &Bound<'_, PyAny>) -> PyResult<OutOfRange> {
    word(value, "out_of_range", &["error", "skip"], |word| match word {
        "error" => Some(OutOfRange::Error),
        "skip" => Some(OutOfRange::SkipSample),
        _ => None,
    })
}

/// `negative_index`.
pub(crate) fn negative_index(value: &Bound<'_, PyAny>) -> PyResult<NegativeIndex> {
    word(value, "negative_index", &["modulo", "reject"], |word| match word {
        "modulo" => Some(NegativeIndex::Modulo),
        "reject" => Some(NegativeIndex::Reject),
        _ => None,
    })
}

fn word<T>(
    value: &Bound<'_, PyAny>,
    argument: &'static str,
    choices: &'static [&'static str],
    known: impl Fn(&str) -> Option<T>,
) -> PyResult<T> {
    let Ok(word) = value.cast::<PyString>() else {
        let class = class_name(&value.get_type());
        return Err(Failure::Keyword { argument, class, want: "a string" }.into());
    };
    let word = word.to_string_lossy();
    known(&word).ok_or_else(|| Failure::Choice { argument, value: word.into_owned(), choices }.into())
}

/// The attributes of `TensorScatter`, and our policies.
pub(crate) fn tensor_scatter(
    axis: i64,
    mode: Mode,
    out_of_range: OutOfRange,
    negative_index: NegativeIndex,
) -> TensorScatter {
    TensorScatter::new().axis(axis).mode(mode).out_of_range(out_of_range).negative_index(negative_index)
}
