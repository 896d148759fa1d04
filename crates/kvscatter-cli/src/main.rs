//! The `kvscatter` command: a thin layer that turns arguments and files into calls of the library.
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

use std::io::{self, Write};
use std::process::ExitCode;

use clap::CommandFactory;
use clap::error::ErrorKind;

use cli::Cli;
use error::CommandError;
use failure::Failure;
use output::{Outcome, Output};
use usage::UsageError;

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().collect();
    #[cfg(feature = "text")]
    if arguments.get(1).is_some_and(|argument| argument == text::EVALUATE_TEMPLATE) {
        return text::evaluate_template();
    }
    let as_json = cli::asks_for_json(&arguments);
    let cli = match cli::parse(&arguments) {
        Ok(cli) => cli,
        Err(error) if !error.use_stderr() => return help_printed(error.print(), as_json),
        Err(error) if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand && !as_json => {
            // There is no subcommand, so the help is printed.
            let _ = error.print();
            return ExitCode::from(failure::EXIT_CODE);
        }
        Err(error) => {
            return refused(UsageError::new(&error, &Cli::command(), &arguments).into(), as_json);
        }
    };
    #[cfg(unix)]
    if let Err(error) = interrupt::clean_up_on_signals() {
        return refused(Failure::of_system(format!("signals cannot be handled: {error}")), as_json);
    }
    let mut output = Output::new(cli.json);
    match commands::run(cli.command, Cli::command, &mut output).and_then(|outcome| {
        output.flush()?;
        Ok(outcome)
    }) {
        Ok(Outcome::Passed) => ExitCode::SUCCESS,
        Ok(Outcome::Failed) => ExitCode::from(1),
        Err(error) => refused((&error).into(), as_json),
    }
}

/// Returns the exit code after printing help. A closed pipe (`| head`) is not an error.
fn help_printed(result: io::Result<()>, as_json: bool) -> ExitCode {
    match result {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            refused((&CommandError::Output(error)).into(), as_json)
        }
        _ => ExitCode::SUCCESS,
    }
}

fn refused(failure: Failure, as_json: bool) -> ExitCode {
    failure.print(as_json);
    ExitCode::from(failure::EXIT_CODE)
}
