//! `kvscatter certify`: runs a decoder in an engine and certifies that its caches are written in place.

#[cfg(feature = "certify")]
mod issue;
#[cfg(feature = "certify")]
mod show;

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::Args;
use kvscatter_onnx::internal::DEFAULT_MEMORY_LIMIT;

use crate::engines::{self, EngineName, OrtFiles};
use crate::numbers::{integer, tolerance};

#[cfg(feature = "certify")]
pub(crate) use issue::run;

/// Certify that a decoder writes its KV cache in place (needs the feature certify)
///
/// An engine runs a decoder with static caches: prefill, chunked prefill and ragged decode, with past and
/// present in one memory. After every step, every byte of every cache is compared with a copy. Only the rows
/// that the write indices name may have changed. The logits are compared with the logits of the original.
/// Without --original, they are compared with the logits of each sequence run alone, with separate memory for
/// its present. Every run is made twice: with caches of zeros and with caches of finite canaries. Batches
/// that go around large rings are run with canaries only.
///
/// This command needs the cargo feature certify and an engine. The default engine, ort, needs the feature
/// onnxruntime, and --engine tract needs the feature tract. To build all, in a clone of the repository:
/// cargo install --locked --path crates/kvscatter-cli --features full
///
/// The certificate has three kinds of claims: structural (about the graph), observed (during the runs) and
/// timed. The last lines name what the logits were compared with, and the claims that cannot be judged. The
/// exit code is 1 if a claim fails. Claims that are not comparable, not measured or not applicable do not
/// change it.
///
/// A sample of a model with convolution or recurrent states gets no padding with its tokens. The certificate
/// lists the runs that this leaves out. An original with the caches of all layers in one tensor is not timed.
///
/// If a model computes scales for a whole tensor (DynamicQuantizeLinear), the logits of a sample depend on
/// its neighbours, on padding and on chunks. Such models are compared only for each sequence alone, not in
/// batches.
///
/// ONNX Runtime 1.25 or later is loaded from an installed Python package: from the library or folder of
/// --ort-lib, else of KVSCATTER_ORT_LIB or ORT_DYLIB_PATH, else from the active Python. Use 1.31 or later.
/// Version 1.25 aligns the causal mask wrongly if Attention has no mask input, and the certificate then
/// fails. ONNX Runtime parses the model, and a model contains no code that could run.
///
/// ONNX Runtime uses kvscatter's plugin (libkvscatter_ort_plugin) if there is one: that of --ort-plugin, else of
/// KVSCATTER_ORT_PLUGIN, else the library in the folder of this command or in ../lib. The value none means no
/// plugin. The certificate names the plugin.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  kvscatter certify testdata/mobius-llama-static/model.onnx
  kvscatter certify static.onnx --engine tract
  kvscatter certify static.onnx --original growing.onnx --html certificate.html
  kvscatter certify static.onnx --prompt 100,7,30 --steps 64 --json
  kvscatter certify static.onnx --ort-lib venv/lib/python3.11/site-packages")]
pub(crate) struct Certify {
    /// The .onnx file to certify, or the folder of an export
    model: PathBuf,

    /// The .onnx file or the folder that the model was made from, which must give the same logits
    #[arg(long, value_name = "ORIG")]
    original: Option<PathBuf>,

    /// Also write the certificate as an HTML page; an existing file of another kind is not replaced
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,

    /// The engine that runs the model
    #[arg(long, default_value = "ort")]
    engine: EngineName,

    #[command(flatten)]
    ort: OrtFiles,

    /// Tokens in the prompt of each sample [default: 7,3,5 as far as they fit]
    #[arg(long, value_name = "N,...", value_delimiter = ',', help_heading = "What is run", value_parser = integer::<NonZeroUsize>)]
    prompt: Option<Vec<NonZeroUsize>>,

    /// Samples in a batch [default: the model's, or 3]
    #[arg(long, value_name = "N", help_heading = "What is run", value_parser = integer::<NonZeroUsize>)]
    batch: Option<NonZeroUsize>,

    /// Decode steps after the prompts [default: 16, or what fits]
    #[arg(long, value_name = "N", help_heading = "What is run", value_parser = integer::<usize>)]
    steps: Option<usize>,

    /// Tokens in the largest chunk of a chunked prefill [default: 4]
    #[arg(long, value_name = "N", help_heading = "What is run", value_parser = integer::<NonZeroUsize>)]
    chunk: Option<NonZeroUsize>,

    /// Slots of each sample in the caches, if the model leaves this size open
    #[arg(long, value_name = "N", help_heading = "What is run", value_parser = integer::<NonZeroUsize>)]
    capacity: Option<NonZeroUsize>,

    /// The seed of the random tokens and canaries
    #[arg(long, value_name = "N", default_value = "1", help_heading = "What is run", value_parser = integer::<u64>)]
    seed: u64,

    /// Threads of the engine; several threads may add numbers in another order
    #[arg(long, value_name = "N", default_value = "1", value_parser = engines::threads, help_heading = "What is run")]
    threads: NonZeroUsize,

    /// Largest absolute difference between logits that counts as equal [default: by type and magnitude]
    #[arg(long, value_name = "A", value_parser = tolerance)]
    tolerance: Option<f64>,

    /// Skip the timed claims
    #[arg(long)]
    no_timing: bool,

    /// The most bytes that caches and logits may take at once
    #[arg(long, value_name = "BYTES", default_value_t = DEFAULT_MEMORY_LIMIT, value_parser = integer::<u64>)]
    memory: u64,
}

#[cfg(not(feature = "certify"))]
pub(crate) fn run(
    _: Certify,
    _: &crate::host::Invocation<'_>,
    _: &mut crate::output::Output,
) -> Result<crate::output::Outcome, crate::error::CommandError> {
    Err(crate::error::CommandError::NotBuilt { what: "certify", feature: "certify" })
}
