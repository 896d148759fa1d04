//! kvscatter's plugin, an execution provider that ONNX Runtime loads from a library.

use std::ffi::CStr;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use ort::AsPointer;
use ort::device::Device;
use ort::environment::Environment;

use crate::RuntimeError;
use crate::message::{lowercase_message, one_line};

/// The name of the execution provider, under which its library is registered too.
pub(crate) const PROVIDER: &str = "KvscatterExecutionProvider";

/// The plugin that an environment has registered.
#[derive(Clone, Debug)]
pub(crate) struct Plugin {
    /// The name and version, such as `kvscatter 0.1.0`.
    pub(crate) label: String,
    pub(crate) library: PathBuf,
}

impl Plugin {
    /// Registers a library, unless the environment has registered it already.
    ///
    /// ONNX Runtime keeps the registration, so this asks for it instead of keeping another record.
    pub(crate) fn register(environment: &Environment, path: &Path) -> Result<Self, RuntimeError> {
        static REGISTRATION: Mutex<()> = Mutex::new(());
        let unusable = |why: String| RuntimeError::PluginUnusable { path: path.to_owned(), why };
        // ONNX Runtime would resolve a relative path against the folder of its library.
        let library = path.canonicalize().map_err(|error| unusable(lowercase_message(&error)))?;
        let _registration = REGISTRATION.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(loaded) = Self::registered(environment) {
            return match loaded.library == library {
                true => Ok(loaded),
                false => Err(RuntimeError::PluginLoaded { path: library, loaded: loaded.library }),
            };
        }
        environment
            .register_ep_library(PROVIDER, &library)
            .map_err(|error| unusable(refusal(&error.to_string())))?;
        Self::registered(environment)
            .ok_or_else(|| unusable(format!("is a plugin, but not kvscatter's: it has no {PROVIDER}")))
    }

    /// Returns the plugin whose devices the environment lists.
    fn registered(environment: &Environment) -> Option<Self> {
        let device = devices(environment, true).next()?;
        let library = PathBuf::from(metadata(&device, c"library_path").unwrap_or_default());
        let version = metadata(&device, c"version").unwrap_or_else(|| "of unknown version".to_owned());
        Some(Self { label: format!("kvscatter {version}"), library })
    }
}

/// Returns ONNX Runtime's message about a library in one line, or what the library is if the message shows it.
fn refusal(message: &str) -> String {
    let missing = message.split_once("undefined symbol: ").map_or("", |(_, symbol)| symbol);
    if missing.trim_start_matches('_').starts_with("Py") {
        "is the module of the Python package, which needs a Python process; build the plugin instead: cargo build \
         --release -p kvscatter-ort-plugin"
            .to_owned()
    } else if missing.starts_with("CreateEpFactories") {
        "is not a plugin: it has no function CreateEpFactories".to_owned()
    } else {
        one_line(message)
    }
}

/// Returns the devices of the execution provider that a session uses before all others: the plugin, or else
/// ONNX Runtime's own kernels.
///
/// A session must name its devices. If it names none, `ort` lets ONNX Runtime choose from all that are
/// registered, and the plugin is one of them after any engine has loaded it.
pub(crate) fn devices(environment: &Environment, with_plugin: bool) -> impl Iterator<Item = Device<'_>> {
    let provider = if with_plugin { PROVIDER } else { "CPUExecutionProvider" };
    environment.devices().filter(move |device| device.ep().is_ok_and(|name| name == provider))
}

/// Returns the options of the plugin's devices. Other devices ignore them.
///
/// The plugin may fuse the nodes of a layer, because sessions of this engine are not saved as optimized models.
pub(crate) fn options() -> [(String, String); 1] {
    [(format!("{PROVIDER}.fusion"), "on".to_owned())]
}

/// Returns what ONNX Runtime knows about a device's plugin under a key.
fn metadata(device: &Device<'_>, key: &CStr) -> Option<String> {
    let api = ort::api();
    // SAFETY: `device` is borrowed from the environment that lists it, and so it is alive.
    let pairs = unsafe { (api.EpDevice_EpMetadata)(device.ptr()) };
    if pairs.is_null() {
        return None;
    }
    // SAFETY: `pairs` is not NULL, so it is a list of the device and lives as long. The key ends in a zero
    // byte.
    let value = unsafe { (api.GetKeyValue)(pairs, key.as_ptr()) };
    if value.is_null() {
        return None;
    }
    // SAFETY: `value` is not NULL, so it is a string of `pairs`, which ends in a zero byte.
    let value = unsafe { CStr::from_ptr(value) };
    Some(value.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::refusal;

    #[test]
    fn other_libraries_are_named_by_what_they_are() {
        let failed =
            |symbol: &str| refusal(&format!("Failed to load library a.so: undefined symbol: {symbol}"));
        assert!(failed("_Py_DecRef").starts_with("is the module of the Python package"));
        assert!(failed("PyErr_GivenExceptionMatches").starts_with("is the module of the Python package"));
        assert_eq!(failed("CreateEpFactories"), "is not a plugin: it has no function CreateEpFactories");
        assert_eq!(refusal("file too short\n"), "file too short");
    }
}
