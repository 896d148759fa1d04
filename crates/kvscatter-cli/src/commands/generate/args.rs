//! The arguments of `kvscatter generate`.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::Args;
use kvscatter_onnx::internal::DEFAULT_MEMORY_LIMIT;
use kvscatter_onnx::source::Prepared;
use kvscatter_session::{Engine, GenerateOptions, Generated, Generator, LoadOptions, SessionOptions};

use super::encoder::EncoderArgs;
use super::prompts::{self, Prompts};
use super::sampling::SamplingArgs;
use super::show::{self, Encoded};
use crate::commands::prepare::Preparing;
use crate::engines::{self, EngineInfo, EngineName, OrtFiles};
use crate::error::CommandError;
use crate::host::Host;
use crate::numbers::integer;

/// Continue prompts with a decoder (needs the features text and tract or onnxruntime)
///
/// MODEL is the folder of an exported model with its tokenizer.json, or an .onnx file. If its caches grow or
/// GroupQueryAttention writes them, it is converted once to static caches, and the conversion is kept in the
/// user's cache folder ($KVSCATTER_CACHE, else $XDG_CACHE_HOME/kvscatter, else ~/.cache/kvscatter).
///
/// --prompt prints the text as it is generated, until the model ends it or the cache is full. Several prompts run
/// as one batch. --chat applies the model's chat template. Without --prompt it reads turns from the terminal or
/// from standard input, a line each, and usually computes only the tokens of each turn. Ctrl-C ends the answer, and
/// Ctrl-D ends the chat. The lines about times and caches go to standard error.
///
/// --prompt-ids and --batch-file take token ids and need no tokenizer. They print the new tokens of each prompt in
/// the form that --batch-file reads, and then the lines about times and caches.
///
/// The decoder of an encoder-decoder attends to the outputs of --encoder, which reads its inputs from files. The
/// prompts are tokens of the decoder, which most models begin with one token.
///
/// By default, every token is the most likely one. An option of sampling draws tokens at random. The same seed
/// gives the same text.
///
/// --save-prefix saves the caches of a prompt to a file, and --prefix continues from that file without computing
/// the prompt again. The file works with every conversion of the same model, also if kvscatter convert made them
/// with other values of --max-seq, --chunk or --rewind.
///
/// The default engine needs the cargo feature tract, and --engine ort needs the feature onnxruntime. In the Python
/// package, the default engine is the installed ONNX Runtime. To build all features, in a clone of the repository:
/// cargo install --locked --path crates/kvscatter-cli --features full
#[derive(Debug, Args)]
#[command(
    override_usage = "\
kvscatter generate [OPTIONS] --prompt <TEXT> <MODEL>
       kvscatter generate [OPTIONS] --chat <MODEL>
       kvscatter generate [OPTIONS] --prompt-ids <ID,...> <MODEL>",
    after_help = "\
Examples:
  kvscatter generate SmolLM2 --prompt 'The capital of France is'
  kvscatter generate SmolLM2 --chat
  kvscatter generate SmolLM2 --chat --prompt 'Hi' --temperature 0.7 --top-p 0.9
  kvscatter generate SmolLM2 --prompt-file story.txt --max-new-tokens 200
  kvscatter generate testdata/mobius-llama-static/model.onnx \\
      --prompt-ids 1,2,3
  kvscatter generate static.onnx --batch-file prompts.txt --eos 2 --json
  kvscatter generate static.onnx --prompt-ids 5,7,1,9 --save-prefix prompt.kv
  kvscatter generate static.onnx --prefix prompt.kv --prompt-ids 8
  kvscatter generate decoder.onnx --prompt-ids 0 --encoder encoder.onnx \\
      --encoder-input input_ids=text.npy --encoder-input attention_mask=mask.npy
  kvscatter generate static.onnx --prompt-ids 1,2,3 --engine ort \\
      --ort-lib venv/lib/python3.11/site-packages"
)]
pub(crate) struct Generate {
    /// The folder of an exported model, or the .onnx file of a decoder
    pub(super) model: PathBuf,

    #[command(flatten)]
    pub(super) prompts: Prompts,

    /// The system message, before the first turn of the chat
    #[arg(long, value_name = "TEXT", requires = "chat")]
    pub(super) system: Option<String>,

    /// The most tokens to generate for each prompt [default: as many as the cache has room for, and 16 after
    /// token ids]
    #[arg(long, visible_alias = "tokens", value_name = "N", value_parser = integer::<NonZeroUsize>)]
    pub(super) max_new_tokens: Option<NonZeroUsize>,

    /// A token that ends a sample [default: those of generation_config.json, genai_config.json or the tokenizer,
    /// and none after token ids]
    #[arg(long, value_name = "ID", value_parser = prompts::id, allow_hyphen_values = true)]
    pub(super) eos: Vec<i64>,

