//! Tests output in a narrow terminal. Every table fits, and no word is broken.

use crate::support::Folder;

const COLUMNS: usize = 60;

/// Returns whether a line may be longer. It may if it has one word, or a command to copy.
fn may_be_longer(line: &str) -> bool {
    let text = line.trim_start();
    !text.contains(' ') || text.starts_with("picture: ")
}

#[track_caller]
fn assert_fits(text: &str) {
    for line in text.lines() {
        assert!(line.chars().count() <= COLUMNS || may_be_longer(line), "{line}\n\n{text}");
    }
}

#[test]
fn every_table_fits() {
    let folder = Folder::with_testdata();
    let growing = "testdata/decoders/optimum-1.18-gpt2/model.onnx";
    let mobius = "testdata/mobius-llama-static/model.onnx";
    let plan = "plan tensor-scatter --cache 4,8,131072,64 --update 4,8,3,64 --mode circular";
    let mut lines = vec![
        format!("inspect {growing}"),
        format!("inspect {mobius} --target tensorrt"),
        "inspect testdata/genai-llama-gqa/model.onnx".to_owned(),
        "run testdata/onnx-node/test_tensorscatter_circular".to_owned(),
        format!("{plan} --write-indices 3,0,131071,7"),
        format!("{plan} --write-indices 3,0,131071,231071 --window 131072"),
        format!("convert {growing} -o out.onnx --max-seq 32"),
    ];
    if cfg!(feature = "full") {
        lines.push(format!("run {mobius} --dim batch=2 --dim sequence_len=3"));
        lines.push(format!("certify {mobius} --no-timing --steps 2 --engine tract"));
    }
    for line in lines {
        let (wide, narrow) = (folder.run(&line), folder.run_in_columns(COLUMNS, &line));
        assert_eq!(wide.code, narrow.code, "{line}: {narrow}");
        assert_fits(&narrow.stdout);
        let words: std::collections::BTreeSet<_> = narrow.stdout.split_whitespace().collect();
        for word in wide.stdout.split_whitespace().filter(|word| word.is_ascii()) {
            // The words of the picture change with its width.
            let is_scale = word.bytes().all(|byte| byte.is_ascii_digit());
            assert!(is_scale || words.contains(word), "{line}: {word} is broken in\n{}", narrow.stdout);
        }
    }
}

#[test]
fn wrapped_tables_and_records() {
    let folder = Folder::with_testdata();
    let plan = "plan tensor-scatter --cache 4,8,131072,64 --update 4,8,3,64 --write-indices 3,0,131071,7";
    let answers = [
        folder.run_in_columns(COLUMNS, &format!("{plan} --mode circular")),
        folder.run_in_columns(COLUMNS, "run testdata/onnx-node/test_tensorscatter_circular"),
    ];
    insta::assert_snapshot!(answers.map(super::support::Answer::passed).join("\n"));
}
