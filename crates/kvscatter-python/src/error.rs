//! Converts the core's errors to exceptions. Each has a class to catch, and a kind and fields to inspect.

use std::fmt;

use kvscatter::error::{ErrorClass, ErrorDetails, ErrorField, ErrorKind};
use kvscatter::{Argument, ElementType, Error};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyInt, PyTuple, PyType};

use crate::element::Element;
use crate::lazy::Lazy;

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

/// The value of an exception's attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Field {
    Int(i64),
    Size(usize),
    Digits(Digits),
    Name(String),
    Sizes(&'static [usize]),
}

/// An integer that does not fit any type here, in decimal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Digits(pub(crate) String);

impl fmt::Display for Digits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The class, the argument and the fields of an exception.
pub(crate) type Described = (Class, Option<&'static str>, Vec<(&'static str, Field)>);

/// Returns the fields of an exception that are all sizes.
pub(crate) fn sizes<const N: usize>(fields: [(&'static str, usize); N]) -> Vec<(&'static str, Field)> {
    fields.map(|(name, size)| (name, size.into())).into()
}

/// Creates an exception of this package. `kind` and the names of fields are in `snake_case`.
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
                // This does not fail, because no field has more digits than Python converts.
                Field::Digits(Digits(value)) => {
                    let number = py.get_type::<PyInt>().call1((value,));
                    number.map_or(Ok(()), |number| attributes.set_item(name, number))?;
                }
                Field::Name(value) => attributes.set_item(name, value)?,
                Field::Sizes(values) => attributes.set_item(name, PyTuple::new(py, *values)?)?,
            }
        }
        class.python(py)?.call((message, kind, argument), Some(&attributes))
    };
    // If making the exception fails, that error is raised instead.
    exception().map_or_else(|error| error, PyErr::from_value)
}

/// The names that functions of Python give the core's arguments. All others have the names of the specification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ArgumentNames {
    Specification,
    /// In a functional write, whose result is called `out`.
    Functional,
    /// In an in-place write, whose cache is called `cache`.
    InPlace,
    /// In a functional write on a device, whose result is an argument.
    Present,
    /// In a write by slots.
    Slots,
}

impl ArgumentNames {
    fn name(self, argument: Argument) -> &'static str {
        match (self, argument) {
            (Self::Functional, Argument::PresentCache) => "out",
            (Self::InPlace | Self::Slots, Argument::PastCache) => "cache",
            (Self::Present, Argument::PastCache) => "past",
            (Self::Present, Argument::PresentCache) => "present",
            (Self::Slots, Argument::WriteIndices) => "slot_mapping",
            (_, other) => other.name(),
        }
    }

    /// Creates the exception for an error of the core.
    #[cold]
    pub(crate) fn raise(self, py: Python<'_>, error: Error) -> PyErr {
        let details = error.details();
        // Caches that are plain lists of slots or blocks lack the first dimension, which the functions require.
        let is_first = match details.kind {
            ErrorKind::DimensionMismatch => details.index == Some(0),
            ErrorKind::RankTooLow | ErrorKind::AxisOutOfRange => true,
            _ => false,
        };
        let advice = match self {
            Self::Slots if is_first => "; a slot mapping takes [1, slots, ...] and [1, tokens, ...]",
            _ => "",
        };
        let message = format!("{}{advice}", error.display_with(|argument| self.name(argument)));
        let argument = details.argument.map(|argument| self.name(argument));
        raise(py, details.kind.class().into(), details.kind.name(), argument, message, &self.fields(&details))
    }

    fn fields(self, details: &ErrorDetails) -> Vec<(&'static str, Field)> {
        let field = |(field_name, field)| {
            let field = match field {
                ErrorField::Size(size) => Field::Size(size),
                ErrorField::Integer(value) => Field::Int(value),
                ErrorField::Argument(argument) => self.name(argument).into(),
                ErrorField::Element(element) => element.into(),
                ErrorField::Sizes(sizes) => Field::Sizes(sizes),
                // The message lists the element types that an operator accepts.
                _ => return None,
            };
            Some((attribute(field_name), field))
        };
        details.fields().filter_map(field).collect()
    }
}

/// Creates the exception for an error about one value of an argument that the core does not name, such as
/// `start`. `sample` is the index if there are many values.
#[cold]
pub(crate) fn core_of_sample(py: Python<'_>, error: Error, argument: &str, sample: Option<usize>) -> PyErr {
    let details = error.details();
    let mut fields = ArgumentNames::Specification.fields(&details);
    let message = match sample {
        Some(sample) => {
            fields.push(("index", sample.into()));
            format!("sample {sample}: {error}")
        }
        None => error.to_string(),
    };
    raise(py, details.kind.class().into(), details.kind.name(), Some(argument), message, &fields)
}

/// The name, the class and the fields of a kind of error.
type Kind<'py> = (&'static str, Bound<'py, PyType>, Vec<&'static str>);

/// Lists every kind of error of the core, for tests.
#[pyfunction]
pub(crate) fn error_kinds(py: Python<'_>) -> PyResult<Vec<Kind<'_>>> {
    let describe = |kind: &ErrorKind| {
        let class = Class::from(kind.class()).python(py)?.clone();
        Ok((kind.name(), class, kind.fields().iter().copied().map(attribute).collect()))
    };
    ErrorKind::ALL.iter().map(describe).collect()
}

/// Returns the name of a field in Python, where `with` is a keyword.
fn attribute(field: &'static str) -> &'static str {
    if field == "with" { "with_" } else { field }
}

impl Class {
    fn python(self, py: Python<'_>) -> PyResult<&Bound<'_, PyType>> {
        static CLASSES: [Lazy<Py<PyType>>; 8] = [const { Lazy::new() }; 8];
        let (index, name) = match self {
            Self::Shape => (0, "ShapeError"),
            Self::Option => (1, "OptionError"),
            Self::ElementType => (2, "ElementTypeError"),
            Self::Position => (3, "PositionError"),
            Self::Array => (4, "ArrayError"),
            Self::Device => (5, "DeviceError"),
            Self::Session => (6, "SessionError"),
            Self::Cuda => (7, "CudaError"),
        };
        CLASSES[index].import(py, "kvscatter.errors", name)
    }
}

impl From<ErrorClass> for Class {
    fn from(class: ErrorClass) -> Self {
        match class {
            ErrorClass::Shape => Self::Shape,
            ErrorClass::Attribute => Self::Option,
            ErrorClass::ElementType => Self::ElementType,
            ErrorClass::Position => Self::Position,
            // `Buffer`, and any class that the core may add.
            _ => Self::Array,
        }
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

impl From<&str> for Field {
    fn from(value: &str) -> Self {
        Self::Name(value.to_owned())
    }
}

impl From<String> for Field {
    fn from(value: String) -> Self {
        Self::Name(value)
    }
}

impl From<Digits> for Field {
    fn from(value: Digits) -> Self {
        Self::Digits(value)
    }
}

impl From<Element> for Field {
    fn from(element: Element) -> Self {
        element.ty.into()
    }
}

/// Stores an element type by its NumPy name.
impl From<ElementType> for Field {
    fn from(element: ElementType) -> Self {
        Self::Name(element.numpy_name().into())
    }
}
