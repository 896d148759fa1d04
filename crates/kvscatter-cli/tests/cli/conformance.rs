//! Tests that `conformance/` is what `kvscatter cases --conformance` writes, and that `kvscatter verify` passes it.

use std::fs;
use std::path::{Path, PathBuf};

use crate::support::{Folder, contents};

/// The folder of the repository.
fn checked_in() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../conformance")
}

#[test]
fn the_checked_in_corpus_is_the_generated_one() {
    let folder = Folder::new();
    folder.run("cases -o corpus --conformance").passed();
    let generated = contents(&folder.path("corpus"));
    let mut checked_in = contents(&checked_in());
    // The other files of the folder are not part of the corpus.
    let entries: Vec<_> = generated.keys().filter_map(|path| path.components().next()).collect();
    checked_in.retain(|path, _| path.components().next().is_some_and(|entry| entries.contains(&entry)));
    let all = generated.keys().chain(checked_in.keys());
    let differing: Vec<_> = all.filter(|path| generated.get(*path) != checked_in.get(*path)).collect();
    assert!(differing.is_empty(), "run cargo xtask conformance: {differing:?}");
}

#[test]
fn kvscatter_passes_the_corpus() {
    let folder = Folder::new();
    let corpus = checked_in();
    let document = folder.json(&format!("verify {}", corpus.display()));
    let index: serde_json::Value =
        serde_json::from_slice(&fs::read(corpus.join("index.json")).unwrap()).unwrap();
    assert_eq!(document["failed"], 0, "{document}");
    assert_eq!(document["passed"].as_u64().unwrap(), index["cases"].as_array().unwrap().len() as u64);
}

#[test]
fn options_of_random_cases_do_not_apply_to_the_corpus() {
    let folder = Folder::new();
    for option in ["--seed 1", "--count 10", "--many"] {
        let answer = folder.run(&format!("cases -o corpus --conformance {option}"));
        assert_eq!(answer.code, Some(2), "{option}: {answer}");
    }
    assert!(!folder.path("corpus").exists());
}

#[test]
fn a_failed_case_of_the_corpus_is_printed_with_its_rule() {
    let folder = Folder::new();
    fs::create_dir(folder.path("nothing")).unwrap();
    let verify = |below: &str| {
        let cases = checked_in().join(below);
        folder.run_os(&["verify".into(), cases.into(), "--actual".into(), folder.path("nothing").into()])
    };
    let answer = verify("attention/attention-lengths");
    assert_eq!(answer.code, Some(1), "{answer}");
    let printed = answer.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    for text in [
        "attention-lengths/decode: no ",
        "The samples have 1, 2 and 4 tokens in a cache of 4 slots. The queries see x---, xx--, xxxx.",
        "rule of the corpus failed",
        "attention-lengths 6 of 6 cases",
    ] {
        assert!(printed.contains(text), "{text}: {answer}");
    }
    // The case itself is also below the index.
    let answer = verify("tensor_scatter/write/decode");
    assert!(answer.stdout.contains("1 of 1 case "), "{answer}");
}
