//! `kvscatter verify`: runs ONNX test directories, or checks the outputs of another implementation.

mod attention;
mod cache_write;
mod evaluate;
mod judge;
mod rejection;
mod rules;
mod scatter;
mod single_node;
mod unknown;

use std::collections::BTreeSet;
use std::fmt;
use std::io::Write;
use std::path::{Path, PathBuf};

use clap::Args;
use kvscatter_onnx::test_dir::{TestCase, Unread, discover};
use serde::Serialize;

use crate::compare::{Mismatch, Tolerance};
use crate::error::CommandError;
use crate::files;
use crate::numbers::tolerance;
use crate::output::{Outcome, Output, count, hanging, one_line, paragraph, progress, quoted, styled, table};

use judge::{CaseVerdict, FailedCase, Failure, Finding, Judge, Verdict};
use rules::{RuleCount, RuleCounts};
use scatter::{ScatterCall, WrongSlots};
use unknown::unknown_folders;

/// The most unknown folders that are printed. `--json` lists all of them.
const UNKNOWN_SHOWN: usize = 20;

/// Run ONNX test directories, or check the outputs of another implementation
///
/// The command runs every model.onnx at or below DIR on its test_data_set_* inputs, in place. It compares the
/// outputs with the expected ones. With --actual, it compares the outputs of another implementation instead.
/// A directory with a refused.json passes if the model is refused for that reason.
///
/// A model consists of TensorScatter, Identity, Constant and Add, or of one other node: Attention, or
/// KVCacheUpdate or KVCacheOperation of the domain com.kvscatter.
///
/// Without a tolerance, every bit must agree, also in NaNs and zeros. A directory can have a tolerance in
/// tolerance.json: {"rtol": 0, "atol": 1e-6}. The options --rtol and --atol replace it.
///
/// Links are followed inside DIR. A link that leads out of DIR or nowhere, and a folder that cannot be read,
/// are printed and counted as unreadable. All other directories are still checked.
///
/// A case that fails is printed with the first wrong element and the use of its slot: written, wrapped
/// (written after the end of a ring) or old (not to be changed). The inputs and attributes of TensorScatter
/// follow, and the command that draws the write. The summary counts the cases that break each rule.
///
/// The exit code is 0 if every case passes, 1 if a case fails or cannot be read, and 2 if no case can be
/// read.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  kvscatter verify testdata/onnx-node
  kvscatter cases -o cases --count 500 && kvscatter verify cases

Test your own TensorScatter:
  kvscatter cases -o cases --seed 1 --count 500
  # Run each cases/NAME/model.onnx on its test_data_set_0/input_*.pb with your
  # backend. Write results/NAME/test_data_set_0/output_0.pb or .npy. If your
  # backend refuses the inputs, write no file.
  kvscatter verify cases --actual results --quiet")]
pub(crate) struct Verify {
    /// Folders that are test directories or contain some
    #[arg(value_name = "DIR", required = true)]
    dirs: Vec<PathBuf>,

    /// Check the outputs in this folder instead: OUT/CASE/test_data_set_N/output_I.pb or .npy
    ///
    /// CASE is the path of the case below DIR. If DIR is the case itself, CASE is the name of its folder.
    /// Folders in OUT that belong to no case are printed, and do not change the exit code.
    #[arg(long, value_name = "OUT")]
    actual: Option<PathBuf>,

    /// Print only the cases that do not pass, and the summary
    #[arg(short, long)]
    quiet: bool,

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
    /// The slots of the mismatch.
    #[serde(skip_serializing_if = "Option::is_none")]
    wrong_slots: Option<&'a WrongSlots>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tensor_scatter: Option<&'a ScatterCall>,
    /// The command that draws the write.
    #[serde(skip_serializing_if = "Option::is_none")]
    picture: Option<String>,
}

#[derive(Serialize)]
struct VerifyDocument<'a> {
    cases: Vec<CaseVerdictDocument<'a>>,
    #[serde(flatten)]
    totals: Totals,
    /// The rules that a case breaks.
    broken_rules: Vec<RuleCount>,
    /// The folders of `--actual` that belong to no case.
    unknown_folders: Vec<String>,
}

#[derive(Clone, Copy, Default, Serialize)]
struct Totals {
    passed: usize,
    failed: usize,
    unreadable: usize,
    failures: Failures,
}

/// The number of failed cases of each kind.
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
    let mut known = BTreeSet::new();
    for (dir, folder) in &cases {
        let below = place_below(dir, folder)?;
        let judge = Judge {
            folder,
            actual: args.actual.as_ref().map(|out| out.join(&below)),
            tolerance: args.tolerance(),
        };
        for line in judge.verdicts() {
            let is_shown = !args.quiet || !matches!(line.verdict, Verdict::Pass);
            if !output.is_json() && is_shown {
                bar.suspend(|| writeln!(output, "{line}"))?;
            }
            lines.push(line);
        }
        known.extend(output_folders(folder, below));
        bar.inc(1);
    }
    bar.finish_and_clear();
    let unknown = args.actual.iter().flat_map(|out| {
        let below = unknown_folders(out, &known);
        below.into_iter().map(|folder| out.join(folder).display().to_string())
    });
    conclude(&lines, unknown.collect(), args.quiet, output)
}

/// Returns the paths in OUT of the folders that may contain a case's outputs.
fn output_folders(case: &Path, below: PathBuf) -> Vec<PathBuf> {
    match TestCase::open(case) {
        Ok(case) => {
            let names = case.data_sets.iter().filter_map(|set| set.folder.file_name());
            names.map(|name| below.join(name)).collect()
        }
        Err(_) => vec![below],
    }
}

