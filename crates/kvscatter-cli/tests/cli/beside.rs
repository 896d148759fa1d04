//! Tests how `kvscatter inspect` compares a model with the configuration files beside it.

use crate::support::Folder;

/// A decoder with static caches, for which `inspect` tries no conversion.
const STATIC: &str = "mobius-llama-static";
const GQA: &str = "genai-llama-gqa";

/// Inspects a model, and returns its hazards that name one of the files.
fn lines(folder: &Folder, model: &str) -> String {
    let text = folder.run(&format!("inspect testdata/{model}/model.onnx")).passed();
    let hazards =
        text.lines().skip_while(|line| *line != "hazards").skip(1).take_while(|line| !line.is_empty());
    hazards.filter(|line| line.contains("config.json")).collect::<Vec<_>>().join("\n")
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
fn files_that_contradict_the_graph_are_hazards() {
    let mistral = r#"{"model_type": "mistral", "sliding_window": 32, "max_position_embeddings": 4096}"#;
    let mpt = r#"{"model_type": "mpt", "attn_config": {"alibi": true}}"#;
    let genai = r#"{"model": {"context_length": 4096, "decoder": {}}}"#;
    let all = [
        beside(STATIC, &[("config.json", mistral)]),
        beside("optimum-llama", &[("config.json", mpt), ("genai_config.json", genai)]),
        beside(GQA, &[("config.json", mistral), ("genai_config.json", genai)]),
        beside("decoders/optimum-0.1-mistral-window", &[("config.json", mistral)]),
    ];
    insta::assert_snapshot!(all.join("\n---\n"));
}

#[test]
fn json() {
    let folder = Folder::with_testdata();
    folder.write("testdata/mobius-llama-static/config.json", br#"{"sliding_window": 32}"#);
    let json = folder.json("inspect testdata/mobius-llama-static/model.onnx");
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
        all.push(beside(STATIC, &[("config.json", text)]));
    }
    all.push(beside(STATIC, &[("config.json", "{"), ("genai_config.json", "{")]));
    insta::assert_snapshot!(all.join("\n---\n"));
}

/// A file that is too large, of another kind, or outside of the folder is not read.
#[cfg(unix)]
#[test]
fn paths_that_are_no_files_of_the_folder() {
    use std::os::unix::fs::symlink;

    let folder = Folder::with_testdata();
    let path = folder.path("testdata/mobius-llama-static/config.json");
    folder.write("outside.json", br#"{"sliding_window": 32}"#);
    let mut all = Vec::new();
    for target in ["../../outside.json", "/dev/zero", "absent.json"] {
        symlink(target, &path).unwrap();
        all.push(lines(&folder, STATIC));
        std::fs::remove_file(&path).unwrap();
    }
    std::fs::create_dir(&path).unwrap();
    all.push(lines(&folder, STATIC));
    std::fs::remove_dir(&path).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
    all.push(lines(&folder, STATIC));
    std::fs::remove_file(&path).unwrap();
    // A link inside the folder is followed.
    folder.write("testdata/mobius-llama-static/other.json", br#"{"sliding_window": 32}"#);
    symlink("other.json", &path).unwrap();
    all.push(lines(&folder, STATIC));
    insta::assert_snapshot!(all.join("\n---\n"));
}
