//! Converts between [`TensorProto`] and [`Tensor`], for every type and every field that ONNX stores values
//! in.
//!
//! | values | typed field | an entry is |
//! |---|---|---|
//! | float; complex64 | `float_data` | a float; real and imaginary part in turn |
//! | int32, int16, int8, uint16, uint8, bool | `int32_data` | the value |
//! | float16, bfloat16, float8… | `int32_data` | the bit pattern, zero-extended |
//! | int4, uint4, float4e2m1 | `int32_data` | two elements, the first in the low nibble |
//! | int64 | `int64_data` | the value |
//! | uint32, uint64 | `uint64_data` | the value |
//! | double; complex128 | `double_data` | a double; real and imaginary part in turn |
//! | string | `string_data` | the string's bytes |
//!
//! `raw_data` contains any type but string, in little-endian byte order, like [`Data::Bytes`]. After an odd
//! number of 4-bit elements, the unused nibble belongs to no element. It is read as 0 even if the file has
//! another value.

pub(crate) mod error;

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kvscatter::ElementType;
use strum::VariantArray;

use crate::external::{self, ExternalData};
use crate::proto::tensor_proto::DataLocation;
use crate::proto::{self, BYTES, Reader, TensorProto};
use crate::{Data, ErrorPlace, ExternalError, OnnxError, Tensor, TensorProtoError, file, storage_len};

/// Reads a tensor out of its message.
///
/// No memory is allocated for the values before the message is known to contain the number of values that the
/// shape requires. Without `external`, a tensor whose values are in another file is an error.
///
/// # Errors
/// Returns an [`OnnxError::InTensor`] if the message is not exactly one tensor of one of the 24 types. The
/// cause is one of the variants of [`OnnxError`] about tensors and external data.
pub fn decode(mut message: TensorProto, external: Option<&ExternalData>) -> Result<Tensor, OnnxError> {
    let name = message.name.take().unwrap_or_default();
    decode_nameless(message, external).in_tensor(&name)
}

/// Writes a tensor as a message with its values in `raw_data` (strings in `string_data`).
#[must_use]
pub fn encode(name: &str, tensor: &Tensor) -> TensorProto {
    let mut message = header(name, tensor);
    match tensor.data() {
        Data::Bytes(bytes) => message.raw_data = Some(Arc::new(bytes.clone())),
        Data::Strings(strings) => message.string_data.clone_from(strings),
    }
    message
}

/// Writes a tensor as a message with its values in the typed field of the table above.
#[must_use]
pub fn encode_typed(name: &str, tensor: &Tensor) -> TensorProto {
    let mut message = header(name, tensor);
    let bytes = match tensor.data() {
        Data::Bytes(bytes) => bytes,
        Data::Strings(strings) => {
            message.string_data.clone_from(strings);
            return message;
        }
    };
    match Field::for_element(tensor.element()) {
        Field::Float => message.float_data = each(bytes, f32::from_le_bytes),
        Field::Double => message.double_data = each(bytes, f64::from_le_bytes),
        Field::Int64 => message.int64_data = each(bytes, i64::from_le_bytes),
        Field::Uint64 if tensor.element() == ElementType::UInt32 => {
            message.uint64_data = each(bytes, |entry| u64::from(u32::from_le_bytes(entry)));
        }
        Field::Uint64 => message.uint64_data = each(bytes, u64::from_le_bytes),
        Field::Int32 => {
            message.int32_data = match tensor.element() {
                ElementType::Int32 => each(bytes, i32::from_le_bytes),
                ElementType::Int16 => each(bytes, |entry| i32::from(i16::from_le_bytes(entry))),
                ElementType::Int8 => each(bytes, |entry| i32::from(i8::from_le_bytes(entry))),
                element if element.bits() == Some(16) => {
                    each(bytes, |entry| i32::from(u16::from_le_bytes(entry)))
                }
                _ => each(bytes, |[byte]| i32::from(byte)),
            };
        }
        Field::Raw | Field::String => {}
    }
    message
}

