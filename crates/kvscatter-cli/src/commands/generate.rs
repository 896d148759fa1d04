//! `kvscatter generate`: generates tokens with a decoder whose caches are written in place.

mod prompts;
mod show;

use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::path::PathBuf;

use clap::Args;
use kvscatter_onnx::DEFAULT_MEMORY_LIMIT;
use kvscatter_session::{Event, GenerateOptions, Generator, SessionOptions};

use super::prepare::Preparing;
use crate::engines::{self, EngineInfo, EngineName, OrtFiles};
use crate::error::CommandError;
use crate::numbers::integer;
use crate::output::{Outcome, Output, progress};
use prompts::Prompts;

/// Continue prompts with a decoder (needs the feature tract or onnxruntime)
///
/// Every next token is the most likely one. All prompts run as one batch, and their lengths may differ.
/// Static caches are allocated once and written in place, each sample at its own position. So are caches that
/// GroupQueryAttention writes, which needs --engine ort.
///
/// A model whose caches grow, or are written by GroupQueryAttention, is converted once. The conversion is kept in the
/// folder of KVSCATTER_CACHE, else in kvscatter in XDG_CACHE_HOME, else in ~/.cache/kvscatter. With --no-convert, the
/// model runs as it was exported. If its caches grow, all prompts must then have one length.
///
/// The default engine needs the cargo feature tract, and --engine ort needs the feature onnxruntime. To build
/// both, in a clone of the repository: cargo install --locked --path crates/kvscatter-cli --features full
///
/// --save-prefix saves the caches of a prompt to a file, and --prefix continues from that file without computing
/// the prompt again. The file works with every conversion of the same model, with any --max-seq, --chunk and
/// --rewind.
///
/// The first lines of the output are the tokens of each sample, in the order of the prompts and in the form
/// that --batch-file reads. Then follow the tokens per second, the bytes that a step wrote into the caches,
/// and the memory of the caches.
#[derive(Debug, Args)]
#[command(
    override_usage = "\
kvscatter generate [OPTIONS] --prompt-ids <ID,...> <MODEL>
       kvscatter generate [OPTIONS] --batch-file <FILE> <MODEL>",
    after_help = "\
Examples:
  kvscatter generate testdata/mobius-llama-static/model.onnx \\
      --prompt-ids 1,2,3
  kvscatter generate static.onnx --prompt-ids 5,7 --prompt-ids 9 --max-new-tokens 64
  kvscatter generate static.onnx --batch-file prompts.txt --eos 2 --json
  kvscatter generate static.onnx --prompt-ids 5,7,1,9 --save-prefix prompt.kv
  kvscatter generate static.onnx --prefix prompt.kv --prompt-ids 8
  kvscatter generate static.onnx --prompt-ids 1,2,3 --engine ort \\
      --ort-lib venv/lib/python3.11/site-packages"
)]
pub(crate) struct Generate {
    /// The .onnx file of a decoder, or the folder of an export
    model: PathBuf,

    #[command(flatten)]
    preparing: Preparing,

    #[command(flatten)]
    prompts: Prompts,

    /// File that --save-prefix wrote; its tokens come before those of every prompt
    #[arg(long, value_name = "FILE")]
    prefix: Option<PathBuf>,

    /// Save the tokens and caches of the prompt to this file (one prompt only)
    #[arg(long, value_name = "FILE")]
    save_prefix: Option<PathBuf>,

