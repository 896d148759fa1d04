//! What the instrumented programs counted, read with LLVM's tools.

use std::collections::BTreeMap;
use std::error::Error;
use std::fs;
use std::ops::Range;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::Deserialize;

/// The first version of LLVM's tools that reads what the compiler writes.
const PROFDATA: &str = "llvm-profdata-19";
const COV: &str = "llvm-cov-19";

/// The counters of all files.
pub(crate) struct Counters {
    files: BTreeMap<PathBuf, FileCounters>,
}

/// The counters of one file.
pub(crate) struct FileCounters {
    segments: Vec<Segment>,
}

pub(crate) enum Executed {
    Yes,
    No,
    HasNoCode,
}

/// A position, and the counter of the code from there to the next segment.
#[derive(Deserialize)]
struct Segment(
    usize,
    usize,
    u64,
    HasCount,
    #[expect(dead_code, reason = "a field of the format")] bool,
    IsGap,
);

type HasCount = bool;
type IsGap = bool;

#[derive(Deserialize)]
struct Export {
    data: Vec<ExportData>,
}

#[derive(Deserialize)]
struct ExportData {
    files: Vec<ExportFile>,
}

#[derive(Deserialize)]
struct ExportFile {
    filename: PathBuf,
    segments: Vec<Segment>,
}

impl Counters {
    /// Reads the profiles in `profiles` and the programs in all build folders below `folder`.
    pub(crate) fn read(folder: &Path) -> Result<Self, Box<dyn Error>> {
        let merged = folder.join("merged.profdata");
        let raw = with_ending(&folder.join("profiles"), "profraw")?;
        let mut merge = Command::new(PROFDATA);
        merge.args(["merge", "--sparse", "--output"]).arg(&merged).args(raw);
        output(&mut merge)?;
        let mut export = Command::new(COV);
        export.args(["export", "--skip-expansions", "--skip-functions", "--instr-profile"]).arg(&merged);
        export.args(programs(folder)?.iter().flat_map(|program| [Path::new("--object"), program]));
        let export: Export = serde_json::from_slice(&output(&mut export)?)?;
        let files = export.data.into_iter().flat_map(|data| data.files);
        let files = files.map(|file| (file.filename, FileCounters { segments: file.segments }));
        Ok(Self { files: files.collect() })
    }

    /// Returns counters of one file, each with its line and column.
    #[cfg(test)]
    pub(crate) fn of(file: &Path, counts: &[(usize, usize, u64)]) -> Self {
        let segments =
            counts.iter().map(|&(line, column, count)| Segment(line, column, count, true, true, false));
        Self { files: BTreeMap::from([(file.to_owned(), FileCounters { segments: segments.collect() })]) }
    }

    /// Returns the counters of a file, or `None` if it is in no program.
    pub(crate) fn file(&self, source: &Path) -> Option<&FileCounters> {
        self.files.get(source)
    }
}

impl FileCounters {
    /// Returns whether any code in these columns of a line was executed.
    pub(crate) fn executed(&self, line: usize, columns: Range<usize>) -> Executed {
        let begin = self.segments.partition_point(|at| (at.0, at.1) <= (line, columns.start));
        let end = self.segments.partition_point(|at| (at.0, at.1) < (line, columns.end));
        let here = self.segments.get(begin.saturating_sub(1)..end).unwrap_or_default();
        match here.iter().filter(|at| at.3 && !at.5).map(|at| at.2).max() {
            None => Executed::HasNoCode,
            Some(0) => Executed::No,
            Some(_) => Executed::Yes,
        }
    }
}

/// Returns the programs and libraries of the workspace that cargo has built below a folder.
fn programs(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let path = entry.path();
        if entry.file_type()?.is_dir() {
            found.extend(programs(&path)?);
        } else if folder.ends_with("deps") && entry.metadata()?.permissions().mode() & 0o111 != 0 {
            let is_ours =
                path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("libkvscatter"));
            if is_ours || path.extension().is_none() {
                found.push(path);
            }
        }
    }
    Ok(found)
}

fn with_ending(folder: &Path, ending: &str) -> std::io::Result<Vec<PathBuf>> {
    let paths = fs::read_dir(folder)?.map(|entry| Ok(entry?.path()));
    let paths = paths.collect::<std::io::Result<Vec<PathBuf>>>()?;
    Ok(paths.into_iter().filter(|path| path.extension().is_some_and(|end| end == ending)).collect())
}

fn output(command: &mut Command) -> Result<Vec<u8>, Box<dyn Error>> {
    let output = command.stderr(Stdio::inherit()).output()?;
    if output.status.success() {
        Ok(output.stdout)
    } else {
        Err(format!("{command:?}: {}", output.status).into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file() -> FileCounters {
        let segment = |line, column, count, has_count| Segment(line, column, count, has_count, true, false);
        FileCounters {
            segments: vec![segment(3, 5, 7, true), segment(3, 9, 0, true), segment(4, 2, 0, false)],
        }
    }

    #[test]
    fn the_counter_that_begins_before_the_columns_counts() {
        assert!(matches!(file().executed(3, 6..8), Executed::Yes));
        assert!(matches!(file().executed(3, 8..12), Executed::Yes));
        assert!(matches!(file().executed(3, 9..12), Executed::No));
        assert!(matches!(file().executed(4, 1..2), Executed::No));
    }

    #[test]
    fn code_without_a_counter_is_no_code() {
        assert!(matches!(file().executed(2, 1..9), Executed::HasNoCode));
        assert!(matches!(file().executed(4, 2..9), Executed::HasNoCode));
    }
}
