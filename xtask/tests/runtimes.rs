//! Checks the list of runtimes of `cargo xtask divergences`.
#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail the test they help")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use toml::{Table, Value};

/// The operators of the cases.
const OPERATORS: [&str; 4] = ["TensorScatter", "Attention", "KVCacheUpdate", "KVCacheOperation"];

#[test]
fn every_runtime_has_versions_an_adapter_and_calls() {
    let document = document();
    let mut seen = BTreeSet::new();
    for runtime in tables(&document, "runtime") {
        let name = text(runtime, "name");
        assert!(!text(runtime, "title").is_empty());
        let adapter = folder().join("adapters").join(text(runtime, "adapter"));
        assert!(adapter.is_file(), "{name}: no {}", adapter.display());
        let calls =
            runtime.get("calls").and_then(Value::as_table).unwrap_or_else(|| panic!("{name}: no calls"));
        assert!(
            !calls.is_empty() && calls.keys().all(|key| OPERATORS.contains(&key.as_str())),
            "{name}: {calls:?}"
        );
        let versions = runtime["versions"].as_array().unwrap();
        assert!(!versions.is_empty(), "{name}");
        for version in versions {
            let id = format!("{name}-{}", version.as_str().unwrap());
            assert!(seen.insert(id.clone()), "{id} is there twice");
        }
    }
    assert!(seen.len() >= 12, "{seen:?}");
}

#[test]
fn every_package_has_one_version() {
    for runtime in tables(&document(), "runtime") {
        for requirement in runtime.get("requirements").and_then(Value::as_array).into_iter().flatten() {
            let requirement = requirement.as_str().unwrap();
            assert!(requirement.contains("=="), "{}: {requirement}", text(runtime, "name"));
        }
    }
}

#[test]
fn every_runtime_that_does_not_run_has_needs_words_and_a_source() {
    let document = document();
    let not_run = tables(&document, "not_run");
    assert!(!not_run.is_empty());
    for entry in not_run {
        assert!(["name", "needs", "words", "source"].iter().all(|key| !text(entry, key).is_empty()));
    }
}

fn document() -> Table {
    fs::read_to_string(folder().join("runtimes.toml")).unwrap().parse().unwrap()
}

fn tables<'a>(document: &'a Table, key: &str) -> Vec<&'a Table> {
    document[key].as_array().unwrap().iter().map(|value| value.as_table().unwrap()).collect()
}

fn text<'a>(table: &'a Table, key: &str) -> &'a str {
    table.get(key).and_then(Value::as_str).unwrap_or_else(|| panic!("no {key} in {table:?}"))
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("divergences")
}
