//! Cargo commands, and the folders that they run in.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::command::With;

/// The repository's root, where every command runs.
pub(crate) fn root() -> &'static Path {
    let xtask = Path::new(env!("CARGO_MANIFEST_DIR"));
    xtask.parent().unwrap_or(xtask)
}

/// The crates that `cargo xtask test` tests, in lists that are tested at once. They need neither an inference engine
/// nor Python.
pub(crate) const CORE: &str = "-p kvscatter -p kvscatter-oracle -p kvscatter-capi -p xtask";
pub(crate) const FILES: &str = "-p kvscatter-onnx";
pub(crate) const COMMAND: &str = "-p kvscatter-session -p kvscatter-cli";

/// The crates that `cargo xtask test --rest` also tests, and the command with every feature.
pub(crate) const HEAVY: &str = "-p kvscatter-attention -p kvscatter-tract -p kvscatter-ort-engine -p kvscatter-certify \
                                -p kvscatter-ort-plugin \
                                -p kvscatter-python --features kvscatter-python/shared-build \
                                -p kvscatter-cli --features kvscatter-cli/full";

/// The crates that only `cargo xtask nightly` tests.
pub(crate) const SELDOM: &str = "-p kvscatter-candle -p kvscatter-cuda -p kvscatter-xla -p kvscatter-bench";

/// Builds the command with every feature, as the step `unit-all` does.
pub(crate) fn command() -> Command {
    cargo_shared("build", "-p kvscatter-cli --features kvscatter-cli/full")
}

/// Builds the optimised command with every feature.
pub(crate) fn full_command() -> Command {
    cargo("build --release -p kvscatter-cli --features full")
}

/// Creates a Cargo command for packages of the workspace. Their dependencies have the same features as those of every
/// other such command, so Cargo does not build them again.
pub(crate) fn cargo_shared(subcommand: &str, packages: &str) -> Command {
    cargo(&format!("{subcommand} -p kvscatter-features {packages}"))
}

/// Creates a Cargo command from a line. Runs Cargo by its name and not by its path, because only rustup's proxy
/// understands `+nightly`.
pub(crate) fn cargo(line: &str) -> Command {
    let command = Command::new("cargo").with_all(line.split(' ')).with_env("INSTA_UPDATE", "no");
    // A relative folder is relative to the current directory, and the commands run in the root.
    match env::var_os("CARGO_TARGET_DIR") {
        Some(folder) if Path::new(&folder).is_relative() => {
            command.with_env("CARGO_TARGET_DIR", target_dir())
        }
        _ => command,
    }
}

/// Puts the programs and libraries that a command builds into another folder, because a step that runs at the same time
/// can use or write those in the usual one. Everything else is in the usual build folder, and is not built again.
pub(crate) fn with_results_in(folder: &Path, command: Command) -> Command {
    let command = command.with("--target-dir").with(folder);
    command.with("--config").with(format!("build.build-dir={:?}", target_dir()))
}

pub(crate) fn target_dir() -> PathBuf {
    match (env::var_os("CARGO_TARGET_DIR"), env::current_dir()) {
        (Some(folder), Ok(here)) => here.join(folder),
        (Some(folder), Err(_)) => folder.into(),
        (None, _) => root().join("target"),
    }
}

#[cfg(test)]
mod tests {
    use super::{COMMAND, CORE, FILES, HEAVY, SELDOM, root};

    #[test]
    fn every_crate_is_checked_and_tested() {
        let checked: Vec<_> =
            [CORE, FILES, COMMAND, HEAVY, SELDOM].iter().flat_map(|list| list.split(' ')).collect();
        for entry in root().join("crates").read_dir().unwrap() {
            let name = entry.unwrap().file_name();
            assert!(checked.iter().any(|word| name == *word), "no list has {}", name.display());
        }
    }
}
