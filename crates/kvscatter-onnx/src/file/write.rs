//! Writing files whole or not at all.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::UnfinishedFiles;
use super::identity::folder_of;

/// Writes a file in one step: no reader sees half of it, and no failure leaves half of it. A symbolic link stays
/// one, and its target is replaced; what is no regular file is written through.
///
/// # Errors
/// Those of the file system.
pub fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    write_with(UnfinishedFiles::new(), path, bytes)
}

/// Does the same as the last step of a larger operation. Afterwards either all of its files exist, or no new
/// ones do.
pub(crate) fn write_with(mut unfinished: UnfinishedFiles, path: &Path, bytes: &[u8]) -> io::Result<()> {
    // Opening asks for the right to write: a rename alone would replace a write-protected file.
    let (target, permissions) = match OpenOptions::new().write(true).open(path) {
        Ok(mut existing) => match existing.metadata()? {
            meta if meta.is_file() => (path.canonicalize()?, Some(meta.permissions())),
            _ => {
                existing.write_all(bytes)?;
                existing.flush()?;
                return unfinished.complete(|| Ok(()));
            }
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => (link_target(path)?, None),
        Err(error) => return Err(error),
    };
    let (mut file, new) = unfinished.file_in(folder_of(&target))?;
    file.write_all(bytes)?;
    if let Some(permissions) = permissions {
        file.set_permissions(permissions)?;
    }
    unfinished.complete(|| std::fs::rename(new, target))
}

/// Where a file that does not exist would be made: at the end of a chain of symbolic links, if it is one.
fn link_target(path: &Path) -> io::Result<PathBuf> {
    // As many as Linux follows.
    const MAX_LINKS: usize = 40;
    let mut target = path.to_owned();
    for _ in 0..MAX_LINKS {
        match std::fs::read_link(&target) {
            Ok(next) => target = folder_of(&target).join(next),
            Err(_) => return Ok(target),
        }
    }
    Err(io::Error::other("too many symbolic links"))
}
