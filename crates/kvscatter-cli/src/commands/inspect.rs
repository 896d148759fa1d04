//! `kvscatter inspect`: shows the caches of a decoder, their cost, and what is wrong with them.

mod document;
mod facts;
mod fold;
mod group_query;
mod show;
mod words;

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use kvscatter_onnx::check_rings;
use kvscatter_onnx::convert::ConvertOutcome;
use kvscatter_onnx::decoder::{Cache, Decoder};
use kvscatter_onnx::source::ModelSource;
use kvscatter_onnx::{Model, PlainDecoder, hazards_beside, plain_decoder};

use crate::commands::named::{Dim, unique};
use crate::error::CommandError;
use crate::numbers::integer;
use crate::output::{Outcome, Output};
use facts::{Inspected, Sizes, WholeCache, open_dims};
use group_query::Coverage;

/// The tokens in the cache if neither the user nor the model gives a number.
const LENGTH: usize = 2048;

/// Show the KV caches of a decoder, their cost, and what prevents writes in place
///
/// The command pairs past and present by following the graph, not by their names. The costs are the costs of
/// a step of one token per sample. A growing cache is copied whole. A static cache receives only the new
/// rows, if past and present share it.
///
/// Hazards are printed, and are not a failure. With --target, the exit code is 1 if the target refuses the
/// model.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  kvscatter inspect testdata/optimum-llama/model.onnx
  kvscatter inspect decoder.onnx --batch 8 --length 4096 --max-seq 8192
  kvscatter inspect decoder.onnx --target tensorrt
  kvscatter inspect decoder.onnx --json")]
pub(crate) struct Inspect {
    /// An .onnx file, or the folder of an export; only tables of positions are read from its external data
    ///
    /// If config.json or genai_config.json is in the folder of the file, the command also compares the graph with
    /// the sliding window, the bias by position and the context that it declares.
    model: PathBuf,

    /// Samples in a batch
    #[arg(long, value_name = "N", default_value = "1", value_parser = integer::<NonZeroUsize>)]
    batch: NonZeroUsize,

    /// Tokens of each sample in the cache [default: the model's capacity, or 2048]
    #[arg(long, value_name = "N", value_parser = integer::<usize>)]
    length: Option<usize>,

    /// Slots of each sample in a static cache [default: the model's capacity, or --length]
    #[arg(long, value_name = "N", value_parser = integer::<NonZeroUsize>)]
    max_seq: Option<NonZeroUsize>,

    /// The size of a dimension that the costs depend on; `PAST[AXIS]` is a dimension without a name
    #[arg(long = "dim", value_name = "NAME=N")]
    dims: Vec<Dim>,

    /// Also show what this runtime refuses
    #[arg(long, value_name = "RUNTIME")]
    target: Option<Target>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Target {
    /// TensorRT, whose parser turns each TensorScatter into a KVCacheUpdate layer
    #[value(name = "tensorrt")]
    TensorRt,
}

pub(crate) fn run(args: Inspect, output: &mut Output) -> Result<Outcome, CommandError> {
    let args = Inspect { model: ModelSource::find(&args.model)?.model, ..args };
    unique("--dim", args.dims.iter().map(|dim| &dim.name))?;
    let model = Model::load(&args.model)?;
    let in_file =
        |cause| kvscatter_onnx::OnnxError::InFile { path: args.model.clone(), cause: Box::new(cause) };
    let PlainDecoder { model, form } = plain_decoder(&model).map_err(in_file)?;
    let model = &*model;
    let graph = model.graph().map_err(in_file)?;
    let decoder = Decoder::from_graph(&graph).map_err(in_file)?;
    let sizes = sizes(&args, &decoder)?;
    let rings = check_rings(model, &graph, &decoder);
    let mut hazards: Vec<_> = rings.iter().filter_map(|ring| ring.outcome.as_ref().err().cloned()).collect();
    hazards.extend(decoder.hazards());
    hazards.extend(hazards_beside(model, &graph, &decoder));
    let grows = decoder.caches.iter().any(|cache| cache.style.growth().is_some());
    let is_converted = grows || decoder.caches.iter().all(Cache::is_scattered);
    let inspected = Inspected {
        model: args.model.display().to_string(),
        advice: is_converted.then(|| match args.max_seq {
            Some(max_seq) => ConvertOutcome::at(model, max_seq.get()),
            None => ConvertOutcome::near(model, sizes.capacity),
        }),
        sizes,
        form: form.as_ref(),
        hazards,
        rings,
        refusals: args.target.map(|Target::TensorRt| decoder.tensorrt_refusals()),
        group_query_nodes: Coverage::read(&graph),
        scatters: graph.nodes().iter().filter(|node| node.is("TensorScatter")).count(),
        caches: WholeCache::all(&decoder),
        decoder: &decoder,
    };
    if output.is_json() {
        output.json(&document::document(&inspected))?;
    } else {
        show::show(&inspected, output)?;
    }
    let is_refused = inspected.refusals.as_ref().is_some_and(|refusals| !refusals.is_empty());
    Ok(if is_refused { Outcome::Failed } else { Outcome::Passed })
}

/// Returns the given sizes. Each of them must be the size of a dimension that the costs depend on.
fn dims(given: &[Dim], decoder: &Decoder<'_>) -> Result<BTreeMap<String, usize>, CommandError> {
    let open = open_dims(decoder, &BTreeMap::new());
    match given.iter().find(|dim| !open.contains(&dim.name)) {
        Some(dim) => Err(CommandError::DimUnknown { name: dim.name.clone(), open }),
        None => Ok(given.iter().map(|dim| (dim.name.clone(), dim.size)).collect()),
    }
}

/// Returns the sizes of the options, or else those of the model, or else usual ones.
fn sizes(args: &Inspect, decoder: &Decoder<'_>) -> Result<Sizes, CommandError> {
    let room = decoder.caches.iter().filter_map(Cache::fixed_capacity).min();
    let max_seq = args.max_seq.map(NonZeroUsize::get);
    if let (Some(length), Some(limit)) = (args.length, room.or(max_seq))
        && length > limit
    {
        return Err(CommandError::LengthBeyond { length, limit });
    }
    let length = args.length.or(room).unwrap_or_else(|| max_seq.map_or(LENGTH, |max| max.min(LENGTH)));
    Ok(Sizes {
        batch: args.batch.get(),
        length,
        capacity: max_seq.or(room).unwrap_or(length),
        dims: dims(&args.dims, decoder)?,
    })
}
