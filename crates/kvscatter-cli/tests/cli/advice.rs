//! Follows the advice of the commands on every decoder of the test data.

use std::path::Path;

use crate::support::{Answer, Folder, testdata};

const CONVERT: &str = "kvscatter convert MODEL -o OUT --max-seq ";
const REFUSED: &str = "The growing caches cannot be made static with ";

/// Returns every decoder of the test data, as `testdata/…/model.onnx`.
fn decoders() -> Vec<String> {
    fn walk(folder: &Path, name: &str, found: &mut Vec<String>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let entry = entry.unwrap();
            let name = format!("{name}/{}", entry.file_name().to_str().unwrap());
            if entry.file_type().unwrap().is_dir() {
                walk(&entry.path(), &name, found);
            } else if name.ends_with("/model.onnx") && !name.contains("/test_") {
                found.push(name);
            }
        }
    }
    let mut found = Vec::new();
    walk(&testdata(""), "testdata", &mut found);
    found.sort();
    found
}

fn text(answer: Answer) -> String {
    format!("{}\n{}", answer.stdout, answer.stderr)
}

/// Returns the number at the start of a text.
fn number(text: &str) -> usize {
    text.split(|other: char| !other.is_ascii_digit()).next().unwrap().parse().unwrap()
}

#[test]
fn what_is_advised_succeeds() {
    let folder = Folder::with_testdata();
    let decoders = decoders();
    let (mut converted, mut refused) = (Vec::new(), Vec::new());
    for model in &decoders {
        // The output is in the folder of the model, where its weights are.
        let out = format!("{}/out.onnx", model.trim_end_matches("/model.onnx"));
        for options in ["", " --max-seq 24"] {
            let inspected = folder.run(&format!("inspect {model}{options}")).passed();
            let convert = |slots| folder.run(&format!("convert {model} -o {out} --max-seq {slots}"));
            if let Some((_, rest)) = inspected.split_once(CONVERT) {
                convert(number(rest)).passed();
                converted.push(model.as_str());
            }
            if let Some((_, rest)) = inspected.split_once(REFUSED) {
                let (_, why) = rest.split_once("): ").unwrap();
                let error = convert(number(rest)).refused();
                assert!(error.ends_with(why.trim_end()), "{error}\n{why}");
                refused.push(model.as_str());
            }
            let commands = inspected.matches("kvscatter convert").count();
            assert_eq!(commands, inspected.matches(CONVERT).count(), "{inspected}");
        }
        // Messages of other commands name `inspect`, which tries the conversion.
        for line in [
            format!("generate {model} --prompt-ids 1,2,3 --tokens 2"),
            format!("generate {model} --prompt-ids 1,2,3 --prompt-ids 4 --tokens 2"),
            format!("certify {model} --engine tract"),
            format!("run {model} --in-place"),
            format!("convert {model} -o {out} --max-seq 1000000"),
        ] {
            let printed = text(folder.run(&line));
            assert!(!printed.contains("kvscatter convert"), "{line}: {printed}");
        }
    }
    converted.dedup();
    refused.dedup();
    let name = |name: &str| format!("testdata/{name}/model.onnx");
    let never = ["decoders/optimum-1.18-falcon", "decoders/optimum-0.1-mistral-window"].map(name);
    let as_they_are = ["genai-llama-gqa", "mobius-llama-static"].map(name);
    for model in &never {
        assert!(refused.contains(&model.as_str()) && !converted.contains(&model.as_str()), "{model}");
    }
    assert_eq!(converted.len(), decoders.len() - never.len() - as_they_are.len(), "{converted:?}");
}

/// Checks that every command's message about the operator is true, and names no command that would refuse the
/// model.
#[test]
fn a_cache_that_an_operator_writes_itself() {
    const MODEL: &str = "testdata/genai-llama-gqa/model.onnx";
    const WHY: &str = "GroupQueryAttention writes the cache itself, and kvscatter cannot make it static yet. ONNX \
                       Runtime writes only the new rows if past and present are bound to one buffer \
                       (past_present_share_buffer in ONNX Runtime GenAI). kvscatter does not do this yet";
    let folder = Folder::with_testdata();
    let inspected = folder.run(&format!("inspect {MODEL}")).passed();
    assert!(
        inspected.contains("operator-writes  \"past_key_values.0.key\" is written by node 11"),
        "{inspected}"
    );
    let words: Vec<_> = inspected.split_whitespace().collect();
    assert!(words.join(" ").contains("bind past and present of a cache to one buffer"), "{inspected}");
    let json: serde_json::Value =
        serde_json::from_str(&folder.run(&format!("inspect {MODEL} --json")).passed()).unwrap();
    assert_eq!(json["hazards"][0]["kind"], "operator-writes");
    assert_eq!(json["hazards"].as_array().unwrap().len(), 4);
    assert_eq!(json["convert"], serde_json::Value::Null);
    let error = folder.run(&format!("convert {MODEL} -o out.onnx --max-seq 64")).refused();
    assert!(error.ends_with(&format!("past \"past_key_values.0.key\" is not made static: {WHY}")), "{error}");
    let error = folder.run(&format!("certify {MODEL} --engine tract")).refused();
    assert!(error.ends_with(&format!("is not static, its style is GroupQueryAttention: {WHY}")), "{error}");
}

/// Tests the same where the operator runs, in the ONNX Runtime that KVSCATTER_ORT_LIB names.
#[test]
#[ignore = "needs ONNX Runtime: cargo xtask models"]
fn caches_that_grow_are_generated_with_and_say_what_can_be_done() {
    let folder = Folder::with_testdata();
    let generate = |model: &str, options: &str| {
        folder.run(&format!("generate testdata/{model}/model.onnx --engine ort --tokens 4 {options}"))
    };
    for (model, why) in [
        (
            "genai-llama-gqa",
            "GroupQueryAttention writes the cache itself, and kvscatter cannot make it static yet. ",
        ),
        ("optimum-llama", "kvscatter inspect shows whether it can be made static"),
    ] {
        let printed = generate(model, "--prompt-ids 1,2,3").passed();
        // Two layers of keys and values with two heads of 16 float32 take 512 bytes a token. There are 6
        // tokens.
        assert!(
            printed.contains("cache write  3072 bytes in the last step: growing caches are copied whole"),
            "{printed}"
        );
        assert!(
            printed.contains(&format!("caches       grow with every step; for each cache: {why}")),
            "{printed}"
        );
        let error = generate(model, "--prompt-ids 1,2,3 --prompt-ids 9").refused();
        assert!(
            error.contains(&format!("prompts of 3 and 1 tokens: a cache that grows takes one length; {why}")),
            "{error}"
        );
        let json: serde_json::Value =
            serde_json::from_str(&generate(model, "--prompt-ids 1 --json").passed()).unwrap();
        assert!(json["advice"].as_str().unwrap().starts_with(why), "{json}");
    }
}
