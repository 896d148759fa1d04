//! `tolerance.json`: the tolerance that the outputs of a test directory are compared with.

use std::path::Path;

use kvscatter_onnx::test_dir::TOLERANCE;
use serde::{Deserialize, Serialize};

use crate::compare::Tolerance;
use crate::error::CommandError;
use crate::{files, json_file};

/// The largest size of the file. A larger file is not a `tolerance.json`.
const MAX_BYTES: u64 = 1 << 16;

/// The contents of the file.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CaseTolerance {
    pub(crate) rtol: f64,
    pub(crate) atol: f64,
}

impl CaseTolerance {
    /// Reads the file in this folder, if there is one.
    ///
    /// # Errors
    /// * Returns [`CommandError::File`] or [`CommandError::Json`] if the file exists and cannot be read.
    /// * Returns [`CommandError::Tolerance`] for a negative tolerance.
    pub(crate) fn read(folder: &Path) -> Result<Option<Tolerance>, CommandError> {
        let path = folder.join(TOLERANCE);
        if !path.exists() {
            return Ok(None);
        }
        let bytes = files::read_bytes(&path, MAX_BYTES)?;
        match serde_json::from_slice(&bytes) {
            Ok(Self { rtol, atol }) if rtol >= 0.0 && atol >= 0.0 => Ok(Some(Tolerance { rtol, atol })),
            Ok(_) => Err(CommandError::Tolerance { path }),
            Err(cause) => Err(CommandError::Json { path, cause }),
        }
    }

    /// Writes the file into this folder.
    ///
    /// # Errors
    /// Returns [`CommandError::File`] if the file cannot be written.
    pub(crate) fn write(&self, folder: &Path) -> Result<(), CommandError> {
        json_file::write(&folder.join(TOLERANCE), self)
    }
}
