//! The folder of a model, through which all files that a model names are read.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::ErrorKind;
use std::path::{Component, Path, PathBuf};

use cap_std::ambient_authority;
use cap_std::fs::{Dir, File};

use crate::file::{self, Stamp};
use crate::{ErrorPlace, ExternalError, FileError, OnnxError};

/// A folder from which only regular files can be read.
///
/// Locations are relative and contain no `..`. Symbolic links are followed if they stay inside the folder.
/// Every step of a path is resolved against an open handle of the folder. A process that replaces a folder
/// with a link therefore cannot lead a path out of the folder.
///
/// In the cache of the Hugging Face Hub, the files of a model are links to files in the folder `blobs` of its
/// repository. Links may lead to all files of this repository.
#[derive(Debug)]
pub(crate) struct Folder {
    /// The folder that no path leaves.
    root: Dir,
    root_path: PathBuf,
    /// The path of the model's folder in it, which is usually empty.
    inside: PathBuf,
}

impl Folder {
    pub(crate) fn open(path: &Path) -> Result<Self, OnnxError> {
        // The parent of a bare file name is the empty path.
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        let (root_path, inside) = repository_of(path).unwrap_or_else(|| (path.to_owned(), PathBuf::new()));
        match Dir::open_ambient_dir(&root_path, ambient_authority()) {
            Ok(root) => Ok(Self { root, root_path, inside }),
            Err(cause) => Err(cause).in_file(path),
        }
    }

    /// Returns the path of a location in the root.
    fn path(&self, location: &Path) -> Result<PathBuf, ExternalError> {
        relative(location).map(|location| self.inside.join(location))
    }

    /// Opens a regular file and returns it with its size.
    pub(crate) fn file(&self, location: &Path) -> Result<(File, u64), OnnxError> {
        let file = self
            .root
            .open_with(self.path(location)?, &file::read_only())
            .map_err(|cause| self::cause(cause, location))?;
        let size = file::regular_size(&file)?;
        Ok((file, size))
    }

    /// Returns the size of a regular file, or `None` if the file does not exist.
    ///
    /// The file is not opened, because opening some devices has an effect.
    pub(crate) fn size(&self, location: &Path) -> Result<Option<u64>, OnnxError> {
        match self.root.metadata(self.path(location)?) {
            Ok(metadata) if metadata.is_file() => Ok(Some(metadata.len())),
            Ok(_) => Err(FileError::NotRegularFile.into()),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(cause(error, location)),
        }
    }

    /// Returns the stamp of a regular file.
    pub(crate) fn stamp(&self, location: &Path) -> Result<Stamp, OnnxError> {
        self.file(location).and_then(|(file, _)| Stamp::read(&file.into_std()))
    }

    /// Reads a regular file of at most `limit` bytes. Returns `None` if there is no such file.
    pub(crate) fn read(&self, location: &Path, limit: u64) -> Result<Option<Vec<u8>>, OnnxError> {
        // A path is checked before it is opened, because opening some devices has an effect.
        if self.size(location)?.is_none() {
            return Ok(None);
        }
        let (file, size) = self.file(location)?;
        if size > limit {
            return Err(FileError::FileTooLarge { size, limit }.into());
        }
        file::read_exactly(file, size).map(Some)
    }

    /// Returns the names in a folder inside this one. There are none if it does not exist.
    pub(crate) fn names(&self, inside: &Path) -> Result<BTreeSet<OsString>, OnnxError> {
        let entries = match self.root.read_dir(self.path(inside)?) {
            Err(error) if [ErrorKind::NotFound, ErrorKind::NotADirectory].contains(&error.kind()) => {
                return Ok(BTreeSet::new());
            }
            entries => entries.map_err(|error| cause(error, inside))?,
        };
        entries.map(|entry| Ok(entry?.file_name())).collect()
    }

    /// Returns the path of a file of the folder, with every symbolic link inside the folder resolved.
    pub(crate) fn resolve(&self, location: &Path) -> Result<PathBuf, OnnxError> {
        let resolved =
            self.root.canonicalize(self.path(location)?).map_err(|error| cause(error, location))?;
        Ok(self.root_path.join(resolved))
    }
}

/// Returns the repository in the cache of the Hugging Face Hub that contains a folder, and the path of the folder in
/// it: `models--OWNER--NAME` and `snapshots/COMMIT`, or a folder below.
fn repository_of(folder: &Path) -> Option<(PathBuf, PathBuf)> {
    let folder = folder.canonicalize().ok()?;
    folder.ancestors().find_map(|root| {
        let inside = folder.strip_prefix(root).ok()?;
        let is_repository = root.file_name()?.as_encoded_bytes().starts_with(b"models--");
        (is_repository && inside.starts_with("snapshots")).then(|| (root.to_owned(), inside.to_owned()))
    })
}

/// Returns the location if it is relative and has no `..`.
pub(super) fn relative(location: &Path) -> Result<&Path, ExternalError> {
    let stays = |part| matches!(part, Component::Normal(_) | Component::CurDir);
    if location.components().all(stays) { Ok(location) } else { Err(escape(location, false)) }
}

fn escape(location: &Path, is_link: bool) -> ExternalError {
    ExternalError::Escape { location: location.to_string_lossy().into_owned(), is_link }
}

fn cause(error: std::io::Error, location: &Path) -> OnnxError {
    // If cap-std prevents a path from leaving the folder, the error has no system error code. Errors of the
    // system have one.
    let is_escape = error.kind() == ErrorKind::PermissionDenied && error.raw_os_error().is_none();
    if is_escape { escape(location, true).into() } else { error.into() }
}
