//! Writing files whole or not at all.

use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::identity::folder_of;

/// Writes a file in one step: no reader sees half of it, and no failure leaves half of it. A symbolic link stays
/// one, and its target is replaced; what is no regular file is written through.
///
/// # Errors
/// Those of the file system.
pub fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    // Opening asks for the right to write: a rename alone would replace a write-protected file.
    match OpenOptions::new().write(true).open(path) {
        Ok(mut existing) => match existing.metadata()? {
            meta if meta.is_file() => replace(&path.canonicalize()?, bytes, Some(meta.permissions())),
            _ => write_through(&mut existing, bytes),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => replace(&link_target(path)?, bytes, None),
        Err(error) => Err(error),
    }
}

fn write_through(file: &mut File, bytes: &[u8]) -> io::Result<()> {
    file.write_all(bytes)?;
    file.flush()
}

fn replace(path: &Path, bytes: &[u8], permissions: Option<Permissions>) -> io::Result<()> {
    let mut file = new_file_in(folder_of(path))?;
    file.write_all(bytes)?;
    if let Some(permissions) = permissions {
        file.as_file().set_permissions(permissions)?;
    }
    file.persist(path).map_err(|error| error.error)?;
    Ok(())
}

/// Where a file that does not exist would be made: at the end of a chain of symbolic links, if it is one.
fn link_target(path: &Path) -> io::Result<PathBuf> {
    // As many as Linux follows.
    const MOST_LINKS: usize = 40;
    let mut target = path.to_owned();
    for _ in 0..MOST_LINKS {
        match std::fs::read_link(&target) {
            Ok(next) => target = folder_of(&target).join(next),
            Err(_) => return Ok(target),
        }
    }
    Err(io::Error::other("too many symbolic links"))
}

/// A file of no name yet, as any new file is: less the umask, where a temporary file alone would be private.
#[cfg(unix)]
pub(crate) fn new_file_in(folder: &Path) -> io::Result<tempfile::NamedTempFile> {
    use std::os::unix::fs::PermissionsExt;
    tempfile::Builder::new().permissions(Permissions::from_mode(0o666)).tempfile_in(folder)
}

#[cfg(not(unix))]
pub(crate) fn new_file_in(folder: &Path) -> io::Result<tempfile::NamedTempFile> {
    tempfile::NamedTempFile::new_in(folder)
}
