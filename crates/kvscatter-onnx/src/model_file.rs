//! The file of a model after the checks that an engine needs.

use std::collections::BTreeMap;
use std::io::{Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use crate::external::Folder;
use crate::file::{self, Stamp};
use crate::{ErrorPlace, ExternalData, ExternalError, FileError, Fingerprint, OnnxError, fingerprint, proto};

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
    /// The stamp of the model's file when the model was read.
    stamp: Stamp,
    folder: Arc<Folder>,
    /// The stamps of the files with values when they were checked.
    locations: BTreeMap<String, Stamp>,
    /// The fingerprint, if it was computed.
    fingerprint: Arc<OnceLock<Fingerprint>>,
}

impl ModelFile {
    pub(crate) fn new(path: &Path, stamp: Stamp, folder: Folder, locations: BTreeMap<String, Stamp>) -> Self {
        let (path, folder) = (path.to_owned(), Arc::new(folder));
        Self { path, stamp, folder, locations, fingerprint: Arc::default() }
    }

    /// Returns the path of the model's file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the locations of the files with values, each once, as the model names them.
    pub fn locations(&self) -> impl Iterator<Item = &str> {
        self.locations.keys().map(String::as_str)
    }

    /// Opens a regular file of the model's folder.
    ///
    /// # Errors
    /// Returns [`ExternalError::Escape`], [`FileError::NotRegularFile`] or [`std::io::Error`], wrapped in
    /// [`OnnxError::InFile`].
    pub fn open(&self, location: &Path) -> Result<std::fs::File, OnnxError> {
        let opened = self.folder.file(location).in_file(location)?;
        Ok(opened.0.into_std())
    }

    /// Reads a part of a regular file of the model's folder. Reads to the end of the file if `length` is
    /// `None`.
    ///
    /// # Errors
    /// * Returns the errors of [`open`](Self::open).
    /// * Returns [`ExternalError::Range`] if the file is too short.
    pub fn read(&self, location: &Path, offset: u64, length: Option<u64>) -> Result<Vec<u8>, OnnxError> {
        let read = || {
            let (mut file, size) = self.folder.file(location)?;
            let rest = size.checked_sub(offset).filter(|rest| length.is_none_or(|length| length <= *rest));
            let rest = rest.ok_or_else(|| ExternalError::Range {
                location: location.to_string_lossy().into_owned(),
                offset,
                length: length.unwrap_or_default(),
                size,
            })?;
            file.seek(SeekFrom::Start(offset))?;
            file::read_exactly(file, length.unwrap_or(rest))
        };
        read().in_file(location)
    }

    /// Returns the fingerprint of the model's graph and weights.
    ///
    /// The first call reads the model and all its values again, and computes the fingerprint. Weights in other
    /// files are read in small parts. Later calls, also those of clones, return the same fingerprint.
    ///
    /// Models that [`convert`](crate::convert::convert()) makes of one exported model have one fingerprint, with
    /// any number of slots, with rings of any size and without rings. The other options of a conversion count.
    /// [`lower`](crate::lower()) keeps the fingerprint of a converted model. Otherwise any change of the graph, of a
    /// name of an input, an output or a value, or of a weight changes the fingerprint. Names of nodes, documentation,
    /// other metadata, and the place of a weight in another file do not count.
    ///
    /// # Errors
    /// Errors are wrapped in [`OnnxError::InFile`].
    ///
    /// * Returns [`FileError::FileChanged`] if a file was replaced since the model was read, or if its length or a
    ///   time of its last change differs. On Unix, a new hard link or another permission counts as a change. A change
    ///   of the same length within the resolution of that time is not detected.
    /// * Returns [`ExternalError::Limit`] if tensors overlap so much that they have more than twice as many bytes
    ///   as their files. Tensors with the same bytes count once.
    /// * Returns the errors of reading the model and external data.
    pub fn fingerprint(&self) -> Result<Fingerprint, OnnxError> {
        if let Some(known) = self.fingerprint.get() {
            return Ok(*known);
        }
        let (bytes, stamp) = file::read_stamped(&self.path, proto::MAX_MESSAGE_BYTES)?;
        if stamp != self.stamp {
            return Err(FileError::FileChanged).in_file(&self.path);
        }
        let model = proto::decode(&bytes).in_file(&self.path)?;
        drop(bytes);
        self.check_unchanged()?;
        let sizes = self.locations.values().map(Stamp::len).fold(0, u64::saturating_add);
        let external = ExternalData::of_folder(Arc::clone(&self.folder)).limit(sizes.saturating_mul(2));
        let computed = fingerprint::of_model(&model, &external).in_file(&self.path)?;
        self.check_unchanged()?;
        Ok(*self.fingerprint.get_or_init(|| computed))
    }

    /// Checks that the files with values are those that were checked.
    fn check_unchanged(&self) -> Result<(), OnnxError> {
        self.locations.iter().try_for_each(|(location, stamp)| match stamp_of(&self.folder, location)? {
            same if same == *stamp => Ok(()),
            _ => Err(FileError::FileChanged).in_file(location),
        })
    }
}

/// Returns the stamp of a file with values.
pub(crate) fn stamp_of(folder: &Folder, location: &str) -> Result<Stamp, OnnxError> {
    folder.stamp(Path::new(location)).in_file(location)
}
