//! The commands of each step.

use std::ffi::OsString;
use std::process::Command;

use crate::cargo::{HEAVY, LIGHT, cargo, prefixed, target_dir};
use crate::step::{NIGHTLY, Step, Tool};
use crate::{
    steps_c, steps_candle, steps_cuda, steps_cuda_images, steps_gpu, steps_models, steps_ort, steps_package,
    steps_python,
};

/// A separate workspace, so that building the project never builds a protobuf compiler.
const CODEGEN: &str = "crates/kvscatter-onnx/codegen/Cargo.toml";

/// A separate workspace, so that building the project never builds what it is compared with.
const BENCH: &str = "bench/Cargo.toml";

/// The names that the core's `Isa` has, and the variable that limits it to one of them.
const INSTRUCTION_SETS: [&str; 4] = ["portable", "sse2", "avx2", "avx512"];
const MAX_ISA: &str = "KVSCATTER_MAX_ISA";

/// Makes the limits between the paths of a copy a few bytes (`cpu/limits.rs`).
const TINY: &str = "--cfg kvscatter_tiny";

/// Lets the tests fail if the limits are not tiny. Other flags need a separate build folder.
const TINY_LIMITS: (&str, &str) = ("KVSCATTER_TEST_LIMITS", "tiny");

/// The steps of `cargo xtask test`, cheapest first, so that a slip shows in the first minutes. They need Rust and a C
/// compiler.
pub(crate) fn light() -> Vec<Step> {
    vec![fmt(), words(), lint(), unit_core(), unit(), steps_c::c()]
}

/// The steps of `cargo xtask test --all`.
pub(crate) fn all() -> Vec<Step> {
    let rust = [
        deny(),
        lint_all(),
        features(),
        no_std(),
        docs(),
        unit_all(),
        kernels(),
        linear(),
        instructions(false),
        bench_check(),
        steps_package::package(),
    ];
    let runtime = [steps_models::models(), steps_ort::ort()];
    let torch = [steps_python::torch(), steps_gpu::check()];
    light()
        .into_iter()
        .chain(rust)
        .chain(steps_c::thorough())
        .chain([steps_cuda::cuda(), steps_cuda_images::check(), steps_candle::candle_cuda()])
        .chain(runtime)
        .chain(steps_python::all())
        .chain(torch)
        .collect()
}

pub(crate) fn fmt() -> Step {
    let members = cargo("fmt --all --check");
    let others = ["fuzz/Cargo.toml", CODEGEN, BENCH].map(|manifest| {
        let mut command = cargo("fmt --check --manifest-path");
        command.arg(manifest);
        command
    });
    Step::new("fmt", [members].into_iter().chain(others).collect())
}

/// Advisories stay out: they need a separate download, and change without a change here.
pub(crate) fn deny() -> Step {
    const TOOL: Tool = Tool {
        name: "cargo-deny",
        probe: "cargo deny --version",
        install: "cargo install cargo-deny --locked",
    };
    let check = cargo("deny --workspace check --hide-inclusion-graph licenses bans sources");
    Step::new("deny", vec![check]).needs(&[TOOL])
}

/// Clippy over the core and the [`LIGHT`] crates.
pub(crate) fn lint() -> Step {
    Step::new("lint", vec![cargo(&format!("clippy -p kvscatter {LIGHT} --all-targets -- -Dwarnings"))])
}

/// Clippy over every crate with every feature, except that candle's feature `cuda` needs CUDA.
pub(crate) fn lint_all() -> Step {
    let clippy = cargo("clippy --workspace --all-targets --features kvscatter-cli/full -- -Dwarnings");
    Step::new("lint-all", vec![clippy])
}

/// Counts the words that `STYLE` wants out of pages, comments and messages.
pub(crate) fn words() -> Step {
    Step::new("words", vec![cargo("test --quiet -p xtask --test words")])
}

/// The core under the features that [`lint()`] and [`unit_core()`] do not already cover.
pub(crate) fn features() -> Step {
    let clippy = |features| {
        let mut command = cargo("clippy -p kvscatter --lib --no-default-features --features");
        command.args([features, "--", "-Dwarnings"]);
        command
    };
    let test = cargo("test -p kvscatter --lib --no-default-features");
    let commands = vec![clippy(""), clippy("std"), clippy("picture"), clippy("std,picture"), test];
    Step::new("features", commands)
}

