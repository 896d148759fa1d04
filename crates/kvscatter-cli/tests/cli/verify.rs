//! Tests `kvscatter cases` and `kvscatter verify`.

use crate::support::{Folder, contents};

/// Checks that the default number of cases is the number of ideas times the 24 types, and that they pass.
#[test]
fn the_default_covers_every_idea_with_every_type() {
    let folder = Folder::new();
    insta::assert_snapshot!(folder.run("cases -o cases --seed 5").passed());
    let text = folder.run("verify cases").passed();
    assert!(text.ends_with("\n624 cases passed, 0 failed\n"), "{text}");
    let mut ideas = std::collections::BTreeMap::new();
    for name in folder.names("cases") {
        *ideas.entry(name.split_once('_').unwrap().1.to_owned()).or_insert(0) += 1;
    }
    assert!(ideas.len() == 26 && ideas.values().all(|&times| times == 24), "{ideas:?}");
}

#[test]
fn a_seed_makes_the_same_files() {
    let folder = Folder::new();
    let [one, other] = ["a", "b"].map(|out| {
        folder.run(&format!("cases -o {out} --seed 9 --count 60")).passed();
        contents(&folder.path(out))
    });
    assert!(one == other);
}

/// The cases of ONNX. The second has three dimensions, and the third is a ring.
const CASES: [&str; 3] = ["test_tensorscatter", "test_tensorscatter_3d", "test_tensorscatter_circular"];

#[test]
fn reports() {
    let folder = Folder::with_testdata();
    std::fs::create_dir(folder.path("empty")).unwrap();
    for copy in ["wrong", "inexact", "unreadable", "missing", "folder", "surplus", "two", "misnamed", "many"]
    {
        folder.copy("onnx-node", copy);
    }
    let [plain, three_d, ring] = CASES.map(|case| format!("{case}/test_data_set_0"));
    let output = folder.read(&format!("testdata/onnx-node/{plain}/output_0.pb"));
    folder.flip(&format!("wrong/{ring}/output_0.pb"), 2, 0x40);
    folder.flip(&format!("wrong/{ring}/output_0.pb"), 42, 0x01);
    folder.write(&format!("wrong/{three_d}/output_0.pb"), &output);
    folder.flip(&format!("inexact/{ring}/output_0.pb"), 4, 0x01);
    folder.write(&format!("unreadable/{}/model.onnx", CASES[0]), &[0xff; 50]);
    folder.write(&format!("unreadable/{three_d}/input_1.pb"), b"\x08");
    folder.flip(&format!("unreadable/{ring}/output_0.pb"), 2, 0x40);
    std::fs::remove_file(folder.path(&format!("missing/{three_d}/input_1.pb"))).unwrap();
    std::fs::create_dir(folder.path("folder/model.onnx")).unwrap();
    let input = folder.read(&format!("surplus/{plain}/input_2.pb"));
    folder.write(&format!("surplus/{plain}/input_3.pb"), &input);

    // The outputs of other implementations: of two cases, and with folders that belong to no case.
    std::fs::remove_dir_all(folder.path(&format!("two/{}", CASES[1]))).unwrap();
    folder.write("misnamed/test_tensorscatter/test_data_set_1/output_0.pb", b"");
    folder.write("misnamed/test_tensor_scatter/test_data_set_0/output_0.pb", b"");
    (0..32).for_each(|number| std::fs::create_dir(folder.path(&format!("many/more-{number}"))).unwrap());
    folder.check_transcript("cases_and_verify");
    assert!(!folder.path("many/cases").exists());
    assert_eq!(folder.names("a/b/cases").len(), 3);
}

/// Checks that a full disk leaves no file. A limit of 0 bytes for every file simulates the full disk.
#[cfg(unix)]
#[test]
fn cases_that_cannot_be_written_leave_nothing() {
    let folder = Folder::new();
    std::fs::create_dir(folder.path("empty")).unwrap();
    std::os::unix::fs::symlink("empty", folder.path("link")).unwrap();
    for out in ["cases", "empty", "link", "."] {
        let answer = folder.run_with_limits("-f 0; trap '' XFSZ", &format!("cases -o {out}"));
        if out == "." {
            assert!(answer.refused().contains("must be new or empty"));
            continue;
        }
        assert!(answer.refused().contains("file too large"), "{out}");
        assert_eq!(folder.names(""), ["empty", "link"]);
        assert!(folder.names("empty").is_empty());
    }
}

/// Checks the outputs of another implementation: right, missing, unreadable, of another type, and one that
/// must not exist.
#[test]
fn outputs_of_another_implementation() {
    let folder = Folder::new();
    folder.run("cases -o cases --seed 1 --count 52").passed();
    let cases = folder.names("cases");
    for case in &cases {
        let expected = folder.path(&format!("cases/{case}/test_data_set_0/output_0.pb"));
        if let Ok(bytes) = std::fs::read(expected) {
            folder.write(&format!("theirs/{case}/test_data_set_0/output_0.pb"), &bytes);
        }
    }
    let all_right = folder.run("verify cases --actual theirs").passed();
    assert!(all_right.ends_with("\n52 cases passed, 0 failed\n"), "{all_right}");

    let (refused, accepted): (Vec<_>, Vec<_>) = cases.iter().partition(|case| case.contains("_refused_"));
    let output = |case: &str| format!("theirs/{case}/test_data_set_0/output_0.pb");
    let right = folder.read(&output(accepted[0]));
    folder.write(&output(refused[0]), &right);
    std::fs::remove_file(folder.path(&output(accepted[1]))).unwrap();
    folder.write(&output(accepted[2]), b"\xff");
    folder.write(&output(accepted[3]), &right);
    insta::assert_snapshot!(folder.run("verify cases --actual theirs --quiet"));
}

