//! Finds ONNX Runtime's library by a path, by an environment variable, or in the package of the active
//! Python. Finds kvscatter's plugin by a path, by an environment variable, or beside the running program.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::RuntimeError;
use crate::message::lowercase_message;

/// The environment variables that name the library or its folder. The first one that is set is used.
const VARIABLES: [&str; 2] = ["KVSCATTER_ORT_LIB", "ORT_DYLIB_PATH"];

/// The environment variable that names the plugin.
const PLUGIN_VARIABLE: &str = "KVSCATTER_ORT_PLUGIN";

/// The name, instead of a path, that chooses no plugin.
const NO_PLUGIN: &str = "none";

/// A program that prints the folder of the package. It does not import the package, because an import takes a
/// second and may print text. The empty entry of `sys.path` is the current folder, from which no library is
/// loaded.
const PRINT_PACKAGE_FOLDER: &str = "import sys; \
    sys.path[:] = filter(None, sys.path); \
    import importlib.util; \
    spec = importlib.util.find_spec('onnxruntime'); \
    print(spec.submodule_search_locations[0] if spec else '')";

/// Finds the library and returns its path.
///
/// The first of these that is given is used:
///
/// 1. the path `named`, which is a file, or the folder of a wheel or of a Python installation;
/// 2. the path in `KVSCATTER_ORT_LIB` or `ORT_DYLIB_PATH`;
/// 3. the package of the active Python: the one in `VIRTUAL_ENV`, or `python3`.
///
/// # Errors
/// - Returns [`RuntimeError::Unusable`] if the given path has no library.
/// - Returns [`RuntimeError::Missing`], with the searched paths, if no path is given and Python does not have
///   the package.
pub fn locate(named: Option<&Path>) -> Result<PathBuf, RuntimeError> {
    if let Some(path) = named {
        return library_at(path);
    }
    if let Some(path) = library_of_environment() {
        return library_at(&path);
    }
    let mut tried = VARIABLES.map(|variable| format!("{variable} (not set)")).to_vec();
    for python in interpreters() {
        match package_folder(&python) {
            Ok(package) => match library_in(&package) {
                Some(library) => return Ok(library),
                None => tried.push(format!("{} (no library in {})", python.display(), package.display())),
            },
            Err(why) => tried.push(format!("{} ({why})", python.display())),
        }
    }
    Err(RuntimeError::Missing { tried })
}

/// Returns the path in `KVSCATTER_ORT_LIB` or `ORT_DYLIB_PATH`, which [`locate`] uses without a named path.
#[must_use]
pub fn library_of_environment() -> Option<PathBuf> {
    VARIABLES.into_iter().find_map(path_in)
}

/// Returns the path in `KVSCATTER_ORT_PLUGIN`, which [`locate_plugin`] uses without a named path.
#[must_use]
pub fn plugin_of_environment() -> Option<PathBuf> {
    path_in(PLUGIN_VARIABLE)
}

/// Finds the plugin and returns its path, or `None` if there is none.
///
/// The first of these that is given is used:
///
/// 1. the path `named`;
/// 2. the path in `KVSCATTER_ORT_PLUGIN`;
/// 3. the library `libkvscatter_ort_plugin.so` (`.dylib`, or `kvscatter_ort_plugin.dll`) in the folder of the running
///    program, or in the folder `lib` beside that folder.
///
/// A path that is given need not exist, and [`OnnxRuntime::with_plugin`](crate::OnnxRuntime::with_plugin) then
/// returns an error. The path `none` chooses no plugin.
#[must_use]
pub fn locate_plugin(named: Option<&Path>) -> Option<PathBuf> {
    match named.map(Path::to_owned).or_else(plugin_of_environment) {
        Some(path) => Some(path).filter(|path| path.as_os_str() != NO_PLUGIN),
        None => plugin_beside(&env::current_exe().ok()?.canonicalize().ok()?),
    }
}

/// Returns the path in an environment variable, unless it is empty.
fn path_in(variable: &str) -> Option<PathBuf> {
    env::var_os(variable).filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// Returns the plugin in the folder of a program, or in the folder `lib` beside it.
fn plugin_beside(program: &Path) -> Option<PathBuf> {
    let name = format!("{}kvscatter_ort_plugin{}", env::consts::DLL_PREFIX, env::consts::DLL_SUFFIX);
    let folder = program.parent()?;
    let folders = [Some(folder.to_owned()), folder.parent().map(|parent| parent.join("lib"))];
    folders.into_iter().flatten().map(|folder| folder.join(&name)).find(|file| file.is_file())
}

/// Returns the library at a path: the file itself, or a file in this folder.
fn library_at(path: &Path) -> Result<PathBuf, RuntimeError> {
    let unusable = |why: String| RuntimeError::Unusable { path: path.to_owned(), why };
    // The path must be absolute, because the loader searches other folders for relative names.
    let path = path.canonicalize().map_err(|error| unusable(lowercase_message(&error)))?;
    if !path.is_dir() {
        return Ok(path);
    }
    library_in(&path)
        .ok_or_else(|| unusable("no libonnxruntime in it, nor in onnxruntime/capi below it".to_owned()))
}

/// Returns the library in a folder, in its `capi`, or in the packages of a Python installation.
fn library_in(folder: &Path) -> Option<PathBuf> {
    let mut folders = vec![
        folder.to_owned(),
        folder.join("capi"),
        folder.join("onnxruntime/capi"),
        folder.join("Lib/site-packages/onnxruntime/capi"),
    ];
    for lib in children(&folder.join("lib")).filter(|lib| name_starts(lib, "python")) {
        folders.push(lib.join("site-packages/onnxruntime/capi"));
    }
    folders.iter().find_map(|folder| children(folder).find(|file| is_library(file) && file.is_file()))
}

/// Returns the files of a folder, sorted by name, so that the choice does not depend on the file system.
fn children(folder: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    let mut children: Vec<PathBuf> =
        folder.read_dir().into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    children.sort();
    children.into_iter()
}

fn is_library(file: &Path) -> bool {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    match env::consts::OS {
        "windows" => name == "onnxruntime.dll",
        "macos" => name.starts_with("libonnxruntime.") && name.ends_with(".dylib"),
        // The folder also contains libonnxruntime_providers_shared.so and other libraries.
        _ => name == "libonnxruntime.so" || name.starts_with("libonnxruntime.so."),
    }
}

fn name_starts(path: &Path, prefix: &str) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(prefix))
}

