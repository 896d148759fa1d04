//! CUDA without a device: the kernels' source as C++, called by a simulated driver.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::cargo::{cargo, target_dir};
use crate::step::{Step, Tool, program};
use crate::steps_c::GXX;

const DRIVER: &str = "crates/kvscatter-cuda/tests/fake/driver.cpp";

pub(crate) const GPU: Tool =
    Tool { name: "a GPU", probe: "nvidia-smi -L", install: "a machine that has one" };
/// With the PyTorch and the JAX that fit this machine's GPU, if any.
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

/// Some tests make calls that a driver refuses.
const CHECKER: &str = "compute-sanitizer --error-exitcode 1 --report-api-errors no";

/// The driver of this machine.
const MACHINES_DRIVER: &str = "libcuda.so.1";

/// Where the tests find the driver.
const DRIVER_VARIABLE: &str = "KVSCATTER_CUDA_DRIVER";

/// The address sanitizer has to be there before the program that it watches, whose own allocations it then sees too.
const SANITIZED: &str = r#"target.'cfg(unix)'.runner = [
    'sh', '-c', 'LD_PRELOAD=$(g++ -print-file-name=libasan.so) exec "$@"', 'sh'
]"#;

/// The tests on the driver, then again with the address and the undefined behaviour sanitizer in driver and kernels: what
/// is not aligned as a device asks for it fails there as well. The second driver lacks what those of CUDA 11 lack.
pub(crate) fn cuda() -> Step {
    let (compile, plain) = plain_driver();
    let checks =
        ["-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-DKVSCATTER_OLD_DRIVER"];
    let (compile_sanitized, sanitized) = driver("libcuda-sanitized.so.1", &checks);
    let tests = test(&plain, &[]);
    let watched = test(&sanitized, &["--config", SANITIZED]);
    Step::new("cuda", vec![make_folder(), compile, tests, compile_sanitized, watched]).needs(&[GXX])
}

/// The same tests on the device of this machine, then those of the Python package, then the first once more under NVIDIA's
/// checkers of memory and of races. A step whose tool is missing fails alone: the others run.
pub(crate) fn cuda_gpu() -> [Step; 3] {
    let driver = Path::new(MACHINES_DRIVER);
    let checked =
        |tool| test(driver, &["--config", &format!("target.'cfg(unix)'.runner = '{CHECKER} --tool {tool}'")]);
    [
        Step::new("cuda-gpu", vec![test(driver, &[])]).needs(&[GPU]),
        Step::new("cuda-gpu-python", python_gpu()).needs(&[GPU, USERS_PYTHON]),
        Step::new("cuda-gpu-checks", vec![checked("memcheck"), checked("racecheck")])
            .needs(&[GPU, SANITIZER]),
    ]
}

/// The Python package's tests for devices, in this machine's Python, where the package need not be installed: with
/// PyTorch and JAX if they are there. Skipped tests are listed.
fn python_gpu() -> Vec<Command> {
    let package = folder().join("python");
    let build = cargo("build -p kvscatter-python");
    let mut remove = program("rm -rf");
    remove.arg(&package);
    let mut sources = program("cp -r crates/kvscatter-python/python/kvscatter");
    sources.arg(&package);
    let mut module = program("cp");
    module.arg(target_dir().join("debug/libkvscatter_native.so"));
    module.arg(package.join("kvscatter/_native.abi3.so"));
    let mut tests = program("python3 -m pytest -rs -p no:cacheprovider --config-file");
    tests.args(["crates/kvscatter-python/pyproject.toml", "crates/kvscatter-python/tests/cuda"]);
    tests.env("PYTHONPATH", &package).env(DRIVER_VARIABLE, MACHINES_DRIVER);
    vec![build, remove, make_at(&package), sources, module, tests]
}

/// As `unit` builds them, so that nothing is built again.
fn test(driver: &Path, options: &[&str]) -> Command {
    let mut test = cargo("test --workspace --exclude kvscatter --test cuda");
    test.args(options).args(["--", "--include-ignored"]).env(DRIVER_VARIABLE, driver);
    test
}

/// The driver without sanitizers.
pub(crate) fn plain_driver() -> (Command, PathBuf) {
    driver("libcuda.so.1", &["-O1"])
}

/// What compiles it, and where it lies then.
fn driver(name: &str, options: &[&str]) -> (Command, PathBuf) {
    let library = folder().join(name);
    let mut compile = Command::new("g++");
    compile.args([
        "-std=c++17",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-DKVSCATTER_SHIM",
        "-shared",
        "-fPIC",
        "-pthread",
    ]);
    compile.args(options).arg(DRIVER).arg("-o").arg(&library);
    (compile, library)
}

pub(crate) fn make_folder() -> Command {
    make_at(&folder())
}

fn make_at(folder: &Path) -> Command {
    let mut make = program("mkdir -p");
    make.arg(folder);
    make
}

fn folder() -> PathBuf {
    target_dir().join("cuda")
}