/// A static library with its own panic handler and allocator takes in the core: the compiler refuses it
/// (duplicate lang item) as soon as anything in it brings the standard library along.
pub(crate) fn no_std() -> Step {
    let folder = target_dir().join("no-std");
    let mut build = cargo("build -p kvscatter --lib --no-default-features --features=picture --target-dir");
    build.arg(&folder);

    let built = folder.join("debug");
    let mut link = Command::new("rustc");
    link.args("--edition=2024 --crate-type=staticlib -Cpanic=abort xtask/probes/no_std.rs".split(' '))
        .arg("--extern")
        .arg(prefixed("kvscatter=", &built.join("libkvscatter.rlib")))
        .arg(prefixed("-Ldependency=", &built.join("deps")))
        .arg("-o")
        .arg(folder.join("libno_std.a"));
    Step::new("no-std", vec![build, link])
}

pub(crate) fn docs() -> Step {
    // With all its features candle asks for CUDA: `candle-cuda` makes those.
    let all = cargo("doc --workspace --exclude kvscatter-candle --lib --no-deps --all-features");
    let candle = cargo("doc -p kvscatter-candle --lib --no-deps");
    let commands = [all, candle].map(|mut doc| {
        doc.env("RUSTDOCFLAGS", "-Dwarnings");
        doc
    });
    Step::new("docs", commands.into())
}

/// The core alone, as [`kernels()`] builds it. Next to other crates, its dependencies would have more features, and
/// would be built again.
pub(crate) fn unit_core() -> Step {
    Step::new("unit-core", vec![cargo("test -p kvscatter --features=picture")])
}

/// The [`LIGHT`] crates, with the command as a plain build makes it.
pub(crate) fn unit() -> Step {
    Step::new("unit", vec![cargo(&format!("test {LIGHT}"))])
}

/// The [`HEAVY`] crates, and the command with every feature.
pub(crate) fn unit_all() -> Step {
    Step::new("unit-all", vec![cargo(&format!("test {HEAVY}"))])
}

/// The core's suite on every instruction set that it has kernels for: with limits so small that the suite's tensors
/// take every path, then with the real ones what depends on them. [`unit_core()`] covers the widest set.
pub(crate) fn kernels() -> Step {
    let tiny = INSTRUCTION_SETS.map(|isa| {
        let mut test = cargo("test -p kvscatter --lib --tests --features=picture");
        test.envs([("RUSTFLAGS", TINY), TINY_LIMITS, (MAX_ISA, isa)]);
        test.arg("--target-dir").arg(target_dir().join("tiny"));
        test
    });
    let real = INSTRUCTION_SETS.map(|isa| {
        let mut test = cargo("test -p kvscatter --lib --tests --features=picture --");
        test.args(["cases::", "exhaustive::", "properties::"].map(|small| format!("--skip={small}")));
        test.env(MAX_ISA, isa);
        test
    });
    Step::new("kernels", tiny.into_iter().chain(real).collect())
}

/// Counts the work on models that are long in one part, and compares several lengths. The compiler adds the
/// counters, to the dependencies of the tests as well. Nothing uses the profile that the compiler's runtime
/// writes at the end.
pub(crate) fn linear() -> Step {
    let mut test = cargo("test -p kvscatter-onnx --test linear --target-dir");
    test.arg(target_dir().join("linear"));
    test.env("RUSTFLAGS", "-Cinstrument-coverage --cfg kvscatter_counted");
    test.env("LLVM_PROFILE_FILE", target_dir().join("linear").join("%m.profraw"));
    Step::new("linear", vec![test])
}

