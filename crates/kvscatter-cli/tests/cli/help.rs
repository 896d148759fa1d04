//! Tests help, completions and usage errors.

use crate::support::Folder;

/// The pages of the help with the least number of their examples.
const PAGES: [(&str, usize); 18] = [
    ("", 4),
    ("run", 2),
    ("apply", 2),
    ("apply tensor-scatter", 2),
    ("apply kv-cache-update", 2),
    ("apply kv-cache-operation", 2),
    ("plan", 2),
    ("plan tensor-scatter", 0),
    ("plan kv-cache-update", 0),
    ("plan kv-cache-operation", 0),
    ("generate", 2),
    ("inspect", 2),
    ("convert", 2),
    ("lower", 2),
    ("verify", 2),
    ("cases", 2),
    ("certify", 2),
    ("completions", 2),
];

/// Compares every page, and runs its examples.
#[test]
fn every_page_fits_and_its_examples_parse() {
    let folder = Folder::new();
    // The examples write no cases where these files are.
    folder.write("cases", b"");
    folder.write("corpus", b"");
    for (page, least) in PAGES {
        let name = format!("help {page}").trim().replace(' ', "_");
        let help = folder.run(&format!("{page} --help")).passed();
        for line in help.lines() {
            assert!(line.chars().count() <= 80, "{page}: {line}");
        }
        insta::assert_snapshot!(name, help);
        let help = help.replace("\\\n", " ");
        let mut examples = 0;
        for line in help.lines().filter_map(|line| line.strip_prefix("  kvscatter ")) {
            let ends = [" #", "&&", " > "];
            let command = ends.iter().fold(line, |line, end| line.split(end).next().unwrap_or(line));
            let error = folder.run(command).stderr;
            assert!(!error.contains("see --help"), "{command}: {error}");
            examples += 1;
        }
        assert!(examples >= least, "{page}");
    }
}

#[test]
fn completions_for_every_shell() {
    let folder = Folder::new();
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let script = folder.run(&format!("completions {shell}")).passed();
        assert!(script.contains("kv-cache-operation") && script.contains("write-indices"), "{shell}");
        if shell != "powershell" && shell != "elvish" {
            assert!(script.contains("circular") && script.contains("float8_e4m3fn"), "{shell}");
        }
    }
}

#[test]
fn usage_errors_are_one_line() {
    let folder = Folder::new();
    folder.check_transcript("usage");
    assert!(!folder.path("-1").exists());
}

/// Options that take whole numbers: those whose parser accepts 0, and those whose smallest number is 1.
const NUMBERS: [(&str, &[&str], &[&str]); 5] = [
    (
        "generate m.onnx --prompt-ids 1",
        &["memory", "top-k", "seed"],
        &["max-new-tokens", "chunk", "capacity", "max-seq"],
    ),
    ("certify m.onnx", &["steps", "seed", "memory"], &["prompt", "batch", "chunk", "capacity"]),
    ("inspect m.onnx", &["length"], &["batch", "max-seq"]),
    ("convert m.onnx -o o.onnx", &["max-seq"], &[]),
    ("cases -o d", &["seed", "count"], &[]),
];

#[test]
fn wrong_numbers_are_explained() {
    let folder = Folder::new();
    for (line, from_zero, from_one) in NUMBERS {
        let options =
            from_zero.iter().map(|option| (option, 0)).chain(from_one.iter().map(|option| (option, 1)));
        for (option, least) in options {
            for (value, problem) in [
                ("-1".to_owned(), format!("must be at least {least}")),
                ((least - 1).to_string(), format!("must be at least {least}")),
                ("99999999999999999999".to_owned(), format!("must be at most {}", usize::MAX)),
                ("x".to_owned(), "must be a whole number".to_owned()),
            ] {
                let refused = folder.run(&format!("{line} --{option} {value}")).refused();
                let begins = format!("error: invalid value '{value}' for '--{option} <");
                let ends = format!("': {problem} (see --help)");
                let is_explained = refused.starts_with(&begins) && refused.trim_end().ends_with(&ends);
                assert!(is_explained, "{line} --{option} {value}: {refused}");
            }
        }
    }
}

#[test]
fn asking_for_nothing_shows_the_help() {
    let folder = Folder::new();
    for page in ["", "plan", "apply"] {
        let answer = folder.run(page);
        assert_eq!((answer.code, answer.stdout.as_str()), (Some(2), ""), "{page}");
        assert!(answer.stderr.contains("Usage: kvscatter"), "{page}: {}", answer.stderr);
    }
}

/// Runs `kvscatter … | head -1`. A reader that closes the pipe is not an error.
#[test]
fn a_reader_that_leaves_is_no_error() {
    use std::process::{Command, Stdio};
    for args in
        ["completions bash", "--help", "plan tensor-scatter --cache 9999,4,1 --update 9999,1,1 --json"]
    {
        let mut child = Command::new(env!("CARGO_BIN_EXE_kvscatter"))
            .args(args.split(' '))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{args}");
        assert_eq!(String::from_utf8(output.stderr).unwrap(), "", "{args}");
    }
}
