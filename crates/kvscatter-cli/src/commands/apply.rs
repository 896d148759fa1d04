//! `kvscatter apply`: executes one operator on tensor files.

use std::io::Write;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use kvscatter::{ElementType, WritePlan};
use kvscatter_onnx::Data;
use serde::Serialize;

use crate::error::CommandError;
use crate::files::{self, InPlaceFile, Interrupted, Location, Stored};
use crate::operators::{Described, KvCacheOperation, KvCacheUpdate, Operator, TensorScatter, element_type};
use crate::output::{Outcome, Output, count, one_line};

/// Execute one operator on tensor files
///
/// Options have the names of the specification. Every operator also takes its cache as --cache and its update
/// as --update, as kvscatter plan does. The result is written to a new file. With --in-place it is written
/// into the cache file through a memory map that changes only the planned bytes.
///
/// A command that fails has changed no file, with three exceptions: the disk reported an error after the
/// write, the report could not be printed, or the command first undid an earlier write.
#[derive(Debug, Subcommand)]
#[command(after_help = "\
Examples:
  kvscatter apply tensor-scatter --past-cache k.npy --update new.npy \\
      --write-indices 3,0 --present-cache out.npy
  kvscatter apply tensor-scatter --past-cache model.safetensors#k \\
      --update new.npy --type bfloat16 --write-indices positions.npy \\
      --mode circular --in-place
  kvscatter apply kv-cache-update --cache k.npy --update new.npy \\
      --write-indices 3,0 --output out.npy
  kvscatter apply kv-cache-operation --past k.npy --new-kv new.npy \\
      --layer-id 0 --token-offset 5,2 --seq-len 2,1 --present out.npy

--in-place takes .npy files, .pb files with their values in raw_data, and entries of .safetensors \
files. It locks the file against other kvscatter commands. Do not write the file with another \
program at the same time.

--in-place first writes the old and the new bytes to a journal in the same folder, \
.NAME.kvscatter-journal, and removes it after the write. If the command is killed, the next command \
with --in-place undoes the write, or finds it complete, and prints a note. Until then, do not move, \
copy or change the file. --no-journal saves time for large updates, but an interrupted write stays \
partly done.

An output replaces an existing file, but never an input, and never a .npz or .safetensors file with \
other entries.")]
pub(crate) enum Apply {
    TensorScatter(ApplyTensorScatter),
    KvCacheUpdate(ApplyKvCacheUpdate),
    KvCacheOperation(ApplyKvCacheOperation),
}

/// ONNX TensorScatter-24
#[derive(Debug, Args)]
#[command(
    override_usage = "kvscatter apply tensor-scatter [OPTIONS] --past-cache <FILE> \\
           --update <FILE>",
    after_help = "\
Examples:
  kvscatter apply tensor-scatter --past-cache k.npy --update new.npy \\
      --write-indices 3,0 --present-cache out.npy
  kvscatter apply tensor-scatter --past-cache k.npy --update new.npy \\
      --write-indices=-1,7 --mode circular --in-place"
)]
pub(crate) struct ApplyTensorScatter {
    /// The cache: (batch_size, D1, …, max_sequence_length, …, Dn)
    #[arg(long, value_name = "FILE", visible_aliases = ["cache", "past"])]
    past_cache: Location,

    /// The new rows: the shape of the cache, with sequence_length rows
    #[arg(long, value_name = "FILE", visible_alias = "new-kv")]
    update: Location,

    /// The file for the result
    #[arg(long, value_name = "FILE", required_unless_present = "in_place", conflicts_with = "in_place")]
    present_cache: Option<Location>,

    #[command(flatten)]
    operator: TensorScatter,

    #[command(flatten)]
    common: Common,
}

/// TensorRT KVCacheUpdate
#[derive(Debug, Args)]
#[command(
    override_usage = "kvscatter apply kv-cache-update [OPTIONS] --cache <FILE> \\
           --update <FILE> --write-indices <INDICES>",
    after_help = "\
Examples:
  kvscatter apply kv-cache-update --cache k.npy --update new.npy \\
      --write-indices 3,0 --output out.npy
  kvscatter apply kv-cache-update --cache k.npy --update packed.npy \\
      --write-indices 3,0 --update-lengths 0,1,3 --in-place"
)]
pub(crate) struct ApplyKvCacheUpdate {
    /// The cache: [b, d, s_max, h]
    #[arg(long, value_name = "FILE", visible_aliases = ["past-cache", "past"])]
    cache: Location,

