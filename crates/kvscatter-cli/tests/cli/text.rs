//! Tests `kvscatter generate` with prompts that are texts. The tokenizer of `testdata/text` gives meanings to the
//! tokens of a decoder with random weights.

use kvscatter_onnx::internal::proto::tensor_shape_proto::dimension::Value as Dim;
use serde_json::json;

use crate::support::{Answer, Folder, dims};

/// The ids of `Once`, after the token that begins a text.
const ONCE: &str = "0,4,5,6,7";

/// The text after `Once`, up to its end token. The escape character is printed as `\u{1b}`.
const TEXT: &str = " upon a timeé\n\u{1b}é\nEND! x";
const PRINTED: &str = " upon a timeé\n\\u{1b}é\nEND! x";

/// The text after a chat with the turn `H`.
const ANSWER: &str = "H ha, ha, ha, ha, ha.";

/// Returns a folder with a model and its tokenizer in the folder `m`.
fn folder() -> Folder {
    let folder = Folder::with_testdata();
    folder.copy("mobius-llama-static", "m");
    folder.copy("text", "m");
    folder
}

fn generate(folder: &Folder, options: &str) -> Answer {
    folder.run(&format!("generate m {options}"))
}

/// Returns the text, and checks that the lines about the run are on standard error.
#[track_caller]
fn text(answer: Answer) -> String {
    assert_eq!(answer.code, Some(0), "{answer}");
    let lines = ["\nengine       tract ", "\nprefill      ", "\ndecode       ", "\ncaches       "];
    assert!(lines.iter().all(|line| answer.stderr.contains(line)), "{answer}");
    answer.stdout
}

#[test]
fn a_text_is_continued_until_its_end() {
    let folder = folder();
    assert_eq!(text(generate(&folder, "--prompt Once")), format!("{PRINTED}\n"));
    assert_eq!(text(folder.run("generate m/model.onnx --prompt Once")), format!("{PRINTED}\n"));
    folder.write("prompt.txt", b"\xef\xbb\xbfOnce\r\n");
    assert_eq!(text(generate(&folder, "--prompt-file prompt.txt")), format!("{PRINTED}\n"));
    let answer = folder.run_with_input("generate m --prompt-file -", b"Once");
    assert_eq!(text(answer), format!("{PRINTED}\n"));
    // The same tokens as those after the ids.
    let of_text = folder.json("generate m --prompt Once");
    let line = format!("generate m/model.onnx --prompt-ids {ONCE} --eos 255 --tokens 60");
    let of_ids = folder.json(&line);
    let sample = &of_text["samples"][0];
    assert_eq!(sample["tokens"], of_ids["samples"][0]["tokens"]);
    assert_eq!(sample["prompt"], of_ids["samples"][0]["prompt"]);
    assert_eq!(
        [&sample["prompt_text"], &sample["text"], &sample["end"]],
        [&json!("Once"), &json!(TEXT), &json!("eos")]
    );
    assert_eq!(of_ids["samples"][0].get("text"), None);
}

#[test]
fn a_text_ends_where_it_is_asked_to() {
    let folder = folder();
    for (options, expected, end) in [
        ("--max-new-tokens 2", " upon a", "length"),
        // The third token gives the first half of a character.
        ("--tokens 4", " upon a time\u{fffd}", "length"),
        ("--tokens 1000", TEXT, "eos"),
        ("--stop time", " upon a ", "stopped"),
        ("--stop 'é\nE' --stop D", " upon a timeé\n\u{1b}", "stopped"),
        ("--stop none --stop 'x y'", TEXT, "eos"),
        // The text of an end token that is not special is kept, as in transformers.
        ("--eos 209", " upon a time", "eos"),
        ("--eos 40 --eos 26", " upon a timeé\n", "eos"),
    ] {
        let sample = &folder.json(&format!("generate m --prompt Once {options}"))["samples"][0];
        assert_eq!(
            (sample["text"].as_str(), sample["end"].as_str()),
            (Some(expected), Some(end)),
            "{options:?}"
        );
    }
    // Without an end token, the text fills the cache.
    folder.write("m/generation_config.json", b"{\"eos_token_id\": []}");
    let answer = generate(&folder, "--prompt Once");
    assert!(answer.stderr.contains("\nend          the cache is full"), "{answer}");
    let sample = &folder.json("generate m --prompt Once")["samples"][0];
    assert_eq!((&sample["end"], sample["tokens"].as_array().unwrap().len()), (&json!("full"), 60));
    folder.write("m/generation_config.json", b"{}");
    let printed = text(generate(&folder, "--prompt Once"));
    assert_eq!(printed, format!("{PRINTED}\n"), "the tokenizer's end token");
}

