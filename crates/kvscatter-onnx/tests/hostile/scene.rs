//! The folder of the models, with the files that they name, and a check that nothing in it changes.

use std::collections::BTreeMap;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::case::Case;

/// A folder `model` with the model and files that it may read, a folder `out` for outputs, and a file beside them that
/// no model may read.
pub(crate) struct Scene {
    outer: TempDir,
}

/// What is known about a file: its kind, its length, its inode and the time of its last change.
type Stamp = (u32, u64, u64, i64, i64);

/// The files of a scene beside the outputs.
#[derive(PartialEq, Eq)]
pub(crate) struct Files(BTreeMap<PathBuf, Stamp>);

impl Scene {
    pub(crate) fn new() -> std::io::Result<Self> {
        // Each output is synchronised with the disk, which takes no time in memory.
        let memory = Path::new("/dev/shm");
        let outer = if memory.is_dir() { tempfile::tempdir_in(memory)? } else { tempfile::tempdir()? };
        let at = |name: &str| outer.path().join(name);
        std::fs::create_dir_all(at("model/sub"))?;
        std::fs::create_dir(at("out"))?;
        std::fs::create_dir(at("working"))?;
        std::fs::write(at("secret.bin"), [0x5E; 64])?;
        let values: Vec<u8> = (0..512_u64).flat_map(|value| (value % 5).to_le_bytes()).collect();
        std::fs::write(at("model/data.bin"), &values)?;
        std::fs::write(at("model/sub/data.bin"), &values)?;
        symlink("data.bin", at("model/link_in"))?;
        symlink("sub", at("model/link_to_sub"))?;
        symlink("../secret.bin", at("model/link_out"))?;
        symlink("..", at("model/link_up"))?;
        symlink("/etc/passwd", at("model/link_absolute"))?;
        symlink("nothing", at("model/dangling"))?;
        symlink("loop", at("model/loop"))?;
        assert!(Command::new("mkfifo").arg(at("model/pipe")).status()?.success());
        Ok(Self { outer })
    }

    pub(crate) fn model(&self) -> PathBuf {
        self.path("model/model.onnx")
    }

    /// Returns the path of an output.
    pub(crate) fn out(&self, name: &str) -> PathBuf {
        self.path("out").join(name)
    }

    /// Returns a folder that stays empty.
    pub(crate) fn working(&self) -> PathBuf {
        self.path("working")
    }

    fn path(&self, name: &str) -> PathBuf {
        self.outer.path().join(name)
    }

    /// Writes a model and its values, and removes the outputs of the model before.
    pub(crate) fn place(&self, case: &Case) -> std::io::Result<Files> {
        self.clear()?;
        std::fs::write(self.model(), &case.bytes)?;
        let data = self.path("model/model.onnx.data");
        match case.data {
            Some(values) => std::fs::write(data, values)?,
            None if data.exists() => std::fs::remove_file(data)?,
            None => {}
        }
        self.files()
    }

    /// Removes all outputs.
    pub(crate) fn clear(&self) -> std::io::Result<()> {
        if !self.is_out_empty()? {
            std::fs::remove_dir_all(self.path("out"))?;
            std::fs::create_dir(self.path("out"))?;
        }
        Ok(())
    }

    pub(crate) fn is_out_empty(&self) -> std::io::Result<bool> {
        Ok(std::fs::read_dir(self.path("out"))?.next().is_none())
    }

    /// Returns everything beside the outputs.
    pub(crate) fn files(&self) -> std::io::Result<Files> {
        let mut files = BTreeMap::new();
        add(self.outer.path(), &mut files)?;
        for folder in ["model", "model/sub", "working"] {
            add(&self.path(folder), &mut files)?;
        }
        files.remove(&self.path("out"));
        Ok(Files(files))
    }
}

impl Files {
    /// Returns the paths that differ.
    pub(crate) fn changed(&self, after: &Self) -> Vec<PathBuf> {
        let all = self.0.keys().chain(after.0.keys());
        all.filter(|path| self.0.get(*path) != after.0.get(*path)).cloned().collect()
    }
}

fn add(folder: &Path, files: &mut BTreeMap<PathBuf, Stamp>) -> std::io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let is = path.symlink_metadata()?;
        files.insert(path, (is.mode(), is.len(), is.ino(), is.mtime(), is.mtime_nsec()));
    }
    Ok(())
}
