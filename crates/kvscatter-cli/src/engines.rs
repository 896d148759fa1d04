//! Opens the engine that `--engine` and `--ort-lib` name.

use std::num::NonZeroUsize;
use std::path::Path;

use clap::ValueEnum;
use kvscatter_session::{Engine, LoadOptions};
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

/// Opens an engine. `ort_lib` is the path of ONNX Runtime.
///
/// # Errors
/// - Returns [`CommandError::LibraryUnused`] if a library is given to an engine that does not use one.
/// - Returns [`CommandError::NotBuilt`] if this build of the command does not contain the engine.
/// - Returns an error if the library cannot be loaded.
pub(crate) fn open(name: EngineName, ort_lib: Option<&Path>) -> Result<Box<dyn Engine>, CommandError> {
    match (name, ort_lib) {
        (EngineName::Tract, Some(_)) => Err(CommandError::LibraryUnused),
        #[cfg(feature = "onnxruntime")]
        (EngineName::Ort, library) => Ok(Box::new(kvscatter_onnxruntime::OnnxRuntime::load(library)?)),
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
}

impl EngineInfo {
    pub(crate) fn of(engine: &dyn Engine) -> Self {
        Self {
            name: engine.name().to_owned(),
            version: engine.version().to_owned(),
            device: engine.device().to_owned(),
        }
    }
}

impl std::fmt::Display for EngineInfo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {} on {}", self.name, self.version, self.device)
    }
}

/// Parses the number of threads for an engine, from 1 to [`LoadOptions::MAX_THREADS`].
pub(crate) fn threads(text: &str) -> Result<NonZeroUsize, String> {
    text.parse()
        .ok()
        .filter(|threads: &NonZeroUsize| threads.get() <= LoadOptions::MAX_THREADS)
        .ok_or_else(|| format!("must be 1 to {}", LoadOptions::MAX_THREADS))
}
