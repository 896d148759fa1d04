//! `kvscatter convert`: converts a decoder with growing caches into one whose caches are written in place.

use std::io::Write;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use kvscatter_onnx::convert::{
    self, CacheLayout, CacheNames, ConvertOptions, Converted, KeptAttention, KeptReason, LinearWindow,
    NarrowCaches, PassReport, Report, RingSize, UNLIMITED, WindowedCaches,
};
use kvscatter_onnx::internal::file::Identity;
use kvscatter_onnx::internal::text::units;
use kvscatter_onnx::source::ModelSource;
use kvscatter_onnx::{DataFile, Model, RuntimeVersion, join_encoder};
use kvscatter_session::{KvSession, SessionError, SessionOptions};
use serde_json::{Value, json};

use super::cache_type::CacheTypeArgs;
use super::form;
use super::weights::{self, WeightFiles};
use crate::error::CommandError;
use crate::json::{joined, without_null};
use crate::numbers::integer;
use crate::output::{Outcome, Output, count, hanging, one_line, paragraph, table};

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
    model: PathBuf,

    /// The file for the converted decoder; separate files of weights are copied or linked next to it
    ///
    /// An existing file is replaced only if it is an ONNX model.
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,

    /// Slots of each sample, which is the most tokens that a sample can have
    ///
    /// With kvscatter's plugin or its engine tract, Attention nodes read only the slots in use. ONNX Runtime's own
    /// Attention reads all N slots in every step, so without the plugin choose N no larger than your longest text.
    #[arg(long, value_name = "N", value_parser = integer::<usize>)]
    max_seq: usize,

    /// How the caches of layers with a sliding window are kept
    #[arg(long, value_name = "HOW", value_enum, default_value_t)]
    window: Window,

    /// Most rows of a sample in one step of a model with rings, padding included [default: W, at most 512]
    #[arg(long, value_name = "S", value_parser = integer::<NonZeroUsize>)]
    chunk: Option<NonZeroUsize>,

    /// Tokens that a sample of a model with rings can be taken back from its furthest token [default: 32]
    #[arg(long, value_name = "R", value_parser = integer::<usize>)]
    rewind: Option<usize>,

    #[command(flatten)]
    caches: CacheTypeArgs,

    /// The dimensions of the caches
    #[arg(long, value_name = "LAYOUT", value_enum, default_value_t)]
    layout: Layout,

    /// Names of the pasts, with {i} for the number of the cache and {part} for key or value
    ///
    /// '{part}_cache.{i}' with --layout 3d gives the static caches of mobius. The presents get the same names with
    /// updated_ before them, or with present in place of past_key_values or past at the beginning. Scales of int8
    /// caches end with _scale.
    #[arg(long, value_name = "PATTERN")]
    names: Option<String>,

    /// Names of the presents, if they do not follow from --names
    #[arg(long, value_name = "PATTERN", requires = "names")]
    present_names: Option<String>,

    /// Leave attention that consists of separate nodes as it is
    #[arg(long)]
    keep_attention: bool,

    /// The oldest ONNX Runtime that must run the model without kvscatter's plugin, such as 1.26
    ///
    /// Before 1.27, Attention caps scores (softcap) after the mask, so that hidden slots count. Capped attention then
    /// stays separate nodes. Without this option, the command and the model's metadata name the version that is needed.
    #[arg(long, value_name = "VERSION")]
    onnxruntime: Option<RuntimeVersion>,

    /// Show what each pass of the conversion changed, what it keeps, and what was compared to prove that
    #[arg(long)]
    explain: bool,

    /// Also write the encoder of an encoder-decoder, with an output for each input that the decoder takes from it
    ///
    /// The command joins the exported encoder with the decoder of the first step, which computes keys and values for
    /// every layer. This is decoder_model.onnx in the folder of the decoder, or the merged decoder.
    #[arg(long, value_name = "FILE")]
    encoder_output: Option<PathBuf>,

    /// The exported encoder [default: encoder_model.onnx, or else encoder.onnx, in the folder of the decoder]
    #[arg(long, value_name = "FILE", requires = "encoder_output")]
    encoder: Option<PathBuf>,

    /// How to place files of weights if the output is in another folder
    #[arg(long, value_enum, default_value_t)]
    weights: WeightFiles,
}

