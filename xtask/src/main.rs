//! Every step of continuous integration, runnable by hand: `cargo xtask --help`.

mod cargo;
mod python;
mod step;
mod steps;
mod steps_c;
mod steps_candle;
mod steps_cuda;
mod steps_cuda_images;
mod steps_gpu;
mod steps_models;
mod steps_ort;
mod steps_package;
mod steps_python;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;

use crate::step::{Missing, Step};

/// Every step of continuous integration, runnable by hand.
///
/// CI runs `cargo xtask test`, and then `cargo xtask test --all`. Each of their steps is also a command, and prints the plain
/// cargo commands that it consists of. All of them work from any folder of the repository and honour
/// CARGO_TARGET_DIR.
#[derive(Parser)]
#[command(bin_name = "cargo xtask", disable_help_subcommand = true)]
enum Task {
    /// What every change needs: fmt, words, lint, unit and c. It takes Rust and a C compiler, and no Python
    Test {
        /// Everything: also deny, features, no-std, docs, kernels, linear, instructions, bench-check, package, cuda,
        /// cuda-images, candle-cuda, models, ort, python, python-torch and bench-gpu-check
        #[arg(long)]
        all: bool,
    },
    /// Formatting, also of what is outside the workspace: fuzz targets, code generator, bench
    Fmt,
    /// Clippy over every target of the workspace; a warning is an error
    Lint,
    /// Counts words that are hard to read in pages, comments and messages. Their number may only fall
    Words,
    /// The core under every combination of its features
    Features,
    /// Unit, integration, property, command line and documentation tests
    Unit,
    /// Packages every published crate, builds it from its package, and installs the command from there
    Package,
    /// The core's tests on every instruction set, with limits so small that they take every path
    Kernels,
    /// Counts the work on models that are long in one part: it may grow with the length, not with its square
    Linear,
    /// Instructions per call against a checked-in table; slower fails (needs valgrind)
    Instructions {
        /// Rewrites the table instead
        #[arg(long)]
        bless: bool,
    },
    /// The C interface, installed and compiled against: shared, static, under sanitizers and valgrind, through pkg-config
    /// and CMake
    C,
    /// The CUDA kernels and their host code on a driver without a device, which runs the kernels as C++; then the same under
    /// sanitizers
    Cuda,
    /// The tests of `cuda` on the GPU that is here, those of the Python package, the first under compute-sanitizer; those of
    /// `candle-cuda` if nvcc is here. What cannot run for want of a tool fails, and the rest runs
    CudaGpu,
    /// Compiles the CUDA kernels into the images that are checked in (needs Python and gcc, downloads once)
    CudaImages {
        /// Compares them instead, as `test` does
        #[arg(long)]
        check: bool,
    },
    /// The adapter for candle with its feature `cuda`, on the driver of `cuda`; no CUDA is needed to build it
    CandleCuda,
    /// Installs kvscatter.h, both libraries and what pkg-config and CMake read
    InstallC {
        /// Where include/, lib/ and share/ are or will be
        #[arg(long, value_name = "DIR")]
        prefix: PathBuf,
    },
    /// Decoders of several exporters, converted, lowered and certified, next to what they were, in ONNX Runtime (needs Python,
    /// downloads once)
    Models,
    /// The plugin inside ONNX Runtime: the Python suite with the wheels of several versions (needs Python, downloads once)
    Ort,
    /// Times the plugin against the kernel that ONNX Runtime has itself; --quick, --write-docs
    OrtBench {
        #[arg(value_name = "OPTION", trailing_var_arg = true, allow_hyphen_values = true)]
        options: Vec<OsString>,
    },
    /// The Python package: its wheel, format, lints, types, tests and examples, on every Python that is here (needs
    /// Python, downloads once)
    Python,
    /// The Python package with PyTorch (needs Python and 12 GB of disk, downloads once)
    PythonTorch,
    /// Builds the Python package's wheel
    Wheel {
        /// Where the file goes
        #[arg(long, value_name = "DIR")]
        out: PathBuf,
    },
    /// Times the Python package against NumPy, PyTorch, ONNX Runtime and JAX in one process; --quick, --write-docs
    Peers {
        #[arg(value_name = "OPTION", trailing_var_arg = true, allow_hyphen_values = true)]
        options: Vec<OsString>,
    },
    /// Clippy over bench/, which is outside the workspace, and its tests; times nothing
    BenchCheck,
    /// The documentation; a warning is an error
    Docs,
    /// The core without its default features, linked into a library that has no standard library
    NoStd,
    /// Licences, bans and sources of the dependencies (needs cargo-deny)
    Deny,
    /// The core's tests on every instruction set and the C programs under the address sanitizer (needs a nightly toolchain)
    Asan,
    /// The fuzz targets, one after the other (needs a nightly toolchain and cargo-fuzz)
    Fuzz {
        /// How long each target runs
        #[arg(long, value_name = "N", default_value_t = 60)]
        seconds: u32,
    },
    /// Times the write against memcpy and what others offer; --help after it shows its options
    #[command(disable_help_flag = true)]
    Bench {
        #[arg(value_name = "OPTION", trailing_var_arg = true, allow_hyphen_values = true)]
        options: Vec<OsString>,
    },
    /// Times a generated decoder whose caches grow against what convert makes of it, in ONNX Runtime; --help after it
    /// shows its options
    #[command(disable_help_flag = true)]
    BenchModels {
        #[arg(value_name = "OPTION", trailing_var_arg = true, allow_hyphen_values = true)]
        options: Vec<OsString>,
    },
    /// Times the adapter for candle against the core, against candle and against candle-nn's caches; --help after it shows
    /// its options
    #[command(disable_help_flag = true)]
    BenchCandle {
        #[arg(value_name = "OPTION", trailing_var_arg = true, allow_hyphen_values = true)]
        options: Vec<OsString>,
    },
    /// Times the CUDA kernels on this machine's GPU against PyTorch, Triton, JAX and CuPy, of those that python3 has; --help
    /// after it shows its options
    #[command(disable_help_flag = true)]
    BenchGpu {
        #[arg(value_name = "OPTION", trailing_var_arg = true, allow_hyphen_values = true)]
        options: Vec<OsString>,
    },
    /// What of bench-gpu can be tried without a GPU: types, tests, small cases on the CPU (needs Python and 12 GB of disk,
    /// downloads once)
    BenchGpuCheck,
    /// Generates the checked-in code of the ONNX messages from onnx.proto again
    Codegen,
}

