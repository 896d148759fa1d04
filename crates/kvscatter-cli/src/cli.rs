//! The command line: every command, its arguments and the help that teaches them.

use std::any::TypeId;
use std::num::NonZeroUsize;
use std::time::Duration;

use clap::{Args, Command as Clap, CommandFactory, FromArgMatches, Parser, Subcommand};

use kvscatter_bench::Starts;

use crate::commands::{apply, bench, cases, certify, convert, generate, inspect, lower, plan, run, verify};

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
Exit codes: 0 all is well, 1 a check failed, 2 bad input or usage."
)]
pub(crate) struct Cli {
    /// Print one JSON document instead of text
    #[arg(long, global = true, help_heading = "General")]
    pub(crate) json: bool,

    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The arguments of this process, or what to say instead.
pub(crate) fn parse() -> Result<Cli, clap::Error> {
    let mut command = with_negative_numbers(Cli::command());
    let matches = command.try_get_matches_from_mut(std::env::args_os())?;
    Cli::from_arg_matches(&matches).map_err(|error| error.format(&mut command))
}

/// Every option whose value is a number takes the negative one behind it, so that its own parser says what is wrong with
/// that. A path takes none: what is forgotten before an option is not the path.
fn with_negative_numbers(command: Clap) -> Clap {
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
    Bench(bench::Bench),
    Completions(Completions),
}

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
    pub(crate) shell: clap_complete::Shell,
}
