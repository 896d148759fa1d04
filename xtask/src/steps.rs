//! The commands of each step.

use std::ffi::OsString;
use std::process::Command;
use std::time::Duration;

use crate::cargo::{COMMAND, CORE, FILES, HEAVY, SELDOM, cargo, cargo_shared, target_dir};
use crate::command::{With, prefixed, program};
use crate::step::{self, Missing, NIGHTLY, Step, Tool};
use crate::{
    steps_c, steps_candle, steps_cuda, steps_cuda_images, steps_gpu, steps_models, steps_ort, steps_package,
    steps_python,
};

/// A separate workspace, so that the versions of the libraries that it compares do not decide those of the project.
pub(crate) const DIVERGENCES: &str = "xtask/divergences/rust/Cargo.toml";

/// The time of processors that the steps of `cargo xtask test --all` may use together. Load changes it little, a slower
/// processor more: the slowest of two takes 48 minutes, almost twice as long as the other.
const BUDGET: Duration = Duration::from_mins(60);

/// Returns the steps of `cargo xtask test`, as lists that run at once: one list tests while another builds. These steps
/// need Rust, gcc and g++.
pub(crate) fn light() -> Vec<Vec<Step>> {
    let [core, files, command] = unit();
    vec![vec![fmt(), core, steps_c::c()], vec![files], vec![command]]
}

/// Returns the steps that `cargo xtask test --all` runs after the [`light()`] ones, as lists that can run at once.
/// Steps that write the same files are in the same list. Cargo's lock keeps two builds apart.
pub(crate) fn rest() -> Vec<Vec<Step>> {
    let rust = [deny(), lint(), features(), no_std(), docs(), unit_all(), steps_package::lists()];
    let runtime = [steps_ort::ort(false), steps_models::models(), steps_models::conformance(true)];
    let rust = rust.into_iter().chain(steps_c::thorough());
    vec![rust.collect(), steps_python::all(false).into_iter().chain(runtime).collect()]
}

/// Runs the steps of [`rest()`], and checks the time that they and the [`light()`] ones have used. Returns `true` if
/// none failed.
pub(crate) fn run_rest() -> bool {
    let passed = step::run_at_once(rest(), Missing::IsSkipped);
    let all: Vec<_> = light().into_iter().chain(rest()).flatten().collect();
    step::is_within(BUDGET, &all) && passed
}

/// Returns the steps that are too long for every change, as lists that can run at once. They test what changes seldom:
/// candle, XLA, CUDA and PyTorch, the benchmarks, packages as users build them, all versions of ONNX Runtime, and how
/// work grows with long models.
pub(crate) fn nightly() -> Vec<Vec<Step>> {
    let rust = [
        lint_nightly(),
        unit_nightly(),
        linear(),
        steps_cuda::cuda(),
        steps_cuda_images::check(),
        steps_candle::candle_cuda(),
        instructions(false),
        steps_c::c_valgrind(),
        steps_package::package(),
    ];
    let python = steps_python::nightly().into_iter().chain([steps_ort::ort(true), steps_gpu::check()]);
    vec![rust.into_iter().collect(), python.collect()]
}

pub(crate) fn fmt() -> Step {
    let members = cargo("fmt --all --check");
    let others =
        ["fuzz/Cargo.toml", DIVERGENCES].map(|manifest| cargo("fmt --check --manifest-path").with(manifest));
    Step::new("fmt", [members].into_iter().chain(others).collect())
}

/// Checks licences, bans and sources. Advisories are not checked, because they need a separate download and
/// change without a change to this repository.
pub(crate) fn deny() -> Step {
    const TOOL: Tool = Tool {
        name: "cargo-deny",
        probe: "cargo deny --version",
        install: "cargo install cargo-deny --locked",
    };
    let check = cargo("deny --workspace check --hide-inclusion-graph licenses bans sources");
    Step::new("deny", vec![check]).needs(&[TOOL])
}

/// Runs clippy over the crates of [`unit()`] and the [`HEAVY`] ones, and over the tests of the command without
/// features.
pub(crate) fn lint() -> Step {
    let all = clippy(&format!("{CORE} {FILES} {COMMAND} {HEAVY}"));
    Step::new("lint", vec![all, clippy("-p kvscatter-cli")])
}

/// Runs clippy over the [`SELDOM`] crates. The step `candle-cuda` checks candle's feature `cuda`.
pub(crate) fn lint_nightly() -> Step {
    Step::new("lint-nightly", vec![clippy(SELDOM)])
}

fn clippy(packages: &str) -> Command {
    cargo_shared("clippy", &format!("{packages} --all-targets -- -Dwarnings"))
}

/// Counts the words that should disappear from pages, comments and messages.
pub(crate) fn words() -> Step {
    Step::new("words", vec![cargo("test --quiet -p xtask --test words")])
}

