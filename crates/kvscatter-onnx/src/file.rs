//! File access. Untrusted files are read whole, outputs are written whole or not at all, and paths are
//! compared by the files that they lead to.

mod identity;
mod kind;
mod replace;
mod stamp;
mod unfinished;
mod write;

use std::io::Read;
use std::path::{Path, PathBuf};

use cap_fs_ext::OpenOptionsSyncExt;
use cap_std::ambient_authority;
use cap_std::fs::{File, OpenOptions};

use crate::{ErrorPlace, OnnxError};

pub use identity::{Identity, folder_of};
pub use kind::OutputFileKind;
pub use replace::replace;
pub(crate) use stamp::Stamp;
pub use unfinished::{ShutdownGuard, UnfinishedFiles, remove_unfinished};
pub use write::write;
pub(crate) use write::write_with;

/// An error about files.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr, strum::VariantNames)]
#[strum(serialize_all = "snake_case")]
#[non_exhaustive]
#[expect(missing_docs, reason = "each variant's message names its fields")]
pub enum FileError {
    /// The path leads to a folder, a pipe, a device or a socket.
    #[error("not a regular file")]
    NotRegularFile,
    /// The file is larger than the limit for reading it.
    #[error("{size} bytes exceed the limit of {limit}")]
    FileTooLarge { size: u64, limit: u64 },
    /// The file became shorter while it was read.
    #[error("read {got} bytes of {expected}: the file changed while it was read")]
    FileShrank { expected: u64, got: u64 },
    /// The file is not the one that was there when the model was read, or its length or a time of change differs.
    #[error("the file has changed since the model was read")]
    FileChanged,
    /// The output would replace a file of another kind.
    #[error("exists and is not an {kind} file: give another name, or remove it first")]
    OtherKind { kind: &'static str },
    /// The path of a model leads to a folder. `has_model` is true if the folder contains `model.onnx`.
    #[error("a folder: pass the path of {} in it", if *has_model { "model.onnx" } else { "a model's file" })]
    ModelFolder { has_model: bool },
    /// The model was changed or created in memory, but an engine reads a model from its file.
    #[error("the model was made in memory or changed since it was read: save it, and load that file")]
    NotAsRead,
    /// The bytes are a model of another format.
    #[error("a file in {format} format, not an ONNX model")]
    OtherFormat { format: &'static str },
    /// Writing this output would overwrite a file that is being read.
    #[error("is an input (the model or a file of its values): inputs are not overwritten")]
    OverInput,
    /// A different file already exists at the path for a file of values.
    #[error("already exists with other contents, and the model's values would be written to it")]
    DataFileDiffers,
    /// The model and its values would be written to the same path.
    #[error("the model and its values would be written to the same file: give the model another name")]
    DataFileIsModel,
    /// A link leads out of the folder. Files outside the folder are not read.
    #[error("is a link that leads out of the folder: it is not followed")]
    LinkLeadsOut,
    /// The numbers of the files have a gap, as in `input_0.pb, input_2.pb`.
    #[error("{missing} is missing among {folder:?}'s files")]
    TestFileMissing { folder: PathBuf, missing: String },
    /// There are more files than the graph has inputs or outputs.
    #[error("{got} {what} files, but the graph has {expected}")]
    TestFileCount { what: &'static str, expected: usize, got: usize },
}

crate::cause!(FileError, Into::into);

/// Opens a regular file and returns it with its size.
///
/// # Errors
/// Returns [`std::io::Error`] or [`FileError::NotRegularFile`], wrapped in [`OnnxError::InFile`].
pub fn open(path: &Path) -> Result<(std::fs::File, u64), OnnxError> {
    let file = File::open_ambient_with(path, &read_only(), ambient_authority()).in_file(path)?;
    let size = regular_size(&file).in_file(path)?;
    Ok((file.into_std(), size))
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
                return Err(FileError::FileTooLarge { size, limit }.into());
            }
            let stamp = Stamp::read(&file)?;
            read_exactly(file, size).map(|bytes| (bytes, stamp))
        };
        read().in_file(path)
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
    let metadata = file.metadata()?;
    if metadata.is_file() { Ok(metadata.len()) } else { Err(FileError::NotRegularFile.into()) }
}

/// Reads `len` bytes from the current position.
///
/// The size of the file has shown that the bytes exist. If there are fewer, an error is returned, because a
/// part of a protobuf message can itself be a valid message.
pub(crate) fn read_exactly(file: impl Read, len: u64) -> Result<Vec<u8>, OnnxError> {
    let mut bytes = Vec::new();
    let reserved = bytes.try_reserve_exact(usize::try_from(len).unwrap_or(usize::MAX));
    reserved.map_err(std::io::Error::from)?;
    let got = file.take(len).read_to_end(&mut bytes)?;
    match u64::try_from(got) {
        Ok(got) if got < len => Err(FileError::FileShrank { expected: len, got }.into()),
        _ => Ok(bytes),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{FileError, read, read_exactly};
    use crate::support::assert_refused;

    #[test]
    fn a_file_that_shrinks_while_it_is_read() {
        assert_eq!(read_exactly([1, 2, 3].as_slice(), 3).unwrap(), [1, 2, 3]);
        let shrunk = read_exactly([1, 2].as_slice(), 3);
        assert_refused!(shrunk, FileError::FileShrank { expected: 3, got: 2 });
    }

    #[test]
    fn only_regular_files_within_the_limit() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        std::fs::write(&file, b"1234").unwrap();
        assert_eq!(read(&file, 4).unwrap(), b"1234");
        assert_refused!(read(&file, 3), FileError::FileTooLarge { size: 4, limit: 3 });
        for path in [folder.path(), Path::new("/dev/zero")] {
            assert_refused!(read(path, 4), FileError::NotRegularFile);
        }
        let error = read(&folder.path().join("absent"), 4).unwrap_err();
        assert_eq!(error.kind(), "io", "{error}");
    }
}
