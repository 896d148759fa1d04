//! `kvscatter convert`: converts a decoder with growing caches into one whose caches are written in place.

use std::io::Write;
use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use kvscatter_onnx::convert::{
    self, ConvertOptions, Converted, KeptAttention, KeptReason, LinearWindow, RingSize, UNLIMITED,
    WindowedCaches,
};
use kvscatter_onnx::source::ModelSource;
use kvscatter_onnx::text::units;
use kvscatter_onnx::{DataFile, Model, RuntimeVersion};
use kvscatter_session::{KvSession, SessionError, SessionOptions};
use serde::Serialize;

use super::merged::{self, BranchDocument};
use super::weights::{self, WeightFileDocument, WeightFiles};
use crate::error::CommandError;
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
/// A bias that is proportional to the distance of slot and token (ALiBi) is computed with the mask. The model is
/// raised to operator set 24, and its metadata describes the new inputs. Weights are not changed.
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
/// The command computes which slots the masks of the exporter hide and what they add, and compares it with this
/// rule. It refuses a decoder that follows another rule (chunks, prefixes, the biases of T5) or that it does not
/// understand. It then writes nothing.
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

    /// Leave attention that consists of separate nodes as it is
    #[arg(long)]
    keep_attention: bool,

    /// The oldest ONNX Runtime that must run the model without kvscatter's plugin, such as 1.26
    ///
    /// Before 1.27, Attention caps scores (softcap) after the mask, so that hidden slots count. Capped attention then
    /// stays separate nodes. Without this option, the command and the model's metadata name the version that is needed.
    #[arg(long, value_name = "VERSION")]
    onnxruntime: Option<RuntimeVersion>,

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

/// The converted decoder, as `--json` prints it.
#[derive(Serialize)]
struct ConvertDocument<'a> {
    model: String,
    output: String,
    max_seq: usize,
    caches: usize,
    rings: Vec<RingDocument>,
    linear_windows: Vec<LinearWindowDocument>,
    attentions: usize,
    attention_nodes: usize,
    fused: usize,
    kept: Vec<KeptDocument<'a>>,
    write_indices: &'a str,
    attention_mask: Option<&'a str>,
    nonpad_kv_seqlen: Option<&'a str>,
    least_onnxruntime: &'a str,
    /// The branch of a merged decoder that was converted.
    #[serde(skip_serializing_if = "Option::is_none")]
    merged: Option<BranchDocument<'a>>,
    states: Vec<StateDocument<'a>>,
    /// The inputs whose meaning the graph does not show.
    unknown_inputs: &'a [String],
    /// The reason why sessions do not run the model; `null` if they do.
    refusal: Option<String>,
    cost: Cost,
    files: Vec<WeightFileDocument>,
}

/// Rings of one size.
#[derive(Serialize)]
struct RingDocument {
    capacity: usize,
    window: usize,
    chunk: usize,
    rewind: usize,
    caches: usize,
}

/// Attention with a window that reads linear caches.
#[derive(Serialize)]
struct LinearWindowDocument {
    window: usize,
    attentions: usize,
    reason: String,
}

/// An attention operation that could not become one node.
#[derive(Serialize)]
struct KeptDocument<'a> {
    output: &'a str,
    reason: String,
}

/// A state beside the caches, which is not changed.
#[derive(Serialize)]
struct StateDocument<'a> {
    past: &'a str,
    present: &'a str,
}

/// The cost of a static cache, which does not depend on how much of it is in use.
#[derive(Serialize)]
struct Cost {
    /// The bytes of all caches; `null` if the model leaves a size open.
    bytes_per_sample: Option<u64>,
    /// The bytes of all caches if none were a ring.
    bytes_per_linear_sample: Option<u64>,
    bytes_per_slot: Option<u64>,
    /// The slots of each sample that are an input of attention in every step, in a layer with the most slots.
    slots_per_step: usize,
    /// Whether attention also takes the used length, so that an engine can stop there.
    takes_length: bool,
    #[serde(skip)]
    max_seq: usize,
    /// The most tokens of a sample, if all caches are rings.
    #[serde(skip_serializing_if = "Option::is_none")]
    most_tokens: Option<usize>,
    /// Whether attention consists of Attention nodes alone.
    #[serde(skip)]
    is_all_nodes: bool,
    /// The ratio of all slots to used slots, for some numbers of used slots.
    slots_to_context: Vec<Ratio>,
}

