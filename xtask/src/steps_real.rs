//! Times models with real weights in several engines and with caches of several types.

use std::env;
use std::ffi::OsString;
use std::process::Command;

use crate::cargo::{cargo, full_command, root, target_dir};
use crate::command::{With, program};
use crate::python::{PYTHON, needs};
use crate::step::Step;
use crate::{steps_exports, steps_ort, steps_python};

const PROGRAM: &str = "bench/real/main.py";
const OF_CACHE_TYPES: &str = "bench/real/cache_types.py";
/// The folders of modules that the program shares with other benchmarks and with the examples.
const MODULES: [&str; 2] = ["bench", "examples/models"];
/// Options that run no model.
const WITHOUT_MODELS: [&str; 3] = ["--help", "-h", "--from"];

/// Runs the program with these options, in the environments of `exports`. The program makes that of llama.cpp.
pub(crate) fn bench_real(options: &[OsString]) -> Step {
    let newest = steps_exports::environment("genai");
    let older = steps_exports::environment("optimum");
    let runs_models = runs_models(options);
    let python = if runs_models { newest.python() } else { program("python3") };
    let run = with_folders(python.with(PROGRAM));
    let run = run.with("--tract").with(target_dir().join("release/examples/worker")).with_all(options);
    if !runs_models {
        return Step::new("bench-real", vec![run]).needs(&[PYTHON]);
    }
    let mut commands = vec![older.make()];
    commands.extend(steps_python::wheel_in(&newest));
    let worker = cargo("build --release -p kvscatter-tract --example worker");
    commands.extend([full_command(), worker, run]);
    Step::new("bench-real", commands).needs(needs(&[newest, older]))
}

/// Runs the program that measures caches of each type, with the plugin and the benchmark in Rust.
pub(crate) fn bench_cache_types(options: &[OsString]) -> Step {
    let newest = steps_exports::environment("genai");
    let run = with_folders(newest.python().with(OF_CACHE_TYPES));
    let run = run.with("--bench").with(target_dir().join("release/kvscatter-bench"));
    let run = run.with("--plugin").with(steps_ort::library()).with_all(options);
    let mut commands = vec![newest.make()];
    if runs_models(options) {
        let kernels = cargo("build --release -p kvscatter-bench");
        commands.extend([full_command(), steps_ort::build(), kernels]);
    }
    commands.push(run);
    Step::new("bench-cache-types", commands).needs(needs(&[newest]))
}

fn runs_models(options: &[OsString]) -> bool {
    !options.iter().any(|option| WITHOUT_MODELS.iter().any(|without| option == without))
}

/// Adds the folders and the command that both programs take, and the modules that they import.
fn with_folders(program: Command) -> Command {
    let run = program.with(target_dir().join("bench-real"));
    let run = run.with("--environments").with(target_dir().join("exports/environments"));
    let run = run.with("--command").with(target_dir().join("release/kvscatter"));
    let modules = env::join_paths(MODULES.map(|folder| root().join(folder))).unwrap_or_default();
    run.with_env("PYTHONPATH", modules).with_env("PYTHONDONTWRITEBYTECODE", "1")
}