    /// The most tokens to generate for each prompt
    #[arg(
        long,
        visible_alias = "tokens",
        value_name = "N",
        default_value = "16",
        value_parser = integer::<NonZeroUsize>
    )]
    max_new_tokens: NonZeroUsize,

    /// A token that ends a sample; it is the last one printed
    #[arg(long, value_name = "ID", value_parser = prompts::id, allow_hyphen_values = true)]
    eos: Vec<i64>,

    /// The engine that runs the model
    #[arg(long, default_value = "tract")]
    engine: EngineName,

    /// The library of ONNX Runtime, or a folder with its package [default: as for certify]
    #[arg(long, value_name = "PATH")]
    ort_lib: Option<PathBuf>,

    /// The plugin for ONNX Runtime, or none [default: as for certify]
    #[arg(long, value_name = "PATH|none")]
    ort_plugin: Option<PathBuf>,

    /// The most tokens of a prompt in one run of the model; rings may take fewer
    #[arg(long, value_name = "N", default_value = "512", value_parser = integer::<NonZeroUsize>)]
    chunk: NonZeroUsize,

    /// Draft up to this many tokens of each sample in a step, copied from its text, if this lowers the cost per token
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = integer::<usize>)]
    draft: usize,

    /// Slots of each sample, if the model leaves this size open [default: as many as the longest sample needs]
    #[arg(long, value_name = "N", value_parser = integer::<NonZeroUsize>)]
    capacity: Option<NonZeroUsize>,

    /// Threads of each operator [default: the engine's choice]
    #[arg(long, value_name = "N", value_parser = engines::threads)]
    threads: Option<NonZeroUsize>,

    /// The most bytes that the caches may take
    #[arg(long, value_name = "BYTES", default_value_t = DEFAULT_MEMORY_LIMIT, value_parser = integer::<u64>)]
    memory: u64,
}

pub(crate) fn run(args: Generate, output: &mut Output) -> Result<Outcome, CommandError> {
    let prompts = args.prompts.read()?;
    let ort = OrtFiles { lib: args.ort_lib.as_deref(), plugin: args.ort_plugin.as_deref() };
    let engine = engines::open(args.engine, ort)?;
    let prepared = args.preparing.prepare(&args.model, output)?;
    let options = SessionOptions {
        batch: None,
        capacity: args.capacity.map(NonZeroUsize::get),
        threads: args.threads.map(NonZeroUsize::get),
        memory: args.memory,
        ..SessionOptions::default()
    };
    let bar = progress(args.max_new_tokens.get());
    let generation = GenerateOptions {
        max_new_tokens: Some(args.max_new_tokens.get()),
        eos: args.eos,
        chunk: args.chunk.get(),
        ..GenerateOptions::default()
    };
    let mut generator = match &args.prefix {
        Some(saved) => Generator::open_after(&*engine, &prepared.model, saved, &prompts, &generation, options)?,
        None => Generator::open_for(&*engine, &prepared.model, &prompts, &generation, options)?,
    };
    if let Some(path) = &args.save_prefix {
        generator.save_prompt(path);
    }
    generator.draft(args.draft);
    check_eos(&generation.eos, generator.vocabulary())?;
    let (memory, capacity, growth) = (generator.memory(), generator.capacity(), generator.growth());
    let prefix =
        args.prefix.map(|path| show::Prefix { path: path.display().to_string(), tokens: generator.prefix() });
    let generated = generator.generate(&prompts, &generation, &mut |event| {
        if let Event::Tokens(new) = event {
            bar.set_position(u64::try_from(new.progress().tokens).unwrap_or(u64::MAX));
        }
        ControlFlow::Continue(())
    });
    bar.finish_and_clear();
    let generated = generated?;
    let saved = args.save_prefix.map(|path| show::Prefix {
        path: path.display().to_string(),
        tokens: prefix.as_ref().map_or(0, |prefix| prefix.tokens).saturating_add(generated.prompt_tokens),
    });
    let done = show::Generation {
        model: args.model.display().to_string(),
        runtime: EngineInfo::of(&*engine),
        prompts,
        may_draft: args.draft > 0,
        generated,
        prefix,
        saved,
        memory,
        capacity,
        growth,
    };
    done.show(output)?;
    Ok(Outcome::Passed)
}

/// Refuses an end token that is not in the vocabulary.
fn check_eos(eos: &[i64], vocabulary: Option<usize>) -> Result<(), CommandError> {
    let Some(vocabulary) = vocabulary else { return Ok(()) };
    match eos.iter().find(|id| usize::try_from(**id).is_ok_and(|id| id >= vocabulary)) {
        None => Ok(()),
        Some(&id) => Err(CommandError::EosUnknown { id, vocabulary }),
    }
}