#[test]
fn several_texts_are_printed_under_headings() {
    let folder = folder();
    let printed = text(generate(&folder, "--prompt Once --prompt 'H\n' --tokens 3"));
    let alone = text(generate(&folder, "--prompt 'H\n' --tokens 3"));
    assert_eq!(printed, format!("--- 1: Once\n upon a time\n\n--- 2: H\\n\n{alone}"));
}

#[test]
fn one_text_of_a_batch_may_fill_the_cache() {
    let folder = folder();
    folder.write("m/generation_config.json", b"{\"eos_token_id\": []}");
    let long = "O".repeat(60);
    let document = folder.json(&format!("generate m --prompt {long} --prompt Once --max-new-tokens 10"));
    let ended = |sample: usize| {
        let sample = &document["samples"][sample];
        (sample["end"].clone(), sample["tokens"].as_array().unwrap().len())
    };
    assert_eq!([ended(0), ended(1)], [(json!("full"), 4), (json!("length"), 10)]);
}

/// The model leaves the slots open, and its configuration declares 48 tokens.
#[test]
fn open_caches_have_the_slots_that_the_model_declares() {
    let folder = folder();
    folder.change("m/model.onnx", "m/model.onnx", |graph| {
        let sizes = graph.input.iter_mut().chain(&mut graph.output).flat_map(dims);
        for dim in sizes.filter(|dim| dim.value == Some(Dim::DimValue(64))) {
            dim.value = Some(Dim::DimParam("slots".to_owned()));
        }
    });
    folder.write("m/config.json", b"{\"max_position_embeddings\": 48}");
    let capacity = |line: &str| {
        let answer = folder.run_with_input(&format!("generate m --json {line}"), b"H\nH\n");
        answer.document()["caches"]["capacity"].clone()
    };
    assert_eq!(capacity("--prompt Once"), 48);
    assert_eq!(capacity("--prompt Once --max-new-tokens 3"), 5 + 2);
    assert_eq!(capacity("--prompt Once --capacity 20"), 20);
    // A chat has any number of turns.
    assert_eq!(capacity("--chat --max-new-tokens 3"), 48);
    let refused = generate(&folder, &format!("--prompt {}", "O".repeat(48))).refused();
    assert_eq!(refused, "error: --prompt has 49 tokens, but the cache has room for 48 (--capacity)");
}

#[test]
fn tokens_are_drawn_with_a_seed() {
    let folder = folder();
    let drawn = |options: &str| {
        let line = format!("generate m --prompt Once --tokens 12 {options}");
        folder.json(&line)["samples"][0]["tokens"].clone()
    };
    let greedy = drawn("");
    assert_eq!(drawn("--seed 1"), drawn("--seed 1 --temperature 1 --top-k 50 --top-p 1 --min-p 0"));
    assert_ne!(drawn("--seed 1"), drawn("--seed 2"));
    assert_ne!(drawn("--seed 1"), greedy);
    for options in
        ["--temperature 0 --seed 1", "--top-k 1", "--min-p 1", "--top-p 1e-6", "--repetition-penalty 1"]
    {
        assert_eq!(drawn(options), greedy, "{options}");
    }
    assert_ne!(drawn("--repetition-penalty 5"), greedy);
}

#[test]
fn a_chat_follows_its_template() {
    let folder = folder();
    assert_eq!(text(generate(&folder, "--chat --prompt H")), format!("{ANSWER}\n"));
    let ids = |options: &str| {
        let document = folder.json(&format!("generate m --prompt H --tokens 1 {options}"));
        document["samples"][0]["prompt"].clone()
    };
    assert_eq!(ids("--chat"), json!([253, 72, 255, 254]));
    assert_eq!(ids("--chat --system O"), json!([252, 4, 255, 253, 72, 255, 254]));
    assert_eq!(ids(""), json!([0, 72]));
    folder.write("m/chat_template.jinja", b"{{ bos_token }}{{ messages[0].content }}");
    assert_eq!(ids("--chat"), json!([0, 72]));
}

