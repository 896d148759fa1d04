//! Checks that everything that SECURITY.md names as a test exists, and that its links lead to files and sections.
#![expect(clippy::unwrap_used, reason = "a helper that panics fails its test")]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

const PAGE: &str = include_str!("../../SECURITY.md");

/// The column of the threats that names tests: files, and steps of `cargo xtask`.
const TESTS: usize = 4;

#[test]
fn every_named_test_exists() {
    let steps = steps();
    let rows = rows("## Threats");
    assert!(rows.len() > 5, "the table was not found");
    for row in rows {
        let tests = code(row.split('|').nth(TESTS).unwrap());
        assert!(!tests.is_empty(), "no test in {row}");
        for test in tests {
            let exists = if test.contains('/') { root().join(test).exists() } else { steps.contains(test) };
            assert!(exists, "{test} does not exist: {row}");
        }
    }
}

#[test]
fn every_result_has_a_command() {
    const OTHER_TOOLS: [&str; 2] = ["cargo mutants", "llvm-cov"];
    let steps = steps();
    let rows = rows("## Results of long tests");
    assert!(rows.len() > 3, "the table was not found");
    for row in rows {
        let command = code(row)[0];
        let is_step = command.strip_prefix("cargo xtask ").is_some_and(|step| steps.contains(step));
        assert!(is_step || OTHER_TOOLS.contains(&command), "no such command: {row}");
    }
}

#[test]
fn links_lead_to_files_and_sections() {
    let targets = PAGE.split("](").skip(1).map(|link| link.split(')').next().unwrap());
    let links: BTreeSet<_> = targets.map(|target| target.split_once('#').unwrap_or((target, ""))).collect();
    assert!(!links.is_empty(), "the links were not found");
    for (file, section) in links {
        let file = if file.is_empty() { "SECURITY.md" } else { file };
        let text = fs::read_to_string(root().join(file)).unwrap();
        assert!(section.is_empty() || sections(&text).contains(section), "{file} has no section {section}");
    }
}

/// Returns the rows of the table in a section, without its head.
fn rows(section: &str) -> Vec<&'static str> {
    let text = PAGE.split(&format!("{section}\n")).nth(1).unwrap();
    let lines = text.lines().take_while(|line| !line.starts_with("## "));
    lines.filter(|line| line.starts_with('|')).skip(2).collect()
}

/// Returns the names by which links lead to the sections of a page.
fn sections(page: &str) -> BTreeSet<String> {
    let name = |line: &str| line.trim_start_matches('#').trim().to_lowercase().replace(' ', "-");
    page.lines().filter(|line| line.starts_with('#')).map(name).collect()
}

/// Returns the text between each pair of backticks.
fn code(text: &str) -> Vec<&str> {
    text.split('`').skip(1).step_by(2).collect()
}

/// Returns the names of the steps of `cargo xtask`.
fn steps() -> BTreeSet<String> {
    let help = Command::new(env!("CARGO_BIN_EXE_xtask")).arg("--help").output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    help.lines().filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect()
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}