    /// The new rows: [b, d, s, h], or packed [tokens, d, h]
    #[arg(long, value_name = "FILE", visible_alias = "new-kv")]
    update: Location,

    /// The file for the result
    #[arg(long, value_name = "FILE", required_unless_present = "in_place", conflicts_with = "in_place")]
    output: Option<Location>,

    #[command(flatten)]
    operator: KvCacheUpdate,

    #[command(flatten)]
    common: Common,
}

/// Ascend ATB KVCacheOperation
#[derive(Debug, Args)]
#[command(
    override_usage = "kvscatter apply kv-cache-operation [OPTIONS] --past <FILE> \\
           --new-kv <FILE> --layer-id <INDEX> \\
           --token-offset <INDICES> --seq-len <INDICES>",
    after_help = "\
Examples:
  kvscatter apply kv-cache-operation --past k.npy --new-kv new.npy \\
      --layer-id 0 --token-offset 5,2 --seq-len 2,1 --present out.npy
  kvscatter apply kv-cache-operation --past k.npy --new-kv new.npy \\
      --layer-id 0 --token-offset 5,2 --seq-len 2,1 --in-place"
)]
pub(crate) struct ApplyKvCacheOperation {
    /// The cache: [layer, batch, maxSeqLen, hiddenSize]
    #[arg(long, value_name = "FILE", visible_aliases = ["cache", "past-cache"])]
    past: Location,

    /// The new rows: [ntokens, hiddenSize], or [batch, seq_len, head_num, head_size]
    #[arg(long, value_name = "FILE", visible_alias = "update")]
    new_kv: Location,

    /// The file for the result
    #[arg(long, value_name = "FILE", required_unless_present = "in_place", conflicts_with = "in_place")]
    present: Option<Location>,

    #[command(flatten)]
    operator: KvCacheOperation,

    #[command(flatten)]
    common: Common,
}

#[derive(Debug, Args)]
struct Common {
    /// Write into the cache file, and change only the planned bytes
    #[arg(long)]
    in_place: bool,

    /// Write no journal; an interrupted write then stays partly done
    #[arg(long, requires = "in_place")]
    no_journal: bool,

    /// Element type of .npy files that give only its width, as files of ml_dtypes do: bfloat16,
    /// float8_e4m3fn, int4, …
    #[arg(long = "type", value_name = "TYPE", ignore_case = true, hide_possible_values = true, value_parser = element_type())]
    ty: Option<ElementType>,
}

/// The common arguments of the three forms of the command.
struct Request {
    operator: Operator,
    cache: Location,
    update: Location,
    /// The new file, or `None` to write into the cache file.
    output: Option<Location>,
    /// The name of the result in the specification.
    output_name: &'static str,
    journal: bool,
    ty: Option<ElementType>,
}

/// The finished write, as `--json` prints it.
#[derive(Debug, Serialize)]
struct Report {
    output: PathBuf,
    in_place: bool,
    /// The number of bytes written, or `None` for strings.
    bytes: Option<usize>,
    samples: usize,
    skipped: usize,
    blocks: usize,
    /// The result of an earlier write that was interrupted.
    #[serde(skip_serializing_if = "Option::is_none")]
    interrupted: Option<Interrupted>,
}

pub(crate) fn run(apply: Apply, output: &mut Output) -> Result<Outcome, CommandError> {
    let request = Request::from(apply);
    let report = match &request.output {
        Some(location) => functional(&request, location, output)?,
        None => in_place(&request, output)?,
    };
    if output.is_json() {
        output.json(&report)?;
    } else {
        report.print(output)?;
    }
    Ok(Outcome::Passed)
}

/// Reads both tensors, writes the update into the copy in memory, and stores the copy.
fn functional(request: &Request, location: &Location, output: &Output) -> Result<Report, CommandError> {
    note_in_progress(&request.cache, output);
    note_in_progress(&request.update, output);
    let mut cache = files::read(&request.cache, request.ty)?;
    let update = files::read(&request.update, request.ty)?;
    let described = [&cache, &update]
        .map(|tensor| Described { element: tensor.element(), shape: tensor.shape().to_vec() });
    let report = request.operator.with_plan(&described, |plan| {
        let _ = cache.write(plan, &update)?;
        Ok(Report::new(plan, location, false))
    })?;
    let inputs: Vec<_> =
        [request.cache.path(), request.update.path()].into_iter().chain(request.operator.files()).collect();
    files::write_tensors(&[(location.clone(), request.output_name, &cache)], &inputs)?;
    Ok(report)
}

