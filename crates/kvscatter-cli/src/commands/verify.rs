//! `kvscatter verify`: runs ONNX test directories, or checks the outputs of another implementation.

mod actual;
mod attention;
mod behaviour;
mod cache;
mod cache_write;
mod corpus;
mod document;
mod evaluate;
mod finding;
mod in_place;
mod judge;
mod rejection;
mod rules;
mod scatter;
mod show;
mod single_node;
mod theirs;
mod totals;
mod unknown;
mod verdict;

use std::collections::BTreeSet;
use std::io::Write;
use std::path::{Path, PathBuf};

use clap::Args;
use kvscatter_onnx::internal::test_dir::{TestCase, Unread, discover};

use crate::compare::Tolerance;
use crate::error::CommandError;
use crate::files;
use crate::numbers::tolerance;
use crate::output::{Outcome, Output, count, one_line, paragraph, styled, table};

use corpus::Corpus;
use judge::{CaseVerdict, Judge, Verdict};
use rules::{RuleCount, RuleCounts};
use totals::Totals;
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
/// In a corpus with an index.json, such as conformance/, a case that fails is also printed with what it contains
/// and the slots that its queries see. The summary then counts the cases of each rule of the corpus.
///
/// With --actual, --json contains the answer to each case: exact, differs, refuses, crashes or timeout. If the
/// model must be refused, the answer may also name what happened instead: accepts, clamps, wraps, skips, ignores
/// or drops-rows. The result in place is exact, copies, partly-written, differs, corrupts-past, refuses, crashes,
/// timeout or not-possible. A case passes if its call in place copied or is not possible.
///
/// The exit code is 0 if every case passes, 1 if a case fails or cannot be read, and 2 if no case can be
/// read.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  kvscatter verify testdata/onnx-node
  kvscatter cases -o cases --count 500 && kvscatter verify cases

Test your own kernel, in a clone of the repository:
  python conformance/run.py my_kernel.py -o results
  kvscatter verify conformance --actual results --quiet

Test your own TensorScatter in any language:
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
    ///
    /// The folder may also contain answer.json with the end of the call: {"plain": {"status": "returned",
    /// "message": "..."}}. The status is returned, refused, crashed or timeout. Without it, a case without an
    /// output was refused.
    ///
    /// "in_place" in answer.json is the end of a call that may write into the memory of the past. Its status may
    /// also be not-possible. in_place_0.pb or .npy is the whole memory of the past after that call, also after a
    /// refusal. With "same_memory": false, the call returned other memory. in_place_0 is then that present, and
    /// past_0 the memory of the past.
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
        let corpus = Corpus::find(dir);
        cases.extend(discovered.cases.into_iter().map(|folder| {
            let note = corpus.as_ref().and_then(|corpus| corpus.note(&folder)).cloned();
            (dir, folder, note)
        }));
        lines.extend(discovered.unread.into_iter().map(CaseVerdict::from));
    }
    if !output.is_json() {
        lines.iter().try_for_each(|line| writeln!(output, "{line}"))?;
    }
    let bar = output.progress(cases.len());
    let mut known = BTreeSet::new();
    for (dir, folder, note) in &cases {
        let below = place_below(dir, folder)?;
        let judge = Judge {
            folder,
            actual: args.actual.as_ref().map(|out| out.join(&below)),
            tolerance: Tolerance::of_options(args.rtol, args.atol),
        };
        for mut line in judge.verdicts() {
            line.note.clone_from(note);
            let is_shown = !args.quiet || !matches!(line.judged.verdict, Verdict::Pass);
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
    let totals = Totals::new(lines);
    let (passed, failed, unreadable) = (totals.passed, totals.failed, totals.unreadable);
    let mut rules = RuleCounts::default();
    for line in lines {
        match &line.judged.verdict {
            Verdict::Fail(failed) => rules.add(&line.judged.rules, &failed.broken(&line.judged.rules)),
            _ => rules.add(&line.judged.rules, &[]),
        }
    }
    if output.is_json() {
        output.json(&document::document(lines, &totals, &rules.broken(), &unknown))?;
    } else {
        print_unknown(&unknown, output)?;
        let all_pass = lines.iter().all(|line| matches!(line.judged.verdict, Verdict::Pass));
        if !(is_quiet && all_pass && unknown.is_empty()) {
            writeln!(output)?;
        }
        let unknown = match unknown.len() {
            0 => String::new(),
            folders => format!(", {} in the outputs", count(folders, "unknown folder")),
        };
        writeln!(output, "{}", paragraph(&format!("{totals}{unknown}")))?;
        totals.in_place().map_or(Ok(()), |counts| writeln!(output, "{}", paragraph(&counts)))?;
        print_rules(&rules.broken(), output)?;
        let of_corpus = lines.iter().filter_map(|line| {
            let has_failed = matches!(line.judged.verdict, Verdict::Fail(_));
            line.note.as_ref().map(|note| (&*note.rule, has_failed))
        });
        corpus::broken(of_corpus).map_or(Ok(()), |table| writeln!(output, "\n{table}"))?;
    }
    match (passed, failed, unreadable) {
        (0, 0, cases) => Err(CommandError::Unreadable { cases }),
        (_, 0, 0) => Ok(Outcome::Passed),
        _ => Ok(Outcome::Failed),
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

impl From<Unread> for CaseVerdict {
    fn from(unread: Unread) -> Self {
        Self::unreadable(unread.path.display().to_string(), unread.cause.into())
    }
}