#[derive(Serialize)]
struct Ratio {
    context: usize,
    ratio: usize,
}

/// The context lengths that the capacity is compared with.
const CONTEXTS: [usize; 4] = [8, 64, 512, 4096];

/// Times of a step with a static cache of 4096 slots, divided by the time with a growing cache: a context, the
/// ratio in ONNX Runtime, and that with the plugin. The measurement is in docs/models.md.
const MEASURED: [(usize, f64, f64); 2] = [(128, 5.3, 0.9), (4095, 0.5, 0.3)];

/// What runs a decoder with states, in the words of docs/models.md.
const WHO_RUNS_STATES: &str = "In your own loop, feed all samples equally many tokens, and no padding. KvSession and \
                               generate choose such runs themselves. certify refuses decoders with states";

impl RingDocument {
    fn new(RingSize { capacity, window, chunk, rewind, .. }: RingSize, caches: usize) -> Self {
        Self { capacity, window, chunk, rewind, caches }
    }
}

impl Cost {
    fn new(converted: &Converted, max_seq: usize) -> Self {
        let largest_ring = converted.rings.keys().map(|ring| ring.capacity).max();
        let slots = largest_ring.filter(|_| converted.most_tokens.is_some()).unwrap_or(max_seq);
        let ratio = |context: usize| {
            let ratio = slots.checked_div(context).filter(|ratio| *ratio >= 2)?;
            Some(Ratio { context, ratio })
        };
        Self {
            bytes_per_sample: converted.bytes_per_sample,
            bytes_per_linear_sample: converted.linear_bytes_per_sample,
            bytes_per_slot: converted.bytes_per_slot,
            slots_per_step: slots,
            max_seq,
            most_tokens: converted.most_tokens,
            takes_length: converted.nonpad_kv_seqlen.is_some(),
            is_all_nodes: converted.attention_nodes == converted.attentions,
            slots_to_context: CONTEXTS.into_iter().filter_map(ratio).collect(),
        }
    }

    fn show(&self, output: &mut Output) -> Result<(), CommandError> {
        self.show_bytes(output)?;
        let text = match self.most_tokens {
            Some(most_tokens) => vec![self.of_rings(most_tokens)],
            None => self.of_linear_caches(),
        };
        writeln!(output)?;
        text.iter().try_for_each(|text| writeln!(output, "{}", paragraph(text)))?;
        Ok(())
    }

    fn show_bytes(&self, output: &mut Output) -> Result<(), CommandError> {
        let (Some(sample), Some(slot), Some(linear)) =
            (self.bytes_per_sample, self.bytes_per_slot, self.bytes_per_linear_sample)
        else {
            return Ok(());
        };
        let slots = format!("{} of {}", count(self.max_seq, "slot"), units::bytes(slot));
        let without_rings = match sample == linear {
            true => ":".to_owned(),
            false => format!(". Without rings, they would take {}:", units::bytes(linear)),
        };
        writeln!(output, "\nThe caches take {} a sample{without_rings} {slots}.", units::bytes(sample))?;
        Ok(())
    }

    /// Returns what a step of a model reads whose caches are all rings.
    fn of_rings(&self, most_tokens: usize) -> String {
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
             all {} of a ring.",
            count(self.slots_per_step, "slot")
        )
    }

    /// Returns what a step of a model with linear caches reads.
    fn of_linear_caches(&self) -> Vec<String> {
        let ratios: Vec<_> = self
            .slots_to_context
            .iter()
            .map(|it| format!("{} × at {} tokens", it.ratio, it.context))
            .collect();
        let ratios = if ratios.is_empty() { String::new() } else { format!(" ({})", ratios.join(", ")) };
        let all = count(self.slots_per_step, "slot");
        let [(few, slower, few_in_plugin), (many, faster, many_in_plugin)] = MEASURED;
        let reads = |reader: &str, then: &str| {
            format!(
                "{reader} reads all {all} of each sample in every step, even if few are in use{ratios}. {then} choose \
                 --max-seq no larger than your longest text."
            )
        };
        let mut text = Vec::new();
        if self.takes_length {
            text.push(
                "With kvscatter's plugin or its engine tract, an Attention node reads only the slots in use, so its \
                 time grows with the context and not with --max-seq."
                    .to_owned(),
            );
            text.push(reads("ONNX Runtime without the plugin", "Without the plugin,"));
            if !self.is_all_nodes {
                text.push(format!("Attention of separate nodes reads all {all} in every engine."));
            }
            text.push(format!(
                "For example, a step of the decoder in docs/models.md, with 4096 slots, takes {few_in_plugin} × the \
                 time of a growing cache at {few} tokens and {many_in_plugin} × at {many} with the plugin, and {slower} × \
                 and {faster} × without it."
            ));
        } else {
            text.push(reads("Attention of separate nodes", "So"));
        }
        text
    }
}

