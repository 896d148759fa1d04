//! The benchmark on a GPU, and the parts of it that can be checked without one.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;

use crate::cargo::{cargo, target_dir};
use crate::step::{Step, Tool};
use crate::steps_c::GXX;
use crate::steps_cuda;
use crate::steps_python::Torch;

const FOLDER: &str = "crates/kvscatter-cuda/bench";
const TESTS: &str = "crates/kvscatter-cuda/bench/tests";

/// The machine's own Python. The user decides which libraries are installed for the comparison.
const USERS_PYTHON: Tool = Tool {
    name: "Python",
    probe: "python3 --version",
    install: "apt-get install python3, and pip install torch",
};

/// Times the write on this machine's GPU, and the libraries that its `python3` has.
pub(crate) fn bench_gpu(options: &[OsString]) -> Step {
    let mut bench = Command::new("python3");
    bench.arg(script()).arg("--library").arg(library("release"));
    bench.arg("--out").arg(target_dir().join("bench-gpu")).args(options);
    Step::new("bench-gpu", vec![build("--release"), bench]).needs(&[USERS_PYTHON])
}

/// Checks types, runs the tests, and runs small cases with every library that works on a CPU. kvscatter runs
/// on the simulated driver.
pub(crate) fn check() -> Step {
    let environment = Torch::Oldest.environment();
    let (driver, driver_file) = steps_cuda::plain_driver();
    let mut mypy = environment.program("mypy");
    mypy.args(["--config-file", &format!("{FOLDER}/mypy.ini"), FOLDER]);
    mypy.arg("--cache-dir").arg(target_dir().join("python/mypy-gpu"));
    let mut tests = environment.python();
    tests.args(["-m", "pytest", "--quiet", "-p", "no:cacheprovider", TESTS]);
    let mut try_out = environment.python();
    try_out.arg(script()).arg("--self-test").arg("--library").arg(library("debug"));
    try_out.arg("--driver").arg(driver_file);
    let commands =
        vec![environment.make(), mypy, tests, steps_cuda::make_folder(), driver, build("--quiet"), try_out];
    Step::new("bench-gpu-check", commands).needs(Torch::Oldest.needs()).skipped_without(&[GXX])
}

fn script() -> String {
    format!("{FOLDER}/bench_gpu.py")
}

/// Builds the library that the script loads.
fn build(profile: &str) -> Command {
    let mut build = cargo("build -p kvscatter-cuda --example kvscatter_bench_gpu");
    build.arg(profile);
    build
}

fn library(profile: &str) -> PathBuf {
    target_dir().join(profile).join("examples/libkvscatter_bench_gpu.so")
}
