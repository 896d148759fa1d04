//! Counts which lines in unsafe blocks the tests execute.

use std::path::PathBuf;
use std::process::Command;

use crate::cargo::{cargo, root, target_dir};
use crate::python::{INDEX, PYTHON};
use crate::step::{Step, Tool, program};
use crate::steps::{INSTRUCTION_SETS, MAX_ISA};
use crate::steps_c::GXX;
use crate::{steps_candle, steps_cuda, steps_ort, steps_python};

/// Runs in place of the compiler, and adds counters to the crates that contain unsafe code.
const COMPILER: &str = "xtask/examples/unsafe_coverage/instrument.sh";

/// The crates that are built together. The adapter for candle is built alone, as in the step `candle-cuda`.
const CRATES: &str = "-p kvscatter -p kvscatter-attention -p kvscatter-capi -p kvscatter-bench -p kvscatter-cli \
                      -p kvscatter-cuda -p kvscatter-ort -p kvscatter-onnxruntime -p kvscatter-python \
                      -p kvscatter-xla";

/// Leaves out the tests that repeat the work of others over whole domains, because counters make them take hours. Also
/// leaves out two that limit the size of files, because the command then cannot write its counters and prints that.
const SHORT: &str = "-- --skip=exhaustive:: --skip=properties:: --skip=rings:: \
                     --skip=a_journal_that_cannot_be_written --skip=cases_that_cannot_be_written";

/// LLVM 19 is the first version that reads what the compiler writes.
const LLVM: Tool =
    Tool { name: "LLVM 19", probe: "llvm-cov-19 --version", install: "apt-get install llvm-19" };

/// Runs the tests of the crates with unsafe code, built with counters, and writes the tables of
/// `docs/unsafe-code.md`.
pub(crate) fn unsafe_coverage() -> Step {
    let mut remove = program("rm -rf");
    remove.arg(folder().join("profiles"));
    // A program of an earlier build would describe other lines.
    let clean = cargo(&format!("clean {CRATES}"));
    let mut clean_candle = cargo(&format!("clean -p kvscatter-candle {CRATES} --target-dir"));
    clean_candle.arg(folder().join("candle"));
    let tests = [remove, clean, clean_candle].into_iter().chain(rust()).chain(python()).map(counted);
    let mut report = cargo("run --quiet -p xtask --example unsafe_coverage");
    report.arg(folder());
    Step::new("unsafe-coverage", tests.chain([report]).collect()).needs(&[LLVM, GXX, PYTHON, INDEX])
}

/// Returns the tests in Rust: the usual ones, those of the kernels on every instruction set, and those on the
/// simulated driver.
fn rust() -> Vec<Command> {
    let usual = cargo(&format!("test --lib --bins --tests {CRATES} {SHORT}"));
    let kernels = INSTRUCTION_SETS.map(|isa| {
        let mut test = cargo(&format!("test --lib --test oracle {CRATES} {SHORT}"));
        test.env(MAX_ISA, isa);
        test
    });
    let (driver, driver_file) = steps_cuda::plain_driver();
    let mut cuda = cargo(&format!("test --test cuda {CRATES} -- --ignored"));
    cuda.env(steps_cuda::DRIVER_VARIABLE, driver_file);
    let simulated = [steps_cuda::make_folder(), driver, cuda];
    let [toolkit, mut candle] = steps_candle::tests(&folder().join("candle"));
    candle.args(["--lib", "--tests"]);
    [usual].into_iter().chain(kernels).chain(simulated).chain([toolkit, candle]).collect()
}

/// Returns the tests that need Python: those of the plugin, of the engine that loads ONNX Runtime, and of the
/// Python package.
fn python() -> Vec<Command> {
    let libraries = cargo(&format!("build {CRATES}"));
    let cases = cargo(&format!("build {CRATES} -p kvscatter-oracle --example export-attention-cases"));
    let (runtime, plugin) = steps_ort::with_counters(&folder());
    let mut engine =
        cargo(&format!("test {CRATES} --test onnxruntime --test plugin --test sessions -- --ignored"));
    engine.env("KVSCATTER_ORT_LIB", runtime.path());
    engine.env("KVSCATTER_ORT_PLUGIN", folder().join("debug/libkvscatter_ort.so"));
    let package = folder().join("python");
    let tests = steps_python::tests_of(&package);
    let package = steps_cuda::python_package(&folder(), &package);
    [libraries, cases].into_iter().chain(plugin).chain([engine]).chain(package).chain(tests).collect()
}

/// Adds the variables that make a command build with counters, and write them.
fn counted(mut command: Command) -> Command {
    command.env("RUSTC_WORKSPACE_WRAPPER", root().join(COMPILER)).env("CARGO_TARGET_DIR", folder());
    // The processes of one program add their counts to four files.
    command.env("LLVM_PROFILE_FILE", folder().join("profiles/%4m.profraw"));
    command
}

fn folder() -> PathBuf {
    target_dir().join("coverage")
}