fn main() -> ExitCode {
    let one = |step: Step| step::run(vec![step], Missing::Fails);
    let passed = match Task::parse() {
        Task::Test { all: false } => {
            let passed = step::run(steps::light(), Missing::IsSkipped);
            println!("`cargo xtask test --all` has {} more steps", steps::all().len() - steps::light().len());
            passed
        }
        Task::Test { all: true } => step::run(steps::all(), Missing::IsSkipped),
        Task::Fmt => one(steps::fmt()),
        Task::Lint => step::run(vec![steps::words(), steps::lint(), steps::lint_all()], Missing::Fails),
        Task::Words => one(steps::words()),
        Task::Features => one(steps::features()),
        Task::Unit => step::run(vec![steps::unit_core(), steps::unit(), steps::unit_all()], Missing::Fails),
        Task::Package => one(steps_package::package()),
        Task::Kernels => one(steps::kernels()),
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
        Task::Ort => one(steps_ort::ort()),
        Task::OrtBench { options } => one(steps_ort::ort_bench(&options)),
        Task::Python => step::run(steps_python::all(), Missing::Fails),
        Task::PythonTorch => one(steps_python::torch()),
        Task::Wheel { out } => one(steps_python::release(&out)),
        Task::Peers { options } => one(steps_python::peers(&options)),
        Task::BenchCheck => one(steps::bench_check()),
        Task::Docs => one(steps::docs()),
        Task::NoStd => one(steps::no_std()),
        Task::Deny => one(steps::deny()),
        Task::Asan => step::run(vec![steps::asan(), steps_c::c_asan()], Missing::Fails),
        Task::Fuzz { seconds } => one(steps::fuzz(seconds)),
        Task::Bench { options } => one(steps::bench(&options)),
        Task::BenchModels { options } => one(steps::bench_models(&options)),
        Task::BenchCandle { options } => one(steps::bench_candle(&options)),
        Task::BenchGpu { options } => one(steps_gpu::bench_gpu(&options)),
        Task::BenchGpuCheck => one(steps_gpu::check()),
        Task::Codegen => one(steps::codegen()),
    };
    if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
