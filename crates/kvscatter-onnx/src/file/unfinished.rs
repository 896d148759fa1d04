//! Unfinished files and folders. They are removed if an error occurs. A program that ends because of a signal
//! can remove them as well.
//!
//! This library does not install a signal handler. It has a list of the files and folders that the process
//! has begun and not completed. A program that handles signals calls [`remove_unfinished`] and then exits.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The files and folders that the process has begun, in order.
static LIST: Mutex<Vec<Entry>> = Mutex::new(Vec::new());
/// A lock for creating files inside a listed folder. It is acquired before `LIST`.
static FILLING: Mutex<()> = Mutex::new(());
/// Whether the process is ending. No new file may be begun then.
static ENDING: AtomicBool = AtomicBool::new(false);

#[derive(Debug)]
struct Entry {
    owner: u64,
    path: PathBuf,
    removal: Removal,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Removal {
    File,
    /// A folder that is removed only if it is empty.
    Folder,
    /// A folder that is removed with its contents.
    Tree,
}

/// A group of files and folders. They are removed when this value is dropped, unless they are
/// [completed](Self::complete).
#[derive(Debug)]
pub struct UnfinishedFiles {
    owner: u64,
}

/// A guard that prevents new files from being begun until it is dropped.
#[derive(Debug)]
pub struct ShutdownGuard {
    _list: MutexGuard<'static, Vec<Entry>>,
    _filling: MutexGuard<'static, ()>,
}

/// Removes all files and folders that the process has begun and not completed.
///
/// Afterwards, a thread that begins a new file waits until the returned guard is dropped. Keep the guard
/// until the process has ended.
///
/// This function waits for steps that are in progress, such as a rename. Call it from a thread, never from a
/// signal handler.
#[must_use]
pub fn remove_unfinished() -> ShutdownGuard {
    ENDING.store(true, Ordering::SeqCst);
    let filling = locked(&FILLING);
    let mut list = locked(&LIST);
    remove_last_first(list.drain(..));
    ShutdownGuard { _list: list, _filling: filling }
}

impl Drop for ShutdownGuard {
    fn drop(&mut self) {
        ENDING.store(false, Ordering::SeqCst);
    }
}

impl UnfinishedFiles {
    /// Creates an empty group.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "a default value would seem to own nothing")]
    pub fn new() -> Self {
        static OWNERS: AtomicU64 = AtomicU64::new(0);
        Self { owner: OWNERS.fetch_add(1, Ordering::Relaxed) }
    }

    /// Creates a folder with a new name that begins with `prefix`. Unless it is completed, the folder is
    /// removed with its contents.
    ///
    /// Only the current user has access to the folder, because its parent may be writable for everyone.
    ///
    /// # Errors
    /// Returns the error of the file system.
    pub fn folder_in(&mut self, folder: &Path, prefix: &str) -> io::Result<PathBuf> {
        let mut list = locked(&LIST);
        let path = builder(prefix, 0o700).tempdir_in(folder)?.keep();
        list.push(Entry { owner: self.owner, path: path.clone(), removal: Removal::Tree });
        Ok(path)
    }

    /// Creates a folder and its missing parents. If an error occurs, the new folders that are empty are
    /// removed.
    ///
    /// # Errors
    /// Returns the error of the file system.
    pub fn folders(&mut self, path: &Path) -> io::Result<()> {
        let is_new = |folder: &&Path| !folder.as_os_str().is_empty() && !folder.exists();
        let mut missing: Vec<_> = path.ancestors().take_while(is_new).collect();
        while let Some(folder) = missing.pop() {
            match self.folder(folder, || fs::create_dir(folder)) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists && folder.is_dir() => {}
                made => made?,
            }
        }
        Ok(())
    }

    /// Runs a function that creates files inside one of these folders.
    ///
    /// [`remove_unfinished`] waits until the function returns, so no file appears in a folder that is being
    /// removed.
    pub fn fill<T>(&self, make: impl FnOnce() -> T) -> T {
        // Without this loop, a thread that takes the lock repeatedly could starve the thread that removes the
        // files.
        while ENDING.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let _filling = locked(&FILLING);
        make()
    }

    /// Creates a file with a new name. Creates the folder if it is missing.
    pub(crate) fn file_in(&mut self, folder: &Path) -> io::Result<(File, PathBuf)> {
        self.file_with_prefix(folder, ".tmp")
    }

    /// Creates a file with a new name that begins with `prefix`. Creates the folder if it is missing.
    pub(crate) fn file_with_prefix(&mut self, folder: &Path, prefix: &str) -> io::Result<(File, PathBuf)> {
        self.folders(folder)?;
        let mut list = locked(&LIST);
        let (file, path) = builder(prefix, 0o666).tempfile_in(folder)?.keep().map_err(|error| error.error)?;
        list.push(Entry { owner: self.owner, path: path.clone(), removal: Removal::File });
        Ok((file, path))
    }

