//! `kvscatter run`: a model, in place, on given or generated inputs.

mod feeds;
mod inputs;
mod loaded;
mod show;
mod subject;

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::Args;
use clap::builder::{OsStringValueParser, TypedValueParser, ValueParser, ValueParserFactory};
use kvscatter_onnx::Model;
use kvscatter_onnx::eval::{NodeReport, Outcome as NodeOutcome, Placement};
use kvscatter_onnx::test_dir::{DataSet, TestCase};

use crate::Outcome;
use crate::compare::{Mismatch, Tolerance, compare};
use crate::engines::{EngineName, Runtime};
use crate::error::Error;
use crate::files::{self, Location};
use crate::numbers::whole;
use crate::output::Output;
use inputs::Input;
use subject::{Ran, Subject};

/// Lanes of a picture.
const LANES: usize = 32;

/// Run a model once, its caches in place, and show what lies where
///
/// MODEL is an .onnx file; what is not given with --input is generated from the seed, indices valid by construction, and
/// printed. TESTDIR is a folder with a model.onnx and test_data_set_* folders, whose expected outputs are checked.
///
/// A model of TensorScatter nodes alone is evaluated here, and what was written where is drawn. Any other, such as a whole
/// decoder, runs in an engine: in tract, unless --engine names one. Sizes that the model leaves open are those of its
/// tokens and caches.
///
/// No input file is ever changed. "In place" means that present lies at past's address in memory and, where nodes are
/// evaluated here, that exactly the planned bytes moved.
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
    /// An .onnx file, or a test directory
    #[arg(value_name = "MODEL|TESTDIR")]
    model: PathBuf,

    /// An input: a .npy, .npz, .pb or .safetensors file, or FILE#ENTRY
    #[arg(short, long = "input", value_name = "NAME=FILE")]
    inputs: Vec<Named>,

    /// Where an output goes: the same formats
    #[arg(short, long = "output", value_name = "NAME=FILE")]
    outputs: Vec<Named>,

    /// The size of a symbolic dimension of generated inputs, or of an unnamed one as `INPUT[AXIS]`
    #[arg(long = "dim", value_name = "NAME=N")]
    dims: Vec<Dim>,

    /// What generated inputs are made from
    #[arg(long, default_value_t = 0, value_parser = whole::<u64>)]
    seed: u64,

    /// Fail unless every cache is written in place
    #[arg(long, conflicts_with = "functional")]
    in_place: bool,

    /// Write every present into a buffer of its own
    #[arg(long)]
    functional: bool,

    /// What runs the model [default: the command itself where it can, else tract]
    #[arg(long)]
    engine: Option<EngineName>,

    /// The library of ONNX Runtime, or a folder with the package [default: as for certify]
    #[arg(long, value_name = "PATH", requires = "engine")]
    ort_lib: Option<PathBuf>,

    /// Relative tolerance of expected outputs [default: none, or of engines 0.001]
    #[arg(long, value_name = "R", value_parser = super::verify::tolerance)]
    rtol: Option<f64>,

    /// Absolute tolerance [default: none, or of engines 1e-7]
    #[arg(long, value_name = "A", value_parser = super::verify::tolerance)]
    atol: Option<f64>,
}

/// `NAME=FILE`.
#[derive(Clone, Debug)]
struct Named {
    name: String,
    location: Location,
}

/// Text that is no `NAME=FILE`.
#[derive(Debug, thiserror::Error)]
enum NamedError {
    #[error("must be NAME=FILE")]
    Form,
    #[error("the name is not Unicode")]
    NameNotUnicode,
    #[error(transparent)]
    File(#[from] files::LocationError),
}

/// `NAME=N`.
#[derive(Clone, Debug)]
pub(crate) struct Dim {
    pub(crate) name: String,
    pub(crate) size: usize,
}

/// What one call did.
struct Done {
    /// What is run.
    title: String,
    /// The engine that ran it, if it was one.
    runtime: Option<Runtime>,
    inputs: Vec<Input>,
    ran: Ran,
    /// Whether every cache had to be in place, and which are not.
    not_in_place: Vec<String>,
    /// The expected outputs' verdict, if there are any.
    check: Option<Result<(), Mismatch>>,
    /// How far they could be apart; `None` if every bit counts.
    tolerance: Option<Tolerance>,
}

pub(crate) fn run(args: Run, output: &mut Output) -> Result<Outcome, Error> {
    let done = if args.model.is_dir() { run_test_dir(&args)? } else { vec![run_model(&args)?] };
    show::show(&done, output)?;
    Ok(if done.iter().all(Done::is_right) { Outcome::Passed } else { Outcome::Failed })
}

fn run_model(args: &Run) -> Result<Done, Error> {
    let model = Model::load(&args.model)?;
    let mut subject = Subject::of(args, &model)?;
    args.check_output_names(&subject)?;
    let inputs = inputs::gather(args, &subject)?;
    let done = Done::run(args, &mut subject, args.model.display().to_string(), inputs)?;
    let external = model.external_files();
    let given = args.inputs.iter().map(|input| input.location.path());
    let read = given.chain([args.model.as_path()]).chain(external.iter().map(PathBuf::as_path));
    args.write_outputs(&done, read.collect())?;
    Ok(done)
}

fn run_test_dir(args: &Run) -> Result<Vec<Done>, Error> {
    let dir = || args.model.clone();
    if !args.model.join("model.onnx").exists() {
        return Err(Error::NoModel { dir: dir() });
    }
    let case = TestCase::open(&args.model)?;
    let given = [(!args.inputs.is_empty(), "--input"), (!args.dims.is_empty(), "--dim")];
    if let Some(&(_, option)) = given.iter().find(|(given, _)| *given) {
        return Err(Error::OwnInputs { dir: dir(), option });
    }
    let model = Model::load(&case.model_path())?;
    let mut subject = Subject::of(args, &model)?;
    args.check_output_names(&subject)?;
    match case.data_sets.as_slice() {
        [] => return Err(Error::NoDataSet { dir: dir() }),
        [_] => {}
        _ if args.outputs.is_empty() => {}
        sets => return Err(Error::SeveralDataSets { dir: dir(), sets: sets.len() }),
    }
    let mut all = Vec::with_capacity(case.data_sets.len());
    for set in &case.data_sets {
        let inputs = inputs::of_data_set(set, subject.graph())?;
        let mut done = Done::run(args, &mut subject, set.folder.display().to_string(), inputs)?;
        done.check(set)?;
        if !args.outputs.is_empty() {
            let mut external = model.external_files();
            external.extend(set.external_files()?);
            external.push(case.model_path());
            let read = set.inputs.iter().chain(&set.outputs).chain(&external);
            args.write_outputs(&done, read.map(PathBuf::as_path).collect())?;
        }
        all.push(done);
    }
    Ok(all)
}

impl Run {
    fn placement(&self) -> Placement {
        match (self.in_place, self.functional) {
            (true, _) => Placement::InPlace,
            (_, true) => Placement::Functional,
            _ => Placement::Auto,
        }
    }

