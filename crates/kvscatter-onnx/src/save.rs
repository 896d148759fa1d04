//! Saves a model together with the files that contain its tensors' values.

mod data_file;

use std::collections::BTreeSet;
use std::io::{self, Read};
use std::path::{Component, Path, PathBuf};

use cap_std::ambient_authority;
use cap_std::fs::{Dir, File};

use data_file::same_contents;
pub use data_file::{DataFile, DataFileOrigin};

use crate::external::Folder;
use crate::file::{self, Identity, OutputFileKind, UnfinishedFiles, folder_of};
use crate::{ErrorPlace, FileError, Model, OnnxError};

/// How files of values are transferred to another folder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WeightTransfer {
    /// Copies each file.
    #[default]
    Copy,
    /// Creates a hard link to each file, which takes no disk space. Copies the file if the file system cannot
    /// create the link.
    ///
    /// Both names then refer to the same file, so a change through one name is visible through the other.
    /// ONNX's own loader and checker reject files with two names.
    Link,
}

impl Model {
    /// Writes the model to a file, and copies or links its external data into the same folder.
    ///
    /// If the model was read from the same folder, both models share the files of external data. Either
    /// everything is written, or no new file remains. Values are not loaded into memory as a whole.
    ///
    /// # Errors
    /// If an error is returned, nothing was written. Errors are wrapped in [`OnnxError::InFile`].
    ///
    /// * Returns [`FileError::OverInput`] if `path` leads to the model's own file or to a file of its values.
    /// * Returns [`FileError::OtherKind`] if `path` leads to a file that is not a model.
    /// * Returns [`FileError::DataFileDiffers`] if a different file already exists at the path of a file of
    ///   values.
    /// * Returns [`FileError::DataFileIsModel`] if the model and its values would get the same path.
    /// * Returns [`ProtoError::Encode`](crate::ProtoError::Encode) if the model is too large, and
    ///   [`std::io::Error`] if the file system returns an error.
    /// * Returns the errors about external data, wrapped in [`OnnxError::InTensor`], for the model that was
    ///   read.
    pub fn save_with_weights(
        &self,
        path: &Path,
        weights: WeightTransfer,
    ) -> Result<Vec<DataFile>, OnnxError> {
        let identity = Identity::from_path(path).in_file(path)?;
        let is_output = |input: &Path| Identity::from_path(input).is_ok_and(|input| input == identity);
        if self.path().is_some_and(is_output) || self.external_files().iter().any(|input| is_output(input)) {
            return Err(FileError::OverInput).in_file(path);
        }
        OutputFileKind::Model.check(path).in_file(path)?;
        let mut made = UnfinishedFiles::new();
        let bytes = self.to_bytes().in_file(path)?;
        let files = match self.path() {
            Some(from) => {
                let transfer = Transfer {
                    source: Folder::open(folder_of(from)).in_file(from)?,
                    from: folder_of(from),
                    to: folder_of(path),
                    output: &identity,
                    weights,
                };
                let locations = self.locations(Some(&transfer.source)).in_file(from)?;
                transfer.place_all(&locations, &mut made)?
            }
            None => self.locations(None).map(|_| Vec::new())?,
        };
        file::write_with(made, path, &bytes).in_file(path)?;
        Ok(files)
    }
}

/// A transfer of files of values from one model's folder to another's.
struct Transfer<'a> {
    source: Folder,
    from: &'a Path,
    to: &'a Path,
    /// The path of the model that will be written.
    output: &'a Identity,
    weights: WeightTransfer,
}

impl Transfer<'_> {
    fn place_all(
        &self,
        locations: &BTreeSet<String>,
        made: &mut UnfinishedFiles,
    ) -> Result<Vec<DataFile>, OnnxError> {
        let is_same = Identity::from_path(self.from)
            .is_ok_and(|from| Identity::from_path(self.to).is_ok_and(|to| from == to));
        made.folders(self.to).in_file(self.to)?;
        let folder = Dir::open_ambient_dir(self.to, ambient_authority()).in_file(self.to)?;
        locations
            .iter()
            .map(|location| {
                let (file, bytes) = self.source.file(Path::new(location)).in_file(location)?;
                let resolved = self.source.resolve(Path::new(location)).in_file(location)?;
                if is_same {
                    return Ok(DataFile {
                        path: self.to.join(location),
                        bytes,
                        origin: DataFileOrigin::Shared,
                    });
                }
                let path = self.place_for(location, &folder, made)?;
                let origin = self.place(file, bytes, &resolved, &path, made).in_file(&path)?;
                Ok(DataFile { path, bytes, origin })
            })
            .collect()
    }

    /// Returns the path of a location in the new folder, and creates the folders on the way.
    fn place_for(
        &self,
        location: &str,
        folder: &Dir,
        made: &mut UnfinishedFiles,
    ) -> Result<PathBuf, OnnxError> {
        let mut names: Vec<_> = Path::new(location)
            .components()
            .filter(|part| matches!(part, Component::Normal(_)))
            .map(|part| part.as_os_str())
            .collect();
        let name = names.pop().unwrap_or_default();
        let mut inside = PathBuf::new();
        for part in names {
            inside.push(part);
            let path = self.to.join(&inside);
            match made.folder(&path, || folder.create_dir(&inside)) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    // Canonicalising within the folder returns an error for links that lead out of it.
                    inside = folder.canonicalize(&inside).in_file(&path)?;
                }
                Err(error) => return Err(error).in_file(path),
            }
        }
        Ok(self.to.join(inside).join(name))
    }

    fn place(
        &self,
        file: File,
        bytes: u64,
        source: &Path,
        target: &Path,
        made: &mut UnfinishedFiles,
    ) -> Result<DataFileOrigin, OnnxError> {
        if Identity::from_path(target).is_ok_and(|target| target == *self.output) {
            return Err(FileError::DataFileIsModel.into());
        }
        if target.symlink_metadata().is_ok() {
            let is_source = Identity::from_path(target)
                .is_ok_and(|target| Identity::from_path(source).is_ok_and(|source| source == target));
            return if is_source || same_contents(file, bytes, target)? {
                Ok(DataFileOrigin::Kept)
            } else {
                Err(FileError::DataFileDiffers.into())
            };
        }
        if self.weights == WeightTransfer::Link
            && made.file(target, || std::fs::hard_link(source, target)).is_ok()
        {
            return Ok(DataFileOrigin::Linked);
        }
        let (mut copy, path) = made.file_in(folder_of(target))?;
        let got = io::copy(&mut file.into_std().take(bytes), &mut copy)?;
        if got < bytes {
            return Err(FileError::FileShrank { expected: bytes, got }.into());
        }
        made.rename(&path, target)?;
        Ok(DataFileOrigin::Copied)
    }
}
