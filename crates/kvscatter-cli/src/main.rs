//! The `kvscatter` command: a thin layer that turns arguments and files into calls of the library.
//!
//! Exit codes: 0, everything asked for was done and every check passed; 1, a check failed; 2, bad input or
//! usage, with one line on standard error. A signal that ends the command first removes unfinished files;
//! the exit status is that of the signal.
#![deny(unsafe_code, reason = "only the memory map of a cache file and the disposition of signals need any")]
#![deny(
    clippy::arithmetic_side_effects,
    clippy::as_conversions,
    clippy::indexing_slicing,
    reason = "files and arguments are not trusted: every size and index is checked"
)]

mod cli;
mod commands;
mod compare;
mod engines;
mod error;
mod files;
#[cfg(unix)]
mod interrupt;
mod json;
mod numbers;
mod operators;
mod options;
mod output;
mod refused;
mod table;
mod values;

use std::io::{self, Write};
use std::process::ExitCode;

use clap::CommandFactory;
use clap::error::ErrorKind;

use cli::Cli;
use error::CommandError;
use output::{Outcome, Output};

fn main() -> ExitCode {
    let cli = match cli::parse() {
        Ok(cli) => cli,
        Err(error) if !error.use_stderr() => return help_printed(error.print()),
        Err(error) if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            // Nothing was asked for: the help is the answer.
            let _ = error.print();
            return ExitCode::from(2);
        }
        Err(error) => return refused(&error::usage(&error)),
    };
    #[cfg(unix)]
    if let Err(error) = interrupt::clean_up_on_signals() {
        return refused(&format!("signals cannot be handled: {error}"));
    }
    let mut output = Output::new(cli.json);
    match commands::run(cli.command, Cli::command, &mut output).and_then(|outcome| {
        output.flush()?;
        Ok(outcome)
    }) {
        Ok(Outcome::Passed) => ExitCode::SUCCESS,
        Ok(Outcome::Failed) => ExitCode::from(1),
        Err(error) => refused(&error.to_string()),
    }
}

/// The exit code after printing help. A reader that closed the pipe (`| head`) is no error.
fn help_printed(result: io::Result<()>) -> ExitCode {
    match result {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            refused(&CommandError::Output(error).to_string())
        }
        _ => ExitCode::SUCCESS,
    }
}

fn refused(message: &str) -> ExitCode {
    let message = output::one_line(message);
    // If standard error is closed, the message cannot be shown.
    let _ = writeln!(io::stderr(), "error: {message}");
    ExitCode::from(2)
}
