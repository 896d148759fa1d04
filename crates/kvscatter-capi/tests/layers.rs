//! Checks that modules import each other only in the order of the table in `src/lib.rs`.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Returns the names between backquotes in the table: the modules in reading order.
#[cfg(test)]
fn ordered(library: &str) -> Vec<&str> {
    let rows = library.lines().filter_map(|line| line.strip_prefix("//! | "));
    rows.flat_map(|row| row.split('`').skip(1).step_by(2)).collect()
}

/// Returns the name after each `crate::` of a file, without comments and without the tests at the end of the
/// file.
#[cfg(test)]
fn imports(source: &str) -> BTreeSet<String> {
    let code = source.split("#[cfg(test)]").next().unwrap_or_default();
    let lines = code.lines().map(|line| line.split("//").next().unwrap_or_default());
    let paths = lines.flat_map(|line| line.split("crate::").skip(1));
    let name = |path: &str| path.chars().take_while(|c| c.is_ascii_lowercase() || *c == '_').collect();
    paths.map(name).collect()
}

#[test]
fn modules_import_only_modules_before_them() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let library = fs::read_to_string(folder.join("lib.rs")).unwrap();
    let ordered = ordered(&library);
    let mut declared: Vec<&str> =
        library.lines().filter_map(|line| line.strip_prefix("mod ")?.strip_suffix(';')).collect();
    declared.sort_unstable();
    let mut named = ordered.clone();
    named.sort_unstable();
    assert_eq!(named, declared, "the table names every module once");
    for (at, module) in ordered.iter().enumerate() {
        let source = fs::read_to_string(folder.join(format!("{module}.rs"))).unwrap();
        for import in imports(&source) {
            let before = ordered[..at].contains(&import.as_str());
            assert!(before, "`{module}` imports `{import}`, which the table does not name before it");
        }
    }
}

#[test]
fn imports_are_recognised() {
    let source = "use crate::call::{A, B};\n// crate::no\nlet c = crate::last_error::D;\n#[cfg(test)]\nuse crate::no;\n";
    assert_eq!(imports(source), BTreeSet::from(["call".to_owned(), "last_error".to_owned()]));
    assert_eq!(ordered("//! | a | `b`, `c` |\n//! | d | `e` |\n//! `f`\n"), ["b", "c", "e"]);
}
