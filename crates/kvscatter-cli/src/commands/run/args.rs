//! The arguments of `kvscatter run`.

use std::path::PathBuf;

use clap::Args;
use kvscatter_onnx::internal::eval::Placement;

use crate::commands::named::{Dim, NamedFile};
use crate::compare::Tolerance;
use crate::engines::{EngineName, OrtFiles};
use crate::numbers::{integer, tolerance};

/// Run a model once with its caches in place, and show which slots changed
///
/// MODEL is an .onnx file or the folder of an export. Inputs that --input does not give are generated from the
/// seed, with valid indices, and printed. TESTDIR is a folder with a model.onnx and test_data_set_* folders. Its
/// outputs are compared with the expected ones.
///
/// A model of TensorScatter nodes needs no engine: the command evaluates the nodes itself and draws the
/// writes. Every other model, such as a whole decoder, runs in an engine. The engine is tract unless --engine
/// names another. tract needs the cargo feature tract, and ONNX Runtime needs the feature onnxruntime. To
/// build both, in a clone of the repository: cargo install --locked --path crates/kvscatter-cli --features full
///
/// Give the sizes that the model leaves open with --dim. In a decoder, these are numbers of tokens and sizes
/// of caches.
///
/// Input files are never changed. "In place" means that present has the address of past in memory. If the
/// command evaluates the nodes, it also means that exactly the planned bytes moved.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  kvscatter run testdata/onnx-node/test_tensorscatter_circular
  kvscatter run scatter.onnx --dim batch=4 --dim max_seq=4096 --seed 7
  kvscatter run scatter.onnx -i past_cache=k.npy \\
      -i write_indices=positions.npy -o present_cache=out.safetensors#k
  kvscatter run testdata/mobius-llama-static/model.onnx \\
      --dim batch=2 --dim sequence_len=3 -o logits=logits.npy
  kvscatter run test_attention_4d --engine ort --rtol 1e-4")]
pub(crate) struct Run {
    /// An .onnx file, a test directory, or the folder of an export
    #[arg(value_name = "MODEL|TESTDIR")]
    pub(super) model: PathBuf,

    /// An input: a .npy, .npz, .pb or .safetensors file, or FILE#ENTRY
    #[arg(short, long = "input", value_name = "NAME=FILE")]
    pub(super) inputs: Vec<NamedFile>,

    /// The file for an output, in the same formats
    #[arg(short, long = "output", value_name = "NAME=FILE")]
    pub(super) outputs: Vec<NamedFile>,

    /// The size of a dimension that the model leaves open; `INPUT[AXIS]` is a dimension without a name
    #[arg(long = "dim", value_name = "NAME=N")]
    pub(super) dims: Vec<Dim>,

    /// The seed of generated inputs
    #[arg(long, default_value_t = 0, value_parser = integer::<u64>)]
    pub(super) seed: u64,

    /// Fail unless every cache is written in place
    #[arg(long, conflicts_with = "functional")]
    pub(super) in_place: bool,

    /// Write every present into a new buffer
    #[arg(long)]
    functional: bool,

    /// The engine that runs the model [default: none for TensorScatter nodes, else tract, and ort in
    /// the Python package]
    #[arg(long)]
    pub(super) engine: Option<EngineName>,

    #[command(flatten)]
    pub(super) ort: OrtFiles,

    /// Relative tolerance of the outputs [default: 0.001 in an engine, else equal bits]
    #[arg(long, value_name = "R", value_parser = tolerance)]
    rtol: Option<f64>,

    /// Absolute tolerance of the outputs [default: 1e-7 in an engine, else equal bits]
    #[arg(long, value_name = "A", value_parser = tolerance)]
    atol: Option<f64>,
}

impl Run {
    pub(super) fn placement(&self) -> Placement {
        match (self.in_place, self.functional) {
            (true, _) => Placement::InPlace,
            (_, true) => Placement::Functional,
            _ => Placement::Auto,
        }
    }

    /// Returns the tolerance of the options, or else the usual one.
    pub(super) fn tolerance(&self, usual: Option<Tolerance>) -> Option<Tolerance> {
        Tolerance::of_options(self.rtol, self.atol).or(usual)
    }
}
