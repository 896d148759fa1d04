//! Errors in Python arguments that are detected before the core is called.

use std::fmt;

use kvscatter::error::ErrorKind;
use pyo3::prelude::*;
use pyo3::types::PyType;

use crate::element::Element;
use crate::error::{Class, Field, raise};

/// An error in a Python argument. The errors of the core are in [`error`](crate::error).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// An object that is neither a NumPy array nor has `__dlpack__`.
    NotAnArray { argument: &'static str, class: String },
    /// A type that ONNX does not have.
    Dtype { argument: &'static str, dtype: String },
    /// A type that NumPy does not know.
    DtypeName { dtype: String },
    /// A byte order that is not the machine's.
    ByteOrder { argument: &'static str, dtype: String },
    /// Two arrays with different types that must have the same.
    DtypeMismatch { argument: &'static str, element: Element, cache: Element },
    /// A NumPy stride that is not a multiple of the element size.
    Strides { argument: &'static str, dimension: usize, stride: isize, itemsize: usize },
    /// An array that is read-only.
    ReadOnly { argument: &'static str },
    /// An array of a library whose arrays are never written.
    Immutable { argument: &'static str, library: &'static str, kind: MemoryKind },
    /// An array in the memory of another device. `is` is `None` if this package cannot use that device at
    /// all.
    Device { argument: &'static str, device: String, is: Option<MemoryKind>, wanted: MemoryKind },
    /// A CUDA device that is not the current one.
    NotCurrent { argument: &'static str, device: i32, current: i32 },
    /// An object that is not an array on a device.
    NotOnDevice { argument: &'static str, class: String },
    /// A `__cuda_array_interface__` that lacks a required entry.
    Interface { argument: &'static str, why: &'static str },
    /// Indices on a device whose width the kernels do not read.
    DeviceIntegers { argument: &'static str, got: Element, expected: &'static str },
    /// An empty list of pairs.
    NoPairs { argument: &'static str },
    /// A status, or a copy of one, with the wrong size.
    StatusBytes { argument: &'static str, got: usize },
    /// An array of a library for which this package cannot allocate a status or find the current stream.
    Unknown { argument: &'static str, library: String },
    /// A tensor whose gradient would be lost, or that is more than plain memory.
    Tensor { argument: &'static str, why: &'static str },
    /// A tensor without memory, such as one of a trace.
    NoMemory { argument: &'static str, class: String, advice: &'static str },
    /// An array that its library cannot export.
    Export { argument: &'static str, why: String },
    /// An array whose dtype, shape or layout differs from what the write was prepared for.
    Prepared { argument: &'static str, pair: usize, what: &'static str, got: String, expected: String },
    /// A result whose shape is not that of the past.
    OutShape { argument: &'static str, got: String, expected: String },
    /// A result of a functional write that is not dense.
    NotContiguous { argument: &'static str },
    /// An array whose memory or shape was changed by code that ran during the call.
    Moved { argument: &'static str },
    /// An object array that contains an object that is not a string.
    NotAString { argument: &'static str, class: String },
    /// Two arguments that share memory.
    Overlap { argument: &'static str, with: &'static str },
    /// Indices that are not integers.
    NotIntegers { name: Name, got: String },
    /// Indices that are neither an array nor a sequence.
    NotASequence { name: Name, class: String },
    /// An element of `pairs` that is not a tuple of two.
    NotAPair { index: usize, class: String },
    /// An integer that does not fit 64 bits, or 32 bits if the specification requires that, with its index
    /// in a list.
    IntegerRange { name: Name, index: Option<usize>, value: String, bits: u32 },
    /// A size or an index below 0, with its index in a list.
    NegativeSize { argument: &'static str, index: Option<usize>, value: i64 },
    /// Indices that do not have exactly one dimension.
    IndexRank { name: Name, rank: usize },
    /// A keyword argument of the wrong type.
    Keyword { argument: &'static str, class: String, expected: &'static str },
    /// An axis that does not fit 64 bits.
    Axis { value: String },
    /// A keyword argument that is not one of a few words.
    Choice { argument: &'static str, value: String, choices: &'static [&'static str] },
    /// A `dtype` that is missing with shapes, or given with arrays.
    DtypeKeyword { needed: bool },
    /// A dimension that is negative or too large for any buffer.
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

impl From<&'static str> for Name {
    fn from(argument: &'static str) -> Self {
        Self { argument, list: None }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.argument)?;
        self.list.map_or(Ok(()), |index| write!(f, "[{index}]"))
    }
}

/// The size of a status on a device.
pub(crate) const STATUS_BYTES: usize = size_of::<kvscatter_cuda::StatusWords>();

/// The exception that a failure becomes.
struct Description {
    class: Class,
    kind: &'static str,
    argument: &'static str,
    message: String,
    /// The values that a caller may read without parsing the message.
    fields: Vec<(&'static str, Field)>,
}

impl Description {
    fn new(class: Class, kind: &'static str, argument: &'static str, message: String) -> Self {
        Self { class, kind, argument, message, fields: Vec::new() }
    }

    fn field(mut self, name: &'static str, field: impl Into<Field>) -> Self {
        self.fields.push((name, field.into()));
        self
    }
}

impl Failure {
    #[expect(clippy::too_many_lines, reason = "a table: one arm for each variant")]
    fn describe(self) -> Description {
        let of = Description::new;
        match self {
            Self::NotAnArray { argument, class } => {
                let message =
                    format!("{argument} is of type {class}: must be a NumPy array or have __dlpack__");
                of(Class::ElementType, "not_an_array", argument, message)
            }
            Self::Dtype { argument, dtype } => {
                let message = format!(
                    "{argument} has dtype {dtype}, which is not a type of TensorScatter: use dtype=object for strings, and a view of the same width for other data"
                );
                of(Class::ElementType, ErrorKind::ElementType.name(), argument, message).field("dtype", dtype)
            }
            Self::DtypeName { dtype } => {
                let message = format!(
                    "dtype = {dtype}: NumPy does not know it; bfloat16, float8 and 4-bit types come with ml_dtypes"
                );
                of(Class::ElementType, ErrorKind::ElementType.name(), "dtype", message).field("dtype", dtype)
            }
            Self::ByteOrder { argument, dtype } => {
                let message =
                    format!("{argument} has dtype {dtype}, which is not in this machine's byte order");
                of(Class::ElementType, "byte_order", argument, message).field("dtype", dtype)
            }
            Self::DtypeMismatch { argument, element, cache } => {
                let message = format!(
                    "{argument} is {element}, but the cache is {cache}: both must have the same type"
                );
                of(Class::ElementType, ErrorKind::ElementTypeMismatch.name(), argument, message)
                    .field("element", element.ty)
                    .field("cache", cache.ty)
            }
            Self::Strides { argument, dimension, stride, itemsize } => {
                let message = format!(
                    "{argument} has a stride of {stride} bytes in dimension {dimension}, which is not a multiple of the element size {itemsize}"
                );
                of(Class::Array, "strides", argument, message)
                    .field("dimension", dimension)
                    .field("itemsize", itemsize)
            }
            Self::ReadOnly { argument } => {
                let message = format!("{argument} is read-only: it cannot be written in place");
                of(Class::Array, "read_only", argument, message)
            }
            Self::Immutable { argument, library, kind } => {
                let advice = match (kind, argument) {
                    (MemoryKind::Cuda, _) => "use memory of PyTorch, CuPy or your own",
                    (MemoryKind::Host, "out") => "omit out to get a new array",
                    (MemoryKind::Host, _) => "use tensor_scatter, which returns a new array",
                };
                let message = format!("{argument} is a {library} array, which is immutable: {advice}");
                of(Class::Array, "immutable", argument, message)
            }
            Self::Device { argument, device, is, wanted } => {
                let advice = match (wanted, is) {
                    (MemoryKind::Cuda, _) => "must be on a CUDA device",
                    (MemoryKind::Host, Some(_)) => "use kvscatter.cuda for arrays on CUDA devices",
                    (MemoryKind::Host, None) => "must be in the memory of the CPU",
                };
                let message = format!("{argument} is on {device}: {advice}");
                of(Class::Device, "device", argument, message).field("device", device)
            }
            Self::NotCurrent { argument, device, current } => {
                let device = format!("cuda:{device}");
                let message = format!(
                    "{argument} is on {device}, but the current device of this thread is cuda:{current}: make {device} current first"
                );
                of(Class::Device, "device", argument, message).field("device", device)
            }
            Self::NotOnDevice { argument, class } => {
                let message = format!(
                    "{argument} is of type {class}: must be an array on a CUDA device, with __dlpack__ or __cuda_array_interface__"
                );
                of(Class::ElementType, "not_an_array", argument, message)
            }
            Self::Interface { argument, why } => {
                let message = format!("{argument} cannot be read through __cuda_array_interface__: {why}");
                of(Class::Array, "export", argument, message)
            }
            Self::DeviceIntegers { argument, got, expected } => {
                let message = format!("{argument} holds {got}: must hold {expected} on a device");
                of(Class::ElementType, "not_integers", argument, message)
            }
            Self::NoPairs { argument } => {
                let message = format!("{argument} is empty: pass at least one");
                of(Class::Option, "no_pairs", argument, message)
            }
            Self::StatusBytes { argument, got } => {
                let message = format!("{argument} has {got} bytes, must have {STATUS_BYTES}");
                of(Class::Shape, "status_bytes", argument, message)
                    .field("got", got)
                    .field("expected", STATUS_BYTES)
            }
            Self::Unknown { argument, library } => {
                let why = match argument {
                    "stream" => {
                        ", as in launch(stream): the current stream is known for PyTorch and CuPy only"
                    }
                    _ => ": only PyTorch and CuPy can allocate one",
                };
                let message = format!("{argument} is needed{why}, and the first cache is of {library}");
                of(Class::Option, "unknown", argument, message)
            }
            Self::Tensor { argument, why } => {
                of(Class::Array, "tensor", argument, format!("{argument} {why}"))
            }
            Self::NoMemory { argument, class, advice } => {
                let message = format!("{argument} is of type {class}, which has no memory: {advice}");
                of(Class::Array, "no_memory", argument, message)
            }
            Self::Export { argument, why } => {
                let message = format!("{argument} cannot be read through DLPack: {why}");
                of(Class::Array, "export", argument, message)
            }
            Self::Prepared { argument, pair, what, got, expected } => {
                let class = if what == "dtype" { Class::ElementType } else { Class::Shape };
                let of_pair = if pair > 0 { format!(" (pair {pair})") } else { String::new() };
                let message = format!(
                    "{argument}{of_pair} has {what} {got}, must have {expected}: all calls and pairs of a write must have one form; prepare another write for this one"
                );
                of(class, "prepared", argument, message)
                    .field("pair", pair)
                    .field("what", what)
                    .field("got", got)
                    .field("expected", expected)
            }
            Self::OutShape { argument, got, expected } => {
                let message = format!("{argument} has shape {got}, must have past_cache's {expected}");
                of(Class::Shape, "out_shape", argument, message).field("got", got).field("expected", expected)
            }
            Self::NotContiguous { argument } => {
                of(Class::Array, "not_contiguous", argument, format!("{argument} must be C-contiguous"))
            }
            Self::Moved { argument } => {
                let message =
                    format!("{argument} was moved or reshaped while the call read another argument");
                of(Class::Array, "moved", argument, message)
            }
            Self::NotAString { argument, class } => {
                let message = format!("{argument} contains {class}: object arrays must contain only str");
                of(Class::ElementType, "not_a_string", argument, message)
            }
            Self::Overlap { argument, with } => {
                let message = format!("{argument} shares memory with {with}");
                of(Class::Array, ErrorKind::Overlap.name(), argument, message).field("with_", with)
            }
            Self::NotIntegers { name, got } => {
                let message = format!("{name} holds {got}: must hold integers");
                of(Class::ElementType, "not_integers", name.argument, message)
            }
            Self::NotASequence { name, class } => {
                let message =
                    format!("{name} is of type {class}: must be an array or a sequence of integers");
                of(Class::ElementType, "not_integers", name.argument, message)
            }
            Self::NotAPair { index, class } => {
                let message =
                    format!("pairs[{index}] is of type {class}: must be a tuple of a cache and its update");
                of(Class::ElementType, "not_a_pair", "pairs", message)
            }
            Self::IntegerRange { name, index, value, bits } => {
                let of_list = index.map_or_else(String::new, |index| format!("[{index}]"));
                let message = format!("{name}{of_list} = {value}: must fit {bits} bits");
                let description = of(Class::Position, "integer_range", name.argument, message);
                let indexed = match index {
                    Some(index) => description.field("index", index),
                    None => description,
                };
                indexed.field("value", Field::Digits(value))
            }
            Self::NegativeSize { argument, index, value } => {
                let of_list = index.map_or_else(String::new, |index| format!("[{index}]"));
                let message = format!("{argument}{of_list} = {value}: must not be negative");
                let description =
                    of(Class::Position, "negative_size", argument, message).field("value", value);
                match index {
                    Some(index) => description.field("index", index),
                    None => description,
                }
            }
            Self::IndexRank { name, rank } => {
                let advice = if name.list.is_none() { ": one value per sample" } else { "" };
                let message = format!("{name} has {rank} dimension{}, must have 1{advice}", plural(rank));
                of(Class::Shape, ErrorKind::Rank.name(), name.argument, message).field("rank", rank)
            }
            Self::Keyword { argument, class, expected } => {
                let message = format!("{argument} is of type {class}: must be {expected}");
                of(Class::ElementType, "keyword_type", argument, message)
            }
            Self::Axis { value } => {
                let message = format!("axis = {value} is not a dimension of any cache");
                of(Class::Option, ErrorKind::AxisOutOfRange.name(), "axis", message)
                    .field("axis", Field::Digits(value))
            }
            Self::Choice { argument, value, choices } => {
                let message = format!("{argument} = {value:?}: must be {}", choices.join(" or "));
                of(Class::Option, "choice", argument, message).field("value", value)
            }
            Self::DtypeKeyword { needed } => {
                let message = match needed {
                    true => "dtype is required with shapes",
                    false => "dtype is not allowed with arrays, which have their own",
                };
                of(Class::Option, "dtype_keyword", "dtype", message.to_owned())
            }
            Self::Dimension { argument, dimension, value } => {
                let message = format!(
                    "{argument}[{dimension}] = {value}: dimensions must be integers from 0 to {}",
                    isize::MAX
                );
                of(Class::Shape, "dimension", argument, message).field("dimension", dimension)
            }
        }
    }
}

/// Returns the plural ending of a noun for this count.
pub(crate) fn plural(count: usize) -> &'static str {
    if count == 1 { "" } else { "s" }
}

/// Returns the name of a class as messages show it.
pub(crate) fn class_name(class: &Bound<'_, PyType>) -> String {
    class.fully_qualified_name().map_or_else(|_| "an object".to_owned(), |name| name.to_string())
}

impl From<Failure> for PyErr {
    fn from(failure: Failure) -> Self {
        let Description { class, kind, argument, message, fields } = failure.describe();
        Python::attach(|py| raise(py, class, kind, Some(argument), message, &fields))
    }
}
