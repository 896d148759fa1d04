//! The arguments of `kvscatter convert`.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use kvscatter_onnx::RuntimeVersion;
use kvscatter_onnx::convert::WindowedCaches;

use crate::commands::cache_type::CacheTypeArgs;
use crate::commands::weights::WeightFiles;
use crate::error::CommandError;
use crate::numbers::integer;

/// Convert a decoder so that its caches are static and written in place
///
/// The command converts caches that Concat, Attention with past inputs or GroupQueryAttention copies in every
/// step. They become [batch, heads, N, head size], and TensorScatter writes them at the new input
/// write_indices. attention_mask becomes [batch, N]. Slot j is then visible to new token i of sample b if and
/// only if j <= write_indices[b] + i and attention_mask[b, j].
///
/// A layer with a sliding window of W tokens gets a ring: a cache of W - 1 + S + R slots, in which the token at
/// position p is in slot p modulo the number of slots. A step writes at most S rows, padding included, and a sample
/// is taken back by at most R below its furthest token. With --window mask, and where a ring would not be smaller,
/// the layer gets a linear cache, and j > write_indices[b] + i - W must also hold. docs/rings.md has the rule and a
/// picture.
///
/// A bias that depends on the distance of slot and token (ALiBi, T5) is computed with the mask. The model is raised to
/// operator set 24, and its metadata describes the new inputs. Weights are not changed.
///
/// Keys and values that an encoder computes once for each text stay inputs, which no step changes.
///
/// GroupQueryAttention and other operators of ONNX Runtime become standard ones. The command evaluates both on
/// random values, and refuses the model if the results differ.
///
/// Attention that consists of separate nodes (MatMul, scale, mask, Softmax, MatMul, and the Expand that
/// repeats grouped heads) becomes one Attention node that reads the caches as they are. The command evaluates
/// both on random queries and caches, and keeps the separate nodes if the results differ.
///
/// A merged decoder has an If on a boolean input, such as use_cache_branch. The command takes out the branch
/// with a past, and drops the other branch and the input.
///
/// Some decoders have the caches of all layers in one input. The command gives each layer a cache, and drops the input
/// with the number of tokens so far.
///
/// The command computes which slots the masks of the exporter hide and what they add, and compares it with this
/// rule. It refuses a decoder that follows another rule (chunks, prefixes) or that it does not understand. It then
/// writes nothing.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  kvscatter convert testdata/genai-llama-gqa/model.onnx -o static.onnx \\
      --max-seq 128
  kvscatter certify static.onnx \\
      --original testdata/genai-llama-gqa/model.onnx")]
pub(crate) struct Convert {
    /// The decoder, an .onnx file or the folder of an export
    pub(super) model: PathBuf,

    /// The file for the converted decoder; separate files of weights are copied or linked next to it
    ///
    /// An existing file is replaced only if it is an ONNX model.
    #[arg(short, long, value_name = "FILE")]
    pub(super) output: PathBuf,

    /// Slots of each sample, which is the most tokens that a sample can have
    ///
    /// With kvscatter's plugin or its engine tract, Attention nodes read only the slots in use. ONNX Runtime's own
    /// Attention reads all N slots in every step, so without the plugin choose N no larger than your longest text.
    #[arg(long, value_name = "N", value_parser = integer::<usize>)]
    pub(super) max_seq: usize,

    /// How the caches of layers with a sliding window are kept
    #[arg(long, value_name = "HOW", value_enum, default_value_t)]
    pub(super) window: Window,

    /// Most rows of a sample in one step of a model with rings, padding included [default: W, at most 512]
    #[arg(long, value_name = "S", value_parser = integer::<NonZeroUsize>)]
    pub(super) chunk: Option<NonZeroUsize>,

    /// Tokens that a sample of a model with rings can be taken back from its furthest token [default: 32]
    #[arg(long, value_name = "R", value_parser = integer::<usize>)]
    pub(super) rewind: Option<usize>,

    #[command(flatten)]
    pub(super) caches: CacheTypeArgs,

    /// The dimensions of the caches
    #[arg(long, value_name = "LAYOUT", value_enum, default_value_t)]
    pub(super) layout: Layout,

    /// Names of the pasts, with {i} for the number of the cache and {part} for key or value
    ///
    /// '{part}_cache.{i}' with --layout 3d gives the static caches of mobius. The presents get the same names with
    /// updated_ before them, or with present in place of past_key_values or past at the beginning. Scales of int8
    /// caches end with _scale.
    #[arg(long, value_name = "PATTERN")]
    pub(super) names: Option<String>,

    /// Names of the presents, if they do not follow from --names
    #[arg(long, value_name = "PATTERN", requires = "names")]
    pub(super) present_names: Option<String>,

    /// Leave attention that consists of separate nodes as it is
    #[arg(long)]
    pub(super) keep_attention: bool,

    /// The oldest ONNX Runtime that must run the model without kvscatter's plugin, such as 1.26
    ///
    /// Before 1.27, Attention caps scores (softcap) after the mask, so that hidden slots count. Capped attention then
    /// stays separate nodes. Without this option, the command and the model's metadata name the version that is needed.
    #[arg(long, value_name = "VERSION")]
    pub(super) onnxruntime: Option<RuntimeVersion>,

    /// Show what each pass of the conversion changed, what it keeps, and what was compared to prove that
    #[arg(long)]
    pub(super) explain: bool,

    /// Also write the encoder of an encoder-decoder, with an output for each input that the decoder takes from it
    ///
    /// The command joins the exported encoder with the decoder of the first step, which computes keys and values for
    /// every layer. This is decoder_model.onnx in the folder of the decoder, or the merged decoder.
    #[arg(long, value_name = "FILE")]
    pub(super) encoder_output: Option<PathBuf>,

    /// The exported encoder [default: encoder_model.onnx, or else encoder.onnx, in the folder of the decoder]
    #[arg(long, value_name = "FILE", requires = "encoder_output")]
    pub(super) encoder: Option<PathBuf>,

    /// How to place files of weights if the output is in another folder
    #[arg(long, value_enum, default_value_t)]
    pub(super) weights: WeightFiles,
}

/// How the caches of layers with a window are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum Window {
    /// In rings, where these are smaller
    #[default]
    Ring,
    /// In linear caches of N slots, with a mask
    Mask,
}

/// The dimensions of the caches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum Layout {
    /// [batch, heads, N, head size]
    #[default]
    #[value(name = "4d")]
    ByHead,
    /// [batch, N, heads * head size], which only Attention nodes read
    #[value(name = "3d")]
    Flat,
}

impl Convert {
    /// Returns how the caches of layers with a window are kept.
    pub(super) fn windowed(&self) -> Result<WindowedCaches, CommandError> {
        let given = [("--chunk", self.chunk.is_some()), ("--rewind", self.rewind.is_some())];
        match (self.window, given.into_iter().find(|(_, is_given)| *is_given)) {
            (Window::Mask, Some((option, _))) => Err(CommandError::OnlyRings { option }),
            (Window::Mask, None) => Ok(WindowedCaches::Mask),
            (Window::Ring, _) => {
                let chunk = self.chunk.map(NonZeroUsize::get);
                Ok(WindowedCaches::Ring { chunk, rewind: self.rewind.unwrap_or(WindowedCaches::REWIND) })
            }
        }
    }
}
