//! `kvscatter apply`: executes one operator on tensor files.

use std::io::Write;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use kvscatter::{ElementType, WritePlan};
use kvscatter_onnx::Data;
use serde::Serialize;

use crate::error::CommandError;
use crate::files::{self, InPlaceFile, Location};
use crate::operators::{Described, KvCacheOperation, KvCacheUpdate, Operator, TensorScatter, element_type};
use crate::output::{Outcome, Output, count, one_line};

/// Execute one operator on tensor files
///
/// Every operator takes its cache as --cache, its update as --update and its result as --output, and also by the
/// names of the specification. The result is written to a new file. With --in-place it is written into the cache
/// file through a memory map that changes only the planned bytes.
///
/// A command that fails has changed no file, with two exceptions: the disk reported an error after the write,
/// or the report could not be printed.
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

--in-place checks everything and reserves space on the disk before it changes the first byte. \
A kill or a power loss during the write may still leave the file half written. Without --in-place, \
the result is complete or there is none.

An output replaces an existing file, but never an input, and never a .npz or .safetensors file with \
other entries.")]
pub(crate) enum Apply {
    /// ONNX TensorScatter-24
    ///
    /// The cache is (batch_size, D1, …, max_sequence_length, …, Dn), and the update has its shape, with
    /// sequence_length rows.
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
    TensorScatter(Applied<TensorScatter>),
    /// TensorRT KVCacheUpdate
    ///
    /// The cache is [b, d, s_max, h], and the update is [b, d, s, h], or packed [tokens, d, h].
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
    KvCacheUpdate(Applied<KvCacheUpdate>),
    /// Ascend ATB KVCacheOperation
    ///
    /// The past is [layer, batch, maxSeqLen, hiddenSize], and the new rows are [ntokens, hiddenSize], or [batch,
    /// seq_len, head_num, head_size].
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
    KvCacheOperation(Applied<KvCacheOperation>),
}

/// An operator and the files to execute it on.
#[derive(Debug, Args)]
pub(crate) struct Applied<O: Args> {
    /// The cache
    #[arg(long, value_name = "FILE", visible_aliases = ["past-cache", "past"])]
    cache: Location,

    /// The new rows
    #[arg(long, value_name = "FILE", visible_alias = "new-kv")]
    update: Location,

    /// The file for the result
    #[arg(
        long,
        value_name = "FILE",
        visible_aliases = ["present-cache", "present"],
        required_unless_present = "in_place",
        conflicts_with = "in_place"
    )]
    output: Option<Location>,

    #[command(flatten)]
    operator: O,

    /// Write into the cache file, and change only the planned bytes
    #[arg(long)]
    in_place: bool,

    /// Element type of .npy files that give only its width, as files of ml_dtypes do: bfloat16,
    /// float8_e4m3fn, int4, …
    #[arg(long = "type", value_name = "TYPE", ignore_case = true, hide_possible_values = true, value_parser = element_type())]
    ty: Option<ElementType>,
}

/// The arguments of any of the three operators.
struct Request {
    operator: Operator,
    cache: Location,
    update: Location,
    /// The new file, or `None` to write into the cache file.
    output: Option<Location>,
    /// The name of the result in the specification.
    output_name: &'static str,
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
}

pub(crate) fn run(apply: Apply, output: &mut Output) -> Result<Outcome, CommandError> {
    let request = match apply {
        Apply::TensorScatter(args) => args.request(Operator::TensorScatter, "present_cache"),
        Apply::KvCacheUpdate(args) => args.request(Operator::KvCacheUpdate, "output"),
        Apply::KvCacheOperation(args) => args.request(Operator::KvCacheOperation, "present"),
    };
    let report = match &request.output {
        Some(location) => functional(&request, location)?,
        None => in_place(&request)?,
    };
    if output.is_json() {
        output.json(&report)?;
    } else {
        report.print(output)?;
    }
    Ok(Outcome::Passed)
}

/// Reads both tensors, writes the update into the copy in memory, and stores the copy.
fn functional(request: &Request, location: &Location) -> Result<Report, CommandError> {
    let mut cache = files::read(&request.cache, request.ty)?;
    let update = files::read(&request.update, request.ty)?;
    let described = [&cache, &update]
        .map(|tensor| Described { element: tensor.element(), shape: tensor.shape().to_vec() });
    let call = request.operator.prepare(&described)?;
    let plan = call.plan()?;
    let _ = cache.write(&plan, &update)?;
    let inputs: Vec<_> =
        [request.cache.path(), request.update.path()].into_iter().chain(request.operator.files()).collect();
    files::write_tensors(&[(location.clone(), request.output_name, &cache)], &inputs)?;
    Ok(Report::new(&plan, location, false))
}

/// Maps the bytes of the cache in its file and writes the update into the map. Nothing is stored before every
/// check has passed.
fn in_place(request: &Request) -> Result<Report, CommandError> {
    let update = files::read(&request.update, request.ty)?;
    let place = InPlaceFile::open(&request.cache, request.ty)?;
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
    if place.is_unpacked() {
        // The elements move as the bytes that they are stored in. Before that, the operator must accept their
        // real type.
        request.operator.prepare(&described)?.plan()?;
        for side in &mut described {
            side.element = ElementType::UInt8;
        }
        unpacked = files::unpack(bytes, update.elements());
        bytes = &unpacked;
    }
    let call = request.operator.prepare(&described)?;
    let plan = call.plan()?;
    place.write::<CommandError>(&plan, bytes)?;
    Ok(Report::new(&plan, &request.cache, true))
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

impl<O: Args> Applied<O> {
    /// Returns the request. `output_name` is the specification's name of the result.
    fn request(self, operator: impl FnOnce(O) -> Operator, output_name: &'static str) -> Request {
        let Self { cache, update, output, ty, .. } = self;
        Request { operator: operator(self.operator), cache, update, output, output_name, ty }
    }
}
