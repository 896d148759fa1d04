//! An opened library of ONNX Runtime, which need not be that of an engine.

use std::error::Error as _;
use std::ffi::CStr;
use std::mem;
use std::path::{Path, PathBuf};
use std::ptr::{self, NonNull};
use std::slice;

use ort::sys::{ORT_API_VERSION, OrtApi, OrtApiBase, OrtEnv, OrtLoggingLevel, OrtStatusPtr};

use crate::RuntimeError;
use crate::message::one_line;
use crate::plugin::PROVIDER;

/// Returns `true` if an ONNX Runtime in this process has registered kvscatter's plugin, under any name and by any
/// program.
///
/// The library at this path is loaded, unless it is loaded already, and stays so. Loading a library runs its code, so
/// name only files that you trust. An [`OnnxRuntime`](crate::OnnxRuntime) can still load another library.
///
/// # Errors
/// Returns [`RuntimeError::Unusable`] if the file is not ONNX Runtime's library, or if the library is older than 1.24.
pub fn has_plugin(library: &Path) -> Result<bool, RuntimeError> {
    let library = Library::open(library)?;
    let has_plugin = library.has_provider(PROVIDER);
    mem::forget(library.loaded);
    has_plugin
}

/// A library of ONNX Runtime.
///
/// `ort` can open one too, but it keeps the first one for the whole process, and it panics if the library's function
/// returns no interface.
pub(crate) struct Library {
    path: PathBuf,
    /// The table of the library, which lives as long as `loaded`.
    base: NonNull<OrtApiBase>,
    loaded: libloading::Library,
}

impl Library {
    /// Opens a library, without any effect on the engine of this process.
    pub(crate) fn open(path: &Path) -> Result<Self, RuntimeError> {
        type GetApiBase = unsafe extern "system" fn() -> *const OrtApiBase;
        let unusable = |why: &str| unusable(path, why);
        let no_library = |error: libloading::Error| {
            // The loader's message begins with the path, which our error contains already.
            let message = error.source().map_or_else(|| error.to_string(), ToString::to_string);
            let path = format!("{}: ", path.display());
            unusable(&format!("cannot be loaded: {}", message.strip_prefix(&path).unwrap_or(&message)))
        };
        // SAFETY: Loading a library runs its initialisers, which may be any code. The documentation of the public
        // functions requires that the caller trusts the file.
        let loaded = unsafe { libloading::Library::new(path) }.map_err(no_library)?;
        // SAFETY: Only ONNX Runtime exports this name, as a function of this type.
        let get_base = unsafe { loaded.get::<GetApiBase>(b"OrtGetApiBase\0") }
            .map_err(|_| unusable("is a library, but not ONNX Runtime's: it exports no OrtGetApiBase"))?;
        // SAFETY: The function takes no arguments and may be called at any time.
        let base = unsafe { get_base() };
        let base =
            NonNull::new(base.cast_mut()).ok_or_else(|| unusable("OrtGetApiBase returns no interface"))?;
        Ok(Self { path: path.to_owned(), base, loaded })
    }

    /// Returns the version that the library reports.
    pub(crate) fn version(&self) -> Result<String, RuntimeError> {
        // SAFETY: The function is in ONNX Runtime's table, takes no arguments and may be called at any time.
        let version = unsafe { (self.base().GetVersionString)() };
        if version.is_null() {
            return Err(unusable(&self.path, "it does not tell its version"));
        }
        // SAFETY: `version` is not NULL, so it is a string of the library, which ends in a zero byte and lives as
        // long as the library.
        let version = unsafe { CStr::from_ptr(version) };
        Ok(version.to_string_lossy().into_owned())
    }

