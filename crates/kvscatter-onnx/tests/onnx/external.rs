//! Tests external data. Data inside the model's folder is read, and other data is an error.

use kvscatter::ElementType;
use kvscatter_onnx::internal::proto::{
    self, AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, SparseTensorProto, TensorProto,
    TrainingInfoProto,
};
use kvscatter_onnx::internal::{ExternalData, tensor_proto};
use kvscatter_onnx::{Data, ExternalError, FileError, Model, OnnxError, TensorProtoError};
use tempfile::TempDir;

use crate::messages::schema;
use crate::support::{assert_refused, external, folder, testdata};

/// A folder with `data.bin` (bytes 0 to 9), a sub-folder, and a neighbouring folder that must not be read.
struct Scene {
    outer: TempDir,
}

impl Scene {
    fn new() -> Self {
        let bytes: Vec<u8> = (0..10).collect();
        let files: [(&str, &[u8]); 3] =
            [("secret.bin", &[1; 4]), ("model/data.bin", &bytes), ("model/sub/data.bin", &bytes)];
        Self { outer: folder(&files) }
    }

    fn folder(&self) -> std::path::PathBuf {
        self.outer.path().join("model")
    }

    /// Reads a tensor of four bytes that these entries describe.
    fn read(&self, entries: &[(&str, &str)]) -> Result<Vec<u8>, OnnxError> {
        read(&ExternalData::open(&self.folder())?, message(entries))
    }
}

fn read(external: &ExternalData, message: TensorProto) -> Result<Vec<u8>, OnnxError> {
    match tensor_proto::decode(message, Some(external))?.into_parts().2 {
        Data::Bytes(bytes) => Ok(bytes),
        Data::Strings(_) => Ok(vec![]),
    }
}

fn message(entries: &[(&str, &str)]) -> TensorProto {
    external("", ElementType::UInt8, &[4], entries)
}

#[test]
fn as_the_onnx_package_writes_it() {
    let model = Model::load(&testdata("onnx-tensors/external.onnx")).unwrap();
    let message = model.proto().graph.initializer[0].clone();
    let external = model.external_data().unwrap().unwrap();
    assert_eq!(read(&external, message.clone()).unwrap(), [2, 0, 3, 0, 4, 0]);
    assert_refused!(
        tensor_proto::decode(message, None),
        ExternalError::WithoutFolder { location } if location == "external.bin"
    );
}

#[test]
fn files_that_are_in_use_are_named() {
    let path = testdata("onnx-tensors/external.onnx");
    let file = testdata("onnx-tensors/external.bin");
    let mut model = Model::load(&path).unwrap();
    assert_eq!(model.external_files(), [file]);
    assert!(Model::from_proto(model.proto().clone()).external_files().is_empty());
    // A tensor in a subgraph of a node counts as well, and a file that is named twice counts once.
    let graph = model.proto_mut().graph.get_or_insert_default();
    let mut inner = graph.clone();
    inner.initializer.push(message(&[("location", "sub/inner.bin")]));
    let branch = AttributeProto { g: inner.into(), ..AttributeProto::default() };
    graph.node.push(NodeProto { attribute: vec![branch], ..NodeProto::default() });
    let files = ["external.bin", "sub/inner.bin"].map(|file| path.with_file_name(file));
    assert_eq!(model.external_files(), files);

    let scene = Scene::new();
    let pb = scene.folder().join("t.pb");
    let tensor = message(&[("location", "data.bin"), ("length", "4")]);
    std::fs::write(&pb, proto::encode(&tensor).unwrap()).unwrap();
    assert_eq!(tensor_proto::external_file(&pb).unwrap(), Some(scene.folder().join("data.bin")));
    assert!(tensor_proto::load_tensor_pb(&pb).is_ok());
    std::fs::write(&pb, proto::encode(&TensorProto::default()).unwrap()).unwrap();
    assert_eq!(tensor_proto::external_file(&pb).unwrap(), None);
}

