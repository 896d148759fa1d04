//! Errors in Python arguments that are detected before the core is called.

use kvscatter::ElementType;
use kvscatter::error::ErrorKind;
use pyo3::prelude::*;
use pyo3::types::PyType;

use crate::element::Element;
use crate::error::{Class, Digits, Field, raise};

/// Defines the errors as one table. Each has the fields of its variant besides the argument, its class, its kind,
/// the fields that are attributes of the exception, and its message.
macro_rules! failures {
    ($argument:ident; $(
        $(#[$doc:meta])*
        $variant:ident { $($field:ident: $type:ty),* }: $class:ident $kind:expr, [$($shown:ident),*],
            $message:literal $(, $part:expr)*;
    )*) => {
        /// An error in a Python argument. The errors of the core are in [`error`](crate::error).
        #[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
        pub(crate) enum Failure {$(
            $(#[$doc])*
            #[error($message $(, $part)*)]
            $variant { $argument: &'static str, $($field: $type),* },
        )*}

        impl Failure {
            fn describe(self) -> Described {
                match self {$(
                    Self::$variant { $argument, $($shown,)* .. } => {
                        let fields: Vec<Option<_>> = vec![$($shown.attribute(stringify!($shown))),*];
                        (Class::$class, $kind, $argument, fields.into_iter().flatten().collect())
                    }
                )*}
            }
        }
    };
}

failures! {
    argument;

    NotAnArray { class: String }: ElementType "not_an_array", [],
        "{argument} is of type {class}: must be a NumPy array or have __dlpack__";
    NotOnDevice { class: String }: ElementType "not_an_array", [],
        "{argument} is of type {class}: must be an array on a CUDA device, with __dlpack__ or \
         __cuda_array_interface__";
    Dtype { dtype: String }: ElementType ErrorKind::ElementType.name(), [dtype],
        "{argument} has dtype {dtype}, which is not a type of TensorScatter: use dtype=object for strings, and \
         a view of the same width for other data";
    DtypeName { dtype: String }: ElementType ErrorKind::ElementType.name(), [dtype],
        "{argument} = {dtype}: NumPy does not know it; bfloat16, float8 and 4-bit types come with ml_dtypes";
    ByteOrder { dtype: String }: ElementType "byte_order", [dtype],
        "{argument} has dtype {dtype}, which is not in this machine's byte order";
    DtypeMismatch { element: Element, cache: Element }:
        ElementType ErrorKind::ElementTypeMismatch.name(), [element, cache],
        "{argument} is {element}, but the cache is {cache}: both must have the same type";
    Strides { dimension: usize, stride: isize, itemsize: usize }: Array "strides", [dimension, itemsize],
        "{argument} has a stride of {stride} bytes in dimension {dimension}, which is not a multiple of the \
         element size {itemsize}";
    ReadOnly {}: Array "read_only", [],
        "{argument} is read-only: it cannot be written in place";
    Immutable { library: &'static str, kind: MemoryKind }: Array "immutable", [],
        "{argument} is a {library} array, which is immutable: {}", instead_of_immutable(argument, *kind);
    /// `is` is `None` if this package cannot use the device at all.
    Device { device: String, is: Option<MemoryKind>, wanted: MemoryKind }: Device "device", [device],
        "{argument} is on {device}: {}", usable_device(*is, *wanted);
    NotCurrent { device: String, current: i32 }: Device "device", [device],
        "{argument} is on {device}, but the current device of this thread is cuda:{current}: make {device} \
         current first";
    Interface { why: &'static str }: Array "export", [],
        "{argument} cannot be read through __cuda_array_interface__: {why}";
    Export { why: String }: Array "export", [],
        "{argument} cannot be read through DLPack: {why}";
    DeviceIntegers { got: Element, wanted: &'static str }: ElementType "not_integers", [],
        "{argument} holds {got}: must hold {wanted} on a device";
    NoPairs {}: Option "no_pairs", [],
        "{argument} is empty: pass at least one";
    /// The argument is a status, or a copy of one.
    StatusBytes { got: usize, expected: usize }: Shape "status_bytes", [got, expected],
        "{argument} has {got} bytes, must have {expected}";
    /// This package cannot get the argument from the library of the caches.
    Unknown { library: String }: Option "unknown", [],
        "{argument} is needed{}, and the first cache is of {library}", needed_from_library(argument);
    /// A tensor whose gradient would be lost, or that is more than plain memory.
    Tensor { why: &'static str }: Array "tensor", [],
        "{argument} {why}";
    /// A tensor without memory, such as one of a trace.
    NoMemory { class: String, advice: &'static str }: Array "no_memory", [],
        "{argument} is of type {class}, which has no memory: {advice}";
    Prepared { pair: usize, what: &'static str, got: String, expected: String }:
        Shape "prepared", [pair, what, got, expected],
        "{argument}{} has {what} {got}, must have {expected}: {ONE_FORM}", of_pair(*pair);
    PreparedType { pair: usize, what: &'static str, got: String, expected: String }:
        ElementType "prepared", [pair, what, got, expected],
        "{argument}{} has {what} {got}, must have {expected}: {ONE_FORM}", of_pair(*pair);
    OutShape { got: String, expected: String }: Shape "out_shape", [got, expected],
        "{argument} has shape {got}, must have past_cache's {expected}";
    NotContiguous {}: Array "not_contiguous", [],
        "{argument} must be C-contiguous";
    /// Code that ran during the call changed the memory or the shape of the array.
    Moved {}: Array "moved", [],
        "{argument} was moved or reshaped while the call read another argument";
    NotAString { class: String }: ElementType "not_a_string", [],
        "{argument} contains {class}: object arrays must contain only str";
    Overlap { with_: &'static str }: Array ErrorKind::Overlap.name(), [with_],
        "{argument} shares memory with {with_}";
    NotIntegers { list: Option<usize>, got: String }: ElementType "not_integers", [],
        "{argument}{} holds {got}: must hold integers", in_brackets(*list);
    NotASequence { list: Option<usize>, class: String }: ElementType "not_integers", [],
        "{argument}{} is of type {class}: must be an array or a sequence of integers", in_brackets(*list);
    NotAPair { place: usize, class: String }: ElementType "not_a_pair", [],
        "{argument}[{place}] is of type {class}: must be a tuple of a cache and its update";
    IntegerRange { list: Option<usize>, index: Option<usize>, value: Digits, bits: u32 }:
        Position "integer_range", [index, value],
        "{argument}{}{} = {value}: must fit {bits} bits", in_brackets(*list), in_brackets(*index);
    NegativeSize { index: Option<usize>, value: i64 }: Position "negative_size", [index, value],
        "{argument}{} = {value}: must not be negative", in_brackets(*index);
    IndexRank { list: Option<usize>, rank: usize }: Shape ErrorKind::Rank.name(), [rank],
        "{argument}{} has {rank} dimension{}, must have 1{}",
            in_brackets(*list), plural(*rank), per_sample(*list);
    ArrayRank { rank: usize, wanted: &'static str }: Shape ErrorKind::Rank.name(), [rank],
        "{argument} has {rank} dimension{}, must have {wanted}", plural(*rank);
    ScaleMissing {}: Option "scale_missing", [],
        "{argument} is missing: codes need k_scale and v_scale";
    WrongType { element: Element, expected: ElementType }: ElementType ErrorKind::ElementTypeMismatch.name(), [element],
        "{argument} is {element}, must be {}", expected.numpy_name();
    ResultShape { got: String, expected: String }: Shape "out_shape", [got, expected],
        "{argument} has shape {got}, must have {expected}";
    OutMissing {}: Option "out_missing", [],
        "{argument} is missing: the call was prepared for an array to write to";
    Keyword { class: String, wanted: &'static str }: ElementType "keyword_type", [],
        "{argument} is of type {class}: must be {wanted}";
    /// The axis does not fit 64 bits.
    Axis { axis: Digits }: Option ErrorKind::AxisOutOfRange.name(), [axis],
        "{argument} = {axis} is not a dimension of any cache";
    Choice { value: String, choices: &'static [&'static str] }: Option "choice", [value],
        "{argument} = {value:?}: must be {}", choices.join(" or ");
    DtypeMissing {}: Option "dtype_keyword", [],
        "{argument} is required with shapes";
    DtypeUseless {}: Option "dtype_keyword", [],
        "{argument} is not allowed with arrays, which have their own";
    Dimension { dimension: usize, value: String }: Shape "dimension", [dimension],
        "{argument}[{dimension}] = {value}: dimensions must be integers from 0 to {}", isize::MAX;
}

impl Failure {
    /// Returns the error for block tables of the wrong rank.
    pub(crate) fn block_tables(rank: usize) -> Self {
        Self::ArrayRank { argument: "block_tables", rank, wanted: "2: [samples, blocks of a sample]" }
    }
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

/// A field of an error as an attribute of its exception.
trait Shown {
    /// Returns `None` if the exception does not have the attribute.
    fn attribute(self, name: &'static str) -> Option<(&'static str, Field)>;
}

impl<T: Into<Field>> Shown for T {
    fn attribute(self, name: &'static str) -> Option<(&'static str, Field)> {
        Some((name, self.into()))
    }
}

impl Shown for Option<usize> {
    fn attribute(self, name: &'static str) -> Option<(&'static str, Field)> {
        self.map(|size| (name, size.into()))
    }
}

impl From<Failure> for PyErr {
    fn from(failure: Failure) -> Self {
        let message = failure.to_string();
        let (class, kind, argument, fields) = failure.describe();
        Python::attach(|py| raise(py, class, kind, Some(argument), message, &fields))
    }
}

impl From<&'static str> for Name {
    fn from(argument: &'static str) -> Self {
        Self { argument, list: None }
    }
}

const ONE_FORM: &str =
    "all calls and pairs of a write must have one form; prepare another write for this one";

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

fn per_sample(list: Option<usize>) -> &'static str {
    if list.is_none() { ": one value per sample" } else { "" }
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
