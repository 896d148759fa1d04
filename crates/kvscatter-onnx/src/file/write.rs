//! Writes files whole or not at all.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::UnfinishedFiles;
use super::identity::folder_of;

/// Writes a file in one step.
///
/// Readers never see a part of the file, and a failure does not leave one. If the path is a symbolic link,
/// the link is kept and its target is replaced. If the path is not a regular file, the bytes are written to
/// it directly.
///
/// # Errors
/// Returns the error of the file system.
pub fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    write_with(UnfinishedFiles::new(), path, bytes)
}

/// Writes the file as the last step of a larger operation. Afterwards either all files of the operation
/// exist, or none of the new ones.
pub(crate) fn write_with(mut unfinished: UnfinishedFiles, path: &Path, bytes: &[u8]) -> io::Result<()> {
    // The file is opened to check the permission to write. A rename alone would also replace a
    // write-protected file.
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

/// Returns the path at which a file that does not exist would be created: the end of the chain of symbolic
/// links, if there are any.
pub(super) fn link_target(path: &Path) -> io::Result<PathBuf> {
    // Linux follows the same number of links.
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
