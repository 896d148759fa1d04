//! Checks the direction of imports. The core's imports must go down the table of layers in ARCHITECTURE.md,
//! those of two other crates must follow the table in their `lib.rs`, and no crate may have circular imports.
//!
//! Paths in a `use`, in code, in a macro and in an attribute count. Each path is followed through names of
//! modules, imports and re-exports to the file that defines the item. Three things do not count: code for
//! tests, names inside string literals, and methods called on a value. The test also does not see macros by textual
//! scope, and re-exported functions that a parent calls where a variable has the same name.
//!
//! A parent imports a child if its code uses an item of the child, but not if it only re-exports the item. A path that
//! hides what it imports is an error: `use crate::*`, another name for the crate, or a name that the root does not
//! define.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test that cannot read the sources must fail")]

mod forms;
mod resolve;
mod source;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use resolve::{Edges, Imports, full_name, imports};
use source::{Files, Module};

#[test]
fn imports_of_the_core_run_down_the_table_of_layers() {
    let Imports { edges, faults } = imports(&files("crates/kvscatter"));
    assert!(faults.is_empty(), "{faults:#?}");
    let upward = upward(&edges, &layers());
    assert!(upward.is_empty(), "{upward:#?}");
}

#[test]
fn no_crate_imports_in_circles() {
    let crates = fs::read_dir(root().join("crates")).unwrap().map(|entry| entry.unwrap().path());
    let mut found = Vec::new();
    for path in crates.chain(["xtask", "bench"].map(|name| root().join(name))) {
        let Imports { edges, faults } = imports(&files(path.strip_prefix(root()).unwrap()));
        let lines = faults.into_iter().chain(circles(&edges));
        found.extend(lines.map(|line| format!("{}: {line}", path.display())));
    }
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn the_table_of_layers_lists_the_modules_of_the_core() {
    let files = files("crates/kvscatter");
    let modules: BTreeSet<&str> =
        files.keys().map(|path| path.split('/').next().unwrap().trim_end_matches(".rs")).collect();
    let layers = layers();
    let listed: BTreeSet<&str> = layers.iter().flatten().map(String::as_str).chain(["lib"]).collect();
    assert_eq!(modules, listed);
}

#[test]
fn modules_import_from_modules_that_the_table_in_their_lib_rs_names_before_them() {
    for name in ["kvscatter-capi", "kvscatter-session", "kvscatter-onnx"] {
        let files = files(format!("crates/{name}"));
        let layers = declared_layers(&files["lib.rs"], "pub ");
        let Imports { edges, faults } = imports(&files);
        let through_the_root = |((_, to), path): &(&(Module, Module), &String)| {
            path.strip_prefix("crate::")
                .is_some_and(|path| path.split("::").next() != to.first().map(|to| &**to))
        };
        // The files of kvscatter-onnx share the names that its root publishes.
        let may_use_root = name == "kvscatter-onnx";
        let rooted = edges.iter().filter(|edge| !may_use_root && through_the_root(edge)).map(described);
        let faults: Vec<_> = faults.into_iter().chain(upward(&edges, &layers)).chain(rooted).collect();
        assert!(faults.is_empty(), "{name}: {faults:#?}");
    }
}

#[test]
fn modules_of_a_conversion_import_from_modules_that_the_table_in_convert_rs_names_before_them() {
    let files = files("crates/kvscatter-onnx");
    let layers = declared_layers(&files["convert.rs"], "pub(crate) ");
    let within =
        |module: &Module| module.first().is_some_and(|name| name == "convert").then(|| module[1..].to_vec());
    let Imports { edges, .. } = imports(&files);
    let edges = edges
        .into_iter()
        .filter_map(|((from, to), path)| Some(((within(&from)?, within(&to)?), path)))
        .filter(|((from, to), _)| !from.is_empty() && !to.is_empty())
        .collect();
    let upward = upward(&edges, &layers);
    assert!(upward.is_empty(), "{upward:#?}");
}

/// Returns the imports that do not go down. The crate's root is above every layer.
fn upward(edges: &Edges, layers: &[Vec<String>]) -> Vec<String> {
    let rank = |module: &Module| match module.first() {
        None => layers.len(),
        Some(name) => layers
            .iter()
            .position(|layer| layer.contains(name))
            .unwrap_or_else(|| panic!("ARCHITECTURE.md has no layer for {name}")),
    };
    let is_upward = |(from, to): &(Module, Module)| from.first() != to.first() && rank(to) >= rank(from);
    edges.iter().filter(|(edge, _)| is_upward(edge)).map(described).collect()
}

/// Returns the imports that are part of a circle.
fn circles(edges: &Edges) -> Vec<String> {
    let mut imported: BTreeMap<&Module, Vec<&Module>> = BTreeMap::new();
    for (from, to) in edges.keys() {
        imported.entry(from).or_default().push(to);
    }
    let reached: BTreeMap<&Module, _> =
        imported.keys().map(|&from| (from, reached(from, &imported))).collect();
    let is_on_circle = |(from, to): &(Module, Module)| reached.get(to).is_some_and(|all| all.contains(from));
    edges.iter().filter(|(edge, _)| is_on_circle(edge)).map(described).collect()
}

/// Returns the modules that a module imports, directly or through other modules.
fn reached<'a>(from: &'a Module, imported: &BTreeMap<&'a Module, Vec<&'a Module>>) -> BTreeSet<&'a Module> {
    let mut reached = BTreeSet::new();
    let mut left = vec![from];
    while let Some(module) = left.pop() {
        let next = imported.get(module).into_iter().flatten().copied();
        left.extend(next.filter(|&to| reached.insert(to)));
    }
    reached
}

