//! ONNX Runtime as an engine. The library is found in an installed Python package and loaded at run time.
//!
//! The library parses the model's file itself, so choose a library that you trust with untrusted models. A
//! model can run code only through custom operators, which this engine never registers.

#![warn(missing_debug_implementations)]
#![deny(unsafe_code, reason = "only calls to the library need any")]

#[expect(unsafe_code, reason = "the library's interface is C")]
mod assignment;
#[expect(unsafe_code, reason = "the library's interface is C and takes pointers to our tensors")]
mod binding;
mod element;
mod error;
#[expect(unsafe_code, reason = "a library's functions are called by their names")]
mod library;
mod locate;
#[expect(unsafe_code, reason = "the library's tensors are pointers")]
mod memory;
mod message;
#[expect(unsafe_code, reason = "the library's interface is C")]
mod plugin;
mod session;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use ort::environment::Environment;

use kvscatter_onnx::{ModelFile, RuntimeVersion};
use kvscatter_session::{Engine, LoadOptions, Session, engine_label};

use library::Library;
use plugin::Plugin;

pub use error::RuntimeError;
pub use library::has_plugin;
pub use locate::{library_of_environment, locate, locate_plugin, plugin_of_environment};

/// The loaded library.
pub struct OnnxRuntime {
    environment: Environment,
    version: String,
    library: PathBuf,
    plugin: Option<Plugin>,
}

/// The library of this process. It cannot be unloaded, and a process cannot load a second one.
static LOADED: Mutex<Option<(PathBuf, Environment)>> = Mutex::new(None);

impl OnnxRuntime {
    /// Finds the library with [`locate`] and loads it.
    ///
    /// Loading a library runs its code, so name only files that you trust.
    ///
    /// # Errors
    /// - Returns [`RuntimeError::Missing`] if no library is found.
    /// - Returns [`RuntimeError::Unusable`] if the given path does not contain ONNX Runtime's library.
    /// - Returns [`RuntimeError::TooOld`] if the library is older than [`RuntimeVersion::WITH_SCATTER`].
    /// - Returns [`RuntimeError::Loaded`] if this process has already loaded another library.
    pub fn load(named: Option<&Path>) -> Result<Self, RuntimeError> {
        Self::load_library(locate(named)?).map_err(|error| {
            match (error, named.filter(|path| path.is_file())) {
                // The error contains the path that the caller named, not the path that it resolves to.
                (RuntimeError::Unusable { why, .. }, Some(named)) => {
                    RuntimeError::Unusable { path: named.to_owned(), why }
                }
                (error, _) => error,
            }
        })
    }

    /// Loads kvscatter's plugin, which sessions of this engine then use. The library is called
    /// `libkvscatter_ort_plugin.so`, and [`locate_plugin`] finds it.
    ///
    /// A process loads the plugin once and keeps it loaded. Loading a library runs its code, so name only
    /// files that you trust.
    ///
    /// # Errors
    /// - Returns [`RuntimeError::PluginUnusable`] if the file is not a plugin, or if the plugin refuses this
    ///   version of ONNX Runtime.
    /// - Returns [`RuntimeError::PluginLoaded`] if this process has already loaded another plugin.
    pub fn with_plugin(self, library: &Path) -> Result<Self, RuntimeError> {
        let plugin = Plugin::register(&self.environment, library)?;
        Ok(Self { plugin: Some(plugin), ..self })
    }

    /// Returns the path of the library file that was loaded.
    #[must_use]
    pub fn library(&self) -> &Path {
        &self.library
    }

    fn load_library(library: PathBuf) -> Result<Self, RuntimeError> {
        let version = Library::open(&library)?.version()?;
        if !version.parse().is_ok_and(|version: RuntimeVersion| version >= RuntimeVersion::WITH_SCATTER) {
            return Err(RuntimeError::TooOld { path: library, version });
        }
        let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
        let environment = match &*loaded {
            Some((path, environment)) if *path == library => environment.clone(),
            Some((path, _)) => {
                return Err(RuntimeError::Loaded { path: library, loaded: path.clone() });
            }
            None => {
                let unusable = |why: String| RuntimeError::Unusable { path: library.clone(), why };
                let environment = ort::init_from(&library)
                    .map_err(|error| unusable(error.to_string()))?
                    .with_telemetry(false)
                    // The library also returns its errors, so its log would repeat them.
                    .with_logger(Arc::new(|_, _, _, _, _| {}))
                    .build()
                    .map_err(|error| unusable(error.to_string()))?;
                *loaded = Some((library.clone(), environment.clone()));
                environment
            }
        };
        Ok(Self { environment, version, library, plugin: None })
    }
}

impl fmt::Debug for OnnxRuntime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OnnxRuntime")
            .field("version", &self.version)
            .field("library", &self.library)
            .field("plugin", &self.plugin)
            .finish_non_exhaustive()
    }
}

impl Engine for OnnxRuntime {
    fn name(&self) -> &'static str {
        "ONNX Runtime"
    }

    fn version(&self) -> &str {
        &self.version
    }

    fn device(&self) -> &'static str {
        "CPU"
    }

    fn plugin(&self) -> Option<&str> {
        self.plugin.as_ref().map(|plugin| plugin.label.as_str())
    }

    fn load(
        &self,
        model: &ModelFile,
        options: LoadOptions,
    ) -> Result<Box<dyn Session>, kvscatter_session::SessionError> {
        let engine = engine_label(self.name(), self.version(), self.plugin());
        let with_plugin = self.plugin.is_some();
        let version = self.version.parse().unwrap_or(RuntimeVersion::WITH_SCATTER);
        let session = session::OrtSession::load(
            &self.environment,
            model.path(),
            options,
            with_plugin,
            version,
            engine,
        )?;
        Ok(Box::new(session))
    }
}
