//! Runs the conformance cases in other runtimes, and collects how they differ.

use std::ffi::OsString;

use crate::cargo::{cargo, full_command, target_dir};
use crate::command::{With, program};
use crate::python::PYTHON;
use crate::step::Step;
use crate::steps::DIVERGENCES;
use crate::steps_ort;

const PROGRAM: &str = "xtask/divergences/main.py";

/// Runs the program with these options. It makes an environment for each version of a runtime.
pub(crate) fn divergences(options: &[OsString]) -> Step {
    let root = target_dir().join("divergences");
    let rust = root.join("rust");
    let run = program("python3").with(PROGRAM).with(&root).with_env("PYTHONDONTWRITEBYTECODE", "1");
    let run = run.with("--command").with(target_dir().join("release/kvscatter"));
    let run = run.with("--plugin").with(steps_ort::library());
    let run = run.with("--rust").with(rust.join("release/kvscatter-divergences")).with_all(options);
    if options.iter().any(|option| option == "--help" || option == "-h" || option == "--list") {
        // These need no build.
        return Step::new("divergences", vec![run]).needs(&[PYTHON]);
    }
    let libraries =
        cargo("build --release --manifest-path").with_all([DIVERGENCES, "--target-dir"]).with(rust);
    Step::new("divergences", vec![full_command(), steps_ort::build(), libraries, run]).needs(&[PYTHON])
}