/// Reads a tensor from the bytes of a `.pb` file: one [`TensorProto`] that contains its values.
///
/// # Errors
/// Returns [`crate::ProtoError::Decode`] and the errors of [`decode`].
pub fn read_tensor_pb(bytes: &[u8]) -> Result<Tensor, OnnxError> {
    decode(proto::decode(bytes)?, None)
}

/// Returns the bytes of a `.pb` file; see [`encode`].
///
/// # Errors
/// Returns [`crate::ProtoError::Encode`] if the tensor takes more than 2 GiB (protobuf's limit).
pub fn write_tensor_pb(name: &str, tensor: &Tensor) -> Result<Vec<u8>, OnnxError> {
    proto::encode(&encode(name, tensor))
}

/// Returns the range of the `raw_data` in the bytes of a `.pb` file, or `None` if there is none.
///
/// If the field is repeated, which its schema does not allow, the last one counts as in [`read_tensor_pb`].
#[must_use]
pub fn raw_data(bytes: &[u8]) -> Option<Range<usize>> {
    const RAW_DATA: u32 = 9;
    let mut reader = Reader::new(bytes);
    let mut range = None;
    while !reader.rest().is_empty() {
        let tag = reader.tag().ok()?;
        if (tag.number, tag.wire) == (RAW_DATA, BYTES) {
            let value = reader.bytes().ok()?.len();
            let end = bytes.len().checked_sub(reader.rest().len())?;
            range = Some(end.checked_sub(value)?..end);
        } else {
            reader.skip(tag).ok()?;
        }
    }
    range
}

/// Reads a `.pb` file. External data may be in the same folder.
///
/// # Errors
/// Errors are wrapped in [`OnnxError::InFile`].
///
/// * Returns [`std::io::Error`] or [`crate::FileError::NotRegularFile`] if the file cannot be read.
/// * Returns [`crate::FileError::FileTooLarge`] above 2 GiB (protobuf's limit).
/// * Returns the errors of [`read_tensor_pb`].
pub fn load_tensor_pb(path: &Path) -> Result<Tensor, OnnxError> {
    let message = load_message(path)?;
    let external = match message.data_location {
        Some(DataLocation::EXTERNAL) => Some(ExternalData::open(path.parent().unwrap_or(path))?),
        _ => None,
    };
    decode(message, external.as_ref()).in_file(path)
}

/// Returns the path of the other file that contains the values of a `.pb` file's tensor, if there is one.
///
/// # Errors
/// Returns the errors of [`load_tensor_pb`] about the `.pb` file. No other file is opened.
pub fn external_file(path: &Path) -> Result<Option<PathBuf>, OnnxError> {
    let message = load_message(path)?;
    Ok(external::path(&message, path.parent().unwrap_or(path)))
}

fn load_message(path: &Path) -> Result<TensorProto, OnnxError> {
    proto::decode(&file::read(path, proto::MAX_MESSAGE_BYTES)?).in_file(path)
}

/// Converts an ONNX `data_type` or `elem_type` to an element type.
pub(crate) fn element_type(code: Option<i32>) -> Result<ElementType, TensorProtoError> {
    match code {
        None | Some(0) => Err(TensorProtoError::UndefinedType),
        Some(code) => ElementType::from_onnx_code(code).ok_or(TensorProtoError::UnsupportedType { code }),
    }
}

/// Converts a dimension of a file to a size.
pub(crate) fn size(axis: usize, dim: i64) -> Result<usize, TensorProtoError> {
    usize::try_from(dim).map_err(|_| TensorProtoError::NegativeDim { axis, dim })
}

/// Returns the number of bytes of a tensor with external data.
pub(crate) fn external_bytes(message: &TensorProto) -> Result<u64, OnnxError> {
    match extent(message)? {
        (ElementType::String, ..) => Err(ExternalError::Strings.into()),
        (.., bytes) => Ok(u64::try_from(bytes).unwrap_or(u64::MAX)),
    }
}