/// How the caches of layers with a window are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Window {
    /// In rings, where these are smaller
    #[default]
    Ring,
    /// In linear caches of N slots, with a mask
    Mask,
}

/// The dimensions of the caches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Layout {
    /// [batch, heads, N, head size]
    #[default]
    #[value(name = "4d")]
    ByHead,
    /// [batch, N, heads * head size], which only Attention nodes read
    #[value(name = "3d")]
    Flat,
}

/// The context lengths that the capacity is compared with.
const CONTEXTS: [usize; 4] = [8, 64, 512, 4096];

/// Times of a step with a static cache of 4096 slots, divided by the time with a growing cache: a context, the
/// ratio in ONNX Runtime, and that with the plugin. The measurement is in docs/models.md.
const MEASURED: [(usize, f64, f64); 2] = [(128, 5.3, 0.9), (4095, 0.5, 0.3)];

/// What runs a decoder with states, in the words of docs/models.md.
const WHO_RUNS_STATES: &str = "In your own loop, feed all samples equally many tokens, and no padding. KvSession, \
                               generate and certify choose such runs themselves";

pub(crate) fn run(args: Convert, output: &mut Output) -> Result<Outcome, CommandError> {
    let args = Convert { model: ModelSource::find(&args.model)?.model, ..args };
    check_paths(&args)?;
    let model = Model::load(&args.model)?;
    let options =
        ConvertOptions::new(args.max_seq).keep_attention(args.keep_attention).windowed(windowed(&args)?);
    let options = args.onnxruntime.map_or(options, |oldest| options.onnxruntime(oldest));
    let (cache_type, rotates) = args.caches.checked()?;
    let options = options.caches(cache_type, rotates);
    let options = options.layout(match args.layout {
        Layout::ByHead => CacheLayout::ByHead,
        Layout::Flat => CacheLayout::Flat,
    });
    let names = args.names.as_deref().map(|past| CacheNames::new(past, args.present_names.as_deref()));
    let names = names.transpose()?;
    let options = options.may_stay(names.is_some());
    let renamed = convert::convert(&model, options).and_then(|mut converted| {
        names.as_ref().map_or(Ok(()), |names| converted.rename_caches(names)).map(|()| converted)
    });
    let converted = renamed.map_err(|cause| kvscatter_onnx::OnnxError::InFile {
        path: args.model.clone(),
        cause: Box::new(cause),
    })?;
    let encoder = args.encoder_output.as_ref().map(|_| joined_encoder(&args, &model)).transpose()?;
    let mut files = Vec::new();
    if let Some((encoder, path)) = encoder.zip(args.encoder_output.as_ref()) {
        files.extend(encoder.save_with_weights(path, args.weights.into())?);
    }
    files.extend(converted.model.save_with_weights(&args.output, args.weights.into())?);
    if output.is_json() {
        output.json(&document(&args, &converted, &files))?;
    } else {
        show(&args, &converted, &files, output)?;
        if args.explain {
            explain(&converted.report, output)?;
        }
    }
    Ok(Outcome::Passed)
}

/// Checks that no output replaces another one, or a model that is read.
fn check_paths(args: &Convert) -> Result<(), CommandError> {
    let Some(encoder) = &args.encoder_output else { return Ok(()) };
    let is_same = |one: &Path, other: &Path| {
        let [one, other] = [one, other].map(Identity::from_path);
        one.is_ok_and(|one| other.is_ok_and(|other| one == other))
    };
    if is_same(encoder, &args.output) {
        return Err(CommandError::EqualOutputs { path: encoder.clone() });
    }
    let read = [Some(args.model.clone()), Some(encoder_of(args)), first_step_of(args)];
    for (output, input) in [&args.output, encoder]
        .into_iter()
        .flat_map(|output| read.iter().flatten().map(move |input| (output, input)))
    {
        if is_same(output, input) {
            return Err(CommandError::OutputIsInput { path: output.clone() });
        }
    }
    Ok(())
}