/// Returns the interpreters that may have the package. If an environment is active, this is only its
/// interpreter.
fn interpreters() -> Vec<PathBuf> {
    match env::var_os("VIRTUAL_ENV")
        .or_else(|| env::var_os("CONDA_PREFIX"))
        .filter(|folder| !folder.is_empty())
    {
        Some(folder) => vec![interpreter(&folder)],
        None => vec!["python3".into(), "python".into()],
    }
}

fn interpreter(folder: &OsString) -> PathBuf {
    let below = if cfg!(windows) { "Scripts/python.exe" } else { "bin/python" };
    Path::new(folder).join(below)
}

/// Returns the folder of an interpreter's onnxruntime package.
fn package_folder(python: &Path) -> Result<PathBuf, String> {
    let output = Command::new(python)
        // The option -I is not used, because the packages in PYTHONPATH also belong to the active Python.
        .args(["-c", PRINT_PACKAGE_FOLDER])
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()
        .map_err(|error| lowercase_message(&error))?;
    let folder = String::from_utf8_lossy(&output.stdout).trim_end().to_owned();
    match (output.status.success(), folder.is_empty()) {
        (true, false) => Ok(PathBuf::from(folder)),
        (true, true) => Err("has no onnxruntime".to_owned()),
        (false, _) => Err("does not run".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use std::env::consts::{DLL_PREFIX, DLL_SUFFIX};
    use std::path::{Path, PathBuf};

    use super::{library_at, library_in, locate_plugin, plugin_beside};
    use crate::RuntimeError;

    #[cfg(target_os = "linux")]
    #[test]
    fn a_wheels_folder_and_an_environment_lead_to_the_library() {
        let folder = tempfile::tempdir().unwrap();
        let capi = folder.path().join("lib/python3.11/site-packages/onnxruntime/capi");
        std::fs::create_dir_all(&capi).unwrap();
        std::fs::write(capi.join("libonnxruntime_providers_shared.so"), []).unwrap();
        assert_eq!(library_in(folder.path()), None);
        let library = capi.join("libonnxruntime.so.1.31.1");
        std::fs::write(&library, []).unwrap();
        let package = capi.parent().unwrap();
        for given in [folder.path(), package, &capi, package.parent().unwrap()] {
            assert_eq!(library_in(given), Some(library.clone()), "{}", given.display());
        }
        assert_eq!(library_at(&library).unwrap(), library.canonicalize().unwrap());
    }

    #[test]
    fn the_plugin_is_found_beside_a_program() {
        let folder = tempfile::tempdir().unwrap();
        let (bin, lib) = (folder.path().join("bin"), folder.path().join("lib"));
        let name = format!("{DLL_PREFIX}kvscatter_ort_plugin{DLL_SUFFIX}");
        let program = bin.join("kvscatter");
        std::fs::create_dir(&bin).unwrap();
        std::fs::create_dir(&lib).unwrap();
        std::fs::create_dir(bin.join(&name)).unwrap();
        std::fs::write(lib.join("libother.so"), []).unwrap();
        assert_eq!(plugin_beside(&program), None, "a folder and another library");
        std::fs::write(lib.join(&name), []).unwrap();
        assert_eq!(plugin_beside(&program), Some(lib.join(&name)));
        std::fs::remove_dir(bin.join(&name)).unwrap();
        std::fs::write(bin.join(&name), []).unwrap();
        assert_eq!(plugin_beside(&program), Some(bin.join(&name)), "the program's folder is first");
        assert_eq!(plugin_beside(Path::new("/")), None);
    }

    #[test]
    fn a_named_plugin_is_used_as_it_is() {
        assert_eq!(locate_plugin(Some(Path::new("absent.so"))), Some(PathBuf::from("absent.so")));
        assert_eq!(locate_plugin(Some(Path::new("./none"))), Some(PathBuf::from("./none")));
        assert_eq!(locate_plugin(Some(Path::new("none"))), None);
    }

    #[test]
    fn a_named_place_without_one_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        for (path, message) in [
            (folder.path().to_owned(), "no libonnxruntime in it"),
            (folder.path().join("absent"), "no such file"),
        ] {
            let Err(RuntimeError::Unusable { why, .. }) = library_at(&path) else {
                panic!("{}", path.display())
            };
            assert!(why.starts_with(message), "{why}");
        }
    }
}
