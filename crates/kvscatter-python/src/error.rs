//! The core's errors as exceptions: a class for people who catch, a kind and fields for programs that look.

use std::mem;

use kvscatter::{Argument, ElementType, Error};
use pyo3::exceptions::PySystemError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyInt, PyTuple, PyType};

/// The exception classes of `kvscatter.errors`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    Shape,
    Option,
    ElementType,
    Position,
    Array,
    Device,
    Session,
    Cuda,
}

/// What an attribute of an exception holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Field {
    Int(i64),
    Size(usize),
    /// An integer that no type here holds, in decimal.
    Digits(String),
    Name(String),
    Sizes(&'static [usize]),
}

/// An exception of this package. `kind` and the names of fields are in `snake_case`.
#[cold]
pub(crate) fn raise(
    py: Python<'_>,
    class: Class,
    kind: &str,
    argument: Option<&str>,
    message: String,
    fields: &[(&'static str, Field)],
) -> PyErr {
    let exception = || {
        let attributes = PyDict::new(py);
        for (name, field) in fields {
            match field {
                Field::Int(value) => attributes.set_item(name, value)?,
                Field::Size(value) => attributes.set_item(name, value)?,
                // No field has a number that is too long for Python to print.
                Field::Digits(value) => {
                    let number = py.get_type::<PyInt>().call1((value,));
                    number.map_or(Ok(()), |number| attributes.set_item(name, number))?;
                }
                Field::Name(value) => attributes.set_item(name, value)?,
                Field::Sizes(values) => attributes.set_item(name, PyTuple::new(py, *values)?)?,
            }
        }
        class.python(py)?.call((message, kind, argument), Some(&attributes))
    };
    // What making an exception raises is raised in its place.
    exception().map_or_else(|error| error, PyErr::from_value)
}

/// How an error of the core becomes an exception.
pub(crate) type Refuse = fn(Python<'_>, Error) -> PyErr;

/// The exception for an error of the core in a functional form, whose result is called `out`.
#[cold]
pub(crate) fn core(py: Python<'_>, error: Error) -> PyErr {
    onnx(py, error, &[("present_cache", "out")])
}

/// The exception for an error of the core in a write in place, whose cache is no past that stays as it is.
#[cold]
pub(crate) fn core_in_place(py: Python<'_>, error: Error) -> PyErr {
    onnx(py, error, &[("past_cache", "cache")])
}

/// The exception for an error of the core, with the specification's names for tensors that the core does not name.
#[cold]
pub(crate) fn core_about(py: Python<'_>, error: Error, cache: Argument, update: Argument) -> PyErr {
    spelled(py, error, [cache, update], &[], "")
}

/// Of `TensorScatter`, whose caller may have forgotten that another dimension than the last but one has the slots.
fn onnx(py: Python<'_>, error: Error, words: &[(&'static str, &'static str)]) -> PyErr {
    let advice = match error {
        Error::DimensionMismatch { dimension: 1.., .. } => {
            "; axis says which dimension has the slots, by default -2"
        }
        _ => "",
    };
    spelled(py, error, [Argument::PastCache, Argument::Update], words, advice)
}

/// The core calls arguments as the specifications do; some are other words in Python, and nothing else in a message is.
/// What a caller may do about it stands behind it.
fn spelled(
    py: Python<'_>,
    error: Error,
    [cache, update]: [Argument; 2],
    words: &[(&'static str, &'static str)],
    advice: &str,
) -> PyErr {
    let Some(Described { class, kind, argument, mut fields }) = describe(error, cache, update) else {
        return unknown(error);
    };
    let spell = |text: String| words.iter().fold(text, |text, (core, python)| text.replace(core, python));
    for (_, field) in &mut fields {
        if let Field::Name(name) = field {
            *name = spell(mem::take(name));
        }
    }
    let message = spell(error.to_string()) + advice;
    raise(py, class, kind, argument.map(spell).as_deref(), message, &fields)
}

/// The exception for an error of the core in a functional form on a device, whose result is given.
#[cold]
pub(crate) fn core_present(py: Python<'_>, error: Error) -> PyErr {
    onnx(py, error, &[("past_cache", "past"), ("present_cache", "present")])
}

/// The exception for an error of the core in a write by slots.
#[cold]
pub(crate) fn core_slots(py: Python<'_>, error: Error) -> PyErr {
    let words = [("past_cache", "cache"), ("write_indices", "slot_mapping")];
    // Caches that are lists of slots, or of blocks, lack the dimension that all have first.
    let is_first = matches!(
        error,
        Error::DimensionMismatch { dimension: 0, .. }
            | Error::RankTooLow { .. }
            | Error::AxisOutOfRange { .. }
    );
    let advice = if is_first { "; a slot mapping takes [1, slots, ...] and [1, tokens, ...]" } else { "" };
    spelled(py, error, [Argument::PastCache, Argument::Update], &words, advice)
}

/// The exception for an error about one value of an argument that the core does not name: `start`, of a sample if there
/// are many.
#[cold]
pub(crate) fn core_of_sample(py: Python<'_>, error: Error, argument: &str, sample: Option<usize>) -> PyErr {
    let Some(described) = describe(error, Argument::PastCache, Argument::Update) else {
        return unknown(error);
    };
    let Described { class, kind, mut fields, .. } = described;
    let message = match sample {
        Some(sample) => {
            fields.push(("index", sample.into()));
            format!("sample {sample}: {error}")
        }
        None => error.to_string(),
    };
    raise(py, class, kind, Some(argument), message, &fields)
}

fn unknown(error: Error) -> PyErr {
    PySystemError::new_err(format!("an error that this package does not know: {error}"))
}

/// What the exception of an error has beside its message.
struct Described {
    class: Class,
    kind: &'static str,
    argument: Option<String>,
    fields: Vec<(&'static str, Field)>,
}

/// `None` for what a later core may add; a test sees that nothing it has today ends there.
fn describe(error: Error, cache_name: Argument, update_name: Argument) -> Option<Described> {
    let shape = |kind| Described::new(Class::Shape, kind);
    let option = |kind, argument| Described::new(Class::Option, kind).about(argument);
    let element_type = |kind| Described::new(Class::ElementType, kind);
    let position = |kind, argument| Described::new(Class::Position, kind).about(argument);
    let array = |kind| Described::new(Class::Array, kind);
    Some(match error {
        Error::ElementType { argument, element } => {
            element_type("element_type").about(argument).with("element", element)
        }
        Error::ElementTypeMismatch { cache, argument, element } => element_type("element_type_mismatch")
            .about(argument)
            .with("cache", cache)
            .with("element", element),
        Error::Rank { argument, rank, expected } => {
            shape("rank").about(argument).with("rank", rank).with("expected", expected)
        }
        Error::RankTooLow { argument, rank, least } => {
            shape("rank_too_low").about(argument).with("rank", rank).with("least", least)
        }
        Error::RankMismatch { cache, update } => {
            shape("rank_mismatch").about(update_name).with("cache", cache).with("update", update)
        }
        Error::AxisOutOfRange { axis, rank } => {
            option("axis_out_of_range", "axis").with("axis", axis).with("rank", rank)
        }
        Error::AxisIsBatch { axis, rank } => {
            option("axis_is_batch", "axis").with("axis", axis).with("rank", rank)
        }
        Error::UnknownMode => option("unknown_mode", "mode"),
        Error::DimensionMismatch { argument, dimension, expected, got } => shape("dimension_mismatch")
            .about(argument)
            .with("dimension", dimension)
            .with("expected", expected)
            .with("got", got),
        Error::HiddenSize { heads, head_size, hidden } => shape("hidden_size")
            .about(update_name)
            .with("heads", heads)
            .with("head_size", head_size)
            .with("hidden", hidden),
        Error::BatchTooLarge { cache, update } => {
            shape("batch_too_large").about(update_name).with("cache", cache).with("update", update)
        }
        Error::UpdateLongerThanCache { rows, capacity } => {
            shape("update_longer_than_cache").about(update_name).with("rows", rows).with("capacity", capacity)
        }
        Error::TooLarge { argument } => shape("too_large").about(argument),
        Error::StrideCount { argument, strides, rank } => {
            array("stride_count").about(argument).with("strides", strides).with("rank", rank)
        }
        Error::BeforeBuffer { argument, offset, needed } => {
            array("before_buffer").about(argument).with("offset", offset).with("needed", needed)
        }
        Error::CacheOverlapsItself => array("cache_overlaps_itself").about(cache_name),
        Error::Layout { loops } => array("layout").with("loops", loops),
        Error::Reserved { index, value } => {
            option("reserved", "param").with("index", index).with("value", usize::from(value))
        }
        Error::Count { argument, got, want } => {
            position("count", argument).with("got", got).with("want", want)
        }
        Error::NegativeStart { argument, index, value } => {
            position("negative_start", argument).with("index", index).with("value", value)
        }
        Error::StartOutOfRange { argument, index, value, rows, capacity } => {
            position("start_out_of_range", argument)
                .with("index", index)
                .with("value", value)
                .with("rows", rows)
                .with("capacity", capacity)
        }
        Error::EndOutOfRange { argument, index, value, min, max } => position("end_out_of_range", argument)
            .with("index", index)
            .with("value", value)
            .with("min", min)
            .with("max", max),
        Error::LengthOutOfRange { argument, index, value, min, max } => {
            position("length_out_of_range", argument)
                .with("index", index)
                .with("value", value)
                .with("min", min)
                .with("max", max)
        }
        Error::CumulativeStart { argument, value } => {
            position("cumulative_start", argument).with("value", value)
        }
        Error::CumulativeOrder { argument, index, value, previous } => position("cumulative_order", argument)
            .with("index", index)
            .with("value", value)
            .with("previous", previous),
        Error::CumulativeLength { argument, index, rows, capacity } => {
            position("cumulative_length", argument)
                .with("index", index)
                .with("rows", rows)
                .with("capacity", capacity)
        }
        Error::TokenSum { argument, got, tokens } => {
            position("token_sum", argument).with("got", got).with("tokens", tokens)
        }
        Error::LayerOutOfRange { value, layers } => {
            position("layer_out_of_range", Argument::LayerId).with("value", value).with("layers", layers)
        }
        Error::Position { value, rows } => {
            Described::new(Class::Position, "position").with("value", value).with("rows", rows)
        }
        Error::BufferLength { argument, buffer, got, want } => {
            array("buffer_length").about(argument).with("buffer", buffer).with("got", got).with("want", want)
        }
        Error::NullBuffer { argument, buffer, len } => {
            array("null_buffer").about(argument).with("buffer", buffer).with("len", len)
        }
        Error::BufferWraps { argument, buffer, address, len } => array("buffer_wraps")
            .about(argument)
            .with("buffer", buffer)
            .with("address", address)
            .with("len", len),
        // `with` is a word of Python's.
        Error::Overlap { argument, with, buffer, with_buffer } => array("overlap")
            .about(argument)
            .with("with_", with)
            .with("buffer", buffer)
            .with("with_buffer", with_buffer),
        Error::ElementWidth { got, element } => {
            element_type("element_width").with("got", got).with("element", element)
        }
        _ => return None,
    })
}

impl Described {
    fn new(class: Class, kind: &'static str) -> Self {
        Self { class, kind, argument: None, fields: Vec::new() }
    }

    fn about(self, argument: impl ToString) -> Self {
        Self { argument: Some(argument.to_string()), ..self }
    }

    fn with(mut self, name: &'static str, field: impl Into<Field>) -> Self {
        self.fields.push((name, field.into()));
        self
    }
}

impl Class {
    fn python(self, py: Python<'_>) -> PyResult<&Bound<'_, PyType>> {
        static CLASSES: [PyOnceLock<Py<PyType>>; 8] = [const { PyOnceLock::new() }; 8];
        let (place, name) = match self {
            Self::Shape => (0, "ShapeError"),
            Self::Option => (1, "OptionError"),
            Self::ElementType => (2, "ElementTypeError"),
            Self::Position => (3, "PositionError"),
            Self::Array => (4, "ArrayError"),
            Self::Device => (5, "DeviceError"),
            Self::Session => (6, "SessionError"),
            Self::Cuda => (7, "CudaError"),
        };
        CLASSES[place].import(py, "kvscatter.errors", name)
    }
}

impl From<i64> for Field {
    fn from(value: i64) -> Self {
        Self::Int(value)
    }
}

impl From<usize> for Field {
    fn from(value: usize) -> Self {
        Self::Size(value)
    }
}

impl From<&'static [usize]> for Field {
    fn from(values: &'static [usize]) -> Self {
        Self::Sizes(values)
    }
}

impl From<Argument> for Field {
    fn from(argument: Argument) -> Self {
        Self::Name(argument.to_string())
    }
}

/// An element type is a field by the name that it has in NumPy.
impl From<ElementType> for Field {
    fn from(element: ElementType) -> Self {
        Self::Name(element.numpy_name().into())
    }
}
