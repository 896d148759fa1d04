//! `kvscatter verify`: ONNX test directories, run here or judged by the outputs of another implementation.

mod judge;

use std::fmt;
use std::io::Write;
use std::path::{Path, PathBuf};

use clap::Args;
use kvscatter_onnx::test_dir::{Unread, discover};
use serde::Serialize;

use crate::compare::{Mismatch, Tolerance};
use crate::error::CommandError;
use crate::files;
use crate::numbers::tolerance;
use crate::output::{Outcome, Output, count, one_line, progress, styled};

use judge::{CaseVerdict, Failure, Finding, Judge, Verdict};

/// Check ONNX test directories: our outputs, or with --actual those of another implementation
///
/// Every model.onnx at or below DIR is run on its test_data_set_* inputs, in place, and its outputs are compared with
/// the expected ones: bit for bit, NaN payloads and negative zeros included, unless a tolerance is given. A directory
/// with a refused.json passes if the model is refused for that reason.
///
/// Links are followed inside DIR. A link that leads out of DIR or nowhere, and a folder that cannot be read, are named and
/// counted as unreadable. All other directories are judged.
///
/// The exit code is 0 if all passes, 1 if something fails or cannot be read, and 2 if nothing can be read.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  kvscatter verify testdata/onnx-node
  kvscatter cases -o cases --count 500 && kvscatter verify cases

Test your own TensorScatter:
  kvscatter cases -o cases --seed 1 --count 500
  # run each cases/NAME/model.onnx on its test_data_set_0/input_*.pb with your
  # backend and write results/NAME/test_data_set_0/output_0.pb or .npy; write
  # nothing for what your backend refuses
  kvscatter verify cases --actual results")]
pub(crate) struct Verify {
    /// Folders that are test directories or contain some
    #[arg(value_name = "DIR", required = true)]
    dirs: Vec<PathBuf>,

    /// Judge the outputs in this folder instead: OUT/CASE/test_data_set_N/output_I.pb or .npy
    ///
    /// CASE is the case's path below DIR, or its folder's name where DIR is the case itself.
    #[arg(long, value_name = "OUT")]
    actual: Option<PathBuf>,

    /// Relative tolerance: |actual - expected| <= atol + rtol * |expected|
    #[arg(long, value_name = "R", value_parser = tolerance)]
    rtol: Option<f64>,

    /// Absolute tolerance
    #[arg(long, value_name = "A", value_parser = tolerance)]
    atol: Option<f64>,
}

/// The verdict on a case, as `--json` prints it.
#[derive(Serialize)]
struct CaseVerdictDocument<'a> {
    case: &'a str,
    verdict: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    failure: Option<Failure>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mismatch: Option<&'a Mismatch>,
}

#[derive(Serialize)]
struct VerifyDocument<'a> {
    cases: Vec<CaseVerdictDocument<'a>>,
    #[serde(flatten)]
    totals: Totals,
}

#[derive(Clone, Copy, Default, Serialize)]
struct Totals {
    passed: usize,
    failed: usize,
    unreadable: usize,
    failures: Failures,
}

/// The failed ones by kind.
#[derive(Clone, Copy, Default, Serialize)]
struct Failures {
    wrong: usize,
    no_output: usize,
    not_refused: usize,
    wrongly_refused: usize,
}

