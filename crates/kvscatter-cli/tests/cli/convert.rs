//! Tests what `kvscatter convert` writes, prints and refuses. A refusal leaves no file.

use crate::support::Folder;

const CONCAT: &str = "testdata/optimum-llama/model.onnx";
const ATTENTION: &str = "testdata/mobius-llama-dynamic/model.onnx";

#[test]
fn a_decoder_whose_cache_is_joined() {
    let folder = Folder::with_testdata();
    insta::assert_snapshot!(folder.run(&format!("convert {CONCAT} -o static.onnx --max-seq 64")));
    let again = folder.run("convert static.onnx -o again.onnx --max-seq 64").refused();
    assert!(again.contains("is written by TensorScatter already"), "{again}");
}

#[test]
fn a_decoder_and_its_weights_in_another_folder() {
    let folder = Folder::with_testdata();
    std::fs::create_dir(folder.path("out")).unwrap();
    insta::assert_snapshot!(folder.run(&format!("convert {ATTENTION} -o out/static.onnx --max-seq 64")));
    assert_eq!(folder.read("out/model.onnx.data"), folder.read(&format!("{ATTENTION}.data")));
}

#[test]
fn json() {
    let folder = Folder::with_testdata();
    let beside = "testdata/mobius-llama-dynamic/static.onnx";
    insta::assert_snapshot!(folder.run(&format!("convert {ATTENTION} -o {beside} --max-seq 64 --json")));
}

#[test]
fn attention_that_is_kept() {
    let folder = Folder::with_testdata();
    insta::assert_snapshot!(
        folder.run(&format!("convert {CONCAT} -o static.onnx --max-seq 64 --keep-attention"))
    );
    insta::assert_snapshot!(
        folder.run(&format!("convert {CONCAT} -o static.onnx --max-seq 64 --keep-attention --json"))
    );
}

#[test]
fn refusals() {
    let folder = Folder::with_testdata();
    let commands = [
        format!("convert {CONCAT} -o out.onnx"),
        format!("convert {CONCAT} --max-seq 64"),
        format!("convert {CONCAT} -o out.onnx --max-seq 0"),
        format!("convert {CONCAT} -o {CONCAT} --max-seq 64"),
        format!("convert {ATTENTION} -o {ATTENTION}.data --max-seq 64"),
        format!("convert {CONCAT} -o absent/out.onnx --max-seq 64"),
        // The table of rotary positions is too short.
        format!("convert {ATTENTION} -o out.onnx --max-seq 129"),
        "convert testdata/genai-llama-gqa/model.onnx -o out.onnx --max-seq 64".to_owned(),
        "convert testdata/mobius-llama-static/model.onnx -o out.onnx --max-seq 64".to_owned(),
        "convert testdata/decoders/optimum-1.18-falcon/model.onnx -o out.onnx --max-seq 64".to_owned(),
        "convert absent.onnx -o out.onnx --max-seq 64".to_owned(),
    ];
    let lines: Vec<_> = commands.iter().map(|command| folder.run(command).refused()).collect();
    insta::assert_snapshot!(lines.join("\n"));
    std::fs::remove_file(folder.path(&format!("{ATTENTION}.data"))).unwrap();
    let error = folder.run(&format!("convert {ATTENTION} -o out.onnx --max-seq 64")).refused();
    assert!(error.contains("model.onnx.data: No such file or directory"), "{error}");
    let left = std::fs::read_dir(folder.path("")).unwrap().map(|entry| entry.unwrap().file_name());
    assert_eq!(left.collect::<Vec<_>>(), ["testdata"]);
}
