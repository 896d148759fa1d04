//! External data: tensors whose bytes are in another file of the model's folder.

mod error;
mod folder;

use std::cell::Cell;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cap_std::fs::File;
use sha1::{Digest, Sha1};

use crate::proto::tensor_proto::DataLocation;
use crate::proto::{StringStringEntryProto, TensorProto};
use crate::{DEFAULT_MEMORY_LIMIT, ErrorPlace, OnnxError, file};

pub use error::ExternalError;
pub(crate) use folder::Folder;

/// The folder of a model. External data is read only from this folder.
///
/// Locations are relative and contain no `..`. Symbolic links are followed if they stay inside the folder, or inside
/// the model's repository in the cache of the Hugging Face Hub. Every step of a path is resolved against an open handle
/// of the folder. A process that replaces a folder with a link while a file is read therefore cannot lead a path out of
/// the folder.
#[derive(Debug)]
pub struct ExternalData {
    folder: Arc<Folder>,
    /// The number of bytes that may still be read, for all tensors together.
    left: Cell<u64>,
}

/// The parsed `external_data` of a tensor.
#[derive(Debug)]
struct Entry<'a> {
    location: &'a str,
    offset: u64,
    length: Option<u64>,
    checksum: Option<&'a str>,
}

impl ExternalData {
    /// Opens a model's folder.
    ///
    /// At most [`DEFAULT_MEMORY_LIMIT`] bytes are read from the folder unless [`limit`](Self::limit) sets
    /// another limit.
    ///
    /// # Errors
    /// Returns [`std::io::Error`] wrapped in [`OnnxError::InFile`] if the path is not a folder that can be
    /// opened.
    pub fn open(folder: &Path) -> Result<Self, OnnxError> {
        Ok(Self::of_folder(Arc::new(Folder::open(folder)?)))
    }

    pub(crate) fn of_folder(folder: Arc<Folder>) -> Self {
        Self { folder, left: Cell::new(DEFAULT_MEMORY_LIMIT) }
    }

    /// Sets the maximum number of bytes that may be read in all. Bytes that are read for a checksum count as
    /// well.
    #[must_use]
    pub fn limit(self, bytes: u64) -> Self {
        self.left.set(bytes);
        self
    }

    /// Reads the `expected` bytes of the tensor that these entries describe.
    pub(crate) fn read(
        &self,
        entries: &[StringStringEntryProto],
        expected: u64,
    ) -> Result<Vec<u8>, OnnxError> {
        let entry = Entry::parse(entries)?;
        entry.check_length(expected)?;
        let read = || {
            let file = self.open_entry(&entry, expected)?;
            self.charge(expected)?;
            file::read_exactly(file, expected)
        };
        read().in_file(entry.location)
    }

    /// Calls `visit` with the `expected` bytes of the tensor that these entries describe, in parts. The bytes
    /// count, and a checksum is not compared.
    pub(crate) fn visit_bytes(
        &self,
        entries: &[StringStringEntryProto],
        expected: u64,
        visit: &mut impl FnMut(&[u8]),
    ) -> Result<(), OnnxError> {
        const PART: u64 = 256 << 10;
        let entry = Entry { checksum: None, ..Entry::parse(entries)? };
        entry.check_length(expected)?;
        let mut read = || -> Result<(), OnnxError> {
            self.charge(expected)?;
            let mut file = self.open_entry(&entry, expected)?;
            let mut part = vec![0; usize::try_from(expected.min(PART)).unwrap_or_default()];
            let mut left = expected;
            while left > 0 {
                let len = left.min(PART);
                let part = part.get_mut(..usize::try_from(len).unwrap_or_default()).unwrap_or_default();
                file.read_exact(part)?;
                visit(part);
                left = left.saturating_sub(len);
            }
            Ok(())
        };
        read().in_file(entry.location)
    }

    /// Opens a file at the first of the `expected` bytes.
    fn open_entry(&self, entry: &Entry<'_>, expected: u64) -> Result<File, OnnxError> {
        let (mut file, size) = self.folder.file(Path::new(entry.location))?;
        // Without a length, the data extends to the end of the file.
        entry.check_range(expected, size, entry.length.is_none())?;
        if let Some(checksum) = entry.checksum {
            self.charge(size)?;
            check_sum(&mut file, size, checksum, entry.location)?;
        }
        file.seek(SeekFrom::Start(entry.offset))?;
        Ok(file)
    }

    fn charge(&self, wanted: u64) -> Result<(), ExternalError> {
        let left = self.left.get();
        let rest = left.checked_sub(wanted).ok_or(ExternalError::Limit { wanted, left })?;
        self.left.set(rest);
        Ok(())
    }
}