/// Returns the path in OUT of the outputs of a case. This is the path of the case below DIR, or the name of
/// its folder if the case is DIR itself.
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

fn conclude(
    lines: &[CaseVerdict],
    unknown: Vec<String>,
    is_quiet: bool,
    output: &mut Output,
) -> Result<Outcome, CommandError> {
    let totals = Totals::of(lines);
    let mut rules = RuleCounts::default();
    for line in lines {
        match &line.verdict {
            Verdict::Fail(failed) => rules.add(&line.rules, &failed.broken()),
            _ => rules.add(&line.rules, &[]),
        }
    }
    if output.is_json() {
        output.json(&VerifyDocument {
            cases: lines.iter().map(CaseVerdictDocument::from).collect(),
            totals,
            broken_rules: rules.broken(),
            unknown_folders: unknown,
        })?;
    } else {
        print_unknown(&unknown, output)?;
        let all_pass = lines.iter().all(|line| matches!(line.verdict, Verdict::Pass));
        if !(is_quiet && all_pass && unknown.is_empty()) {
            writeln!(output)?;
        }
        let unknown = match unknown.len() {
            0 => String::new(),
            folders => format!(", {} in the outputs", count(folders, "unknown folder")),
        };
        writeln!(output, "{}", paragraph(&format!("{totals}{unknown}")))?;
        print_rules(&rules.broken(), output)?;
    }
    match totals {
        Totals { passed: 0, failed: 0, unreadable, .. } => {
            Err(CommandError::Unreadable { cases: unreadable })
        }
        Totals { failed: 0, unreadable: 0, .. } => Ok(Outcome::Passed),
        Totals { .. } => Ok(Outcome::Failed),
    }
}

fn print_unknown(unknown: &[String], output: &mut Output) -> Result<(), CommandError> {
    let warning = styled("warn", anstyle::AnsiColor::Yellow);
    for folder in unknown.iter().take(UNKNOWN_SHOWN) {
        writeln!(output, "{warning}  {}: belongs to no case", one_line(folder))?;
    }
    match unknown.len().saturating_sub(UNKNOWN_SHOWN) {
        0 => Ok(()),
        more => Ok(writeln!(output, "{warning}  {} without a case", count(more, "more folder"))?),
    }
}

fn print_rules(rules: &[RuleCount], output: &mut Output) -> Result<(), CommandError> {
    if rules.is_empty() {
        return Ok(());
    }
    let rows = rules
        .iter()
        .map(|rule| vec![rule.sentence(), format!("{} of {}", rule.failed, count(rule.cases, "case"))]);
    Ok(writeln!(output, "\n{}", table(&["broken rule", "failed"], &[], rows))?)
}

impl Totals {
    fn of(lines: &[CaseVerdict]) -> Self {
        let mut totals = Self::default();
        let failures = &mut totals.failures;
        for line in lines {
            let (total, kind) = match &line.verdict {
                Verdict::Pass => (&mut totals.passed, None),
                Verdict::Unreadable(_) => (&mut totals.unreadable, None),
                Verdict::Fail(failed) => {
                    let kind = match failed.finding.failure() {
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
        Self::unreadable(unread.path.display().to_string(), unread.cause.into())
    }
}

impl<'a> From<&'a CaseVerdict> for CaseVerdictDocument<'a> {
    fn from(line: &'a CaseVerdict) -> Self {
        let passed = Self {
            case: &line.case,
            verdict: "pass",
            failure: None,
            reason: None,
            mismatch: None,
            wrong_slots: None,
            tensor_scatter: None,
            picture: None,
        };
        match &line.verdict {
            Verdict::Pass => passed,
            Verdict::Fail(failed) => Self {
                verdict: "fail",
                failure: Some(failed.finding.failure()),
                reason: Some(failed.finding.to_string()),
                mismatch: match &failed.finding {
                    Finding::Mismatch(mismatch) => Some(mismatch),
                    _ => None,
                },
                wrong_slots: failed.slots.as_ref(),
                tensor_scatter: failed.call.as_ref(),
                picture: failed.picture(),
                ..passed
            },
            Verdict::Unreadable(error) => {
                Self { verdict: "unreadable", reason: Some(error.to_string()), ..passed }
            }
        }
    }
}

impl FailedCase {
    /// The command that draws the write.
    fn picture(&self) -> Option<String> {
        let dir = self.drawn.as_ref()?;
        Some(format!("kvscatter run {}", quoted(&dir.display().to_string())))
    }

    /// Returns the lines below the line of the case. The command stays in one line, so that it can be copied.
    fn details(&self) -> Vec<String> {
        let line = |text: String| hanging(INDENT, &one_line(&text));
        let call = self.call.as_ref().map(|call| line(call.to_string()));
        let slots = self.slots.as_ref().map(|slots| line(slots.to_string()));
        let picture = self.picture().map(|command| format!("picture: {}", one_line(&command)));
        [slots, call, picture].into_iter().flatten().collect()
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
        let after =
            |text: String| hanging(INDENT, &format!("{case}: {}", one_line(&text))).trim_start().to_owned();
        match &self.verdict {
            Verdict::Pass => write!(f, "{}  {case}", styled("pass", anstyle::AnsiColor::Green)),
            Verdict::Fail(failed) => {
                let fail = styled("FAIL", anstyle::AnsiColor::Red);
                write!(f, "{fail}  {}", after(failed.finding.to_string()))?;
                failed.details().iter().try_for_each(|line| write!(f, "\n{:INDENT$}{line}", ""))
            }
            Verdict::Unreadable(error) => {
                write!(f, "{}  {}", styled("ERR ", anstyle::AnsiColor::Yellow), after(error.to_string()))
            }
        }
    }
}

/// The columns of a verdict.
const INDENT: usize = 6;

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
