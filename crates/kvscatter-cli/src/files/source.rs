//! Reads bytes without trusting a claim about their number.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use cap_fs_ext::OpenOptionsSyncExt;
use cap_std::ambient_authority;
use cap_std::fs::OpenOptions;

use super::Problem;

/// Opens a file, and returns it with its length. The length comes from the open file, because the path may
/// lead to another file by now.
pub(super) fn open(path: &Path) -> Result<(File, u64), Problem> {
    open_with(path, OpenOptions::new().read(true))
}

/// Opens a file for reading and writing.
pub(super) fn open_for_writing(path: &Path) -> Result<File, Problem> {
    open_with(path, OpenOptions::new().read(true).write(true)).map(|(file, _)| file)
}

fn open_with(path: &Path, options: &mut OpenOptions) -> Result<(File, u64), Problem> {
    // Without this flag, opening a pipe waits for its other end.
    options.nonblock(true);
    let file = cap_std::fs::File::open_ambient_with(path, options, ambient_authority())?.into_std();
    let meta = file.metadata()?;
    // A device has no length to compare claims with.
    if meta.is_file() { Ok((file, meta.len())) } else { Err(Problem::NotAFile) }
}

/// Reads the next `len` bytes. The caller has checked that the source has at least this length.
pub(super) fn exactly(source: &mut impl Read, len: u64) -> Result<Vec<u8>, Problem> {
    let too_large = Problem::TooLarge { bytes: len };
    let Ok(size) = usize::try_from(len) else { return Err(too_large) };
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(size).map_err(|_| too_large)?;
    source.take(len).read_to_end(&mut bytes)?;
    if bytes.len() == size { Ok(bytes) } else { Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()) }
}

/// Reads at most `limit` bytes of a source of unknown length. Memory grows only with the bytes that are read.
pub(super) fn at_most(source: &mut impl Read, limit: usize) -> Result<Vec<u8>, Problem> {
    let mut bytes = Vec::new();
    source.take(u64::try_from(limit).unwrap_or(u64::MAX)).read_to_end(&mut bytes)?;
    Ok(bytes)
}