/// Maps the bytes of the cache in its file and writes the update into the map. Nothing is stored before every
/// check has passed.
fn in_place(request: &Request, output: &Output) -> Result<Report, CommandError> {
    // The update can be the cache itself, so an interrupted write ends before the update is read.
    let earlier = files::end_interrupted(&request.cache)?;
    note_interrupted(&request.cache, earlier, output);
    note_in_progress(&request.update, output);
    let update = files::read(&request.update, request.ty)?;
    let place = InPlaceFile::open(&request.cache, request.ty)?;
    note_interrupted(&request.cache, place.interrupted(), output);
    let interrupted = place.interrupted().or(earlier);
    let mut described = [
        Described { element: place.element(), shape: place.shape().to_vec() },
        Described { element: update.element(), shape: update.shape().to_vec() },
    ];
    let mut bytes = match update.data() {
        Data::Bytes(bytes) => bytes,
        // A cache in place has no strings, so the operator refuses these.
        Data::Strings(_) => &Vec::new(),
    };
    let unpacked;
    if place.stored() == Stored::BytePerElement {
        // The elements move as the bytes that they are stored in. Before that, the operator must accept their
        // real type.
        request.operator.with_plan(&described, |_| Ok(()))?;
        for side in &mut described {
            side.element = ElementType::UInt8;
        }
        unpacked = files::unpack(bytes, update.elements());
        bytes = &unpacked;
    }
    request.operator.with_plan(&described, |plan| {
        let report = Report { interrupted, ..Report::new(plan, &request.cache, true) };
        place.write(plan, bytes, request.journal, |cache| -> Result<(), CommandError> {
            let _ = plan.write_bytes(cache, bytes)?;
            Ok(())
        })?;
        Ok(report)
    })
}

/// Tells the user that an earlier write was interrupted, and how it has ended.
fn note_interrupted(cache: &Location, interrupted: Option<Interrupted>, output: &Output) {
    let end = match interrupted {
        None => return,
        Some(Interrupted::Undone) => "and has been undone",
        Some(Interrupted::Complete) => "after its last byte, and is complete",
    };
    output.note(&format!("{cache}: an earlier write was interrupted {end}"));
}

/// Tells the user that an input may be a mixture of two states.
fn note_in_progress(input: &Location, output: &Output) {
    if files::is_in_progress(input) {
        output.note(&format!("{input}: a write into this file is running or was interrupted, so the file may contain a part of it"));
    }
}

impl Report {
    fn new(plan: &WritePlan<'_>, output: &Location, in_place: bool) -> Self {
        Self {
            output: output.path().to_owned(),
            in_place,
            bytes: plan.bytes(),
            samples: plan.batch(),
            skipped: plan.skipped(),
            blocks: plan.block_count(),
            interrupted: None,
        }
    }

    fn print(&self, output: &mut Output) -> std::io::Result<()> {
        let path = one_line(&self.output.display().to_string());
        let what = match self.bytes {
            Some(bytes) => count(bytes, "byte"),
            None => "strings".to_owned(),
        };
        let how = if self.in_place { "in place, " } else { "" };
        write!(
            output,
            "{path}: {what} written {how}in {} for {}",
            count(self.blocks, "block"),
            count(self.samples, "sample")
        )?;
        if self.skipped > 0 {
            write!(output, "; {} skipped", count(self.skipped, "sample"))?;
        }
        writeln!(output)
    }
}

impl From<Apply> for Request {
    fn from(apply: Apply) -> Self {
        match apply {
            Apply::TensorScatter(args) => Self {
                operator: Operator::TensorScatter(args.operator),
                cache: args.past_cache,
                update: args.update,
                output: args.present_cache,
                output_name: "present_cache",
                journal: !args.common.no_journal,
                ty: args.common.ty,
            },
            Apply::KvCacheUpdate(args) => Self {
                operator: Operator::KvCacheUpdate(args.operator),
                cache: args.cache,
                update: args.update,
                output: args.output,
                output_name: "output",
                journal: !args.common.no_journal,
                ty: args.common.ty,
            },
            Apply::KvCacheOperation(args) => Self {
                operator: Operator::KvCacheOperation(args.operator),
                cache: args.past,
                update: args.new_kv,
                output: args.present,
                output_name: "present",
                journal: !args.common.no_journal,
                ty: args.common.ty,
            },
        }
    }
}
