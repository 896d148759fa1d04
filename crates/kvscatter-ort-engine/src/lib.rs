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
mod locate;
#[expect(unsafe_code, reason = "the library's tensors are pointers")]
mod memory;
mod message;
#[expect(unsafe_code, reason = "the library's interface is C")]
mod plugin;
mod session;

use std::error::Error as _;
use std::ffi::CStr;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use ort::environment::Environment;

use kvscatter_onnx::{ModelFile, RuntimeVersion};
use kvscatter_session::{Engine, LoadOptions, Session, engine_label};

use plugin::Plugin;

pub use error::RuntimeError;
pub use locate::{locate, locate_plugin};

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
        let version = version_of(&library)?;
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

/// Returns the version that a library reports.
///
/// `ort` can do this too, but it panics if the library's function returns no interface.
#[expect(unsafe_code, reason = "a library's function is called by its name")]
fn version_of(library: &Path) -> Result<String, RuntimeError> {
    type GetApiBase = unsafe extern "system" fn() -> *const ort::sys::OrtApiBase;
    let unusable = |why: &str| RuntimeError::Unusable { path: library.to_owned(), why: why.to_owned() };
    let no_library = |error: libloading::Error| {
        // The loader's message begins with the path, which our error contains already.
        let message = error.source().map_or_else(|| error.to_string(), ToString::to_string);
        let path = format!("{}: ", library.display());
        unusable(&format!("cannot be loaded: {}", message.strip_prefix(&path).unwrap_or(&message)))
    };
    // SAFETY: Loading a library runs its initialisers, which may be any code. The documentation of
    // `OnnxRuntime::load` requires that the caller trusts the file.
    let loaded = unsafe { libloading::Library::new(library) }.map_err(no_library)?;
    // SAFETY: Only ONNX Runtime exports this name, as a function of this type.
    let get_base = unsafe { loaded.get::<GetApiBase>(b"OrtGetApiBase\0") }
        .map_err(|_| unusable("is a library, but not ONNX Runtime's: it exports no OrtGetApiBase"))?;
    // SAFETY: The function takes no arguments and may be called at any time.
    let base = unsafe { get_base() };
    // SAFETY: `base` is NULL, or points to a table that lives as long as the library, which `loaded` keeps.
    let base = unsafe { base.as_ref() }.ok_or_else(|| unusable("OrtGetApiBase returns no interface"))?;
    // SAFETY: The function is in ONNX Runtime's table, takes no arguments and may be called at any time.
    let version = unsafe { (base.GetVersionString)() };
    if version.is_null() {
        return Err(unusable("it does not tell its version"));
    }
    // SAFETY: `version` is not NULL, so it is a string of the library, which ends in a zero byte and lives as
    // long as `loaded`.
    let version = unsafe { CStr::from_ptr(version) };
    Ok(version.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::OnnxRuntime;
    use crate::RuntimeError;

    #[test]
    fn a_file_that_is_no_library_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("libonnxruntime.so");
        std::fs::write(&file, "not a library").unwrap();
        let Err(RuntimeError::Unusable { why, .. }) = OnnxRuntime::load(Some(&file)) else { panic!() };
        assert!(why.starts_with("cannot be loaded: "), "{why}");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn another_library_is_refused() {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let libc = maps
            .lines()
            .filter_map(|line| line.split_whitespace().last())
            .find(|p| p.contains("libc.so"))
            .unwrap();
        let Err(RuntimeError::Unusable { why, .. }) = OnnxRuntime::load(Some(libc.as_ref())) else {
            panic!()
        };
        assert!(why.contains("OrtGetApiBase"), "{why}");
    }
}
