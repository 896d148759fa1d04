//! Tests the command without its features. A command that needs a feature prints how to build it.

use crate::support::Folder;

#[test]
fn a_missing_feature_is_named_with_the_words_that_build_it() {
    let folder = Folder::with_testdata();
    let decoder = "testdata/mobius-llama-static/model.onnx";
    for (line, what, feature) in [
        (format!("run {decoder} --dim batch=1 --dim sequence_len=1"), "the engine tract", "tract"),
        (format!("run {decoder} --engine ort"), "the engine ONNX Runtime", "onnxruntime"),
        (format!("generate {decoder} --prompt-ids 1"), "the engine tract", "tract"),
        (format!("generate {decoder} --prompt a"), "tokenizers", "text"),
        (format!("generate {decoder} --chat"), "tokenizers", "text"),
        (format!("certify {decoder}"), "certify", "certify"),
    ] {
        let expected = format!(
            "error: this kvscatter was built without {what}; build it in a clone of the repository with: cargo \
             install --locked --path crates/kvscatter-cli --features {feature} (or: cargo run --release --features \
             {feature} -- ...)"
        );
        assert_eq!(folder.run(&line).one_error_line(), expected, "{line}");
    }
}

#[test]
fn the_help_is_that_of_every_build() {
    let folder = Folder::new();
    let help = folder.run("certify --help").passed();
    assert!(help.contains("--original"), "{help}");
}
