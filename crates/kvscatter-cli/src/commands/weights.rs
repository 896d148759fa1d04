//! The files of weights of a written model.

use std::io::{self, Write};

use clap::ValueEnum;
use kvscatter_onnx::{DataFile, DataFileOrigin, WeightTransfer};
use serde_json::{Value, json};

use crate::output::{Output, one_line};

/// A [`WeightTransfer`] on the command line.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub(crate) enum WeightFiles {
    /// Copy the files
    #[default]
    Copy,
    /// Add names of the same files (hard links) if the file system can; the checker of onnx refuses such
    /// files
    Link,
}

impl From<WeightFiles> for WeightTransfer {
    fn from(files: WeightFiles) -> Self {
        match files {
            WeightFiles::Copy => Self::Copy,
            WeightFiles::Link => Self::Link,
        }
    }
}

/// Returns the files, as `--json` prints them.
pub(crate) fn document(files: &[DataFile]) -> Value {
    let file = |file: &DataFile| {
        let path = file.path.display().to_string();
        json!({"path": path, "bytes": file.bytes, "placed": origin(file.origin)})
    };
    files.iter().map(file).collect()
}

/// Prints a line for each file.
pub(crate) fn show(files: &[DataFile], output: &mut Output) -> io::Result<()> {
    for file in files {
        let path = one_line(&file.path.display().to_string());
        writeln!(output, "{path}: weights of {} bytes, {}", file.bytes, origin(file.origin))?;
    }
    Ok(())
}

/// Returns how a file of weights got into the model's folder.
fn origin(origin: DataFileOrigin) -> &'static str {
    match origin {
        DataFileOrigin::Shared => "shared",
        DataFileOrigin::Kept => "kept",
        DataFileOrigin::Linked => "linked",
        DataFileOrigin::Copied => "copied",
    }
}