/// Returns the encoder that computes all that a decoder takes from it.
fn joined_encoder(args: &Convert, decoder: &Model) -> Result<Model, CommandError> {
    let encoder = Model::load(&encoder_of(args))?;
    let first = first_step_of(args).map(|first| Model::load(&first)).transpose()?;
    Ok(join_encoder(&encoder, first.as_ref().unwrap_or(decoder), decoder)?)
}

/// Returns the file of the exported encoder.
fn encoder_of(args: &Convert) -> PathBuf {
    let [usual, other] = ENCODERS.map(|name| args.model.with_file_name(name));
    let usual = if other.exists() && !usual.exists() { other } else { usual };
    args.encoder.clone().unwrap_or(usual)
}

/// Returns the file of the decoder of the first step, if it is beside the decoder.
fn first_step_of(args: &Convert) -> Option<PathBuf> {
    Some(args.model.with_file_name(FIRST_STEP)).filter(|first| first.exists())
}

/// The usual names of an exported encoder, and Optimum's name of the decoder of the first step.
const ENCODERS: [&str; 2] = ["encoder_model.onnx", "encoder.onnx"];
const FIRST_STEP: &str = "decoder_model.onnx";

/// Returns how the caches of layers with a window are kept.
fn windowed(args: &Convert) -> Result<WindowedCaches, CommandError> {
    let given = [("--chunk", args.chunk.is_some()), ("--rewind", args.rewind.is_some())];
    match (args.window, given.into_iter().find(|(_, is_given)| *is_given)) {
        (Window::Mask, Some((option, _))) => Err(CommandError::OnlyRings { option }),
        (Window::Mask, None) => Ok(WindowedCaches::Mask),
        (Window::Ring, _) => {
            let chunk = args.chunk.map(NonZeroUsize::get);
            Ok(WindowedCaches::Ring { chunk, rewind: args.rewind.unwrap_or(WindowedCaches::REWIND) })
        }
    }
}

fn show(
    args: &Convert,
    converted: &Converted,
    files: &[DataFile],
    output: &mut Output,
) -> Result<(), CommandError> {
    let report = &converted.report;
    let slots = args.max_seq;
    let heading = format!(
        "{}: {}, read by {}",
        one_line(&args.output.display().to_string()),
        caches(report, slots),
        readers(report)
    );
    writeln!(output, "{}", hanging(0, &heading))?;
    rings(report, args).iter().try_for_each(|line| writeln!(output, "{}", hanging(2, line)))?;
    narrow(report).iter().try_for_each(|line| writeln!(output, "{}", hanging(2, line)))?;
    weights::show(files, output)?;
    if let Some(path) = &args.encoder_output {
        let path = one_line(&path.display().to_string());
        writeln!(output, "{}", hanging(2, &format!("{path}: the encoder, which runs once for each text.")))?;
    }
    if let Some(form) = &report.form {
        writeln!(output, "{}", hanging(2, &form::line(form)))?;
    }
    if report.attention.fused > 0 {
        let became =
            format!("{} took the place of separate nodes.", count(report.attention.fused, "Attention node"));
        writeln!(output, "{became}")?;
    }
    kept(&report.attention.kept).iter().try_for_each(|line| writeln!(output, "{}", hanging(2, line)))?;
    if report.least_onnxruntime >= RuntimeVersion::WITH_CAP {
        let needs = format!(
            "Attention caps its scores. Run the model with kvscatter's plugin, with tract, or with ONNX Runtime {} or \
             newer: earlier versions let hidden slots count.",
            report.least_onnxruntime
        );
        writeln!(output, "{}", hanging(2, &needs))?;
    }
    let input =
        |name: &str, what: &str, contract: &str| vec![name.to_owned(), what.to_owned(), contract.to_owned()];
    let first = match report.caches.rings.is_empty() {
        true => "the slot of each sample's first new token",
        false => "the position of each sample's first new token, which keeps growing in rings",
    };
    let mut rows = vec![input(&report.inputs.write_indices, "int64 [batch]", first)];
    if let Some(mask) = &report.inputs.attention_mask {
        let shape = format!("[batch, {slots}]");
        rows.push(input(mask, &shape, "1 for every slot that holds a real token after this step"));
    }
    if let Some(nonpad) = &report.inputs.nonpad_kv_seqlen {
        let contract =
            format!("{} + the new tokens of this step, padding included", report.inputs.write_indices);
        rows.push(input(nonpad, "int64 [batch]", &contract));
    }
    if let Some((_, scales)) =
        report.caches.narrow.as_ref().and_then(|narrow| narrow.scales.first_key_value())
    {
        let others = report.caches.narrow.as_ref().map_or(0, |narrow| narrow.scales.len().saturating_sub(1));
        let more = if others == 0 { String::new() } else { format!(", and {others} more") };
        let contract = format!("the scales of a cache{more}, bound like its codes");
        rows.push(input(scales, "float32 [batch, heads, slots, 1]", &contract));
    }
    writeln!(output, "\n{}", table(&["Input", "Shape", "Value"], &[], rows))?;
    writeln!(
        output,
        "\n{}",
        paragraph(
            "Bind each past and its present to one buffer, and fill it with finite values at the start."
        )
    )?;
    if let Some(first) = report.states.first() {
        let text = format!(
            "The model keeps {}, such as {:?}. Start with zeros, and feed the state of each step to the next one. A \
             state contains all tokens of a sample. {WHO_RUNS_STATES}.",
            count(report.states.len(), "state"),
            first.past
        );
        writeln!(output, "\n{}", paragraph(&one_line(&text)))?;
    }
    if let Some(refusal) = refusal(converted) {
        let text = format!("KvSession and generate refuse this model: {refusal}. Run it in your own loop.");
        writeln!(output, "\n{}", paragraph(&one_line(&text)))?;
    }
    size(report, slots).map_or(Ok(()), |size| writeln!(output, "\n{size}"))?;
    writeln!(output)?;
    cost(report, slots).iter().try_for_each(|text| writeln!(output, "{}", paragraph(text)))?;
    Ok(())
}

