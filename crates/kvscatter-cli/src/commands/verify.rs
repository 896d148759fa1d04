//! `kvscatter verify`: ONNX test directories, run here or judged by somebody else's outputs.

mod judge;

use std::fmt;
use std::io::Write;
use std::path::PathBuf;

use clap::Args;
use kvscatter_onnx::test_dir::discover;
use serde::{Serialize, Serializer};

use crate::Outcome;
use crate::compare::Tolerance;
use crate::error::Error;
use crate::files;
use crate::output::{Output, count, one_line, progress, styled};

use judge::{Finding, Judge};

/// Check ONNX test directories: ours, or with --actual somebody else's outputs
///
/// Every model.onnx at or below DIR is run on its test_data_set_* inputs, in place, and its outputs are compared with
/// the expected ones: bit for bit, NaN payloads and negative zeros included, unless a tolerance is given. A directory
/// with a refused.json passes if the model is refused for that reason.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  kvscatter verify testdata/onnx-node
  kvscatter cases -o cases --count 500 && kvscatter verify cases

Test your own TensorScatter:
  kvscatter cases -o cases --seed 1 --count 500
  # run each cases/NAME/model.onnx on cases/NAME/test_data_set_0/input_*.pb with your backend and write
  # results/NAME/test_data_set_0/output_0.pb or .npy; write nothing for what your backend refuses
  kvscatter verify cases --actual results")]
pub(crate) struct Verify {
    /// Folders that are test directories or contain some
    #[arg(value_name = "DIR", required = true)]
    dirs: Vec<PathBuf>,

    /// Judge the outputs in this folder instead: OUT/CASE/test_data_set_N/output_I.pb or .npy
    #[arg(long, value_name = "OUT")]
    actual: Option<PathBuf>,

    /// Relative tolerance: |actual - expected| <= atol + rtol * |expected|
    #[arg(long, value_name = "R", allow_negative_numbers = true, value_parser = tolerance)]
    rtol: Option<f64>,

    /// Absolute tolerance
    #[arg(long, value_name = "A", allow_negative_numbers = true, value_parser = tolerance)]
    atol: Option<f64>,
}

/// What became of one data set.
#[derive(Serialize)]
struct Line {
    case: String,
    #[serde(flatten)]
    verdict: Verdict,
}

#[derive(Serialize)]
#[serde(tag = "verdict", content = "reason", rename_all = "kebab-case")]
enum Verdict {
    Pass,
    Fail(#[serde(serialize_with = "as_text")] Finding),
    /// The case itself cannot be read.
    Unreadable(#[serde(serialize_with = "as_text")] Error),
}

#[derive(Serialize)]
struct Document {
    cases: Vec<Line>,
    #[serde(flatten)]
    totals: Totals,
}

#[derive(Clone, Copy, Default, Serialize)]
struct Totals {
    passed: usize,
    failed: usize,
    unreadable: usize,
}

pub(crate) fn run(args: Verify, output: &mut Output) -> Result<Outcome, Error> {
    let mut cases = Vec::new();
    for dir in args.dirs.iter().chain(&args.actual) {
        files::check_folder(dir)?;
    }
    for dir in &args.dirs {
        let found = discover(dir)?;
        if found.is_empty() {
            return Err(Error::NoCases { dir: dir.clone() });
        }
        cases.extend(found.into_iter().map(|case| (dir, case)));
    }
    let bar = progress(cases.len());
    let mut lines = Vec::new();
    for (dir, case) in &cases {
        // The same place below OUT as below DIR.
        let below = case.folder.strip_prefix(dir).unwrap_or(&case.folder);
        let judge = Judge {
            case,
            actual: args.actual.as_ref().map(|out| out.join(below)),
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
    conclude(lines, output)
}

fn conclude(lines: Vec<Line>, output: &mut Output) -> Result<Outcome, Error> {
    let mut totals = Totals::default();
    for line in &lines {
        let total = match line.verdict {
            Verdict::Pass => &mut totals.passed,
            Verdict::Fail(_) => &mut totals.failed,
            Verdict::Unreadable(_) => &mut totals.unreadable,
        };
        *total = total.saturating_add(1);
    }
    if output.is_json() {
        output.json(&Document { cases: lines, totals })?;
    } else {
        writeln!(output, "\n{totals}")?;
    }
    match totals {
        Totals { unreadable: 1.., .. } => Err(Error::Unreadable { cases: totals.unreadable }),
        Totals { failed: 1.., .. } => Ok(Outcome::Failed),
        Totals { .. } => Ok(Outcome::Passed),
    }
}

impl Verify {
    fn tolerance(&self) -> Option<Tolerance> {
        let (rtol, atol) = (self.rtol, self.atol);
        (rtol.is_some() || atol.is_some())
            .then(|| Tolerance { rtol: rtol.unwrap_or(0.0), atol: atol.unwrap_or(0.0) })
    }
}

/// A number that can bound a distance.
fn tolerance(text: &str) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|_| "must be a number".to_owned())?;
    if number.is_finite() && number >= 0.0 {
        Ok(number)
    } else {
        Err("must be finite and not negative".to_owned())
    }
}

impl fmt::Display for Line {
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
        match self.unreadable {
            0 => Ok(()),
            unreadable => write!(f, ", {unreadable} could not be read"),
        }
    }
}

fn as_text<S: Serializer>(reason: &impl fmt::Display, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(reason)
}