    /// Returns `true` if a plugin with an execution provider of this name is registered. The library must stay loaded
    /// after this.
    fn has_provider(&self, name: &str) -> Result<bool, RuntimeError> {
        let api = self.api()?;
        let mut environment: *mut OrtEnv = ptr::null_mut();
        // If this is the first call, another thread may get the environment that this creates. Its log must then have
        // no more than the log of ONNX Runtime GenAI.
        let level = OrtLoggingLevel::ORT_LOGGING_LEVEL_ERROR;
        // SAFETY: The name ends in a zero byte, and `environment` is a place for one pointer. A process has one
        // environment, so this returns that of the other programs, and counts one more owner. It is not released,
        // because ONNX Runtime cannot destroy an environment while another thread creates it again.
        let status = unsafe { (api.CreateEnv)(level, c"kvscatter".as_ptr(), &raw mut environment) };
        self.check(api, status)?;
        self.lists(api, environment, name)
    }

    /// Returns `true` if a device of an environment, which is alive, is of this execution provider.
    fn lists(&self, api: &OrtApi, environment: *const OrtEnv, name: &str) -> Result<bool, RuntimeError> {
        let (mut devices, mut count) = (ptr::null(), 0);
        // SAFETY: The environment is alive, and the other arguments are places for one value each.
        let status = unsafe { (api.GetEpDevices)(environment, &raw mut devices, &raw mut count) };
        self.check(api, status)?;
        if count == 0 {
            return Ok(false);
        }
        // SAFETY: ONNX Runtime returned `count` devices, which belong to the environment.
        let devices = unsafe { slice::from_raw_parts(devices, count) };
        Ok(devices.iter().any(|&device| {
            // SAFETY: The device belongs to the environment, which is alive.
            let provider = unsafe { (api.EpDevice_EpName)(device) };
            // SAFETY: A device has a name, which ends in a zero byte and lives as long as the device.
            let provider = unsafe { CStr::from_ptr(provider) };
            provider.to_bytes() == name.as_bytes()
        }))
    }

    fn base(&self) -> &OrtApiBase {
        // SAFETY: The table lives as long as the library, which `self` keeps loaded.
        unsafe { self.base.as_ref() }
    }

    fn api(&self) -> Result<&OrtApi, RuntimeError> {
        // SAFETY: The function is in ONNX Runtime's table, and returns NULL for a version that it does not know.
        let api = unsafe { (self.base().GetApi)(ORT_API_VERSION) };
        // SAFETY: `api` is NULL, or the library's table of this version, which lives as long as the library.
        unsafe { api.as_ref() }.ok_or_else(|| {
            unusable(
                &self.path,
                &format!("is older than ONNX Runtime 1.{ORT_API_VERSION}, which a plugin needs"),
            )
        })
    }

    /// Returns the message of a call that failed.
    fn check(&self, api: &OrtApi, status: OrtStatusPtr) -> Result<(), RuntimeError> {
        if status.0.is_null() {
            return Ok(());
        }
        // SAFETY: The status is not NULL, so it is one of ONNX Runtime's.
        let message = unsafe { (api.GetErrorMessage)(status.0) };
        // SAFETY: The message of a status ends in a zero byte and lives as long as the status.
        let message = unsafe { CStr::from_ptr(message) };
        let error = unusable(&self.path, &one_line(&message.to_string_lossy()));
        // SAFETY: The status is not NULL, belongs to this call, and is not used after it.
        unsafe { (api.ReleaseStatus)(status.0) };
        Err(error)
    }
}

fn unusable(path: &Path, why: &str) -> RuntimeError {
    RuntimeError::Unusable { path: path.to_owned(), why: why.to_owned() }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::has_plugin;
    use crate::{OnnxRuntime, RuntimeError};

    /// Returns why a file is refused, which does not depend on what is asked.
    fn why_refused(file: &Path) -> String {
        let Err(RuntimeError::Unusable { why, .. }) = OnnxRuntime::load(Some(file)) else { panic!() };
        let Err(RuntimeError::Unusable { why: asked, .. }) = has_plugin(file) else { panic!() };
        assert_eq!(why, asked);
        why
    }

    #[test]
    fn a_file_that_is_no_library_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("libonnxruntime.so");
        std::fs::write(&file, "not a library").unwrap();
        let why = why_refused(&file);
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
        let why = why_refused(libc.as_ref());
        assert!(why.contains("OrtGetApiBase"), "{why}");
    }
}
