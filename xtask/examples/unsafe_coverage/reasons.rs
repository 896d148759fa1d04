//! The reasons why lines in unsafe blocks are not executed, from `unexecuted.txt`.

use std::collections::BTreeMap;
use std::error::Error;

use super::File;

/// The reasons, by the file's path below `crates`.
pub(crate) type Reasons = BTreeMap<String, String>;

/// Reads lines of the form `kvscatter/src/file.rs: reason`.
pub(crate) fn read() -> Result<Reasons, Box<dyn Error>> {
    let lines = include_str!("unexecuted.txt").lines().filter(|line| !line.starts_with('#'));
    let parsed =
        lines.map(|line| line.split_once(": ").ok_or_else(|| format!("no reason in {line:?}").into()));
    parsed.map(|pair| pair.map(|(path, reason)| (path.to_owned(), reason.to_owned()))).collect()
}

/// Returns what is wrong with the reasons: a file with unexecuted lines has none, or one has no such lines.
pub(crate) fn faults(files: &[File], reasons: &Reasons) -> Vec<String> {
    let is_incomplete = |file: &&File| file.lines.is_none() || file.executed() < file.count();
    let incomplete: Vec<_> = files.iter().filter(is_incomplete).map(File::name).collect();
    let unexplained = incomplete.iter().filter(|name| !reasons.contains_key(*name));
    let unneeded = reasons.keys().filter(|name| !incomplete.contains(name));
    let unexplained =
        unexplained.map(|name| format!("{name}: unexecuted.txt has no reason for the unexecuted lines"));
    let unneeded =
        unneeded.map(|name| format!("{name}: every line was executed, so unexecuted.txt needs no reason"));
    unexplained.chain(unneeded).collect()
}