/// The second turn gives the same tokens as its whole text, of which most are in the caches.
#[test]
fn a_turn_of_a_chat_computes_only_its_own_tokens() {
    let folder = folder();
    let answer = folder.run_with_input("generate m --chat --max-new-tokens 14", b"H\n\nH\n");
    let json = folder.run_with_input("generate m --chat --max-new-tokens 14 --json", b"H\n\nH");
    let document = json.document();
    let turns = &document["samples"];
    assert_eq!(turns.as_array().unwrap().len(), 2);
    assert_eq!([&turns[0]["reused"], &turns[1]["reused"]], [0, 14]);
    assert_eq!(document["prefill"]["tokens"], 4 + 6);
    let ids = "253,72,255,254,72,61,132,61,132,61,132,61,132,61,193,255,253,72,255,254";
    assert_eq!(turns[1]["prompt"].to_string(), format!("[{ids}]"));
    let line = format!("generate m/model.onnx --prompt-ids {ids} --eos 193 --eos 255 --tokens 14");
    let whole = folder.json(&line);
    assert_eq!(turns[1]["tokens"], whole["samples"][0]["tokens"]);
    assert!(answer.stdout.starts_with(&format!("{ANSWER}\n")), "{answer}");
    assert_eq!(
        answer.stdout.matches('\n').count(),
        2 + turns[1]["text"].as_str().unwrap().matches('\n').count()
    );
    assert!(answer.stderr.contains("; 14 tokens reused from the caches\n"), "{answer}");
    // Nothing is printed without a turn.
    assert_eq!(folder.run_with_input("generate m --chat", b"").passed(), "");
}

#[test]
fn the_turns_before_an_error_are_reported() {
    let folder = folder();
    let run = |options: &str| {
        let line = format!("generate m --chat --max-new-tokens 2{options}");
        let answer = folder.run_with_input(&line, b"H\n\xff\n");
        assert_eq!(answer.code, Some(2), "{answer}");
        answer
    };
    let answer = run("");
    assert_eq!(answer.stdout, "H ha\n");
    assert!(answer.stderr.contains("\nprefill      4 tokens in "), "{answer}");
    assert!(answer.stderr.ends_with("\nerror: standard input, line 2: not UTF-8\n"), "{answer}");
    let answer = run(" --json");
    let document = answer.document();
    assert_eq!(document["samples"][0]["text"], "H ha");
    let error: serde_json::Value = serde_json::from_str(&answer.stderr).unwrap();
    assert_eq!(error["error"]["message"], "standard input, line 2: not UTF-8");
}

/// The cache of the Hugging Face Hub has links to files out of the folder of a model.
#[cfg(unix)]
#[test]
fn a_file_of_a_text_is_a_regular_file_or_a_link_to_one() {
    use std::os::unix::fs::symlink;

    let folder = folder();
    folder.write("m/chat_template.jinja", b"{{ messages[0].content }}");
    let names = ["tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja"];
    for name in names {
        folder.write(&format!("blobs/{name}"), &folder.read(&format!("m/{name}")));
        std::fs::remove_file(folder.path(&format!("m/{name}"))).unwrap();
        symlink(format!("../blobs/{name}"), folder.path(&format!("m/{name}"))).unwrap();
    }
    let chat = "--chat --prompt Once --tokens 2";
    assert_eq!(text(generate(&folder, chat)), " upon a\n");
    let huge = std::fs::File::create(folder.path("huge")).unwrap();
    huge.set_len(1 << 40).unwrap();
    let pipe = folder.path("pipe");
    assert!(std::process::Command::new("mkfifo").arg(pipe).status().unwrap().success());
    for name in names {
        let link = folder.path(&format!("m/{name}"));
        for (target, problem) in [
            ("../pipe", "not a regular file"),
            ("/dev/zero", "not a regular file"),
            ("../huge", "has 1099511627776 bytes, must have at most "),
        ] {
            std::fs::remove_file(&link).unwrap();
            symlink(target, &link).unwrap();
            let refused = generate(&folder, chat).refused();
            assert!(refused.starts_with(&format!("error: m/{name}: {problem}")), "{refused}");
        }
        std::fs::remove_file(&link).unwrap();
        symlink(format!("../blobs/{name}"), &link).unwrap();
    }
}