/// Returns the reason why sessions do not run a converted model, or `None` if they do. The limit of memory is an option
/// of each session, so it is no reason.
fn refusal(converted: &Converted) -> Option<SessionError> {
    let options = SessionOptions { memory: u64::MAX, ..SessionOptions::default() };
    KvSession::check_model(&converted.model, options).err()
}

/// Returns the number of caches of each size.
fn caches(report: &Report, max_seq: usize) -> String {
    let in_rings = report.caches.rings.values().sum();
    let linear = report.caches.count.saturating_sub(in_rings);
    let sizes = report.caches.rings.iter().map(|(ring, caches)| (*caches, "ring", ring.capacity));
    let sizes = [(linear, "cache", max_seq)].into_iter().filter(|(caches, ..)| *caches > 0).chain(sizes);
    let texts: Vec<_> = sizes
        .map(|(caches, what, slots)| format!("{} of {}", count(caches, what), count(slots, "slot")))
        .collect();
    texts.join(" and ")
}

/// Returns a line for each size of rings, and one for each window without a ring.
fn rings(report: &Report, args: &Convert) -> Vec<String> {
    let ring = |ring: &RingSize| {
        format!(
            "Rings of {}: a window of {}, steps of up to {}, and a sample can go back {}.",
            count(ring.capacity, "slot"),
            count(ring.window, "token"),
            count(ring.chunk, "row"),
            count(ring.rewind, "token")
        )
    };
    let linear = |LinearWindow { window, attentions, reason }: &LinearWindow| {
        let attentions = count(*attentions, "attention operation");
        one_line(&format!("Kept linear caches for {attentions} with a window of {window}: {reason}"))
    };
    let mut lines: Vec<_> =
        report.caches.rings.keys().map(ring).chain(report.caches.linear_windows.iter().map(linear)).collect();
    if lines.is_empty() && (args.chunk.is_some() || args.rewind.is_some()) {
        lines.push("No layer has a window, so --chunk and --rewind have no effect.".to_owned());
    }
    lines
}

/// Returns a line with the type of the caches, and one about keys that are not rotated.
fn narrow(report: &Report) -> Vec<String> {
    let Some(narrow) = &report.caches.narrow else { return Vec::new() };
    let mut lines = vec![format!("{} became {narrow}.", count(narrow.count, "cache"))];
    if !narrow.unrotated.is_empty() {
        let sizes: Vec<_> = narrow.unrotated.iter().map(ToString::to_string).collect();
        let sizes = sizes.join(", ");
        lines.push(format!("Keys in heads of {sizes} are not rotated: their size is not a multiple of 16."));
    }
    lines
}

