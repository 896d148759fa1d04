//! Packages the crates, and builds them from the packages.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::cargo::{cargo, target_dir};
use crate::step::Step;

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The crates that are published, each after those that it depends on.
const PUBLISHED: [&str; 14] = [
    "kvscatter-text",
    "kvscatter-oracle",
    "kvscatter",
    "kvscatter-attention",
    "kvscatter-bench",
    "kvscatter-onnx",
    "kvscatter-session",
    "kvscatter-tract",
    "kvscatter-onnxruntime",
    "kvscatter-certify",
    "kvscatter-cuda",
    "kvscatter-candle",
    "kvscatter-capi",
    "kvscatter-cli",
];

/// Packages every published crate and builds it from its package. Then installs the command from its package,
/// without features and with all of them, and runs both.
pub(crate) fn package() -> Step {
    let mut package = cargo("package --allow-dirty");
    package.env(DEBUG.0, DEBUG.1);
    package.args(PUBLISHED.iter().flat_map(|name| ["-p", name]));
    let mut commands = vec![forget_packages(), package];
    for (features, model) in [("", WRITE), ("full", DECODER)] {
        let root = target_dir().join("installed");
        commands.push(install(&root, features));
        let mut run = Command::new(root.join("bin/kvscatter"));
        run.arg("run").args(model);
        commands.push(run);
    }
    Step::new("package", commands)
}

/// Removes the sources that an earlier run unpacked. Cargo unpacks a package of a local registry once for each
/// version, and would build the old sources.
fn forget_packages() -> Command {
    let home = env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".cargo"))).unwrap_or_default();
    let mut find = Command::new("find");
    // The folders of local registries have names without a host, which begin with a hyphen.
    find.arg(home.join("registry/src")).args("-mindepth 2 -maxdepth 2 -path */src/-*/kvscatter*".split(' '));
    find.args("-prune -exec rm -r {} +".split(' '));
    find
}

/// Leaves debug information out, which takes a third of the time.
const DEBUG: (&str, &str) = ("CARGO_PROFILE_DEV_DEBUG", "false");

/// A model that the command runs without an engine.
const WRITE: &[&str] = &["testdata/onnx-node/test_tensorscatter_circular"];

/// A model that needs an engine.
const DECODER: &[&str] =
    &["testdata/mobius-llama-static/model.onnx", "--dim=batch=1", "--dim=sequence_len=1", "--in-place"];

/// Installs the command from its package. The other crates also come from their packages, because the
/// registry may not have this version.
fn install(root: &Path, features: &str) -> Command {
    let folder = |name: &str| target_dir().join("package").join(format!("{name}-{VERSION}"));
    let mut install = cargo("install --debug --force --locked --path");
    install.arg(folder("kvscatter-cli")).arg("--root").arg(root).args(["--features", features]);
    // In the folder where the crates were built from their packages, the other dependencies are built already.
    install.arg("--target-dir").arg(target_dir()).env(DEBUG.0, DEBUG.1);
    for name in PUBLISHED.iter().filter(|name| **name != "kvscatter-cli") {
        install.arg("--config").arg(format!("patch.crates-io.{name}.path={:?}", folder(name)));
    }
    install
}
