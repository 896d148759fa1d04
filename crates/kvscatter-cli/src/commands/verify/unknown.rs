//! Finds folders among the outputs of another implementation that belong to no case.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Returns the folders at or below `out` that neither contain a known folder nor lie in one. Only the topmost
/// folder of each branch is returned. `known` are paths below `out`. Folders that cannot be read are left
/// out, and links are not followed.
pub(super) fn unknown_folders(out: &Path, known: &BTreeSet<PathBuf>) -> Vec<PathBuf> {
    let (mut unknown, mut branches) = (Vec::new(), vec![PathBuf::new()]);
    while let Some(branch) = branches.pop() {
        let Ok(entries) = fs::read_dir(out.join(&branch)) else { continue };
        for entry in entries.flatten().filter(|entry| entry.file_type().is_ok_and(|ty| ty.is_dir())) {
            let below = branch.join(entry.file_name());
            // Descendants of a path follow it in the order of paths.
            match known.range(below.clone()..).next() {
                Some(first) if *first == below => {}
                Some(first) if first.starts_with(&below) => branches.push(below),
                _ => unknown.push(below),
            }
        }
    }
    unknown.sort();
    unknown
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs::create_dir_all;
    use std::path::PathBuf;

    use super::unknown_folders;

    #[test]
    fn the_topmost_folder_of_a_branch_is_unknown() {
        let out = tempfile::tempdir().unwrap();
        for folder in ["a/set_0/x", "a/set_1", "b/deep/er", "c/set_0", "c-1/set_0"] {
            create_dir_all(out.path().join(folder)).unwrap();
        }
        let known: BTreeSet<_> = ["a/set_0", "c/set_0", "d/set_0"].map(PathBuf::from).into();
        assert_eq!(unknown_folders(out.path(), &known), ["a/set_1", "b", "c-1"].map(PathBuf::from));
        assert!(unknown_folders(&out.path().join("none"), &known).is_empty());
    }
}
