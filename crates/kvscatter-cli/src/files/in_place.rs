//! Updates a tensor in its file through a memory map.

use std::fs::{File, TryLockError};
use std::io::BufReader;

use cap_std::fs::OpenOptions;
use kvscatter::{ElementType, WritePlan};
use memmap2::{MmapMut, MmapOptions};

use super::error::NotInPlace;
use super::{FileError, Format, Location, Problem, npy, pb, reserve, safetensors, source};

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
/// Opening and mapping do not change the file. Only bytes stored into [`reserved_mut`](Self::reserved_mut)
/// change in the file.
#[derive(Debug)]
pub(crate) struct InPlaceFile {
    name: String,
    element: ElementType,
    shape: Vec<usize>,
    stored: Stored,
    map: MmapMut,
    /// The offset of the map in the file.
    offset: u64,
    // The open file also keeps the lock while the map exists.
    file: File,
}

/// A tensor as its format's header describes it.
struct Header {
    element: ElementType,
    shape: Vec<usize>,
    stored: Stored,
    offset: u64,
    len: usize,
}

impl InPlaceFile {
    /// Opens the file, finds the tensor and maps its bytes.
    ///
    /// # Errors
    /// Returns [`FileError`] if the file is not exactly this tensor, if another command is updating it, or if
    /// its values are in a form that cannot be updated in place.
    pub(crate) fn open(location: &Location, ty: Option<ElementType>) -> Result<Self, FileError> {
        let open = || {
            let (mut file, file_len) = open_locked(location)?;
            let header = find(&mut file, file_len, location, ty)?;
            Problem::check_type(header.element, ty)?;
            let map = map(&file, header.offset, header.len)?;
            Ok(Self {
                name: location.to_string(),
                element: header.element,
                shape: header.shape,
                stored: header.stored,
                map,
                offset: header.offset,
                file,
            })
        };
        open().map_err(|problem| FileError::new(location, problem))
    }

    pub(crate) fn element(&self) -> ElementType {
        self.element
    }

    pub(crate) fn shape(&self) -> &[usize] {
        &self.shape
    }

    pub(crate) fn stored(&self) -> Stored {
        self.stored
    }

    /// Reserves space on the disk for the bytes that a plan writes, and returns the bytes.
    ///
    /// # Errors
    /// Returns [`FileError`] if there is no space. The file is then unchanged.
    pub(crate) fn reserved_mut(&mut self, plan: &WritePlan<'_>) -> Result<&mut [u8], FileError> {
        let no_room = |cause| Problem::NoRoom { bytes: plan.bytes().unwrap_or(0), cause };
        reserve::reserve(&self.file, self.offset, plan)
            .map_err(|cause| FileError::at_name(self.name.clone(), no_room(cause)))?;
        Ok(&mut self.map)
    }

    /// Waits until the stored bytes are in the file.
    ///
    /// # Errors
    /// Returns [`FileError`] if the file system cannot write the bytes.
    pub(crate) fn finish(self) -> Result<(), FileError> {
        self.map.flush().map_err(|error| FileError::at_name(self.name, error))
    }
}

fn open_locked(location: &Location) -> Result<(File, u64), Problem> {
    let (file, _) = source::open_with(location.path(), OpenOptions::new().read(true).write(true))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Err(Problem::Locked),
        Err(TryLockError::Error(error)) => return Err(error.into()),
    }
    // The length is read under the lock, because the previous owner of the lock may have changed it.
    let len = file.metadata()?.len();
    Ok((file, len))
}

fn find(
    file: &mut File,
    file_len: u64,
    location: &Location,
    ty: Option<ElementType>,
) -> Result<Header, Problem> {
    match location.format() {
        Format::Npy => {
            let header = npy::read_header(&mut BufReader::new(&*file), ty)?;
            npy::check_len(&header, file_len)?;
            Ok(Header {
                stored: if header.byte_per_element() { Stored::BytePerElement } else { Stored::Packed },
                element: header.element,
                shape: header.shape,
                offset: header.data_offset,
                len: header.data_len,
            })
        }
        Format::Safetensors => {
            let entry = safetensors::find(file, file_len, location.entry())?;
            Ok(Header {
                element: entry.element,
                shape: entry.shape,
                stored: Stored::Packed,
                offset: entry.offset,
                len: entry.len,
            })
        }
        Format::Pb => {
            let len = usize::try_from(file_len).map_err(|_| Problem::TooLarge { bytes: file_len })?;
            let (tensor, range) = pb::find(&source::exactly(file, len)?)?;
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
