//! Writing files whole or not at all.

use std::io::Write;
use std::path::Path;

use kvscatter_onnx::Tensor;

use super::location::Format;
use super::{Error, Location, Problem, npy, npz, safetensors};

/// Writes named tensors, each to its place; those with the same path become entries of one file.
///
/// An entry without a name in its [`Location`] takes the tensor's. Every file is encoded before the first is
/// written.
///
/// # Errors
/// [`Error`] if a format cannot hold a tensor, a path is one of `inputs`, or the file system says no.
pub(crate) fn write_tensors(outputs: &[(Location, &str, &Tensor)], inputs: &[&Path]) -> Result<(), Error> {
    let mut paths: Vec<&Path> = outputs.iter().map(|(location, ..)| location.path()).collect();
    paths.sort_unstable();
    paths.dedup();
    let mut files = Vec::with_capacity(paths.len());
    for path in paths {
        if inputs.iter().any(|input| is_same_file(path, input)) {
            return Err(Error::at_path(path, Problem::OverInput));
        }
        let entries: Vec<_> = outputs
            .iter()
            .filter(|(location, ..)| location.path() == path)
            .map(|(location, name, tensor)| (location.format(), location.entry().unwrap_or(name), *tensor))
            .collect();
        let bytes = encode(&entries).map_err(|problem| Error::at_path(path, problem))?;
        files.push((path, bytes));
    }
    files.iter().try_for_each(|(path, bytes)| write_bytes(path, bytes))
}

/// Replaces a file in one step: no reader sees half of it, and no failure leaves half of it.
///
/// # Errors
/// [`Error`] if the file system says no.
pub(crate) fn write_bytes(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    let write = || {
        let folder = match path.parent() {
            Some(folder) if folder != Path::new("") => folder,
            _ => Path::new("."),
        };
        let mut file = new_file_in(folder)?;
        file.write_all(bytes)?;
        file.persist(path).map_err(|error| error.error)?;
        Ok(())
    };
    write().map_err(|error: std::io::Error| Error::at_path(path, error))
}

fn encode(entries: &[(Format, &str, &Tensor)]) -> Result<Vec<u8>, Problem> {
    let named: Vec<_> = entries.iter().map(|&(_, name, tensor)| (name, tensor)).collect();
    match entries {
        [(Format::Npy, _, tensor)] => npy::encode(tensor),
        [(Format::Pb, name, tensor)] => Ok(kvscatter_onnx::write_tensor_pb(name, tensor)?),
        [(Format::Npz, ..), ..] => npz::encode(&named),
        [(Format::Safetensors, ..), ..] => safetensors::encode(&named),
        _ => Err(Problem::OneTensor),
    }
}

fn is_same_file(output: &Path, input: &Path) -> bool {
    // An output that does not exist yet is no input.
    same_file::is_same_file(output, input).unwrap_or(false)
}

#[cfg(unix)]
fn new_file_in(folder: &Path) -> std::io::Result<tempfile::NamedTempFile> {
    use std::os::unix::fs::PermissionsExt;
    // As any new file, less the umask; a temporary file alone would be private.
    let permissions = std::fs::Permissions::from_mode(0o666);
    tempfile::Builder::new().permissions(permissions).tempfile_in(folder)
}

#[cfg(not(unix))]
fn new_file_in(folder: &Path) -> std::io::Result<tempfile::NamedTempFile> {
    tempfile::NamedTempFile::new_in(folder)
}
