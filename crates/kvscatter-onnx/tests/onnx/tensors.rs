//! Tests tensor messages: every type in every field that stores values, and every message that is not a
//! tensor.
use kvscatter::ElementType;
use kvscatter_onnx::internal::proto::{self, TensorProto};
use kvscatter_onnx::internal::{storage_len, tensor_proto};
use kvscatter_onnx::{Data, Model, OnnxError, ProtoError, Tensor, TensorError, TensorProtoError};
use proptest::prelude::*;

use crate::support::{assert_refused, testdata};

fn message(element: ElementType, dims: &[i64]) -> TensorProto {
    TensorProto {
        name: Some("t".into()),
        data_type: Some(element.onnx_code()),
        dims: dims.to_vec(),
        ..TensorProto::default()
    }
}

/// Reads a tensor, and returns the error without the name of the tensor.
fn read(message: TensorProto) -> Result<Tensor, OnnxError> {
    tensor_proto::decode(message, None).map_err(|error| match error {
        OnnxError::InTensor { name, cause } if name == "t" => *cause,
        other => panic!("{other:?}"),
    })
}

/// The onnx Python package stores every type in both forms. Both are read as the same tensor and written back
/// as the same message.
#[test]
fn all_24_types_as_the_onnx_package_writes_them() {
    let model = Model::load(&testdata("onnx-tensors/tensors.onnx")).unwrap();
    let messages = &model.proto().graph.initializer;
    let find = |element: ElementType, form: &str| {
        let name = format!("{element}/{form}");
        messages.iter().find(|tensor| tensor.name.as_deref() == Some(&name)).cloned()
    };
    for element in ElementType::ALL {
        let message = find(element, "typed").unwrap();
        let typed = tensor_proto::decode(message.clone(), None).unwrap();
        assert_eq!((typed.element(), typed.shape()), (element, [3].as_slice()), "{element}");
        let written = tensor_proto::encode_typed(&format!("{element}/typed"), &typed);
        assert_eq!(bytes_of(&written), bytes_of(&message), "{element}");
        let Some(message) = find(element, "raw") else {
            assert_eq!(element, ElementType::String);
            let strings = ["", "schlüssel"].map(|s| s.as_bytes().to_vec());
            assert_eq!(typed.data(), &Data::Strings([&strings[..], &[vec![0xFF]]].concat()));
            continue;
        };
        assert_eq!(tensor_proto::decode(message.clone(), None).unwrap(), typed, "{element}");
        let written = tensor_proto::encode(&format!("{element}/raw"), &typed);
        assert_eq!(bytes_of(&written), bytes_of(&message), "{element}");
    }
}

fn bytes_of(message: &TensorProto) -> Vec<u8> {
    proto::encode(message).unwrap()
}

#[test]
fn the_pad_nibble_is_no_value() {
    let int4 = || message(ElementType::Int4, &[3]);
    let raw = TensorProto { raw_data: Some(vec![0x21, 0xF3].into()), ..int4() };
    for message in [raw, TensorProto { int32_data: vec![0x21, 0xF3], ..int4() }] {
        assert_eq!(read(message).unwrap().data(), &Data::Bytes(vec![0x21, 0x03]));
    }
}

#[test]
fn scalars_and_empty_tensors() {
    let scalar = TensorProto { int32_data: vec![7], ..message(ElementType::UInt8, &[]) };
    assert_eq!(read(scalar).unwrap().data(), &Data::Bytes(vec![7]));
    // No values are stored if a dimension is 0, even if the other dimensions are large.
    let empty = message(ElementType::Float32, &[0, 1 << 40]);
    assert_eq!(read(empty).unwrap().data(), &Data::Bytes(vec![]));
}

#[test]
fn types_that_are_none() {
    let mut none = message(ElementType::Float32, &[]);
    none.data_type = None;
    assert_refused!(read(none.clone()), TensorProtoError::UndefinedType);
    none.data_type = Some(0);
    assert_refused!(read(none.clone()), TensorProtoError::UndefinedType);
    for code in [-1, 25, 26, i32::MAX] {
        none.data_type = Some(code);
        assert_refused!(read(none.clone()), TensorProtoError::UnsupportedType { code: got } if *got == code);
    }
}

#[test]
fn shapes_that_are_none() {
    let negative = message(ElementType::Float32, &[2, -1]);
    assert_refused!(read(negative), TensorProtoError::NegativeDim { axis: 1, dim: -1 });
    for dims in [[1 << 40, 1 << 40], [i64::MAX, 1]] {
        assert_refused!(read(message(ElementType::Float32, &dims)), TensorError::TooLarge { .. });
    }
}