    /// What is asked for, or what is usual.
    fn tolerance(&self, usual: Option<Tolerance>) -> Option<Tolerance> {
        match (self.rtol, self.atol) {
            (None, None) => usual,
            (rtol, atol) => Some(Tolerance { rtol: rtol.unwrap_or(0.0), atol: atol.unwrap_or(0.0) }),
        }
    }

    /// Before anything runs: a long run must not end in a misspelled name.
    fn check_output_names(&self, subject: &Subject<'_>) -> Result<(), Error> {
        unique("--output", self.outputs.iter().map(|output| &output.name))?;
        let have = || subject.outputs().iter().map(|output| output.name);
        match self.outputs.iter().find(|asked| !have().any(|name| name == asked.name)) {
            None => Ok(()),
            Some(asked) => Err(Error::OutputUnknown {
                name: asked.name.clone(),
                have: have().map(str::to_owned).collect(),
            }),
        }
    }

    fn write_outputs(&self, done: &Done, inputs: Vec<&Path>) -> Result<(), Error> {
        let mut files = Vec::with_capacity(self.outputs.len());
        for asked in &self.outputs {
            let named = done.ran.outputs.iter().find(|(name, _)| *name == asked.name);
            files.extend(named.map(|(name, tensor)| (asked.location.clone(), name.as_str(), tensor)));
        }
        Ok(files::write_tensors(&files, &inputs)?)
    }
}

impl Done {
    fn run(
        args: &Run,
        subject: &mut Subject<'_>,
        title: String,
        mut inputs: Vec<Input>,
    ) -> Result<Self, Error> {
        let ran = subject.run(args, &mut inputs)?;
        let not_in_place = if args.in_place { subject.not_in_place(&ran) } else { Vec::new() };
        let tolerance = args.tolerance(subject.tolerance());
        Ok(Self { title, runtime: subject.runtime(), inputs, ran, not_in_place, check: None, tolerance })
    }

    fn check(&mut self, set: &DataSet) -> Result<(), Error> {
        let expected = set.read_outputs()?;
        if !expected.is_empty() {
            let got: Vec<_> = self.ran.outputs.iter().map(|(_, tensor)| tensor).collect();
            self.check = Some(compare(&got, &expected, self.tolerance).map_or(Ok(()), Err));
        }
        Ok(())
    }

    fn is_right(&self) -> bool {
        let claimed = |node: &&NodeReport| matches!(node.outcome, NodeOutcome::InPlace { .. });
        let proved = self.ran.nodes.iter().filter(claimed).all(NodeReport::is_in_place);
        proved && self.not_in_place.is_empty() && !matches!(self.check, Some(Err(_)))
    }
}

pub(crate) fn unique<'a>(
    option: &'static str,
    mut names: impl Iterator<Item = &'a String>,
) -> Result<(), Error> {
    let mut seen = BTreeSet::new();
    match names.find(|name| !seen.insert(*name)) {
        None => Ok(()),
        Some(name) => Err(Error::Twice { option, name: name.clone() }),
    }
}

impl TryFrom<&OsStr> for Named {
    type Error = NamedError;

    fn try_from(text: &OsStr) -> Result<Self, NamedError> {
        let mut equals = files::positions(text, b'=');
        let (name, file) = equals.next().and_then(|at| files::split_at(text, at)).ok_or(NamedError::Form)?;
        if name.is_empty() {
            return Err(NamedError::Form);
        }
        let name = name.into_string().map_err(|_| NamedError::NameNotUnicode)?;
        Ok(Self { name, location: Location::try_from(file.as_os_str())? })
    }
}

impl ValueParserFactory for Named {
    type Parser = ValueParser;

    fn value_parser() -> ValueParser {
        OsStringValueParser::new().try_map(|text: OsString| Self::try_from(text.as_os_str())).into()
    }
}

impl FromStr for Dim {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let named = text.rsplit_once('=').filter(|(name, _)| !name.is_empty());
        let (name, size) = named.ok_or("must be NAME=N")?;
        let size = size.parse().map_err(|_| format!("'{size}' is no size"))?;
        Ok(Self { name: name.to_owned(), size })
    }
}
