//! Tests `kvscatter verify --actual` on the answers of implementations that are wrong in one way each.

mod fixture;

use std::fs::{self, File};

use serde_json::{Value, json};

use crate::directory::{Attribute, Directory, Expectation, Input};
use crate::support::{Answer, Folder, npy_f32};
use fixture::{CACHE, PRESENT, answer, folder, write, write_right};

fn verify(folder: &Folder) -> Answer {
    folder.run("verify cases --actual theirs")
}

/// Returns the verdicts of a case: those of the command, of the plain call and of the call in place.
fn verdicts(folder: &Folder, case: &str) -> [Value; 3] {
    let document = folder.run("verify cases --actual theirs --json").document();
    let cases = document["cases"].as_array().unwrap();
    let found = cases.iter().find(|found| found["case"] == format!("cases/{case}")).unwrap();
    ["verdict", "answer", "in_place"].map(|field| found[field].clone())
}

#[test]
fn right_answers_pass() {
    let folder = folder([3, 0], "out-of-range");
    write_right(&folder);
    insta::assert_snapshot!(verify(&folder));
    for case in ["valid", "refused", "again"] {
        assert_eq!(verdicts(&folder, case), ["pass", "exact", "exact"], "{case}");
    }
    // The outputs alone are an answer, too.
    for case in ["valid", "refused", "again"] {
        for name in ["answer.json", "in_place_0.npy", "past_0.npy"] {
            let _ = fs::remove_file(folder.path(&format!("theirs/{case}/test_data_set_0/{name}")));
        }
        assert_eq!(verdicts(&folder, case), [json!("pass"), json!("exact"), Value::Null], "{case}");
    }
}

#[test]
fn behaviour_instead_of_a_refusal_is_named() {
    let after = [
        ("clamps", [0.0, 1.0, 10.0, 11.0, 12.0, 13.0, 6.0, 7.0]),
        ("clamps", [0.0, 1.0, 2.0, 11.0, 12.0, 13.0, 6.0, 7.0]),
        ("wraps", [11.0, 1.0, 2.0, 10.0, 12.0, 13.0, 6.0, 7.0]),
        ("skips", [0.0, 1.0, 2.0, 3.0, 12.0, 13.0, 6.0, 7.0]),
        ("ignores", CACHE),
        ("drops-rows", [0.0, 1.0, 2.0, 10.0, 12.0, 13.0, 6.0, 7.0]),
        ("accepts", [9.0, 1.0, 2.0, 3.0, 12.0, 13.0, 6.0, 7.0]),
    ];
    let before = [
        ("clamps", [10.0, 11.0, 2.0, 3.0, 12.0, 13.0, 6.0, 7.0]),
        ("wraps", [11.0, 1.0, 2.0, 10.0, 12.0, 13.0, 6.0, 7.0]),
        ("wraps", [0.0, 1.0, 2.0, 10.0, 12.0, 13.0, 6.0, 7.0]),
        ("skips", [0.0, 1.0, 2.0, 3.0, 12.0, 13.0, 6.0, 7.0]),
        ("drops-rows", [11.0, 1.0, 2.0, 3.0, 12.0, 13.0, 6.0, 7.0]),
    ];
    let far = [
        ("clamps", [0.0, 1.0, 10.0, 11.0, 12.0, 13.0, 6.0, 7.0]),
        ("wraps", [0.0, 10.0, 11.0, 3.0, 12.0, 13.0, 6.0, 7.0]),
        ("skips", [0.0, 1.0, 2.0, 3.0, 12.0, 13.0, 6.0, 7.0]),
    ];
    let mut texts = Vec::new();
    let indices =
        [(3, "out-of-range", &after[..]), (-1, "negative-start", &before), (9, "out-of-range", &far)];
    for (index, kind, presents) in indices {
        let folder = folder([index, 0], kind);
        write_right(&folder);
        answer(&folder, "refused", &json!({"plain": {"status": "returned"}}));
        fs::remove_file(folder.path("theirs/refused/test_data_set_0/in_place_0.npy")).unwrap();
        for (word, present) in presents {
            write(&folder, "refused", "output_0", present);
            assert_eq!(
                verdicts(&folder, "refused"),
                [json!("fail"), json!(word), Value::Null],
                "{index}: {present:?}"
            );
            let text = verify(&folder).stdout;
            texts.push(text.lines().find(|line| line.starts_with("FAIL")).unwrap().to_owned());
        }
    }
    insta::assert_snapshot!(texts.join("\n"));
}

