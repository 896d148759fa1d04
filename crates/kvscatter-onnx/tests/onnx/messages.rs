//! Tests that the declared messages are those of `onnx.proto`, and how fields are read.

use kvscatter_onnx::ProtoError;
use kvscatter_onnx::internal::proto::type_proto::Value as TypeValue;
use kvscatter_onnx::internal::proto::{self, *};

use crate::support::assert_refused;

const SCHEMA: &str = include_str!("../../src/proto/onnx.proto");

/// A field of the schema, such as `repeated float float_data = 4 [packed = true];` in `TensorProto`.
pub(crate) struct Field {
    pub(crate) message: &'static str,
    /// The choice that the field is in, if it is in one.
    choice: Option<&'static str>,
    pub(crate) ty: &'static str,
    pub(crate) name: &'static str,
    number: u8,
    is_packed: bool,
}

/// Returns the fields of all messages, and the values of all enumerations by their type.
pub(crate) fn schema() -> (Vec<Field>, Vec<(&'static str, &'static str, u8)>) {
    let (mut fields, mut values, mut scopes) = (Vec::new(), Vec::new(), Vec::new());
    let lines = SCHEMA.lines().map(|line| line.split("//").next().unwrap_or_default());
    for statement in lines.flat_map(|line| line.split_inclusive(['{', '}', ';'])) {
        let words: Vec<&'static str> =
            statement.split([' ', ';']).map(str::trim).filter(|it| !it.is_empty()).collect();
        let scope = |kind: &str| scopes.iter().rev().find(|(it, _)| *it == kind).map(|(_, name)| *name);
        match words.as_slice() {
            [kind @ ("message" | "oneof" | "enum"), name, "{"] => scopes.push((*kind, *name)),
            ["}"] => drop(scopes.pop()),
            ["optional" | "repeated", ty, name, "=", number, options @ ..]
            | [ty, name, "=", number, options @ ..]
                if scope("enum").is_none() && scope("message").is_some() =>
            {
                fields.push(Field {
                    message: scope("message").unwrap(),
                    choice: scope("oneof"),
                    ty,
                    name,
                    number: number.parse().unwrap(),
                    is_packed: !options.is_empty(),
                });
            }
            [name, "=", number] if scope("enum").is_some() && !number.starts_with("0x") => {
                values.push((scope("enum").unwrap(), *name, number.parse().unwrap()));
            }
            _ => {}
        }
    }
    (fields, values)
}

/// Reads a message and returns what [`std::fmt::Debug`] writes for it and for the message without fields. Returns
/// `None` if the field is unknown.
type Read = fn(&[u8]) -> Option<(String, String)>;

fn read<M: Message + std::fmt::Debug>(bytes: &[u8]) -> Option<(String, String)> {
    let mut message: M = proto::decode(bytes).unwrap();
    assert_eq!(proto::encode(&message).unwrap(), bytes, "{}", M::NAME);
    message.unknown_fields().is_empty().then(|| (format!("{message:?}"), format!("{:?}", M::EMPTY)))
}

/// Returns the name of each message, with the function that reads it.
macro_rules! readers {
    ($($message:ty),*) => {
        [$((<$message>::NAME, read::<$message>)),*]
    };
}

/// Each field is read into the field of its name, and is written with its number and type.
#[test]
fn fields_have_the_names_numbers_and_types_of_the_schema() {
    let messages: [(&str, Read); 23] = readers! {
        ModelProto, OperatorSetIdProto, StringStringEntryProto, TrainingInfoProto, FunctionProto, GraphProto,
        TensorAnnotation, NodeProto, AttributeProto, TensorProto, tensor_proto::Segment, SparseTensorProto,
        ValueInfoProto, TypeProto, type_proto::Tensor, type_proto::Sequence, type_proto::Map,
        type_proto::Optional, type_proto::SparseTensor, type_proto::Opaque, TensorShapeProto,
        tensor_shape_proto::Dimension, DeviceConfigurationProto
    };
    let (fields, values) = schema();
    let mut unknown = Vec::new();
    for Field { message, choice, ty, name, number, is_packed } in &fields {
        let Some((_, read)) = messages.iter().find(|(known, _)| known == message) else {
            unknown.push((*message).to_owned());
            continue;
        };
        // Each value of an enumeration, and the value 1 of the other types: how it is shown, its wire type and bytes.
        let values: Vec<_> = values.iter().filter(|(enumeration, ..)| enumeration == ty).collect();
        let cases: Vec<(&str, u8, Vec<u8>)> = match *ty {
            "int32" | "int64" | "uint64" => vec![("1", 0, vec![1])],
            "float" => vec![("1.0", 5, 1_f32.to_le_bytes().to_vec())],
            "double" => vec![("1.0", 1, 1_f64.to_le_bytes().to_vec())],
            "string" => vec![("\"a\"", 2, b"\x01a".to_vec())],
            "bytes" => vec![("[97]", 2, b"\x01a".to_vec())],
            _ if values.is_empty() => vec![(ty, 2, vec![0])],
            _ => values.iter().map(|(_, name, number)| (*name, 0, vec![*number])).collect(),
        };
        for (shown, wire, value) in cases {
            let packed = [&[u8::try_from(value.len()).unwrap()], value.as_slice()].concat();
            let (wire, value) = if *is_packed { (2, packed) } else { (wire, value) };
            // A tag takes two bytes from number 16, and the largest number is 26.
            let tag = number << 3 | wire;
            let tag = if *number < 16 { vec![tag] } else { vec![tag | 0x80, number >> 4] };
            let Some((debug, empty)) = read(&[tag, value].concat()) else {
                unknown.push(format!("{message}.{name}"));
                continue;
            };
            let start = debug.bytes().zip(empty.bytes()).take_while(|(a, b)| a == b).count();
            let (before, _) = debug[..start].rsplit_once(": ").unwrap();
            let got = before.rsplit(' ').next().unwrap();
            assert_eq!(got, choice.unwrap_or(name), "{message}.{name}: {debug}");
            assert!(debug[start..].contains(shown), "{message}.{name}: {debug}");
            if choice.is_some() {
                let camel = name.split('_').flat_map(|word| [word[..1].to_uppercase(), word[1..].to_owned()]);
                assert!(
                    debug.contains(&format!("({}(", camel.collect::<String>())),
                    "{message}.{name}: {debug}"
                );
            }
        }
    }
    unknown.sort();
    unknown.dedup();
    let not_declared = [
        "IntIntListEntryProto",
        "NodeDeviceConfigurationProto",
        "NodeProto.device_configurations",
        "ShardedDimProto",
        "ShardingSpecProto",
        "SimpleShardedDimProto",
    ];
    assert_eq!(unknown, not_declared);
    assert!(messages.iter().all(|(name, _)| fields.iter().any(|field| field.message == *name)));
}

