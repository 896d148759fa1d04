//! The commands and their arguments.

mod apply;
mod cache_type;
mod cases;
mod certify;
mod completions;
mod convert;
mod form;
mod generate;
mod inspect;
mod lower;
mod named;
mod plan;
mod prepare;
mod run;
mod verify;
mod weights;

use clap::Subcommand;

use crate::error::CommandError;
use crate::host::Invocation;
use crate::output::{Outcome, Output};

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Run(Box<run::Run>),
    Generate(Box<generate::Generate>),
    #[command(subcommand)]
    Apply(apply::Apply),
    #[command(subcommand)]
    Plan(plan::Plan),
    Inspect(inspect::Inspect),
    Certify(Box<certify::Certify>),
    Convert(convert::Convert),
    Lower(lower::Lower),
    Verify(verify::Verify),
    Cases(cases::Cases),
    Completions(completions::Completions),
}

/// Runs a command. `command_line` returns the definition of the whole command line, for `completions`.
pub(crate) fn run(
    command: Command,
    command_line: fn() -> clap::Command,
    invocation: &Invocation<'_>,
    output: &mut Output,
) -> Result<Outcome, CommandError> {
    match command {
        Command::Run(args) => run::run(*args, invocation.host, output),
        Command::Generate(args) => generate::run(*args, invocation.host, output),
        Command::Apply(args) => apply::run(args, output),
        Command::Plan(args) => plan::run(args, output),
        Command::Inspect(args) => inspect::run(args, output),
        Command::Certify(args) => certify::run(*args, invocation, output),
        Command::Convert(args) => convert::run(args, output),
        Command::Lower(args) => lower::run(args, output),
        Command::Verify(args) => verify::run(args, output),
        Command::Cases(args) => cases::run(args, output),
        Command::Completions(args) => completions::run(&args, command_line(), output),
    }
}
