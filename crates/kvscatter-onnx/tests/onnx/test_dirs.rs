//! ONNX test directories: found, read, written.

use kvscatter::ElementType::Float32;
use kvscatter_onnx::test_dir::{TestCase, discover};
use kvscatter_onnx::{Error, Model};

use crate::support::{assert_refused, int64, testdata};

#[test]
fn the_three_cases_of_onnx() {
    let cases = discover(&testdata("onnx-node")).unwrap();
    let names: Vec<_> = cases.iter().map(|case| case.folder.file_name().unwrap().to_str().unwrap()).collect();
    assert_eq!(names, ["test_tensorscatter", "test_tensorscatter_3d", "test_tensorscatter_circular"]);
    for case in cases {
        assert!(Model::load(&case.model_path()).unwrap().graph().is_ok());
        let [data_set] = case.data_sets.as_slice() else { panic!("{case:?}") };
        let inputs = data_set.read_inputs().unwrap();
        assert_eq!((inputs.len(), inputs[0].element()), (3, Float32));
        assert_eq!(data_set.read_outputs().unwrap()[0].shape(), inputs[0].shape());
    }
}

#[test]
fn what_is_written_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let model = Model::load(&testdata("onnx-node/test_tensorscatter/model.onnx")).unwrap();
    let tensors = |first| vec![int64(&[1], &[first]), int64(&[1], &[first + 1])];
    // Eleven data sets: numbers are compared as numbers. The last has no outputs: it must be refused.
    let mut data_sets: Vec<_> = (0..11).map(|first| (tensors(first), vec![int64(&[], &[first])])).collect();
    data_sets[10].1.clear();
    TestCase::write(&folder.path().join("deep/er"), &model, &data_sets).unwrap();
    let cases = discover(folder.path()).unwrap();
    assert_eq!(cases.len(), 1);
    let read: Vec<_> = cases[0]
        .data_sets
        .iter()
        .map(|data_set| (data_set.read_inputs().unwrap(), data_set.read_outputs().unwrap()))
        .collect();
    assert_eq!(read, data_sets);

    let four = [tensors(0), tensors(0)].concat();
    let written = TestCase::write(folder.path(), &model, &[(four, vec![])]);
    assert_refused!(written, Error::TestFileCount { what: "input", want: 3, got: 4 });
}

#[test]
fn numbers_without_a_gap() {
    let folder = tempfile::tempdir().unwrap();
    let set = folder.path().join("test_data_set_0");
    std::fs::create_dir(&set).unwrap();
    std::fs::write(folder.path().join("model.onnx"), b"").unwrap();
    for file in ["input_0.pb", "input_2.pb", "input_x.pb", "input_1.txt"] {
        std::fs::write(set.join(file), b"").unwrap();
    }
    assert_refused!(discover(folder.path()), Error::TestFileMissing { missing, .. } if missing == "input_1.pb");
    assert_refused!(discover(&folder.path().join("absent")), Error::Io(_));
}

#[cfg(unix)]
#[test]
fn symbolic_links_that_lead_back() {
    let folder = tempfile::tempdir().unwrap();
    let case = folder.path().join("case");
    std::fs::create_dir(&case).unwrap();
    std::fs::write(case.join("model.onnx"), b"").unwrap();
    std::os::unix::fs::symlink("..", case.join("loop")).unwrap();
    std::os::unix::fs::symlink("case", folder.path().join("link")).unwrap();
    let found = discover(folder.path()).unwrap();
    let names: Vec<_> = found.iter().map(|case| case.folder.strip_prefix(folder.path()).unwrap()).collect();
    assert_eq!(names, [std::path::Path::new("case"), std::path::Path::new("link")]);
}
