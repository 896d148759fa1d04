//! What can be wrong with a Python argument before the core sees it.

use std::fmt;

use pyo3::prelude::*;
use pyo3::types::PyType;

use crate::element::Element;
use crate::error::{Class, Field, raise};

/// Why an argument is refused. The core's own errors are in [`error`](crate::error).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// Neither a NumPy array nor anything with `__dlpack__`.
    NotAnArray { argument: &'static str, class: String },
    /// A type that ONNX does not have.
    Dtype { argument: &'static str, dtype: String },
    /// What NumPy does not know.
    DtypeName { dtype: String },
    /// Bytes in the order of another machine.
    ByteOrder { argument: &'static str, dtype: String },
    /// Two arrays must have one type.
    DtypeMismatch { argument: &'static str, element: Element, cache: Element },
    /// NumPy strides that end inside an element.
    Strides { argument: &'static str, dimension: usize, stride: isize, itemsize: usize },
    /// The array may not be written.
    ReadOnly { argument: &'static str },
    /// Arrays of this library are never written.
    Immutable { argument: &'static str, library: &'static str, kind: MemoryKind },
    /// The memory of another device; `is` is `None` where nothing here can reach it.
    Device { argument: &'static str, device: String, is: Option<MemoryKind>, wanted: MemoryKind },
    /// A CUDA device that is not the current one.
    NotCurrent { argument: &'static str, device: i32, current: i32 },
    /// What is no array on a CUDA device, nor any other.
    NotOnDevice { argument: &'static str, class: String },
    /// `__cuda_array_interface__` that does not say what it must.
    Interface { argument: &'static str, why: &'static str },
    /// Indices on a device that are not as wide as kernels read them.
    DeviceIntegers { argument: &'static str, got: Element, expected: &'static str },
    /// A write of nothing.
    NoPairs { argument: &'static str },
    /// A status of another size, or the copy of one.
    StatusBytes { argument: &'static str, got: usize },
    /// Nobody here can make a status, or knows which stream is current.
    Unknown { argument: &'static str, library: String },
    /// A tensor whose gradient would be lost, or that is no plain memory.
    Tensor { argument: &'static str, why: &'static str },
    /// What stands for tensors of another time or place, and has no memory of its own.
    NoMemory { argument: &'static str, class: String, advice: &'static str },
    /// The exporter itself refused.
    Export { argument: &'static str, why: String },
    /// A prepared write was given another dtype, shape or layout.
    Prepared { argument: &'static str, pair: usize, what: &'static str, got: String, expected: String },
    /// The result has the shape of the past.
    OutShape { argument: &'static str, got: String, expected: String },
    /// A functional write needs a dense result.
    NotContiguous { argument: &'static str },
    /// Code that ran during the call gave the array other memory or another shape.
    Moved { argument: &'static str },
    /// An object array holds something that is no string.
    NotAString { argument: &'static str, class: String },
    /// Two arguments share memory.
    Overlap { argument: &'static str, with: &'static str },
    /// Indices that are no integers.
    NotIntegers { argument: &'static str, got: String },
    /// Indices that are neither an array nor a sequence.
    NotASequence { argument: &'static str, class: String },
    /// An element of `pairs` that is no tuple of two.
    NotAPair { index: usize, class: String },
    /// An integer beyond 64 bits, or beyond the 32 that the specification gives it; with its place in a list.
    IntegerRange { argument: &'static str, index: Option<usize>, value: String, bits: u32 },
    /// Indices with another number of dimensions than one.
    IndexRank { argument: &'static str, rank: usize },
    /// A keyword of another type.
    Keyword { argument: &'static str, class: String, expected: &'static str },
    /// An axis beyond 64 bits.
    Axis { value: String },
    /// A keyword that is none of a few words.
    Choice { argument: &'static str, value: String, choices: &'static [&'static str] },
    /// Shapes were given without the type of their elements, or arrays with one.
    DtypeKeyword { needed: bool },
    /// A negative dimension, or one beyond any buffer.
    Dimension { argument: &'static str, dimension: usize, value: String },
}

/// Where memory must lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MemoryKind {
    Host,
    Cuda,
}

/// Of a status on a device.
pub(crate) const STATUS_BYTES: usize = size_of::<kvscatter_cuda::StatusWords>();

impl Failure {
    fn class(&self) -> Class {
        match self {
            Self::NotAnArray { .. }
            | Self::NotOnDevice { .. }
            | Self::DeviceIntegers { .. }
            | Self::Dtype { .. }
            | Self::DtypeName { .. }
            | Self::ByteOrder { .. }
            | Self::DtypeMismatch { .. }
            | Self::NotAString { .. }
            | Self::NotIntegers { .. }
            | Self::NotASequence { .. }
            | Self::Prepared { what: "dtype", .. }
            | Self::Keyword { .. }
            | Self::NotAPair { .. } => Class::ElementType,
            Self::Strides { .. }
            | Self::ReadOnly { .. }
            | Self::Immutable { .. }
            | Self::Tensor { .. }
            | Self::NoMemory { .. }
            | Self::Export { .. }
            | Self::Interface { .. }
            | Self::NotContiguous { .. }
            | Self::Moved { .. }
            | Self::Overlap { .. } => Class::Array,
            Self::Device { .. } | Self::NotCurrent { .. } => Class::Device,
            Self::StatusBytes { .. }
            | Self::Prepared { .. }
            | Self::OutShape { .. }
            | Self::IndexRank { .. }
            | Self::Dimension { .. } => Class::Shape,
            Self::IntegerRange { .. } => Class::Position,
            Self::Axis { .. }
            | Self::Choice { .. }
            | Self::Unknown { .. }
            | Self::NoPairs { .. }
            | Self::DtypeKeyword { .. } => Class::Option,
        }
    }

    fn kind(&self) -> &'static str {
        match self {
            Self::NotAnArray { .. } | Self::NotOnDevice { .. } => "not_an_array",
            Self::Dtype { .. } | Self::DtypeName { .. } => "element_type",
            Self::ByteOrder { .. } => "byte_order",
            Self::DtypeMismatch { .. } => "element_type_mismatch",
            Self::Strides { .. } => "strides",
            Self::ReadOnly { .. } => "read_only",
            Self::Immutable { .. } => "immutable",
            Self::Device { .. } | Self::NotCurrent { .. } => "device",
            Self::Tensor { .. } => "tensor",
            Self::NoMemory { .. } => "no_memory",
            Self::Export { .. } | Self::Interface { .. } => "export",
            Self::NoPairs { .. } => "no_pairs",
            Self::StatusBytes { .. } => "status_bytes",
            Self::Unknown { .. } => "unknown",
            Self::Prepared { .. } => "prepared",
            Self::OutShape { .. } => "out_shape",
            Self::NotContiguous { .. } => "not_contiguous",
            Self::Moved { .. } => "moved",
            Self::NotAString { .. } => "not_a_string",
            Self::Overlap { .. } => "overlap",
            Self::NotIntegers { .. } | Self::NotASequence { .. } | Self::DeviceIntegers { .. } => {
                "not_integers"
            }
            Self::NotAPair { .. } => "not_a_pair",
            Self::IntegerRange { .. } => "integer_range",
            Self::IndexRank { .. } => "rank",
            Self::Keyword { .. } => "keyword_type",
            Self::Axis { .. } => "axis_out_of_range",
            Self::Choice { .. } => "choice",
            Self::DtypeKeyword { .. } => "dtype_keyword",
            Self::Dimension { .. } => "dimension",
        }
    }

    fn argument(&self) -> &'static str {
        match *self {
            Self::NotAnArray { argument, .. }
            | Self::Dtype { argument, .. }
            | Self::ByteOrder { argument, .. }
            | Self::DtypeMismatch { argument, .. }
            | Self::Strides { argument, .. }
            | Self::ReadOnly { argument }
            | Self::Immutable { argument, .. }
            | Self::Device { argument, .. }
            | Self::NotCurrent { argument, .. }
            | Self::NotOnDevice { argument, .. }
            | Self::Interface { argument, .. }
            | Self::DeviceIntegers { argument, .. }
            | Self::Unknown { argument, .. }
            | Self::StatusBytes { argument, .. }
            | Self::NoPairs { argument }
            | Self::Tensor { argument, .. }
            | Self::NoMemory { argument, .. }
            | Self::Export { argument, .. }
            | Self::Prepared { argument, .. }
            | Self::OutShape { argument, .. }
            | Self::NotContiguous { argument }
            | Self::Moved { argument }
            | Self::NotAString { argument, .. }
            | Self::Overlap { argument, .. }
            | Self::NotIntegers { argument, .. }
            | Self::NotASequence { argument, .. }
            | Self::IntegerRange { argument, .. }
            | Self::IndexRank { argument, .. }
            | Self::Keyword { argument, .. }
            | Self::Choice { argument, .. }
            | Self::Dimension { argument, .. } => argument,
            Self::DtypeName { .. } | Self::DtypeKeyword { .. } => "dtype",
            Self::Axis { .. } => "axis",
            Self::NotAPair { .. } => "pairs",
        }
    }

    /// What a caller may want to read without parsing the message.
    fn fields(&self) -> Vec<(&'static str, Field)> {
        let int = Field::Size;
        let name = |value: &str| Field::Name(value.to_owned());
        match self {
            Self::Dtype { dtype, .. } | Self::DtypeName { dtype } | Self::ByteOrder { dtype, .. } => {
                vec![("dtype", name(dtype))]
            }
            Self::DtypeMismatch { element, cache, .. } => {
                vec![("element", element.ty.into()), ("cache", cache.ty.into())]
            }
            Self::Strides { dimension, itemsize, .. } => {
                vec![("dimension", int(*dimension)), ("itemsize", int(*itemsize))]
            }
            Self::Device { device, .. } => vec![("device", name(device))],
            Self::NotCurrent { device, .. } => vec![("device", Field::Name(format!("cuda:{device}")))],
            Self::StatusBytes { got, .. } => vec![("got", int(*got)), ("expected", int(STATUS_BYTES))],
            Self::Prepared { pair, what, got, expected, .. } => {
                vec![
                    ("pair", int(*pair)),
                    ("what", name(what)),
                    ("got", name(got)),
                    ("expected", name(expected)),
                ]
            }
            Self::OutShape { got, expected, .. } => vec![("got", name(got)), ("expected", name(expected))],
            Self::Overlap { with, .. } => vec![("with_", name(with))],
            Self::IntegerRange { index, value, .. } => {
                let index = index.map(|index| ("index", int(index)));
                index.into_iter().chain([("value", Field::Digits(value.clone()))]).collect()
            }
            Self::IndexRank { rank, .. } => vec![("rank", int(*rank))],
            Self::Dimension { dimension, .. } => vec![("dimension", int(*dimension))],
            Self::Axis { value } => vec![("axis", Field::Digits(value.clone()))],
            Self::Choice { value, .. } => vec![("value", name(value))],
            _ => vec![],
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotAnArray { argument, class } => {
                write!(f, "{argument} is of type {class}: must be a NumPy array or have __dlpack__")
            }
            Self::Dtype { argument, dtype } => write!(
                f,
                "{argument} has dtype {dtype}, which is none of the 24 types of TensorScatter: strings need dtype=object, other data a view of the same width"
            ),
            Self::DtypeName { dtype } => write!(
                f,
                "dtype = {dtype}: NumPy does not know it; bfloat16, float8 and 4-bit types come with ml_dtypes"
            ),
            Self::ByteOrder { argument, dtype } => {
                write!(f, "{argument} has dtype {dtype}, which is not in this machine's byte order")
            }
            Self::DtypeMismatch { argument, element, cache } => {
                write!(f, "{argument} is {element}, but the cache is {cache}: both must have one type")
            }
            Self::Strides { argument, dimension, stride, itemsize } => write!(
                f,
                "{argument} has a stride of {stride} bytes in dimension {dimension}, which is no multiple of its elements' {itemsize}"
            ),
            Self::ReadOnly { argument } => {
                write!(f, "{argument} is read-only: it cannot be written in place")
            }
            Self::Immutable { argument, library, kind: MemoryKind::Cuda } => write!(
                f,
                "{argument} is a {library} array, which is immutable: caches are memory of PyTorch, CuPy or your own"
            ),
            Self::Immutable { argument: "out", library, .. } => {
                write!(f, "out is a {library} array, which is immutable: leave out away to get a new one")
            }
            Self::Immutable { argument, library, .. } => write!(
                f,
                "{argument} is a {library} array, which is immutable: use tensor_scatter, which returns a new one"
            ),
            Self::Device { argument, device, wanted: MemoryKind::Cuda, .. } => {
                write!(f, "{argument} lies on {device}: must lie on a CUDA device")
            }
            Self::Device { argument, device, is: Some(_), .. } => {
                write!(f, "{argument} lies on {device}: kvscatter.cuda writes what lies there")
            }
            Self::Device { argument, device, .. } => {
                write!(f, "{argument} lies on {device}: must lie in the memory of the CPU")
            }
            Self::NotCurrent { argument, device, current } => write!(
                f,
                "{argument} lies on cuda:{device}, but cuda:{current} is current on this thread: choose its device first"
            ),
            Self::NotOnDevice { argument, class } => write!(
                f,
                "{argument} is of type {class}: must be an array on a CUDA device, with __dlpack__ or __cuda_array_interface__"
            ),
            Self::Interface { argument, why } => {
                write!(f, "{argument} cannot be read through __cuda_array_interface__: {why}")
            }
            Self::DeviceIntegers { argument, got, expected } => {
                write!(f, "{argument} holds {got}: must hold {expected} on a device")
            }
            Self::NoPairs { argument } => write!(f, "{argument} is empty: a write has at least one"),
            Self::StatusBytes { argument, got } => {
                write!(f, "{argument} has {got} bytes, must have {STATUS_BYTES}")
            }
            Self::Unknown { argument: "stream", library } => write!(
                f,
                "stream is needed, as in launch(stream): only PyTorch and CuPy are asked for theirs, and the first cache is of {library}"
            ),
            Self::Unknown { argument, library } => write!(
                f,
                "{argument} is needed: only PyTorch and CuPy are asked to make one, and the first cache is of {library}"
            ),
            Self::Tensor { argument, why } => write!(f, "{argument} {why}"),
            Self::NoMemory { argument, class, advice } => {
                write!(f, "{argument} is of type {class}, which has no memory that could be read: {advice}")
            }
            Self::Export { argument, why } => write!(f, "{argument} cannot be read through DLPack: {why}"),
            Self::Prepared { argument, pair, what, got, expected } => {
                let pair = if *pair > 0 { format!(" (pair {pair})") } else { String::new() };
                write!(
                    f,
                    "{argument}{pair} has {what} {got}, must have {expected}: a write has one form for all its calls and pairs, prepare another write for it"
                )
            }
            Self::OutShape { argument, got, expected } => {
                write!(f, "{argument} has shape {got}, must have past_cache's {expected}")
            }
            Self::NotContiguous { argument } => write!(f, "{argument} must be C-contiguous"),
            Self::Moved { argument } => {
                write!(f, "{argument} was moved or reshaped while the call read another argument")
            }
            Self::NotAString { argument, class } => {
                write!(f, "{argument} holds {class}: object arrays must hold str and nothing else")
            }
            Self::Overlap { argument, with } => write!(f, "{argument} shares memory with {with}"),
            Self::NotIntegers { argument, got } => write!(f, "{argument} holds {got}: must hold integers"),
            Self::NotASequence { argument, class } => {
                write!(f, "{argument} is of type {class}: must be an array or a sequence of integers")
            }
            Self::NotAPair { index, class } => {
                write!(f, "pairs[{index}] is of type {class}: must be a tuple of a cache and its update")
            }
            Self::IntegerRange { argument, index: Some(index), value, bits } => {
                write!(f, "{argument}[{index}] = {value}: must fit {bits} bits")
            }
            Self::IntegerRange { argument, index: None, value, bits } => {
                write!(f, "{argument} = {value}: must fit {bits} bits")
            }
            Self::IndexRank { argument, rank } => write!(
                f,
                "{argument} has {rank} dimension{}, must have 1: one value per sample",
                plural(*rank)
            ),
            Self::Keyword { argument, class, expected } => {
                write!(f, "{argument} is of type {class}: must be {expected}")
            }
            Self::Axis { value } => write!(f, "axis = {value} is not a dimension of any cache"),
            Self::Choice { argument, value, choices } => {
                write!(f, "{argument} = {value:?}: must be {}", choices.join(" or "))
            }
            Self::DtypeKeyword { needed: true } => {
                f.write_str("dtype is needed where shapes are given instead of arrays")
            }
            Self::DtypeKeyword { needed: false } => f.write_str("dtype is for shapes: arrays have their own"),
            Self::Dimension { argument, dimension, value } => write!(
                f,
                "{argument}[{dimension}] = {value}: dimensions must be integers from 0 to {}",
                isize::MAX
            ),
        }
    }
}

/// The plural of a noun, where it needs one.
pub(crate) fn plural(count: usize) -> &'static str {
    if count == 1 { "" } else { "s" }
}

/// A class as messages name it.
pub(crate) fn class_name(class: &Bound<'_, PyType>) -> String {
    class.fully_qualified_name().map_or_else(|_| "an object".to_owned(), |name| name.to_string())
}

impl From<Failure> for PyErr {
    fn from(failure: Failure) -> Self {
        Python::attach(|py| {
            let argument = Some(failure.argument());
            raise(py, failure.class(), failure.kind(), argument, failure.to_string(), &failure.fields())
        })
    }
}
