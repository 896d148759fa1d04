//! Compares paths by the files that they lead to, regardless of spelling.

use std::io;
use std::path::{Path, PathBuf};

/// The file that a path leads to. It is determined without opening the file, because opening a pipe would
/// wait for the other end of the pipe.
#[derive(Debug, PartialEq, Eq)]
pub enum Identity {
    /// The device and inode of an existing file. Hard links to one file have the same identity.
    #[cfg(unix)]
    Inode(u64, u64),
    /// The full path of a file that does not exist.
    Path(PathBuf),
}

impl Identity {
    /// Returns the identity of the file that this path leads to. Follows symbolic links.
    ///
    /// # Errors
    /// Returns the error of the file system. Neither the file nor its folder need exist.
    pub fn from_path(path: &Path) -> io::Result<Self> {
        match existing(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let folder = full_path(folder_of(path))?;
                Ok(Self::Path(folder.join(path.file_name().unwrap_or_default())))
            }
            identity => identity,
        }
    }
}

/// Returns the full path of a folder. The parts that do not exist are taken as they are written.
fn full_path(folder: &Path) -> io::Result<PathBuf> {
    match (folder.canonicalize(), folder.parent()) {
        (Err(error), Some(parent)) if error.kind() == io::ErrorKind::NotFound => {
            let mut path = full_path(if parent == Path::new("") { Path::new(".") } else { parent })?;
            match folder.file_name() {
                Some(name) => path.push(name),
                None => _ = path.pop(),
            }
            Ok(path)
        }
        (path, _) => path,
    }
}

/// Returns the folder that contains a file. For a bare name this is `.`.
#[must_use]
pub fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    }
}

#[cfg(unix)]
fn existing(path: &Path) -> io::Result<Identity> {
    use std::os::unix::fs::MetadataExt;
    let meta = std::fs::metadata(path)?;
    Ok(Identity::Inode(meta.dev(), meta.ino()))
}

#[cfg(not(unix))]
fn existing(path: &Path) -> io::Result<Identity> {
    path.canonicalize().map(Identity::Path)
}

#[cfg(all(test, unix))]
mod tests {
    use super::Identity;

    #[test]
    fn spellings_links_and_files_that_are_not_there_yet() {
        let folder = tempfile::tempdir().unwrap();
        let identity = |name: &str| Identity::from_path(&folder.path().join(name)).unwrap();
        std::fs::create_dir(folder.path().join("sub")).unwrap();
        std::fs::write(folder.path().join("a"), b"").unwrap();
        std::fs::write(folder.path().join("b"), b"").unwrap();
        std::fs::hard_link(folder.path().join("a"), folder.path().join("hard")).unwrap();
        std::os::unix::fs::symlink("a", folder.path().join("soft")).unwrap();
        for name in ["sub/../a", "hard", "soft"] {
            assert_eq!(identity(name), identity("a"), "{name}");
        }
        assert_ne!(identity("a"), identity("b"));
        assert_eq!(identity("sub/../new"), identity("new"));
        assert_eq!(identity("sub/missing/../a/new"), identity("sub/a/new"));
        assert_ne!(identity("new"), identity("newer"));
    }
}