/// A location can contain any characters, and the text of an error is one line.
#[test]
fn locations_cannot_mislead_a_reader() {
    let scene = Scene::new();
    let error = scene.read(&[("location", "a\n\u{1b}[2J\u{202e}b\\\"c")]).unwrap_err();
    assert!(matches!(error.cause(), Some(std::io::Error { .. })), "{error}");
    let text = error.to_string();
    assert_eq!(text.split(": ").nth(1), Some("a\\n\\u{1b}[2J\\u{202e}b\\\"c"));
}

/// Returns a graph with a tensor in every field of its messages that can contain one, except those of subgraphs.
fn graph(tensor: &mut dyn FnMut() -> TensorProto) -> GraphProto {
    let mut sparse = || SparseTensorProto {
        values: tensor().into(),
        indices: tensor().into(),
        ..SparseTensorProto::default()
    };
    let [one, two, three, four] = [sparse(), sparse(), sparse(), sparse()];
    let attribute = AttributeProto {
        t: tensor().into(),
        tensors: vec![tensor(), tensor()],
        sparse_tensor: one.into(),
        sparse_tensors: vec![two, three],
        ..AttributeProto::default()
    };
    GraphProto {
        initializer: vec![tensor()],
        sparse_initializer: vec![four],
        node: vec![NodeProto { attribute: vec![attribute], ..NodeProto::default() }],
        ..GraphProto::default()
    }
}

/// Returns a model with a tensor in every field of a message that can contain one, and the number of these
/// tensors. Each tensor has a different location.
fn everywhere() -> (ModelProto, usize) {
    let mut count = 0;
    let mut graph = || {
        graph(&mut || {
            count += 1;
            message(&[("location", &format!("{count}.bin"))])
        })
    };
    let subgraphs =
        AttributeProto { g: graph().into(), graphs: vec![graph(), graph()], ..AttributeProto::default() };
    let function = FunctionProto {
        node: graph().node,
        attribute_proto: graph().node.remove(0).attribute,
        ..FunctionProto::default()
    };
    let training = TrainingInfoProto {
        initialization: graph().into(),
        algorithm: graph().into(),
        ..TrainingInfoProto::default()
    };
    let mut main = graph();
    main.node.push(NodeProto { attribute: vec![subgraphs], ..NodeProto::default() });
    let model = ModelProto {
        graph: main.into(),
        functions: vec![function],
        training_info: vec![training],
        ..ModelProto::default()
    };
    // A function has no initializers, neither dense nor sparse.
    (model, count - 2 * 3)
}

/// The location of a tensor is checked in every message that can contain one.
#[cfg(unix)]
#[test]
fn tensors_are_found_everywhere() {
    let scene = Scene::new();
    let path = scene.folder().join("model.onnx");
    let (proto, count) = everywhere();
    Model::from_proto(proto).save(&path).unwrap();
    let model = Model::load(&path).unwrap();
    let files = model.external_files();
    assert_eq!(files.len(), count);
    for file in files {
        assert_refused!(model.file(), std::io::Error { .. });
        std::os::unix::fs::symlink("/dev/zero", &file).unwrap();
        assert_refused!(Model::load(&path), ExternalError::Escape { .. });
        std::fs::remove_file(&file).unwrap();
        std::fs::write(&file, b"1234").unwrap();
    }
    assert_eq!(model.file().unwrap().locations().count(), count);
}