/// Returns a line for each attention operation that stays, and one for all that were not examined.
fn kept(all: &[KeptAttention]) -> Vec<String> {
    let is_unproved = |kept: &&KeptAttention| matches!(kept.reason, KeptReason::Unproved);
    let examined = all.iter().filter(|kept| !is_unproved(kept));
    let mut lines: Vec<_> = examined
        .map(|kept| one_line(&format!("Kept the nodes of {:?}: {}", kept.output, kept.reason)))
        .collect();
    let unproved = all.iter().filter(is_unproved).count();
    if unproved > 0 {
        let unproved = count(unproved, "attention operation");
        lines.push(format!("Kept the nodes of {unproved}: {}", KeptReason::Unproved));
    }
    lines
}

/// Returns the number of attention operations of each kind.
fn readers(report: &Report) -> String {
    let nodes = count(report.attention.nodes, "Attention node");
    let separate = report.attention.count.saturating_sub(report.attention.nodes);
    match (report.attention.nodes, separate) {
        (_, 0) => nodes,
        (0, _) => format!("{} of separate nodes", count(separate, "attention")),
        _ => format!("{nodes} and {} of separate nodes", count(separate, "attention")),
    }
}

/// Returns the sizes of the caches.
fn size(report: &Report, max_seq: usize) -> Option<String> {
    let sample = report.caches.bytes_per_sample?;
    let slot = units::bytes(report.caches.bytes_per_slot?);
    let linear = report.caches.linear_bytes_per_sample?;
    let without_rings = match sample == linear {
        true => ":".to_owned(),
        false => format!(". Without rings, they would take {}:", units::bytes(linear)),
    };
    let (sample, slots) = (units::bytes(sample), count(max_seq, "slot"));
    Some(format!("The caches take {sample} a sample{without_rings} {slots} of {slot}."))
}

/// Returns the slots of each sample that are an input of attention in every step, in a layer with the most slots.
fn slots_per_step(report: &Report, max_seq: usize) -> usize {
    let largest_ring = report.caches.rings.keys().map(|ring| ring.capacity).max();
    largest_ring.filter(|_| report.caches.most_tokens.is_some()).unwrap_or(max_seq)
}

/// Returns some context lengths with the ratio of all slots to those in use, if the ratio is at least 2.
fn ratios(slots: usize) -> impl Iterator<Item = (usize, usize)> {
    CONTEXTS
        .into_iter()
        .filter_map(move |context| Some((context, slots.checked_div(context).filter(|ratio| *ratio >= 2)?)))
}

/// Returns what a step reads, as paragraphs. This does not depend on how much of a cache is in use.
fn cost(report: &Report, max_seq: usize) -> Vec<String> {
    let slots = count(slots_per_step(report, max_seq), "slot");
    match report.caches.most_tokens {
        Some(most_tokens) => vec![cost_of_rings(most_tokens, &slots)],
        None => cost_of_linear_caches(report, max_seq, &slots),
    }
}

/// Returns what a step of a model reads whose caches are all rings.
fn cost_of_rings(most_tokens: usize, slots: &str) -> String {
    let most = match most_tokens {
        UNLIMITED => "A sample can have any number of tokens.".to_owned(),
        most => format!(
            "A sample can have {most} tokens (--max-seq), because the decoder has a table of positions or a mask \
             of all tokens. A larger --max-seq makes no ring larger."
        ),
    };
    format!(
        "{most} A step takes the same time and memory for every length of text. With kvscatter's plugin or its engine \
         tract, an Attention node reads only the slots that a token sees. ONNX Runtime without the plugin reads \
         all {slots} of a ring."
    )
}

