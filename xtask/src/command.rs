//! Creates commands in expressions.

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::Command;

/// Creates a command from a program and its arguments, separated by spaces.
pub(crate) fn program(line: &str) -> Command {
    let mut words = line.split(' ');
    let mut command = Command::new(words.next().unwrap_or_default());
    command.args(words);
    command
}

/// Adds to a command in an expression.
pub(crate) trait With {
    fn with(self, argument: impl AsRef<OsStr>) -> Self;
    fn with_all(self, arguments: impl IntoIterator<Item: AsRef<OsStr>>) -> Self;
    fn with_env(self, variable: &str, value: impl AsRef<OsStr>) -> Self;
}

impl With for Command {
    fn with(mut self, argument: impl AsRef<OsStr>) -> Self {
        self.arg(argument);
        self
    }

    fn with_all(mut self, arguments: impl IntoIterator<Item: AsRef<OsStr>>) -> Self {
        self.args(arguments);
        self
    }

    fn with_env(mut self, variable: &str, value: impl AsRef<OsStr>) -> Self {
        self.env(variable, value);
        self
    }
}

pub(crate) fn prefixed(prefix: &str, path: &Path) -> OsString {
    let mut argument = OsString::from(prefix);
    argument.push(path);
    argument
}