/// A tiny message that claims an exabyte is rejected because of its length. No memory of that size is
/// requested.
#[test]
fn data_shorter_or_longer_than_the_shape() {
    let huge = message(ElementType::Float32, &[1 << 58]);
    assert_refused!(
        read(huge),
        TensorProtoError::EntryCount { got: 0, expected, .. } if *expected == 1 << 58
    );
    let raw = |len| {
        let raw_data = Some(vec![0; len].into());
        read(TensorProto { raw_data, ..message(ElementType::Float32, &[2]) })
    };
    assert_refused!(raw(0), TensorProtoError::EntryCount { field: "float_data", expected: 2, got: 0, .. });
    assert_refused!(raw(7), TensorError::DataLength { expected: 8, got: 7, .. });
    assert_refused!(raw(9), TensorError::DataLength { expected: 8, got: 9, .. });
    for element in ElementType::ALL {
        let entries = if matches!(element, ElementType::Complex64 | ElementType::Complex128) {
            4
        } else if element.bits() == Some(4) {
            1
        } else {
            2
        };
        let mut long = tensor_proto::encode_typed("t", &zeros(element, vec![2]));
        long.dims = vec![3];
        assert_refused!(
            read(long),
            TensorProtoError::EntryCount { element: found, got, .. } if (*found, *got) == (element, entries)
        );
    }
}

fn zeros(element: ElementType, shape: Vec<usize>) -> Tensor {
    let len = storage_len(element, &shape).unwrap();
    let data = match element.bits() {
        Some(_) => Data::Bytes(vec![0; len]),
        None => Data::Strings(vec![vec![]; len]),
    };
    Tensor::new(element, shape, data).unwrap()
}

#[test]
fn values_stored_twice_or_elsewhere() {
    let float = || message(ElementType::Float32, &[1]);
    assert_refused!(
        read(TensorProto { raw_data: Some(vec![0; 4].into()), float_data: vec![0.0], ..float() }),
        TensorProtoError::TwoFields { first: "raw_data", second: "float_data" }
    );
    assert_refused!(
        read(TensorProto { double_data: vec![0.0], ..float() }),
        TensorProtoError::WrongField { field: "double_data", expected: "float_data", .. }
    );
    assert_refused!(
        read(TensorProto { raw_data: Some(vec![b'x'].into()), ..message(ElementType::String, &[1]) }),
        TensorProtoError::WrongField { field: "raw_data", expected: "string_data", .. }
    );
    let mut segment = float();
    segment.segment.get_or_insert_default().begin = Some(0);
    assert_refused!(read(segment), TensorProtoError::Segment);
}

#[test]
fn entries_beyond_the_type() {
    let cases = [
        (ElementType::Bool, [-1, 2]),
        (ElementType::Int8, [-129, 128]),
        (ElementType::UInt8, [-1, 256]),
        (ElementType::Int16, [-32_769, 32_768]),
        (ElementType::UInt16, [-1, 65_536]),
        (ElementType::Float16, [-1, 65_536]),
        (ElementType::BFloat16, [-1, 65_536]),
        (ElementType::Float8E4M3Fn, [-1, 256]),
        (ElementType::Float8E8M0, [-1, 256]),
        (ElementType::Int4, [-1, 256]),
        (ElementType::Float4E2M1, [-1, 256]),
    ];
    for (element, values) in cases {
        for value in values {
            let mut beyond = message(element, &[if element.bits() == Some(4) { 4 } else { 2 }]);
            beyond.int32_data = vec![1, value];
            assert_refused!(
                read(beyond),
                TensorProtoError::EntryRange { index: 1, value: got, .. } if *got == i128::from(value)
            );
        }
    }
    let beyond = TensorProto { uint64_data: vec![1 << 32], ..message(ElementType::UInt32, &[1]) };
    assert_refused!(read(beyond), TensorProtoError::EntryRange { field: "uint64_data", index: 0, .. });
}

#[test]
fn bytes_that_are_no_message() {
    for bytes in [b"\xFF".as_slice(), b"\x08", b"\x4A\x05abc", &[0x0A; 40]] {
        let read = tensor_proto::read_tensor_pb(bytes);
        assert_refused!(read, ProtoError::Decode { message: "TensorProto", .. });
    }
}

fn any_tensor() -> impl Strategy<Value = Tensor> {
    let shapes = proptest::collection::vec(0_usize..4, 0..4);
    (0..ElementType::ALL.len(), shapes).prop_flat_map(|(index, shape)| {
        let element = ElementType::ALL[index];
        let len = storage_len(element, &shape).unwrap();
        let bytes = proptest::collection::vec(any::<u8>(), len);
        let strings = proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..4), len);
        (bytes, strings).prop_map(move |(mut bytes, strings)| {
            if element == ElementType::Bool {
                bytes.iter_mut().for_each(|byte| *byte &= 1);
            }
            let data =
                if element == ElementType::String { Data::Strings(strings) } else { Data::Bytes(bytes) };
            Tensor::new(element, shape.clone(), data).unwrap()
        })
    })
}

proptest! {
    /// Any bit pattern of any type, including signalling NaNs, is preserved by both forms and by encoding.
    #[test]
    fn round_trips(tensor in any_tensor()) {
        for message in [tensor_proto::encode("t", &tensor), tensor_proto::encode_typed("t", &tensor)] {
            let read: TensorProto = proto::decode(&proto::encode(&message).unwrap()).unwrap();
            prop_assert_eq!(&tensor_proto::decode(read, None).unwrap(), &tensor);
        }
    }

    #[test]
    fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = tensor_proto::read_tensor_pb(&bytes);
    }
}
