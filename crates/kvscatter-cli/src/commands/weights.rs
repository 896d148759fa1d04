//! Files of weights of a model that is written.

use std::io::{self, Write};

use clap::ValueEnum;
use kvscatter_onnx::{DataFile, Placed, Weights};
use serde::Serialize;

use crate::output::{Output, one_line};

/// [`Weights`], in the command line's words.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub(crate) enum WeightFiles {
    /// As copies
    #[default]
    Copy,
    /// As second names of the same files, where the file system can; onnx's own checker refuses such files
    Link,
}

impl From<WeightFiles> for Weights {
    fn from(files: WeightFiles) -> Self {
        match files {
            WeightFiles::Copy => Self::Copy,
            WeightFiles::Link => Self::Link,
        }
    }
}

/// A file of weights, as `--json` prints it.
#[derive(Serialize)]
pub(crate) struct WeightFileDocument {
    path: String,
    bytes: u64,
    placed: &'static str,
}

impl From<&DataFile> for WeightFileDocument {
    fn from(file: &DataFile) -> Self {
        Self { path: file.path.display().to_string(), bytes: file.bytes, placed: placed(file.placed) }
    }
}

/// Prints a line for each file.
pub(crate) fn show(files: &[DataFile], output: &mut Output) -> io::Result<()> {
    for file in files {
        let path = one_line(&file.path.display().to_string());
        writeln!(output, "{path}: weights of {} bytes, {}", file.bytes, placed(file.placed))?;
    }
    Ok(())
}

/// Returns how a file of weights got into the model's folder.
fn placed(placed: Placed) -> &'static str {
    match placed {
        Placed::Shared => "shared",
        Placed::Kept => "kept",
        Placed::Linked => "linked",
        Placed::Copied => "copied",
    }
}
