//! `kvscatter plan`: shows what a write would change, as a picture and as blocks.

use std::io::Write;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use kvscatter::picture::{Picture, RingLane, RingOutcome, RingPicture};
use kvscatter::visibility::Visibility;
use kvscatter::{Block, ElementType, Loop, Mode, Segment, WritePlan};
use kvscatter_onnx::internal::file::OutputFileKind;
use serde_json::{Value, json};

use crate::error::CommandError;
use crate::files;
use crate::json::without_null;
use crate::numbers::integer;
use crate::operators::{KvCacheOperation, KvCacheUpdate, Operand, Operator, TensorScatter, element_type};
use crate::output::{Outcome, Output, count, hanging, one_line, table};

/// The most lanes of the picture and rows of the table.
const SHOWN: usize = 32;

/// The most entries of each list of `--json`. A shape on the command line may claim any number of samples.
const LISTED: usize = 10_000;

/// The most samples whose ring is printed, which takes several lines each.
const SHOWN_RINGS: usize = 8;

/// The most lanes of the SVG.
const SVG_LANES: usize = 256;

/// Show what a write would change, without any data
///
/// Prints one lane per sample, with different marks for old, written, wrapped and skipped slots, and then the
/// blocks. A block is one contiguous run of elements. Its loops repeat it and are printed as `times × cache
/// stride ← update stride`.
#[derive(Debug, Subcommand)]
#[command(after_help = "\
Examples:
  kvscatter plan tensor-scatter --cache 4,8,16,64 --update 4,8,3,64 \\
      --write-indices 3,0,14,7 --mode circular
  kvscatter plan tensor-scatter --cache k.npy --update new.npy \\
      --write-indices at.npy --svg write.svg
  kvscatter plan tensor-scatter --cache 2,8,16,64 --update 2,8,1,64 \\
      --write-indices 3,21 --mode circular --visible=8
  kvscatter plan tensor-scatter --cache 1,8,11,64 --update 1,8,4,64 \\
      --write-indices 20 --mode circular --window 8
  kvscatter plan kv-cache-update --cache 4,2,8,64 --update 3,2,64 \\
      --write-indices 2,0,5 --update-lengths 0,1,1,3
  kvscatter plan kv-cache-operation --past 2,2,8,64 --new-kv 3,64 \\
      --layer-id 1 --token-offset 5,2 --seq-len 2,1

Each of --cache and --update is a shape or a file. Only the header of a file is used.")]
pub(crate) enum Plan {
    /// ONNX TensorScatter-24
    #[command(override_usage = "kvscatter plan tensor-scatter [OPTIONS] --cache <SHAPE|FILE> \\
           --update <SHAPE|FILE>")]
    TensorScatter(PlannedRing),
    /// TensorRT KVCacheUpdate
    #[command(override_usage = "kvscatter plan kv-cache-update [OPTIONS] --cache <SHAPE|FILE> \\
           --update <SHAPE|FILE> --write-indices <INDICES>")]
    KvCacheUpdate(Planned<KvCacheUpdate>),
    /// Ascend ATB KVCacheOperation
    #[command(override_usage = "kvscatter plan kv-cache-operation [OPTIONS] --past <SHAPE|FILE> \\
           --new-kv <SHAPE|FILE> --layer-id <INDEX> \\
           --token-offset <INDICES> --seq-len <INDICES>")]
    KvCacheOperation(Planned<KvCacheOperation>),
}

/// A TensorScatter, whose cache may be a ring.
#[derive(Debug, Args)]
pub(crate) struct PlannedRing {
    #[command(flatten)]
    planned: Planned<TensorScatter>,

    /// Also show which position each slot of a ring contains, and what a window of TOKENS finds
    ///
    /// A token sees itself and the TOKENS - 1 tokens before it. The picture shows what the first and the last
    /// written token see, whether the step overwrites something that they need, and how far the sample can be
    /// taken back afterwards. It assumes that the sample was not taken back before.
    #[arg(long, value_name = "TOKENS", value_parser = integer::<NonZeroUsize>)]
    window: Option<NonZeroUsize>,
}

/// An operator and the shapes to plan it for.
#[derive(Debug, Args)]
pub(crate) struct Planned<O: Args> {
    /// The cache: a shape or a file
    #[arg(long, value_name = "SHAPE|FILE", visible_aliases = ["past-cache", "past"])]
    cache: Operand,