/// The prompt continues the text of the saved one, so it does not begin a text.
#[test]
fn a_saved_text_is_continued() {
    let folder = folder();
    text(generate(&folder, "--prompt On --save-prefix on.kv --tokens 1"));
    assert_eq!(text(generate(&folder, "--prefix on.kv --prompt ce")), format!("{PRINTED}\n"));
    let refused = generate(&folder, &format!("--prefix on.kv --prompt {}", "O".repeat(62))).refused();
    let expected = "error: --prompt has 62 tokens after the 3 of --prefix, but the cache has room for 64";
    assert_eq!(refused, expected);
}

#[test]
fn an_export_with_growing_caches_is_converted_once() {
    let folder = folder();
    folder.write("m/model.onnx", &folder.read("testdata/optimum-llama/model.onnx"));
    std::fs::remove_file(folder.path("m/model.onnx.data")).unwrap();
    // The weights are those of the other model.
    let first = generate(&folder, "--prompt Once --max-seq 64");
    assert_eq!((first.code, first.stdout.as_str()), (Some(0), format!("{PRINTED}\n").as_str()), "{first}");
    assert!(first.stderr.starts_with("note: converted in "), "{first}");
    let second = generate(&folder, "--prompt Once --max-seq 64");
    assert_eq!(second.stdout, first.stdout);
    assert!(second.stderr.starts_with("note: using the conversion to static caches of 64 slots"), "{second}");
    let refused = generate(&folder, "--prompt Once --no-convert").refused();
    assert!(refused.contains("tract 0.23.9 cannot load"), "{refused}");
}

/// Applies templates that would overflow the stack, or take hours or all memory.
#[test]
fn a_hostile_template_is_one_error() {
    let folder = folder();
    let many = |body: &str| {
        let range = "range(100000)";
        format!("{{% for a in {range} %}}{{% for b in {range} %}}{body}{{% endfor %}}{{% endfor %}}")
    };
    let doubled = |start: &str, twice: &str| {
        format!("{{% set ns = namespace(x={start}) %}}{}", many(&format!("{{% set ns.x = {twice} %}}")))
    };
    let memory = "the chat template needs more than 64 MiB of stack or 1024 MiB of memory, so it was stopped";
    let time = "the chat template takes too long, so it was stopped";
    let deep = format!("{{{{ 1{} }}}}", "+1".repeat(100_000));
    let mut hostile = vec![
        (deep.clone(), memory),
        (format!("{{{{ {}1 }}}}", "not ".repeat(100_000)), memory),
        (format!("{{% if 1 %}}{}{{% endif %}}", "{% elif 1 %}".repeat(50_000)), memory),
        (format!("{{{{ {}", "[".repeat(100_000)), "template exceeds maximum recursion limits"),
        (many(""), time),
        (
            many("{{ 'x' * 900000 }}"),
            "the chat template writes a text of more than 16 MiB, so it was stopped",
        ),
        ("{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}".to_owned(), "recursion limit exceeded"),
    ];
    if cfg!(target_os = "linux") {
        hostile.extend([
            ("{{ ('a'|indent(10**10))[0] }}".to_owned(), memory),
            ("{{ '%1000000000s'|format('a') }}".to_owned(), memory),
            (doubled("['a']", "ns.x + ns.x"), memory),
            (doubled("'x' * 900000", "ns.x ~ ns.x"), memory),
        ]);
    }
    for (template, expected) in hostile {
        folder.write("m/chat_template.jinja", template.as_bytes());
        let error = generate(&folder, "--chat --prompt H").refused();
        let shown: String = template.chars().take(120).collect();
        assert!(error.contains(expected), "{shown}: {error}");
    }
    // The syntax is checked before a turn is read.
    folder.write("m/chat_template.jinja", deep.as_bytes());
    let error = folder.run_with_input("generate m --chat", b"").refused();
    assert!(error.contains(memory), "{error}");
}

