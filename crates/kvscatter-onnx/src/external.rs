//! External data: tensors whose bytes lie in another file of the model's folder.

use std::cell::Cell;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Component, Path, PathBuf};

use cap_std::ambient_authority;
use cap_std::fs::{Dir, File};
use sha1::{Digest, Sha1};

use crate::proto::tensor_proto::DataLocation;
use crate::proto::{StringStringEntryProto, TensorProto};
use crate::{DEFAULT_MEMORY_LIMIT, Error, file};

/// The folder of a model, from which external data may be read and nothing else.
///
/// Locations are relative and contain no `..`. Symbolic links inside the folder are followed as long as they stay
/// inside. Every step of a path is resolved against an open handle of the folder, so that exchanging a folder for
/// a link meanwhile does not lead out either.
#[derive(Debug)]
pub struct ExternalData {
    folder: Dir,
    /// Bytes that may still be read, by all tensors together.
    left: Cell<u64>,
}

/// What a tensor's `external_data` says.
#[derive(Debug)]
struct Entry<'a> {
    location: &'a str,
    offset: u64,
    length: Option<u64>,
    checksum: Option<&'a str>,
}

impl ExternalData {
    /// Opens a model's folder. At most [`DEFAULT_MEMORY_LIMIT`] bytes are read from it unless
    /// [`limit`](Self::limit) says otherwise.
    ///
    /// # Errors
    /// [`Error::Io`] within [`Error::InFile`] if it is not a folder that can be opened.
    pub fn open(folder: &Path) -> Result<Self, Error> {
        // The parent of a bare file name is the empty path.
        let path = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
        let folder = Dir::open_ambient_dir(path, ambient_authority())
            .map_err(|cause| Error::Io(cause).in_file(path))?;
        Ok(Self { folder, left: Cell::new(DEFAULT_MEMORY_LIMIT) })
    }

    /// Sets how many bytes may be read in all, those read for a checksum included.
    #[must_use]
    pub fn limit(self, bytes: u64) -> Self {
        self.left.set(bytes);
        self
    }

    /// The `want` bytes of the tensor that these entries describe.
    pub(crate) fn read(&self, entries: &[StringStringEntryProto], want: u64) -> Result<Vec<u8>, Error> {
        let entry = Entry::parse(entries)?;
        if let Some(got) = entry.length.filter(|&got| got != want) {
            return Err(Error::ExternalLength { want, got });
        }
        self.read_entry(&entry, want).map_err(|error| error.in_file(entry.location))
    }

    /// A file of the folder, and where it lies below it, no part of that a symbolic link.
    pub(crate) fn file(&self, location: &str) -> Result<(File, PathBuf), Error> {
        let file = self.open_inside(location)?;
        Ok((file, self.folder.canonicalize(location).map_err(Error::Io)?))
    }

    fn read_entry(&self, entry: &Entry<'_>, want: u64) -> Result<Vec<u8>, Error> {
        let mut file = self.open_inside(entry.location)?;
        let size = file::regular_size(&file)?;
        let end = entry.offset.checked_add(want).filter(|&end| end <= size);
        // Without a length, the data reaches to the end of the file.
        if end.is_none() || (entry.length.is_none() && end != Some(size)) {
            return Err(Error::ExternalRange {
                location: entry.location.to_owned(),
                offset: entry.offset,
                length: want,
                size,
            });
        }
        if let Some(checksum) = entry.checksum {
            self.charge(size)?;
            check(&mut file, size, checksum, entry.location)?;
        }
        self.charge(want)?;
        file.seek(SeekFrom::Start(entry.offset)).map_err(Error::Io)?;
        file::read_exactly(file, want)
    }

