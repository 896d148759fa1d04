//! The crates as their users get them: packaged, and built from the package.

use std::path::Path;
use std::process::Command;

use crate::cargo::{cargo, target_dir};
use crate::step::Step;

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The crates that are published, each after those that it depends on.
const PUBLISHED: [&str; 13] = [
    "kvscatter-text",
    "kvscatter-oracle",
    "kvscatter",
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

/// Packages every published crate and builds it from its package. Then it installs the command from its package, without
/// features and with all of them, and runs both.
pub(crate) fn package() -> Step {
    let mut package = cargo("package --allow-dirty");
    package.args(PUBLISHED.iter().flat_map(|name| ["-p", name]));
    let mut commands = vec![package];
    for (features, model) in [("", WRITE), ("full", DECODER)] {
        let root = target_dir().join("installed");
        commands.push(install(&root, features));
        let mut run = Command::new(root.join("bin/kvscatter"));
        run.arg("run").args(model);
        commands.push(run);
    }
    Step::new("package", commands)
}

/// A model that the command runs without an engine.
const WRITE: &[&str] = &["testdata/onnx-node/test_tensorscatter_circular"];

/// A model that needs one.
const DECODER: &[&str] =
    &["testdata/mobius-llama-static/model.onnx", "--dim=batch=1", "--dim=sequence_len=1", "--in-place"];

/// Installs the command from its package. The other crates come from their packages too, because the registry may not have
/// this version.
fn install(root: &Path, features: &str) -> Command {
    let folder = |name: &str| target_dir().join("package").join(format!("{name}-{VERSION}"));
    let mut install = cargo("install --debug --force --locked --path");
    install.arg(folder("kvscatter-cli")).arg("--root").arg(root).args(["--features", features]);
    install.arg("--target-dir").arg(target_dir().join("install"));
    for name in PUBLISHED.iter().filter(|name| **name != "kvscatter-cli") {
        install.arg("--config").arg(format!("patch.crates-io.{name}.path={:?}", folder(name)));
    }
    install
}