#[test]
fn text_refusals() {
    let folder = folder();
    let tokenizer = String::from_utf8(folder.read("m/tokenizer.json")).unwrap();
    folder.write("bytes.txt", b"\xff");
    folder.write("empty.txt", b"\n");
    let loops = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}";
    for (copy, file, content) in [
        ("cut", "tokenizer.json", "{"),
        ("other", "tokenizer.json", &tokenizer.replace(r#""H": 72"#, r#""H": 7200"#)),
        ("eos", "generation_config.json", "{\"eos_token_id\": 256}"),
        ("eos_name", "generation_config.json", "{\"eos_token_id\": \"</s>\"}"),
        ("config", "tokenizer_config.json", "["),
        ("tools", "chat_template.jinja", "{{ raise_exception('only tools') }}"),
        ("method", "chat_template.jinja", "{% for tool in tools.values() %}{% endfor %}"),
        ("function", "chat_template.jinja", "{{ lookup(messages) }}"),
        ("loops", "chat_template.jinja", loops),
        ("syntax", "chat_template.jinja", "{% if %}"),
        ("no_template", "tokenizer_config.json", "{}"),
        ("no_model", "tokenizer.json", ""),
        ("no_tokenizer", "", ""),
    ] {
        // Each refusal comes before the engine loads the model, whose weights are missing.
        if copy != "no_tokenizer" {
            folder.copy("text", copy);
            folder.write(&format!("{copy}/{file}"), content.as_bytes());
        }
        if copy != "no_model" {
            folder.write(&format!("{copy}/model.onnx"), &folder.read("m/model.onnx"));
        }
    }
    folder.check_transcript("text");
}

/// Sends SIGINT to a command that generates a long text, and to one that answers in a chat.
#[cfg(target_os = "linux")]
mod interrupted {
    use std::io::{Read, Write};
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Child, Command, Stdio};

    use rustix::process::{Pid, Signal, kill_process};

    use super::folder;
    use crate::support::{BINARY, Folder};

    /// Starts a command after a conversion to so many slots that a text does not end by itself.
    fn start(folder: &Folder, options: &[&str]) -> Child {
        folder.write("m/model.onnx", &folder.read("testdata/optimum-llama/model.onnx"));
        folder.write("m/generation_config.json", b"{\"eos_token_id\": []}");
        let mut command = Command::new("env");
        // A command inherits ignored signals, and these tests may run under `nohup`.
        command.args(["--default-signal=INT", BINARY, "generate", "m", "--max-seq", "20000"]);
        command.args(options).current_dir(folder.path("")).env("KVSCATTER_CACHE", folder.path("cache"));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    fn interrupt_after_text(child: &mut Child) {
        child.stdout.as_mut().unwrap().read_exact(&mut [0; 8]).unwrap();
        kill_process(Pid::from_child(child), Signal::INT).unwrap();
    }

    #[test]
    fn a_text_ends_with_its_summary_and_the_signal() {
        let folder = folder();
        let mut child = start(&folder, &["--prompt", "Once"]);
        interrupt_after_text(&mut child);
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.signal(), Some(Signal::INT.as_raw()), "{output:?}");
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(stderr.contains("\ndecode       ") && output.stdout.ends_with(b"\n"), "{stderr}");
    }

    #[test]
    fn a_text_that_has_ended_is_printed_while_others_go_on() {
        let folder = folder();
        let mut child = start(&folder, &["--prompt", "Once", "--prompt", "H", "--stop", "time"]);
        let mut printed = [0; 21];
        child.stdout.as_mut().unwrap().read_exact(&mut printed).unwrap();
        assert_eq!(&printed, b"--- 1: Once\n upon a \n");
        kill_process(Pid::from_child(&child), Signal::INT).unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(output.stdout.starts_with(b"\n--- 2: H\nEND"), "{output:?}");
    }

    #[test]
    fn a_chat_goes_on_after_the_answer_that_was_ended() {
        let folder = folder();
        let mut child = start(&folder, &["--chat"]);
        child.stdin.as_mut().unwrap().write_all(b"H\n").unwrap();
        interrupt_after_text(&mut child);
        drop(child.stdin.take());
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        assert!(String::from_utf8(output.stderr).unwrap().contains("\ndecode       "));
    }
}