#[test]
fn results_in_place_are_named() {
    let [first, second] = [(0, 9.0), (1, 9.0)];
    let with = |mut values: [f32; 8], changes: &[(usize, f32)]| {
        changes.iter().for_each(|&(at, value)| values[at] = value);
        values
    };
    let returned = |same: bool| json!({"status": "returned", "same_memory": same});
    let refused = json!({"status": "refused", "message": "no"});
    let wrong = with(PRESENT, &[first]);
    type Row<'a> = (&'a str, Value, Option<[f32; 8]>, Option<[f32; 8]>, [&'a str; 2]);
    let rows: [Row<'_>; 15] = [
        ("valid", returned(true), Some(PRESENT), None, ["pass", "exact"]),
        ("valid", returned(false), Some(PRESENT), Some(CACHE), ["pass", "copies"]),
        ("valid", returned(false), Some(PRESENT), None, ["pass", "copies"]),
        ("valid", returned(true), Some(wrong), None, ["fail", "differs"]),
        ("valid", returned(false), Some(PRESENT), Some(wrong), ["fail", "differs"]),
        ("valid", refused.clone(), Some(CACHE), None, ["fail", "refuses"]),
        ("valid", refused.clone(), Some(wrong), None, ["fail", "partly-written"]),
        ("valid", json!({"status": "crashed", "message": "SIGSEGV"}), None, None, ["fail", "crashes"]),
        ("valid", json!({"status": "timeout"}), None, None, ["fail", "timeout"]),
        ("valid", json!({"status": "not-possible"}), None, None, ["pass", "not-possible"]),
        ("refused", refused.clone(), Some(with(CACHE, &[second, first])), None, ["fail", "partly-written"]),
        ("refused", returned(true), Some(CACHE), None, ["fail", "differs"]),
        ("again", returned(false), Some(PRESENT), Some(wrong), ["fail", "corrupts-past"]),
        ("again", returned(true), Some(PRESENT), None, ["fail", "corrupts-past"]),
        ("again", returned(false), Some(PRESENT), Some(CACHE), ["pass", "exact"]),
    ];
    let mut texts = Vec::new();
    for (case, in_place, buffer, past, [verdict, expected]) in rows {
        let folder = folder([3, 0], "out-of-range");
        write_right(&folder);
        let plain = if case == "refused" { "refused" } else { "returned" };
        answer(&folder, case, &json!({"plain": {"status": plain}, "in_place": in_place}));
        for (name, values) in [("in_place_0", buffer), ("past_0", past)] {
            let _ = fs::remove_file(folder.path(&format!("theirs/{case}/test_data_set_0/{name}.npy")));
            values.iter().for_each(|values| write(&folder, case, name, values));
        }
        assert_eq!(verdicts(&folder, case), [verdict, "exact", expected], "{case}: {in_place}");
        let answer = verify(&folder);
        assert_eq!(answer.code, Some(if verdict == "pass" { 0 } else { 1 }), "{answer}");
        let shown = |line: &&str| line.starts_with("FAIL") || line.starts_with("in place");
        texts.extend(answer.stdout.lines().filter(shown).map(str::to_owned));
    }
    insta::assert_snapshot!(texts.join("\n"));
}

/// Checks an output that reads the past, after a write that came too early.
#[test]
fn a_corrupted_past_is_seen_in_the_outputs() {
    let folder = folder([3, 0], "out-of-range");
    write_right(&folder);
    write(&folder, "again", "output_1", &PRESENT);
    assert_eq!(verdicts(&folder, "again"), ["fail", "differs", "corrupts-past"]);
    insta::assert_snapshot!(verify(&folder));
}

#[test]
fn answers_without_outputs_are_named() {
    let folder = folder([3, 0], "out-of-range");
    write_right(&folder);
    let plain = |status: &str, message: &str| json!({"plain": {"status": status, "message": message}});
    let rows = [
        ("valid", plain("refused", "not implemented\n"), ["fail", "refuses"]),
        ("valid", plain("crashed", "SIGSEGV"), ["fail", "crashes"]),
        ("valid", plain("timeout", ""), ["fail", "timeout"]),
        ("refused", plain("crashed", &"long ".repeat(1000)), ["fail", "crashes"]),
        ("refused", plain("timeout", "60 s"), ["fail", "timeout"]),
        ("refused", plain("refused", "any reason"), ["pass", "exact"]),
        // The call returned, so it has not refused, although its output is missing.
        ("refused", plain("returned", ""), ["fail", "accepts"]),
    ];
    let mut texts = Vec::new();
    for (case, document, expected) in rows {
        write_right(&folder);
        for name in ["output_0", "in_place_0"] {
            let _ = fs::remove_file(folder.path(&format!("theirs/{case}/test_data_set_0/{name}.npy")));
        }
        answer(&folder, case, &document);
        let [verdict, answer, in_place] = verdicts(&folder, case);
        assert_eq!((verdict, answer, in_place), (expected[0].into(), expected[1].into(), Value::Null));
        texts.extend(
            verify(&folder).stdout.lines().filter(|line| !line.starts_with("pass")).map(str::to_owned),
        );
    }
    insta::assert_snapshot!(texts.join("\n"));
}

/// Checks that files that are missing, damaged or too large fail their case and no other.
#[test]
fn hostile_answers_fail_their_case_only() {
    let folder = folder([3, 0], "out-of-range");
    write_right(&folder);
    let path = "theirs/valid/test_data_set_0/answer.json";
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    let documents = [
        "",
        "{",
        r#"{"plain": {"status": "fine"}}"#,
        r#"{"plain": {"status": "not-possible"}}"#,
        r#"{"plain": {}}"#,
        r#"{"in_place": {"status": "returned", "same_memory": "yes"}}"#,
        r#"["plain"]"#,
        &deep,
        &format!(r#"{{"plain": {{"status": "returned", "message": {deep}}}}}"#),
    ];
    let check = |what: &str| {
        let answer = verify(&folder);
        assert_eq!(answer.code, Some(1), "{what}: {answer}");
        assert!(
            answer.stdout.contains("\n2 cases passed, 1 failed (1 without a readable output)\n")
                || answer.stdout.contains("2 cases passed, 1 failed (1 wrong only in place)\n"),
            "{what}: {answer}"
        );
        assert!(answer.stdout.len() < 2000, "{what}: {answer}");
        answer.stdout
    };
    for document in documents {
        folder.write(path, document.as_bytes());
        assert!(check(document.get(..60).unwrap_or(document)).contains("answer.json: "));
    }
    // Fields of a later version are ignored.
    folder.write(path, format!(r#"{{"other": {deep}}}"#).as_bytes());
    verify(&folder).passed();
    // The file is sparse, so it takes no space.
    File::create(folder.path(path)).unwrap().set_len(1 << 30).unwrap();
    assert!(check("1 GiB").contains("answer.json: "));
    fs::remove_file(folder.path(path)).unwrap();
    fs::create_dir(folder.path(path)).unwrap();
    assert!(check("a folder").contains("answer.json: "));
    fs::remove_dir(folder.path(path)).unwrap();

    write_right(&folder);
    let buffer = "theirs/valid/test_data_set_0/in_place_0.npy";
    folder.write(buffer, b"\x93NUMPY");
    assert!(check("a short header").contains("in place: theirs/valid/test_data_set_0/in_place_0.npy: "));
    folder.write(buffer, &npy_f32(&[2, 4], CACHE));
    assert!(check("another shape").contains("in place: output 0 has shape [2, 4], expected [2, 4, 1]"));
    fs::remove_file(folder.path(buffer)).unwrap();
    assert!(check("no file").contains("in place: no theirs/valid/test_data_set_0/in_place_0.pb or .npy"));
}

/// Checks a call whose empty update has more rows than any loop could visit.
#[test]
fn an_empty_update_with_many_rows_takes_no_time() {
    let folder = Folder::new();
    let [cache, update] =
        [[2, 4, 0], [2, 1 << 40, 0]].map(|shape| Some(Input::new("float", &shape, Vec::new())));
    let directory = Directory {
        op_type: "TensorScatter",
        domain: "",
        version: 24,
        attributes: vec![("axis", Attribute::Int(1))],
        inputs: vec![cache, update, Some(Input::int64s(&[0, 0]))],
        expectation: Expectation::Refused("update-too-long".to_owned()),
        tolerance: None,
    };
    directory.write(&folder, "cases/refused");
    folder.write("theirs/refused/test_data_set_0/output_0.npy", &npy_f32(&[2, 4, 0], []));
    assert_eq!(verdicts(&folder, "refused"), [json!("fail"), json!("ignores"), Value::Null]);
}