impl<'a> Entry<'a> {
    fn parse(entries: &'a [StringStringEntryProto]) -> Result<Self, ExternalError> {
        let (mut location, mut offset, mut length, mut checksum) = (None, None, None, None);
        for entry in entries {
            let key = entry.key.as_deref().unwrap_or_default();
            let slot = match key {
                "location" => &mut location,
                "offset" => &mut offset,
                "length" => &mut length,
                "checksum" => &mut checksum,
                // Other tools may write keys that the specification does not define.
                _ => continue,
            };
            if slot.replace(entry.value.as_deref().unwrap_or_default()).is_some() {
                return Err(ExternalError::KeyTwice { key: key.to_owned() });
            }
        }
        Ok(Self {
            location: location
                .filter(|location| !location.is_empty())
                .ok_or(ExternalError::LocationMissing)?,
            offset: offset.map_or(Ok(0), |value| number("offset", value))?,
            length: length.map(|value| number("length", value)).transpose()?,
            checksum,
        })
    }

    /// Checks that the length, if there is one, is the number of bytes that the shape takes.
    fn check_length(&self, expected: u64) -> Result<(), ExternalError> {
        match self.length {
            Some(got) if got != expected => Err(ExternalError::Length { expected, got }),
            _ => Ok(()),
        }
    }

    /// Checks that a file of this size contains `length` bytes. If they are all bytes from the offset on, the file must
    /// end there.
    fn check_range(&self, length: u64, size: u64, are_all: bool) -> Result<(), ExternalError> {
        let end = self.offset.checked_add(length);
        if end.is_some_and(|end| if are_all { end == size } else { end <= size }) {
            return Ok(());
        }
        Err(ExternalError::Range { location: self.location.to_owned(), offset: self.offset, length, size })
    }
}

/// Returns the location of external data, for the error that the folder is not known.
pub(crate) fn location(entries: &[StringStringEntryProto]) -> Result<&str, ExternalError> {
    Entry::parse(entries).map(|entry| entry.location)
}

/// Returns the location and the offset of external data.
pub(crate) fn place(entries: &[StringStringEntryProto]) -> Result<(String, u64), ExternalError> {
    Entry::parse(entries).map(|entry| (entry.location.to_owned(), entry.offset))
}

/// Returns the path of a tensor's external data in a folder.
///
/// Returns `None` if the tensor has no external data, or if its location leads out of the folder.
pub(crate) fn path(message: &TensorProto, folder: &Path) -> Option<PathBuf> {
    let location = location(&message.external_data).ok().filter(|_| is_external(message))?;
    folder::relative(Path::new(location)).ok().map(|location| folder.join(location))
}

/// Returns `true` if a tensor's values are in another file.
pub(crate) fn is_external(message: &TensorProto) -> bool {
    message.data_location == Some(DataLocation::EXTERNAL)
}

/// Checks that a tensor's values are in a regular file of the folder, if that file exists.
pub(crate) fn check(message: &TensorProto, folder: &Folder) -> Result<(), OnnxError> {
    let location = location(&message.external_data)?;
    folder.size(Path::new(location)).map(|_| ()).in_file(location)
}

/// Returns the location of a tensor's values after checking that it is a regular file of the folder and long
/// enough.
pub(crate) fn located<'t>(message: &'t TensorProto, folder: &Folder) -> Result<&'t str, OnnxError> {
    let entry = Entry::parse(&message.external_data)?;
    let check = || -> Result<(), OnnxError> {
        let location = Path::new(entry.location);
        let size = match folder.size(location)? {
            Some(size) => size,
            // The file is missing. Opening it returns the operating system's error.
            None => folder.file(location)?.1,
        };
        Ok(entry.check_range(entry.length.unwrap_or_default(), size, false)?)
    };
    check().in_file(entry.location)?;
    Ok(entry.location)
}

fn number(key: &'static str, value: &str) -> Result<u64, ExternalError> {
    value.parse().map_err(|_| ExternalError::Number { key, value: value.to_owned() })
}

/// Checks the SHA1 of the whole file, the checksum that ONNX defines.
fn check_sum(file: &mut File, size: u64, expected: &str, location: &str) -> Result<(), OnnxError> {
    let mut hash = Sha1::new();
    let mut chunk = vec![0; 64 << 10];
    let mut rest = file.take(size);
    loop {
        match rest.read(&mut chunk)? {
            0 => break,
            n => hash.update(chunk.get(..n).unwrap_or_default()),
        }
    }
    let got: String = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    if got.eq_ignore_ascii_case(expected) {
        Ok(())
    } else {
        Err(ExternalError::Checksum { location: location.to_owned(), expected: expected.to_owned(), got }
            .into())
    }
}
