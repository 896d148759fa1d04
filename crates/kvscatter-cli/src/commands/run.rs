//! `kvscatter run`: runs a model in place, on given or generated inputs.

mod args;
mod feeds;
mod inputs;
mod loaded;
mod record;
mod show;
mod subject;

use std::path::{Path, PathBuf};

use kvscatter_onnx::Model;
use kvscatter_onnx::internal::test_dir::TestCase;
use kvscatter_onnx::source::{FolderError, ModelSource};

use crate::commands::named::unique;
use crate::error::CommandError;
use crate::files;
use crate::host::Host;
use crate::output::{Outcome, Output};

pub(crate) use args::Run;
use record::{Input, RunRecord};
use subject::Subject;

pub(crate) fn run(mut args: Run, host: &Host, output: &mut Output) -> Result<Outcome, CommandError> {
    let records = if is_test_dir(&args.model) {
        run_test_dir(&args, host)?
    } else {
        args.model = found(&args.model)?;
        vec![run_model(&args, host)?]
    };
    show::show(&records, output)?;
    Ok(if records.iter().all(RunRecord::is_right) { Outcome::Passed } else { Outcome::Failed })
}

/// Returns `true` if a path is a folder with data sets.
fn is_test_dir(path: &Path) -> bool {
    let is_set =
        |entry: std::fs::DirEntry| entry.file_name().as_encoded_bytes().starts_with(b"test_data_set_");
    std::fs::read_dir(path).is_ok_and(|entries| entries.flatten().any(is_set))
}

/// Returns the model's file of a path, which may be the folder of an export.
fn found(path: &Path) -> Result<PathBuf, CommandError> {
    let found = ModelSource::find(path).map_err(|error| match error.cause() {
        Some(FolderError::NoModel { .. }) => CommandError::NoModel { dir: path.to_owned() },
        _ => error.into(),
    })?;
    Ok(found.model)
}

fn run_model(args: &Run, host: &Host) -> Result<RunRecord, CommandError> {
    let model = Model::load(&args.model)?;
    let mut subject = Subject::new(args, host, &model)?;
    args.check_output_names(&subject)?;
    let inputs = inputs::gather(args, &subject)?;
    let record = run_once(args, &mut subject, args.model.display().to_string(), inputs)?;
    let external = model.external_files();
    let given = args.inputs.iter().map(|input| input.location.path());
    let read = given.chain([args.model.as_path()]).chain(external.iter().map(PathBuf::as_path));
    args.write_outputs(&record, read.collect())?;
    Ok(record)
}

fn run_test_dir(args: &Run, host: &Host) -> Result<Vec<RunRecord>, CommandError> {
    let dir = || args.model.clone();
    if !args.model.join("model.onnx").exists() {
        return Err(CommandError::NoModel { dir: dir() });
    }
    let case = TestCase::open(&args.model)?;
    let given = [(!args.inputs.is_empty(), "--input"), (!args.dims.is_empty(), "--dim")];
    if let Some(&(_, option)) = given.iter().find(|(given, _)| *given) {
        return Err(CommandError::OwnInputs { dir: dir(), option });
    }
    let model = Model::load(&case.model_path())?;
    let mut subject = Subject::new(args, host, &model)?;
    args.check_output_names(&subject)?;
    match case.data_sets.as_slice() {
        [] => return Err(CommandError::NoDataSet { dir: dir() }),
        [_] => {}
        _ if args.outputs.is_empty() => {}
        sets => return Err(CommandError::SeveralDataSets { dir: dir(), sets: sets.len() }),
    }
    let mut all = Vec::with_capacity(case.data_sets.len());
    for set in &case.data_sets {
        let inputs = inputs::of_data_set(set, subject.graph())?;
        let mut record = run_once(args, &mut subject, set.folder.display().to_string(), inputs)?;
        record.check(set)?;
        if !args.outputs.is_empty() {
            let mut external = model.external_files();
            external.extend(set.external_files()?);
            external.push(case.model_path());
            let read = set.inputs.iter().chain(&set.outputs).chain(&external);
            args.write_outputs(&record, read.map(PathBuf::as_path).collect())?;
        }
        all.push(record);
    }
    Ok(all)
}

impl Run {
    /// Checks the names of `--output` before anything runs, because a long run must not end in a misspelled
    /// name.
    fn check_output_names(&self, subject: &Subject<'_>) -> Result<(), CommandError> {
        unique("--output", self.outputs.iter().map(|output| &output.name))?;
        let have = || subject.outputs().iter().map(|output| output.name);
        match self.outputs.iter().find(|asked| !have().any(|name| name == asked.name)) {
            None => Ok(()),
            Some(asked) => Err(CommandError::OutputUnknown {
                name: asked.name.clone(),
                have: have().map(str::to_owned).collect(),
            }),
        }
    }

    fn write_outputs(&self, record: &RunRecord, inputs: Vec<&Path>) -> Result<(), CommandError> {
        let mut files = Vec::with_capacity(self.outputs.len());
        for asked in &self.outputs {
            let named = record.result.outputs.iter().find(|(name, _)| *name == asked.name);
            files.extend(named.map(|(name, tensor)| (asked.location.clone(), name.as_str(), tensor)));
        }
        Ok(files::write_tensors(&files, &inputs)?)
    }
}

/// Runs the model once on these inputs.
fn run_once(
    args: &Run,
    subject: &mut Subject<'_>,
    title: String,
    mut inputs: Vec<Input>,
) -> Result<RunRecord, CommandError> {
    let result = subject.run(args, &mut inputs)?;
    let not_in_place = if args.in_place { subject.not_in_place(&result) } else { Vec::new() };
    let tolerance = args.tolerance(subject.tolerance());
    Ok(RunRecord { title, runtime: subject.runtime(), inputs, result, not_in_place, check: None, tolerance })
}
