//! Tests `kvscatter generate` with real exports, and what it refuses before the model runs.

use crate::support::{Answer, Folder, npy};

const STATIC: &str = "testdata/mobius-llama-static/model.onnx";
const GROWING: &str = "testdata/optimum-llama/model.onnx";

/// Exports with growing caches that can be converted to models that tract runs.
const CONVERTED: [&str; 8] = [
    "optimum-llama",
    "mobius-llama-dynamic",
    "decoders/mobius-0.1-gpt2",
    "decoders/mobius-0.1-qwen3-float16",
    "decoders/optimum-0.1-qwen3-float16",
    "decoders/optimum-0.1-qwen3-moe",
    "decoders/optimum-1.18-gpt2",
    "decoders/torch-2.15-llama",
];

/// Exports that tract does not run, and the node or input that it does not support.
const NOT_IN_TRACT: [(&str, &str); 11] = [
    ("genai-llama-gqa", r#"node "/model/layers.0/attn/GroupQueryAttention" (GroupQueryAttention)"#),
    ("optimum-llama", r#"node "/model/Flatten" (Flatten)"#),
    ("mobius-llama-dynamic", r#"node "model/Expand_node_9" (MultiBroadcastTo)"#),
    ("decoders/mobius-0.1-gpt2", r#"node "transformer/Expand_node_9" (MultiBroadcastTo)"#),
    ("decoders/mobius-0.1-qwen3-float16", r#"node "model/Expand_node_11" (MultiBroadcastTo)"#),
    ("decoders/optimum-0.1-mistral-window", r#"node "/model/Flatten" (Flatten)"#),
    ("decoders/optimum-0.1-qwen3-float16", r#"node "/model/Flatten" (Flatten)"#),
    ("decoders/optimum-1.18-falcon", r#"input "past_key_values.0.key""#),
    ("decoders/optimum-1.18-gpt2", r#"input "past_key_values.0.key""#),
    ("decoders/optimum-1.18-opt", r#"node "/decoder/layers.0/self_attn/Reshape_7" (Reshape)"#),
    ("decoders/torch-2.15-llama", r#"node "node_Reshape_248" (Reshape)"#),
];

/// Returns the tokens of each sample, which are the lines before the first empty line.
fn tokens(answer: Answer) -> Vec<String> {
    answer.passed().lines().take_while(|line| !line.is_empty()).map(str::to_owned).collect()
}

/// The outputs are keys and values of two layers, [1, 4, 3, 4] float32, and the mask, [1, 3] int64.
#[test]
fn the_encoder_has_a_line_and_refuses_a_mask_of_another_length() {
    let folder = Folder::with_testdata();
    let export = "testdata/decoders/optimum-0.1-t5/decoder_with_past_model.onnx";
    folder
        .run(&format!("convert {export} -o decoder.onnx --max-seq 16 --encoder-output encoder.onnx"))
        .passed();
    for (file, length) in [("ids.npy", 3), ("mask.npy", 3), ("short.npy", 2)] {
        folder.write(file, &npy("<i8", &[2, length], &1_i64.to_le_bytes().repeat(2 * length)));
    }
    let generate = |mask: &str, more: &str| {
        let decoder = "generate decoder.onnx --prompt-ids 0 --prompt-ids 0 --tokens 3";
        let encoder = "--encoder encoder.onnx --encoder-input input_ids=ids.npy --encoder-input";
        folder.run(&format!("{decoder} {encoder} attention_mask={mask} {more}"))
    };
    let text = generate("mask.npy", "").passed();
    let line = text.lines().find(|line| line.starts_with("encoder ")).unwrap();
    assert!(line.starts_with("encoder      2 texts in "), "{line}");
    assert!(line.ends_with("; the outputs take 1.55 KiB"), "{line}");
    let encoder = &generate("mask.npy", "--json").document()["encoder"];
    assert_eq!([&encoder["texts"], &encoder["bytes"]], [2, 1584]);
    assert_eq!(
        generate("short.npy", "").one_error_line(),
        "error: encoder input \"attention_mask\" has 2 positions, but \"input_ids\" has 3: a mask has one number for \
         each"
    );
}

#[test]
fn the_tokens_are_printed_before_the_lines_about_the_run() {
    let folder = Folder::with_testdata();
    let text =
        folder.run(&format!("generate {STATIC} --prompt-ids 1,2,3 --prompt-ids 9 --tokens 4")).passed();
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines[2], "");
    let is_id = |id: &str| id.parse::<u8>().is_ok();
    assert!(lines[..2].iter().all(|line| line.split(',').filter(|id| is_id(id)).count() == 4), "{text}");
    for (line, start) in lines[3..].iter().zip([
        "engine       tract 0.23.",
        "prefill      4 tokens in ",
        "decode       6 tokens in 3 steps, ",
        "cache write  1024 bytes in the last step, in place: no cache was copied",
        "caches       64 KiB: 2 layers of 32 KiB; 512 B a token, room for 64 of each sample",
    ]) {
        assert!(line.starts_with(start), "{line}, not: {start}");
    }
    assert_eq!(lines.len(), 8, "{text}");
}

#[test]
fn the_same_as_json() {
    let folder = Folder::with_testdata();
    let line = format!("generate {STATIC} --prompt-ids 1,2,3 --prompt-ids 9 --tokens 4");
    let document = folder.json(&line);
    let printed = tokens(folder.run(&line));
    for (sample, printed) in printed.iter().enumerate() {
        let ids: Vec<String> = document["samples"][sample]["tokens"]
            .as_array()
            .unwrap()
            .iter()
            .map(ToString::to_string)
            .collect();
        assert_eq!(&ids.join(","), printed);
    }
    assert_eq!(document["samples"][0]["prompt"], serde_json::json!([1, 2, 3]));
    assert_eq!(document["engine"]["name"], "tract");
    assert_eq!((&document["prefill"]["tokens"], &document["decode"]["tokens"]), (&4.into(), &6.into()));
    assert_eq!(document["cache_write"], serde_json::json!({"bytes_per_step": 1024, "bytes_copied": 0}));
    assert_eq!(document["caches"]["bytes_per_layer"], serde_json::json!([32768, 32768]));
    assert_eq!(document["caches"]["caches"][3]["shape"], serde_json::json!([2, 64, 32]));
}

/// The text of this prompt repeats itself.
#[test]
fn drafts_take_fewer_steps_to_the_same_tokens() {
    let folder = Folder::with_testdata();
    let line = format!("generate {STATIC} --prompt-ids 9 --tokens 30");
    let [plain, drafted] = ["", " --draft 6"].map(|draft| folder.json(&format!("{line}{draft}")));
    assert_eq!(plain["samples"], drafted["samples"]);
    let number = |document: &serde_json::Value, name: &str| document["decode"][name].as_u64().unwrap();
    assert_eq!(["steps", "drafted", "accepted"].map(|name| number(&plain, name)), [29, 0, 0]);
    let [steps, of, accepted] = ["steps", "drafted", "accepted"].map(|name| number(&drafted, name));
    assert_eq!(steps + accepted, 29);
    assert!(accepted > 15, "{drafted}");
    let text = folder.run(&format!("{line} --draft 6")).passed();
    assert!(text.contains(&format!("; {accepted} of {of} drafted tokens accepted\n")), "{text}");
    let text = folder.run(&format!("generate {STATIC} --prompt-ids 9 --tokens 3 --draft 6")).passed();
    assert!(text.contains("; no token was drafted\n"), "{text}");
}

/// Checks that the other samples, the size of chunks and the form of the prompts change no token.
#[test]
fn a_sample_is_what_it_is_alone() {
    let folder = Folder::with_testdata();
    let prompts = ["1,2,3", "9", "7,7,7,7,7,7,7"];
    let alone: Vec<String> = prompts
        .iter()
        .flat_map(|prompt| tokens(folder.run(&format!("generate {STATIC} --prompt-ids {prompt} --tokens 8"))))
        .collect();
    folder.write("prompts.txt", b"# three\n1,2,3\n\n9 # one token\n7 7 7, 7 7 7 7\n");
    for options in ["", "--chunk 1", "--chunk 2", "--threads 1"] {
        let line = format!("generate {STATIC} --batch-file prompts.txt --tokens 8 {options}");
        assert_eq!(tokens(folder.run(&line)), alone, "{options}");
    }
    let line = format!("generate {STATIC} --batch-file - --tokens 8");
    assert_eq!(tokens(folder.run_with_input(&line, &folder.read("prompts.txt"))), alone);
}

/// A saved prompt is continued as if it had been fed, by every prompt, and a saved continuation is, too.
#[test]
fn a_saved_prompt_is_continued() {
    let folder = Folder::with_testdata();
    let generate = |options: &str| folder.run(&format!("generate {STATIC} --tokens 6 {options}"));
    let whole = tokens(generate("--prompt-ids 5,9,200,17,33,4,8 --prompt-ids 5,9,200,17,33,7"));
    let text = generate("--prompt-ids 5,9,200 --save-prefix three.kv").passed();
    assert!(text.contains("\nsaved        3 tokens in three.kv\n"), "{text}");
    let text = generate("--prefix three.kv --prompt-ids 17,33 --save-prefix five.kv").passed();
    assert!(text.contains("\nprefix       3 tokens in three.kv\nprefill      2 tokens in "), "{text}");
    assert!(text.contains("\nsaved        5 tokens in five.kv\n"), "{text}");
    assert_eq!(tokens(generate("--prefix five.kv --prompt-ids 4,8 --prompt-ids 7")), whole);
    let document = folder.json(&format!("generate {STATIC} --prefix five.kv --prompt-ids 7 --tokens 6"));
    assert_eq!(document["prefix"], serde_json::json!({"path": "five.kv", "tokens": 5}));
    assert_eq!(document["saved"], serde_json::Value::Null);
    // A file that is saved again replaces the old one.
    let text = generate("--prompt-ids 5,9,200,17 --save-prefix three.kv").passed();
    assert!(text.contains("\nsaved        4 tokens in three.kv\n"), "{text}");
}

#[test]
fn a_prompt_that_cannot_be_saved_or_continued_is_refused() {
    let folder = Folder::with_testdata();
    let generate =
        |model: &str, options: &str| folder.run(&format!("generate {model} --prompt-ids 7 {options}"));
    generate(STATIC, "--save-prefix one.kv").passed();
    folder.write("cut.kv", &folder.read("one.kv")[..300]);
    folder.write("flipped.kv", &folder.read("one.kv"));
    folder.flip("flipped.kv", 1, 1);
    folder.write("text.kv", b"no saved sample at all, but a text");
    folder.run(&format!("convert {GROWING} -o converted.onnx --max-seq 32")).passed();
    for (model, options, expected) in [
        (STATIC, "--prefix none.kv", "none.kv"),
        (STATIC, "--prefix cut.kv", "cut.kv: the header"),
        (STATIC, "--prefix flipped.kv", "the file is damaged"),
        (STATIC, "--prefix text.kv", "text.kv: "),
        (
            STATIC,
            "--prefix one.kv --tokens 64",
            "2 tokens and 64 to be generated exceed the capacity of 64 tokens",
        ),
        (STATIC, "--save-prefix text.kv", "text.kv: the file exists and is not a saved sample"),
        (STATIC, "--save-prefix .", ".: not a regular file"),
        (STATIC, "--prompt-ids 8 --save-prefix two.kv", "2 prompts cannot be saved: a file has one prompt"),
        ("converted.onnx", "--prefix one.kv", "one.kv: the sample was saved with model "),
        (GROWING, "--save-prefix two.kv --no-convert", ""),
    ] {
        let error = generate(model, options).refused();
        assert!(error.contains(expected), "{options}: {error}");
    }
    assert_eq!(folder.read("text.kv"), b"no saved sample at all, but a text");
    assert!(!folder.path("two.kv").exists());
}

#[test]
fn a_sample_ends_with_the_token_that_ends_it() {
    let folder = Folder::with_testdata();
    let line = format!("generate {STATIC} --prompt-ids 1,2,3 --prompt-ids 9 --tokens 8");
    let whole = tokens(folder.run(&line));
    let ids: Vec<&str> = whole[0].split(',').collect();
    let end = ids.iter().position(|id| !whole[1].contains(id)).expect("the samples differ");
    let cut = tokens(folder.run(&format!("{line} --eos {}", ids[end])));
    assert_eq!(cut, [ids[..=end].join(","), whole[1].clone()]);
}

#[test]
fn a_converted_decoder_gives_the_tokens_of_another_export() {
    let folder = Folder::with_testdata();
    folder.run(&format!("convert {GROWING} -o static.onnx --max-seq 32")).passed();
    let alone =
        |model, prompt| tokens(folder.run(&format!("generate {model} --prompt-ids {prompt} --tokens 12")));
    let together = folder.run("generate static.onnx --prompt-ids 1,2,3 --prompt-ids 5 --tokens 12");
    let together = tokens(together);
    assert_eq!(together, [alone("static.onnx", "1,2,3"), alone("static.onnx", "5")].concat());
    // The model has the same weights.
    assert_eq!(alone(STATIC, "1,2,3"), together[..1]);
}

/// Checks that the error names the node or the input that tract does not support.
#[test]
fn a_model_that_tract_does_not_run_is_refused_with_the_node() {
    let folder = Folder::with_testdata();
    let refused = |model: &str| {
        folder.run(&format!("generate {model} --no-convert --prompt-ids 1,2,3 --tokens 4")).refused()
    };
    for (name, why) in NOT_IN_TRACT {
        let error = refused(&format!("testdata/{name}/model.onnx"));
        assert!(error.contains("tract 0.23.9 cannot ") && error.contains(why), "{name}: {error}");
        // A model that loads may fail for other reasons, such as an index.
        let is_advised = error.ends_with("(kvscatter inspect shows whether they can be made static)");
        assert_eq!(is_advised, error.contains("cannot load"), "{name}: {error}");
    }
    folder.run("convert testdata/decoders/optimum-1.18-opt/model.onnx -o opt.onnx --max-seq 16").passed();
    let error = refused("opt.onnx");
    assert!(error.contains(r#"node "/decoder/embed_positions/CumSum" (CumSum)"#), "{error}");
}

#[test]
fn refusals() {
    let folder = Folder::with_testdata();
    folder.write("empty.txt", b"# nothing\n\n");
    folder.write("letters.txt", b"1,2\n3,x\n");
    folder.write("bytes.txt", b"1\n\xff\xfe\n");
    folder.write("garbage.onnx", &[0xff; 100]);
    folder.check_transcript("generate");
}

/// Fills all slots of the cache.
#[test]
fn the_last_token_needs_no_slot() {
    let folder = Folder::with_testdata();
    let text = tokens(folder.run(&format!("generate {STATIC} --prompt-ids 1,2,3 --tokens 62")));
    assert_eq!(text[0].split(',').count(), 62);
}

/// Names the plugin in every output. KVSCATTER_ORT_LIB names ONNX Runtime, and KVSCATTER_ORT_PLUGIN the
/// plugin.
#[test]
#[ignore = "needs ONNX Runtime and the plugin: cargo xtask models"]
fn the_plugin_is_loaded_and_named() {
    let folder = Folder::with_testdata();
    let label = concat!("kvscatter ", env!("CARGO_PKG_VERSION"));
    let engine = |line: &str| folder.json(&format!("{line} --engine ort"));
    let generate = format!("generate {STATIC} --prompt-ids 1,2,3 --tokens 4");
    let certify = format!("certify {STATIC} --steps 2 --no-timing");
    let run = "run testdata/onnx-node/test_tensorscatter".to_owned();
    for (line, key) in [(&generate, "engine"), (&certify, "runtime"), (&run, "engine")] {
        let plugin = |document: serde_json::Value| match document.get(key) {
            Some(engine) => engine["plugin"].clone(),
            None => document[0][key]["plugin"].clone(),
        };
        assert_eq!(plugin(engine(line)), label, "{line}");
        assert_eq!(plugin(engine(&format!("{line} --ort-plugin none"))), serde_json::Value::Null, "{line}");
        let text = folder.run(&format!("{line} --engine ort")).passed();
        assert!(text.contains(&format!(" with plugin {label} on CPU")), "{text}");
    }
    assert_eq!(
        tokens(folder.run(&format!("{generate} --engine ort"))),
        tokens(folder.run(&format!("{generate} --engine ort --ort-plugin none")))
    );
    let refused =
        folder.run(&format!("{generate} --engine ort --ort-plugin testdata/files/two.npz")).refused();
    assert!(refused.starts_with("error: testdata/files/two.npz: "), "{refused}");
    let page = folder.path("page.html");
    folder.run(&format!("{certify} --engine ort --html page.html")).passed();
    assert!(std::fs::read_to_string(page).unwrap().contains(&format!(" with plugin {label} on CPU")));
}

/// Tests that an export of ONNX Runtime GenAI runs in the plugin without a conversion, and that each output names the
/// plugin.
#[test]
#[ignore = "needs ONNX Runtime and the plugin: cargo xtask models"]
fn the_plugin_computes_an_operator_that_writes_its_caches() {
    let folder = Folder::with_testdata();
    let model = "testdata/genai-llama-gqa/model.onnx --engine ort";
    let generate = format!("generate {model} --prompt-ids 1,2,3 --prompt-ids 9 --tokens 4 --no-convert");
    let certify = format!("certify {model} --capacity 16 --steps 2 --no-timing");
    for (options, in_plugin, phrase) in [
        ("", 2, "the plugin computes 2 of 2 GroupQueryAttention nodes"),
        ("--ort-plugin none", 0, "the engine's own kernel computes 2 of 2 GroupQueryAttention nodes"),
    ] {
        let nodes = serde_json::json!({"nodes": 2, "in_plugin": in_plugin});
        let generate = format!("{generate} {options}");
        let certify = format!("{certify} {options}");
        for line in [&generate, &certify] {
            let text = folder.run(line).passed();
            assert!(text.contains(phrase), "{line}: {text}");
        }
        assert_eq!(folder.json(&generate)["group_query_nodes"], nodes);
        assert_eq!(folder.json(&generate)["cache_write"]["bytes_copied"], 0);
        assert_eq!(folder.json(&certify)["runtime"]["group_query_nodes"], nodes);
    }
    assert_eq!(tokens(folder.run(&generate)), tokens(folder.run(&format!("{generate} --ort-plugin none"))));
    let converted = folder.json(&format!("generate {model} --prompt-ids 1 --tokens 2"));
    assert_eq!(converted["group_query_nodes"], serde_json::Value::Null);
}

/// Compares both engines with ragged prompts on every model that can be made static. KVSCATTER_ORT_LIB names
/// ONNX Runtime.
#[test]
#[ignore = "needs ONNX Runtime: cargo xtask models"]
fn both_engines_give_the_same_tokens() {
    let folder = Folder::with_testdata();
    let mut models = vec![STATIC.to_owned()];
    for name in CONVERTED {
        let model = format!("testdata/{name}/static.onnx");
        folder.run(&format!("convert testdata/{name}/model.onnx -o {model} --max-seq 32")).passed();
        models.push(model);
    }
    for model in models {
        let line =
            format!("generate {model} --prompt-ids 1,2,3 --prompt-ids 9 --prompt-ids 7,7,7,4,30 --tokens 16");
        let of_tract = tokens(folder.run(&line));
        assert_eq!(of_tract, tokens(folder.run(&format!("{line} --engine ort"))), "{model}");
        assert_eq!(of_tract.len(), 3);
    }
}
