//! Tests that models are saved as they were loaded, and that invalid graphs are rejected.

use kvscatter::ElementType::{Float32, Int64};
use kvscatter_onnx::internal::proto::tensor_shape_proto::dimension::Value::DimValue;
use kvscatter_onnx::internal::proto::type_proto::Value as TypeValue;
use kvscatter_onnx::internal::proto::{self, ModelProto, SparseTensorProto, TensorProto};
use kvscatter_onnx::{Dimension, FileError, GraphError, Model, OnnxError, ProtoError, TensorProtoError};

use crate::support::{Nodes, assert_refused, graph_mut, opset, parsed, testdata, value};

/// Unknown fields of every wire type: varint, 64 bits, bytes, a group with a varint in it, 32 bits.
const UNKNOWN: &[u8] =
    b"\xC0\xBB\x01\x2A\xC1\xBB\x01\x01\x02\x03\x04\x05\x06\x07\x08\xC2\xBB\x01\x03abc\xC3\xBB\x01\x08\x07\xC4\xBB\x01\xC5\xBB\x01\x01\x02\x03\x04";

#[test]
fn files_of_the_onnx_package_are_saved_byte_for_byte() {
    let files = [
        "onnx-node/test_tensorscatter/model.onnx",
        "onnx-node/test_tensorscatter_3d/model.onnx",
        "onnx-node/test_tensorscatter_circular/model.onnx",
        "onnx-tensors/tensors.onnx",
        "onnx-tensors/external.onnx",
    ];
    let folder = tempfile::tempdir().unwrap();
    let copy = folder.path().join("model.onnx");
    for file in files {
        Model::load(&testdata(file)).unwrap().save(&copy).unwrap();
        assert_eq!(std::fs::read(&copy).unwrap(), std::fs::read(testdata(file)).unwrap(), "{file}");
    }
}

#[test]
fn unknown_fields_survive_at_every_depth() {
    // Length-delimited fields with a length of one byte: ModelProto.graph = 7, GraphProto.node = 1,
    // initializer = 5.
    let nested = |tag: u8, inner: &[u8]| [&[tag, u8::try_from(inner.len()).unwrap()], inner].concat();
    let graph = [&nested(0x0A, UNKNOWN), &nested(0x2A, UNKNOWN), UNKNOWN].concat();
    let bytes = [&nested(0x3A, &graph), UNKNOWN].concat();
    let model = Model::from_bytes(&bytes).unwrap();
    assert_eq!(model.proto().graph.node.len(), 1);
    assert_eq!(model.proto().graph.initializer.len(), 1);
    assert_eq!(model.to_bytes().unwrap(), bytes);
}

/// A value that a later version adds to an enumeration is an unknown field in this version.
#[test]
fn unknown_enumeration_values_survive() {
    let bytes = b"\x70\x63"; // TensorProto.data_location = 99
    let tensor: TensorProto = proto::decode(bytes).unwrap();
    assert_eq!(tensor.data_location, None);
    assert_eq!(proto::encode(&tensor).unwrap(), bytes);
}

#[test]
fn bytes_that_are_no_model() {
    let whole = std::fs::read(testdata("onnx-node/test_tensorscatter/model.onnx")).unwrap();
    let cut = (1..whole.len()).filter(|&len| Model::from_bytes(&whole[..len]).is_err()).count();
    // A message may end after any of its fields. Any other cut is detected.
    assert!(cut > whole.len() / 2, "{cut}");
    for len in 0..whole.len() {
        if let Ok(model) = Model::from_bytes(&whole[..len]) {
            let _ = model.graph();
        }
    }
    assert_refused!(Model::from_bytes(b"\x3A\x05abc"), ProtoError::Decode { message: "ModelProto", .. });
    assert_refused!(Model::from_bytes(b"GGUF\x03\0\0\0"), FileError::OtherFormat { format: "GGUF" });
    assert_refused!(Model::load(&testdata("absent.onnx")), std::io::Error { .. });
    assert_refused!(Model::load(&testdata("")), FileError::ModelFolder { has_model: false });
    let error = Model::load(&testdata("mobius-llama-static")).unwrap_err().to_string();
    assert!(error.ends_with("mobius-llama-static: a folder: pass the path of model.onnx in it"), "{error}");
}

