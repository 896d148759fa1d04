//! Exports decoders of many families with the exporters that people use, converts them, and compares what they
//! generate.

use std::ffi::OsString;

use crate::cargo::{full_command, target_dir};
use crate::command::{With, program};
use crate::python::{Environment, PYTHON, needs};
use crate::step::Step;

/// The environments by their names in `xtask/exports/exporters/__init__.py`. Exporters need different versions of
/// transformers.
const ENVIRONMENTS: [&str; 3] = ["optimum", "genai", "optimum-1.18"];

const PROGRAM: &str = "xtask/exports/main.py";

/// Runs the program with these options, in environments of 6 GB each.
pub(crate) fn exports(options: &[OsString]) -> Step {
    if options.iter().any(|option| option == "--help" || option == "-h") {
        // This needs none of the environments, which take minutes to make.
        return Step::new("exports", vec![program(&format!("python3 {PROGRAM} --help"))]).needs(&[PYTHON]);
    }
    let environments = ENVIRONMENTS.map(environment);
    let root = target_dir().join("exports");
    let run = environments[0].python().with(PROGRAM).with(&root);
    let run = run.with("--environments").with(root.join("environments"));
    let run = run.with("--command").with(target_dir().join("release/kvscatter")).with_all(options);
    let commands = environments.iter().map(Environment::make).chain([full_command(), run]).collect();
    Step::new("exports", commands).needs(needs(&environments))
}

/// Returns one of the environments by its name.
pub(crate) fn environment(name: &str) -> Environment {
    let lock = format!("xtask/exports/locks/{name}.txt");
    Environment::new(format!("exports/environments/{name}"), lock).gigabytes(6)
}
