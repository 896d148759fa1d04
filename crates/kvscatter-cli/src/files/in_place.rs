//! Updates a tensor in its file through a memory map.

use std::fs::{File, TryLockError};
use std::io::{BufReader, Seek};

use cap_fs_ext::MetadataExt;
use cap_std::fs::Metadata;
use kvscatter::{ElementType, WritePlan};
use kvscatter_onnx::file::UnfinishedFiles;
use memmap2::{MmapMut, MmapOptions};

use super::error::NotInPlace;
use super::journal::{Beside, Interrupted, Rows, Subject};
use super::{FileError, Format, Location, Problem, journal, npy, pb, reserve, safetensors, source};

/// The way in which the bytes in the file represent elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stored {
    /// The bytes are as in a [`Tensor`](kvscatter_onnx::Tensor).
    Packed,
    /// Each byte contains one 4-bit element, as `ml_dtypes` stores them.
    BytePerElement,
}

/// A tensor's bytes in a file that is open for writing and locked against other commands.
///
/// Opening the file undoes a write that was interrupted, and changes nothing else. Only [`write`](Self::write)
/// changes more.
#[derive(Debug)]
pub(crate) struct InPlaceFile {
    name: String,
    header: Header,
    map: MmapMut,
    beside: Beside,
    subject: Subject,
    interrupted: Option<Interrupted>,
    // The open file also keeps the lock while the map exists.
    file: File,
}

/// A tensor as its format's header describes it.
#[derive(Debug)]
struct Header {
    element: ElementType,
    shape: Vec<usize>,
    stored: Stored,
    offset: u64,
    len: usize,
}

/// Ends a write into the file of this location that was interrupted, if there is one.
///
/// # Errors
/// Returns [`FileError`] if the file has a journal that cannot be used, or if another command is updating it.
pub(crate) fn end_interrupted(location: &Location) -> Result<Option<Interrupted>, FileError> {
    if !is_in_progress(location) {
        return Ok(None);
    }
    Locked::open(location)
        .map(|locked| locked.interrupted)
        .map_err(|problem| FileError::new(location, problem))
}

/// Returns whether a write into the file of this location has begun and has not ended.
pub(crate) fn is_in_progress(location: &Location) -> bool {
    Beside::of(location.path()).is_ok_and(|beside| beside.has_journal())
}

impl InPlaceFile {
    /// Opens the file, finds the tensor and maps its bytes. Ends a write that was interrupted.
    ///
    /// # Errors
    /// Returns [`FileError`] if the file is not exactly this tensor, if another command is updating it, or if
    /// its values are in a form that cannot be updated in place. Also if there is a journal of an interrupted
    /// write that cannot be used.
    pub(crate) fn open(location: &Location, ty: Option<ElementType>) -> Result<Self, FileError> {
        let open = || {
            let Locked { beside, file, id, interrupted } = Locked::open(location)?;
            let header = find(&file, id.len, location, ty)?;
            Problem::check_type(header.element, ty)?;
            let map = map(&file, header.offset, header.len)?;
            let (name, subject) = (location.to_string(), header.subject(id));
            Ok(Self { name, header, map, beside, subject, interrupted, file })
        };
        open().map_err(|problem| FileError::new(location, problem))
    }

    pub(crate) fn element(&self) -> ElementType {
        self.header.element
    }

    pub(crate) fn shape(&self) -> &[usize] {
        &self.header.shape
    }

    pub(crate) fn stored(&self) -> Stored {
        self.header.stored
    }

    /// Returns the result of a write that was interrupted, if opening the file has ended one.
    pub(crate) fn interrupted(&self) -> Option<Interrupted> {
        self.interrupted
    }

    /// Writes the rows of a plan, and waits until they are in the file. `store` writes `update` into the bytes
    /// that it is given, which are the tensor.
    ///
    /// With `journal`, the next command undoes the write if this one is interrupted.
    ///
    /// # Errors
    /// Returns [`FileError`] if there is no space for the rows or for the journal, and the errors of `store`.
    /// The file is then unchanged. Also if the file system cannot write the rows.
    pub(crate) fn write<E: From<FileError>>(
        mut self,
        plan: &WritePlan<'_>,
        update: &[u8],
        journal: bool,
        store: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let unfinished = UnfinishedFiles::new();
        // A signal ends the command only after the write.
        let written = unfinished.fill(|| {
            self.prepare(plan, update, journal).map_err(|problem| self.error(problem))?;
            let stored = store(&mut self.map);
            if stored.is_ok() {
                self.map.flush().map_err(|error| self.error(error.into()))?;
            }
            if journal {
                self.beside.remove();
            }
            stored
        });
        // If a signal came during the write, this waits until the signal ends the command.
        unfinished.fill(|| written)
    }