/// Returns the type, the shape and the number of bytes of a tensor, or strings if it has strings.
pub(crate) fn extent(message: &TensorProto) -> Result<(ElementType, Vec<usize>, usize), OnnxError> {
    let element = element_type(message.data_type)?;
    let dims = message.dims.iter().enumerate();
    let shape = dims.map(|(axis, &dim)| size(axis, dim)).collect::<Result<Vec<_>, _>>()?;
    let expected = storage_len(element, &shape)?;
    Ok((element, shape, expected))
}

/// A field that stores values. Its name in `onnx.proto` is that of the variant with `_data`.
#[derive(Clone, Copy, PartialEq, Eq, strum::IntoStaticStr, strum::VariantArray)]
#[strum(serialize_all = "snake_case", suffix = "_data")]
enum Field {
    Raw,
    Float,
    Int32,
    String,
    Int64,
    Double,
    Uint64,
}

impl Field {
    /// Returns the typed field of a type.
    fn for_element(element: ElementType) -> Self {
        match element {
            ElementType::Float32 | ElementType::Complex64 => Self::Float,
            ElementType::Float64 | ElementType::Complex128 => Self::Double,
            ElementType::Int64 => Self::Int64,
            ElementType::UInt32 | ElementType::UInt64 => Self::Uint64,
            ElementType::String => Self::String,
            _ => Self::Int32,
        }
    }

    /// Returns the number of entries in this field of a message.
    fn len(self, message: &TensorProto) -> usize {
        match self {
            Self::Raw => message.raw_data.as_ref().map_or(0, |raw| raw.len()),
            Self::Float => message.float_data.len(),
            Self::Int32 => message.int32_data.len(),
            Self::String => message.string_data.len(),
            Self::Int64 => message.int64_data.len(),
            Self::Double => message.double_data.len(),
            Self::Uint64 => message.uint64_data.len(),
        }
    }

    fn name(self) -> &'static str {
        self.into()
    }
}

fn header(name: &str, tensor: &Tensor) -> TensorProto {
    TensorProto {
        name: Some(name.to_owned()),
        data_type: Some(tensor.element().onnx_code()),
        dims: tensor.dims_i64().collect(),
        ..TensorProto::default()
    }
}

fn decode_nameless(mut message: TensorProto, external: Option<&ExternalData>) -> Result<Tensor, OnnxError> {
    if message.segment.is_set() {
        return Err(TensorProtoError::Segment.into());
    }
    let (element, shape, expected) = extent(&message)?;
    let stored_in = only_field(&message)?;
    if message.data_location == Some(DataLocation::EXTERNAL) {
        let bytes = read_external(&message, stored_in, external)?;
        return Ok(Tensor::new(element, shape, Data::Bytes(bytes))?);
    }
    let field = Field::for_element(element);
    let data = match stored_in {
        Some(Field::Raw) if field != Field::String => {
            Data::Bytes(message.raw_data.take().map_or_else(Vec::new, Arc::unwrap_or_clone))
        }
        Some(stored_in) if stored_in != field => {
            return Err(TensorProtoError::WrongField {
                element,
                field: stored_in.name(),
                expected: field.name(),
            }
            .into());
        }
        _ => typed(message, element, &shape, expected)?,
    };
    Ok(Tensor::new(element, shape, data)?)
}

/// Returns the only field that contains values, if there is one.
fn only_field(message: &TensorProto) -> Result<Option<Field>, TensorProtoError> {
    let mut present = Field::VARIANTS.iter().filter(|field| field.len(message) > 0);
    match (present.next(), present.next()) {
        (Some(first), Some(second)) => {
            Err(TensorProtoError::TwoFields { first: first.name(), second: second.name() })
        }
        (only, _) => Ok(only.copied()),
    }
}