    /// Creates a file with this name.
    pub(crate) fn file<T>(&mut self, path: &Path, make: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        self.made(path, Removal::File, make)
    }

    /// Creates a folder with this name. If an error occurs, the folder is removed if it is empty.
    pub(crate) fn folder<T>(&mut self, path: &Path, make: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        self.made(path, Removal::Folder, make)
    }

    fn made<T>(
        &mut self,
        path: &Path,
        removal: Removal,
        make: impl FnOnce() -> io::Result<T>,
    ) -> io::Result<T> {
        let mut list = locked(&LIST);
        let made = make()?;
        list.push(Entry { owner: self.owner, path: path.to_owned(), removal });
        Ok(made)
    }

    /// Renames one of these files. The new name must not exist yet.
    pub(crate) fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        let mut list = locked(&LIST);
        let temporary = tempfile::TempPath::try_from_path(from)?;
        temporary.persist_noclobber(to).map_err(|error| {
            // The file stays in the list and is removed with the others.
            error.path.keep().map_or_else(|error| error.error, |_| error.error)
        })?;
        let owner = self.owner;
        for entry in list.iter_mut().filter(|entry| entry.owner == owner && entry.path == from) {
            to.clone_into(&mut entry.path);
        }
        Ok(())
    }

    /// Runs the last step of an operation. All files are kept if it succeeds and removed if it fails.
    ///
    /// # Errors
    /// Returns the error of the step.
    pub fn complete<T>(self, step: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        let mut list = locked(&LIST);
        let done = step();
        if done.is_ok() {
            list.retain(|entry| entry.owner != self.owner);
        }
        // The lock is released because dropping `self` takes it again.
        drop(list);
        done
    }
}

impl Drop for UnfinishedFiles {
    fn drop(&mut self) {
        let owner = self.owner;
        let mut list = locked(&LIST);
        remove_last_first(list.extract_if(.., |entry| entry.owner == owner).collect::<Vec<_>>().into_iter());
    }
}

fn remove_last_first(entries: impl DoubleEndedIterator<Item = Entry>) {
    for Entry { path, removal, .. } in entries.rev() {
        // Errors are ignored, because the error that caused the removal is the one to report.
        let _ = match removal {
            Removal::File => fs::remove_file(&path),
            Removal::Folder => fs::remove_dir(&path),
            Removal::Tree => fs::remove_dir_all(&path),
        };
    }
}

/// Locks a mutex even after a panic. The list is still consistent, because each change is a single call.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns a builder whose files get these permissions, less the umask.
fn builder(prefix: &str, mode: u32) -> tempfile::Builder<'_, '_> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(prefix);
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(mode));
    #[cfg(not(unix))]
    let _ = mode;
    builder
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io;
    use std::path::Path;

    use super::UnfinishedFiles;

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    /// Begins one entry of each kind, each inside the previous one.
    fn begun(folder: &Path) -> UnfinishedFiles {
        let mut unfinished = UnfinishedFiles::new();
        unfinished.folders(&folder.join("a/b")).unwrap();
        let (_, file) = unfinished.file_in(&folder.join("a/b")).unwrap();
        unfinished.rename(&file, &folder.join("a/b/data")).unwrap();
        unfinished.file(&folder.join("linked"), || fs::write(folder.join("linked"), "x")).unwrap();
        let tree = unfinished.folder_in(folder, "tree").unwrap();
        unfinished.fill(|| fs::create_dir_all(tree.join("c/d"))).unwrap();
        unfinished
    }

    #[test]
    fn dropping_removes_unfinished_files_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let kept = begun(folder.path());
        kept.complete(|| Ok(())).unwrap();
        let before = names(folder.path());
        assert_eq!(before.len(), 3, "{before:?}");

        let mut unfinished = UnfinishedFiles::new();
        let (_, file) = unfinished.file_in(folder.path()).unwrap();
        let taken = unfinished.rename(&file, &folder.path().join("linked")).unwrap_err();
        assert_eq!(taken.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read(folder.path().join("linked")).unwrap(), b"x");
        drop(unfinished);
        assert_eq!(names(folder.path()), before);
    }

    #[test]
    fn a_step_that_fails_removes_all() {
        let folder = tempfile::tempdir().unwrap();
        let unfinished = begun(folder.path());
        assert!(unfinished.complete(|| Err::<(), _>(io::Error::other("the last step"))).is_err());
        assert_eq!(names(folder.path()), [""; 0]);
    }
}