/// These are the fields of `onnx.proto` that lead to a tensor. If one is added, [`everywhere`] must have it
/// as well.
#[test]
fn the_schema_has_no_other_place_for_a_tensor() {
    let holds_tensors = "TensorProto SparseTensorProto GraphProto FunctionProto TrainingInfoProto AttributeProto \
        NodeProto";
    let (fields, _) = schema();
    let fields = fields.iter().filter(|field| holds_tensors.split(' ').any(|message| message == field.ty));
    let mut fields: Vec<_> = fields.map(|field| format!("{}.{}", field.message, field.name)).collect();
    fields.sort();
    let known = "AttributeProto.g AttributeProto.graphs AttributeProto.sparse_tensor AttributeProto.sparse_tensors \
        AttributeProto.t AttributeProto.tensors FunctionProto.attribute_proto FunctionProto.node \
        GraphProto.initializer GraphProto.node GraphProto.sparse_initializer ModelProto.functions ModelProto.graph \
        ModelProto.training_info NodeProto.attribute SparseTensorProto.indices SparseTensorProto.values \
        TrainingInfoProto.algorithm TrainingInfoProto.initialization";
    assert_eq!(fields.join(" "), known);
}

/// An engine reads the file, so it must be the file that was checked.
#[test]
fn an_engine_is_given_a_file_as_it_was_read() {
    let path = testdata("onnx-tensors/external.onnx");
    let mut model = Model::load(&path).unwrap();
    let file = model.file().unwrap();
    assert_eq!(file.path(), path);
    assert_eq!(file.locations().collect::<Vec<_>>(), ["external.bin"]);
    let read = |location: &str, offset, length| file.read(location.as_ref(), offset, length);
    let whole = std::fs::read(testdata("onnx-tensors/external.bin")).unwrap();
    let len = u64::try_from(whole.len()).unwrap();
    assert_eq!(read("external.bin", 0, None).unwrap(), whole);
    assert_eq!(read("external.bin", 1, Some(2)).unwrap(), whole[1..3]);
    assert!(read("external.bin", len, None).unwrap().is_empty());
    assert_refused!(read("external.bin", len + 1, None), ExternalError::Range { .. });
    assert_refused!(read("external.bin", 1, Some(len)), ExternalError::Range { .. });
    assert_refused!(read("external.bin", 1, Some(u64::MAX)), ExternalError::Range { .. });
    assert_refused!(read("../onnx-tensors/external.bin", 0, None), ExternalError::Escape { .. });
    assert_refused!(file.open("/dev/zero".as_ref()), ExternalError::Escape { .. });
    model.proto_mut();
    assert_refused!(model.file(), FileError::NotAsRead);
    assert_refused!(Model::from_proto(model.proto().clone()).file(), FileError::NotAsRead);
}

#[test]
fn inside_the_folder() {
    let scene = Scene::new();
    let whole = |location| scene.read(&[("location", location), ("offset", "6")]);
    assert_eq!(whole("data.bin").unwrap(), [6, 7, 8, 9]);
    assert_eq!(whole("./sub/data.bin").unwrap(), [6, 7, 8, 9]);
    let part = [("offset", "2"), ("length", "4"), ("location", "data.bin"), ("basepath", "x")];
    assert_eq!(scene.read(&part).unwrap(), [2, 3, 4, 5]);
}

#[test]
fn outside_the_folder() {
    let scene = Scene::new();
    let secret = scene.outer.path().join("secret.bin");
    for location in
        ["../secret.bin", "sub/../../secret.bin", "sub/../data.bin", "/dev/zero", secret.to_str().unwrap()]
    {
        assert_refused!(scene.read(&[("location", location)]), ExternalError::Escape { location: got, .. } if got == location);
    }
}

#[cfg(unix)]
#[test]
fn symbolic_links() {
    let scene = Scene::new();
    let link = |to: &str, name: &str| std::os::unix::fs::symlink(to, scene.folder().join(name)).unwrap();
    link("data.bin", "inside");
    link("../secret.bin", "out");
    link("..", "up");
    link("/dev/zero", "device");
    link("circle", "circle");
    assert_eq!(scene.read(&[("location", "inside"), ("offset", "6")]).unwrap(), [6, 7, 8, 9]);
    for location in ["out", "up/secret.bin", "device"] {
        assert_refused!(scene.read(&[("location", location)]), ExternalError::Escape { .. });
    }
    assert_refused!(scene.read(&[("location", "circle")]), std::io::Error { .. });
}