/// A sequence of sequences of …: `ModelProto.graph.input.type`, then `sequence_type` (4) and `elem_type` (1)
/// in turn.
#[test]
fn nesting_is_limited() {
    let nested = |levels: usize| {
        let tags = [0x3A, 0x5A, 0x12].into_iter().chain([0x22, 0x0A].into_iter().cycle().take(levels));
        let tags: Vec<u8> = tags.collect();
        let mut bytes = Vec::new();
        for tag in tags.into_iter().rev() {
            let len = bytes.len();
            let (low, high) = (u8::try_from(len % 128).unwrap(), u8::try_from(len / 128).unwrap());
            bytes = [&[tag, low | 0x80, high], bytes.as_slice()].concat();
        }
        bytes
    };
    assert!(Model::from_bytes(&nested(90)).is_ok());
    assert_refused!(
        Model::from_bytes(&nested(200)),
        ProtoError::Decode { cause: proto::DecodeError::TooDeep { limit: 100 }, .. }
    );
}

/// A million empty attributes take two megabytes in the file and hundreds in memory.
#[test]
fn small_files_cannot_grow_large_in_memory() {
    let attributes = [0x2A, 0x00].repeat(1_000_000);
    let field = |tag: u8, inner: &[u8]| {
        let len = (0..4).map(|byte| {
            u8::try_from(inner.len() >> (7 * byte) & 0x7F).unwrap() | if byte < 3 { 0x80 } else { 0 }
        });
        [&[tag], len.collect::<Vec<_>>().as_slice(), inner].concat()
    };
    assert_refused!(
        Model::from_bytes(&field(0x3A, &field(0x0A, &attributes))),
        ProtoError::Decode { cause: proto::DecodeError::TooMuchMemory { limit: 0x1000_0000 }, .. }
    );
}

/// Every report about a value or a node repeats its name.
#[test]
fn long_names_are_refused() {
    let named = |length: usize, name: fn(&mut proto::NodeProto) -> &mut String| {
        let mut model = parsed("x: float[2]", "y = Neg(x)", "y: float[2]");
        let graph = graph_mut(&mut model);
        graph.node[0].domain = Some(String::new());
        *name(&mut graph.node[0]) = "a".repeat(length);
        graph.output[0].name = Some(graph.node[0].output[0].clone());
        model.proto_mut().opset_import.push(opset(&"a".repeat(length), 1));
        model
    };
    let names: [fn(&mut proto::NodeProto) -> &mut String; 4] = [
        |node| node.name.get_or_insert_default(),
        |node| node.op_type.get_or_insert_default(),
        |node| node.domain.get_or_insert_default(),
        |node| &mut node.output[0],
    ];
    for name in names {
        named(4096, name).graph().unwrap();
        assert_refused!(named(4097, name).graph(), GraphError::NameTooLong { bytes: 4097, limit: 4096, .. });
    }
    let input = "a".repeat(4097);
    let of_input = parsed(&format!("{input}: float[2]"), "", "");
    assert_refused!(of_input.graph(), GraphError::NameTooLong { what: "input", index: 0, .. });
}

#[test]
fn values_have_one_producer() {
    let graph = |inputs: &[&str], nodes: &str, outputs: &[&str]| {
        let declare = |names: &[&str]| names.iter().map(|name| value(name, Float32, &["2"])).collect();
        Nodes::parse(nodes).model(declare(inputs), declare(outputs)).graph().map(|_| ())
    };
    for (inputs, nodes, outputs) in [
        (&["x", "x"][..], "", &["x"][..]),
        (&["x"], "x = Identity(x)", &["x"]),
        (&["x"], "y = Identity(x); y = Identity(x)", &["y"]),
        (&["x"], "y = Identity(x)", &["y", "y"]),
    ] {
        assert_refused!(graph(inputs, nodes, outputs), GraphError::DuplicateName { .. });
    }
    assert_refused!(graph(&["x", ""], "", &["x"]), GraphError::NameMissing { what: "input", index: 1 });
    let unnamed = graph(&["x"], "y = Identity(x)", &[""]);
    assert_refused!(unnamed, GraphError::NameMissing { what: "output", index: 0 });
    let missing = graph(&["x"], "y = Identity(z)", &["y"]);
    assert!(matches!(&missing, Err(OnnxError::InNode { node, .. }) if node.name == "ny"));
    assert_refused!(missing, GraphError::ValueMissing { name } if name == "z");
    assert_refused!(graph(&["x"], "", &["y"]), GraphError::ValueMissing { name } if name == "y");
}

