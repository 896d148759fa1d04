//! Judges one test directory.

use std::path::{Path, PathBuf};

use kvscatter_onnx::test_dir::{DataSet, TestCase};
use kvscatter_onnx::{Model, Tensor};
use serde::Serialize;

use super::evaluate::{Explanation, evaluate};
use super::rejection::Rejection;
use super::rules::Rule;
use super::scatter::{ScatterCall, SlotUse, Slots, WrongSlots};
use crate::case_tolerance::CaseTolerance;
use crate::compare::{Mismatch, Tolerance, compare};
use crate::error::CommandError;
use crate::files::{self, Location};
use crate::refused::{Refused, RefusedRule};
use crate::values::differing;

/// A test directory, and how to judge it.
pub(super) struct Judge<'a> {
    pub(super) folder: &'a Path,
    /// The folder with the outputs of another implementation, or `None` to run the directory here.
    pub(super) actual: Option<PathBuf>,
    /// The tolerance that the user chose. It replaces the tolerance of the directory.
    pub(super) tolerance: Option<Tolerance>,
}

/// What a test directory contains besides its data sets.
struct Loaded {
    model: Model,
    refused: Option<Refused>,
    tolerance: Option<Tolerance>,
}

/// The verdict on one data set.
pub(super) struct CaseVerdict {
    pub(super) case: String,
    /// The rules that the case tests.
    pub(super) rules: Vec<Rule>,
    pub(super) verdict: Verdict,
}

pub(super) enum Verdict {
    Pass,
    Fail(Box<FailedCase>),
    /// The case cannot be read.
    Unreadable(CommandError),
}

/// A case that does not pass.
pub(super) struct FailedCase {
    pub(super) finding: Finding,
    /// The call of the case, if it is known.
    pub(super) call: Option<ScatterCall>,
    pub(super) slots: Option<WrongSlots>,
    /// The test directory, if `kvscatter run` can draw it.
    pub(super) drawn: Option<PathBuf>,
}

/// The kind of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Failure {
    /// The output has another type, shape or value.
    Wrong,
    NoOutput,
    NotRefused,
    /// The inputs are refused without a reason, or for another reason.
    WronglyRefused,
}

/// The reason why a data set does not pass.
#[derive(Debug, thiserror::Error)]
pub(super) enum Finding {
    #[error(transparent)]
    Mismatch(Mismatch),
    #[error("no {}.pb or .npy", .stem.display())]
    Missing { stem: PathBuf },
    #[error("{0}")]
    TheirFile(files::FileError),
    #[error("refused: {0}")]
    Refused(Rejection),
    #[error("accepted, but must be refused: {reason}")]
    Accepted { rule: RefusedRule, reason: String },
    #[error("refused for another reason: {error}; expected: {reason}")]
    OtherReason { rule: RefusedRule, error: Box<Rejection>, reason: String },
}

impl CaseVerdict {
    pub(super) fn unreadable(case: String, error: CommandError) -> Self {
        Self { case, rules: Vec::new(), verdict: Verdict::Unreadable(error) }
    }
}

impl FailedCase {
    /// Returns the rules that the case breaks.
    pub(super) fn broken(&self) -> Vec<Rule> {
        match (&self.finding, &self.slots) {
            (Finding::Mismatch(Mismatch::Values { .. }), Some(slots)) => {
                let wrong = slots.elements;
                let rules =
                    [(wrong.written, Rule::Written), (wrong.wrapped, Rule::Wrapped), (wrong.old, Rule::Old)];
                rules.into_iter().filter(|(count, _)| *count > 0).map(|(_, rule)| rule).collect()
            }
            (Finding::Mismatch(Mismatch::Values { .. }), None) => vec![Rule::Values],
            (Finding::Mismatch(Mismatch::Type { .. }), _) => vec![Rule::ElementType],
            (Finding::Mismatch(Mismatch::Shape { .. }), _) => vec![Rule::Shape],
            (Finding::Accepted { rule, .. } | Finding::OtherReason { rule, .. }, _) => {
                vec![Rule::Refused(*rule)]
            }
            _ => vec![Rule::Output],
        }
    }
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
    /// Returns one verdict per data set, or one verdict for a directory without usable data sets.
    pub(super) fn verdicts(&self) -> Vec<CaseVerdict> {
        let name = self.folder.display().to_string();
        let unreadable = |error| CaseVerdict::unreadable(name.clone(), error);
        let (case, loaded) = match self.load() {
            Ok(loaded) => loaded,
            Err(error) => return vec![unreadable(error)],
        };
        let sets = &case.data_sets;
        if sets.is_empty() {
            return vec![unreadable(CommandError::NoDataSet { dir: self.folder.to_owned() })];
        }
        let line = |set: &DataSet| {
            let case = match sets.len() {
                1 => name.clone(),
                _ => set.folder.display().to_string(),
            };
            match self.judge(&loaded, set) {
                Ok((rules, verdict)) => CaseVerdict { case, rules, verdict },
                Err(error) => CaseVerdict::unreadable(case, error),
            }
        };
        sets.iter().map(line).collect()
    }

