//! Writes files completely or not at all, and never over an input.

use std::collections::BTreeSet;
use std::path::Path;

use kvscatter_onnx::Tensor;
use kvscatter_onnx::internal::file::{self, Identity, OutputFileKind};

use super::location::Format;
use super::{FileError, Location, Problem, npy, npz, safetensors};

/// Writes named tensors, each to its location. Tensors with the same path become entries of one file.
///
/// If a [`Location`] has no entry name, the entry gets the name of the tensor. Every file is encoded before
/// the first is written.
///
/// # Errors
/// Returns [`FileError`] in these cases:
///
/// - A format cannot store a tensor.
/// - A path leads to one of `inputs`, or two paths lead to one file.
/// - An entry that no output replaces would be lost.
/// - The file system reports an error.
pub(crate) fn write_tensors(
    outputs: &[(Location, &str, &Tensor)],
    inputs: &[&Path],
) -> Result<(), FileError> {
    let mut paths: Vec<&Path> = outputs.iter().map(|(location, ..)| location.path()).collect();
    paths.sort_unstable();
    paths.dedup();
    let mut files: Vec<(&Path, Identity, Vec<u8>)> = Vec::with_capacity(paths.len());
    for path in paths {
        let identity = check_output(path, inputs)?;
        if let Some((other, ..)) = files.iter().find(|(_, known, _)| *known == identity) {
            return Err(FileError::at_path(path, Problem::SameOutput { other: other.to_path_buf() }));
        }
        let entries: Vec<_> = outputs
            .iter()
            .filter(|(location, ..)| location.path() == path)
            .map(|(location, name, tensor)| (location.format(), location.entry().unwrap_or(name), *tensor))
            .collect();
        let encoded =
            distinct(&entries).and_then(|()| keep_entries(path, &entries)).and_then(|()| encode(&entries));
        files.push((path, identity, encoded.map_err(|problem| FileError::at_path(path, problem))?));
    }
    files.iter().try_for_each(|(path, _, bytes)| put(path, bytes))
}

/// Writes one file that is not a tensor file.
///
/// # Errors
/// Returns [`FileError`] if the path leads to one of `inputs`, or if the file system reports an error.
pub(crate) fn write_bytes(path: &Path, bytes: &[u8], inputs: &[&Path]) -> Result<(), FileError> {
    check_output(path, inputs)?;
    put(path, bytes)
}

/// Writes one page or picture. A file of another kind is not replaced.
pub(crate) fn write_page(
    path: &Path,
    text: &str,
    kind: OutputFileKind,
    inputs: &[&Path],
) -> Result<(), FileError> {
    check_page(path, kind, inputs)?;
    put(path, text.as_bytes())
}

/// Checks that a page or picture may be written. The path must not lead to one of `inputs`, or to a file of
/// another kind.
///
/// # Errors
/// Returns [`FileError`] otherwise, or if the file system reports an error.
pub(crate) fn check_page(path: &Path, kind: OutputFileKind, inputs: &[&Path]) -> Result<(), FileError> {
    check_output(path, inputs)?;
    kind.check(path).map_err(|error| FileError::at_path(path, error))
}

/// Checks that a path leads to none of `inputs`, and returns the identity of its file.
///
/// # Errors
/// Returns [`FileError`] otherwise, or if the file system reports an error.
fn check_output(path: &Path, inputs: &[&Path]) -> Result<Identity, FileError> {
    let identity = Identity::from_path(path).map_err(|error| FileError::at_path(path, error))?;
    // An input that no longer exists cannot be overwritten.
    if inputs.iter().any(|input| Identity::from_path(input).is_ok_and(|input| input == identity)) {
        return Err(FileError::at_path(path, Problem::OverInput));
    }
    Ok(identity)
}

fn put(path: &Path, bytes: &[u8]) -> Result<(), FileError> {
    file::write(path, bytes).map_err(|error| FileError::at_path(path, error))
}

/// Checks that no two tensors have one name. The crates that write these files treat this as a mistake of the
/// program.
fn distinct(outputs: &[(Format, &str, &Tensor)]) -> Result<(), Problem> {
    let mut seen = BTreeSet::new();
    match outputs.iter().find(|(format, name, _)| format.has_entries() && !seen.insert(*name)) {
        None => Ok(()),
        Some((_, name, _)) => Err(Problem::DuplicateOutput { entry: (*name).to_owned() }),
    }
}

/// Checks that the file has no entries that no output replaces, because they would be lost.
fn keep_entries(path: &Path, outputs: &[(Format, &str, &Tensor)]) -> Result<(), Problem> {
    let Some((format, ..)) = outputs.first() else { return Ok(()) };
    match std::fs::metadata(path) {
        Ok(meta) if meta.is_file() && meta.len() > 0 => {}
        _ => return Ok(()),
    }
    let mut lost = match format {
        Format::Npz => npz::names(path)?,
        Format::Safetensors => safetensors::names(path)?,
        Format::Npy | Format::Pb => return Ok(()),
    };
    lost.retain(|name| outputs.iter().all(|(_, output, _)| output != name));
    if lost.is_empty() { Ok(()) } else { Err(Problem::LosesEntries { lost }) }
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
