//! Reads and writes JSON files.

use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::CommandError;
use crate::{files, json};

/// Reads a file, if there is one. `max_bytes` is the largest size that the file may have.
///
/// # Errors
/// Returns [`CommandError::File`] or [`CommandError::Json`] if the file exists and cannot be read.
pub(crate) fn read<T: DeserializeOwned>(path: &Path, max_bytes: u64) -> Result<Option<T>, CommandError> {
    if !path.exists() {
        return Ok(None);
    }
    let bytes = files::read_bytes(path, max_bytes)?;
    let document = serde_json::from_slice(&bytes);
    document.map(Some).map_err(|cause| CommandError::Json { path: path.to_owned(), cause })
}

/// Writes a document and a line feed into a file.
///
/// # Errors
/// Returns [`CommandError::Json`] for a value that JSON cannot represent, and [`CommandError::File`] if the file
/// cannot be written.
pub(crate) fn write(path: &Path, document: &impl Serialize) -> Result<(), CommandError> {
    let mut text = Vec::new();
    json::write(&mut text, document).map_err(|cause| CommandError::Json { path: path.to_owned(), cause })?;
    text.push(b'\n');
    Ok(files::write_bytes(path, &text, &[])?)
}
