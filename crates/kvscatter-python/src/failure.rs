//! Errors in Python arguments that are detected before the core is called.

use std::fmt;

use kvscatter::error::ErrorKind;
use pyo3::prelude::*;
use pyo3::types::PyType;

use crate::element::Element;
use crate::error::{Class, Field, raise};

/// An error in a Python argument. The errors of the core are in [`error`](crate::error).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Failure {
    #[error("{argument} is of type {class}: must be a NumPy array or have __dlpack__")]
    NotAnArray { argument: &'static str, class: String },
    #[error(
        "{argument} has dtype {dtype}, which is not a type of TensorScatter: use dtype=object for strings, and a \
         view of the same width for other data"
    )]
    Dtype { argument: &'static str, dtype: String },
    #[error("dtype = {dtype}: NumPy does not know it; bfloat16, float8 and 4-bit types come with ml_dtypes")]
    DtypeName { dtype: String },
    #[error("{argument} has dtype {dtype}, which is not in this machine's byte order")]
    ByteOrder { argument: &'static str, dtype: String },
    #[error("{argument} is {element}, but the cache is {cache}: both must have the same type")]
    DtypeMismatch { argument: &'static str, element: Element, cache: Element },
    #[error(
        "{argument} has a stride of {stride} bytes in dimension {dimension}, which is not a multiple of the element \
         size {itemsize}"
    )]
    Strides { argument: &'static str, dimension: usize, stride: isize, itemsize: usize },
    #[error("{argument} is read-only: it cannot be written in place")]
    ReadOnly { argument: &'static str },
    #[error("{argument} is a {library} array, which is immutable: {}", instead_of_immutable(.argument, *.kind))]
    Immutable { argument: &'static str, library: &'static str, kind: MemoryKind },
    /// `is` is `None` if this package cannot use the device at all.
    #[error("{argument} is on {device}: {}", usable_device(*.is, *.wanted))]
    Device { argument: &'static str, device: String, is: Option<MemoryKind>, wanted: MemoryKind },
    #[error(
        "{argument} is on cuda:{device}, but the current device of this thread is cuda:{current}: make \
         cuda:{device} current first"
    )]
    NotCurrent { argument: &'static str, device: i32, current: i32 },
    #[error(
        "{argument} is of type {class}: must be an array on a CUDA device, with __dlpack__ or \
         __cuda_array_interface__"
    )]
    NotOnDevice { argument: &'static str, class: String },
    #[error("{argument} cannot be read through __cuda_array_interface__: {why}")]
    Interface { argument: &'static str, why: &'static str },
    #[error("{argument} holds {got}: must hold {expected} on a device")]
    DeviceIntegers { argument: &'static str, got: Element, expected: &'static str },
    #[error("{argument} is empty: pass at least one")]
    NoPairs { argument: &'static str },
    /// The argument is a status, or a copy of one.
    #[error("{argument} has {got} bytes, must have {STATUS_BYTES}")]
    StatusBytes { argument: &'static str, got: usize },
    /// This package cannot get the argument from the library of the caches.
    #[error("{argument} is needed{}, and the first cache is of {library}", needed_from_library(.argument))]
    Unknown { argument: &'static str, library: String },
    /// A tensor whose gradient would be lost, or that is more than plain memory.
    #[error("{argument} {why}")]
    Tensor { argument: &'static str, why: &'static str },
    /// A tensor without memory, such as one of a trace.
    #[error("{argument} is of type {class}, which has no memory: {advice}")]
    NoMemory { argument: &'static str, class: String, advice: &'static str },
    #[error("{argument} cannot be read through DLPack: {why}")]
    Export { argument: &'static str, why: String },
    #[error(
        "{argument}{} has {what} {got}, must have {expected}: all calls and pairs of a write must have one form; \
         prepare another write for this one",
        of_pair(*.pair)
    )]
    Prepared { argument: &'static str, pair: usize, what: &'static str, got: String, expected: String },
    #[error("{argument} has shape {got}, must have past_cache's {expected}")]
    OutShape { argument: &'static str, got: String, expected: String },
    #[error("{argument} must be C-contiguous")]
    NotContiguous { argument: &'static str },
    /// Code that ran during the call changed the memory or the shape of the array.
    #[error("{argument} was moved or reshaped while the call read another argument")]
    Moved { argument: &'static str },
    #[error("{argument} contains {class}: object arrays must contain only str")]
    NotAString { argument: &'static str, class: String },
    #[error("{argument} shares memory with {with}")]
    Overlap { argument: &'static str, with: &'static str },
    #[error("{name} holds {got}: must hold integers")]
    NotIntegers { name: Name, got: String },
    #[error("{name} is of type {class}: must be an array or a sequence of integers")]
    NotASequence { name: Name, class: String },
    #[error("pairs[{index}] is of type {class}: must be a tuple of a cache and its update")]
    NotAPair { index: usize, class: String },
    #[error("{name}{} = {value}: must fit {bits} bits", in_brackets(*.index))]
    IntegerRange { name: Name, index: Option<usize>, value: String, bits: u32 },
    #[error("{argument}{} = {value}: must not be negative", in_brackets(*.index))]
    NegativeSize { argument: &'static str, index: Option<usize>, value: i64 },
    #[error("{name} has {rank} dimension{}, must have 1{}", plural(*.rank), .name.advice())]
    IndexRank { name: Name, rank: usize },
    #[error("{argument} is of type {class}: must be {expected}")]
    Keyword { argument: &'static str, class: String, expected: &'static str },
    /// The axis does not fit 64 bits.
    #[error("axis = {value} is not a dimension of any cache")]
    Axis { value: String },
    #[error("{argument} = {value:?}: must be {}", .choices.join(" or "))]
    Choice { argument: &'static str, value: String, choices: &'static [&'static str] },
    #[error("dtype is required with shapes")]
    DtypeMissing,
    #[error("dtype is not allowed with arrays, which have their own")]
    DtypeUseless,
    #[error("{argument}[{dimension}] = {value}: dimensions must be integers from 0 to {}", isize::MAX)]
    Dimension { argument: &'static str, dimension: usize, value: String },
}

/// The kind of memory that a call requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MemoryKind {
    Host,
    Cuda,
}

/// An argument, or one of the lists that it contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Name {
    pub(crate) argument: &'static str,
    /// The index of the list.
    pub(crate) list: Option<usize>,
}

/// The size of a status on a device.
pub(crate) const STATUS_BYTES: usize = size_of::<kvscatter_cuda::StatusWords>();

/// The class, the kind, the argument and the fields of an exception.
type Described = (Class, &'static str, &'static str, Vec<(&'static str, Field)>);

impl Failure {
    fn describe(self) -> Described {
        use Class::{Array, ElementType, Position, Shape};

        let size = |name, size: usize| vec![(name, size.into())];
        let text = |name, text: String| vec![(name, text.into())];
        match self {
            Self::NotAnArray { argument, .. } | Self::NotOnDevice { argument, .. } => {
                (ElementType, "not_an_array", argument, vec![])
            }
            Self::Dtype { argument, dtype } => {
                (ElementType, ErrorKind::ElementType.name(), argument, text("dtype", dtype))
            }
            Self::DtypeName { dtype } => {
                (ElementType, ErrorKind::ElementType.name(), "dtype", text("dtype", dtype))
            }
            Self::ByteOrder { argument, dtype } => {
                (ElementType, "byte_order", argument, text("dtype", dtype))
            }
            Self::DtypeMismatch { argument, element, cache } => {
                let fields = vec![("element", element.ty.into()), ("cache", cache.ty.into())];
                (ElementType, ErrorKind::ElementTypeMismatch.name(), argument, fields)
            }
            Self::Strides { argument, dimension, itemsize, .. } => {
                let fields = vec![("dimension", dimension.into()), ("itemsize", itemsize.into())];
                (Array, "strides", argument, fields)
            }
            Self::ReadOnly { argument } => (Array, "read_only", argument, vec![]),
            Self::Immutable { argument, .. } => (Array, "immutable", argument, vec![]),
            Self::Device { argument, device, .. } => {
                (Class::Device, "device", argument, text("device", device))
            }
            Self::NotCurrent { argument, device, .. } => {
                (Class::Device, "device", argument, text("device", format!("cuda:{device}")))
            }
            Self::Interface { argument, .. } | Self::Export { argument, .. } => {
                (Array, "export", argument, vec![])
            }
            Self::NoPairs { argument } => (Class::Option, "no_pairs", argument, vec![]),
            Self::StatusBytes { argument, got } => {
                let fields = vec![("got", got.into()), ("expected", STATUS_BYTES.into())];
                (Shape, "status_bytes", argument, fields)
            }
            Self::Unknown { argument, .. } => (Class::Option, "unknown", argument, vec![]),
            Self::Tensor { argument, .. } => (Array, "tensor", argument, vec![]),
            Self::NoMemory { argument, .. } => (Array, "no_memory", argument, vec![]),
            Self::Prepared { argument, pair, what, got, expected } => {
                let class = if what == "dtype" { ElementType } else { Shape };
                let texts = [("what", what.into()), ("got", got.into()), ("expected", expected.into())];
                (class, "prepared", argument, [("pair", pair.into())].into_iter().chain(texts).collect())
            }
            Self::OutShape { argument, got, expected } => {
                (Shape, "out_shape", argument, vec![("got", got.into()), ("expected", expected.into())])
            }
            Self::NotContiguous { argument } => (Array, "not_contiguous", argument, vec![]),
            Self::Moved { argument } => (Array, "moved", argument, vec![]),
            Self::NotAString { argument, .. } => (ElementType, "not_a_string", argument, vec![]),
            Self::Overlap { argument, with } => {
                (Array, ErrorKind::Overlap.name(), argument, vec![("with_", with.into())])
            }
            Self::DeviceIntegers { argument, .. }
            | Self::NotIntegers { name: Name { argument, .. }, .. }
            | Self::NotASequence { name: Name { argument, .. }, .. } => {
                (ElementType, "not_integers", argument, vec![])
            }
            Self::NotAPair { .. } => (ElementType, "not_a_pair", "pairs", vec![]),
            Self::IntegerRange { name, index, value, .. } => {
                let index = index.map(|index| ("index", index.into()));
                let fields = index.into_iter().chain([("value", Field::Digits(value))]).collect();
                (Position, "integer_range", name.argument, fields)
            }
            Self::NegativeSize { argument, index, value } => {
                let index = index.map(|index| ("index", index.into()));
                (
                    Position,
                    "negative_size",
                    argument,
                    index.into_iter().chain([("value", value.into())]).collect(),
                )
            }
            Self::IndexRank { name, rank } => {
                (Shape, ErrorKind::Rank.name(), name.argument, size("rank", rank))
            }
            Self::Keyword { argument, .. } => (ElementType, "keyword_type", argument, vec![]),
            Self::Axis { value } => {
                let kind = ErrorKind::AxisOutOfRange.name();
                (Class::Option, kind, "axis", vec![("axis", Field::Digits(value))])
            }
            Self::Choice { argument, value, .. } => (Class::Option, "choice", argument, text("value", value)),
            Self::DtypeMissing | Self::DtypeUseless => (Class::Option, "dtype_keyword", "dtype", vec![]),
            Self::Dimension { argument, dimension, .. } => {
                (Shape, "dimension", argument, size("dimension", dimension))
            }
        }
    }
}

impl From<Failure> for PyErr {
    fn from(failure: Failure) -> Self {
        let message = failure.to_string();
        let (class, kind, argument, fields) = failure.describe();
        Python::attach(|py| raise(py, class, kind, Some(argument), message, &fields))
    }
}

impl Name {
    fn advice(self) -> &'static str {
        if self.list.is_none() { ": one value per sample" } else { "" }
    }
}

impl From<&'static str> for Name {
    fn from(argument: &'static str) -> Self {
        Self { argument, list: None }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.argument, in_brackets(self.list))
    }
}

fn instead_of_immutable(argument: &str, kind: MemoryKind) -> &'static str {
    match (kind, argument) {
        (MemoryKind::Cuda, _) => "use memory of PyTorch, CuPy or your own",
        (MemoryKind::Host, "out") => "omit out to get a new array",
        (MemoryKind::Host, _) => "use tensor_scatter, which returns a new array",
    }
}

fn usable_device(is: Option<MemoryKind>, wanted: MemoryKind) -> &'static str {
    match (wanted, is) {
        (MemoryKind::Cuda, _) => "must be on a CUDA device",
        (MemoryKind::Host, Some(_)) => "use kvscatter.cuda for arrays on CUDA devices",
        (MemoryKind::Host, None) => "must be in the memory of the CPU",
    }
}

fn needed_from_library(argument: &str) -> &'static str {
    match argument {
        "stream" => ", as in launch(stream): the current stream is known for PyTorch and CuPy only",
        _ => ": only PyTorch and CuPy can allocate one",
    }
}

fn of_pair(pair: usize) -> String {
    if pair > 0 { format!(" (pair {pair})") } else { String::new() }
}

fn in_brackets(index: Option<usize>) -> String {
    index.map_or_else(String::new, |index| format!("[{index}]"))
}

/// Returns the plural ending of a noun for this count.
pub(crate) fn plural(count: usize) -> &'static str {
    if count == 1 { "" } else { "s" }
}

/// Returns the name of a class as messages show it.
pub(crate) fn class_name(class: &Bound<'_, PyType>) -> String {
    class.fully_qualified_name().map_or_else(|_| "an object".to_owned(), |name| name.to_string())
}
