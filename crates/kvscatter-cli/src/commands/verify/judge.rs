//! Judges one test directory.

use std::path::{Path, PathBuf};

use kvscatter_onnx::internal::test_dir::{DataSet, TestCase};
use kvscatter_onnx::{Model, Tensor};

use super::corpus::Note;
use super::evaluate::{Evaluated, Explanation, evaluate};
use super::finding::{FailedCase, Finding};
use super::rules::Rule;
use super::scatter::{Slots, WrongSlots};
use super::theirs::{Reply, Their, TheirReply};
use super::verdict::{Answer, InPlace};
use crate::case_tolerance;
use crate::compare::{Mismatch, Tolerance, compare};
use crate::error::CommandError;
use crate::refused::Refused;
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
    /// The description in the index of its corpus.
    pub(super) note: Option<Note>,
    pub(super) judged: Judged,
}

/// A verdict, with the rules that the data set tests.
pub(super) struct Judged {
    pub(super) rules: Vec<Rule>,
    pub(super) verdict: Verdict,
    /// The answer of another implementation.
    pub(super) answer: Option<Answer>,
    /// The result of its call in place.
    pub(super) in_place: Option<InPlace>,
}

pub(super) enum Verdict {
    Pass,
    Fail(Box<FailedCase>),
    /// The case cannot be read.
    Unreadable(CommandError),
}

impl CaseVerdict {
    pub(super) fn unreadable(case: String, error: CommandError) -> Self {
        let verdict = Verdict::Unreadable(error);
        Self { case, note: None, judged: Judged { rules: Vec::new(), verdict, answer: None, in_place: None } }
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
                Ok(judged) => CaseVerdict { case, note: None, judged },
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
            None => case_tolerance::read(self.folder)?,
        };
        Ok((case, Loaded { model, refused, tolerance }))
    }

    fn judge(&self, loaded: &Loaded, set: &DataSet) -> Result<Judged, CommandError> {
        let Loaded { model, tolerance, .. } = loaded;
        let refused = loaded.refused.as_ref();
        let expected = set.read_outputs()?;
        let (explanation, reply) = match &self.actual {
            None => {
                let (explanation, evaluated) = evaluate(model, set)?;
                (explanation, TheirReply::from(ours(evaluated, refused)))
            }
            Some(actual) => {
                // Only the files are judged. The evaluation here only explains them.
                let explanation = evaluate(model, set).map(|(explanation, _)| explanation);
                let explanation = explanation.unwrap_or_default();
                let reads_past = explanation.reads_past;
                let case =
                    Their { model, set, expected: &expected, refused, reads_past, tolerance: *tolerance };
                (explanation, case.reply(actual))
            }
        };
        let TheirReply { reply, mut answer, in_place, fault } = reply;
        let Explanation { call, slots, .. } = explanation;
        let mut rules = rules(refused, slots.as_ref());
        rules.extend(in_place.map(|_| match refused {
            Some(_) => Rule::Unchanged,
            None if explanation.reads_past => Rule::Past,
            None => Rule::InPlace,
        }));
        let (finding, wrong) = match reply {
            Reply::Right => (None, None),
            Reply::Wrong(finding) => (Some(finding), None),
            Reply::Outputs(outputs) => {
                let outputs: Vec<_> = outputs.iter().collect();
                let mismatch = compare(&outputs, &expected, *tolerance);
                if self.actual.is_some() {
                    answer = Some(if mismatch.is_none() { Answer::Exact } else { Answer::Differs });
                }
                let wrong = mismatch.as_ref().and_then(|mismatch| {
                    wrong_slots(mismatch, &outputs, &expected, *tolerance, slots.as_ref())
                });
                (mismatch.map(Finding::Mismatch), wrong)
            }
        };
        let finding = finding.or(fault.as_ref().map(|_| Finding::InPlace));
        let drawn = slots.map(|_| self.folder.to_owned());
        let verdict = match finding {
            None => Verdict::Pass,
            Some(finding) => {
                Verdict::Fail(Box::new(FailedCase { finding, in_place: fault, call, slots: wrong, drawn }))
            }
        };
        Ok(Judged { rules, verdict, answer, in_place })
    }
}

fn ours(evaluated: Evaluated, refused: Option<&Refused>) -> Reply {
    match (evaluated, refused) {
        (Ok(outputs), None) => Reply::Outputs(outputs),
        (Ok(_), Some(refused)) => Reply::Wrong(refused.accepted()),
        (Err(error), None) => Reply::Wrong(Finding::Refused(error)),
        (Err(error), Some(refused)) => refused.finding(error).map_or(Reply::Right, Reply::Wrong),
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
        Some(slots) => rules.extend(slots.uses().map(Rule::Slots)),
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
