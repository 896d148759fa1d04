//! Tests `--json`. Names from files and arguments keep their value, but cannot control a terminal or reverse
//! text.

use crate::support::{Folder, is_built, npy_f32};

/// An override of direction, and a C1 control, with which commands to a terminal begin.
const HOSTILE: &str = "\u{202e}\u{9b}2J";

fn misleads(c: char) -> bool {
    c != '\n' && kvscatter_onnx::internal::text::names::misleads(c)
}

/// Replaces a name in a model by a hostile name of the same length.
fn rename(model: &mut [u8], name: &str) -> String {
    let hostile = format!("{HOSTILE}{}", &name[HOSTILE.len()..]);
    let mut at = 0;
    let mut found = 0;
    while let Some(next) = model[at..].windows(name.len()).position(|bytes| bytes == name.as_bytes()) {
        at += next;
        model[at..at + name.len()].copy_from_slice(hostile.as_bytes());
        found += 1;
    }
    assert!(found > 1, "{name}");
    hostile
}

#[test]
fn every_command_escapes_what_misleads() {
    let folder = Folder::with_testdata();
    let file = format!("{HOSTILE}.onnx");
    folder.copy("mobius-llama-static", "");
    let mut model = folder.read("model.onnx");
    let cache = rename(&mut model, "key_cache.0");
    folder.write(&file, &model);
    let case = format!("{HOSTILE}case");
    folder.copy("onnx-node/test_tensorscatter", &case);
    let mut model = folder.read(&format!("{case}/model.onnx"));
    let past = rename(&mut model, "past_cache");
    folder.write(&format!("{case}/model.onnx"), &model);
    folder.write_cache_and_update();
    let made = format!("made{HOSTILE}.onnx");
    let array = format!("{HOSTILE}.npy");
    let apply = "apply tensor-scatter --past-cache cache.npy --update update.npy --axis 1 --present-cache";
    for (line, last, holds) in [
        ("inspect", vec![&file], &cache),
        ("certify --engine tract --no-timing --steps 1", vec![&file], &cache),
        ("certify --engine tract --no-timing --steps 1", vec![&file], &file),
        ("lower --to scatter-nd -o", vec![&made, &file], &made),
        ("run", vec![&case], &past),
        ("verify", vec![&case], &case),
        (apply, vec![&array], &array),
        ("cases --count 1 -o", vec![&"cases\u{2028}".to_owned()], &"cases\u{2028}".to_owned()),
    ] {
        if !is_built(line) {
            continue;
        }
        let mut arguments: Vec<&str> = line.split(' ').collect();
        arguments.extend(last.iter().map(|last| last.as_str()));
        arguments.push("--json");
        let json = folder.run_args(&arguments).passed();
        assert!(!json.contains(misleads), "{line}: {json:?}");
        let document: serde_json::Value = serde_json::from_str(&json).unwrap();
        // A parser returns the raw name, as other programs print it.
        assert!(document.to_string().contains(holds.as_str()), "{line}: {document}");
    }
}

/// Checks that every error is one object in one line on standard error.
#[test]
fn errors_are_objects() {
    let folder = Folder::with_testdata();
    folder.write("cache.npy", &npy_f32(&[1, 4], [0.0; 4]));
    folder.write("updatę.npy", &npy_f32(&[1, 1], [1.0]));
    let plan = "plan tensor-scatter --cache 4,8,16,64 --update 4,8,2,64";
    let lines = [
        "".to_owned(),
        "plan".to_owned(),
        "frobnicate".to_owned(),
        format!("{plan} --axs 1"),
        format!("{plan} --write-indices 3 0 7 14"),
        format!("{plan} --write-indices x"),
        format!("{plan} --write-indices 3,0,7,15"),
        format!("{plan} --type int4 --axis 0"),
        "run nowhere.onnx".to_owned(),
        "run testdata/onnx-node".to_owned(),
        "apply tensor-scatter --past-cache cache.npy --update nowhere.npy --axis 1 --in-place".to_owned(),
        format!("apply tensor-scatter --past-cache {HOSTILE}.npy --update updatę.npy --axis 1 --in-place"),
        "verify nowhere".to_owned(),
        "completions bash".to_owned(),
    ];
    let answers: Vec<_> = lines
        .iter()
        .map(|line| {
            let answer = folder.run(&format!("{line} --json"));
            assert_eq!((answer.code, answer.stdout.as_str()), (Some(2), ""), "{line}: {answer}");
            let text = answer.stderr.strip_suffix('\n').expect("a line");
            assert!(!text.contains('\n') && !text.contains(misleads), "{line}: {text:?}");
            let document: serde_json::Value = serde_json::from_str(text).unwrap();
            assert!(document["error"]["kind"].is_string(), "{line}: {document}");
            assert!(document["error"]["message"].is_string(), "{line}: {document}");
            format!("$ kvscatter {} --json\n{text}\n", kvscatter_onnx::internal::text::names::one_line(line))
        })
        .collect();
    insta::assert_snapshot!(answers.concat());
}

/// Checks that errors are still text if `--json` is not an option but the value of one.
#[test]
fn only_an_option_asks_for_json() {
    let folder = Folder::new();
    let refused = folder.run("run -- --json");
    assert!(refused.stderr.starts_with("error: --json: "), "{refused}");
}
