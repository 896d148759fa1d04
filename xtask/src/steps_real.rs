//! Times models with real weights in several engines.

use std::env;
use std::ffi::OsString;

use crate::cargo::{cargo, full_command, root, target_dir};
use crate::command::{With, program};
use crate::python::{PYTHON, needs};
use crate::step::Step;
use crate::{steps_exports, steps_python};

const PROGRAM: &str = "bench/real/main.py";
/// The folders of modules that the program shares with other benchmarks and with the examples.
const MODULES: [&str; 2] = ["bench", "examples/models"];
/// Options that run no model.
const WITHOUT_MODELS: [&str; 3] = ["--help", "-h", "--from"];

/// Runs the program with these options, in the environments of `exports`. The program makes that of llama.cpp.
pub(crate) fn bench_real(options: &[OsString]) -> Step {
    let newest = steps_exports::environment("genai");
    let older = steps_exports::environment("optimum");
    let runs_models = !options.iter().any(|option| WITHOUT_MODELS.iter().any(|without| option == without));
    let run = if runs_models { newest.python() } else { program("python3") };
    let built = target_dir().join("release");
    let run = run.with(PROGRAM).with(target_dir().join("bench-real"));
    let run = run.with("--environments").with(target_dir().join("exports/environments"));
    let run = run.with("--command").with(built.join("kvscatter"));
    let run = run.with("--tract").with(built.join("examples/worker")).with_all(options);
    let modules = env::join_paths(MODULES.map(|folder| root().join(folder))).unwrap_or_default();
    let run = run.with_env("PYTHONPATH", modules).with_env("PYTHONDONTWRITEBYTECODE", "1");
    if !runs_models {
        return Step::new("bench-real", vec![run]).needs(&[PYTHON]);
    }
    let mut commands = vec![older.make()];
    commands.extend(steps_python::wheel_in(&newest));
    let worker = cargo("build --release -p kvscatter-tract --example worker");
    commands.extend([full_command(), worker, run]);
    Step::new("bench-real", commands).needs(needs(&[newest, older]))
}
