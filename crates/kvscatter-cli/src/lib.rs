//! The `kvscatter` command: a thin layer that turns arguments and files into calls of the library.
//!
//! The binary calls [`run`]. The Python package contains the same command. It calls [`run`] for the command line, and
//! [`capture`] for functions that return what `--json` prints. Other programs should not depend on this crate,
//! because only the command line is a stable interface.
//!
//! The exit codes are:
//!
//! - 0 if the command succeeded and every check passed.
//! - 1 if a check failed.
//! - 2 for bad input or usage. Standard error then has one line, which is a JSON object with `--json`, or the
//!   help if no command was given.
//!
//! If a signal ends the command, the command first removes unfinished files. The exit status is that of the
//! signal.
#![deny(unsafe_code, reason = "only memory maps of cache files and dispositions of signals need unsafe code")]
#![deny(
    clippy::arithmetic_side_effects,
    clippy::as_conversions,
    clippy::indexing_slicing,
    reason = "files and arguments are not trusted: every size and index is checked"
)]

mod case_tolerance;
mod cli;
mod commands;
mod compare;
mod engines;
mod error;
mod failure;
mod files;
mod host;
#[cfg(any(unix, feature = "text"))]
#[cfg_attr(not(unix), path = "interrupt_not_unix.rs")]
mod interrupt;
mod json;
mod json_file;
mod numbers;
mod operators;
mod options;
mod output;
mod refused;
mod table;
#[cfg(feature = "text")]
mod text;
mod usage;
mod values;

use std::ffi::OsString;
use std::io::{self, Write};

use clap::CommandFactory;
use clap::error::ErrorKind;

use cli::Cli;
use error::CommandError;
use failure::Failure;
use host::Invocation;
use output::{Outcome, Output};
use usage::UsageError;

pub use host::{Host, PythonPackage};

/// Runs the command of a command line, whose first word is the name of the program. Returns the exit code.
///
/// The command handles SIGINT, SIGTERM and SIGHUP until the process ends, and a signal can end the process. Call this
/// at most once in a process.
#[must_use]
pub fn run(arguments: &[OsString], host: &Host) -> u8 {
    let code = run_command(arguments, host);
    // Only the runtime of a Rust program does this when the process ends.
    let _ = io::stdout().flush();
    code
}

fn run_command(arguments: &[OsString], host: &Host) -> u8 {
    #[cfg(feature = "text")]
    if arguments.get(1).is_some_and(|argument| argument == text::EVALUATE_TEMPLATE) {
        return evaluate_template();
    }
    let as_json = cli::asks_for_json(arguments);
    let cli = match cli::parse(arguments) {
        Ok(cli) => cli,
        Err(error) if !error.use_stderr() => return help_printed(error.print(), as_json),
        Err(error) if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand && !as_json => {
            // There is no subcommand, so the help is printed.
            let _ = error.print();
            return failure::EXIT_CODE;
        }
        Err(error) => {
            return refused(&UsageError::new(&error, &Cli::command(), arguments).into(), as_json);
        }
    };
    #[cfg(unix)]
    if let Err(error) = interrupt::clean_up_on_signals() {
        return refused(&Failure::of_system(format!("signals cannot be handled: {error}")), as_json);
    }
    let mut output = Output::new(cli.json);
    match execute(cli, &Invocation { arguments, host }, &mut output) {
        Ok(outcome) => outcome.exit_code(),
        Err(error) => refused(&(&error).into(), as_json),
    }
}

/// What a command with `--json` printed.
#[derive(Debug)]
pub struct Captured {
    /// The exit code.
    pub code: u8,
    /// The document on standard output. It is empty if the command failed before it printed one.
    pub document: Vec<u8>,
    /// The document on standard error, if the exit code is that of an error.
    pub error: Option<String>,
}

/// Runs the command of a command line as with `--json`, and returns what it prints.
///
/// Several threads can call this. It handles no signals and shows no progress.
#[must_use]
pub fn capture(arguments: &[OsString], host: &Host) -> Captured {
    let mut output = Output::captured();
    let executed = match cli::parse(arguments) {
        Ok(cli) => {
            execute(cli, &Invocation { arguments, host }, &mut output).map_err(|error| Failure::from(&error))
        }
        Err(error) => Err(UsageError::new(&error, &Cli::command(), arguments).into()),
    };
    let (code, error) = match executed {
        Ok(outcome) => (outcome.exit_code(), None),
        Err(failure) => (failure::EXIT_CODE, Some(failure.document())),
    };
    Captured { code, document: output.into_captured(), error }
}

/// Evaluates the chat template on standard input, and writes the answer to standard output. Returns the exit code.
///
/// This is the work of another process, which [`PythonPackage::template_evaluator`] starts. It limits the memory and
/// the processor time of the process that it runs in.
#[cfg(feature = "text")]
#[must_use]
pub fn evaluate_template() -> u8 {
    text::evaluate_template()
}

fn execute(cli: Cli, invocation: &Invocation<'_>, output: &mut Output) -> Result<Outcome, CommandError> {
    let outcome = commands::run(cli.command, Cli::command, invocation, output)?;
    output.flush()?;
    Ok(outcome)
}

/// Returns the exit code after printing help. A closed pipe (`| head`) is not an error.
fn help_printed(result: io::Result<()>, as_json: bool) -> u8 {
    match result {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            refused(&(&CommandError::Output(error)).into(), as_json)
        }
        _ => Outcome::Passed.exit_code(),
    }
}

fn refused(failure: &Failure, as_json: bool) -> u8 {
    failure.print(as_json);
    failure::EXIT_CODE
}