/// Opening a pipe that has no writer would wait forever.
#[cfg(unix)]
#[test]
fn only_regular_files() {
    let scene = Scene::new();
    let pipe = scene.folder().join("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    for location in ["pipe", "sub", "."] {
        assert_refused!(scene.read(&[("location", location)]), FileError::NotRegularFile);
    }
    assert_refused!(Model::load(&pipe), FileError::NotRegularFile);
    assert_refused!(scene.read(&[("location", "absent")]), std::io::Error { .. });
}

#[test]
fn bytes_that_are_not_there() {
    let scene = Scene::new();
    let range = |offset, length| {
        let entries = [("location", "data.bin"), ("offset", offset), ("length", length)];
        scene.read(&entries[..if length.is_empty() { 2 } else { 3 }])
    };
    assert_refused!(range("7", "4"), ExternalError::Range { offset: 7, length: 4, size: 10, .. });
    assert_refused!(range("18446744073709551615", "4"), ExternalError::Range { .. });
    // Without a length, the data extends to the end of the file, which is too much here.
    assert_refused!(range("5", ""), ExternalError::Range { offset: 5, .. });
    assert_refused!(range("0", "3"), ExternalError::Length { expected: 4, got: 3 });
    assert_refused!(range("-1", "4"), ExternalError::Number { key: "offset", .. });
    assert_refused!(range("0", "4.0"), ExternalError::Number { key: "length", .. });
}

#[test]
fn entries_that_make_no_sense() {
    let scene = Scene::new();
    assert_refused!(scene.read(&[]), ExternalError::LocationMissing);
    assert_refused!(scene.read(&[("location", "")]), ExternalError::LocationMissing);
    let twice = [("location", "data.bin"), ("location", "data.bin")];
    assert_refused!(scene.read(&twice), ExternalError::KeyTwice { key } if key == "location");

    let external = ExternalData::open(&scene.folder()).unwrap();
    let mut also_inline = message(&[("location", "data.bin")]);
    also_inline.raw_data = Some(vec![0; 4].into());
    assert_refused!(read(&external, also_inline), TensorProtoError::TwoFields { second: "raw_data", .. });
    let mut strings = message(&[("location", "data.bin")]);
    strings.data_type = Some(ElementType::String.onnx_code());
    assert_refused!(read(&external, strings), ExternalError::Strings);
}

#[test]
fn the_checksum_is_the_sha1_of_the_file() {
    let scene = Scene::new();
    let checked = |checksum| scene.read(&[("location", "data.bin"), ("offset", "6"), ("checksum", checksum)]);
    // sha1sum of the bytes 0 to 9.
    assert!(checked("494179714a6cd627239dfededf2de9ef994caf03").is_ok());
    assert!(checked("494179714A6CD627239DFEDEDF2DE9EF994CAF03").is_ok());
    assert_refused!(checked("00"), ExternalError::Checksum { expected, .. } if expected == "00");
}

/// A sparse file may have any size, but the bytes read from it are limited.
#[test]
fn no_more_than_the_limit() {
    let scene = Scene::new();
    let sparse = std::fs::File::create(scene.folder().join("sparse")).unwrap();
    sparse.set_len(1 << 40).unwrap();
    let mut huge = message(&[("location", "sparse")]);
    huge.dims = vec![1 << 40];
    let external = ExternalData::open(&scene.folder()).unwrap();
    assert_refused!(read(&external, huge), ExternalError::Limit { .. });
    let checked = message(&[("location", "sparse"), ("length", "4"), ("checksum", "00")]);
    assert_refused!(read(&external, checked), ExternalError::Limit { .. });

    let external = external.limit(7);
    let small = message(&[("location", "data.bin"), ("length", "4")]);
    assert!(read(&external, small.clone()).is_ok());
    assert_refused!(read(&external, small), ExternalError::Limit { wanted: 4, left: 3 });
}
