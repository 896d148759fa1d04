//! The files of values that a saved model reads.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use cap_std::ambient_authority;
use cap_std::fs::File;

use crate::{OnnxError, file};

/// A file of values that a saved model reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataFile {
    /// The path of the file in the folder of the saved model.
    pub path: PathBuf,
    /// The size of the file in bytes.
    pub bytes: u64,
    /// How the file got there.
    pub origin: DataFileOrigin,
}

/// How a file of values got into the folder of a saved model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataFileOrigin {
    /// Both models are in the same folder and use the same file.
    Shared,
    /// A file with the same contents already existed and was kept.
    Kept,
    /// The file is a hard link to the file of the original model.
    Linked,
    /// The file was copied.
    Copied,
}

/// Returns `true` if two files contain the same bytes.
pub(super) fn same_contents(file: File, bytes: u64, other: &Path) -> Result<bool, OnnxError> {
    const CHUNK: usize = 1 << 20;
    let other = File::open_ambient_with(other, &file::read_only(), ambient_authority())?;
    if file::regular_size(&other)? != bytes {
        return Ok(false);
    }
    let [mut left, mut right] = [file, other].map(|file| BufReader::with_capacity(CHUNK, file));
    loop {
        let (got, expected) = (left.fill_buf()?, right.fill_buf()?);
        let common = got.len().min(expected.len());
        if got.get(..common) != expected.get(..common) {
            return Ok(false);
        }
        if common == 0 {
            return Ok(got.len() == expected.len());
        }
        left.consume(common);
        right.consume(common);
    }
}
