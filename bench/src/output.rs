//! Files that a run writes.

use std::fs;
use std::path::Path;

/// Writes a file, with the folders above it, and prints its name.
pub(crate) fn write(file: &Path, text: &str) -> Result<(), String> {
    let folder = file.parent().unwrap_or(Path::new("."));
    let done = fs::create_dir_all(folder).and_then(|()| fs::write(file, text));
    done.map_err(|error| format!("{}: {error}", file.display()))?;
    println!("wrote {}", file.display());
    Ok(())
}
