//! Virtual environments below the build folder. Each is made once from a lock file.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use crate::cargo::{root, target_dir};
use crate::command::With;
use crate::step::Tool;

/// The Python versions for which every pinned wheel exists. A probe must not contain spaces within an
/// argument.
pub(crate) const PYTHON: Tool = Tool {
    name: "Python 3.11 to 3.13 with venv",
    probe: "python3 -c __import__('ensurepip');assert((3,11)<=__import__('sys').version_info<(3,14))",
    install: "apt-get install python3-venv",
};

/// An index that pip can reach. It is needed only while there is something to install.
pub(crate) const INDEX: Tool = Tool {
    name: "a package index for pip",
    probe: "python3 -m pip --disable-pip-version-check index versions numpy",
    install: "apt-get install python3-pip, and a network",
};

/// A virtual environment, which may not exist yet.
pub(crate) struct Environment {
    /// The folder, relative to the build folder.
    folder: String,
    lock: String,
    requirement: Option<String>,
    gigabytes: u32,
    /// The Python version, such as 3.10, or `None` for the version of `python3`.
    version: Option<&'static str>,
}

impl Environment {
    pub(crate) fn new(folder: impl Into<String>, lock: impl Into<String>) -> Self {
        let (folder, lock) = (folder.into(), lock.into());
        Self { folder, lock, requirement: None, gigabytes: 1, version: None }
    }

    /// Adds one more package to those of the lock file.
    pub(crate) fn with(self, requirement: String) -> Self {
        Self { requirement: Some(requirement), ..self }
    }

    /// Sets the disk space that the environment takes, if it is more than one gigabyte.
    pub(crate) fn gigabytes(self, gigabytes: u32) -> Self {
        Self { gigabytes, ..self }
    }

    /// Chooses another Python than the one named `python3`.
    pub(crate) fn version(self, version: &'static str) -> Self {
        Self { version: Some(version), ..self }
    }

    /// Returns the command that creates the environment unless it exists.
    pub(crate) fn make(&self) -> Command {
        let mut make = self.version.map_or_else(|| Command::new("python3"), versioned);
        make.arg("xtask/python/environment.py").arg(self.path()).arg(&self.lock).args(&self.requirement);
        if self.gigabytes > 1 {
            make.args(["--gigabytes", &self.gigabytes.to_string()]);
        }
        make
    }

    /// Returns a command that runs the environment's interpreter.
    pub(crate) fn python(&self) -> Command {
        self.program("python").with_env("PYTHONDONTWRITEBYTECODE", "1")
    }

    /// Returns a command that runs a program of the installed packages.
    pub(crate) fn program(&self, name: &str) -> Command {
        Command::new(self.path().join("bin").join(name))
    }

    /// Returns a `PATH` that starts with the environment's programs, for programs that call each other by
    /// name.
    pub(crate) fn search_path(&self) -> OsString {
        let mut path = self.path().join("bin").into_os_string();
        if let Some(others) = env::var_os("PATH") {
            path.push(":");
            path.push(others);
        }
        path
    }

    /// Returns `true` if the environment was made from the current lock file, so that no index is needed.
    pub(crate) fn is_made(&self) -> bool {
        let made_from = fs::read(self.path().join("made-from.txt"));
        let lock = fs::read(root().join(&self.lock));
        matches!((made_from, lock), (Ok(made_from), Ok(lock)) if made_from.starts_with(&lock))
    }

    /// Returns the environment's folder.
    pub(crate) fn path(&self) -> PathBuf {
        target_dir().join(&self.folder)
    }
}

/// Returns the tools that make these environments, or use them if they exist.
pub(crate) fn needs(environments: &[Environment]) -> &'static [Tool] {
    if environments.iter().all(Environment::is_made) { &[PYTHON] } else { &[PYTHON, INDEX] }
}

/// Returns a command for one version of Python. The variable is for pyenv, whose `python3.10` fails unless
/// that version is selected.
fn versioned(version: &str) -> Command {
    Command::new(format!("python{version}")).with_env("PYENV_VERSION", version)
}
