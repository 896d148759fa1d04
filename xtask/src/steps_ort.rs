//! Tests the plugin in ONNX Runtime's Python wheels of several versions.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;

use crate::cargo::{cargo, cargo_shared, command, target_dir, with_results_in};
use crate::command::With;
use crate::python::{Environment, needs};
use crate::step::{Step, Tool};

/// The oldest and the newest version that the plugin supports.
const ENDS: [&str; 2] = ["1.24.4", "1.32.0"];

/// The minor versions between them. 1.25 is the first with a built-in `TensorScatter`.
const BETWEEN: [&str; 7] = ["1.25.1", "1.26.0", "1.27.0", "1.28.0", "1.29.0", "1.30.0", "1.31.1"];

/// The newest version that the plugin must reject.
const TOO_OLD: &str = "1.23.2";

const TESTS: &str = "crates/kvscatter-ort-plugin/python-tests";

/// The variable with the plugin's file.
const LIBRARY: &str = "KVSCATTER_ORT_LIBRARY";

/// The tests read the memory after a run from `/proc` and from glibc's statistics of its heap.
const GLIBC: Tool = Tool {
    name: "glibc 2.33 or newer",
    probe: "python3 -c __import__('ctypes').CDLL(None).mallinfo2",
    install: "run the tests on Linux with glibc",
};

/// Runs the Python tests in the oldest and the newest version, with a development build of the plugin. With
/// `every_version`, the build is optimised, runs in the versions between too, and is loaded in one that is too old.
pub(crate) fn ort(every_version: bool) -> Step {
    let tested = versions(every_version);
    let mut commands: Vec<_> = tested.iter().map(|version| environment(version).make()).collect();
    let (build, library) = if every_version { (build(), library()) } else { development_plugin() };
    commands.extend([build, command()]);
    commands.push(cargo_shared("build", "-p kvscatter-oracle --example export-attention-cases"));
    commands.push(cargo_shared("build", "-p kvscatter-onnx --example export-group-query-cases"));
    let mut environments = environments(every_version);
    if every_version {
        commands.extend(too_old());
        environments.push(environment(TOO_OLD));
    }
    commands.extend(tested.into_iter().map(|version| tests(version).with_env(LIBRARY, &library)));
    Step::new("ort", commands).needs(needs(&environments)).needs(&[GLIBC])
}

fn too_old() -> [Command; 2] {
    [environment(TOO_OLD).make(), python(TOO_OLD).with(format!("{TESTS}/too_old.py"))]
}

/// Returns the tests in one version, with the programs of a development build that write the cases.
fn tests(version: &str) -> Command {
    let folder = target_dir();
    python(version)
        .with_all(["-m", "pytest", "--quiet", TESTS])
        .with_env("KVSCATTER_COMMAND", folder.join("debug/kvscatter"))
        .with_env("KVSCATTER_ATTENTION_CASES", folder.join("debug/examples/export-attention-cases"))
        .with_env("KVSCATTER_GROUP_QUERY_CASES", folder.join("debug/examples/export-group-query-cases"))
}

/// Times calls of the plugin and of the newest ONNX Runtime's built-in kernel.
pub(crate) fn ort_bench(options: &[OsString]) -> Step {
    let [_, newest] = ENDS;
    let bench = python(newest).with(format!("{TESTS}/bench.py")).with_all(options);
    let environment = environment(newest);
    let commands = vec![environment.make(), build(), bench];
    Step::new("ort-bench", commands).needs(needs(&[environment])).needs(&[GLIBC])
}

/// Builds the plugin, and the programs that write cases. Also returns the interpreter with the newest ONNX Runtime, the
/// plugin and the programs.
pub(crate) fn plugin(name: &'static str) -> (Step, [OsString; 5]) {
    let [_, newest] = ENDS;
    let environment = environment(newest);
    let commands = vec![
        environment.make(),
        build(),
        cargo("build --release -p kvscatter-cli"),
        cargo("build --release -p kvscatter-oracle --example export-attention-cases"),
        cargo("build --release -p kvscatter-onnx --example export-group-query-cases"),
    ];
    let python = environment.path().join("bin/python");
    let built = target_dir().join("release");
    let files = [
        python,
        library(),
        built.join("kvscatter"),
        built.join("examples/export-attention-cases"),
        built.join("examples/export-group-query-cases"),
    ];
    let step = Step::new(name, commands).skipped_without(needs(&[environment])).skipped_without(&[GLIBC]);
    (step, files.map(PathBuf::into_os_string))
}

/// Returns the command that builds the plugin for tests, and its file. The file is in a separate folder, because a step
/// that runs at the same time can replace the one in the usual folder.
pub(crate) fn development_plugin() -> (Command, PathBuf) {
    let folder = target_dir().join("plugin");
    let build = with_results_in(&folder, cargo_shared("build", "-p kvscatter-ort-plugin"));
    (build, folder.join("debug/libkvscatter_ort_plugin.so"))
}

/// Builds the plugin with optimisation.
pub(crate) fn build() -> Command {
    cargo("build --release -p kvscatter-ort-plugin")
}

/// Returns the path of the plugin.
pub(crate) fn library() -> PathBuf {
    target_dir().join("release/libkvscatter_ort_plugin.so")
}

/// Returns the environments of the oldest and the newest version that the plugin supports, or also of those between.
pub(crate) fn environments(every_version: bool) -> Vec<Environment> {
    versions(every_version).into_iter().map(environment).collect()
}

fn versions(every_version: bool) -> Vec<&'static str> {
    let between = if every_version { &BETWEEN[..] } else { &[] };
    [&ENDS[..1], between, &ENDS[1..]].concat()
}

fn environment(version: &str) -> Environment {
    const LOCK: &str = "crates/kvscatter-ort-plugin/python-tests/requirements.txt";
    Environment::new(format!("onnxruntime/{version}"), LOCK).with(format!("onnxruntime=={version}"))
}

fn python(version: &str) -> Command {
    // The runtime's telemetry allocates, and has a thread that sends.
    environment(version).python().with_env(LIBRARY, library()).with_env("ORT_DISABLE_TELEMETRY", "1")
}
