//! Finds the shared library of ONNX Runtime: in `ORT_DYLIB_PATH`, or in the installed Python wheel.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use ort::environment::Environment;

/// Loads the library.
pub(super) fn load() -> Result<Environment, String> {
    let path = find()?;
    let environment = ort::init_from(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    environment.with_telemetry(false).build().map_err(|error| format!("{}: {error}", path.display()))
}

fn find() -> Result<PathBuf, String> {
    const HINT: &str = "pip install onnxruntime, or set ORT_DYLIB_PATH to its shared library";
    if let Some(path) = env::var_os("ORT_DYLIB_PATH") {
        return Ok(path.into());
    }
    let script =
        "import importlib.util as u; print(u.find_spec('onnxruntime').submodule_search_locations[0])";
    let printed = Command::new("python3").args(["-c", script]).output();
    let package = match printed {
        Ok(output) if output.status.success() => String::from_utf8_lossy(&output.stdout).trim().to_owned(),
        Ok(_) => return Err(format!("python3 has no module onnxruntime: {HINT}")),
        Err(error) => return Err(format!("python3: {error}: {HINT}")),
    };
    let folder = Path::new(&package).join("capi");
    in_folder(&folder).ok_or_else(|| format!("no libonnxruntime in {}: {HINT}", folder.display()))
}

/// Returns the wheel's library, whose name ends with its version.
fn in_folder(folder: &Path) -> Option<PathBuf> {
    let is_library = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("libonnxruntime.") && !name.contains("providers")
    };
    fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path()).find(is_library)
}
