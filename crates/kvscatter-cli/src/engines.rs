//! Opens the engine that `--engine`, `--ort-lib` and `--ort-plugin` name.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use kvscatter_session::{Engine, LoadOptions, engine_label};
use serde::Serialize;

use crate::error::CommandError;
use crate::host::Host;

/// The value of `--engine`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum EngineName {
    /// tract, which needs no installation (cargo feature tract)
    Tract,
    /// ONNX Runtime from an installed Python package (cargo feature onnxruntime)
    Ort,
}

/// The files that ONNX Runtime consists of.
#[derive(Debug, Args)]
pub(crate) struct OrtFiles {
    /// The library of ONNX Runtime, or a folder with its package [default: $KVSCATTER_ORT_LIB, else
    /// $ORT_DYLIB_PATH, else that of the active Python]
    #[arg(long, value_name = "PATH")]
    ort_lib: Option<PathBuf>,

    /// The plugin for ONNX Runtime, or none [default: $KVSCATTER_ORT_PLUGIN, else the one beside this command, if
    /// any]
    #[arg(long, value_name = "PATH|none")]
    ort_plugin: Option<PathBuf>,
}

impl EngineName {
    /// Returns the engine of commands without `--engine`.
    pub(crate) fn default(host: &Host) -> Self {
        match host {
            Host::Program => Self::Tract,
            Host::Python(_) => Self::Ort,
        }
    }
}

impl OrtFiles {
    /// Checks that none of the files is given, because the engine is not ONNX Runtime.
    pub(crate) fn check_unused(&self) -> Result<(), CommandError> {
        let given = [("--ort-lib", &self.ort_lib), ("--ort-plugin", &self.ort_plugin)];
        match given.into_iter().find(|(_, path)| path.is_some()) {
            None => Ok(()),
            Some((option, _)) => Err(CommandError::LibraryUnused { option }),
        }
    }
}

/// Opens an engine. Without options, ONNX Runtime and the plugin are those of the host.
///
/// # Errors
/// - Returns [`CommandError::LibraryUnused`] if a library is given to an engine that does not use one.
/// - Returns [`CommandError::NotBuilt`] if this build of the command does not contain the engine.
/// - Returns an error if the library or the plugin cannot be loaded.
#[cfg_attr(
    not(feature = "onnxruntime"),
    expect(unused_variables, reason = "only ONNX Runtime can be the host's")
)]
pub(crate) fn open(name: EngineName, ort: &OrtFiles, host: &Host) -> Result<Box<dyn Engine>, CommandError> {
    match name {
        #[cfg(feature = "onnxruntime")]
        EngineName::Ort => {
            let of_host = host.python();
            let (library, plugin) = (ort.ort_lib.as_deref(), ort.ort_plugin.as_deref());
            let runtime = kvscatter_ort_engine::OnnxRuntime::load(
                library.or(of_host.and_then(|package| package.ort_library.as_deref())),
            )?;
            Ok(Box::new(
                match kvscatter_ort_engine::locate_plugin(
                    plugin.or(of_host.map(|package| &*package.ort_plugin)),
                ) {
                    Some(plugin) => runtime.with_plugin(&plugin)?,
                    None => runtime,
                },
            ))
        }
        #[cfg(not(feature = "onnxruntime"))]
        EngineName::Ort => {
            Err(CommandError::NotBuilt { what: "the engine ONNX Runtime", feature: "onnxruntime" })
        }
        EngineName::Tract => {
            ort.check_unused()?;
            #[cfg(feature = "tract")]
            return Ok(Box::new(kvscatter_tract::Tract));
            #[cfg(not(feature = "tract"))]
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
    pub(crate) fn new(engine: &dyn Engine) -> Self {
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
