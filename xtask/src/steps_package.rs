//! Packages the crates, and builds them from the packages.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::cargo::{cargo, target_dir, with_results_in};
use crate::command::{With, program};
use crate::step::Step;

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
    commands.extend(PUBLISHED.map(|name| unpack(&format!("{name}-{VERSION}.crate"), &folder())));
    for (features, model) in [("", WRITE), ("full", DECODER)] {
        let root = target_dir().join("installed");
        commands.push(install(&root, features));
        commands.push(Command::new(root.join("bin/kvscatter")).with("run").with_all(model));
    }
    commands.extend(PUBLISHED.into_iter().filter(|name| *name != COMMAND).map(check));
    Step::new("package", commands)
}

fn pack() -> [Command; 2] {
    let packages = PUBLISHED.into_iter().flat_map(|name| ["-p", name]);
    let package = cargo("package --allow-dirty --no-verify").with_all(packages);
    [program("rm -rf").with(folder()), package]
}

/// Unpacks an archive into a folder. Its files are touched because cargo compares times, and all packed files have the
/// same time.
pub(crate) fn unpack(archive: &str, folder: &Path) -> Command {
    let unpack = program("tar --extract --touch --file").with(folder.join(archive));
    unpack.with("--directory").with(folder)
}

/// A model that the command runs without an engine.
const WRITE: &[&str] = &["testdata/onnx-node/test_tensorscatter_circular"];

/// A model that needs an engine.
const DECODER: &[&str] =
    &["testdata/mobius-llama-static/model.onnx", "--dim=batch=1", "--dim=sequence_len=1", "--in-place"];

/// Installs the command from its package.
fn install(root: &Path, features: &str) -> Command {
    let install = cargo("install --debug --force --locked --path").with(unpacked(COMMAND));
    from_packages(install.with("--root").with(root).with_all(["--features", features]))
}

fn check(name: &str) -> Command {
    from_packages(cargo("check --quiet --manifest-path").with(unpacked(name).join("Cargo.toml")))
}

/// Takes all crates of the project from their packages, because the registry may not have this version.
fn from_packages(command: Command) -> Command {
    let patch = |name| ["--config".to_owned(), format!("patch.crates-io.{name}.path={:?}", unpacked(name))];
    // Debug information takes a third of the time.
    let command = command.with_env("CARGO_PROFILE_DEV_DEBUG", "false");
    with_results_in(&folder().join("built"), command).with_all(PUBLISHED.into_iter().flat_map(patch))
}

fn unpacked(name: &str) -> PathBuf {
    folder().join(format!("{name}-{VERSION}"))
}

fn folder() -> PathBuf {
    target_dir().join("package")
}
