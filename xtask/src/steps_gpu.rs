//! The benchmark on a GPU, and the parts of it that can be checked without one.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;

use crate::cargo::{cargo, target_dir};
use crate::command::{With, program};
use crate::step::{Step, Tool};
use crate::steps_c::GXX;
use crate::steps_cuda;
use crate::steps_python::Torch;

const FOLDER: &str = "crates/kvscatter-cuda/bench";
const TESTS: &str = "crates/kvscatter-cuda/bench/tests";
const SCRIPT: &str = "crates/kvscatter-cuda/bench/bench_gpu.py";

/// The machine's own Python. The user decides which libraries are installed for the comparison.
const USERS_PYTHON: Tool = Tool {
    name: "Python",
    probe: "python3 --version",
    install: "apt-get install python3, and pip install torch",
};

/// Times the write on this machine's GPU, and the libraries that its `python3` has.
pub(crate) fn bench_gpu(options: &[OsString]) -> Step {
    let bench = program("python3").with_all([SCRIPT, "--library"]).with(library("release"));
    let bench = bench.with("--out").with(target_dir().join("bench-gpu")).with_all(options);
    Step::new("bench-gpu", vec![build("--release"), bench]).needs(&[USERS_PYTHON])
}

/// Checks types, runs the tests, and runs small cases with every library that works on a CPU. kvscatter runs
/// on the simulated driver.
pub(crate) fn check() -> Step {
    let environment = Torch::Oldest.environment();
    let (driver, driver_file) = steps_cuda::plain_driver();
    let mypy = environment.program("mypy").with(format!("--config-file={FOLDER}/mypy.ini")).with(FOLDER);
    let mypy = mypy.with("--cache-dir").with(target_dir().join("python/mypy-gpu"));
    let tests = environment.python().with_all(["-m", "pytest", "--quiet", "-p", "no:cacheprovider", TESTS]);
    let try_out = environment.python().with_all([SCRIPT, "--self-test", "--library"]).with(library("debug"));
    let try_out = try_out.with("--driver").with(driver_file);
    let commands =
        vec![environment.make(), mypy, tests, steps_cuda::make_folder(), driver, build("--quiet"), try_out];
    Step::new("bench-gpu-check", commands).needs(Torch::Oldest.needs()).skipped_without(&[GXX])
}

/// Builds the library that the script loads.
fn build(profile: &str) -> Command {
    cargo("build -p kvscatter-cuda --example kvscatter_bench_gpu").with(profile)
}

fn library(profile: &str) -> PathBuf {
    target_dir().join(profile).join("examples/libkvscatter_bench_gpu.so")
}
