//! What each command does.

pub(crate) mod apply;
pub(crate) mod bench;
pub(crate) mod cases;
pub(crate) mod certify;
pub(crate) mod convert;
pub(crate) mod generate;
pub(crate) mod inspect;
pub(crate) mod lower;
pub(crate) mod named;
pub(crate) mod plan;
pub(crate) mod run;
pub(crate) mod verify;
pub(crate) mod weights;

use std::io::Write;

use clap::CommandFactory;

use crate::cli::{Cli, Command};
use crate::error::CommandError;
use crate::output::{Outcome, Output};

pub(crate) fn run(command: Command, output: &mut Output) -> Result<Outcome, CommandError> {
    match command {
        Command::Run(args) => run::run(*args, output),
        Command::Generate(args) => generate::run(*args, output),
        Command::Apply(args) => apply::run(args, output),
        Command::Plan(args) => plan::run(args, output),
        Command::Inspect(args) => inspect::run(args, output),
        Command::Certify(args) => certify::run(*args, output),
        Command::Convert(args) => convert::run(args, output),
        Command::Lower(args) => lower::run(args, output),
        Command::Verify(args) => verify::run(args, output),
        Command::Cases(args) => cases::run(args, output),
        Command::Bench(args) => bench::run(args, output),
        Command::Completions(_) if output.is_json() => Err(CommandError::NoJson),
        Command::Completions(args) => {
            let mut script = Vec::new();
            clap_complete::generate(args.shell, &mut Cli::command(), "kvscatter", &mut script);
            output.write_all(&script)?;
            Ok(Outcome::Passed)
        }
    }
}
