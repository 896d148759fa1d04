//! Opens the engine that `--engine`, `--ort-lib` and `--ort-plugin` name.

use std::num::NonZeroUsize;
use std::path::Path;

use clap::ValueEnum;
use kvscatter_session::{Engine, LoadOptions, engine_label};
use serde::Serialize;

use crate::error::CommandError;

/// The value of `--engine`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum EngineName {
    /// tract, which needs no installation (cargo feature tract)
    Tract,
    /// ONNX Runtime from an installed Python package (cargo feature onnxruntime)
    Ort,
}

/// The files that ONNX Runtime consists of, as the options name them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OrtFiles<'a> {
    /// The value of `--ort-lib`.
    pub(crate) lib: Option<&'a Path>,
    /// The value of `--ort-plugin`.
    pub(crate) plugin: Option<&'a Path>,
}

impl OrtFiles<'_> {
    /// Returns the first of the options that is given.
    fn given(self) -> Option<&'static str> {
        match self {
            Self { lib: Some(_), .. } => Some("--ort-lib"),
            Self { plugin: Some(_), .. } => Some("--ort-plugin"),
            Self { lib: None, plugin: None } => None,
        }
    }
}

/// Opens an engine.
///
/// # Errors
/// - Returns [`CommandError::LibraryUnused`] if a library is given to an engine that does not use one.
/// - Returns [`CommandError::NotBuilt`] if this build of the command does not contain the engine.
/// - Returns an error if the library or the plugin cannot be loaded.
pub(crate) fn open(name: EngineName, ort: OrtFiles<'_>) -> Result<Box<dyn Engine>, CommandError> {
    match (name, ort.given()) {
        (EngineName::Tract, Some(option)) => Err(CommandError::LibraryUnused { option }),
        #[cfg(feature = "onnxruntime")]
        (EngineName::Ort, _) => {
            let runtime = kvscatter_ort_engine::OnnxRuntime::load(ort.lib)?;
            Ok(Box::new(match kvscatter_ort_engine::locate_plugin(ort.plugin) {
                Some(plugin) => runtime.with_plugin(&plugin)?,
                None => runtime,
            }))
        }
        #[cfg(not(feature = "onnxruntime"))]
        (EngineName::Ort, _) => {
            Err(CommandError::NotBuilt { what: "the engine ONNX Runtime", feature: "onnxruntime" })
        }
        #[cfg(feature = "tract")]
        (EngineName::Tract, None) => Ok(Box::new(kvscatter_tract::Tract)),
        #[cfg(not(feature = "tract"))]
        (EngineName::Tract, None) => {
            Err(CommandError::NotBuilt { what: "the engine tract", feature: "tract" })
        }
    }
}

/// The engine that ran a model, as `--json` prints it.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct EngineInfo {
    name: String,
    version: String,
    device: String,
    /// `null` if the engine uses no plugin.
    plugin: Option<String>,
}

impl EngineInfo {
    pub(crate) fn of(engine: &dyn Engine) -> Self {
        Self {
            name: engine.name().to_owned(),
            version: engine.version().to_owned(),
            device: engine.device().to_owned(),
            plugin: engine.plugin().map(str::to_owned),
        }
    }
}

impl std::fmt::Display for EngineInfo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let engine = engine_label(&self.name, &self.version, self.plugin.as_deref());
        write!(f, "{engine} on {}", self.device)
    }
}

/// Parses the number of threads for an engine, from 1 to [`LoadOptions::MAX_THREADS`].
pub(crate) fn threads(text: &str) -> Result<NonZeroUsize, String> {
    text.parse()
        .ok()
        .filter(|threads: &NonZeroUsize| threads.get() <= LoadOptions::MAX_THREADS)
        .ok_or_else(|| format!("must be 1 to {}", LoadOptions::MAX_THREADS))
}
