//! Packages the crates, and builds them from the packages.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::cargo::{cargo, target_dir};
use crate::step::{Step, program};

const VERSION: &str = env!("CARGO_PKG_VERSION");

const COMMAND: &str = "kvscatter-cli";

/// The published crates that the command without features contains.
const WITHIN: [&str; 8] = [
    COMMAND,
    "kvscatter",
    "kvscatter-attention",
    "kvscatter-bench",
    "kvscatter-onnx",
    "kvscatter-oracle",
    "kvscatter-session",
    "kvscatter-text",
];

/// The other published crates.
const OTHERS: [&str; 6] = [
    "kvscatter-candle",
    "kvscatter-capi",
    "kvscatter-certify",
    "kvscatter-cuda",
    "kvscatter-onnxruntime",
    "kvscatter-tract",
];

/// Packages every published crate, and unpacks the packages. Then installs the command from its package, without
/// features and with all of them, and runs both. The crates on which it depends are built from their packages too.
/// Checks each of the [`OTHERS`] alone, because it could otherwise use features that another crate enables.
///
/// Cargo could build every package alone, but would then build most crates several times.
pub(crate) fn package() -> Step {
    let mut remove = program("rm -rf");
    remove.arg(folder());
    let mut package = cargo("package --allow-dirty --no-verify");
    package.args(published().flat_map(|name| ["-p", name]));
    let mut commands = vec![remove, package];
    commands.extend(published().map(unpack));
    for (features, model) in [("", WRITE), ("full", DECODER)] {
        let root = target_dir().join("installed");
        commands.push(install(&root, features));
        let mut run = Command::new(root.join("bin/kvscatter"));
        run.arg("run").args(model);
        commands.push(run);
    }
    commands.extend(OTHERS.map(check));
    Step::new("package", commands)
}

/// Unpacks a package. Its files are touched because cargo compares times, and all packed files have the same time.
fn unpack(name: &str) -> Command {
    let mut unpack = program("tar --extract --touch --file");
    unpack.arg(folder().join(format!("{name}-{VERSION}.crate"))).arg("--directory").arg(folder());
    unpack
}

/// Leaves debug information out, which takes a third of the time.
const DEBUG: (&str, &str) = ("CARGO_PROFILE_DEV_DEBUG", "false");

/// A model that the command runs without an engine.
const WRITE: &[&str] = &["testdata/onnx-node/test_tensorscatter_circular"];

/// A model that needs an engine.
const DECODER: &[&str] =
    &["testdata/mobius-llama-static/model.onnx", "--dim=batch=1", "--dim=sequence_len=1", "--in-place"];

/// Installs the command from its package.
fn install(root: &Path, features: &str) -> Command {
    let mut install = cargo("install --debug --force --locked --path");
    install.arg(unpacked(COMMAND)).arg("--root").arg(root).args(["--features", features]);
    from_packages(install)
}

fn check(name: &str) -> Command {
    let mut check = cargo("check --quiet --manifest-path");
    check.arg(unpacked(name).join("Cargo.toml"));
    from_packages(check)
}

/// Takes all crates of the project from their packages, because the registry may not have this version. Other
/// dependencies are already in the usual build folder. Programs get a separate folder, because other steps can run the
/// usual command at the same time.
fn from_packages(mut command: Command) -> Command {
    command.arg("--target-dir").arg(folder().join("built")).env(DEBUG.0, DEBUG.1);
    command.arg("--config").arg(format!("build.build-dir={:?}", target_dir()));
    for name in published() {
        command.arg("--config").arg(format!("patch.crates-io.{name}.path={:?}", unpacked(name)));
    }
    command
}

fn published() -> impl Iterator<Item = &'static str> {
    WITHIN.into_iter().chain(OTHERS)
}

fn unpacked(name: &str) -> PathBuf {
    folder().join(format!("{name}-{VERSION}"))
}

fn folder() -> PathBuf {
    target_dir().join("package")
}
