//! Changes the code in small ways and counts the changes that no test notices.

use std::ffi::OsString;

use crate::cargo::target_dir;
use crate::python::PYTHON;
use crate::step::{Step, Tool, program};

const TOOL: Tool = Tool {
    name: "cargo-mutants",
    probe: "cargo mutants --version",
    install: "cargo install cargo-mutants --locked",
};

/// Runs the program with these options. It keeps a copy of the repository, and what it found, in the build folder.
pub(crate) fn mutants(options: &[OsString]) -> Step {
    let mut run = program("python3 xtask/mutants/main.py");
    run.arg(target_dir().join("mutants")).args(options).env("PYTHONDONTWRITEBYTECODE", "1");
    Step::new("mutants", vec![run]).needs(&[PYTHON, TOOL])
}