    /// The new rows: a shape or a file
    #[arg(long, value_name = "SHAPE|FILE", visible_alias = "new-kv")]
    update: Operand,

    #[command(flatten)]
    operator: O,

    /// Element type of shapes, and of .npy files that give only its width [default: float16]
    #[arg(long = "type", value_name = "TYPE", ignore_case = true, hide_possible_values = true, value_parser = element_type())]
    ty: Option<ElementType>,

    /// Also mark the slots that the last written token sees, with a window of WINDOW tokens if given
    ///
    /// The token sees itself and the cached tokens before it. With a window, it sees only the last WINDOW of
    /// these.
    #[arg(long, value_name = "WINDOW", num_args = 0..=1, require_equals = true, value_parser = integer::<NonZeroUsize>)]
    visible: Option<Option<NonZeroUsize>>,

    /// Also draw the picture into this SVG file; - prints only the picture
    ///
    /// An existing file is replaced only if it is an SVG picture.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

pub(crate) fn run(plan: Plan, output: &mut Output) -> Result<Outcome, CommandError> {
    match plan {
        Plan::TensorScatter(PlannedRing { planned, window }) => {
            planned.show(Operator::TensorScatter, window, output)
        }
        Plan::KvCacheUpdate(planned) => planned.show(Operator::KvCacheUpdate, None, output),
        Plan::KvCacheOperation(planned) => planned.show(Operator::KvCacheOperation, None, output),
    }
}

impl<O: Args> Planned<O> {
    fn show(
        self,
        operator: impl FnOnce(O) -> Operator,
        window: Option<NonZeroUsize>,
        output: &mut Output,
    ) -> Result<Outcome, CommandError> {
        let described = Operand::describe_pair(&self.cache, &self.update, self.ty)?;
        let operator = operator(self.operator);
        if let Some(window) = window.filter(|_| operator.mode() == Mode::Linear) {
            return Err(CommandError::NoRing { window: window.get() });
        }
        let shapes = described.clone().map(|side| side.shape);
        let call = operator.prepare(&described)?;
        let plan = &call.plan()?;
        let picture = |lanes| {
            let picture = Picture::new(plan, lanes);
            let Some(window) = self.visible else { return picture };
            let rule = Visibility::new(operator.mode(), picture.capacity).causal();
            picture.visible(window.map_or(rule, |size| rule.window(size.get())))
        };
        let ring = |lanes| window.map(|window| RingPicture::new(&Picture::new(plan, lanes), window.get()));
        if self.svg.as_deref() == Some(Path::new("-")) {
            write!(output, "{}", picture(SVG_LANES).svg())?;
            return Ok(Outcome::Passed);
        }
        if let Some(path) = &self.svg {
            let operands = [self.cache.path(), self.update.path()].into_iter().flatten();
            let inputs: Vec<_> = operands.chain(operator.files()).collect();
            let svg = picture(SVG_LANES).svg().to_string();
            files::write_page(path, &svg, OutputFileKind::Svg, &inputs)?;
        }
        if output.is_json() {
            let ring = ring(Picture::MAX_LANES);
            output.json(&document(plan, operator.has_layers(), &shapes, ring.as_ref()))?;
            return Ok(Outcome::Passed);
        }
        let (element, [cache, update]) = (plan.geometry().element(), shapes);
        writeln!(output, "{}\n", hanging(0, &format!("{element} cache {cache:?}, update {update:?}")))?;
        output.picture(&picture(SHOWN))?;
        writeln!(output)?;
        if let Some(ring) = ring(SHOWN_RINGS) {
            output.ring_picture(&ring)?;
            writeln!(output)?;
        }
        print_blocks(plan, output)?;
        let samples = plan.geometry().cache_batch();
        if let Some(path) = self.svg.as_ref().filter(|_| samples > SVG_LANES) {
            let path = one_line(&path.display().to_string());
            writeln!(output, "{path}: the first {SVG_LANES} of {samples} samples")?;
        }
        Ok(Outcome::Passed)
    }
}

fn print_blocks(plan: &WritePlan<'_>, output: &mut Output) -> Result<(), CommandError> {
    let blocks: Vec<_> = plan.blocks().take(SHOWN).collect();
    if !blocks.is_empty() {
        let rows = blocks.iter().enumerate().map(|(index, block)| {
            vec![
                index.to_string(),
                block.dst_offset.to_string(),
                block.src_offset.to_string(),
                block.len.to_string(),
                loops_text(block),
            ]
        });
        let headers = ["block", "cache offset", "update offset", "elements", "loops"];
        writeln!(output, "{}", table(&headers, &[0, 1, 2, 3], rows))?;
    }
    if blocks.len() == SHOWN && plan.blocks().nth(SHOWN).is_some() {
        writeln!(output, "… and more (--json lists up to {LISTED})")?;
    }
    let elements = count(plan.elements(), "element");
    let bytes = plan.bytes().map(|bytes| format!(" ({})", count(bytes, "byte"))).unwrap_or_default();
    writeln!(output, "{}", hanging(0, &format!("writes {elements}{bytes}; nothing else changes")))?;
    Ok(())
}

fn loops_text(block: &Block) -> String {
    let loops: Vec<_> = repeating_loops(block)
        .map(|each| format!("{} × {:+} ← {:+}", each.count, each.dst_stride, each.src_stride))
        .collect();
    loops.join(", ")
}

/// Returns the loops of a block that make more than one step.
fn repeating_loops(block: &Block) -> impl Iterator<Item = &Loop> {
    block.loops.iter().filter(|each| each.count != 1)
}

/// Returns the plan, as `--json` prints it. Offsets, strides and lengths count elements, and each list has at most
/// [`LISTED`] entries.
fn document(
    plan: &WritePlan<'_>,
    has_layers: bool,
    shapes: &[Vec<usize>; 2],
    ring: Option<&RingPicture>,
) -> Value {
    let (geometry, [cache, update]) = (plan.geometry(), shapes);
    let segments: Vec<_> = plan.segments().take(LISTED).collect();
    let blocks: Vec<_> = plan.blocks().take(LISTED).collect();
    let after_last = segments.last().map_or(0, |segment| segment.sample.saturating_add(1));
    let samples_left_out = if segments.len() < LISTED { 0 } else { plan.batch().saturating_sub(after_last) };
    let listed = blocks.iter().map(elements).fold(0, usize::saturating_add);
    let document = json!({
        "element": geometry.element().onnx_name(),
        "cache": cache,
        "update": update,
        "capacity": geometry.capacity(),
        "samples": plan.batch(),
        "skipped": plan.skipped(),
        "skipped_samples": plan.skipped_samples().take(LISTED).collect::<Value>(),
        "layer": has_layers.then(|| plan.layer()),
        "elements": plan.elements(),
        "bytes": plan.bytes(),
        "segments": segments.iter().map(segment).collect::<Value>(),
        "samples_left_out": samples_left_out,
        "blocks": blocks.iter().map(block).collect::<Value>(),
        "elements_left_out": plan.elements().saturating_sub(listed),
        "ring": ring.map(ring_document),
    });
    without_null(document, &["layer", "ring"])
}

fn segment(segment: &Segment) -> Value {
    json!({
        "sample": segment.sample,
        "slot": segment.slot,
        "row": segment.row,
        "rows": segment.rows,
        // Whether the segment follows the end of a ring.
        "wrapped": segment.is_wrapped(),
    })
}

fn block(block: &Block) -> Value {
    let repeat = |each: &Loop| json!({"count": each.count, "cache_stride": each.dst_stride, "update_stride": each.src_stride});
    json!({
        "cache_offset": block.dst_offset,
        "update_offset": block.src_offset,
        "len": block.len,
        "loops": repeating_loops(block).map(repeat).collect::<Value>(),
    })
}

/// Returns the steps of the samples in a picture. Samples without a step are left out.
fn ring_document(picture: &RingPicture) -> Value {
    let step = |lane: &RingLane| match lane.outcome {
        RingOutcome::Step(step) => Some(without_null(
            json!({
                "sample": lane.sample,
                "position": step.start,
                "rows": step.rows,
                // Whether each token sees its window.
                "exact": step.is_exact,
                "most_rows": step.most_rows,
                "least_capacity": step.least_capacity,
                // The lowest position to which the sample can be taken back, which is 0 if every position is possible.
                "least_start": step.is_exact.then_some(step.least_start),
            }),
            &["least_start"],
        )),
        RingOutcome::Nothing | RingOutcome::Skipped | RingOutcome::Negative => None,
    };
    json!({"window": picture.ring.window(), "steps": picture.lanes.iter().filter_map(step).collect::<Value>()})
}

/// Returns the number of elements that a block moves.
fn elements(block: &Block) -> usize {
    block.loops.iter().fold(block.len, |elements, each| elements.saturating_mul(each.count))
}