/// Optimised, for the exhaustive tests' sake, with the checks of a debug build. The exhaustive tests take most of
/// the time and run once, with the real limits on the widest instruction set; everything else runs again on every
/// set, with limits that make it take every path. The target is named so that the flags reach the tests and not the
/// build scripts.
pub(crate) fn asan() -> Step {
    const FLAGS: &str = "-Zsanitizer=address -Cdebug-assertions -Coverflow-checks";
    const TEST: &str = "+nightly test --release -p kvscatter --lib --tests --features=picture \
                        --target=x86_64-unknown-linux-gnu";
    let mut real = cargo(TEST);
    real.env("RUSTFLAGS", FLAGS);
    let tiny = INSTRUCTION_SETS.map(|isa| {
        let mut test = cargo(TEST);
        test.env("RUSTFLAGS", format!("{FLAGS} {TINY}")).envs([TINY_LIMITS, (MAX_ISA, isa)]);
        test.arg("--target-dir").arg(target_dir().join("tiny")).args(["--", "--skip=exhaustive::"]);
        test
    });
    Step::new("asan", [real].into_iter().chain(tiny).collect()).needs(&[NIGHTLY])
}

pub(crate) fn fuzz(seconds: u32) -> Step {
    const SEEDS: &str = "testdata/onnx-node/test_tensorscatter/model.onnx,\
                         testdata/onnx-node/test_tensorscatter_circular/model.onnx,\
                         testdata/onnx-node/test_tensorscatter_circular/test_data_set_0/input_0.pb";
    const TOOL: Tool = Tool {
        name: "cargo-fuzz",
        probe: "cargo fuzz --version",
        install: "cargo install cargo-fuzz --locked",
    };
    let run = |target| {
        let mut command = cargo("+nightly fuzz run");
        command.args([target, "--", "-print_final_stats=1"]).arg(format!("-max_total_time={seconds}"));
        command
    };
    // The same inputs once more, on all paths of a copy.
    let mut tiny = cargo("+nightly fuzz run --target-dir");
    tiny.arg(target_dir().join("tiny-fuzz")).env("RUSTFLAGS", TINY);
    tiny.args(["differential", "--", "-print_final_stats=1"]).arg(format!("-max_total_time={seconds}"));
    // Random bytes rarely become a model: the reader starts from real ones.
    let mut reader = run("onnx_reader");
    reader.arg(format!("-seed_inputs={SEEDS}"));
    Step::new("fuzz", vec![run("differential"), tiny, reader]).needs(&[NIGHTLY, TOOL])
}

/// Instructions, which are the same however busy the machine is, against the checked-in table.
pub(crate) fn instructions(bless: bool) -> Step {
    const TOOL: Tool =
        Tool { name: "valgrind", probe: "valgrind --version", install: "apt-get install valgrind" };
    let mut count = cargo("bench -p kvscatter-bench --bench instructions");
    if bless {
        count.args(["--", "--bless"]);
    }
    Step::new("instructions", vec![count]).needs(&[TOOL])
}

/// Checks the benchmarks, which are a separate workspace. Nothing is timed, because times of a shared machine mean
/// nothing.
pub(crate) fn bench_check() -> Step {
    let in_folder = |command| {
        let mut command = cargo(command);
        command.args(["--manifest-path", BENCH, "--target-dir"]).arg(target_dir().join("bench"));
        command
    };
    let mut clippy = in_folder("clippy --all-targets");
    clippy.args(["--", "-Dwarnings"]);
    Step::new("bench-check", vec![clippy, in_folder("test")])
}

/// Optimised, and with every engine. Results and plots go to the build folder, since they are this machine's.
pub(crate) fn bench(options: &[OsString]) -> Step {
    Step::new("bench", vec![run_bench(&[], options)])
}

/// Decoders instead of single writes.
pub(crate) fn bench_models(options: &[OsString]) -> Step {
    Step::new("bench-models", vec![run_bench(&["models"], options)])
}

/// The adapter for candle beside candle itself.
pub(crate) fn bench_candle(options: &[OsString]) -> Step {
    Step::new("bench-candle", vec![run_bench(&["candle"], options)])
}

fn run_bench(words: &[&str], options: &[OsString]) -> Command {
    let folder = target_dir().join("bench");
    let mut run = cargo("run --release --quiet --manifest-path");
    run.args([BENCH, "--target-dir"]).arg(&folder).arg("--").args(words);
    run.arg("--out").arg(&folder).args(options);
    run
}

pub(crate) fn codegen() -> Step {
    let mut run = cargo("run --quiet --manifest-path");
    run.args([CODEGEN, "--target-dir"]).arg(target_dir().join("codegen"));
    Step::new("codegen", vec![run])
}
