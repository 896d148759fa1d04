//! `kvscatter cases`: writes adversarial ONNX test directories for other implementations of TensorScatter.

mod corpus;
mod model;
mod tensors;

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use kvscatter_onnx::internal::file::UnfinishedFiles;
use kvscatter_onnx::internal::test_dir::TestCase;
use kvscatter_oracle::cases::{Call, Case, tensor_scatter};
use serde_json::json;

use crate::error::CommandError;
use crate::files;
use crate::json::without_null;
use crate::numbers::integer;
use crate::output::{Outcome, Output, count, one_line};
use crate::refused::Refused;

use corpus::Written;
use model::ModelParts;
use tensors::{element, int64s, tensor, tensors};

/// The most cases that are written without `--many`.
const MANY: usize = 100_000;

/// The beginning of the name of the folder in which cases are made.
const INCOMPLETE: &str = ".incomplete-";
/// A file in that folder. Every reader of test directories takes it for a model, but no reader can parse it.
const MARKER: &str = "model.onnx";
const MARKED: &str =
    "kvscatter cases was interrupted here: remove this folder, which contains only a part of the cases\n";

/// Write adversarial ONNX test directories for TensorScatter
///
/// Each directory has one TensorScatter-24 model with inputs and the expected output, which is computed with
/// the specification's pseudocode. The cases have every element type, indices at every edge, batch and heads
/// larger than the capacity, empty dimensions and odd rows of 4-bit elements. If the inputs must be refused,
/// there is no output, and refused.json contains the reason.
///
/// Either all cases are written or none. After an error or an interruption no file remains. In a terminal, a
/// bar shows the remaining time.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  kvscatter cases -o cases                  # every idea with every type
  kvscatter cases -o cases --seed 7 --count 5000
  kvscatter cases -o corpus --conformance   # the cases of conformance/
  kvscatter verify cases                    # check kvscatter
  kvscatter verify cases --actual results   # check your outputs

The same seed gives the same cases on every machine and with every --count.")]
pub(crate) struct Cases {
    /// The folder for the cases, which must be new or empty
    #[arg(short, long = "output", value_name = "DIR")]
    output: PathBuf,

    /// The seed of the random cases
    #[arg(long, default_value_t = 0, value_parser = integer::<u64>)]
    seed: u64,

    /// The number of cases; 624 or more cover every kind of edge case with every element type
    #[arg(long, default_value_t = 624, value_parser = integer::<usize>)]
    count: usize,

    /// Write more than 100000 cases
    #[arg(long)]
    many: bool,

    /// Write the conformance corpus instead: small cases, chosen by hand, with an index of their rules
    #[arg(long, conflicts_with_all = ["seed", "count", "many"])]
    conformance: bool,
}

pub(crate) fn run(args: Cases, output: &mut Output) -> Result<Outcome, CommandError> {
    if args.count > MANY && !args.many {
        return Err(CommandError::ManyCases { count: args.count, limit: MANY });
    }
    check_empty(&args.output)?;
    let Written { cases, refused } = write_all(&args, &output.progress(args.count))?;
    let folder = args.output.display().to_string();
    if output.is_json() {
        // The corpus has no seed.
        let seed = (!args.conformance).then_some(args.seed);
        let document = json!({"folder": folder, "seed": seed, "cases": cases, "refused": refused});
        output.json(&without_null(document, &["seed"]))?;
    } else {
        let (folder, cases) = (one_line(&folder), count(cases, "case"));
        writeln!(
            output,
            "{folder}: {cases}, of which {refused} must be refused; check them with: kvscatter verify {folder}"
        )?;
    }
    Ok(Outcome::Passed)
}