fn described(((from, to), path): (&(Module, Module), &String)) -> String {
    format!("{} imports {}: {path}", full_name(from), full_name(to))
}

/// Returns the layers of ARCHITECTURE.md, lowest first.
fn layers() -> Vec<Vec<String>> {
    let page = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let mut layers = modules(page.lines(), "| layer | modules in `crates/kvscatter/src` |");
    layers.reverse();
    assert!(layers.len() > 3, "{layers:?}");
    layers
}

/// Returns the modules in the second column of the table that begins with a heading, by row.
fn modules<'l>(lines: impl Iterator<Item = &'l str>, heading: &str) -> Vec<Vec<String>> {
    let rows = lines.skip_while(|line| !line.starts_with(heading)).skip(2);
    rows.take_while(|line| line.starts_with('|'))
        .map(|row| {
            let quoted = row.split('|').nth(2).unwrap().split('`').skip(1).step_by(2);
            quoted.map(|name| name.trim_end_matches('/').trim_end_matches(".rs").to_owned()).collect()
        })
        .collect()
}

/// Returns the layers of the table in the comment of a file. It must list each module that the file declares, alone or
/// after these words.
fn declared_layers(text: &str, visibility: &str) -> Vec<Vec<String>> {
    let comment = text.lines().filter_map(|line| line.strip_prefix("//! "));
    let listed: Vec<_> = modules(comment, "| for | modules, in order |").into_iter().flatten().collect();
    let declared: BTreeSet<_> = text
        .lines()
        .filter_map(|line| line.trim_start_matches(visibility).strip_prefix("mod ")?.strip_suffix(';'))
        .collect();
    assert_eq!(listed.iter().map(String::as_str).collect::<BTreeSet<_>>(), declared);
    listed.into_iter().map(|module| vec![module]).collect()
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// Returns the sources of a crate.
fn files(path: impl AsRef<Path>) -> Files {
    let src = root().join(path).join("src");
    let mut files = Files::new();
    let mut folders = vec![src.clone()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let name = path.strip_prefix(&src).unwrap().to_str().unwrap().replace('\\', "/");
                files.insert(name, fs::read_to_string(&path).unwrap());
            }
        }
    }
    files
}
