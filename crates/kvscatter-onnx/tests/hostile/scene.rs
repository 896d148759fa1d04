//! The folder of the models, with the files that they name, and a check that nothing in it changes.

use std::collections::BTreeMap;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use kvscatter_onnx::{Model, WeightTransfer};
use tempfile::TempDir;

use crate::bounds::{Bounds, Meter, Refusal};
use crate::generator::Case;
use crate::passes::{self, same};

/// A folder `model` with the model and files that it may read, a folder `out` for outputs, and a file beside them that
/// no model may read.
pub(crate) struct Scene {
    outer: TempDir,
}

/// What is known about a file: its kind, its length, its inode and the time of its last change.
pub(crate) type Stamp = (u32, u64, u64, i64, i64);

/// The files of a scene beside the outputs.
pub(crate) type Files = BTreeMap<PathBuf, Stamp>;

impl Scene {
    pub(crate) fn new() -> std::io::Result<Self> {
        // Each output is synchronised with the disk, which takes no time in memory.
        let memory = Path::new("/dev/shm");
        let outer = if memory.is_dir() { tempfile::tempdir_in(memory)? } else { tempfile::tempdir()? };
        let in_outer = |name: &str| outer.path().join(name);
        std::fs::create_dir_all(in_outer("model/sub"))?;
        std::fs::create_dir(in_outer("out"))?;
        std::fs::create_dir(in_outer("working"))?;
        std::fs::write(in_outer("secret.bin"), [0x5E; 64])?;
        let values: Vec<u8> = (0..512_u64).flat_map(|value| (value % 5).to_le_bytes()).collect();
        std::fs::write(in_outer("model/data.bin"), &values)?;
        std::fs::write(in_outer("model/sub/data.bin"), &values)?;
        symlink("data.bin", in_outer("model/link_in"))?;
        symlink("sub", in_outer("model/link_to_sub"))?;
        symlink("../secret.bin", in_outer("model/link_out"))?;
        symlink("..", in_outer("model/link_up"))?;
        symlink("/etc/passwd", in_outer("model/link_absolute"))?;
        symlink("nothing", in_outer("model/dangling"))?;
        symlink("loop", in_outer("model/loop"))?;
        assert!(Command::new("mkfifo").arg(in_outer("model/pipe")).status()?.success());
        Ok(Self { outer })
    }

    fn model(&self) -> PathBuf {
        self.path("model/model.onnx")
    }

    /// Runs every pass on the file of the scene.
    pub(crate) fn run(&self, meter: &mut Meter<'_>, case: &Case) {
        let loaded = meter.pass("read", Bounds::STRUCTURE, || Ok(Model::load(&self.model())?));
        if loaded.is_some() && case.leads_out {
            meter.fail("read", "a tensor names a file outside of the folder");
        }
        // Some callers have a model in memory and no folder.
        let read =
            || meter.pass("read from memory", Bounds::STRUCTURE, || Ok(Model::from_bytes(&case.bytes)?));
        let Some(model) = loaded.or_else(read) else { return };
        meter.pass("fingerprint", Bounds::STRUCTURE, || fingerprint(&model));
        meter.pass("save", Bounds::REWRITE, || self.save(&model, "same.onnx"));
        passes::run(meter, model, meter.seed, &|model, name| self.save(model, name));
    }

    /// Writes a model and reads it again. After an error there must be no file.
    fn save(&self, model: &Model, name: &str) -> Result<(), Refusal> {
        self.clear().unwrap();
        let path = self.path("out").join(name);
        if let Err(error) = model.save_with_weights(&path, WeightTransfer::Copy) {
            assert!(self.is_out_empty().unwrap(), "an unfinished file remains");
            return Err(error.into());
        }
        fingerprint(&Model::load(&path)?)
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
    fn clear(&self) -> std::io::Result<()> {
        if !self.is_out_empty()? {
            std::fs::remove_dir_all(self.path("out"))?;
            std::fs::create_dir(self.path("out"))?;
        }
        Ok(())
    }

    fn is_out_empty(&self) -> std::io::Result<bool> {
        Ok(std::fs::read_dir(self.path("out"))?.next().is_none())
    }

    /// Returns everything beside the outputs.
    pub(crate) fn files(&self) -> std::io::Result<Files> {
        let mut files = Files::new();
        add(self.outer.path(), &mut files)?;
        for folder in ["model", "model/sub", "working"] {
            add(&self.path(folder), &mut files)?;
        }
        files.remove(&self.path("out"));
        Ok(files)
    }
}

fn fingerprint(model: &Model) -> Result<(), Refusal> {
    let file = model.file()?;
    for location in file.locations() {
        let _ = file.read(location.as_ref(), 1, Some(8));
    }
    let print = file.fingerprint()?;
    same(model.file()?.fingerprint()?, print);
    Ok(())
}

/// Returns the paths that differ.
pub(crate) fn changed(before: &Files, after: &Files) -> Vec<PathBuf> {
    before.keys().chain(after.keys()).filter(|path| before.get(*path) != after.get(*path)).cloned().collect()
}

fn add(folder: &Path, files: &mut Files) -> std::io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let is = path.symlink_metadata()?;
        files.insert(path, (is.mode(), is.len(), is.ino(), is.mtime(), is.mtime_nsec()));
    }
    Ok(())
}
