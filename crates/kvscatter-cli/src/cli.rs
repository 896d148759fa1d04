//! The whole command line: its help, the options that every command has, and how it is parsed.

use std::any::TypeId;
use std::ffi::OsString;
use std::num::NonZeroUsize;

use clap::{CommandFactory, FromArgMatches, Parser};

use crate::commands::Command;

/// Runs, plans and checks writes into KV caches, as ONNX, TensorRT and Ascend define them.
#[derive(Debug, Parser)]
#[command(
    name = "kvscatter",
    version,
    max_term_width = 80,
    after_help = "\
Start here:
  kvscatter run testdata/onnx-node/test_tensorscatter_circular
      run an ONNX model in place, check its output, show which slots changed
  kvscatter plan tensor-scatter --cache 4,8,16,64 --update 4,8,2,64 \\
      --write-indices 3,0,7,14
      show what a write would change, without any data
  kvscatter apply tensor-scatter --past-cache k.npy --update new.npy \\
      --write-indices 3,0 --in-place
      write into a cache file, and change only the planned bytes
  kvscatter generate testdata/mobius-llama-static/model.onnx --prompt-ids 1,2
      continue a prompt with a decoder (needs an engine)

The default build has no engine and runs no whole decoder. The Python package uses the \
installed ONNX Runtime. To build all features, in a clone of the repository:
  cargo install --locked --path crates/kvscatter-cli --features full

Tensor files are .npy, .npz, .pb (ONNX) and .safetensors. FILE#NAME is an entry of a .npz or \
.safetensors file. An output replaces an existing file, but never an input, and never a file \
with other entries.

Exit codes: 0 success, 1 a check failed, 2 bad input or usage.

With --json, an error is one line on standard error with one JSON object: \
{\"error\":{\"kind\":...,\"message\":...}}. Some errors have more fields."
)]
pub(crate) struct Cli {
    /// Print one JSON document instead of text, and errors as JSON
    #[arg(long, global = true, help_heading = "General")]
    pub(crate) json: bool,

    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Parses the arguments of this process.
///
/// # Errors
/// Returns the message to print instead, which is the help or the reason why the arguments are wrong.
pub(crate) fn parse(arguments: &[OsString]) -> Result<Cli, clap::Error> {
    let mut command = with_negative_numbers(Cli::command());
    let matches = command.try_get_matches_from_mut(arguments)?;
    Cli::from_arg_matches(&matches).map_err(|error| error.format(&mut command))
}

/// Returns whether the arguments contain `--json`, even if they cannot be parsed.
pub(crate) fn asks_for_json(arguments: &[OsString]) -> bool {
    arguments.iter().take_while(|argument| *argument != "--").any(|argument| argument == "--json")
}

/// Lets every option that takes a number also take a negative one, so that its parser can explain why the
/// number is wrong. Other options do not take a leading hyphen. If a path is forgotten, the next option is
/// not read as the path.
fn with_negative_numbers(command: clap::Command) -> clap::Command {
    let numbers = [
        TypeId::of::<usize>(),
        TypeId::of::<NonZeroUsize>(),
        TypeId::of::<u64>(),
        TypeId::of::<i64>(),
        TypeId::of::<f32>(),
        TypeId::of::<f64>(),
    ];
    let takes = |arg: clap::Arg| {
        let of = arg.get_value_parser().type_id();
        let is_number = !arg.is_positional() && numbers.iter().any(|number| of == *number);
        if is_number { arg.allow_negative_numbers(true) } else { arg }
    };
    command.mut_args(takes).mut_subcommands(with_negative_numbers)
}
