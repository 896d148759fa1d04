//! Exports decoders of many families with the exporters that people use, converts them, and compares what they
//! generate.

use std::ffi::OsString;

use crate::cargo::{cargo, target_dir};
use crate::python::{Environment, INDEX, PYTHON};
use crate::step::{Step, program};

/// The environments by their names in `xtask/exports/exporters/__init__.py`, with their lock files. Exporters need
/// different versions of transformers.
const ENVIRONMENTS: [(&str, &str); 3] = [
    ("optimum", "xtask/exports/locks/optimum.txt"),
    ("genai", "xtask/exports/locks/genai.txt"),
    ("optimum-1.18", "xtask/exports/locks/optimum-1.18.txt"),
];

const PROGRAM: &str = "xtask/exports/main.py";

/// Runs the program with these options, in environments of 6 GB each.
pub(crate) fn exports(options: &[OsString]) -> Step {
    if options.iter().any(|option| option == "--help" || option == "-h") {
        // This needs none of the environments, which take minutes to make.
        return Step::new("exports", vec![program(&format!("python3 {PROGRAM} --help"))]).needs(&[PYTHON]);
    }
    let environments = ENVIRONMENTS.map(|(name, lock)| made_from(name, lock));
    let root = target_dir().join("exports");
    let mut run = environments[0].python();
    run.arg(PROGRAM).arg(&root);
    run.arg("--environments").arg(root.join("environments"));
    run.arg("--command").arg(target_dir().join("release/kvscatter")).args(options);

    let are_made = environments.iter().all(Environment::is_made);
    let needs = if are_made { &[PYTHON][..] } else { &[PYTHON, INDEX] };
    let build = cargo("build --release -p kvscatter-cli --features full");
    let commands = environments.iter().map(Environment::make).chain([build, run]).collect();
    Step::new("exports", commands).needs(needs)
}

/// Returns one of the environments by its name.
pub(crate) fn environment(name: &str) -> Environment {
    let lock = ENVIRONMENTS.iter().find(|(each, _)| *each == name).map_or("", |(_, lock)| lock);
    made_from(name, lock)
}

fn made_from(name: &str, lock: &'static str) -> Environment {
    Environment::new(format!("exports/environments/{name}"), lock).gigabytes(6)
}
