//! Tests the adapter for candle on CUDA devices, without CUDA.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::cargo::{cargo, target_dir};
use crate::command::{With, program};
use crate::step::{Step, Tool};
use crate::steps_c::GXX;
use crate::steps_cuda::GPU;

const NVCC: Tool = Tool {
    name: "CUDA's toolkit",
    probe: "nvcc --version",
    install: "https://developer.nvidia.com/cuda-downloads",
};

const MAKE: &str = "crates/kvscatter-candle/tests/fake/make.sh";

/// Checks and tests the feature `cuda`.
///
/// A fake nvcc leaves out candle's own kernels. The simulated driver is that of the step `cuda`, plus the
/// functions that candle calls. The build folder is that of all steps, which have built the dependencies without CUDA.
pub(crate) fn candle_cuda() -> Step {
    let target = target_dir();
    let make = program("sh").with(MAKE).with(toolkit());
    let test = with_toolkit("test", &target);
    let clippy = with_toolkit("clippy", &target).with_all(["--all-targets", "--", "-Dwarnings"]);
    let doc = with_toolkit("doc", &target).with("--no-deps").with_env("RUSTDOCFLAGS", "-Dwarnings");
    Step::new("candle-cuda", vec![make, clippy, test, doc]).needs(&[GXX])
}

/// Runs the same tests on this machine's GPU, with all of candle.
pub(crate) fn candle_gpu() -> Step {
    let tests = "--test device --test graph";
    let test = cargo(&format!("test -p kvscatter-candle --features cuda {tests}"));
    Step::new("candle-gpu", vec![test]).needs(&[GPU]).skipped_without(&[NVCC])
}

fn with_toolkit(command: &str, target: &Path) -> Command {
    cargo(&format!("{command} -p kvscatter-candle --features cuda --target-dir"))
        .with(target)
        // cudarc runs the first nvcc in `PATH`. No candle kernel is compiled for this compute capability.
        .with_env("PATH", before("PATH", "bin"))
        .with_env("CUDA_PATH", toolkit())
        .with_env("CUDA_COMPUTE_CAP", "80")
        .with_env("LD_LIBRARY_PATH", before("LD_LIBRARY_PATH", "lib"))
}

/// Returns the value of a variable with the simulated toolkit's folder added at the front.
fn before(variable: &str, name: &str) -> OsString {
    let own = toolkit().join(name);
    let theirs = env::var_os(variable).unwrap_or_default();
    let folders = [own.clone()].into_iter().chain(env::split_paths(&theirs));
    env::join_paths(folders).unwrap_or(own.into())
}

fn toolkit() -> PathBuf {
    target_dir().join("candle-cuda/toolkit")
}
