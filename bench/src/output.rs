//! Writes the files of a run.

use std::fs;
use std::path::Path;

/// Writes a file and the folders that contain it, and prints its name.
pub(crate) fn write(file: &Path, text: &str) -> Result<(), String> {
    let folder = file.parent().unwrap_or(Path::new("."));
    let done = fs::create_dir_all(folder).and_then(|()| fs::write(file, text));
    done.map_err(|error| format!("{}: {error}", file.display()))?;
    println!("wrote {}", file.display());
    Ok(())
}