/// Returns what a step of a model with linear caches reads.
fn cost_of_linear_caches(report: &Report, max_seq: usize, slots: &str) -> Vec<String> {
    let ratios: Vec<_> =
        ratios(max_seq).map(|(context, ratio)| format!("{ratio} × at {context} tokens")).collect();
    let ratios = if ratios.is_empty() { String::new() } else { format!(" ({})", ratios.join(", ")) };
    let reads = |reader: &str, then: &str| {
        format!(
            "{reader} reads all {slots} of each sample in every step, even if few are in use{ratios}. {then} choose \
             --max-seq no larger than your longest text."
        )
    };
    // Without the used length, no engine can stop there.
    if report.inputs.nonpad_kv_seqlen.is_none() {
        return vec![reads("Attention of separate nodes", "So")];
    }
    let [(few, slower, few_in_plugin), (many, faster, many_in_plugin)] = MEASURED;
    // Without its option, the plugin computes the nodes that convert a narrow cache back as they are.
    let (plugin, without) = match report.caches.narrow {
        None => ("its plugin", "ONNX Runtime without the plugin"),
        Some(_) => ("its plugin with the option fusion=on", "ONNX Runtime without this option"),
    };
    let mut text = vec![
        format!(
            "With kvscatter's engine tract or {plugin}, an Attention node reads only the slots in use, so its time \
             grows with the context and not with --max-seq."
        ),
        reads(without, "Then"),
    ];
    if report.attention.nodes != report.attention.count {
        text.push(format!("Attention of separate nodes reads all {slots} in every engine."));
    }
    // The caches of that decoder are float32.
    if report.caches.narrow.is_some() {
        return text;
    }
    text.push(format!(
        "For example, a step of the decoder in docs/models.md, with 4096 slots, takes {few_in_plugin} × the \
         time of a growing cache at {few} tokens and {many_in_plugin} × at {many} with the plugin, and {slower} × \
         and {faster} × without it."
    ));
    text
}

/// Shows the passes with their proofs, and what the nodes of the exported attention do.
fn explain(report: &Report, output: &mut Output) -> Result<(), CommandError> {
    let cells = |pass: &PassReport| {
        vec![pass.name.to_owned(), pass.change.clone(), pass.claim.to_string(), pass.proof.clone()]
    };
    let passes = table(&["Pass", "Changed", "Keeps", "Compared"], &[], report.passes.iter().map(cells));
    writeln!(output, "\n{passes}")?;
    if report.attention.idioms.is_empty() {
        return Ok(());
    }
    let idioms =
        report.attention.idioms.iter().map(|(name, nodes)| vec![nodes.to_string(), (*name).to_owned()]);
    writeln!(output, "\n{}", table(&["Nodes", "Of the exported attention"], &[0], idioms))?;
    Ok(())
}

fn document(args: &Convert, converted: &Converted, files: &[DataFile]) -> Value {
    let report = &converted.report;
    let slots = slots_per_step(report, args.max_seq);
    let ring = |(ring, caches): (&RingSize, &usize)| joined(json!(ring), json!({"caches": caches}));
    // Attention with a window that reads linear caches.
    let linear = |LinearWindow { window, attentions, reason }: &LinearWindow| json!({"window": window, "attentions": attentions, "reason": reason.to_string()});
    // The bytes are those of all caches, and `null` if the model leaves a size open.
    let cost = json!({
        "bytes_per_sample": report.caches.bytes_per_sample,
        "bytes_per_linear_sample": report.caches.linear_bytes_per_sample,
        "bytes_per_slot": report.caches.bytes_per_slot,
        "slots_per_step": slots,
        // Whether attention also takes the used length, so that an engine can stop there.
        "takes_length": report.inputs.nonpad_kv_seqlen.is_some(),
        // The most tokens of a sample, if all caches are rings.
        "most_tokens": report.caches.most_tokens,
        "slots_to_context": ratios(slots)
            .map(|(context, ratio)| json!({"context": context, "ratio": ratio}))
            .collect::<Value>(),
    });
    let document = json!({
        "model": args.model.display().to_string(),
        "output": args.output.display().to_string(),
        "encoder_output": args.encoder_output.as_ref().map(|path| path.display().to_string()),
        "max_seq": args.max_seq,
        "caches": report.caches.count,
        "rings": report.caches.rings.iter().map(ring).collect::<Value>(),
        "linear_windows": report.caches.linear_windows.iter().map(linear).collect::<Value>(),
        // The type that the caches got; absent if they have that of the export.
        "narrow": report.caches.narrow.as_ref().map(narrow_document),
        "attentions": report.attention.count,
        "attention_nodes": report.attention.nodes,
        "fused": report.attention.fused,
        // What the nodes of the exported attention do, with the number of nodes.
        "idioms": report.attention.idioms,
        "passes": report
            .passes
            .iter()
            .map(|pass| {
                json!({
                    "name": pass.name,
                    "change": pass.change,
                    "keeps": pass.claim.to_string(),
                    "proof": pass.proof,
                })
            })
            .collect::<Value>(),
        // Attention operations that could not become one node.
        "kept": report
            .attention
            .kept
            .iter()
            .map(|kept| json!({"output": kept.output, "reason": kept.reason.to_string()}))
            .collect::<Value>(),
        "write_indices": report.inputs.write_indices,
        "attention_mask": report.inputs.attention_mask,
        "nonpad_kv_seqlen": report.inputs.nonpad_kv_seqlen,
        "least_onnxruntime": report.least_onnxruntime.to_string(),
        // The branch of a merged decoder that was converted.
        "merged": report.form.as_ref().and_then(form::merged),
        // The inputs that had all layers.
        "stacked": report.form.as_ref().and_then(form::stacked),
        // States beside the caches, which are not changed.
        "states": report
            .states
            .iter()
            .map(|state| json!({"past": state.past, "present": state.present}))
            .collect::<Value>(),
        // The inputs whose meaning the graph does not show.
        "unknown_inputs": report.inputs.unknown,
        // The reason why sessions do not run the model; `null` if they do.
        "refusal": refusal(converted).map(|refusal| refusal.to_string()),
        "cost": without_null(cost, &["most_tokens"]),
        "files": weights::document(files),
    });
    without_null(document, &["encoder_output", "merged", "narrow", "stacked"])
}