#[test]
fn an_input_may_have_an_initializer() {
    let mut model = parsed("x: float[2]", "", "x: float[2]");
    let initializer = |name: &str| TensorProto { name: Some(name.to_owned()), ..TensorProto::default() };
    graph_mut(&mut model).initializer = vec![initializer("x")];
    assert!(!model.graph().unwrap().is_input("x"));
    graph_mut(&mut model).initializer.push(initializer("x"));
    assert_refused!(model.graph(), GraphError::DuplicateName { .. });
    graph_mut(&mut model).initializer = vec![initializer("")];
    assert_refused!(model.graph(), GraphError::NameMissing { what: "initializer", .. });
    graph_mut(&mut model).sparse_initializer = vec![SparseTensorProto::default()];
    assert_refused!(model.graph(), GraphError::Sparse { .. });
}

#[test]
fn a_wrong_order_is_no_cycle() {
    let graph = |nodes| parsed("x: float[2]", nodes, "a: float[2]");
    assert_refused!(
        graph("a = Identity(b); b = Identity(x)").graph(),
        GraphError::NodeOrder { name, producer } if name == "b" && producer.index == 1
    );
    for cycle in [
        "a = Identity(a)",
        "a = Identity(b); b = Identity(a)",
        // The first node reads from the cycle but is not part of it.
        "a = Identity(b); b = Add(x, c); c = Identity(b)",
    ] {
        let model = graph(cycle);
        assert_refused!(model.graph(), GraphError::Cycle);
        let OnnxError::InNode { node, .. } = model.graph().unwrap_err() else { panic!("{cycle}") };
        assert!(node.name != "na" || model.proto().graph.node.len() < 3);
    }
}

#[test]
fn operator_sets() {
    let mut model = parsed("x: float[2]", "y = Identity(x)", "y: float[2]");
    // Both names of the default domain are used.
    model.proto_mut().opset_import = vec![opset("ai.onnx", 24)];
    assert_eq!(model.graph().unwrap().nodes()[0].version(), 24);
    model.proto_mut().opset_import.push(opset("", 23));
    assert_refused!(model.graph(), GraphError::OpsetTwice { domain } if domain == "ai.onnx");
    model.proto_mut().opset_import = vec![opset("com.example", 1)];
    assert_refused!(model.graph(), GraphError::OpsetMissing { domain } if domain == "ai.onnx");
    assert_refused!(Model::from_proto(ModelProto::default()).graph(), GraphError::GraphMissing);
}

#[test]
fn declared_types() {
    let model = parsed("x: int64[3, n, ?]", "", "");
    let declared = model.graph().unwrap().inputs().unwrap();
    assert_eq!((declared[0].name, declared[0].element), ("x", Int64));
    assert_eq!(
        declared[0].shape.as_deref(),
        Some([Dimension::Known(3), Dimension::Symbolic("n"), Dimension::Unknown].as_slice())
    );

    let changed = |change: fn(&mut proto::ValueInfoProto)| {
        let mut model = parsed("x: int64[3]", "", "");
        change(&mut graph_mut(&mut model).input[0]);
        model.graph().unwrap().inputs().map(|inputs| inputs.len())
    };
    let negative =
        changed(|input| tensor_type(input).shape.get_or_insert_default().dim[0].value = Some(DimValue(-1)));
    assert_refused!(negative, TensorProtoError::NegativeDim { axis: 0, dim: -1 });
    assert_refused!(changed(|input| input.r#type = None.into()), GraphError::TypeMissing { .. });
    let sequence = changed(|input| {
        input.r#type.get_or_insert_default().value = Some(TypeValue::SequenceType(Box::default()));
    });
    assert_refused!(sequence, GraphError::NotATensor { kind: "sequence", .. });
    let undefined = changed(|input| tensor_type(input).elem_type = Some(0));
    assert_refused!(undefined, TensorProtoError::UndefinedType);
    let unsupported = changed(|input| tensor_type(input).elem_type = Some(26));
    assert_refused!(unsupported, TensorProtoError::UnsupportedType { code: 26 });
}

fn tensor_type(value: &mut proto::ValueInfoProto) -> &mut proto::type_proto::Tensor {
    match &mut value.r#type.get_or_insert_default().value {
        Some(TypeValue::TensorType(tensor)) => tensor,
        other => panic!("{other:?}"),
    }
}
