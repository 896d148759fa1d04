//! ONNX Runtime, with and without kvscatter's plugin.

use std::cell::Cell;
use std::path::{Path, PathBuf};

use kvscatter_onnx::Model;
use kvscatter_ort_engine::{OnnxRuntime, locate_plugin};
use kvscatter_session::{Engine, KvSession, LoadOptions, Session, SessionOptions};
use tempfile::TempDir;

/// What was found.
pub(crate) struct Runtimes {
    stock: Result<OnnxRuntime, String>,
    plugin: Result<OnnxRuntime, String>,
    folder: TempDir,
    /// The number of models that were saved in the folder.
    count: Cell<usize>,
}

/// One of the two, and where it saves models.
#[derive(Clone, Copy)]
pub(crate) struct Runtime<'a> {
    engine: &'a OnnxRuntime,
    runtimes: &'a Runtimes,
}

impl Runtimes {
    /// Returns no library.
    #[cfg(test)]
    pub(crate) fn none() -> Self {
        let absent = || Err("it is not loaded".to_owned());
        let folder = tempfile::tempdir().unwrap();
        Self { stock: absent(), plugin: absent(), folder, count: Cell::new(0) }
    }

    /// Loads the library, and the plugin into it. The plugin is used only by models that are loaded with it.
    pub(crate) fn find(library: Option<&Path>, plugin: Option<&Path>) -> Result<Self, String> {
        let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
        let load = || OnnxRuntime::load(library).map_err(|error| error.to_string());
        let stock = load();
        let plugin = locate_plugin(plugin).ok_or_else(|| "the plugin is not found: --plugin PATH".to_owned());
        let plugin =
            plugin.and_then(|plugin| load()?.with_plugin(&plugin).map_err(|error| error.to_string()));
        Ok(Self { stock, plugin, folder, count: Cell::new(0) })
    }

    /// Returns the library without the plugin, or the reason why it is absent.
    pub(crate) fn stock(&self) -> Result<Runtime<'_>, String> {
        self.of(&self.stock)
    }

    /// Returns the library with the plugin, or the reason why it is absent.
    pub(crate) fn plugin(&self) -> Result<Runtime<'_>, String> {
        self.of(&self.plugin)
    }

    fn of<'a>(&'a self, engine: &'a Result<OnnxRuntime, String>) -> Result<Runtime<'a>, String> {
        let engine = engine.as_ref().map_err(Clone::clone)?;
        Ok(Runtime { engine, runtimes: self })
    }

    /// Returns the name and the version of the library.
    pub(crate) fn label(&self) -> String {
        match &self.stock {
            Ok(engine) => format!("{} {}", engine.name(), engine.version()),
            Err(why) => format!("no ONNX Runtime: {why}"),
        }
    }
}

impl Runtime<'_> {
    /// Saves and loads a model.
    pub(crate) fn load(self, model: &Model, threads: usize) -> Result<Box<dyn Session>, String> {
        let path = self.saved(model)?;
        let file = Model::load(&path).and_then(|model| model.file()).map_err(|error| error.to_string())?;
        self.engine.load(&file, LoadOptions { threads: Some(threads) }).map_err(|error| error.to_string())
    }

    /// Saves a model with static caches, and opens it with caches for one sample.
    pub(crate) fn open(self, model: &Model) -> Result<KvSession, String> {
        self.open_for(model, 1)
    }

    /// Opens a session for this number of samples.
    pub(crate) fn open_for(self, model: &Model, batch: usize) -> Result<KvSession, String> {
        let path = self.saved(model)?;
        let options = SessionOptions { batch: Some(batch), ..SessionOptions::default() };
        KvSession::open(self.engine, path, options).map_err(|error| error.to_string())
    }

    fn saved(self, model: &Model) -> Result<PathBuf, String> {
        let count = self.runtimes.count.get();
        self.runtimes.count.set(count + 1);
        let path = self.runtimes.folder.path().join(format!("{count}.onnx"));
        model.save(&path).map_err(|error| error.to_string())?;
        Ok(path)
    }
}
