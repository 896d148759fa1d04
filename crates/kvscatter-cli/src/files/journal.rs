//! The journal of a write in place, so that a write that is interrupted has happened or has not.
//!
//! The journal is a file beside the cache file and has the old and the new bytes of the planned rows. It is
//! complete on the disk before the first row changes, and it is removed after the last one. The next command
//! that updates the file finds the journal of a write that was interrupted. If all bytes are new, the write
//! is complete. Otherwise the command writes the old bytes back.
//!
//! A journal is written under another name and then renamed. So a file with the name of a journal is complete,
//! or it is not ours. A file with the other name belongs to a write that had not begun.
//!
//! Anyone who can write into the folder can plant a journal. Therefore a journal must be a regular file that
//! no other user can write, and its owner must be this user or the owner of the cache file. It must name the
//! inode, the length and the tensor of the file, and the bytes in the file must be a mixture of its old and
//! new bytes. Otherwise nothing changes, and the command fails.

mod format;
mod rows;
mod undo;

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use cap_fs_ext::{FollowSymlinks, MetadataExt, OpenOptionsFollowExt, OpenOptionsSyncExt};
use cap_std::ambient_authority;
use cap_std::fs::{Dir, Metadata, OpenOptions};
use kvscatter_onnx::file::folder_of;

use super::Problem;
use super::error::JournalProblem;
pub(super) use format::Subject;
pub(super) use rows::{Rows, for_each_run, wide};
pub(crate) use undo::Interrupted;

/// The folder of a cache file, and the names of the file and its journal there.
#[derive(Debug)]
pub(super) struct Beside {
    folder: Dir,
    file: OsString,
    journal: OsString,
    unfinished: OsString,
    /// The journal as errors name it.
    shown: PathBuf,
}

impl Beside {
    /// Opens the folder of the file that a path leads to. Follows symbolic links, so that a file has one
    /// journal under all of them.
    pub(super) fn of(path: &Path) -> Result<Self, Problem> {
        let real = path.canonicalize()?;
        let file = real.file_name().ok_or(Problem::NotAFile)?.to_owned();
        let name = |end: &str| [OsStr::new("."), &file, OsStr::new(end)].into_iter().collect::<OsString>();
        let (journal, unfinished) = (name(".kvscatter-journal"), name(".kvscatter-journal.new"));
        let is_link = path.symlink_metadata()?.is_symlink();
        let shown = if is_link { &real } else { path }.with_file_name(&journal);
        let folder = Dir::open_ambient_dir(folder_of(&real), ambient_authority())?;
        Ok(Self { folder, file, journal, unfinished, shown })
    }

    /// Opens the file itself for reading and writing.
    pub(super) fn open(&self) -> io::Result<File> {
        let mut options = OpenOptions::new();
        // Without this flag, opening a pipe waits for its other end.
        options.read(true).write(true).nonblock(true).follow(FollowSymlinks::No);
        Ok(self.folder.open_with(&self.file, &options)?.into_std())
    }

    /// Returns whether there is something with the name of the journal.
    pub(super) fn has_journal(&self) -> bool {
        matches!(self.found(), Ok(Some(_)))
    }

    /// Undoes a write that was interrupted, and removes its journal. `file` must be locked. `tensor` finds the
    /// tensor of the journal in the file.
    ///
    /// # Errors
    /// Returns [`Problem::Journal`] if the journal cannot be used. Nothing has changed then.
    pub(super) fn end_interrupted(
        &self,
        file: &File,
        tensor: impl FnOnce(&Subject) -> Option<Subject>,
    ) -> Result<Option<Interrupted>, Problem> {
        // If it cannot be removed, the next journal cannot be written, which is then an error.
        let _ = self.folder.remove_file(&self.unfinished);
        let end = || {
            let Some(meta) = self.found()? else { return Ok(None) };
            let of_file = Metadata::from_file(file)?;
            check(&meta, &of_file)?;
            let mut options = OpenOptions::new();
            options.read(true).nonblock(true).follow(FollowSymlinks::No);
            let journal = self.folder.open_with(&self.journal, &options)?;
            // The name may lead to another file by now.
            check(&journal.metadata()?, &of_file)?;
            let interrupted = undo::undo(&journal.into_std(), file, of_file.ino(), tensor)?;
            self.folder.remove_file(&self.journal)?;
            Ok(Some(interrupted))
        };
        end().map_err(|problem| Problem::Journal { journal: self.shown.clone(), problem })
    }

    /// Writes a journal. `cache` is the tensor before the write.
    ///
    /// # Errors
    /// Returns [`Problem::JournalNotWritten`]. There is no journal then.
    pub(super) fn write(&self, subject: &Subject, rows: &Rows<'_>, cache: &[u8]) -> Result<(), Problem> {
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).follow(FollowSymlinks::No);
        #[cfg(unix)]
        cap_std::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let write = || {
            let file = self.folder.open_with(&self.unfinished, &options)?.into_std();
            format::write(&file, subject, rows, cache)?;
            file.sync_data()?;
            self.folder.rename(&self.unfinished, &self.folder, &self.journal)?;
            self.sync_folder()
        };
        write().map_err(|cause| {
            self.remove();
            Problem::JournalNotWritten { journal: self.shown.clone(), cause }
        })
    }

    /// Removes the journal. If that fails, the next command finds that the write is complete.
    pub(super) fn remove(&self) {
        for name in [&self.unfinished, &self.journal] {
            let _ = self.folder.remove_file(name);
        }
    }

    fn found(&self) -> io::Result<Option<Metadata>> {
        use io::ErrorKind::{InvalidFilename, NotFound};
        match self.folder.symlink_metadata(&self.journal) {
            Ok(meta) => Ok(Some(meta)),
            // The name of a file can be so long that no journal fits beside it.
            Err(error) if matches!(error.kind(), NotFound | InvalidFilename) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Waits until the names in the folder are on the disk.
    #[cfg(unix)]
    fn sync_folder(&self) -> io::Result<()> {
        match self.folder.open(".") {
            Ok(folder) => folder.sync_all(),
            // A folder can be writable and not readable. Its names reach the disk later.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(()),
            Err(error) => Err(error),
        }
    }

    #[cfg(not(unix))]
    fn sync_folder(&self) -> io::Result<()> {
        // Folders cannot be opened as files.
        Ok(())
    }
}

/// Checks that a journal is a file whose author may write the cache file.
fn check(journal: &Metadata, file: &Metadata) -> Result<(), JournalProblem> {
    if !journal.is_file() {
        return Err(JournalProblem::NotAFile);
    }
    #[cfg(unix)]
    {
        use cap_std::fs::MetadataExt;
        const OTHERS_WRITE: u32 = 0o022;
        let owners = [rustix::process::geteuid().as_raw(), file.uid()];
        if !owners.contains(&journal.uid()) || journal.mode() & OTHERS_WRITE != 0 {
            return Err(JournalProblem::OtherUsers);
        }
    }
    #[cfg(not(unix))]
    let _ = file;
    Ok(())
}

#[cfg(test)]
#[cfg(unix)]
mod tests;