/// Checks the core with the features that [`lint()`] and [`unit()`] do not cover.
pub(crate) fn features() -> Step {
    let clippy = |features| {
        cargo("clippy -p kvscatter --lib --no-default-features").with_all([
            "--features",
            features,
            "--",
            "-Dwarnings",
        ])
    };
    let test = cargo("test -p kvscatter --lib --no-default-features");
    let commands = vec![clippy(""), clippy("std"), clippy("picture"), clippy("std,picture"), test];
    Step::new("features", commands)
}

/// Links the core into a static library with another panic handler and allocator. The compiler rejects this
/// library (duplicate lang item) as soon as anything in it links the standard library.
pub(crate) fn no_std() -> Step {
    let folder = target_dir().join("no-std");
    let build = cargo("build -p kvscatter --lib --no-default-features --features=picture --target-dir");
    let build = build.with(&folder);
    let built = folder.join("debug");
    let link = program("rustc --edition=2024 --crate-type=staticlib -Cpanic=abort xtask/probes/no_std.rs")
        .with("--extern")
        .with(prefixed("kvscatter=", &built.join("libkvscatter.rlib")))
        .with(prefixed("-Ldependency=", &built.join("deps")))
        .with("-o")
        .with(folder.join("libno_std.a"));
    Step::new("no-std", vec![build, link])
}

/// Builds the documentation with the features of [`lint()`], whose checks of dependencies it reuses.
pub(crate) fn docs() -> Step {
    let doc = cargo_shared("doc --lib --no-deps", &format!("{CORE} {FILES} {COMMAND} {HEAVY}"));
    Step::new("docs", vec![doc.with_env("RUSTDOCFLAGS", "-Dwarnings")])
}

/// Tests the crates of [`light()`], with the command built without optional features.
pub(crate) fn unit() -> [Step; 3] {
    [("unit-core", CORE), ("unit-onnx", FILES), ("unit-command", COMMAND)]
        .map(|(name, packages)| Step::new(name, vec![cargo_shared("test", packages)]))
}

/// Tests the [`HEAVY`] crates, and the command with every feature.
pub(crate) fn unit_all() -> Step {
    Step::new("unit-all", vec![cargo_shared("test", HEAVY)])
}

/// Tests the [`SELDOM`] crates.
pub(crate) fn unit_nightly() -> Step {
    Step::new("unit-nightly", vec![cargo_shared("test", SELDOM)])
}

/// Counts the work on models that are long in one part, and compares several lengths.
///
/// The compiler adds the counters to the crates of this workspace. The profile that its runtime writes at the end is
/// not used.
pub(crate) fn linear() -> Step {
    let test = cargo_shared("test", "-p kvscatter-onnx --test linear")
        .with_env("RUSTC_WORKSPACE_WRAPPER", concat!(env!("CARGO_MANIFEST_DIR"), "/instrumented-rustc"))
        .with_env("LLVM_PROFILE_FILE", target_dir().join("linear.profraw"));
    Step::new("linear", vec![test])
}

/// Runs the tests of the core and of attention with the address sanitizer.
///
/// The build is optimised because of the exhaustive tests, and keeps the checks of a debug build. The target is
/// named so that the flags apply to the tests and not to the build scripts.
pub(crate) fn asan() -> Step {
    const FLAGS: &str = "-Zsanitizer=address -Cdebug-assertions -Coverflow-checks";
    let tests = ["-p kvscatter --features=picture", "-p kvscatter-attention"].map(|package| {
        let test = "+nightly test --release --lib --tests --target=x86_64-unknown-linux-gnu";
        cargo(&format!("{test} {package}")).with_env("RUSTFLAGS", FLAGS)
    });
    Step::new("asan", tests.into()).needs(&[NIGHTLY])
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
        let options = format!("-print_final_stats=1 -max_total_time={seconds}");
        cargo(&format!("+nightly fuzz run {target} -- {options}"))
    };
    // Random bytes rarely form a model, so the reader starts from real models.
    let reader = run("onnx_reader").with(format!("-seed_inputs={SEEDS}"));
    Step::new("fuzz", vec![run("differential"), run("attention"), reader]).needs(&[NIGHTLY, TOOL])
}

/// Reads hostile models. Their seeds begin after those of the last run, unless the caller gives the first.
pub(crate) fn hostile(count: u64, from: Option<u64>) -> Step {
    let test = cargo("test --release -p kvscatter-onnx --test hostile -- --nocapture");
    let test = test.with_env("KVSCATTER_HOSTILE", count.to_string());
    let test = match from {
        Some(seed) => test.with_env("KVSCATTER_HOSTILE_FROM", seed.to_string()),
        None => test.with_env("KVSCATTER_HOSTILE_STATE", target_dir().join("hostile.seed")),
    };
    Step::new("hostile", vec![test])
}

/// Counts instructions and compares them with the checked-in table. The count does not depend on how busy the
/// machine is.
pub(crate) fn instructions(bless: bool) -> Step {
    const TOOL: Tool =
        Tool { name: "valgrind", probe: "valgrind --version", install: "apt-get install valgrind" };
    let options = if bless { &["--", "--bless"][..] } else { &[] };
    let count = cargo("bench -p kvscatter --bench instructions").with_all(options);
    Step::new("instructions", vec![count]).needs(&[TOOL])
}

