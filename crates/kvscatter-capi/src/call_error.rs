//! The errors of the interface: errors of the core and of attention, and mistakes that only C permits.

use std::ffi::CStr;
use std::fmt;

use kvscatter::error::ErrorKind;
use kvscatter::{ElementType, Error};
use kvscatter_attention::AttentionError;

use crate::element::kvs_element_type_code::{KVS_FLOAT8E8M0, KVS_FLOAT32};
use crate::fields::{Fields, Name};
use crate::status::kvs_status_code::*;

/// An error of a function. `kvs_last_error` returns it as text.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct CallError {
    kind: CallErrorKind,
    /// The pair of the tensor. `None` if the error is not about a tensor of a run.
    pair: Option<usize>,
}

/// An error of the core or of attention, or a mistake that only C permits. Its message is one lower-case line
/// without a full stop.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub(crate) enum CallErrorKind {
    #[error("{}", CoreMessage(*.0))]
    Core(Error),
    #[error(transparent)]
    Attention(AttentionError),
    #[error("{subject} is NULL")]
    NullPointer { subject: Subject },
    #[error("the address of {subject} is not a multiple of {alignment} bytes")]
    Misaligned { subject: Subject, alignment: usize },
    #[error(
        "struct_size of {} is {got}, must be {expected}: set it to the sizeof of the struct",
        Name(argument)
    )]
    StructSize { argument: &'static CStr, got: usize, expected: usize },
    #[error(
        "{} has type {code}, must be between {} and {}",
        Name(argument),
        ELEMENT_TYPES.0,
        ELEMENT_TYPES.1
    )]
    ElementType { argument: &'static CStr, code: i32 },
    #[error("a cache cannot have DLPack type code {code} with {bits} bits and {lanes} lanes")]
    DlpackType { code: u8, bits: u8, lanes: u16 },
    #[error("{} has {rank} dimensions, must have 0 to {max}", Name(argument))]
    RankLimit { argument: &'static CStr, rank: i64, max: u32 },
    #[error("dimension {dimension} of {} is {value}: must not be negative", Name(argument))]
    NegativeDimension { argument: &'static CStr, dimension: usize, value: i64 },
    #[error("{} = {value}: must be between 0 and {max}", Name(option))]
    UnknownOption { option: &'static CStr, value: i32, max: usize },
    #[error("{} is not an argument of {operator}: set it to zero", Name(argument))]
    UnexpectedArgument { argument: &'static CStr, operator: &'static str },
    #[error(
        "{} has indices of {bits} bits, must have {}",
        Name(argument),
        if *only_32 { "32" } else { "32 or 64" }
    )]
    IndexWidth { argument: &'static CStr, bits: i32, only_32: bool },
    #[error("{} {got}, was prepared with {expected}", AspectOf(*aspect, Name(argument)))]
    TensorMismatch { argument: &'static CStr, aspect: Aspect, got: i64, expected: i64 },
    #[error("{subject} is larger than any array: at most {} bytes", isize::MAX)]
    TooLarge { subject: Subject },
    #[error("{subject} at {address:#x} has {bytes} bytes, which reach beyond the address space")]
    AddressSpace { subject: Subject, address: usize, bytes: usize },
    #[error("the buffer of {} shares memory with pairs", Name(argument))]
    PairsOverlap { argument: &'static CStr },
    #[error("{} = {value}: must be at least {min}", Name(option))]
    OptionTooSmall { option: &'static CStr, value: i64, min: i64 },
    #[error("{} is {got}, must be {expected}", Name(argument))]
    OtherElementType { argument: &'static CStr, got: ElementType, expected: ElementType },
    #[error("stride {dimension} of {} is {value}, must be {}", Name(argument), rule)]
    Stride { argument: &'static CStr, dimension: usize, value: i64, rule: StrideRule },
    #[error("{} must be given", Name(argument))]
    MissingArgument { argument: &'static CStr },
    #[error("the buffer of {} is null, must have {bytes} bytes", Name(argument))]
    NullBuffer { argument: &'static CStr, bytes: usize },
    #[error("the buffer of {} shares memory with that of {}", Name(argument), Name(other))]
    Overlap { argument: &'static CStr, other: &'static CStr },
    #[error("the tensor is on DLPack device type {device}, must be on {expected} (kDLCPU)")]
    Device { device: i32, expected: i32 },
    #[error("byte_offset = {offset}: the tensor's data with this offset is outside the address space")]
    ByteOffset { offset: u64 },
    #[error("the visitor returned {value}, which stopped the visit")]
    Stopped { value: i32 },
    #[error("the library panicked, which is a bug: please report it")]
    Panic,
}

/// The smallest and the largest number of an element type. All numbers between them are element types too.
const ELEMENT_TYPES: (i32, i32) = (KVS_FLOAT32 as i32, KVS_FLOAT8E8M0 as i32);

/// The strides that a dimension of a tensor of attention may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StrideRule {
    Exactly(i64),
    NotNegative,
}

/// The argument that an address belongs to, or an array that the argument points to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Subject {
    argument: &'static CStr,
    part: Option<&'static str>,
}

/// The property in which a tensor differs from the prepared one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Aspect {
    Type,
    Rank,
    Dimension(usize),
    Stride(usize),
}

impl CallError {
    /// Returns the same error with the pair of the tensor that it is about.
    pub(crate) fn in_pair(self, pair: usize) -> Self {
        Self { pair: Some(pair), ..self }
    }

    pub(crate) fn fields(&self) -> Fields {
        let fields = self.kind.fields();
        match self.pair {
            Some(pair) => fields.index(pair),
            None => fields,
        }
    }
}

impl CallErrorKind {
    fn fields(&self) -> Fields {
        match *self {
            // The index is the sample, as in attention, and not the column of its table.
            Self::Core(error @ Error::BlockOutOfRange { sample, .. }) => {
                Fields::from(error.details()).index(sample)
            }
            Self::Core(error) => error.details().into(),
            Self::Attention(ref error) => error.into(),
            Self::NullPointer { subject } => Fields::new(KVS_ERROR_NULL_POINTER).named(subject.argument),
            Self::Misaligned { subject, alignment } => {
                Fields::new(KVS_ERROR_MISALIGNED).named(subject.argument).limit(alignment)
            }
            Self::StructSize { argument, got, expected } => {
                Fields::new(KVS_ERROR_STRUCT_SIZE).named(argument).value(got).limit(expected)
            }
            Self::ElementType { argument, code } => {
                let limit = code.clamp(ELEMENT_TYPES.0, ELEMENT_TYPES.1);
                Fields::new(KVS_ERROR_UNKNOWN_ELEMENT_TYPE).named(argument).value(code).limit(limit)
            }
            Self::DlpackType { code, .. } => {
                Fields::new(KVS_ERROR_UNKNOWN_ELEMENT_TYPE).named(c"dtype").value(code)
            }
            Self::RankLimit { argument, rank, max } => {
                let limit = rank.clamp(0, max.into());
                Fields::new(KVS_ERROR_RANK_LIMIT).named(argument).value(rank).limit(limit)
            }
            Self::NegativeDimension { argument, dimension, value } => {
                let fields = Fields::new(KVS_ERROR_NEGATIVE_DIMENSION).named(argument);
                fields.index(dimension).value(value).limit(0)
            }
            Self::UnknownOption { option, value, max } => {
                let limit = i64::from(value).clamp(0, i64::try_from(max).unwrap_or(i64::MAX));
                Fields::new(KVS_ERROR_UNKNOWN_OPTION).named(option).value(value).limit(limit)
            }
            Self::UnexpectedArgument { argument, .. } => {
                Fields::new(KVS_ERROR_UNEXPECTED_ARGUMENT).named(argument)
            }
            Self::IndexWidth { argument, bits, only_32 } => {
                let limit = if bits > 32 && !only_32 { 64 } else { 32 };
                Fields::new(KVS_ERROR_INDEX_WIDTH).named(argument).value(bits).limit(limit)
            }
            Self::TensorMismatch { argument, got, expected, .. } => {
                Fields::new(KVS_ERROR_TENSOR_MISMATCH).named(argument).value(got).limit(expected)
            }
            Self::TooLarge { subject } => {
                Fields::new(KVS_ERROR_TOO_LARGE).named(subject.argument).limit(isize::MAX)
            }
            Self::AddressSpace { subject, bytes, .. } => {
                Fields::new(KVS_ERROR_ADDRESS_SPACE).named(subject.argument).value(bytes)
            }
            Self::PairsOverlap { argument } => Fields::new(KVS_ERROR_OVERLAP).named(argument),
            Self::OptionTooSmall { option, value, min } => {
                Fields::new(KVS_ERROR_UNKNOWN_OPTION).named(option).value(value).limit(min)
            }
            Self::OtherElementType { argument, got, expected } => {
                let fields = Fields::new(KVS_ERROR_ELEMENT_TYPE_MISMATCH).named(argument);
                fields.value(got.onnx_code()).limit(expected.onnx_code())
            }
            Self::Stride { argument, dimension, value, rule } => {
                let fields = Fields::new(KVS_ERROR_STRIDE).named(argument);
                fields.index(dimension).value(value).limit(rule.nearest())
            }
            Self::MissingArgument { argument } => Fields::new(KVS_ERROR_MISSING_ARGUMENT).named(argument),
            Self::NullBuffer { argument, bytes } => {
                Fields::new(KVS_ERROR_NULL_BUFFER).named(argument).limit(bytes)
            }
            Self::Overlap { argument, .. } => Fields::new(KVS_ERROR_OVERLAP).named(argument),
            Self::Device { device, expected } => {
                Fields::new(KVS_ERROR_DEVICE).named(c"device").value(device).limit(expected)
            }
            Self::ByteOffset { offset } => {
                Fields::new(KVS_ERROR_BYTE_OFFSET).named(c"byte_offset").value(offset)
            }
            Self::Stopped { value } => Fields::new(KVS_ERROR_STOPPED).named(c"visit").value(value),
            Self::Panic => Fields::new(KVS_ERROR_PANIC),
        }
    }
}

impl From<CallErrorKind> for CallError {
    fn from(kind: CallErrorKind) -> Self {
        Self { kind, pair: None }
    }
}

impl From<Error> for CallError {
    fn from(error: Error) -> Self {
        CallErrorKind::Core(error).into()
    }
}

impl From<AttentionError> for CallError {
    fn from(error: AttentionError) -> Self {
        CallErrorKind::Attention(error).into()
    }
}

impl StrideRule {
    /// Returns the allowed stride that is nearest to a stride that is not allowed.
    fn nearest(self) -> i64 {
        match self {
            Self::Exactly(stride) => stride,
            Self::NotNegative => 0,
        }
    }
}

impl fmt::Display for StrideRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exactly(stride) => write!(f, "{stride}"),
            Self::NotNegative => f.write_str("0 or more"),
        }
    }
}

/// Writes one lower-case line without a full stop.
impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(pair) = self.pair.filter(|&pair| pair > 0) {
            write!(f, "pair {pair}: ")?;
        }
        self.kind.fmt(f)
    }
}

/// The core's message, or other advice if only a Rust program can follow the core's advice.
struct CoreMessage(Error);

impl fmt::Display for CoreMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.kind() {
            ErrorKind::ElementWidth => f.write_str(
                "the tensors contain strings, which this library cannot copy: use kvs_for_each_block and move the strings yourself",
            ),
            _ => self.0.fmt(f),
        }
    }
}

/// The beginning of a sentence about a property of a tensor.
struct AspectOf(Aspect, Name);

impl fmt::Display for AspectOf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(aspect, argument) = self;
        match aspect {
            Aspect::Type => write!(f, "{argument} has type"),
            Aspect::Rank => write!(f, "the rank of {argument} is"),
            Aspect::Dimension(dimension) => write!(f, "dimension {dimension} of {argument} is"),
            Aspect::Stride(dimension) => write!(f, "stride {dimension} of {argument} is"),
        }
    }
}

impl Subject {
    /// Returns the subject for an array that the argument points to.
    pub(crate) fn part(self, part: &'static str) -> Self {
        Self { part: Some(part), ..self }
    }
}

impl From<&'static CStr> for Subject {
    fn from(argument: &'static CStr) -> Self {
        Self { argument, part: None }
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(part) = self.part {
            write!(f, "the {part} of ")?;
        }
        Name(self.argument).fmt(f)
    }
}
