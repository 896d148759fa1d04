//! Exports decoders of many families with the exporters that people use, converts them, and compares what they
//! generate. Also times encoder-decoders.

use std::env;
use std::ffi::OsString;
use std::process::Command;

use crate::cargo::{full_command, root, target_dir};
use crate::command::{With, program};
use crate::python::{Environment, PYTHON, needs};
use crate::step::Step;
use crate::steps_ort;

/// The environments by their names in `xtask/exports/exporters/__init__.py`. Exporters need different versions of
/// transformers.
const ENVIRONMENTS: [&str; 3] = ["optimum", "genai", "optimum-1.18"];

const PROGRAM: &str = "xtask/exports/main.py";
const OF_ENCODERS: &str = "xtask/exports/bench_encoders.py";
/// The folders of modules that the program shares with other benchmarks.
const MODULES: [&str; 2] = ["bench", "bench/real"];

/// Runs the program with these options, in environments of 6 GB each.
pub(crate) fn exports(options: &[OsString]) -> Step {
    if options.iter().any(|option| option == "--help" || option == "-h") {
        // This needs none of the environments, which take minutes to make.
        return Step::new("exports", vec![program(&format!("python3 {PROGRAM} --help"))]).needs(&[PYTHON]);
    }
    let environments = ENVIRONMENTS.map(environment);
    let run = program_in(&environments[0], PROGRAM).with_all(options);
    let commands = environments.iter().map(Environment::make).chain([full_command(), run]).collect();
    Step::new("exports", commands).needs(needs(&environments))
}

/// Runs the program that times encoder-decoders with these options.
pub(crate) fn bench_encoders(options: &[OsString]) -> Step {
    let environment = environment(ENVIRONMENTS[0]);
    let modules = env::join_paths(MODULES.map(|folder| root().join(folder))).unwrap_or_default();
    let run = program_in(&environment, OF_ENCODERS).with_env("PYTHONPATH", modules);
    let run = run.with("--plugin").with(steps_ort::library()).with_all(options);
    let commands = vec![environment.make(), full_command(), steps_ort::build(), run];
    Step::new("bench-encoders", commands).needs(needs(&[environment]))
}

/// Adds the folders and the command that both programs take.
fn program_in(environment: &Environment, program: &str) -> Command {
    let root = target_dir().join("exports");
    let run = environment.python().with(program).with(&root);
    let run = run.with("--environments").with(root.join("environments"));
    run.with("--command").with(target_dir().join("release/kvscatter"))
}

/// Returns one of the environments by its name.
pub(crate) fn environment(name: &str) -> Environment {
    let lock = format!("xtask/exports/locks/{name}.txt");
    Environment::new(format!("exports/environments/{name}"), lock).gigabytes(6)
}