pub(crate) fn run(args: Verify, output: &mut Output) -> Result<Outcome, CommandError> {
    let (mut cases, mut lines) = (Vec::new(), Vec::new());
    for dir in args.dirs.iter().chain(&args.actual) {
        files::check_folder(dir)?;
    }
    for dir in &args.dirs {
        let discovered = discover(dir)?;
        if discovered.cases.is_empty() && discovered.unread.is_empty() {
            return Err(CommandError::NoCases { dir: dir.clone() });
        }
        cases.extend(discovered.cases.into_iter().map(|folder| (dir, folder)));
        lines.extend(discovered.unread.into_iter().map(CaseVerdict::from));
    }
    if !output.is_json() {
        lines.iter().try_for_each(|line| writeln!(output, "{line}"))?;
    }
    let bar = progress(cases.len());
    for (dir, folder) in &cases {
        let below = place_below(dir, folder)?;
        let judge = Judge {
            folder,
            actual: args.actual.as_ref().map(|out| out.join(&below)),
            tolerance: args.tolerance(),
        };
        for line in judge.verdicts() {
            if !output.is_json() {
                bar.suspend(|| writeln!(output, "{line}"))?;
            }
            lines.push(line);
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    conclude(&lines, output)
}

/// Returns the path in OUT of the outputs of a case: the case's path below DIR, or its folder's name if it is DIR.
fn place_below(dir: &Path, case: &Path) -> Result<PathBuf, CommandError> {
    match case.strip_prefix(dir) {
        Ok(below) if below != Path::new("") => Ok(below.to_owned()),
        _ => {
            // The absolute path of `.` has a name.
            let folder = case.canonicalize().map_err(|error| files::FileError::at_path(case, error))?;
            Ok(folder.file_name().unwrap_or_default().into())
        }
    }
}

fn conclude(lines: &[CaseVerdict], output: &mut Output) -> Result<Outcome, CommandError> {
    let totals = Totals::of(lines);
    if output.is_json() {
        output
            .json(&VerifyDocument { cases: lines.iter().map(CaseVerdictDocument::from).collect(), totals })?;
    } else {
        writeln!(output, "\n{totals}")?;
    }
    match totals {
        Totals { passed: 0, failed: 0, unreadable, .. } => {
            Err(CommandError::Unreadable { cases: unreadable })
        }
        Totals { failed: 0, unreadable: 0, .. } => Ok(Outcome::Passed),
        Totals { .. } => Ok(Outcome::Failed),
    }
}

impl Totals {
    fn of(lines: &[CaseVerdict]) -> Self {
        let mut totals = Self::default();
        let failures = &mut totals.failures;
        for line in lines {
            let (total, kind) = match &line.verdict {
                Verdict::Pass => (&mut totals.passed, None),
                Verdict::Unreadable(_) => (&mut totals.unreadable, None),
                Verdict::Fail(finding) => {
                    let kind = match finding.failure() {
                        Failure::Wrong => &mut failures.wrong,
                        Failure::NoOutput => &mut failures.no_output,
                        Failure::NotRefused => &mut failures.not_refused,
                        Failure::WronglyRefused => &mut failures.wrongly_refused,
                    };
                    (&mut totals.failed, Some(kind))
                }
            };
            for count in kind.into_iter().chain([total]) {
                *count = count.saturating_add(1);
            }
        }
        totals
    }
}

impl From<Unread> for CaseVerdict {
    fn from(unread: Unread) -> Self {
        let verdict = Verdict::Unreadable(unread.cause.into());
        Self { case: unread.path.display().to_string(), verdict }
    }
}

impl<'a> From<&'a CaseVerdict> for CaseVerdictDocument<'a> {
    fn from(line: &'a CaseVerdict) -> Self {
        let passed = Self { case: &line.case, verdict: "pass", failure: None, reason: None, mismatch: None };
        match &line.verdict {
            Verdict::Pass => passed,
            Verdict::Fail(finding) => Self {
                verdict: "fail",
                failure: Some(finding.failure()),
                reason: Some(finding.to_string()),
                mismatch: match finding {
                    Finding::Mismatch(mismatch) => Some(mismatch),
                    _ => None,
                },
                ..passed
            },
            Verdict::Unreadable(error) => {
                Self { verdict: "unreadable", reason: Some(error.to_string()), ..passed }
            }
        }
    }
}

impl Verify {
    fn tolerance(&self) -> Option<Tolerance> {
        let (rtol, atol) = (self.rtol, self.atol);
        (rtol.is_some() || atol.is_some())
            .then(|| Tolerance { rtol: rtol.unwrap_or(0.0), atol: atol.unwrap_or(0.0) })
    }
}

impl fmt::Display for CaseVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let case = one_line(&self.case);
        match &self.verdict {
            Verdict::Pass => write!(f, "{}  {case}", styled("pass", anstyle::AnsiColor::Green)),
            Verdict::Fail(finding) => {
                let finding = one_line(&finding.to_string());
                write!(f, "{}  {case}: {finding}", styled("FAIL", anstyle::AnsiColor::Red))
            }
            Verdict::Unreadable(error) => {
                let error = one_line(&error.to_string());
                write!(f, "{}  {case}: {error}", styled("ERR ", anstyle::AnsiColor::Yellow))
            }
        }
    }
}

impl fmt::Display for Totals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed", count(self.passed, "case"), self.failed)?;
        let Failures { wrong, no_output, not_refused, wrongly_refused } = self.failures;
        let kinds = [
            (wrong, "wrong"),
            (no_output, "without a readable output"),
            (not_refused, "not refused"),
            (wrongly_refused, "wrongly refused"),
        ];
        let kinds: Vec<_> =
            kinds.iter().filter(|(n, _)| *n > 0).map(|(n, kind)| format!("{n} {kind}")).collect();
        if !kinds.is_empty() {
            write!(f, " ({})", kinds.join(", "))?;
        }
        match self.unreadable {
            0 => Ok(()),
            unreadable => write!(f, ", {unreadable} could not be read"),
        }
    }
}
