//! Counts words that are hard to read, or that are used as figures of speech, in every page, comment and
//! message, and names in code that tell a reader too little.
//!
//! Each line of `xtask/words.txt` has a word and its count. A word that ends in `*` counts with every
//! continuation. A count may only fall. The test fails if a word occurs more often than its count, and also if
//! it occurs less often, until the count is lowered. Another test limits the width of Rust comments to
//! [`COLUMNS`], because rustfmt does not wrap comments.
#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail the test they help")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// The largest width of a line that is a comment.
const COLUMNS: usize = 120;

/// The endings of files that people read. Snapshots and tables are generated from them.
const ENDINGS: [&str; 9] = ["rs", "py", "pyi", "md", "h", "hpp", "c", "cpp", "cu"];

/// Folders whose text is generated or was written by others.
const LEFT_OUT: [&str; 5] = [".git", "target", "proto", "testdata", "node_modules"];

#[test]
fn the_count_of_every_word_only_falls() {
    let allowed = allowed();
    let mut found: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for (path, text) in texts() {
        for (line, content) in (1..).zip(text.lines()) {
            let lower = content.to_lowercase();
            for word in allowed.keys() {
                let hits = occurrences(&lower, word);
                found
                    .entry(word)
                    .or_default()
                    .extend((0..hits).map(|_| format!("{}:{line}: {}", path.display(), content.trim())));
            }
        }
    }
    for (word, allowed) in &allowed {
        let places = found.get(word.as_str()).map_or(&[][..], Vec::as_slice);
        let count = places.len();
        assert!(
            count <= *allowed,
            "{word:?} occurs {count} times, {allowed} are allowed; write it in other words:\n{}",
            places.join("\n")
        );
        assert!(count == *allowed, "{word:?} occurs {count} times: lower its count in xtask/words.txt");
    }
}

#[test]
fn comments_fit_the_screen() {
    // A row of a table cannot be wrapped.
    let is_comment = |line: &str| {
        let text = line.trim_start().trim_start_matches(['/', '!']);
        line.trim_start().starts_with("//") && !text.starts_with(" |")
    };
    let mut long = Vec::new();
    let is_rust = |path: &Path| path.extension().is_some_and(|end| end == "rs");
    for (path, text) in texts().into_iter().filter(|(path, _)| is_rust(path)) {
        for (number, line) in (1..).zip(text.lines()).filter(|(_, line)| is_comment(line)) {
            if line.chars().count() > COLUMNS && !line.contains("://") {
                long.push(format!("{}:{number}", path.display()));
            }
        }
    }
    assert!(long.is_empty(), "comments are wider than {COLUMNS} columns:\n{}", long.join("\n"));
}

#[test]
fn words_count_if_they_stand_alone() {
    assert_eq!(occurrences("the door, a door and doors", "door"), 2);
    assert_eq!(occurrences("outdoor door_handle", "door"), 0);
    assert_eq!(occurrences("a crate of its own, of its own", "of its own"), 2);
    assert_eq!(occurrences("fn what_is() {} fn what() {}", "fn what_*"), 1);
    assert_eq!(occurrences("pub fn of(x: T), fn often()", "fn of"), 1);
    assert_eq!(occurrences("map(|it| it.0).map(|items| items)", "|it|"), 1);
}

/// Returns the allowed words. Each line of the file has a word, or several, and the number of places where it
/// may occur.
fn allowed() -> BTreeMap<String, usize> {
    let list = fs::read_to_string(root().join("xtask/words.txt")).unwrap();
    let entry = |line: &str| {
        let (word, count) = line.rsplit_once(' ').unwrap_or_else(|| panic!("no count: {line}"));
        (word.to_owned(), count.parse().unwrap_or_else(|_| panic!("no count: {line}")))
    };
    list.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).map(entry).collect()
}

/// Returns how often a word occurs with no letter, digit or underscore on either side, or on the left side if the word
/// ends in `*`.
fn occurrences(text: &str, word: &str) -> usize {
    let (word, is_prefix) = word.strip_suffix('*').map_or((word, false), |word| (word, true));
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    let stands_alone = |at: usize| {
        let (before, after) = (&text[..at], &text[at + word.len()..]);
        let continues = after.starts_with(is_part) && !word.ends_with('|');
        !before.ends_with(is_part) && (is_prefix || !continues)
    };
    text.match_indices(word).filter(|(at, _)| stands_alone(*at)).count()
}

fn texts() -> Vec<(PathBuf, String)> {
    let mut texts = Vec::new();
    read(root(), &mut texts);
    assert!(texts.len() > 100, "only {} files were found", texts.len());
    texts
}

fn read(folder: &Path, texts: &mut Vec<(PathBuf, String)>) {
    let mut entries: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    entries.sort();
    for path in entries {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() && !LEFT_OUT.contains(&name.as_str()) && !name.starts_with('.') {
            read(&path, texts);
        } else if path != root().join(file!())
            && path.is_file()
            && path.extension().is_some_and(|end| ENDINGS.iter().any(|e| end == *e))
        {
            let text = fs::read_to_string(&path).unwrap();
            texts.push((path.strip_prefix(root()).unwrap_or(&path).to_owned(), text));
        }
    }
}

fn root() -> &'static Path {
    let xtask = Path::new(env!("CARGO_MANIFEST_DIR"));
    xtask.parent().unwrap_or(xtask)
}
