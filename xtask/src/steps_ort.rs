//! Tests the plugin in ONNX Runtime's Python wheels of several versions.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;

use crate::cargo::{cargo, command, target_dir};
use crate::python::{Environment, INDEX, PYTHON};
use crate::step::{Step, Tool};

/// The first version that supports such plugins, the first with a built-in `TensorScatter`, the last before
/// operator set 25, and the newest.
const VERSIONS: [&str; 4] = ["1.24.4", "1.25.1", "1.31.1", "1.32.0"];

/// The other minor versions, which `cargo xtask ort --every-version` also tests.
const OTHER_VERSIONS: [&str; 5] = ["1.26.0", "1.27.0", "1.28.0", "1.29.0", "1.30.0"];

/// The newest version that the plugin must reject.
const TOO_OLD: &str = "1.23.2";

const TESTS: &str = "crates/kvscatter-ort/python-tests";

/// The tests read the memory after a run from `/proc` and from glibc's statistics of its heap.
const GLIBC: Tool = Tool {
    name: "glibc 2.33 or newer",
    probe: "python3 -c __import__('ctypes').CDLL(None).mallinfo2",
    install: "run the tests on Linux with glibc",
};

/// Runs the Python tests, in one virtual environment for each version.
pub(crate) fn ort(every_version: bool) -> Step {
    let others = if every_version { &OTHER_VERSIONS[..] } else { &[] };
    let tested: Vec<_> = VERSIONS.iter().chain(others).copied().collect();
    let mut commands: Vec<_> = others.iter().map(|version| environment(version).make()).collect();
    commands.extend(prepare());
    commands.push(command());
    commands.push(cargo("build -p kvscatter-oracle --example export-attention-cases"));
    commands.push(too_old());
    commands.extend(tested.into_iter().map(|version| tests(version)));
    Step::new("ort", commands).needs(needs())
}

fn too_old() -> Command {
    let mut too_old = python(TOO_OLD);
    too_old.arg(format!("{TESTS}/too_old.py"));
    too_old
}

/// Returns the tests in one version, with the programs of a development build that write the oracle's cases.
fn tests(version: &str) -> Command {
    let folder = target_dir();
    let mut tests = python(version);
    tests.args(["-m", "pytest", "--quiet", TESTS]);
    tests.env("KVSCATTER_COMMAND", folder.join("debug/kvscatter"));
    tests.env("KVSCATTER_ATTENTION_CASES", folder.join("debug/examples/export-attention-cases"));
    tests
}

/// Times calls of the plugin and of the newest ONNX Runtime's built-in kernel.
pub(crate) fn ort_bench(options: &[OsString]) -> Step {
    let mut commands = prepare();
    commands.extend(VERSIONS.last().map(|newest| {
        let mut bench = python(newest);
        bench.arg(format!("{TESTS}/bench.py")).args(options);
        bench
    }));
    Step::new("ort-bench", commands).needs(needs())
}

/// Builds the plugin, and the programs that write the oracle's cases. Also returns the interpreter with the newest ONNX
/// Runtime, the plugin and both programs.
pub(crate) fn plugin(name: &'static str) -> (Step, [OsString; 4]) {
    let mut commands = prepare();
    commands.push(cargo("build --release -p kvscatter-cli"));
    commands.push(cargo("build --release -p kvscatter-oracle --example export-attention-cases"));
    let newest = environment(VERSIONS[VERSIONS.len() - 1]).path().join("bin/python");
    let built = target_dir().join("release");
    let files = [newest, library(), built.join("kvscatter"), built.join("examples/export-attention-cases")];
    (Step::new(name, commands).skipped_without(needs()), files.map(PathBuf::into_os_string))
}

/// Creates the environments that do not exist yet, and builds the plugin with optimisation.
fn prepare() -> Vec<Command> {
    let environments = versions().map(|version| environment(version).make());
    environments.chain([build()]).collect()
}

/// Builds the plugin with optimisation.
pub(crate) fn build() -> Command {
    cargo("build --release -p kvscatter-ort")
}

/// Returns the path of the plugin.
pub(crate) fn library() -> PathBuf {
    target_dir().join("release/libkvscatter_ort.so")
}

fn needs() -> &'static [Tool] {
    let are_made = versions().all(|version| environment(version).is_made());
    if are_made { &[PYTHON, GLIBC] } else { &[PYTHON, GLIBC, INDEX] }
}

/// Returns the environments of the oldest and the newest version that the plugin supports, or also of those between.
pub(crate) fn environments(every_version: bool) -> Vec<Environment> {
    let [oldest, between @ .., newest] = VERSIONS;
    let between = between.into_iter().filter(|_| every_version);
    [oldest].into_iter().chain(between).chain([newest]).map(environment).collect()
}

fn versions() -> impl Iterator<Item = &'static str> {
    VERSIONS.into_iter().chain([TOO_OLD])
}

fn environment(version: &str) -> Environment {
    const LOCK: &str = "crates/kvscatter-ort/python-tests/requirements.txt";
    Environment::new(format!("onnxruntime/{version}"), LOCK).with(format!("onnxruntime=={version}"))
}

fn python(version: &str) -> Command {
    let mut python = environment(version).python();
    // The runtime's telemetry allocates, and has a thread that sends.
    python.env("KVSCATTER_ORT_LIBRARY", library()).env("ORT_DISABLE_TELEMETRY", "1");
    python
}
