//! Follows the advice of the commands on every decoder of the test data.

use crate::support::{Answer, Folder, listing, testdata};

const CONVERT: &str = "kvscatter convert MODEL -o OUT --max-seq ";
const REFUSED: &str = "The growing caches cannot be made static with ";

/// Returns every decoder of the test data, as `testdata/…/model.onnx`.
fn decoders() -> Vec<String> {
    let folder = testdata("");
    let names = listing(&folder).into_iter().map(|path| {
        let name = path.strip_prefix(&folder).unwrap().to_str().unwrap();
        format!("testdata/{name}")
    });
    names.filter(|name| name.ends_with("/model.onnx") && !name.contains("/test_")).collect()
}

fn text(answer: Answer) -> String {
    format!("{}\n{}", answer.stdout, answer.stderr)
}

/// Returns the number at the start of a text.
fn number(text: &str) -> usize {
    text.split(|other: char| !other.is_ascii_digit()).next().unwrap().parse().unwrap()
}

#[test]
fn advice_is_right_for_every_decoder() {
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
            format!("generate {model} --prompt-ids 1,2,3 --tokens 2 --no-convert"),
            format!("generate {model} --prompt-ids 1,2,3 --prompt-ids 4 --tokens 2 --no-convert"),
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
    let static_already = name("mobius-llama-static");
    let never: Vec<_> = decoders.iter().filter(|model| !converted.contains(&model.as_str())).collect();
    assert_eq!(never, [&static_already], "{refused:?}");
}

/// Checks that every command's message about the operator is true, and names no command that would refuse the
/// model.
#[test]
fn a_cache_that_an_operator_writes_itself() {
    const MODEL: &str = "testdata/genai-llama-gqa/model.onnx";
    let folder = Folder::with_testdata();
    let inspected = folder.run(&format!("inspect {MODEL}")).passed();
    assert!(
        inspected.contains("operator-writes  \"past_key_values.0.key\" is written by node 11"),
        "{inspected}"
    );
    let words: Vec<_> = inspected.split_whitespace().collect();
    assert!(words.join(" ").contains("past and present of a cache are bound to one buffer"), "{inspected}");
    let json = folder.json(&format!("inspect {MODEL}"));
    assert_eq!(json["hazards"][0]["kind"], "operator-writes");
    assert_eq!(json["hazards"].as_array().unwrap().len(), 4);
    let taken = "kvscatter's plugin for ONNX Runtime takes 2 of 2 GroupQueryAttention nodes\n";
    assert!(inspected.contains(taken), "{inspected}");
    assert!(words.join(" ").contains("kvscatter.onnxruntime_genai.use(config)"), "{inspected}");
    assert_eq!(json["group_query_nodes"], serde_json::json!({"nodes": 2, "in_plugin": 2, "left": []}));
    let error = folder.run(&format!("certify {MODEL} --engine tract")).refused();
    assert!(error.contains("the caches have an open capacity: one must be given"), "{error}");
    let error = folder.run(&format!("certify {MODEL} --engine tract --capacity 64")).refused();
    assert!(error.contains("tract 0.23.9 cannot ") && error.contains("(GroupQueryAttention)"), "{error}");
    assert_eq!(error.lines().count(), 1, "{error}");
}

/// Tests the same where the operator runs, in the ONNX Runtime that KVSCATTER_ORT_LIB names.
#[test]
#[ignore = "needs ONNX Runtime: cargo xtask models"]
fn caches_that_grow_are_generated_with_and_say_what_can_be_done() {
    let folder = Folder::with_testdata();
    let generate = |options: &str| {
        folder.run(&format!(
            "generate testdata/optimum-llama/model.onnx --engine ort --no-convert --tokens 4 {options}"
        ))
    };
    let why = "kvscatter inspect shows whether it can be made static";
    let printed = generate("--prompt-ids 1,2,3").passed();
    // Two layers of keys and values with two heads of 16 float32 take 512 bytes a token. There are 6 tokens.
    assert!(
        printed.contains("cache write  3072 bytes in the last step: growing caches are copied whole"),
        "{printed}"
    );
    assert!(
        printed.contains(&format!("caches       grow with every step; for each cache: {why}")),
        "{printed}"
    );
    let error = generate("--prompt-ids 1,2,3 --prompt-ids 9").refused();
    assert!(
        error.contains(&format!("prompts of 3 and 1 tokens: a cache that grows takes one length; {why}")),
        "{error}"
    );
    let json = generate("--prompt-ids 1 --json").document();
    assert!(json["advice"].as_str().unwrap().starts_with(why), "{json}");
}

/// Tests that an operator's caches are written in place, with as many slots as the prompts need.
#[test]
#[ignore = "needs ONNX Runtime: cargo xtask models"]
fn caches_of_an_operator_are_generated_with_in_place() {
    let folder = Folder::with_testdata();
    let generate = |options: &str| {
        let line = "generate testdata/genai-llama-gqa/model.onnx --engine ort --no-convert --tokens 4 --prompt-ids 1,2,3 --prompt-ids 9";
        folder.run(&format!("{line} {options}"))
    };
    let printed = generate("").passed();
    assert!(
        printed.contains("cache write  1024 bytes in the last step, in place: no cache was copied"),
        "{printed}"
    );
    let caches = "caches       6 KiB: 2 layers of 3 KiB; 512 B a token, room for 6 of each sample";
    assert!(printed.contains(caches), "{printed}");
    let printed = generate("--capacity 64").passed();
    assert!(printed.contains("512 B a token, room for 64 of each sample"), "{printed}");
    let error = generate("--capacity 5").refused();
    assert!(error.contains("3 tokens and 4 to be generated exceed the capacity of 5 tokens"), "{error}");
}
