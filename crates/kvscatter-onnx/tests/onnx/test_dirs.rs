//! Tests that ONNX test directories are found, read and written.

use kvscatter_onnx::internal::tensor_proto;
use kvscatter_onnx::internal::test_dir::{DataSet, TestCase, discover};
use kvscatter_onnx::{FileError, Model};

use crate::support::{assert_refused, folder, int64, testdata};

#[test]
fn written_data_sets_are_read_back() {
    let folder = tempfile::tempdir().unwrap();
    let model = Model::load(&testdata("onnx-node/test_tensorscatter/model.onnx")).unwrap();
    let graph = model.graph().unwrap();
    let tensors = |first| vec![int64(&[1], &[first]), int64(&[1], &[first + 1]), int64(&[1], &[0])];
    // There are eleven data sets, because numbers are compared as numbers. The last has no outputs, so it
    // must be rejected.
    let mut data_sets: Vec<_> = (0..11).map(|first| (tensors(first), vec![int64(&[], &[first])])).collect();
    data_sets[10].1.clear();
    TestCase::write(&folder.path().join("deep/er"), &model, &data_sets).unwrap();
    assert_eq!(discover(folder.path()).unwrap().cases, [folder.path().join("deep/er")]);
    let case = TestCase::open(&folder.path().join("deep/er")).unwrap();
    let inputs =
        |data_set: &DataSet| data_set.read_inputs(&graph).unwrap().into_iter().map(|(_, input)| input);
    let read: Vec<_> = case
        .data_sets
        .iter()
        .map(|data_set| (inputs(data_set).collect(), data_set.read_outputs().unwrap()))
        .collect();
    assert_eq!(read, data_sets);

    let six = [tensors(0), tensors(0)].concat();
    let written = TestCase::write(folder.path(), &model, &[(six, vec![])]);
    assert_refused!(written, FileError::TestFileCount { what: "input", expected: 3, got: 6 });
}

#[test]
fn as_many_input_files_as_the_graph_has_inputs() {
    let folder = tempfile::tempdir().unwrap();
    let mut model = Model::load(&testdata("onnx-node/test_tensorscatter/model.onnx")).unwrap();
    let tensor = || int64(&[1], &[0]);
    TestCase::write(folder.path(), &model, &[(vec![tensor(), tensor(), tensor()], vec![])]).unwrap();
    let set = || TestCase::open(folder.path()).unwrap().data_sets.remove(0);
    assert_eq!(set().read_inputs(&model.graph().unwrap()).unwrap().len(), 3);

    let (third, fourth) = (set().folder.join("input_2.pb"), set().folder.join("input_3.pb"));
    std::fs::copy(&third, &fourth).unwrap();
    assert_refused!(
        set().read_inputs(&model.graph().unwrap()),
        FileError::TestFileCount { what: "input", expected: 3, got: 4 }
    );
    std::fs::remove_file(fourth).unwrap();
    std::fs::remove_file(third).unwrap();
    assert_refused!(
        set().read_inputs(&model.graph().unwrap()),
        FileError::TestFileMissing { missing, .. } if missing == "input_2.pb"
    );
    // The file may be missing if the graph has a default for the input.
    let default = tensor_proto::encode("write_indices", &tensor());
    model.proto_mut().graph.get_or_insert_default().initializer = vec![default];
    assert_eq!(set().read_inputs(&model.graph().unwrap()).unwrap().len(), 2);
}

#[test]
fn numbers_without_a_gap() {
    let folder = folder(&[
        ("model.onnx", b""),
        ("test_data_set_0/input_0.pb", b""),
        ("test_data_set_0/input_2.pb", b""),
        ("test_data_set_0/input_x.pb", b""),
        ("test_data_set_0/input_1.txt", b""),
    ]);
    // One broken directory does not hide its neighbours.
    assert_eq!(discover(folder.path()).unwrap().cases, [folder.path()]);
    assert_refused!(TestCase::open(folder.path()), FileError::TestFileMissing { missing, .. } if missing == "input_1.pb");
    assert_refused!(discover(&folder.path().join("absent")), std::io::Error { .. });
}

#[cfg(unix)]
#[test]
fn symbolic_links_that_lead_back() {
    let folder = folder(&[("case/model.onnx", b"")]);
    std::os::unix::fs::symlink("..", folder.path().join("case/loop")).unwrap();
    std::os::unix::fs::symlink("case", folder.path().join("link")).unwrap();
    let found = discover(folder.path()).unwrap().cases;
    let names: Vec<_> = found.iter().map(|found| found.strip_prefix(folder.path()).unwrap()).collect();
    assert_eq!(names, [std::path::Path::new("case"), std::path::Path::new("link")]);
}

/// One bad entry does not hide the entries next to it, and no file outside the folder is read.
#[cfg(unix)]
#[test]
fn entries_that_cannot_be_read_are_named() {
    use std::os::unix::fs::symlink;
    let outer = tempfile::tempdir().unwrap();
    let root = outer.path().join("root");
    let in_root = |name: &str| root.join(name);
    let case = |folder: &std::path::Path| {
        std::fs::create_dir_all(folder.join("test_data_set_0")).unwrap();
        std::fs::write(folder.join("model.onnx"), b"").unwrap();
    };
    for name in ["good", "stray", "sets", "model"] {
        case(&in_root(name));
    }
    case(&outer.path().join("secret"));
    assert!(discover(&root).unwrap().unread.is_empty());
    symlink("nowhere", in_root("dangling")).unwrap();
    symlink("loop", in_root("loop")).unwrap();
    symlink("../secret", in_root("out")).unwrap();
    symlink(outer.path(), in_root("up")).unwrap();
    symlink("nowhere", in_root("stray/notes")).unwrap();
    symlink("../../secret/test_data_set_0", in_root("sets/test_data_set_1")).unwrap();
    std::fs::remove_file(in_root("model/model.onnx")).unwrap();
    symlink("../../secret/model.onnx", in_root("model/model.onnx")).unwrap();
    let found = discover(&root).unwrap();
    assert_eq!(found.cases, ["good", "stray"].map(in_root));
    let unread: Vec<_> = found.unread.iter().map(|unread| unread.path.strip_prefix(&root).unwrap()).collect();
    let names = ["dangling", "loop", "model/model.onnx", "out", "sets/test_data_set_1", "stray/notes", "up"];
    assert_eq!(unread, names.map(std::path::Path::new));
    for unread in &found.unread {
        let is_io = ["dangling", "loop", "notes"].iter().any(|name| unread.path.ends_with(name));
        assert_eq!(unread.cause.cause::<std::io::Error>().is_some(), is_io, "{unread:?}");
        assert_eq!(matches!(unread.cause.cause(), Some(FileError::LinkLeadsOut)), !is_io, "{unread:?}");
    }
    // The given folder may itself be a link.
    symlink("root", outer.path().join("link")).unwrap();
    assert_eq!(discover(&outer.path().join("link")).unwrap().cases.len(), 2);
}
