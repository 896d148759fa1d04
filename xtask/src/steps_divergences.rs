//! Runs the conformance cases in other runtimes, and collects how they differ.

use std::ffi::OsString;

use crate::cargo::{cargo, target_dir};
use crate::python::PYTHON;
use crate::step::{Step, program};
use crate::steps::DIVERGENCES;
use crate::steps_ort;

const PROGRAM: &str = "xtask/divergences/main.py";

/// Runs the program with these options. It makes an environment for each version of a runtime.
pub(crate) fn divergences(options: &[OsString]) -> Step {
    let root = target_dir().join("divergences");
    let rust = root.join("rust");
    let mut run = program("python3");
    run.arg(PROGRAM).arg(&root);
    run.arg("--command").arg(target_dir().join("release/kvscatter"));
    run.arg("--plugin").arg(steps_ort::library());
    run.arg("--rust").arg(rust.join("release/kvscatter-divergences")).args(options);
    run.env("PYTHONDONTWRITEBYTECODE", "1");
    if options.iter().any(|option| option == "--help" || option == "-h" || option == "--list") {
        // These need no build.
        return Step::new("divergences", vec![run]).needs(&[PYTHON]);
    }
    let judge = cargo("build --release -p kvscatter-cli --features full");
    let mut libraries = cargo("build --release");
    libraries.args(["--manifest-path", DIVERGENCES, "--target-dir"]).arg(rust);
    Step::new("divergences", vec![judge, steps_ort::build(), libraries, run]).needs(&[PYTHON])
}
