//! `kvscatter lower`: replaces TensorScatter for engines that do not have it.

use std::io::Write;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use kvscatter_onnx::source::ModelSource;
use kvscatter_onnx::{LowerTarget, Model, lower};
use serde_json::json;

use super::weights::{self, WeightFiles};
use crate::error::CommandError;
use crate::output::{Outcome, Output, count, one_line};

/// Replace TensorScatter for an engine that does not have it
///
/// Every TensorScatter of the model becomes ScatterElements or ScatterND, which every recent engine has.
/// Added nodes compute their indices from write_indices and the shapes. All axes, batch sizes and both modes
/// (linear and circular) are supported. The results are the same, and wrong indices are still an error. The
/// rest of the model and its weights are not changed.
///
/// The command refuses element types that these operators do not have (float8, float4 and int4). It also
/// refuses a TensorScatter in the body of another node or in a function of the model.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  kvscatter lower testdata/mobius-llama-static/model.onnx -o lowered.onnx \\
      --to scatter-nd
  kvscatter lower static.onnx -o lowered.onnx --to scatter-elements --json

ScatterElements takes an index for every element of the update, and ScatterND takes an index for \
every row. Which of them is faster depends on the engine.")]
pub(crate) struct Lower {
    /// The model, an .onnx file or the folder of an export
    model: PathBuf,

    /// The file for the new model; separate files of weights are copied or linked next to it
    ///
    /// An existing file is replaced only if it is an ONNX model.
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,

    /// The operator that replaces TensorScatter
    #[arg(long, value_enum)]
    to: TargetOption,

    /// How to place files of weights if the output is in another folder
    #[arg(long, value_enum, default_value_t)]
    weights: WeightFiles,
}

/// A [`LowerTarget`] on the command line.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum TargetOption {
    /// An index for every element
    ScatterElements,
    /// An index for every row
    ScatterNd,
}

impl TargetOption {
    fn target(self) -> LowerTarget {
        match self {
            Self::ScatterElements => LowerTarget::ScatterElements,
            Self::ScatterNd => LowerTarget::ScatterNd,
        }
    }

    fn operator(self) -> &'static str {
        match self {
            Self::ScatterElements => "ScatterElements",
            Self::ScatterNd => "ScatterND",
        }
    }
}

pub(crate) fn run(args: Lower, output: &mut Output) -> Result<Outcome, CommandError> {
    let args = Lower { model: ModelSource::find(&args.model)?.model, ..args };
    let model = Model::load(&args.model)?;
    let lowered = lower(&model, args.to.target()).map_err(|cause| kvscatter_onnx::OnnxError::InFile {
        path: args.model.clone(),
        cause: Box::new(cause),
    })?;
    let files = lowered.model.save_with_weights(&args.output, args.weights.into())?;
    if output.is_json() {
        output.json(&json!({
            "model": args.model.display().to_string(),
            "output": args.output.display().to_string(),
            "operator": args.to.operator(),
            "scatters": lowered.scatters,
            "index_nodes": lowered.index_nodes,
            "files": weights::document(&files),
        }))?;
    } else {
        let operator = args.to.operator();
        writeln!(
            output,
            "{}: {} replaced by {operator}; the indices are computed by {}",
            one_line(&args.output.display().to_string()),
            count(lowered.scatters, "TensorScatter node"),
            count(lowered.index_nodes, "node")
        )?;
        weights::show(&files, output)?;
    }
    Ok(Outcome::Passed)
}
