//! Tests what `kvscatter lower` writes, prints and refuses. A refusal leaves no file.

use crate::support::Folder;

const STATIC: &str = "testdata/mobius-llama-static/model.onnx";

#[test]
fn a_decoder_and_its_weights_in_another_folder() {
    let folder = Folder::with_testdata();
    std::fs::create_dir(folder.path("out")).unwrap();
    insta::assert_snapshot!(folder.run(&format!("lower {STATIC} --to scatter-nd -o out/model.onnx")));
    assert_eq!(
        folder.read("out/model.onnx.data"),
        folder.read("testdata/mobius-llama-static/model.onnx.data")
    );
    let error = folder.run("lower out/model.onnx --to scatter-nd -o again.onnx").refused();
    assert!(error.contains("out/model.onnx: the model has no TensorScatter"), "{error}");
}

#[test]
fn json() {
    let folder = Folder::with_testdata();
    let beside = "testdata/mobius-llama-static/lowered.onnx";
    insta::assert_snapshot!(folder.run(&format!("lower {STATIC} --to scatter-elements -o {beside} --json")));
}

#[test]
fn refusals() {
    let folder = Folder::with_testdata();
    let lines = [
        format!("{STATIC} -o out.onnx"),
        format!("{STATIC} --to gather -o out.onnx"),
        format!("{STATIC} --to scatter-nd -o {STATIC}"),
        format!("{STATIC} --to scatter-nd -o {STATIC}.data"),
        "testdata/optimum-llama/model.onnx --to scatter-nd -o out.onnx".to_owned(),
        "absent.onnx --to scatter-nd -o out.onnx".to_owned(),
    ];
    insta::assert_snapshot!(folder.refusals("lower", &lines));
    std::fs::remove_file(folder.path(&format!("{STATIC}.data"))).unwrap();
    let error = folder.run(&format!("lower {STATIC} --to scatter-nd -o out.onnx")).refused();
    assert!(error.contains(&format!("{STATIC}: tensor ")), "{error}");
    assert!(error.contains("model.onnx.data: No such file or directory"), "{error}");
    assert!(!folder.path("out.onnx").exists());
}
