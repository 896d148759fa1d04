//! Virtual environments: each made once from a lock file, below the build folder.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use crate::cargo::{root, target_dir};
use crate::step::Tool;

/// Those that every pinned wheel is made for. (A probe is split at spaces.)
pub(crate) const PYTHON: Tool = Tool {
    name: "Python 3.11 to 3.13 with venv",
    probe: "python3 -c __import__('ensurepip');assert((3,11)<=__import__('sys').version_info<(3,14))",
    install: "apt-get install python3-venv",
};

/// Asked for only as long as there is something to install.
pub(crate) const INDEX: Tool = Tool {
    name: "a package index for pip",
    probe: "python3 -m pip --disable-pip-version-check index versions numpy",
    install: "apt-get install python3-pip, and a network",
};

/// A virtual environment, whether it is made yet or not.
pub(crate) struct Environment {
    /// Below the build folder.
    folder: String,
    lock: &'static str,
    requirement: Option<String>,
    gigabytes: u32,
    /// Such as 3.10; otherwise what `python3` is.
    version: Option<&'static str>,
}

impl Environment {
    pub(crate) fn new(folder: impl Into<String>, lock: &'static str) -> Self {
        Self { folder: folder.into(), lock, requirement: None, gigabytes: 1, version: None }
    }

    /// One more package beside those of the lock file.
    pub(crate) fn with(self, requirement: String) -> Self {
        Self { requirement: Some(requirement), ..self }
    }

    /// The disk it takes, where that is more than one.
    pub(crate) fn gigabytes(self, gigabytes: u32) -> Self {
        Self { gigabytes, ..self }
    }

    /// Of another Python than the one that is called `python3`.
    pub(crate) fn version(self, version: &'static str) -> Self {
        Self { version: Some(version), ..self }
    }

    /// Makes it, or finds it made.
    pub(crate) fn make(&self) -> Command {
        let mut make = self.version.map_or_else(|| Command::new("python3"), versioned);
        make.arg("xtask/python/environment.py").arg(self.path()).arg(self.lock).args(&self.requirement);
        if self.gigabytes > 1 {
            make.args(["--gigabytes", &self.gigabytes.to_string()]);
        }
        make
    }

    /// Its interpreter.
    pub(crate) fn python(&self) -> Command {
        let mut python = Command::new(self.path().join("bin/python"));
        python.env("PYTHONDONTWRITEBYTECODE", "1");
        python
    }

    /// One of the programs of its packages.
    pub(crate) fn program(&self, name: &str) -> Command {
        Command::new(self.path().join("bin").join(name))
    }

    /// `PATH` with its programs first, for those that call each other by name.
    pub(crate) fn search_path(&self) -> OsString {
        let mut path = self.path().join("bin").into_os_string();
        if let Some(others) = env::var_os("PATH") {
            path.push(":");
            path.push(others);
        }
        path
    }

    /// Whether it was made from the lock file as it is now, so that no index is queried.
    pub(crate) fn is_made(&self) -> bool {
        let made_from = fs::read(self.path().join("made-from.txt"));
        let lock = fs::read(root().join(self.lock));
        matches!((made_from, lock), (Ok(made_from), Ok(lock)) if made_from.starts_with(&lock))
    }

    /// Its folder.
    pub(crate) fn path(&self) -> PathBuf {
        target_dir().join(&self.folder)
    }
}

/// The variable is for pyenv, whose `python3.10` is none until it is chosen.
fn versioned(version: &str) -> Command {
    let mut python = Command::new(format!("python{version}"));
    python.env("PYENV_VERSION", version);
    python
}
