//! The command line as a whole: its help, its options for every command, and how it is parsed.

use std::any::TypeId;
use std::ffi::OsString;
use std::num::NonZeroUsize;
use std::time::Duration;

use clap::{CommandFactory, FromArgMatches, Parser};

use kvscatter_bench::Starts;

use crate::commands::Command;

/// Writes new keys and values into a KV cache, exactly as ONNX, TensorRT and Ascend define it.
#[derive(Debug, Parser)]
#[command(
    name = "kvscatter",
    version,
    max_term_width = 80,
    after_help = "\
Start here:
  kvscatter run testdata/onnx-node/test_tensorscatter_circular
      run an ONNX model in place, check its output and show what was written where
  kvscatter generate testdata/mobius-llama-static/model.onnx --prompt-ids 1,2
      continue a prompt with a decoder whose cache is written in place
  kvscatter plan tensor-scatter --cache 4,8,16,64 --update 4,8,2,64 \\
      --write-indices 3,0,7,14
      what a write would touch, without any data
  kvscatter apply tensor-scatter --past-cache k.npy --update new.npy \\
      --write-indices 3,0 --in-place
      one write into a cache file, touching only the planned bytes

Tensor files are .npy, .npz, .pb (ONNX) and .safetensors; FILE#NAME names an
entry of a .npz or .safetensors. A new file replaces an old one, but never an
input, and never one with other entries.
Exit codes: 0 all is well, 1 a check failed, 2 bad input or usage.
With --json, an error is one JSON object in one line on standard error:
{\"error\":{\"kind\":...,\"message\":...}} with the fields that the error has."
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
/// The message to print instead: the help, or what is wrong with the arguments.
pub(crate) fn parse(arguments: &[OsString]) -> Result<Cli, clap::Error> {
    let mut command = with_negative_numbers(Cli::command());
    let matches = command.try_get_matches_from_mut(arguments)?;
    Cli::from_arg_matches(&matches).map_err(|error| error.format(&mut command))
}

/// Whether arguments have `--json`, even if they cannot be parsed.
pub(crate) fn asks_for_json(arguments: &[OsString]) -> bool {
    arguments.iter().take_while(|argument| *argument != "--").any(|argument| argument == "--json")
}

/// Lets every option that takes a number also take a negative one, so that the option's parser explains why it cannot be
/// negative. Other options do not: after a forgotten path, the next option is not read as the path.
fn with_negative_numbers(command: clap::Command) -> clap::Command {
    let numbers = [
        TypeId::of::<usize>(),
        TypeId::of::<NonZeroUsize>(),
        TypeId::of::<u64>(),
        TypeId::of::<i64>(),
        TypeId::of::<f64>(),
        TypeId::of::<Duration>(),
        TypeId::of::<Starts>(),
    ];
    let takes = |arg: clap::Arg| {
        let of = arg.get_value_parser().type_id();
        let is_number = !arg.is_positional() && numbers.iter().any(|number| of == *number);
        if is_number { arg.allow_negative_numbers(true) } else { arg }
    };
    command.mut_args(takes).mut_subcommands(with_negative_numbers)
}