fn narrow_document(narrow: &NarrowCaches) -> Value {
    json!({
        "cache_type": narrow.cache_type.to_string(),
        "caches": narrow.count,
        "description": narrow.to_string(),
        // The past of each cache of codes with that of its scales.
        "scales": narrow.scales,
        "rotated": narrow.rotated,
        "unrotated_head_sizes": narrow.unrotated,
    })
}

#[cfg(test)]
mod tests {
    use kvscatter_onnx::convert::KeptForm;

    use super::{KeptAttention, KeptReason, MEASURED, WHO_RUNS_STATES, kept};

    #[test]
    fn attention_that_was_not_examined_takes_one_line() {
        let layer = |(at, reason)| KeptAttention { output: format!("y{at}"), reason };
        let reasons = [KeptReason::Unproved, KeptReason::Form(KeptForm::ScaledWeights), KeptReason::Unproved];
        assert_eq!(
            kept(&reasons.into_iter().enumerate().map(layer).collect::<Vec<_>>()),
            [
                "Kept the nodes of \"y1\": the weights are scaled",
                "Kept the nodes of 2 attention operations: not examined, since earlier proofs used up the \
                 work that one conversion may do",
            ]
        );
    }

    #[test]
    fn the_page_names_the_same_programs_that_run_states() {
        let page = include_str!("../../../../docs/models.md").replace('`', "");
        assert!(page.contains(WHO_RUNS_STATES));
    }

    /// The ratios agree with the generated table of the page.
    #[test]
    fn ratios_in_the_advice_are_on_the_page() {
        let page = include_str!("../../../../docs/models.md");
        let cells = |row: &str| row.split('|').map(|cell| cell.trim().to_owned()).collect::<Vec<_>>();
        let table: Vec<_> =
            page.lines().skip_while(|line| !line.starts_with("| a whole decode step |")).collect();
        let row = |start: &str| cells(table.iter().find(|line| line.starts_with(start)).unwrap());
        let header = cells(table[0]);
        for (context, without, with) in MEASURED {
            let times = row(&format!("| context {context} |"));
            let time = |column: &str| -> f64 {
                let at = header.iter().position(|name| name == column).unwrap();
                times[at].strip_suffix(" ms").unwrap().parse().unwrap()
            };
            for (column, ratio) in [("static", without), ("static, plugin", with)] {
                let measured = time(column) / time("growing");
                assert!((measured - ratio).abs() < 0.06, "{column}: {measured}, {times:?}");
            }
        }
    }
}
