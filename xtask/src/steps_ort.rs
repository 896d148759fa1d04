//! The plugin inside the ONNX Runtime that people install: Python wheels of several versions.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;

use crate::step::{Step, Tool};
use crate::steps::{cargo, target_dir};

/// The first that plugins of this kind work with, the first that has a `TensorScatter` of its own, and the newest.
const VERSIONS: [&str; 3] = ["1.24.4", "1.25.1", "1.31.1"];

/// The last that has to be told so.
const TOO_OLD: &str = "1.23.2";

const TESTS: &str = "crates/kvscatter-ort/python-tests";

/// Those that every pinned wheel is made for; the oldest runtime's end at 3.13. (A probe is split at spaces.)
const PYTHON: Tool = Tool {
    name: "Python 3.11 to 3.13 with venv",
    probe: "python3 -c __import__('ensurepip');assert((3,11)<=__import__('sys').version_info<(3,14))",
    install: "apt-get install python3-venv",
};

/// What a run leaves behind is read from `/proc` and from glibc's account of its heap.
const GLIBC: Tool = Tool {
    name: "glibc 2.33 or newer",
    probe: "python3 -c __import__('ctypes').CDLL(None).mallinfo2",
    install: "the suite runs on Linux",
};

/// Asked for only as long as there is something to install.
const WHEELS: Tool = Tool {
    name: "a package index for pip",
    probe: "python3 -m pip --disable-pip-version-check index versions onnxruntime",
    install: "apt-get install python3-pip, and a network",
};

/// The Python suite, in one virtual environment for each version.
pub(crate) fn ort() -> Step {
    let mut commands = prepare();
    commands.push(cargo("build -p kvscatter-cli"));
    let mut too_old = python(TOO_OLD);
    too_old.arg(format!("{TESTS}/too_old.py"));
    commands.push(too_old);
    let command = target_dir().join("debug/kvscatter");
    commands.extend(VERSIONS.map(|version| {
        let mut tests = python(version);
        tests.args(["-m", "pytest", "--quiet", TESTS]).env("KVSCATTER_COMMAND", &command);
        tests
    }));
    Step::new("ort", commands).needs(needs())
}

/// Time per call against the kernel that the newest ONNX Runtime has itself.
pub(crate) fn ort_bench(options: &[OsString]) -> Step {
    let mut commands = prepare();
    commands.extend(VERSIONS.last().map(|newest| {
        let mut bench = python(newest);
        bench.arg(format!("{TESTS}/bench.py")).args(options);
        bench
    }));
    Step::new("ort-bench", commands).needs(needs())
}

/// Makes the environments, or finds them made, and builds the plugin as users do.
fn prepare() -> Vec<Command> {
    let mut environments = Command::new("python3");
    environments.arg(format!("{TESTS}/environments.py")).arg(folder()).args(versions());
    vec![environments, cargo("build --release -p kvscatter-ort")]
}

fn needs() -> &'static [Tool] {
    let are_made = versions().all(|version| folder().join(version).join("requirements.txt").exists());
    if are_made { &[PYTHON, GLIBC] } else { &[PYTHON, GLIBC, WHEELS] }
}

fn versions() -> impl Iterator<Item = &'static str> {
    VERSIONS.into_iter().chain([TOO_OLD])
}

fn folder() -> PathBuf {
    target_dir().join("onnxruntime")
}

fn python(version: &str) -> Command {
    let library = target_dir().join("release/libkvscatter_ort.so");
    let mut python = Command::new(folder().join(version).join("bin/python"));
    python.env("KVSCATTER_ORT_LIBRARY", library).env("PYTHONDONTWRITEBYTECODE", "1");
    python
}