fn read_external(
    message: &TensorProto,
    stored_in: Option<Field>,
    external: Option<&ExternalData>,
) -> Result<Vec<u8>, OnnxError> {
    let expected = external_bytes(message)?;
    if let Some(second) = stored_in {
        return Err(TensorProtoError::TwoFields { first: "external_data", second: second.name() }.into());
    }
    let Some(external) = external else {
        let location = external::location(&message.external_data)?.to_owned();
        return Err(ExternalError::WithoutFolder { location }.into());
    };
    external.read(&message.external_data, expected)
}

fn typed(
    message: TensorProto,
    element: ElementType,
    shape: &[usize],
    expected: usize,
) -> Result<Data, TensorProtoError> {
    let field = Field::for_element(element);
    let entry_bytes = match element {
        ElementType::String => 1,
        ElementType::Complex64 => 4,
        ElementType::Complex128 => 8,
        _ => element.bits().map_or(1, |bits| bits.div_ceil(8)),
    };
    let expected = expected.div_euclid(entry_bytes);
    let got = field.len(&message);
    if got != expected {
        return Err(TensorProtoError::EntryCount {
            element,
            shape: shape.to_vec(),
            field: field.name(),
            expected,
            got,
        });
    }
    let bytes = match field {
        Field::Raw => message.raw_data.map_or_else(Vec::new, Arc::unwrap_or_clone),
        Field::String => return Ok(Data::Strings(message.string_data)),
        Field::Float => message.float_data.iter().flat_map(|v| v.to_le_bytes()).collect(),
        Field::Double => message.double_data.iter().flat_map(|v| v.to_le_bytes()).collect(),
        Field::Int64 => message.int64_data.iter().flat_map(|v| v.to_le_bytes()).collect(),
        Field::Uint64 if element == ElementType::UInt64 => {
            message.uint64_data.iter().flat_map(|v| v.to_le_bytes()).collect()
        }
        Field::Uint64 => {
            narrow(element, &message.uint64_data, |v| u32::try_from(v).map(u32::to_le_bytes).ok())?
        }
        Field::Int32 => from_int32_data(element, &message.int32_data)?,
    };
    Ok(Data::Bytes(bytes))
}

fn from_int32_data(element: ElementType, entries: &[i32]) -> Result<Vec<u8>, TensorProtoError> {
    match element {
        ElementType::Int32 => Ok(entries.iter().flat_map(|v| v.to_le_bytes()).collect()),
        ElementType::Int16 => narrow(element, entries, |v| i16::try_from(v).map(i16::to_le_bytes).ok()),
        ElementType::Int8 => narrow(element, entries, |v| i8::try_from(v).map(i8::to_le_bytes).ok()),
        ElementType::Bool => {
            narrow(element, entries, |v| u8::try_from(v).ok().filter(|&v| v <= 1).map(u8::to_le_bytes))
        }
        _ if element.bits() == Some(16) => {
            narrow(element, entries, |v| u16::try_from(v).map(u16::to_le_bytes).ok())
        }
        _ => narrow(element, entries, |v| u8::try_from(v).map(u8::to_le_bytes).ok()),
    }
}

/// Converts the entries of a field that is wider than the element type. Returns an error for an entry that
/// does not fit.
fn narrow<V: Copy + Into<i128>, const N: usize>(
    element: ElementType,
    entries: &[V],
    to_bytes: impl Fn(V) -> Option<[u8; N]>,
) -> Result<Vec<u8>, TensorProtoError> {
    let mut bytes = Vec::with_capacity(entries.len().saturating_mul(N));
    for (index, &value) in entries.iter().enumerate() {
        bytes.extend(to_bytes(value).ok_or_else(|| TensorProtoError::EntryRange {
            element,
            field: Field::for_element(element).name(),
            index,
            value: value.into(),
        })?);
    }
    Ok(bytes)
}

fn each<T, const N: usize>(bytes: &[u8], entry: impl Fn([u8; N]) -> T) -> Vec<T> {
    bytes.as_chunks::<N>().0.iter().map(|&chunk| entry(chunk)).collect()
}
