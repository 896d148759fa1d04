//! Writes a file in parts, and replaces an existing file in one step.

use std::fs::{File, Permissions};
use std::io;
use std::path::{Path, PathBuf};

use cap_fs_ext::{FollowSymlinks, OpenOptionsFollowExt, OpenOptionsSyncExt};
use cap_std::ambient_authority;
use cap_std::fs::OpenOptions;
use xxhash_rust::xxh3::xxh3_64;

use super::UnfinishedFiles;
use super::identity::folder_of;
use super::write::link_target;
use crate::{ErrorPlace, FileError, OnnxError};

/// Writes a file in one step, like [`write`](fn@super::write), with contents that `fill` writes in parts.
///
/// The path must lead to a regular file or to no file. A folder, a pipe or a device is not opened.
///
/// The contents are written to a file with another name in the same folder, which then replaces the target. If the
/// process ends at any time, the target is the old file or the new one. The other file remains if the process is
/// killed. The next call for the same target removes it, so such files do not accumulate. The files of processes
/// that are still running are not removed.
///
/// Nothing is flushed to the disk. After a loss of power, the file may have any contents.
///
/// # Errors
/// * Returns [`FileError::NotRegularFile`] or [`std::io::Error`], wrapped in [`OnnxError::InFile`].
/// * Returns the error of `fill`.
pub fn replace<E: From<OnnxError>>(
    path: &Path,
    fill: impl FnOnce(&mut File) -> Result<(), E>,
) -> Result<(), E> {
    let (target, permissions) = existing(path).in_file(path)?;
    let mut unfinished = UnfinishedFiles::new();
    let (mut file, new) = begin(&mut unfinished, &target).in_file(path)?;
    fill(&mut file)?;
    let done = permissions.map_or(Ok(()), |permissions| file.set_permissions(permissions));
    let done = done.and_then(|()| unfinished.complete(|| std::fs::rename(new, target)));
    Ok(done.in_file(path)?)
}

/// Returns the path of the file that is replaced or created, and the permissions of an existing file.
fn existing(path: &Path) -> Result<(PathBuf, Option<Permissions>), OnnxError> {
    // The path is examined before it is opened, because opening some devices has an effect.
    match std::fs::metadata(path) {
        Ok(meta) if !meta.is_file() => return Err(FileError::NotRegularFile.into()),
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok((link_target(path)?, None)),
        Err(error) => return Err(error.into()),
    }
    // The file is opened to check the permission to write. A rename alone would also replace a write-protected file.
    let mut options = OpenOptions::new();
    options.write(true).nonblock(true);
    let file = cap_std::fs::File::open_ambient_with(path, &options, ambient_authority())?.into_std();
    let meta = file.metadata()?;
    if !meta.is_file() {
        return Err(FileError::NotRegularFile.into());
    }
    Ok((path.canonicalize()?, Some(meta.permissions())))
}

/// Creates a locked file for the new contents of a target. Before that, removes the files that processes which no
/// longer run have left for the same target. The lock of a process ends with the process.
fn begin(unfinished: &mut UnfinishedFiles, target: &Path) -> io::Result<(File, PathBuf)> {
    const ATTEMPTS: usize = 16;
    let folder = folder_of(target);
    let name = target.file_name().unwrap_or_default();
    // The name itself could be too long with a prefix.
    let prefix = format!(".tmp-{:016x}-", xxh3_64(name.as_encoded_bytes()));
    remove_abandoned(folder, &prefix);
    for _ in 0..ATTEMPTS {
        let (file, path) = unfinished.file_with_prefix(folder, &prefix)?;
        // Some network file systems have no locks. Files are not removed there, because locking them fails too.
        let _ = file.lock();
        // Another process may have removed the file before it was locked.
        if path.exists() {
            return Ok((file, path));
        }
    }
    Err(io::Error::other("another process removes unfinished files"))
}

/// Removes the regular files whose names begin with `prefix` and which no process has locked. Errors are ignored,
/// because these files do not prevent the write.
fn remove_abandoned(folder: &Path, prefix: &str) {
    let mut options = OpenOptions::new();
    options.read(true).nonblock(true).follow(FollowSymlinks::No);
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        if !entry.file_name().as_encoded_bytes().starts_with(prefix.as_bytes()) {
            continue;
        }
        let opened = cap_std::fs::File::open_ambient_with(entry.path(), &options, ambient_authority());
        let Ok(file) = opened.map(cap_std::fs::File::into_std) else { continue };
        if file.metadata().is_ok_and(|meta| meta.is_file()) && file.try_lock().is_ok() {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

#[cfg(test)]
#[cfg(unix)]
mod tests {
    use std::fs;
    use std::io::Write;
    use std::path::Path;

    use super::{FileError, begin, replace};
    use crate::file::UnfinishedFiles;
    use crate::{GraphError, OnnxError};

    fn put(path: &Path, bytes: &[u8]) -> Result<(), OnnxError> {
        replace(path, |file| Ok(file.write_all(bytes)?))
    }

    fn count(folder: &Path) -> usize {
        fs::read_dir(folder).unwrap().count()
    }

    #[test]
    fn the_target_is_replaced_and_keeps_its_link_and_permissions() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let [file, link] = ["file", "link"].map(|name| folder.path().join(name));
        std::os::unix::fs::symlink("file", &link).unwrap();
        put(&link, b"1").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
        put(&link, b"23").unwrap();
        assert_eq!(fs::read(&file).unwrap(), b"23");
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o640);
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(count(folder.path()), 2);
    }

    #[test]
    fn a_failure_leaves_the_old_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        put(&path, b"old").unwrap();
        let error = replace(&path, |file| {
            file.write_all(b"new")?;
            Err(OnnxError::from(GraphError::GraphMissing))
        });
        assert_eq!(error.unwrap_err().kind(), "graph_missing");
        assert_eq!((fs::read(&path).unwrap().as_slice(), count(folder.path())), (&b"old"[..], 1));
    }

    #[test]
    fn only_regular_files_are_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("socket");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        let pipe = folder.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        for path in [folder.path(), Path::new("/dev/null"), &socket, &pipe] {
            let error = put(path, b"x").unwrap_err();
            assert!(matches!(error.cause(), Some(FileError::NotRegularFile)), "{error}");
        }
    }

    #[test]
    fn abandoned_files_are_removed_and_those_in_use_are_not() {
        let folder = tempfile::tempdir().unwrap();
        let [path, other] = ["file", "other"].map(|name| folder.path().join(name));
        let mut running = UnfinishedFiles::new();
        let (locked, in_use) = begin(&mut running, &path).unwrap();
        // The lock of a killed process is released.
        let (_, of_other) = begin(&mut running, &other).unwrap();
        put(&path, b"1").unwrap();
        assert!(in_use.exists() && of_other.exists());
        drop(locked);
        put(&path, b"2").unwrap();
        assert!(!in_use.exists() && of_other.exists());
        put(&other, b"3").unwrap();
        assert!(!of_other.exists());
    }
}
