//! Judging one test directory.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use kvscatter_onnx::eval::{Evaluator, Feed, Placement};
use kvscatter_onnx::test_dir::{DataSet, TestCase};
use kvscatter_onnx::{Model, Tensor};
use serde::Serialize;

use crate::compare::{Mismatch, Tolerance, compare};
use crate::error::CommandError;
use crate::files::{self, Location};
use crate::refused::{Refused, RefusedRule};

/// One test directory and how to judge it.
pub(super) struct Judge<'a> {
    pub(super) folder: &'a Path,
    /// The folder of another implementation's outputs for it; `None` runs it here.
    pub(super) actual: Option<PathBuf>,
    pub(super) tolerance: Option<Tolerance>,
}

/// The verdict on one data set.
pub(super) struct CaseVerdict {
    pub(super) case: String,
    pub(super) verdict: Verdict,
}

pub(super) enum Verdict {
    Pass,
    Fail(Finding),
    /// The case itself cannot be read.
    Unreadable(CommandError),
}

/// What kind of failure it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Failure {
    /// Another type, shape or value.
    Wrong,
    NoOutput,
    NotRefused,
    /// Without reason, or for another one.
    WronglyRefused,
}

/// Why a data set does not pass.
#[derive(Debug, thiserror::Error)]
pub(super) enum Finding {
    #[error(transparent)]
    Mismatch(Mismatch),
    #[error("no {}.pb or .npy", .stem.display())]
    Missing { stem: PathBuf },
    #[error("{0}")]
    TheirFile(files::FileError),
    #[error("refused: {0}")]
    Refused(kvscatter_onnx::OnnxError),
    #[error("accepted, but must be refused: {reason}")]
    Accepted { reason: String },
    #[error("refused for another reason: {error}; expected: {reason}")]
    OtherReason { error: kvscatter_onnx::OnnxError, reason: String },
}

impl Finding {
    pub(super) fn failure(&self) -> Failure {
        match self {
            Self::Mismatch(_) => Failure::Wrong,
            Self::Missing { .. } | Self::TheirFile(_) => Failure::NoOutput,
            Self::Accepted { .. } => Failure::NotRefused,
            Self::Refused(_) | Self::OtherReason { .. } => Failure::WronglyRefused,
        }
    }
}

impl Judge<'_> {
    /// Returns one verdict per data set, or one for the whole directory if it has no usable one.
    pub(super) fn verdicts(&self) -> Vec<CaseVerdict> {
        let name = self.folder.display().to_string();
        let unreadable = |error| CaseVerdict { case: name.clone(), verdict: Verdict::Unreadable(error) };
        let (case, model, refused) = match self.load() {
            Ok(loaded) => loaded,
            Err(error) => return vec![unreadable(error)],
        };
        let sets = &case.data_sets;
        if sets.is_empty() {
            return vec![unreadable(CommandError::NoDataSet { dir: self.folder.to_owned() })];
        }
        let line = |set: &DataSet| CaseVerdict {
            case: match sets.len() {
                1 => name.clone(),
                _ => set.folder.display().to_string(),
            },
            verdict: match self.judge(&model, refused.as_ref(), set) {
                Ok(None) => Verdict::Pass,
                Ok(Some(finding)) => Verdict::Fail(finding),
                Err(error) => Verdict::Unreadable(error),
            },
        };
        sets.iter().map(line).collect()
    }

    fn load(&self) -> Result<(TestCase, Model, Option<Refused>), CommandError> {
        let case = TestCase::open(self.folder)?;
        let model = Model::load(&case.model_path())?;
        Ok((case, model, Refused::read(self.folder)?))
    }

    fn judge(
        &self,
        model: &Model,
        refused: Option<&Refused>,
        set: &DataSet,
    ) -> Result<Option<Finding>, CommandError> {
        let expected = set.read_outputs()?;
        let outputs = match &self.actual {
            None => match (evaluate(model, set)?, refused) {
                (Ok(_), Some(refused)) => return Ok(Some(refused.accepted())),
                (Ok(outputs), None) => outputs,
                (Err(error), None) => return Ok(Some(Finding::Refused(error))),
                (Err(error), Some(refused)) => return Ok(refused.finding(error)),
            },
            Some(actual) => match refused {
                Some(refused) => {
                    let written = find_output(&output_stem(actual, set, 0)).is_some();
                    return Ok(written.then(|| refused.accepted()));
                }
                None => match read_actual(actual, set, &expected) {
                    Ok(outputs) => outputs,
                    Err(finding) => return Ok(Some(finding)),
                },
            },
        };
        let outputs: Vec<_> = outputs.iter().collect();
        Ok(compare(&outputs, &expected, self.tolerance).map(Finding::Mismatch))
    }
}

impl Refused {
    fn accepted(&self) -> Finding {
        Finding::Accepted { reason: self.reason.clone() }
    }

    /// Returns what is wrong with a refusal, or `None` if it has the right reason.
    fn finding(&self, error: kvscatter_onnx::OnnxError) -> Option<Finding> {
        let right = RefusedRule::of(&error) == Some(self.kind);
        (!right).then(|| Finding::OtherReason { error, reason: self.reason.clone() })
    }
}

/// The outer error is about the files, the inner one is the evaluation's answer.
fn evaluate(
    model: &Model,
    set: &DataSet,
) -> Result<Result<Vec<Tensor>, kvscatter_onnx::OnnxError>, CommandError> {
    let evaluator = match Evaluator::new(model) {
        Ok(evaluator) => evaluator,
        Err(error) => return Ok(Err(error)),
    };
    let inputs = set.read_inputs(evaluator.graph())?;
    let names = evaluator.graph().input_names();
    let feeds: BTreeMap<_, _> =
        names.zip(inputs).map(|(name, (_, tensor))| (name, Feed::Donated(tensor))).collect();
    let evaluation = evaluator.run(feeds, Placement::Auto);
    Ok(evaluation.map(|done| done.outputs.into_iter().map(|(_, tensor)| tensor).collect()))
}

/// Reads another implementation's outputs, as many as are expected.
fn read_actual(actual: &Path, set: &DataSet, expected: &[Tensor]) -> Result<Vec<Tensor>, Finding> {
    let read = |(output, expected): (usize, &Tensor)| {
        let stem = output_stem(actual, set, output);
        let location = find_output(&stem).ok_or(Finding::Missing { stem })?;
        files::read_hinted(&location, expected.element()).map_err(Finding::TheirFile)
    };
    expected.iter().enumerate().map(read).collect()
}

/// Returns the path of another implementation's output, without the extension.
fn output_stem(actual: &Path, set: &DataSet, output: usize) -> PathBuf {
    actual.join(set.folder.file_name().unwrap_or_default()).join(format!("output_{output}"))
}

fn find_output(stem: &Path) -> Option<Location> {
    let path = ["pb", "npy"]
        .map(|extension| stem.with_extension(extension))
        .into_iter()
        .find(|path| path.exists())?;
    Location::of_path(&path)
}
