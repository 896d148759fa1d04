//! File access. Untrusted files are read whole, outputs are written whole or not at all, and paths are
//! compared by the files that they lead to.

mod identity;
mod kind;
mod replace;
mod stamp;
mod unfinished;
mod write;

use std::io::Read;
use std::path::Path;

use cap_fs_ext::OpenOptionsSyncExt;
use cap_std::ambient_authority;
use cap_std::fs::{File, OpenOptions};

use crate::OnnxError;

pub use identity::{Identity, folder_of};
pub use kind::OutputFileKind;
pub use replace::replace;
pub(crate) use stamp::Stamp;
pub use unfinished::{ShutdownGuard, UnfinishedFiles, remove_unfinished};
pub use write::write;
pub(crate) use write::write_with;

/// Opens a regular file and returns it with its size.
///
/// # Errors
/// Returns [`OnnxError::Io`] or [`OnnxError::NotRegularFile`], wrapped in [`OnnxError::InFile`].
pub fn open(path: &Path) -> Result<(std::fs::File, u64), OnnxError> {
    File::open_ambient_with(path, &read_only(), ambient_authority())
        .map_err(OnnxError::Io)
        .and_then(|file| regular_size(&file).map(|size| (file.into_std(), size)))
        .map_err(|error| error.in_file(path))
}

/// Reads a whole regular file of at most `limit` bytes.
pub(crate) fn read(path: &Path, limit: u64) -> Result<Vec<u8>, OnnxError> {
    read_stamped(path, limit).map(|(bytes, _)| bytes)
}

/// Reads a file like [`read`]. Also returns its stamp, with which a later change of the file can be detected.
pub(crate) fn read_stamped(path: &Path, limit: u64) -> Result<(Vec<u8>, Stamp), OnnxError> {
    open(path).and_then(|(file, size)| {
        let read = || {
            if size > limit {
                return Err(OnnxError::FileTooLarge { size, limit });
            }
            let stamp = Stamp::of(&file)?;
            read_exactly(file, size).map(|bytes| (bytes, stamp))
        };
        read().map_err(|error: OnnxError| error.in_file(path))
    })
}

/// Returns options that open a file without blocking. Without the flag, opening a pipe without a writer would
/// never return.
pub(crate) fn read_only() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).nonblock(true);
    options
}

/// Returns the size of an open file, which must be a regular file. The size is read from the handle, because
/// the path may lead to another file by the time the file is read.
pub(crate) fn regular_size(file: &File) -> Result<u64, OnnxError> {
    let metadata = file.metadata().map_err(OnnxError::Io)?;
    if metadata.is_file() { Ok(metadata.len()) } else { Err(OnnxError::NotRegularFile) }
}

/// Reads `len` bytes from the current position.
///
/// The size of the file has shown that the bytes exist. If there are fewer, an error is returned, because a
/// part of a protobuf message can itself be a valid message.
pub(crate) fn read_exactly(file: impl Read, len: u64) -> Result<Vec<u8>, OnnxError> {
    let out_of_memory = || OnnxError::Io(std::io::ErrorKind::OutOfMemory.into());
    let mut bytes = Vec::new();
    bytes
        .try_reserve_exact(usize::try_from(len).map_err(|_| out_of_memory())?)
        .map_err(|_| out_of_memory())?;
    let got = file.take(len).read_to_end(&mut bytes).map_err(OnnxError::Io)?;
    match u64::try_from(got) {
        Ok(got) if got < len => Err(OnnxError::FileShrank { expected: len, got }),
        _ => Ok(bytes),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{read, read_exactly};
    use crate::OnnxError;

    #[test]
    fn a_file_that_shrinks_while_it_is_read() {
        assert_eq!(read_exactly([1, 2, 3].as_slice(), 3).unwrap(), [1, 2, 3]);
        let error = read_exactly([1, 2].as_slice(), 3).unwrap_err();
        assert!(matches!(error, OnnxError::FileShrank { expected: 3, got: 2 }), "{error}");
    }

    #[test]
    fn only_regular_files_within_the_limit() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        std::fs::write(&file, b"1234").unwrap();
        assert_eq!(read(&file, 4).unwrap(), b"1234");
        let error = read(&file, 3).unwrap_err();
        assert!(matches!(error.root(), OnnxError::FileTooLarge { size: 4, limit: 3 }), "{error}");
        for path in [folder.path(), Path::new("/dev/zero")] {
            let error = read(path, 4).unwrap_err();
            assert!(matches!(error.root(), OnnxError::NotRegularFile), "{error}");
        }
        let error = read(&folder.path().join("absent"), 4).unwrap_err();
        assert!(matches!(error.root(), OnnxError::Io(_)), "{error}");
    }
}