pub(crate) fn run(args: Convert, output: &mut Output) -> Result<Outcome, CommandError> {
    let args = Convert { model: ModelSource::find(&args.model)?.model, ..args };
    let model = Model::load(&args.model)?;
    let options =
        ConvertOptions::new(args.max_seq).keep_attention(args.keep_attention).windowed(windowed(&args)?);
    let options = args.onnxruntime.map_or(options, |oldest| options.onnxruntime(oldest));
    let converted = convert::convert(&model, options).map_err(|cause| kvscatter_onnx::OnnxError::InFile {
        path: args.model.clone(),
        cause: Box::new(cause),
    })?;
    let files = converted.model.save_with_weights(&args.output, args.weights.into())?;
    if output.is_json() {
        output.json(&document(&args, &converted, &files))?;
    } else {
        show(&args, &converted, &files, output)?;
        Cost::new(&converted, args.max_seq).show(output)?;
    }
    Ok(Outcome::Passed)
}

/// Returns the oldest ONNX Runtime that computes the model correctly without the plugin.
fn least_onnxruntime(converted: &Converted) -> &str {
    converted.model.metadata("kvscatter.least_onnxruntime").unwrap_or_default()
}

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
    let slots = args.max_seq;
    let heading = format!(
        "{}: {}, read by {}",
        one_line(&args.output.display().to_string()),
        caches(converted, slots),
        readers(converted)
    );
    writeln!(output, "{}", hanging(0, &heading))?;
    rings(converted, args).iter().try_for_each(|line| writeln!(output, "{}", hanging(2, line)))?;
    weights::show(files, output)?;
    if let Some(branch) = &converted.branch {
        writeln!(output, "{}", hanging(2, &merged::line(branch)))?;
    }
    if converted.fused > 0 {
        let became =
            format!("{} took the place of separate nodes.", count(converted.fused, "Attention node"));
        writeln!(output, "{became}")?;
    }
    kept(&converted.kept).iter().try_for_each(|line| writeln!(output, "{}", hanging(2, line)))?;
    if least_onnxruntime(converted) != RuntimeVersion::WITH_SCATTER.to_string() {
        let needs = format!(
            "Attention caps its scores. Run the model with kvscatter's plugin, with tract, or with ONNX Runtime {} or \
             newer: earlier versions let hidden slots count.",
            least_onnxruntime(converted)
        );
        writeln!(output, "{}", hanging(2, &needs))?;
    }
    let input =
        |name: &str, what: &str, contract: &str| vec![name.to_owned(), what.to_owned(), contract.to_owned()];
    let first = match converted.rings.is_empty() {
        true => "the slot of each sample's first new token",
        false => "the position of each sample's first new token, which keeps growing in rings",
    };
    let mut rows = vec![input(&converted.write_indices, "int64 [batch]", first)];
    if let Some(mask) = &converted.attention_mask {
        let shape = format!("[batch, {slots}]");
        rows.push(input(mask, &shape, "1 for every slot that holds a real token after this step"));
    }
    if let Some(nonpad) = &converted.nonpad_kv_seqlen {
        let contract = format!("{} + the new tokens of this step, padding included", converted.write_indices);
        rows.push(input(nonpad, "int64 [batch]", &contract));
    }
    writeln!(output, "\n{}", table(&["Input", "Shape", "Value"], &[], rows))?;
    writeln!(
        output,
        "\n{}",
        paragraph(
            "Bind each past and its present to one buffer, and fill it with finite values at the start."
        )
    )?;
    if let Some(first) = converted.states.first() {
        let text = format!(
            "{} stays as it is, such as {:?}. Start with zeros, and feed the state of each step to the next one. A \
             state contains all tokens of a sample. {WHO_RUNS_STATES}.",
            count(converted.states.len(), "state"),
            first.past
        );
        writeln!(output, "\n{}", paragraph(&one_line(&text)))?;
    }
    if let Some(refusal) = refusal(converted) {
        let text = format!("KvSession and generate refuse this model: {refusal}. Run it in your own loop.");
        writeln!(output, "\n{}", paragraph(&one_line(&text)))?;
    }
    Ok(())
}

