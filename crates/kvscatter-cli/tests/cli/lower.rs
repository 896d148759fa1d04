//! Tests what `kvscatter lower` writes, prints and refuses. A refusal leaves no file.

use crate::support::Folder;

const STATIC: &str = "testdata/mobius-llama-static/model.onnx";

#[test]
fn answers_and_refusals() {
    let folder = Folder::with_testdata();
    folder.check_transcript("lower");
    assert_eq!(folder.read("out/model.onnx.data"), folder.read(&format!("{STATIC}.data")));
    std::fs::remove_file(folder.path(&format!("{STATIC}.data"))).unwrap();
    let error = folder.run(&format!("lower {STATIC} --to scatter-nd -o out.onnx")).refused();
    assert!(error.contains(&format!("{STATIC}: tensor ")), "{error}");
    assert!(error.contains("model.onnx.data: No such file or directory"), "{error}");
    assert!(!folder.path("out.onnx").exists());
}