/// Checks a ring in whose second sample slot 3 is written, slot 0 is wrapped, and slots 1 and 2 are old.
#[test]
fn a_wrong_slot_is_named_by_its_use() {
    let folder = Folder::with_testdata();
    let case = "testdata/onnx-node/test_tensorscatter_circular";
    let out = "theirs/test_data_set_0/output_0.npy";
    std::fs::create_dir_all(folder.path("theirs/test_data_set_0")).unwrap();
    folder.run(&format!("run {case} -o present_cache={out}")).passed();
    let right = folder.read(out);
    let with_wrong = |slots: &[usize]| {
        let mut file = right.clone();
        for slot in slots {
            // The header has 128 bytes, and a sample has 4 slots of 5 float32.
            file[128 + 4 * (20 + slot * 5)] ^= 1;
        }
        folder.write("theirs/test_tensorscatter_circular/test_data_set_0/output_0.npy", &file);
        folder.run(&format!("verify {case} --actual theirs"))
    };
    std::fs::remove_dir_all(folder.path("theirs")).unwrap();
    assert_eq!(with_wrong(&[]).code, Some(0));
    let answers = [with_wrong(&[3]), with_wrong(&[0]), with_wrong(&[2]), with_wrong(&[0, 1, 2, 3])];
    insta::assert_snapshot!(answers.map(|answer| answer.to_string()).join("\n"));
    let narrow = folder.run_in_columns(60, &format!("verify {case} --actual theirs"));
    insta::assert_snapshot!("a_wrong_slot_in_60_columns", narrow);
    let picture = narrow.stdout.lines().find_map(|line| line.trim().strip_prefix("picture: kvscatter "));
    folder.run(picture.unwrap()).passed();
}

/// Checks that a link that leads nowhere, or out of the folder, is one line of the report.
#[cfg(unix)]
#[test]
fn links_that_lead_out_or_nowhere_do_not_stop_the_others() {
    use std::os::unix::fs::symlink;
    let folder = Folder::with_testdata();
    let link = |to: &str, name: &str| symlink(to, folder.path(name)).unwrap();
    std::fs::create_dir(folder.path("none")).unwrap();
    for dir in ["testdata/onnx-node", "none"] {
        link("nowhere", &format!("{dir}/dangling"));
        link("loop", &format!("{dir}/loop"));
        link("../onnx-attention", &format!("{dir}/out"));
    }
    link("nowhere", "testdata/onnx-node/test_tensorscatter_3d/test_data_set_0/input_3.pb");
    link("test_tensorscatter", "testdata/onnx-node/same");
    std::fs::create_dir(folder.path("onnx-attention")).unwrap();
    folder.check_transcript("verify_links");
}

/// Checks that `verify` does not enter a folder again that it is already in, or folders deeper than 32. The
/// case there still reads its files.
#[cfg(unix)]
#[test]
fn cases_that_the_walk_does_not_reach_whole_lead_nowhere_either() {
    use std::os::unix::fs::symlink;
    let folder = Folder::with_testdata();
    let case = folder.path("testdata/onnx-node/test_tensorscatter");
    let set = case.join("test_data_set_0");
    let names = ["input_0.pb", "input_1.pb", "input_2.pb", "output_0.pb"];
    let deep = format!("deep/{}", "x/".repeat(31));
    for (dir, in_set) in [("loop/case", false), (deep.as_str(), true)] {
        let dir = folder.path(dir);
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::copy(case.join("model.onnx"), dir.join("model.onnx")).unwrap();
        let set_of_case = dir.join("test_data_set_0");
        let links = if in_set {
            std::fs::create_dir(&set_of_case).unwrap();
            set_of_case
        } else {
            symlink("..", &set_of_case).unwrap();
            dir.parent().unwrap().to_owned()
        };
        for name in names {
            symlink(set.join(name), links.join(name)).unwrap();
        }
    }
    for root in ["loop", "deep"] {
        let answer = folder.run(&format!("verify {root}"));
        assert_ne!(answer.code, Some(0), "{answer}");
        assert!(!answer.stdout.contains("pass  "), "{answer}");
        assert!(answer.to_string().contains("leads out"), "{answer}");
    }
}

#[test]
fn a_refusal_must_have_the_right_reason() {
    let folder = Folder::new();
    folder.run("cases -o cases --seed 1 --count 52").passed();
    let mut refused = folder.names("cases");
    refused.retain(|case| case.contains("_refused_"));
    let file = |case: &str| format!("cases/{case}/refused.json");
    folder.write(&file(&refused[0]), br#"{"kind": "types-differ", "reason": "changed by this test"}"#);
    folder.write(&file(&refused[1]), b"{");
    std::fs::remove_file(folder.path(&file(&refused[2]))).unwrap();
    let accepted = "cases/accepted";
    std::fs::create_dir(folder.path(accepted)).unwrap();
    insta::assert_snapshot!(folder.run("verify cases --quiet"));
}