/// A repeated field has all its values. Of another field the last value counts, and two messages become one.
#[test]
fn fields_that_come_more_than_once() {
    let graphs: ModelProto = proto::decode(b"\x3A\x02\x0A\x00\x3A\x05\x0A\x00\x12\x01g").unwrap();
    assert_eq!((graphs.graph.node.len(), graphs.graph.name.as_deref()), (2, Some("g")));
    let tensor: TensorProto =
        proto::decode(b"\x10\x01\x10\x02\x4A\x02ab\x4A\x01c\x42\x02ab\x42\x01c").unwrap();
    assert_eq!(
        (tensor.data_type, tensor.raw_data.as_deref().map(Vec::as_slice)),
        (Some(2), Some(b"c".as_slice()))
    );
    assert_eq!(tensor.name.as_deref(), Some("c"));
    // A value that the enumeration does not have does not replace one that it has.
    let known: TensorProto = proto::decode(b"\x70\x01\x70\x63").unwrap();
    assert_eq!(known.data_location, Some(tensor_proto::DataLocation::EXTERNAL));
    // A tensor twice, with different fields, is one tensor. Then a sequence replaces it.
    let tensor_type = b"\x0A\x02\x08\x01\x0A\x02\x12\x00";
    let tensor: TypeProto = proto::decode(tensor_type).unwrap();
    let Some(TypeValue::TensorType(value)) = &tensor.value else { panic!("{tensor:?}") };
    assert_eq!((value.elem_type, value.shape.is_set()), (Some(1), true));
    let sequence: TypeProto = proto::decode(&[tensor_type.as_slice(), b"\x22\x00"].concat()).unwrap();
    assert_eq!(sequence.value, Some(TypeValue::SequenceType(Box::default())));
}

/// Numbers may be packed or not, as writers choose. They are written as the schema states.
#[test]
fn numbers_are_read_packed_and_one_by_one() {
    let tensor: TensorProto = proto::decode(
        b"\x0A\x02\x01\x02\x08\x03\x28\x01\x2A\x0B\x02\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x01\x2A\x00",
    )
    .unwrap();
    assert_eq!((tensor.dims.as_slice(), tensor.int32_data.as_slice()), (&[1, 2, 3][..], &[1, 2, -1][..]));
    let written = b"\x08\x01\x08\x02\x08\x03\x2A\x0C\x01\x02\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x01";
    assert_eq!(proto::encode(&tensor).unwrap(), written);
}

#[test]
fn bytes_that_are_no_fields() {
    let cases: [(&[u8], DecodeError); 14] = [
        (b"\x08", DecodeError::UnexpectedEnd),
        (b"\x08\x80", DecodeError::UnexpectedEnd),
        (b"\x3A\x05abc", DecodeError::UnexpectedEnd),
        (b"\x3A\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x01", DecodeError::UnexpectedEnd),
        // Unknown fields of 4 bytes, 8 bytes and a group.
        (b"\xC5\xBB\x01\x01\x02\x03", DecodeError::UnexpectedEnd),
        (b"\xC1\xBB\x01\x01\x02\x03\x04\x05\x06\x07", DecodeError::UnexpectedEnd),
        (b"\xC3\xBB\x01\x08\x07", DecodeError::UnexpectedEnd),
        (b"\xC3\xBB\x01\xCC\xBB\x01", DecodeError::InvalidGroupEnd(3001)),
        (b"\xC4\xBB\x01", DecodeError::InvalidWireType(4)),
        (b"\x0E\x00", DecodeError::InvalidWireType(6)),
        (b"\x00\x00", DecodeError::InvalidFieldNumber),
        (b"\x08\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x02", DecodeError::VarintTooLong),
        (b"\x0D\x00\x00\x00\x00", DecodeError::WireTypeMismatch { number: 1, expected: 0, got: 5 }),
        (b"\x12\x01\xFF", DecodeError::InvalidUtf8),
    ];
    for (bytes, expected) in cases {
        assert_refused!(
            proto::decode::<ModelProto>(bytes),
            ProtoError::Decode { message: "ModelProto", cause } if *cause == expected
        );
    }
    let groups = |levels| [b"\xC3\xBB\x01".repeat(levels), b"\xC4\xBB\x01".repeat(levels)].concat();
    assert!(proto::decode::<ModelProto>(&groups(100)).is_ok());
    assert_refused!(
        proto::decode::<ModelProto>(&groups(101)),
        ProtoError::Decode { cause: DecodeError::TooDeep { limit: 100 }, .. }
    );
}
