//! Tests that a model is saved with the files of its values, or that nothing is saved.

use std::path::{Path, PathBuf};

use kvscatter::ElementType::UInt8;
use kvscatter_onnx::internal::proto::{GraphProto, ModelProto};
use kvscatter_onnx::{DataFile, DataFileOrigin, ExternalError, FileError, Model, WeightTransfer};

use crate::support::{assert_refused, entry, external, testdata};

/// Creates a folder with a model whose tensors are at these locations. Each file contains `values`.
fn folder(locations: &[&str]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let tensor =
        |location: &&str| external(&format!("at {location}"), UInt8, &[6], &[("location", location)]);
    let graph = GraphProto { initializer: locations.iter().map(tensor).collect(), ..GraphProto::default() };
    let model = Model::from_proto(ModelProto { graph: graph.into(), ..ModelProto::default() });
    model.save(&folder.path().join("model.onnx")).unwrap();
    for location in locations.iter().filter(|location| !location.starts_with("/") && !location.contains(".."))
    {
        let file = folder.path().join(location);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, b"values").unwrap();
    }
    folder
}

fn load(folder: &tempfile::TempDir) -> Model {
    Model::load(&folder.path().join("model.onnx")).unwrap()
}

/// Returns every file and folder below a folder, sorted.
fn contents(folder: &tempfile::TempDir) -> Vec<PathBuf> {
    let below = |path: &Path| path.strip_prefix(folder.path()).unwrap().to_owned();
    let entries = walkdir::WalkDir::new(folder.path()).min_depth(1).sort_by_file_name();
    entries.into_iter().map(|entry| below(entry.unwrap().path())).collect()
}

fn origins(files: &[DataFile]) -> Vec<DataFileOrigin> {
    files.iter().map(|file| file.origin).collect()
}

#[test]
fn a_real_model_reads_its_values_from_the_new_folder() {
    let source = testdata("mobius-llama-dynamic/model.onnx");
    let model = Model::load(&source).unwrap();
    let values = std::fs::read(source.with_file_name("model.onnx.data")).unwrap();
    for weights in [WeightTransfer::Link, WeightTransfer::Copy] {
        let out = tempfile::tempdir().unwrap();
        let path = out.path().join("other.onnx");
        let files = model.save_with_weights(&path, weights).unwrap();
        let [DataFile { path: data, bytes, .. }] = files.as_slice() else { panic!("{files:?}") };
        assert_eq!(*data, out.path().join("model.onnx.data"));
        assert_eq!((*bytes, std::fs::read(data).unwrap() == values), (values.len() as u64, true));
        assert_eq!(Model::load(&path).unwrap().proto(), model.proto());
    }
}

#[test]
fn links_copies_and_files_that_exist() {
    let source = folder(&["a.bin", "./sub/deep/b.bin"]);
    let model = load(&source);
    let out = tempfile::tempdir().unwrap();
    let path = out.path().join("model.onnx");
    let all = ["a.bin", "model.onnx", "sub", "sub/deep", "sub/deep/b.bin"].map(PathBuf::from);

    let files = model.save_with_weights(&path, WeightTransfer::Link).unwrap();
    assert_eq!(contents(&out), all);
    // Both folders are in one file system. A copy is made only if the system refuses the link for another
    // reason.
    if origins(&files) == [DataFileOrigin::Linked; 2] {
        std::fs::write(source.path().join("a.bin"), b"VALUES").unwrap();
        assert_eq!(std::fs::read(out.path().join("a.bin")).unwrap(), b"VALUES");
    }
    let again = model.save_with_weights(&path, WeightTransfer::Link).unwrap();
    assert_eq!(origins(&again), [DataFileOrigin::Kept; 2]);

    let elsewhere = tempfile::tempdir().unwrap();
    let path = elsewhere.path().join("model.onnx");
    let copied = model.save_with_weights(&path, WeightTransfer::Copy).unwrap();
    assert_eq!(origins(&copied), [DataFileOrigin::Copied; 2]);
    assert_eq!(contents(&elsewhere), all);
    std::fs::write(source.path().join("a.bin"), b"others").unwrap();
    assert_eq!(std::fs::read(elsewhere.path().join("a.bin")).unwrap(), b"VALUES");

    assert_refused!(model.save_with_weights(&path, WeightTransfer::Copy), FileError::DataFileDiffers);
    assert_eq!(std::fs::read(elsewhere.path().join("a.bin")).unwrap(), b"VALUES");

    let beside = source.path().join("beside.onnx");
    let files = model.save_with_weights(&beside, WeightTransfer::Copy).unwrap();
    assert_eq!(origins(&files), [DataFileOrigin::Shared; 2]);
}