/// Writes all cases, or nothing.
///
/// The cases are made in a new folder inside the output, and moved up after all of them are complete. An
/// error or a signal removes that folder. After an event that cannot be caught, such as a power failure, the
/// folder remains, with its [`MARKER`].
fn write_all(args: &Cases, bar: &ProgressBar) -> Result<Written, CommandError> {
    let refuse = |error: io::Error| files::FileError::at_path(&args.output, error);
    let mut unfinished = UnfinishedFiles::new();
    unfinished.folders(&args.output).map_err(refuse)?;
    let folder = unfinished.folder_in(&args.output, INCOMPLETE).map_err(refuse)?;
    files::write_bytes(&folder.join(MARKER), MARKED.as_bytes(), &[])?;
    let (names, written) = if args.conformance {
        (corpus::entries(), unfinished.fill(|| corpus::write_all(&folder))?)
    } else {
        write_random(args, &folder, &unfinished, bar)?
    };
    unfinished.complete(|| move_up(&folder, &args.output, &names)).map_err(refuse)?;
    Ok(written)
}

/// Writes the random cases into a folder. Returns their names.
fn write_random(
    args: &Cases,
    folder: &Path,
    unfinished: &UnfinishedFiles,
    bar: &ProgressBar,
) -> Result<(Vec<String>, Written), CommandError> {
    bar.set_style(with_time_left());
    let (mut names, mut written) = (Vec::new(), Written::default());
    for case in tensor_scatter(args.seed, args.count) {
        let is_refused = unfinished.fill(|| write(&case, &folder.join(&case.name)))?;
        written.refused = written.refused.saturating_add(is_refused.into());
        written.cases = written.cases.saturating_add(1);
        names.push(case.name);
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok((names, written))
}

/// Returns the style of a bar with the remaining time.
fn with_time_left() -> ProgressStyle {
    ProgressStyle::with_template("{wide_bar} {pos}/{len}, {eta} left")
        .unwrap_or_else(|_| ProgressStyle::default_bar())
}

/// Moves the named entries of a folder up, and removes the folder. If that fails, the moved entries are
/// removed.
fn move_up(folder: &Path, to: &Path, names: &[String]) -> io::Result<()> {
    for (moved, name) in names.iter().enumerate() {
        if let Err(error) = std::fs::rename(folder.join(name), to.join(name)) {
            for name in names.iter().take(moved) {
                // The first error is the one to report.
                let _ = std::fs::remove_dir_all(to.join(name));
            }
            return Err(error);
        }
    }
    // All cases have been moved, so a folder that cannot be removed is no failure.
    let _ = std::fs::remove_file(folder.join(MARKER));
    let _ = std::fs::remove_dir(folder);
    Ok(())
}

/// Writes one case. Returns whether it must be refused.
fn write(case: &Case, folder: &Path) -> Result<bool, CommandError> {
    let Call::TensorScatter { operator, write_indices, .. } = &case.call else {
        return Err(CommandError::NotTensorScatter { what: case.name.clone() });
    };
    let mut inputs = tensors(case)?.to_vec();
    inputs.extend(write_indices.as_deref().map(int64s).transpose()?);
    let model = ModelParts::tensor_scatter(operator.axis, &operator.mode, &inputs).model();
    let (outputs, refused) = match &case.expected {
        Ok(expected) => {
            (vec![tensor(element(case.elements[0])?, &case.cache_shape, &expected.present)?], None)
        }
        Err(refusal) => (Vec::new(), Some(Refused::from_oracle(refusal)?)),
    };
    TestCase::write(folder, &model, &[(inputs, outputs)])?;
    if let Some(refused) = &refused {
        refused.write(folder)?;
    }
    Ok(refused.is_some())
}

/// Checks that a folder is empty, because `verify` would also run old cases in it.
fn check_empty(folder: &Path) -> Result<(), CommandError> {
    match std::fs::read_dir(folder).map(|mut entries| entries.next()) {
        Ok(None) => Ok(()),
        Ok(Some(Ok(entry))) => {
            Err(CommandError::NotEmpty { dir: folder.to_owned(), entry: entry.file_name() })
        }
        Ok(Some(Err(error))) => Err(files::FileError::at_path(folder, error).into()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(files::FileError::at_path(folder, error).into()),
    }
}