    /// End a text before this text
    #[arg(
        long,
        value_name = "TEXT",
        value_parser = clap::builder::NonEmptyStringValueParser::new(),
        conflicts_with_all = ["prompt_ids", "batch_file"]
    )]
    pub(super) stop: Vec<String>,

    #[command(flatten)]
    pub(super) preparing: Preparing,

    #[command(flatten)]
    pub(super) encoder: EncoderArgs,

    /// File that --save-prefix wrote; its tokens come before those of every prompt
    #[arg(long, value_name = "FILE", conflicts_with = "chat")]
    pub(super) prefix: Option<PathBuf>,

    /// Save the tokens and caches of the prompt to this file (one prompt only)
    #[arg(long, value_name = "FILE")]
    pub(super) save_prefix: Option<PathBuf>,

    /// The engine that runs the model [default: tract, and ort in the Python package]
    #[arg(long)]
    engine: Option<EngineName>,

    #[command(flatten)]
    pub(super) ort: OrtFiles,

    /// The most tokens of a prompt in one run of the model; rings may take fewer
    #[arg(long, value_name = "N", default_value = "512", value_parser = integer::<NonZeroUsize>)]
    pub(super) chunk: NonZeroUsize,

    /// Draft up to this many tokens of each sample in a step, copied from its text, if this lowers the cost per token
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = integer::<usize>)]
    pub(super) draft: usize,

    /// Slots of each sample, if the model leaves this size open [default: as many as the longest prompt and its new
    /// tokens need, or without a limit of new tokens those that the model supports, at most 4096]
    #[arg(long, value_name = "N", value_parser = integer::<NonZeroUsize>)]
    pub(super) capacity: Option<NonZeroUsize>,

    /// Threads of each operator [default: the engine's choice]
    #[arg(long, value_name = "N", value_parser = engines::threads)]
    pub(super) threads: Option<NonZeroUsize>,

    /// The most bytes that the caches may take
    #[arg(long, value_name = "BYTES", default_value_t = DEFAULT_MEMORY_LIMIT, value_parser = integer::<u64>)]
    pub(super) memory: u64,

    #[command(flatten)]
    pub(super) sampling: SamplingArgs,
}

impl Generate {
    pub(super) fn engine(&self, host: &Host) -> EngineName {
        self.engine.unwrap_or_else(|| EngineName::default(host))
    }

    pub(super) fn options(&self, max_new_tokens: Option<usize>, eos: Vec<i64>) -> GenerateOptions {
        GenerateOptions {
            max_new_tokens,
            eos,
            chunk: self.chunk.get(),
            repetition_penalty: self.sampling.repetition_penalty,
            sampling: self.sampling.sampling(),
        }
    }

    pub(super) fn capacity(&self) -> Option<usize> {
        self.capacity.map(NonZeroUsize::get)
    }

    /// Opens the model, and runs the encoder if there is one.
    pub(super) fn open_generator(
        &self,
        engine: &dyn Engine,
        prepared: &Prepared,
        prompts: &[Vec<i64>],
        generation: &GenerateOptions,
        capacity: Option<usize>,
    ) -> Result<(Generator, Option<Encoded>), CommandError> {
        let options = SessionOptions {
            batch: None,
            capacity,
            threads: self.threads.map(NonZeroUsize::get),
            memory: self.memory,
            ..SessionOptions::default()
        };
        let model = &prepared.model;
        let mut generator = match &self.prefix {
            Some(saved) => Generator::open_after(engine, model, saved, prompts, generation, options)?,
            None => Generator::open_for(engine, model, prompts, generation, options)?,
        };
        if let Some(path) = &self.save_prefix {
            generator.save_prompt(path);
        }
        generator.draft(self.draft);
        let load = LoadOptions { threads: options.threads };
        let encoded = self.encoder.encode(engine, &mut generator, load, self.prefix.is_some())?;
        Ok((generator, encoded))
    }

    /// Returns a finished generation to print.
    pub(super) fn generation(
        &self,
        engine: &dyn Engine,
        generator: &Generator,
        prompts: Vec<Vec<i64>>,
        generated: Generated,
    ) -> show::Generation {
        let in_file =
            |(path, tokens): (&PathBuf, usize)| show::Prefix { path: path.display().to_string(), tokens };
        show::Generation {
            model: self.model.display().to_string(),
            runtime: EngineInfo::new(engine),
            group_query_nodes: generator.group_query_nodes(),
            prompts,
            texts: None,
            encoded: None,
            sized_by: "",
            may_draft: self.draft > 0,
            prefix: self.prefix.as_ref().map(|path| in_file((path, generator.prefix()))),
            saved: self.save_prefix.as_ref().zip(generated.saved).map(in_file),
            generated,
            memory: generator.memory(),
            capacity: generator.capacity(),
            growth: generator.growth(),
        }
    }
}

/// Refuses an end token that is not in the vocabulary.
pub(super) fn check_eos(eos: &[i64], vocabulary: Option<usize>) -> Result<(), CommandError> {
    let Some(vocabulary) = vocabulary else { return Ok(()) };
    match eos.iter().find(|id| usize::try_from(**id).is_ok_and(|id| id >= vocabulary)) {
        None => Ok(()),
        Some(&id) => Err(CommandError::EosUnknown { id, vocabulary }),
    }
}