/// Runs a benchmark, optimised and with every engine. Those of models use the plugin for ONNX Runtime. Results go to
/// the build folder because they describe this machine only.
pub(crate) fn bench(options: &[OsString]) -> Step {
    let run = cargo("run --release --quiet -p kvscatter-bench --").with_all(options);
    let run = run.with("--out").with(target_dir().join("bench"));
    match options.first().and_then(|name| name.to_str()) {
        Some("models" | "rings" | "sessions") => {
            let run = run.with_env("KVSCATTER_ORT_PLUGIN", steps_ort::library());
            Step::new("bench", vec![steps_ort::build(), run])
        }
        _ => Step::new("bench", vec![run]),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::path::Path;

    use super::*;
    use crate::cargo::root;

    /// The features of each package that a command builds, as lines of `cargo tree`: for this machine's target, and for
    /// procedural macros and build scripts.
    type Lines = [BTreeSet<String>; 2];

    /// Packages of the project that the steps build with different features on purpose.
    const DIFFERENT: [&str; 1] = ["kvscatter-cli"];

    /// Cargo builds a package once for each set of its features, and with it every package that depends on it. If this
    /// fails, add the missing features to `xtask/features/Cargo.toml`.
    #[test]
    fn steps_build_their_dependencies_with_the_same_features() {
        let mut commands = BTreeMap::from([(("-p xtask".to_owned(), "normal,build"), "xtask")]);
        let steps: Vec<_> = light().into_iter().chain(rest()).flatten().collect();
        // The step `features` builds the core with other features, because it tests those.
        for (name, parts) in steps.iter().map(Step::parts).filter(|(name, _)| *name != "features") {
            commands.extend(parts.iter().filter_map(built).map(|command| (command, name)));
        }
        let seen: BTreeSet<_> = commands.values().copied().collect();
        assert!(["c-cmake", "lint", "python-wheel"].iter().all(|name| seen.contains(name)), "{seen:?}");

        let mut packages = BTreeMap::<_, BTreeMap<_, _>>::new();
        for ((selected, edges), step) in commands {
            for (kind, lines) in ["target", "host"].into_iter().zip(features(&selected, edges)) {
                for line in lines {
                    let (package, features) = line.rsplit_once('|').unwrap();
                    let package = (kind, package.split(" (").next().unwrap().to_owned());
                    packages.entry(package).or_default().entry(features.to_owned()).or_insert(step);
                }
            }
        }
        packages.retain(|(_, package), features| {
            features.len() > 1 && !DIFFERENT.iter().any(|name| package.starts_with(&format!("{name} ")))
        });
        assert!(
            packages.is_empty(),
            "each is built more than once, with the features of these steps: {packages:#?}"
        );
    }

    /// Returns the options of a command that choose packages and features, and the kinds of dependencies that it
    /// builds. Returns `None` unless it builds for development, in the usual folder.
    fn built(command: &Command) -> Option<(String, &'static str)> {
        let words: Vec<_> = command.get_args().map(|word| word.to_string_lossy().into_owned()).collect();
        let has = |option: &str| words.iter().any(|word| word.starts_with(option));
        if has("--release") || has("release") || has("+nightly") {
            return None;
        }
        if Path::new(command.get_program()).ends_with("maturin") {
            let features = words.iter().find(|word| *word == "shared-build")?;
            return Some((format!("-p kvscatter-python --features {features}"), "normal,build"));
        }
        let is_elsewhere = has("--manifest-path") || has("--target-dir") && !has("build.build-dir");
        if command.get_program() != "cargo" || is_elsewhere {
            return None;
        }
        let edges = match words.first()?.as_str() {
            "test" => "normal,build,dev",
            "clippy" | "build" | "run" if has("--all-targets") || has("--example") => "normal,build,dev",
            "clippy" | "build" | "run" | "rustc" | "doc" => "normal,build",
            _ => return None,
        };
        let pairs = words.windows(2).filter(|pair| ["-p", "--features"].contains(&pair[0].as_str()));
        Some((pairs.map(|pair| pair.join(" ")).collect::<Vec<_>>().join(" "), edges))
    }

    fn features(selected: &str, edges: &str) -> Lines {
        let tree = |edges: String| -> BTreeSet<String> {
            let tree = cargo("tree --locked --offline --prefix none --format {p}|{f} --edges").with(edges);
            let output = tree.with_all(selected.split(' ')).current_dir(root()).output().unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            let lines = String::from_utf8(output.stdout).unwrap();
            lines.lines().filter(|line| line.contains('|')).map(|line| line.replace(" (*)", "")).collect()
        };
        let all = tree(edges.to_owned());
        let target = tree(format!("{},no-proc-macro", edges.replace(",build", "")));
        let host = all.difference(&target).cloned().collect();
        [target, host]
    }
}
