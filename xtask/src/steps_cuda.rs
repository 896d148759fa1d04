//! Tests CUDA without a device. A simulated driver runs the kernels' source, compiled as C++.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::cargo::{cargo, target_dir};
use crate::command::{With, program};
use crate::step::{Step, Tool};
use crate::steps_c::GXX;

const DRIVER: &str = "crates/kvscatter-cuda/tests/fake/driver.cpp";

pub(crate) const GPU: Tool =
    Tool { name: "a GPU", probe: "nvidia-smi -L", install: "a machine that has one" };
/// The machine's own Python, with the PyTorch and the JAX that fit this machine's GPU if they are installed.
const USERS_PYTHON: Tool = Tool {
    name: "Python with NumPy and pytest",
    probe: "python3 -c __import__('numpy'),__import__('pytest')",
    install: "python3 -m pip install numpy pytest",
};
const SANITIZER: Tool = Tool {
    name: "compute-sanitizer",
    probe: "compute-sanitizer --version",
    install: "https://docs.nvidia.com/compute-sanitizer",
};

/// API errors are not reported, because some tests make calls for which the driver returns an error.
const CHECKER: &str = "compute-sanitizer --error-exitcode 1 --report-api-errors no";

/// The driver of this machine.
const MACHINES_DRIVER: &str = "libcuda.so.1";

/// The variable that names the tests' driver.
const DRIVER_VARIABLE: &str = "KVSCATTER_CUDA_DRIVER";

/// The address sanitizer must be loaded before the program that it checks. It then also sees the program's
/// own allocations.
const SANITIZED: &str = r#"target.'cfg(unix)'.runner = [
    'sh', '-c', 'LD_PRELOAD=$(g++ -print-file-name=libasan.so) exec "$@"', 'sh'
]"#;

/// Runs the tests on the simulated driver, and then on a second one with the address and the undefined
/// behaviour sanitizer.
///
/// The sanitizers also find accesses that are not aligned as a device requires. The second driver lacks the
/// functions that drivers of CUDA 11 lack.
pub(crate) fn cuda() -> Step {
    let (compile, plain) = plain_driver();
    let checks =
        ["-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-DKVSCATTER_OLD_DRIVER"];
    let (compile_sanitized, sanitized) = driver("libcuda-sanitized.so.1", &checks);
    let tests = test(&plain, &[]);
    let watched = test(&sanitized, &["--config", SANITIZED]);
    Step::new("cuda", vec![make_folder(), compile, tests, compile_sanitized, watched]).needs(&[GXX])
}

/// Runs the same tests on this machine's device, then the Python package's tests, and then the first tests
/// under NVIDIA's memory and race checkers. A step whose tool is missing fails, and the other steps still
/// run.
pub(crate) fn cuda_gpu() -> [Step; 3] {
    let driver = Path::new(MACHINES_DRIVER);
    let checked =
        |tool| test(driver, &["--config", &format!("target.'cfg(unix)'.runner = '{CHECKER} --tool {tool}'")]);
    // If several threads launch kernels at once, racecheck loses track of some and fails.
    let raced = checked("racecheck").with("--test-threads=1");
    [
        Step::new("cuda-gpu", vec![test(driver, &[])]).needs(&[GPU]),
        Step::new("cuda-gpu-python", python_gpu()).needs(&[GPU, USERS_PYTHON]),
        Step::new("cuda-gpu-checks", vec![checked("memcheck"), raced]).needs(&[GPU, SANITIZER]),
    ]
}

/// Runs the Python package's tests for devices in this machine's Python, which need not have the package
/// installed. PyTorch and JAX are tested if they are installed. Skipped tests are listed.
fn python_gpu() -> Vec<Command> {
    let package = folder().join("python");
    let build = cargo("build -p kvscatter-python");
    let tests = program("python3 -m pytest -rs -p no:cacheprovider --config-file")
        .with_all(["crates/kvscatter-python/pyproject.toml", "crates/kvscatter-python/tests/cuda"])
        .with_env("PYTHONPATH", &package)
        .with_env(DRIVER_VARIABLE, MACHINES_DRIVER);
    [build].into_iter().chain(python_package(&package)).chain([tests]).collect()
}

/// Returns the commands that assemble the Python package in a folder, from a development build.
fn python_package(package: &Path) -> [Command; 4] {
    let sources = program("cp -r crates/kvscatter-python/python/kvscatter").with(package);
    let module = program("cp").with(target_dir().join("debug/libkvscatter_native.so"));
    let module = module.with(package.join("kvscatter/_native.abi3.so"));
    [program("rm -rf").with(package), make_at(package), sources, module]
}

/// Returns the command that runs the tests, built as in the step `unit`, so that nothing is built again.
fn test(driver: &Path, options: &[&str]) -> Command {
    let test = cargo("test --workspace --exclude kvscatter --test cuda").with_all(options);
    test.with_all(["--", "--include-ignored"]).with_env(DRIVER_VARIABLE, driver)
}

/// Returns the command that compiles the driver without sanitizers, and its file.
pub(crate) fn plain_driver() -> (Command, PathBuf) {
    driver("libcuda.so.1", &["-O1"])
}

/// Returns the command that compiles the driver, and the file that it makes.
fn driver(name: &str, options: &[&str]) -> (Command, PathBuf) {
    let library = folder().join(name);
    let compile = program("g++ -std=c++17 -Wall -Wextra -Werror -DKVSCATTER_SHIM -shared -fPIC -pthread");
    (compile.with_all(options).with_all([DRIVER, "-o"]).with(&library), library)
}

pub(crate) fn make_folder() -> Command {
    make_at(&folder())
}

fn make_at(folder: &Path) -> Command {
    program("mkdir -p").with(folder)
}

fn folder() -> PathBuf {
    target_dir().join("cuda")
}
