//! Why a command stops: exit code 2 and one line.

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;

use kvscatter::ElementType;
use kvscatter_onnx::random_inputs::DynamicDim;

use crate::estimate::Estimate;
use crate::output::{count, one_line};
use crate::{files, options};

/// Bad input. Each variant but the last prints as one lower-case line that names the argument, the value and
/// the limit.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CommandError {
    #[error(transparent)]
    File(#[from] files::FileError),
    #[error(transparent)]
    Write(#[from] kvscatter::Error),
    #[error("{}", files::plain(.0))]
    Onnx(#[from] kvscatter_onnx::OnnxError),
    #[error(transparent)]
    Bench(#[from] kvscatter_bench::BenchError),
    #[error("--processes: another measuring process failed: {0}")]
    BenchProcess(String),
    #[cfg(feature = "certify")]
    #[error("{}{}", files::plain(.0), options::of_certify(.0))]
    Certify(#[from] kvscatter_certify::CertifyError),
    #[cfg(feature = "onnxruntime")]
    #[error("{}{}", .0, options::of_runtime(.0))]
    OnnxRuntime(#[from] kvscatter_onnxruntime::RuntimeError),
    #[error("{}{}", files::plain(.0), options::of_session(.0))]
    Session(#[from] kvscatter_session::SessionError),
    /// A part of the command that its cargo features left out.
    #[cfg(not(all(feature = "certify", feature = "onnxruntime", feature = "tract")))]
    #[error(
        "this kvscatter was built without {what}; build it with: cargo install kvscatter-cli --features {feature} \
         (in a checkout: cargo run --release --features {feature} -- ...)"
    )]
    NotBuilt { what: &'static str, feature: &'static str },
    #[error("--ort-lib names ONNX Runtime's library, and tract needs none: give --engine ort as well")]
    LibraryUnused,
    /// A line of a file of prompts.
    #[error("{place}, line {line}: {problem}")]
    Prompt { place: String, line: usize, problem: String },
    #[error("{place}: no prompt in it")]
    NoPrompts { place: String },
    #[error("--eos {id}: the vocabulary has 0 to {}", vocabulary.saturating_sub(1))]
    EosUnknown { id: i64, vocabulary: usize },
    /// A value that an engine does not take.
    #[error("{input:?} contains strings: engines take numbers")]
    StringsInEngine { input: String },
    #[error("--in-place: {past:?} cannot be, {why}")]
    CannotShare { past: String, why: &'static str },
    #[error("a step of {width} tokens does not fit into caches of {capacity} slots")]
    StepTooLong { width: usize, capacity: usize },
    #[error(
        "{input}[{index}] = {value}: positions, masks and lengths are made for indices from 0 only; give them with --input"
    )]
    NotAPosition { input: String, index: usize, value: i64 },
    /// An index argument came from a tensor that is no list of integers.
    #[error("{argument} is {element} of shape {shape:?}, must be {expected} of rank 1")]
    NotIndices { argument: &'static str, element: ElementType, shape: Vec<usize>, expected: String },
    #[error("{argument}[{index}] = {value}: beyond int32, which is this input's type")]
    NotInt32 { argument: &'static str, index: usize, value: i64 },
    #[error("{}: no test directory: none has a model.onnx", .dir.display())]
    NoCases { dir: PathBuf },
    #[error("{} cannot be read, see above", count(*.cases, "case"))]
    Unreadable { cases: usize },
    #[error("{}: no test_data_set_0", .dir.display())]
    NoDataSet { dir: PathBuf },
    #[error("{0}: no model.onnx; a folder of test directories is for: kvscatter verify {0}", .dir.display())]
    NoModel { dir: PathBuf },
    #[error("--json: a completion script is no JSON document")]
    NoJson,
    /// One of the operator's rules, and the option that makes the call follow it.
    #[error("{rule}; {hint}")]
    Hinted { rule: kvscatter::Error, hint: String },
    #[error("{}: not empty, it contains {}; cases go into a new folder", .dir.display(), .entry.display())]
    NotEmpty { dir: PathBuf, entry: OsString },
    #[error(
        "--count {count} would take about {estimate}, estimated from the first cases; add --many to write them all"
    )]
    ManyCases { count: usize, estimate: Estimate },
    #[error("{}: {cause}", .path.display())]
    Json { path: PathBuf, cause: serde_json::Error },
    #[error("'{name}' is none of the 24 element types")]
    ElementName { name: &'static str },
    #[error("not about TensorScatter: {what}")]
    NotTensorScatter { what: String },
    #[error("'{name}' is no output of the model; it has {}", .have.join(", "))]
    OutputUnknown { name: String, have: Vec<String> },
    #[error("the model leaves sizes open: give {} (or the inputs themselves with --input)", dim_options(.open))]
    OpenSizes { open: Vec<DynamicDim> },
    #[error("{option} names '{name}' twice")]
    Twice { option: &'static str, name: String },
    #[error("{}: a test directory brings its inputs: give {option} with the model file instead", .dir.display())]
    OwnInputs { dir: PathBuf, option: &'static str },
    #[error("{}: --output asks for one data set, there are {sets}", .dir.display())]
    SeveralDataSets { dir: PathBuf, sets: usize },
    #[error("--length = {length}: the caches have room for {limit} tokens")]
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
        match error {
            kvscatter_onnx::OnnxError::DimsMissing { open } => Self::OpenSizes { open },
            error => error.into(),
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
        [] => {
            "the model leaves no size of a cache open but samples (--batch) and tokens (--length)".to_owned()
        }
        open => {
            format!("the costs need {} (samples are --batch, tokens --length)", one_line(&open.join(", ")))
        }
    }
}
