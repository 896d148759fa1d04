//! `tolerance.json`: the tolerance that the outputs of a test directory are compared with.

use std::path::Path;

use kvscatter_onnx::internal::test_dir::TOLERANCE;

use crate::compare::Tolerance;
use crate::error::CommandError;
use crate::json_file;

/// The largest size of the file. A larger file is not a `tolerance.json`.
const MAX_BYTES: u64 = 1 << 16;

/// Reads the file in this folder, if there is one.
///
/// # Errors
/// * Returns the errors of [`json_file::read`].
/// * Returns [`CommandError::Tolerance`] for a negative tolerance.
pub(crate) fn read(folder: &Path) -> Result<Option<Tolerance>, CommandError> {
    let path = folder.join(TOLERANCE);
    match json_file::read(&path, MAX_BYTES)? {
        Some(Tolerance { rtol, atol }) if !(rtol >= 0.0 && atol >= 0.0) => {
            Err(CommandError::Tolerance { path })
        }
        tolerance => Ok(tolerance),
    }
}

/// Writes the file into this folder.
pub(crate) fn write(folder: &Path, tolerance: &Tolerance) -> Result<(), CommandError> {
    json_file::write(&folder.join(TOLERANCE), tolerance)
}
