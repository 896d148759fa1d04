//! The errors that stop a command with exit code 2 and one line.

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;

use kvscatter::ElementType;
use kvscatter_onnx::EvalError;
use kvscatter_onnx::internal::random_inputs::DynamicDim;

use crate::output::{count, one_line};
use crate::{files, options};

/// An error of a command. Each variant but the last is about bad input and prints as one lower-case line that
/// names the argument, the value and the limit.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CommandError {
    #[error(transparent)]
    File(#[from] files::FileError),
    #[error(transparent)]
    Write(#[from] kvscatter::Error),
    #[error("{}", files::plain(.0))]
    Onnx(#[from] kvscatter_onnx::OnnxError),
    /// A model that cannot be converted, and that runs as it was exported.
    #[error("{}; --no-convert runs the model as it was exported", files::plain(.0))]
    NoConvert(kvscatter_onnx::OnnxError),
    #[cfg(feature = "certify")]
    #[error("{}{}", files::plain(.0), options::of_certify(.0))]
    Certify(#[from] kvscatter_certify::CertifyError),
    #[cfg(feature = "onnxruntime")]
    #[error("{}{}", .0, options::of_runtime(.0))]
    OnnxRuntime(#[from] kvscatter_ort_engine::RuntimeError),
    #[error("{}{}", files::plain(.0), options::of_session(.0))]
    Session(#[from] kvscatter_session::SessionError),
    #[cfg(feature = "text")]
    #[error(transparent)]
    Text(#[from] crate::text::TextError),
    /// A part of the command needs a cargo feature that this build does not have.
    #[cfg(not(all(feature = "certify", feature = "onnxruntime", feature = "text", feature = "tract")))]
    #[error(
        "this kvscatter was built without {what}; build it in a clone of the repository with: cargo install --locked \
         --path crates/kvscatter-cli --features {feature} (or: cargo run --release --features {feature} -- ...)"
    )]
    NotBuilt { what: &'static str, feature: &'static str },
    #[error("{option}: only ONNX Runtime uses this; add --engine ort")]
    LibraryUnused { option: &'static str },
    /// A line of a file of prompts is wrong.
    #[error("{place}, line {line}: {problem}")]
    Prompt { place: String, line: usize, problem: String },
    #[error("{place}: contains no prompt")]
    NoPrompts { place: String },
    #[error("--eos {id}: must be 0 to {}, as the vocabulary has {vocabulary} tokens", vocabulary.saturating_sub(1))]
    EosUnknown { id: i64, vocabulary: usize },
    #[error("--no-rotation: only caches of int8 are rotated; leave it out, or use --cache-type int8")]
    RotationUnused,
    #[error("names of caches: {0}")]
    Names(#[from] kvscatter_onnx::convert::CacheNamesError),
    #[error("--cache-type bfloat16: tract has no bfloat16; add --engine ort, or use float16")]
    BFloat16InTract,
    #[error("--encoder-output {}: is also the path of --output; give the encoder another path", .path.display())]
    EqualOutputs { path: PathBuf },
    #[error("{}: is read by this command; give the output another path", .path.display())]
    OutputIsInput { path: PathBuf },
    #[error("the decoder takes {input:?} from an encoder: add --encoder FILE and --encoder-input NAME=FILE")]
    NoEncoder { input: String },
    #[error("{option}: only rings use it; leave it out, or leave out --window mask")]
    OnlyRings { option: &'static str },
    /// An input has values that an engine does not accept.
    #[error("input {input:?} contains strings: engines accept only numbers")]
    StringsInEngine { input: String },
    #[error("--in-place: {past:?} cannot be written in place, because {why}")]
    CannotShare { past: String, why: &'static str },
    #[error("a step of {width} tokens does not fit into caches of {capacity} slots")]
    StepTooLong { width: usize, capacity: usize },
    #[error("--window {window}: a linear cache keeps every position; add --mode circular for a ring")]
    NoRing { window: usize },
    #[error(
        "{input}[{index}] = {value}: must not be negative, unless --input gives the positions, masks and lengths"
    )]
    NotAPosition { input: String, index: usize, value: i64 },
    /// The tensor of an index argument is not a list of integers.
    #[error("{argument} is {element} of shape {shape:?}, must be {expected} of rank 1")]
    NotIndices { argument: &'static str, element: ElementType, shape: Vec<usize>, expected: String },
    #[error("{argument}[{index}] = {value}: must fit int32, the type of this input")]
    NotInt32 { argument: &'static str, index: usize, value: i64 },
    #[error("{}: contains no test directory, which is a folder with a model.onnx", .dir.display())]
    NoCases { dir: PathBuf },
    #[error("{} cannot be read, see above", count(*.cases, "case"))]
    Unreadable { cases: usize },
    #[error("{}: contains no test_data_set_0", .dir.display())]
    NoDataSet { dir: PathBuf },
    #[error("{0}: contains no model.onnx; for a folder of test directories, use: kvscatter verify {0}", .dir.display())]
    NoModel { dir: PathBuf },
    #[error("--json: a completion script cannot be printed as JSON")]
    NoJson,
    /// A call breaks a rule of the operator. The hint names the option that makes the call follow it.
    #[error("{rule}; {hint}")]
    Hinted { rule: kvscatter::Error, hint: String },
    #[error("{}: must be new or empty, but contains {}", .dir.display(), .entry.display())]
    NotEmpty { dir: PathBuf, entry: OsString },
    #[error(
        "--count {count}: more than {limit} cases take long and fill the disk; add --many to write them all"
    )]
    ManyCases { count: usize, limit: usize },
    #[error("{}: {cause}", .path.display())]
    Json { path: PathBuf, cause: serde_json::Error },
    #[error("{}: rtol and atol must be at least 0", .path.display())]
    Tolerance { path: PathBuf },
    #[error("'{name}' is none of the 24 element types")]
    ElementName { name: &'static str },
    #[error("not a case of TensorScatter: {what}")]
    NotTensorScatter { what: String },
    #[error("'{name}' is not an output of the model; its outputs are {}", .have.join(", "))]
    OutputUnknown { name: String, have: Vec<String> },
    #[error("the model leaves sizes open: give {} (or the inputs themselves with --input)", dim_options(.open))]
    OpenSizes { open: Vec<DynamicDim> },
    /// The inputs cannot be generated, because the graph is not a decoder whose caches are known.
    #[error("give {} with --input NAME=FILE; values cannot be generated for this model, because {}", .missing.join(", "), files::plain(.cause))]
    InputsNeeded { missing: Vec<String>, cause: kvscatter_onnx::OnnxError },
    #[error("{option} names '{name}' twice")]
    Twice { option: &'static str, name: String },
    #[error("{}: a test directory contains its inputs; to use {option}, name its model file instead", .dir.display())]
    OwnInputs { dir: PathBuf, option: &'static str },
    #[error("{}: has {sets} data sets, but --output needs exactly one", .dir.display())]
    SeveralDataSets { dir: PathBuf, sets: usize },
    #[error("--length = {length}: must be at most {limit}, the capacity of the caches")]
    LengthBeyond { length: usize, limit: usize },
    #[error("--dim {name}: {}", costs_need(.open))]
    DimUnknown { name: String, open: Vec<String> },
    /// Standard output could not be written.
    #[error("standard output: {}", files::plain(.0))]
    Output(#[from] io::Error),
}

impl CommandError {
    /// Turns the library's error about open sizes into one that names options of the command.
    pub(crate) fn of_sizes(error: kvscatter_onnx::OnnxError) -> Self {
        match error.cause() {
            Some(EvalError::DimsMissing { open }) => Self::OpenSizes { open: open.clone() },
            _ => error.into(),
        }
    }
}

/// Returns the options to add to the command line.
fn dim_options(open: &[DynamicDim]) -> String {
    let options: Vec<_> = open.iter().map(|open| format!("--dim {}=N", open.dim)).collect();
    options.join(" ")
}

fn costs_need(open: &[String]) -> String {
    match open {
        [] => "the costs depend on no other sizes than --batch and --length".to_owned(),
        open => {
            format!("the costs depend only on {}, --batch and --length", one_line(&open.join(", ")))
        }
    }
}
