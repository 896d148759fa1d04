//! The file of a model after the checks that an engine needs.

use std::collections::BTreeSet;
use std::io::{Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::external::Folder;
use crate::{OnnxError, file};

/// The file of a model, ready for an engine. [`Model::file`](crate::Model::file) creates it.
///
/// The values of all tensors are in this file, or in regular files of its folder that existed when they were
/// checked.
///
/// An engine that reads those files through this type cannot leave the folder, even if another process
/// replaces the contents of the folder meanwhile. An engine that opens the files by path depends on the
/// earlier check.
#[derive(Clone, Debug)]
pub struct ModelFile {
    path: PathBuf,
    folder: Arc<Folder>,
    locations: BTreeSet<String>,
}

impl ModelFile {
    pub(crate) fn new(path: &Path, folder: Folder, locations: BTreeSet<String>) -> Self {
        Self { path: path.to_owned(), folder: Arc::new(folder), locations }
    }

    /// Returns the path of the model's file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the locations of the files with values, each once, as the model names them.
    pub fn locations(&self) -> impl Iterator<Item = &str> {
        self.locations.iter().map(String::as_str)
    }

    /// Opens a regular file of the model's folder.
    ///
    /// # Errors
    /// Returns [`OnnxError::ExternalEscape`], [`OnnxError::NotRegularFile`] or [`OnnxError::Io`], wrapped in
    /// [`OnnxError::InFile`].
    pub fn open(&self, location: &Path) -> Result<std::fs::File, OnnxError> {
        let opened = self.folder.file(location).map_err(|error| error.in_file(location))?;
        Ok(opened.0.into_std())
    }

    /// Reads a part of a regular file of the model's folder. Reads to the end of the file if `length` is
    /// `None`.
    ///
    /// # Errors
    /// * Returns the errors of [`open`](Self::open).
    /// * Returns [`OnnxError::ExternalRange`] if the file is too short.
    pub fn read(&self, location: &Path, offset: u64, length: Option<u64>) -> Result<Vec<u8>, OnnxError> {
        let read = || {
            let (mut file, size) = self.folder.file(location)?;
            let rest = size.checked_sub(offset).filter(|rest| length.is_none_or(|length| length <= *rest));
            let rest = rest.ok_or_else(|| OnnxError::ExternalRange {
                location: location.to_string_lossy().into_owned(),
                offset,
                length: length.unwrap_or_default(),
                size,
            })?;
            file.seek(SeekFrom::Start(offset)).map_err(OnnxError::Io)?;
            file::read_exactly(file, length.unwrap_or(rest))
        };
        read().map_err(|error| error.in_file(location))
    }
}
