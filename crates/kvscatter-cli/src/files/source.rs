//! Reading bytes without trusting anyone's claim about how many there are.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use super::Problem;

/// An open file and its length.
pub(super) fn open(path: &Path) -> Result<(File, u64), Problem> {
    // Asked before opening: a pipe without a writer would wait for one. A device has no length to hold claims
    // against.
    if !std::fs::metadata(path)?.is_file() {
        return Err(Problem::NotAFile);
    }
    let file = File::open(path)?;
    let len = file.metadata()?.len();
    Ok((file, len))
}

/// All bytes of a file.
pub(super) fn whole(path: &Path) -> Result<Vec<u8>, Problem> {
    let (mut file, len) = open(path)?;
    let len = usize::try_from(len).map_err(|_| Problem::TooLarge { bytes: len })?;
    exactly(&mut file, len)
}

/// The next `len` bytes, where the caller has checked that the source is at least that long.
pub(super) fn exactly(source: &mut impl Read, len: usize) -> Result<Vec<u8>, Problem> {
    let mut bytes = Vec::new();
    bytes
        .try_reserve_exact(len)
        .map_err(|_| Problem::TooLarge { bytes: u64::try_from(len).unwrap_or(u64::MAX) })?;
    source.take(u64::try_from(len).unwrap_or(u64::MAX)).read_to_end(&mut bytes)?;
    if bytes.len() == len { Ok(bytes) } else { Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()) }
}

/// At most `limit` bytes of a source of unknown length: memory grows with what arrives.
pub(super) fn at_most(source: &mut impl Read, limit: usize) -> Result<Vec<u8>, Problem> {
    let mut bytes = Vec::new();
    source.take(u64::try_from(limit).unwrap_or(u64::MAX)).read_to_end(&mut bytes)?;
    Ok(bytes)
}
