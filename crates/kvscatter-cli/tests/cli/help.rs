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
            let error = folder.run_args(&words(command)).stderr;
            assert!(!error.contains("see --help"), "{command}: {error}");
            examples += 1;
        }
        assert!(examples >= least, "{page}");
    }
}

/// Splits a line at the spaces that are not between single quotes.
fn words(line: &str) -> Vec<&str> {
    line.split('\'')
        .enumerate()
        .flat_map(|(index, part)| match index % 2 {
            0 => part.split_whitespace().collect(),
            _ => vec![part],
        })
        .collect()
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
    let lines = [
        "frobnicate",
        "run",
        "run a b",
        "run m.onnx --seed -1",
        "run m.onnx --in-place --functional",
        "run m.onnx -i past_cache",
        "run m.onnx -i past_cache=k.txt",
        "run m.onnx --dim batch=x",
        "plan tensor-scatter --cache 2,4,1",
        "plan tensor-scatter --cache 2,-4,1 --update 2,1,1",
        "plan tensor-scatter --cache 2,4,1 --update 2,1,1 --mode diagonal",
        "plan tensor-scatter --cache 2,4,1 --update 2,1,1 --axs 1",
        "plan tensor-scatter --cache 2,4,1 --update 2,1,1 --type float9",
        "plan tensor-scatter --cache 2,4,1 --update 2,1,1 --write-indices 0;1",
        "plan kv-cache-update --cache 2,1,4,1 --update 2,1,1,1 --write-indices 0,1 --cache-mode ring",
        "apply tensor-scatter --past-cache a.npy --update b.npy",
        "apply tensor-scatter --past-cache a.npy --update b.npy --in-place --present-cache c.npy",
        "apply tensor-scatter --past-cache a.npy#k --update b.npy --in-place",
        "apply tensor-scatter --past-cache a.npz# --update b.npy --in-place",
        "convert",
        "lower",
        "verify",
        "verify d --rtol nan",
        "verify d --atol -1",
        "cases",
        "generate",
        "generate m.onnx",
        "certify",
        "cases -o d --count x",
        "completions tcsh",
        "plan tensor-scatter --cache 2,4,1 --update 2,1,1 --write-indices 3 0",
        "plan tensor-scatter --cache 2 4 1 --update 2,1,1",
        "plan tensor-scatter --cache 2x4x1 --update 2,1,1",
        "plan tensor-scatter --cache 2,99999999999999999999,1 --update 2,1,1",
        "plan tensor-scatter --cache 2,4,1 --update 2,1,1 --write-indices 0,99999999999999999999",
        "apply tensor-scatter --cache 2,4,1 --update b.npy --in-place",
        "generate m.onnx --prompt-ids 1 2 3",
        "generate m.onnx --prompt-ids 1 --prompt a",
        "generate m.onnx --prompt a --prompt-file b",
        "generate m.onnx --prompt-ids 1 --chat",
        "generate m.onnx --prompt-ids 1 --stop a",
        "generate m.onnx --prompt a --stop=",
        "generate m.onnx --prompt a --system b",
        "generate m.onnx --prompt a --capacity 8 --max-seq 8",
        "generate m.onnx --prompt a --max-seq 8 --no-convert",
        "generate m.onnx --prompt a --temperature -1",
        "generate m.onnx --prompt a --top-p 0",
        "generate m.onnx --prompt a --min-p 2",
        "generate m.onnx --prompt a --repetition-penalty 0",
    ];
    insta::assert_snapshot!(folder.refusals("", &lines));
}

/// Options that take whole numbers, with the smallest number that the parser of each accepts.
const NUMBERS: [(&str, &[(&str, i32)]); 5] = [
    (
        "generate m.onnx --prompt-ids 1",
        &[
            ("max-new-tokens", 1),
            ("chunk", 1),
            ("capacity", 1),
            ("memory", 0),
            ("max-seq", 1),
            ("top-k", 0),
            ("seed", 0),
        ],
    ),
    (
        "certify m.onnx",
        &[
            ("prompt", 1),
            ("batch", 1),
            ("steps", 0),
            ("chunk", 1),
            ("capacity", 1),
            ("seed", 0),
            ("memory", 0),
        ],
    ),
    ("inspect m.onnx", &[("batch", 1), ("length", 0), ("max-seq", 1)]),
    ("convert m.onnx -o o.onnx", &[("max-seq", 0)]),
    ("cases -o d", &[("seed", 0), ("count", 0)]),
];

#[test]
fn wrong_numbers_are_explained() {
    let folder = Folder::new();
    for (line, options) in NUMBERS {
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
fn a_forgotten_value_is_not_what_follows() {
    let folder = Folder::new();
    for (line, problem) in [
        ("certify m.onnx --prompt --batch 2", "a value is required for '--prompt <"),
        ("plan tensor-scatter --cache --update 2,1,1", "a value is required for '--cache <"),
        ("plan tensor-scatter --cache 2,4,1 --update --type float16", "a value is required for '--update <"),
        ("cases -o -1 --count 1", "unexpected argument '-1' found"),
        ("certify m.onnx --html -1", "unexpected argument '-1' found"),
        ("run m.onnx --engine ort --ort-lib -1", "unexpected argument '-1' found"),
        ("generate m.onnx --ort-plugin --threads 1", "a value is required for '--ort-plugin <"),
    ] {
        let refused = folder.run(line).refused();
        assert!(refused.starts_with(&format!("error: {problem}")), "{line}: {refused}");
    }
    assert!(!folder.path("-1").exists());
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
