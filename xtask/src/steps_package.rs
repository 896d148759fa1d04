//! Packages the crates, and builds them from the packages.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::cargo::{cargo, target_dir, with_results_in};
use crate::step::{Step, program};

const VERSION: &str = env!("CARGO_PKG_VERSION");

const COMMAND: &str = "kvscatter-cli";

/// The published crates.
const PUBLISHED: [&str; 12] = [
    COMMAND,
    "kvscatter",
    "kvscatter-attention",
    "kvscatter-candle",
    "kvscatter-capi",
    "kvscatter-certify",
    "kvscatter-cuda",
    "kvscatter-onnx",
    "kvscatter-ort-engine",
    "kvscatter-oracle",
    "kvscatter-session",
    "kvscatter-tract",
];

/// Packages every published crate, which checks that each manifest is complete. Prints how many files each package has.
pub(crate) fn lists() -> Step {
    Step::new("package-lists", pack().into())
}

/// Also unpacks the packages. Then installs the command from its package, without features and with all of them, and
/// runs both. The crates on which it depends are built from their packages too. Checks each of the other crates alone,
/// because it could otherwise use features that another crate enables.
///
/// Cargo could build every package alone, but would then build most crates several times.
pub(crate) fn package() -> Step {
    let mut commands = Vec::from(pack());
    commands.extend(PUBLISHED.map(unpack));
    for (features, model) in [("", WRITE), ("full", DECODER)] {
        let root = target_dir().join("installed");
        commands.push(install(&root, features));
        let mut run = Command::new(root.join("bin/kvscatter"));
        run.arg("run").args(model);
        commands.push(run);
    }
    commands.extend(PUBLISHED.into_iter().filter(|name| *name != COMMAND).map(check));
    Step::new("package", commands)
}

fn pack() -> [Command; 2] {
    let mut remove = program("rm -rf");
    remove.arg(folder());
    let mut package = cargo("package --allow-dirty --no-verify");
    package.args(PUBLISHED.into_iter().flat_map(|name| ["-p", name]));
    [remove, package]
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

/// Takes all crates of the project from their packages, because the registry may not have this version.
fn from_packages(command: Command) -> Command {
    let mut command = with_results_in(&folder().join("built"), command);
    command.env(DEBUG.0, DEBUG.1);
    for name in PUBLISHED {
        command.arg("--config").arg(format!("patch.crates-io.{name}.path={:?}", unpacked(name)));
    }
    command
}

fn unpacked(name: &str) -> PathBuf {
    folder().join(format!("{name}-{VERSION}"))
}

fn folder() -> PathBuf {
    target_dir().join("package")
}