    fn load(&self) -> Result<(TestCase, Loaded), CommandError> {
        let case = TestCase::open(self.folder)?;
        let model = Model::load(&case.model_path())?;
        let refused = Refused::read(self.folder)?;
        let tolerance = match self.tolerance {
            Some(tolerance) => Some(tolerance),
            None => CaseTolerance::read(self.folder)?,
        };
        Ok((case, Loaded { model, refused, tolerance }))
    }

    /// Returns the rules that a data set tests, and the verdict.
    fn judge(&self, loaded: &Loaded, set: &DataSet) -> Result<(Vec<Rule>, Verdict), CommandError> {
        let Loaded { model, tolerance, .. } = loaded;
        let refused = loaded.refused.as_ref();
        let expected = set.read_outputs()?;
        let (explanation, answer) = match &self.actual {
            None => {
                let (explanation, evaluated) = evaluate(model, set)?;
                (explanation, ours(evaluated, refused))
            }
            Some(actual) => {
                // Only the outputs are judged. The evaluation here only explains them.
                let explanation = evaluate(model, set).map(|(explanation, _)| explanation);
                (explanation.unwrap_or_default(), theirs(actual, set, &expected, refused))
            }
        };
        let Explanation { call, slots } = explanation;
        let rules = rules(refused, slots.as_ref());
        let (finding, wrong) = match answer {
            Answer::NoOutputs(None) => return Ok((rules, Verdict::Pass)),
            Answer::NoOutputs(Some(finding)) => (finding, None),
            Answer::Outputs(outputs) => {
                let outputs: Vec<_> = outputs.iter().collect();
                let Some(mismatch) = compare(&outputs, &expected, *tolerance) else {
                    return Ok((rules, Verdict::Pass));
                };
                let wrong = wrong_slots(&mismatch, &outputs, &expected, *tolerance, slots.as_ref());
                (Finding::Mismatch(mismatch), wrong)
            }
        };
        let drawn = slots.map(|_| self.folder.to_owned());
        Ok((rules, Verdict::Fail(Box::new(FailedCase { finding, call, slots: wrong, drawn }))))
    }
}

/// Returns the rules that a data set tests, which are the rule that its inputs break or the rules of its
/// outputs.
fn rules(refused: Option<&Refused>, slots: Option<&Slots>) -> Vec<Rule> {
    if let Some(refused) = refused {
        return vec![Rule::Refused(refused.kind)];
    }
    let mut rules = vec![Rule::Output, Rule::ElementType, Rule::Shape];
    match slots {
        None => rules.push(Rule::Values),
        Some(slots) => {
            let uses = [
                (SlotUse::Written, Rule::Written),
                (SlotUse::Wrapped, Rule::Wrapped),
                (SlotUse::Old, Rule::Old),
            ];
            rules
                .extend(uses.into_iter().filter(|(slot_use, _)| slots.have(*slot_use)).map(|(_, rule)| rule));
        }
    }
    rules
}

/// Returns the slots with wrong values. Returns `None` for other mismatches, and if the slots are not known.
fn wrong_slots(
    mismatch: &Mismatch,
    actual: &[&Tensor],
    expected: &[Tensor],
    tolerance: Option<Tolerance>,
    slots: Option<&Slots>,
) -> Option<WrongSlots> {
    let Mismatch::Values { output, .. } = mismatch else { return None };
    let (actual, expected) = (actual.get(*output)?, expected.get(*output)?);
    slots?.wrong(*output, differing(actual, expected, tolerance))
}

impl Refused {
    fn accepted(&self) -> Finding {
        Finding::Accepted { rule: self.kind, reason: self.reason.clone() }
    }

    /// Returns the fault of a refusal, or `None` if it has the right reason.
    fn finding(&self, error: Rejection) -> Option<Finding> {
        let right = error.rule() == Some(self.kind);
        (!right).then(|| Finding::OtherReason {
            rule: self.kind,
            error: error.into(),
            reason: self.reason.clone(),
        })
    }
}

/// The answer of an implementation to a data set.
enum Answer {
    /// The outputs, which must be compared with the expected ones.
    Outputs(Vec<Tensor>),
    /// There are no outputs to compare. `None` means that the implementation was right to refuse.
    NoOutputs(Option<Finding>),
}

fn ours(evaluated: Result<Vec<Tensor>, Rejection>, refused: Option<&Refused>) -> Answer {
    match (evaluated, refused) {
        (Ok(outputs), None) => Answer::Outputs(outputs),
        (Ok(_), Some(refused)) => Answer::NoOutputs(Some(refused.accepted())),
        (Err(error), None) => Answer::NoOutputs(Some(Finding::Refused(error))),
        (Err(error), Some(refused)) => Answer::NoOutputs(refused.finding(error)),
    }
}

/// Returns the answer of another implementation. If it has written no output, it has refused the inputs.
fn theirs(actual: &Path, set: &DataSet, expected: &[Tensor], refused: Option<&Refused>) -> Answer {
    match refused {
        None => match read_actual(actual, set, expected) {
            Ok(outputs) => Answer::Outputs(outputs),
            Err(finding) => Answer::NoOutputs(Some(finding)),
        },
        Some(refused) => {
            let written = find_output(&output_stem(actual, set, 0)).is_some();
            Answer::NoOutputs(written.then(|| refused.accepted()))
        }
    }
}

/// Reads the expected number of outputs of another implementation.
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
