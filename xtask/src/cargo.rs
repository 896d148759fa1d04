//! Cargo's command lines, and the folders they run in.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The repository's root, where every command runs.
pub(crate) fn root() -> &'static Path {
    let xtask = Path::new(env!("CARGO_MANIFEST_DIR"));
    xtask.parent().unwrap_or(xtask)
}

/// The command as the step `unit` builds it, next to the tests of it. (`cargo build -p kvscatter-cli` gives its dependencies
/// fewer features, and so builds all of them again.)
pub(crate) fn command() -> Command {
    cargo("test --workspace --exclude kvscatter --test cli --no-run")
}

/// Cargo by its name, not by its path: only rustup's proxy understands `+nightly`.
pub(crate) fn cargo(line: &str) -> Command {
    let mut command = Command::new("cargo");
    command.args(line.split(' ')).env("INSTA_UPDATE", "no");
    // A relative folder is relative to the current directory, and the commands run in the root.
    if env::var_os("CARGO_TARGET_DIR").is_some_and(|folder| Path::new(&folder).is_relative()) {
        command.env("CARGO_TARGET_DIR", target_dir());
    }
    command
}

pub(crate) fn target_dir() -> PathBuf {
    match (env::var_os("CARGO_TARGET_DIR"), env::current_dir()) {
        (Some(folder), Ok(here)) => here.join(folder),
        (Some(folder), Err(_)) => folder.into(),
        (None, _) => root().join("target"),
    }
}

pub(crate) fn prefixed(prefix: &str, path: &Path) -> OsString {
    let mut argument = OsString::from(prefix);
    argument.push(path);
    argument
}