    /// Reserves space on the disk for the rows, and writes the journal.
    fn prepare(&self, plan: &WritePlan<'_>, update: &[u8], journal: bool) -> Result<(), Problem> {
        let no_room = |cause| Problem::NoRoom { bytes: plan.bytes().unwrap_or(0), cause };
        reserve::reserve(&self.file, self.header.offset, plan).map_err(no_room)?;
        if journal {
            let rows = Rows::new(plan, update);
            if !rows.is_empty() {
                self.beside.write(&self.subject, &rows, &self.map)?;
            }
        }
        Ok(())
    }

    fn error(&self, problem: Problem) -> FileError {
        FileError::at_name(self.name.clone(), problem)
    }
}

/// A file that is open for writing and locked, without a write that was interrupted.
struct Locked {
    beside: Beside,
    file: File,
    id: FileId,
    interrupted: Option<Interrupted>,
}

/// What identifies an open file.
#[derive(Clone, Copy)]
struct FileId {
    inode: u64,
    len: u64,
}

impl Header {
    fn subject(&self, id: FileId) -> Subject {
        Subject {
            element: self.element.onnx_code(),
            inode: id.inode,
            file_len: id.len,
            offset: self.offset,
            len: journal::wide(self.len),
            form: Subject::form(self.stored == Stored::BytePerElement, &self.shape),
        }
    }
}

impl Locked {
    /// Opens and locks a file, and ends a write that was interrupted.
    fn open(location: &Location) -> Result<Self, Problem> {
        let beside = Beside::of(location.path())?;
        let file = beside.open()?;
        // A device has no length to compare claims with.
        if !file.metadata()?.is_file() {
            return Err(Problem::NotAFile);
        }
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(Problem::Locked),
            Err(TryLockError::Error(error)) => return Err(error.into()),
        }
        // The length is read under the lock, because the previous owner of the lock may have changed it.
        let meta = Metadata::from_file(&file)?;
        let id = FileId { inode: meta.ino(), len: meta.len() };
        let tensor = |wanted: &Subject| find_again(&file, id, location, wanted).ok().flatten();
        let interrupted = beside.end_interrupted(&file, tensor)?;
        Ok(Self { beside, file, id, interrupted })
    }
}

/// Finds the tensor of a journal in its file. It may be another entry than the one of the location.
fn find_again(
    mut file: &File,
    id: FileId,
    location: &Location,
    wanted: &Subject,
) -> Result<Option<Subject>, Problem> {
    let header = if location.format() == Format::Safetensors {
        file.rewind()?;
        safetensors::find_at(file, id.len, wanted.offset, wanted.len)?.map(Header::from)
    } else {
        Some(find(file, id.len, location, ElementType::from_onnx_code(wanted.element))?)
    };
    Ok(header.map(|header| header.subject(id)))
}

fn find(
    mut file: &File,
    file_len: u64,
    location: &Location,
    ty: Option<ElementType>,
) -> Result<Header, Problem> {
    file.rewind()?;
    match location.format() {
        Format::Npy => {
            let header = npy::read_header(&mut BufReader::new(file), ty)?;
            npy::check_len(&header, file_len)?;
            Ok(Header {
                stored: if header.byte_per_element() { Stored::BytePerElement } else { Stored::Packed },
                element: header.element,
                shape: header.shape,
                offset: header.data_offset,
                len: header.data_len,
            })
        }
        Format::Safetensors => safetensors::find(file, file_len, location.entry()).map(Header::from),
        Format::Pb => {
            let len = usize::try_from(file_len).map_err(|_| Problem::TooLarge { bytes: file_len })?;
            let (tensor, range) = pb::find(&source::exactly(&mut file, len)?)?;
            Ok(Header {
                element: tensor.element(),
                shape: tensor.shape().to_vec(),
                stored: Stored::Packed,
                offset: u64::try_from(range.start).unwrap_or(u64::MAX),
                len: range.len(),
            })
        }
        Format::Npz => Err(Problem::NotInPlace(NotInPlace::Npz)),
    }
}

impl From<safetensors::TensorEntry> for Header {
    fn from(entry: safetensors::TensorEntry) -> Self {
        let safetensors::TensorEntry { element, shape, offset, len } = entry;
        Self { element, shape, stored: Stored::Packed, offset, len }
    }
}

/// Maps `len` bytes from `offset`, which are inside the file.
#[expect(unsafe_code, reason = "a file is updated in place through a memory map, which has no safe function")]
fn map(file: &File, offset: u64, len: usize) -> Result<MmapMut, Problem> {
    let mut options = MmapOptions::new();
    options.offset(offset).len(len);
    // SAFETY: the slice is valid while no other process changes or truncates the file. `file` has a lock that
    // every command of this program takes. Other programs may ignore the lock, so the help forbids them to
    // write the file.
    let map = unsafe { options.map_mut(file) };
    Ok(map?)
}
