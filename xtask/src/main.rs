//! All steps of continuous integration as commands: `cargo xtask --help`.

mod cargo;
mod command;
mod python;
mod seconds;
mod step;
mod steps;
mod steps_c;
mod steps_candle;
mod steps_cuda;
mod steps_cuda_images;
mod steps_divergences;
mod steps_exports;
mod steps_gpu;
mod steps_models;
mod steps_ort;
mod steps_package;
mod steps_python;
mod steps_real;
mod steps_soak;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser};

use crate::step::{Missing, Step};
use crate::steps_python::Torch;

/// All steps of continuous integration as commands.
///
/// CI runs `cargo xtask test`, and then `cargo xtask test --rest`. Most steps of the two are also separate
/// commands. Every step prints the cargo commands that it runs. All commands work in any folder of the
/// repository and respect CARGO_TARGET_DIR.
#[derive(Parser)]
#[command(bin_name = "cargo xtask", disable_help_subcommand = true)]
enum Task {
    /// Runs the steps for every change: fmt, unit-core, unit-onnx, unit-command and c, three at once. Needs Rust, gcc
    /// and g++
    Test {
        /// Also runs deny, lint, features, no-std, docs, unit-all, models, conformance, ort and python, uses the C
        /// library through pkg-config and CMake, and packs the crates. Runs two steps at once
        #[arg(long)]
        all: bool,
        /// Runs the steps that only --all runs
        #[arg(long, conflicts_with = "all")]
        rest: bool,
    },
    /// Runs the steps that are too long for every change: lint and unit of candle, XLA, CUDA and the benchmarks,
    /// linear, cuda, cuda-images, candle-cuda, instructions, c-valgrind, package, the Python package as users install
    /// it, with accelerators, GenAI and PyTorch, histories, ort --every-version and bench-gpu-check. Runs two steps
    /// at once
    Nightly,
    /// Checks the formatting, also outside the workspace: fuzz targets, divergences
    Fmt,
    /// Counts words as `words` does, and runs clippy over every target of the workspace, with warnings as errors
    Lint,
    /// Counts words that are hard to read in pages, comments and messages. The counts may only fall
    Words,
    /// Checks the core with every combination of its features
    Features,
    /// Runs unit, integration, property, command line and documentation tests
    Unit,
    /// Packages every published crate, installs the command from the packages, and checks the other crates from
    /// theirs
    Package,
    /// Checks that the work on models that are long in one part grows with their length and not with its
    /// square
    Linear,
    /// Counts instructions and compares them with a checked-in table. Slower code fails (needs valgrind)
    Instructions {
        /// Writes the table instead of comparing
        #[arg(long)]
        bless: bool,
    },
    /// Tests the installed C interface: shared, static, under sanitizers and valgrind, through pkg-config and
    /// CMake
    C,
    /// Tests the CUDA kernels and their host code on a simulated driver, which runs the kernels as C++. Then
    /// runs the same tests under sanitizers
    Cuda,
    /// Tests CUDA on this machine's GPU: the tests of `cuda`, also under compute-sanitizer, those of the
    /// Python package, and those of `candle-cuda` if nvcc is installed. A step whose tool is missing fails,
    /// and the other steps still run
    CudaGpu,
    /// Compiles the CUDA kernels into the checked-in images (needs Python and gcc, downloads once)
    CudaImages {
        /// Compares with the checked-in images instead of replacing them, as `nightly` does
        #[arg(long)]
        check: bool,
    },
    /// Tests the adapter for candle with its feature `cuda` on the simulated driver. CUDA is not needed
    CandleCuda,
    /// Installs kvscatter.h, both libraries, and the files of pkg-config and CMake
    InstallC {
        /// The folder that contains include/, lib/ and share/. It is created if necessary
        #[arg(long, value_name = "DIR")]
        prefix: PathBuf,
    },
    /// Converts, lowers and certifies decoders of several exporters, and compares them with the originals in
    /// ONNX Runtime (needs Python, downloads once)
    Models,
    /// Writes the conformance corpus and the tables of its page, and node tests for onnx into the build folder (needs
    /// Python, downloads once)
    Conformance {
        /// Compares with the checked-in files instead of replacing them, as `test` does
        #[arg(long)]
        check: bool,
    },
    /// Exports tiny decoders of many families with the exporters that people use, converts them, and compares what
    /// they generate (needs Python and 20 GB of disk, downloads once). Add `--help` for the options
    #[command(disable_help_flag = true)]
    Exports(Passed),
    /// Runs the conformance cases in many versions of other runtimes, and collects how they differ (needs Python and
    /// 12 GB of disk, downloads once). Add `--help` for the options
    #[command(disable_help_flag = true)]
    Divergences(Passed),
    /// Tests the plugin in the oldest and the newest of ONNX Runtime's Python wheels (needs Python, downloads once)
    Ort {
        /// Also test the minor versions between them, and one that is too old
        #[arg(long)]
        every_version: bool,
    },
    /// Times the plugin and compares it with ONNX Runtime's built-in kernel. Options: --quick, --write-docs
    OrtBench(Passed),
    /// Tests the Python package: wheel, format, lints, types and tests, also in ONNX Runtime and ONNX Runtime GenAI,
    /// and the examples on the oldest and the newest Python that are installed (needs Python, downloads once)
    Python {
        /// Also test the versions of Python and of ONNX Runtime between the oldest and the newest, the oldest ONNX
        /// Runtime GenAI, JAX and CUDA, and build the source distribution
        #[arg(long)]
        every_version: bool,
    },
    /// Tests the Python package with a version of PyTorch (needs Python and 12 GB of disk, downloads once)
    PythonTorch {
        #[arg(value_enum, default_value_t = Torch::Oldest)]
        version: Torch,
    },
    /// Plants the faults of `testdata/faults` in sessions, and searches for histories that show them (needs Python,
    /// downloads once). Options: the beginnings of names, --minutes N
    Histories(Passed),
    /// Builds the Python package's wheel
    Wheel {
        /// The folder for the wheel
        #[arg(long, value_name = "DIR")]
        out: PathBuf,
    },
    /// Measures what a sharded write costs a process, and predicts it for up to 1,024 devices. Options: --quick,
    /// --write-docs
    Scale(Passed),
    /// Times the Python package and compares it with NumPy, PyTorch, ONNX Runtime and JAX in one process.
    /// Options: --quick, --write-docs
    Peers(Passed),
    /// Builds the documentation, with warnings as errors
    Docs,
    /// Builds the core without its default features, in a library without the standard library
    NoStd,
    /// Checks licences, bans and sources of the dependencies (needs cargo-deny)
    Deny,
    /// Runs the tests of the core and of attention on every instruction set, and the C programs, under the
    /// address sanitizer (needs a nightly toolchain)
    Asan,
    /// Runs the fuzz targets one after the other (needs a nightly toolchain and cargo-fuzz)
    Fuzz {
        /// Seconds for each target
        #[arg(long, value_name = "N", default_value_t = 60)]
        seconds: u32,
    },
    /// Compares the core, sessions, C, Python and the plugin with the oracle on new seeds, until the time is over or
    /// something differs. Tests whose tools are missing are skipped. Attention runs in the plugin only, with small
    /// shapes: `fuzz` compares attention in Rust
    Soak {
        #[command(flatten)]
        options: steps_soak::Options,
    },
    /// Reads models that are made to break the code that reads them, with seeds that no run had before
    Hostile {
        /// The number of files
        #[arg(long, value_name = "N", default_value_t = 100_000)]
        count: u64,
        /// The first seed [default: the one after the last run]
        #[arg(long, value_name = "SEED")]
        from: Option<u64>,
    },
    /// Times the write and compares it with memcpy and other libraries. `bench candle`, `models`, `rings` and
    /// `sessions` time other parts. Add `--help` for the options
    #[command(disable_help_flag = true)]
    Bench(Passed),
    /// Times models with real weights in ONNX Runtime, tract, onnxruntime-genai, transformers and llama.cpp (needs
    /// Python and 25 GB of disk, downloads once). Add `--help` for the options
    #[command(disable_help_flag = true)]
    BenchReal(Passed),
    /// Measures the speed, the bytes and the error of caches of each type with real weights (needs what bench-real
    /// needs). Add `--help` for the options
    #[command(disable_help_flag = true)]
    BenchCacheTypes(Passed),
    /// Times steps of encoder-decoders whose caches have few or many slots, in tract and in ONNX Runtime (needs Python
    /// and 9 GB of disk, downloads once). Options: --reuse, --quick, --write-docs
    BenchEncoders(Passed),
    /// Times the CUDA kernels on this machine's GPU and compares them with PyTorch, Triton, JAX and CuPy, if
    /// python3 has them. Add `--help` for the options
    #[command(disable_help_flag = true)]
    BenchGpu(Passed),
    /// Checks bench-gpu without a GPU: types, tests, and small cases on the CPU (needs Python and 12 GB of
    /// disk, downloads once)
    BenchGpuCheck,
}