    fn open_inside(&self, location: &str) -> Result<File, Error> {
        let escape = || Error::ExternalEscape { location: location.to_owned() };
        let path = Path::new(location);
        if !path.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir)) {
            return Err(escape());
        }
        self.folder.open_with(path, &file::read_only()).map_err(|cause| {
            // cap-std's own refusal to leave the folder, told from the system's by having no system error code.
            let refused = cause.kind() == std::io::ErrorKind::PermissionDenied;
            if refused && cause.raw_os_error().is_none() { escape() } else { Error::Io(cause) }
        })
    }

    fn charge(&self, wanted: u64) -> Result<(), Error> {
        let left = self.left.get();
        let rest = left.checked_sub(wanted).ok_or(Error::ExternalLimit { wanted, left })?;
        self.left.set(rest);
        Ok(())
    }
}

impl<'a> Entry<'a> {
    fn parse(entries: &'a [StringStringEntryProto]) -> Result<Self, Error> {
        let (mut location, mut offset, mut length, mut checksum) = (None, None, None, None);
        for entry in entries {
            let key = entry.key.as_deref().unwrap_or_default();
            let slot = match key {
                "location" => &mut location,
                "offset" => &mut offset,
                "length" => &mut length,
                "checksum" => &mut checksum,
                // Keys that the specification does not name are other tools' notes.
                _ => continue,
            };
            if slot.replace(entry.value.as_deref().unwrap_or_default()).is_some() {
                return Err(Error::ExternalKeyTwice { key: key.to_owned() });
            }
        }
        Ok(Self {
            location: location
                .filter(|location| !location.is_empty())
                .ok_or(Error::ExternalLocationMissing)?,
            offset: offset.map_or(Ok(0), |value| number("offset", value))?,
            length: length.map(|value| number("length", value)).transpose()?,
            checksum,
        })
    }
}

/// Where a tensor's values lie, if that is in another file: a regular one of the folder, which is long enough.
pub(crate) fn located<'t>(
    message: &'t TensorProto,
    folder: Option<&ExternalData>,
) -> Result<Option<&'t str>, Error> {
    if message.data_location != Some(DataLocation::EXTERNAL) {
        return Ok(None);
    }
    let Entry { location, offset, length, .. } = Entry::parse(&message.external_data)?;
    let folder = folder.ok_or_else(|| Error::ExternalWithoutFolder { location: location.to_owned() })?;
    let length = length.unwrap_or_default();
    let check = || match file::regular_size(&folder.open_inside(location)?)? {
        size if offset.checked_add(length).is_some_and(|end| end <= size) => Ok(Some(location)),
        size => Err(Error::ExternalRange { location: location.to_owned(), offset, length, size }),
    };
    check().map_err(|error| error.in_file(location))
}

/// Where external data would be, for the error that there is no folder.
pub(crate) fn location(entries: &[StringStringEntryProto]) -> Result<&str, Error> {
    Entry::parse(entries).map(|entry| entry.location)
}

/// Where a tensor's external data would be, below a folder; `None` if it has none, or does not say.
pub(crate) fn path(message: &TensorProto, folder: &Path) -> Option<PathBuf> {
    let is_external = message.data_location == Some(DataLocation::EXTERNAL);
    let location = location(&message.external_data).ok().filter(|_| is_external)?;
    Some(folder.join(location))
}

fn number(key: &'static str, value: &str) -> Result<u64, Error> {
    value.parse().map_err(|_| Error::ExternalNumber { key, value: value.to_owned() })
}

/// ONNX: the checksum is the SHA1 of the whole file.
fn check(file: &mut File, size: u64, want: &str, location: &str) -> Result<(), Error> {
    let mut hash = Sha1::new();
    let mut chunk = vec![0; 64 << 10];
    let mut rest = file.take(size);
    loop {
        match rest.read(&mut chunk).map_err(Error::Io)? {
            0 => break,
            n => hash.update(chunk.get(..n).unwrap_or_default()),
        }
    }
    let got: String = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    if got.eq_ignore_ascii_case(want) {
        Ok(())
    } else {
        Err(Error::ExternalChecksum { location: location.to_owned(), want: want.to_owned(), got })
    }
}
