//! The files of values that a saved model reads.

use std::io::Read;
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
pub(super) fn same_contents(mut file: File, bytes: u64, other: &Path) -> Result<bool, OnnxError> {
    let mut other = File::open_ambient_with(other, &file::read_only(), ambient_authority())?;
    if file::regular_size(&other)? != bytes {
        return Ok(false);
    }
    const CHUNK: usize = 1 << 20;
    let (mut left, mut right) = (vec![0; CHUNK], vec![0; CHUNK]);
    loop {
        let (got, expected) = (fill(&mut file, &mut left)?, fill(&mut other, &mut right)?);
        if left.get(..got) != right.get(..expected) {
            return Ok(false);
        }
        if got < CHUNK {
            return Ok(true);
        }
    }
}

/// Reads until the buffer is full or the file ends.
fn fill(file: &mut File, buffer: &mut [u8]) -> Result<usize, OnnxError> {
    let mut filled: usize = 0;
    while let Some(rest) = buffer.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        match file.read(rest)? {
            0 => break,
            got => filled = filled.saturating_add(got),
        }
    }
    Ok(filled)
}
