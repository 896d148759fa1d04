//! `kvscatter completions`: prints scripts that complete the command line in a shell.

use std::io::Write;

use clap::Args;

use crate::error::CommandError;
use crate::output::{Outcome, Output};

/// Print a shell completion script
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  kvscatter completions bash > \\
      ~/.local/share/bash-completion/completions/kvscatter
  kvscatter completions zsh > ~/.zfunc/_kvscatter
  kvscatter completions fish > ~/.config/fish/completions/kvscatter.fish")]
pub(crate) struct Completions {
    /// The shell to complete for
    shell: clap_complete::Shell,
}

/// Writes the script for a command line.
pub(crate) fn run(
    args: &Completions,
    mut command_line: clap::Command,
    output: &mut Output,
) -> Result<Outcome, CommandError> {
    if output.is_json() {
        return Err(CommandError::NoJson);
    }
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command_line, "kvscatter", &mut script);
    output.write_all(&script)?;
    Ok(Outcome::Passed)
}
