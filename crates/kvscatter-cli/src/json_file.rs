//! Writes JSON files.

use std::path::Path;

use serde::Serialize;

use crate::error::CommandError;
use crate::{files, json};

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
