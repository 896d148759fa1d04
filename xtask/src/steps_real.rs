//! Times models with real weights in several engines.

use std::env;
use std::ffi::OsString;

use crate::cargo::{cargo, root, target_dir};
use crate::python::{INDEX, PYTHON};
use crate::step::{Step, program};
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
    let mut run = if runs_models { newest.python() } else { program("python3") };
    let built = target_dir().join("release");
    run.arg(PROGRAM).arg(target_dir().join("bench-real"));
    run.arg("--environments").arg(target_dir().join("exports/environments"));
    run.arg("--command").arg(built.join("kvscatter"));
    run.arg("--tract").arg(built.join("examples/worker")).args(options);
    let modules = env::join_paths(MODULES.map(|folder| root().join(folder))).unwrap_or_default();
    run.env("PYTHONPATH", modules).env("PYTHONDONTWRITEBYTECODE", "1");
    if !runs_models {
        return Step::new("bench-real", vec![run]).needs(&[PYTHON]);
    }
    let are_made = newest.is_made() && older.is_made();
    let mut commands = vec![older.make()];
    commands.extend(steps_python::wheel_in(&newest));
    commands.push(cargo("build --release -p kvscatter-cli --features full"));
    commands.push(cargo("build --release -p kvscatter-tract --example worker"));
    commands.push(run);
    Step::new("bench-real", commands).needs(if are_made { &[PYTHON] } else { &[PYTHON, INDEX] })
}