#[test]
fn files_that_were_read_are_not_overwritten() {
    let source = folder(&["a.bin"]);
    let model = load(&source);
    let before = contents(&source);
    for name in ["model.onnx", "a.bin"] {
        assert_refused!(
            model.save_with_weights(&source.path().join(name), WeightTransfer::Link),
            FileError::OverInput
        );
    }
    assert_eq!(std::fs::read(source.path().join("a.bin")).unwrap(), b"values");
    assert_eq!(contents(&source), before);

    let out = tempfile::tempdir().unwrap();
    assert_refused!(
        model.save_with_weights(&out.path().join("a.bin"), WeightTransfer::Link),
        FileError::DataFileIsModel
    );
    assert!(contents(&out).is_empty());
}

#[test]
fn nothing_new_is_left_when_a_file_is_refused() {
    let out = tempfile::tempdir().unwrap();
    let path = out.path().join("model.onnx");
    let refused = |source: &tempfile::TempDir| {
        let model = Model::load(&source.path().join("model.onnx"));
        let error = model.and_then(|model| model.save_with_weights(&path, WeightTransfer::Link)).unwrap_err();
        assert!(contents(&out).is_empty(), "{:?} after {error}", contents(&out));
        error
    };
    let source = folder(&["a.bin", "sub/b.bin"]);
    std::fs::remove_file(source.path().join("sub/b.bin")).unwrap();
    let error = refused(&source);
    assert!(
        matches!(error.cause::<std::io::Error>(), Some(cause) if cause.kind() == std::io::ErrorKind::NotFound),
        "{error}"
    );
    let model = source.path().join("model.onnx").display().to_string();
    let start = format!("{model}: tensor \"at sub/b.bin\": sub/b.bin: ");
    assert!(error.to_string().starts_with(&start), "{error}");

    for location in ["/etc/passwd", "../a.bin", "sub/.."] {
        let error = refused(&folder(&["a.bin", location]));
        assert!(matches!(error.cause(), Some(ExternalError::Escape { .. })), "{error}");
    }

    let mut long = load(&source);
    let tensor = &mut long.proto_mut().graph.get_or_insert_default().initializer[0];
    tensor.external_data.extend([entry("offset", "3"), entry("length", "4")]);
    assert_refused!(
        long.save_with_weights(&path, WeightTransfer::Link),
        ExternalError::Range { offset: 3, length: 4, size: 6, .. }
    );
    assert!(contents(&out).is_empty());

    // The second of two files cannot be written. The first is removed again, and so are the folders.
    let source = folder(&["a/a.bin", "b/b.bin"]);
    std::fs::write(out.path().join("b"), b"in the way").unwrap();
    load(&source).save_with_weights(&path, WeightTransfer::Copy).unwrap_err();
    assert_eq!(contents(&out), [PathBuf::from("b")]);
    // The same is true if the model itself cannot be written.
    std::fs::remove_file(out.path().join("b")).unwrap();
    std::fs::create_dir(&path).unwrap();
    load(&source).save_with_weights(&path, WeightTransfer::Copy).unwrap_err();
    assert_eq!(contents(&out), [PathBuf::from("model.onnx")]);
}

#[cfg(unix)]
#[test]
fn links_lead_nowhere_else_and_pipes_are_not_waited_for() {
    use std::os::unix::fs::symlink;
    let outside = tempfile::tempdir().unwrap();
    std::fs::write(outside.path().join("secret"), b"secret").unwrap();
    let out = tempfile::tempdir().unwrap();
    let path = out.path().join("model.onnx");

    // The contents of the folder may change after the model was read.
    let source = folder(&["a.bin"]);
    let model = load(&source);
    std::fs::remove_file(source.path().join("a.bin")).unwrap();
    symlink(outside.path().join("secret"), source.path().join("a.bin")).unwrap();
    assert_refused!(model.save_with_weights(&path, WeightTransfer::Link), ExternalError::Escape { .. });

    std::fs::remove_file(source.path().join("a.bin")).unwrap();
    let pipe = source.path().join("a.bin");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    assert_refused!(model.save_with_weights(&path, WeightTransfer::Link), FileError::NotRegularFile);
    assert!(contents(&out).is_empty());

    // A link inside the folder is followed. The new name refers to the file, not to the link.
    std::fs::remove_file(&pipe).unwrap();
    std::fs::write(source.path().join("real.bin"), b"values").unwrap();
    symlink("real.bin", source.path().join("a.bin")).unwrap();
    load(&source).save_with_weights(&path, WeightTransfer::Link).unwrap();
    assert!(out.path().join("a.bin").symlink_metadata().unwrap().is_file());

    // A link in the new folder does not lead out of it.
    let trap = tempfile::tempdir().unwrap();
    symlink(outside.path(), trap.path().join("sub")).unwrap();
    let source = folder(&["sub/a.bin"]);
    load(&source).save_with_weights(&trap.path().join("model.onnx"), WeightTransfer::Link).unwrap_err();
    assert_eq!(contents(&outside), [PathBuf::from("secret")]);
}