/// Options that the program of a step reads.
#[derive(Args)]
struct Passed {
    #[arg(value_name = "OPTION", trailing_var_arg = true, allow_hyphen_values = true)]
    options: Vec<OsString>,
}

fn main() -> ExitCode {
    let one = |step: Step| step::run(vec![step], Missing::Fails);
    let passed = match Task::parse() {
        Task::Test { all: true, .. } => {
            let passed = step::run_at_once(steps::light(), Missing::IsSkipped);
            steps::run_rest() && passed
        }
        Task::Test { rest: true, .. } => steps::run_rest(),
        Task::Test { .. } => {
            let passed = step::run_at_once(steps::light(), Missing::IsSkipped);
            println!("`cargo xtask test --rest` runs the other steps of continuous integration");
            passed
        }
        Task::Nightly => step::run_at_once(steps::nightly(), Missing::IsSkipped),
        Task::Fmt => one(steps::fmt()),
        Task::Lint => step::run(vec![steps::words(), steps::lint(), steps::lint_nightly()], Missing::Fails),
        Task::Words => one(steps::words()),
        Task::Features => one(steps::features()),
        Task::Unit => {
            let steps = steps::unit().into_iter().chain([steps::unit_all(), steps::unit_nightly()]);
            step::run(steps.collect(), Missing::Fails)
        }
        Task::Package => one(steps_package::package()),
        Task::Linear => one(steps::linear()),
        Task::Instructions { bless } => one(steps::instructions(bless)),
        Task::C => step::run(steps_c::all(), Missing::Fails),
        Task::Cuda => one(steps_cuda::cuda()),
        Task::CudaGpu => {
            let [plain, python, checked] = steps_cuda::cuda_gpu();
            step::run(vec![plain, python, checked, steps_candle::candle_gpu()], Missing::Fails)
        }
        Task::CudaImages { check: false } => one(steps_cuda_images::cuda_images()),
        Task::CudaImages { check: true } => one(steps_cuda_images::check()),
        Task::CandleCuda => one(steps_candle::candle_cuda()),
        Task::InstallC { prefix } => one(steps_c::install_c(&prefix)),
        Task::Models => one(steps_models::models()),
        Task::Conformance { check } => one(steps_models::conformance(check)),
        Task::Exports(Passed { options }) => one(steps_exports::exports(&options)),
        Task::Divergences(Passed { options }) => one(steps_divergences::divergences(&options)),
        Task::Ort { every_version } => one(steps_ort::ort(every_version)),
        Task::OrtBench(Passed { options }) => one(steps_ort::ort_bench(&options)),
        Task::Python { every_version } => step::run(steps_python::all(every_version), Missing::Fails),
        Task::PythonTorch { version } => one(steps_python::torch(version)),
        Task::Histories(Passed { options }) => step::run(steps_python::histories(&options), Missing::Fails),
        Task::Wheel { out } => one(steps_python::release(&out)),
        Task::Scale(Passed { options }) => one(steps_python::bench("scale", &options)),
        Task::Peers(Passed { options }) => one(steps_python::bench("peers", &options)),
        Task::Docs => one(steps::docs()),
        Task::NoStd => one(steps::no_std()),
        Task::Deny => one(steps::deny()),
        Task::Asan => step::run(vec![steps::asan(), steps_c::c_asan()], Missing::Fails),
        Task::Fuzz { seconds } => one(steps::fuzz(seconds)),
        Task::Soak { options } => steps_soak::soak(&options),
        Task::Hostile { count, from } => one(steps::hostile(count, from)),
        Task::Bench(Passed { options }) => one(steps::bench(&options)),
        Task::BenchReal(Passed { options }) => one(steps_real::bench_real(&options)),
        Task::BenchCacheTypes(Passed { options }) => one(steps_real::bench_cache_types(&options)),
        Task::BenchEncoders(Passed { options }) => one(steps_exports::bench_encoders(&options)),
        Task::BenchGpu(Passed { options }) => one(steps_gpu::bench_gpu(&options)),
        Task::BenchGpuCheck => one(steps_gpu::check()),
    };
    if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
