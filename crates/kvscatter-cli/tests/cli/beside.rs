//! Tests how `kvscatter inspect` compares a model with the configuration files beside it.

use crate::support::Folder;

const LLAMA: &str = "optimum-llama";
const GQA: &str = "genai-llama-gqa";

/// Inspects a model, and returns its hazards that do not follow from the graph alone.
fn lines(folder: &Folder, model: &str) -> String {
    let text = folder.run(&format!("inspect testdata/{model}/model.onnx")).passed();
    let hazards =
        text.lines().skip_while(|line| *line != "hazards").skip(1).take_while(|line| !line.is_empty());
    let rest = hazards.filter(|line| !line.contains("  grows  ") && !line.contains("  operator-writes  "));
    rest.collect::<Vec<_>>().join("\n")
}

/// Writes the files, and returns the lines.
fn beside(model: &str, files: &[(&str, &str)]) -> String {
    let folder = Folder::with_testdata();
    for (name, text) in files {
        folder.write(&format!("testdata/{model}/{name}"), text.as_bytes());
    }
    lines(&folder, model)
}

#[test]
fn what_the_graph_does_not_contain() {
    let mistral = r#"{"model_type": "mistral", "sliding_window": 32, "max_position_embeddings": 4096}"#;
    let mpt = r#"{"model_type": "mpt", "attn_config": {"alibi": true}}"#;
    let genai = r#"{"model": {"context_length": 4096, "decoder": {}}}"#;
    let all = [
        beside(LLAMA, &[("config.json", mistral)]),
        beside(LLAMA, &[("config.json", mpt), ("genai_config.json", genai)]),
        beside(GQA, &[("config.json", mistral), ("genai_config.json", genai)]),
        beside("decoders/optimum-0.1-mistral-window", &[("config.json", mistral)]),
    ];
    insta::assert_snapshot!(all.join("\n---\n"));
}

#[test]
fn json() {
    let folder = Folder::with_testdata();
    folder.write("testdata/optimum-llama/config.json", br#"{"sliding_window": 32}"#);
    let text = folder.run("inspect testdata/optimum-llama/model.onnx --json").passed();
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    let hazard = json["hazards"].as_array().unwrap().last().unwrap();
    assert_eq!((&hazard["kind"], &hazard["cache"]), (&"window-missing".into(), &serde_json::Value::Null));
}

#[test]
fn files_that_are_invalid() {
    let deep = "[".repeat(1 << 19);
    let mut all = Vec::new();
    for text in [
        "",
        "{",
        "[]",
        "\u{feff}{}",
        r#"{"sliding_window": "\u001b[2J"}"#,
        r#"{"sliding_window": 1e999}"#,
        r#"{"max_position_embeddings": 18446744073709551616}"#,
        deep.as_str(),
        &" ".repeat((1 << 20) + 1),
    ] {
        all.push(beside(LLAMA, &[("config.json", text)]));
    }
    all.push(beside(LLAMA, &[("config.json", "{"), ("genai_config.json", "{")]));
    insta::assert_snapshot!(all.join("\n---\n"));
}

/// A file that is too large, of another kind, or outside of the folder is not read.
#[cfg(unix)]
#[test]
fn paths_that_are_no_files_of_the_folder() {
    use std::os::unix::fs::symlink;

    let folder = Folder::with_testdata();
    let path = folder.path("testdata/optimum-llama/config.json");
    folder.write("outside.json", br#"{"sliding_window": 32}"#);
    let mut all = Vec::new();
    for target in ["../../outside.json", "/dev/zero", "absent.json"] {
        symlink(target, &path).unwrap();
        all.push(lines(&folder, LLAMA));
        std::fs::remove_file(&path).unwrap();
    }
    std::fs::create_dir(&path).unwrap();
    all.push(lines(&folder, LLAMA));
    std::fs::remove_dir(&path).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
    all.push(lines(&folder, LLAMA));
    std::fs::remove_file(&path).unwrap();
    // A link inside the folder is followed.
    folder.write("testdata/optimum-llama/other.json", br#"{"sliding_window": 32}"#);
    symlink("other.json", &path).unwrap();
    all.push(lines(&folder, LLAMA));
    insta::assert_snapshot!(all.join("\n---\n"));
}
