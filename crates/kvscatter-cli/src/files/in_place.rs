//! Updates a tensor in its file through a memory map.

use std::fs::{File, TryLockError};

use kvscatter::{ElementType, WritePlan};
use kvscatter_onnx::internal::file::UnfinishedFiles;
use memmap2::{MmapMut, MmapOptions};

use super::header::Header;
use super::{FileError, Location, Problem, find, reserve, source};

/// A tensor's bytes in a file that is open for writing and locked against other commands. Only
/// [`write`](Self::write) changes the file.
#[derive(Debug)]
pub(crate) struct InPlaceFile {
    name: String,
    header: Header,
    map: MmapMut,
    // The open file also keeps the lock while the map exists.
    file: File,
}

impl InPlaceFile {
    /// Opens the file, finds the tensor and maps its bytes.
    ///
    /// # Errors
    /// Returns [`FileError`] if the file is not exactly this tensor, if another command is updating it, or if
    /// its values are in a form that cannot be updated in place.
    pub(crate) fn open(location: &Location, ty: Option<ElementType>) -> Result<Self, FileError> {
        let open = || {
            let file = source::open_for_writing(location.path())?;
            file.try_lock().map_err(|error| match error {
                TryLockError::WouldBlock => Problem::Locked,
                TryLockError::Error(error) => error.into(),
            })?;
            // The length is read under the lock, because the previous owner of the lock may have changed it.
            let header = find(&file, file.metadata()?.len(), location, ty)?;
            Problem::check_type(header.element, ty)?;
            let map = map(&file, header.offset, header.len)?;
            Ok(Self { name: location.to_string(), header, map, file })
        };
        open().map_err(|problem| FileError::new(location, problem))
    }

    pub(crate) fn element(&self) -> ElementType {
        self.header.element
    }

    pub(crate) fn shape(&self) -> &[usize] {
        &self.header.shape
    }

    /// Returns whether each byte of the data contains one 4-bit element.
    pub(crate) fn is_unpacked(&self) -> bool {
        self.header.is_unpacked
    }

    /// Writes `update` by a plan, and waits until the rows are in the file.
    ///
    /// # Errors
    /// Returns [`FileError`] if there is no space for the rows, and the errors of the plan. The file is then
    /// unchanged. Also if the file system cannot write the rows.
    pub(crate) fn write<E: From<FileError> + From<kvscatter::Error>>(
        mut self,
        plan: &WritePlan<'_>,
        update: &[u8],
    ) -> Result<(), E> {
        let unfinished = UnfinishedFiles::new();
        // A signal ends the command only after the write.
        let written = unfinished.fill(|| {
            let failed = |problem| FileError::at_name(self.name.clone(), problem);
            reserve::reserve(&self.file, self.header.offset, plan)
                .map_err(|cause| failed(Problem::NoRoom { bytes: plan.bytes().unwrap_or(0), cause }))?;
            let _ = plan.write_bytes(&mut self.map, update)?;
            Ok(self.map.flush().map_err(|error| failed(error.into()))?)
        });
        // If a signal came during the write, this waits until the signal ends the command.
        unfinished.fill(|| written)
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