/// Returns the reason why sessions do not run a converted model, or `None` if they do. The limit of memory is an option
/// of each session, so it is no reason.
fn refusal(converted: &Converted) -> Option<SessionError> {
    let options = SessionOptions { memory: u64::MAX, ..SessionOptions::default() };
    KvSession::check_model(&converted.model, options).err()
}

/// Returns the number of caches of each size.
fn caches(converted: &Converted, max_seq: usize) -> String {
    let in_rings = converted.rings.values().sum();
    let linear = converted.caches.saturating_sub(in_rings);
    let sizes = converted.rings.iter().map(|(ring, caches)| (*caches, "ring", ring.capacity));
    let sizes = [(linear, "cache", max_seq)].into_iter().filter(|(caches, ..)| *caches > 0).chain(sizes);
    let texts: Vec<_> = sizes
        .map(|(caches, what, slots)| format!("{} of {}", count(caches, what), count(slots, "slot")))
        .collect();
    texts.join(" and ")
}

/// Returns a line for each size of rings, and one for each window without a ring.
fn rings(converted: &Converted, args: &Convert) -> Vec<String> {
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
        converted.rings.keys().map(ring).chain(converted.linear_windows.iter().map(linear)).collect();
    if lines.is_empty() && (args.chunk.is_some() || args.rewind.is_some()) {
        lines.push("No layer has a window, so --chunk and --rewind have no effect.".to_owned());
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
fn readers(converted: &Converted) -> String {
    let nodes = count(converted.attention_nodes, "Attention node");
    let separate = converted.attentions.saturating_sub(converted.attention_nodes);
    match (converted.attention_nodes, separate) {
        (_, 0) => nodes,
        (0, _) => format!("{} of separate nodes", count(separate, "attention")),
        _ => format!("{nodes} and {} of separate nodes", count(separate, "attention")),
    }
}

fn document<'a>(args: &Convert, converted: &'a Converted, files: &[DataFile]) -> ConvertDocument<'a> {
    ConvertDocument {
        model: args.model.display().to_string(),
        output: args.output.display().to_string(),
        max_seq: args.max_seq,
        caches: converted.caches,
        rings: converted.rings.iter().map(|(ring, caches)| RingDocument::new(*ring, *caches)).collect(),
        linear_windows: converted
            .linear_windows
            .iter()
            .map(|LinearWindow { window, attentions, reason }| LinearWindowDocument {
                window: *window,
                attentions: *attentions,
                reason: reason.to_string(),
            })
            .collect(),
        attentions: converted.attentions,
        attention_nodes: converted.attention_nodes,
        fused: converted.fused,
        kept: converted
            .kept
            .iter()
            .map(|kept| KeptDocument { output: &kept.output, reason: kept.reason.to_string() })
            .collect(),
        write_indices: &converted.write_indices,
        attention_mask: converted.attention_mask.as_deref(),
        nonpad_kv_seqlen: converted.nonpad_kv_seqlen.as_deref(),
        least_onnxruntime: least_onnxruntime(converted),
        merged: converted.branch.as_ref().map(BranchDocument::from),
        states: converted
            .states
            .iter()
            .map(|state| StateDocument { past: &state.past, present: &state.present })
            .collect(),
        unknown_inputs: &converted.unknown_inputs,
        refusal: refusal(converted).map(|refusal| refusal.to_string()),
        cost: Cost::new(converted, args.max_seq),
        files: files.iter().map(WeightFileDocument::from).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::{KeptAttention, KeptReason, MEASURED, WHO_RUNS_STATES, kept};

    #[test]
    fn attention_that_was_not_examined_takes_one_line() {
        let layer = |(at, reason)| KeptAttention { output: format!("y{at}"), reason };
        let reasons = [KeptReason::Unproved, KeptReason::Form { what: "scaled" }, KeptReason::Unproved];
        assert_eq!(
            kept(&reasons.into_iter().enumerate().map(layer).collect::<Vec<_>>()),
            [
                "Kept the nodes of \"y1\": scaled",
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
