//! The file that remembers the next seed and the calls of every attack.
//!
//! A run replaces the file after every turn, so that a run that is killed loses one turn. Only one run at a time may
//! use it.

use std::collections::BTreeMap;
use std::fs::{self, File, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tempfile::NamedTempFile;
use thiserror::Error;

use crate::tally::Tally;

#[derive(Debug, Error)]
pub(crate) enum StateError {
    #[error("cannot read or write {}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error("{} is damaged, so repair it or delete it to start again at seed 0:\n{source}", path.display())]
    Damaged { path: PathBuf, source: toml::de::Error },
    #[error("another run uses {}", path.display())]
    InUse { path: PathBuf },
}

/// The progress of every attack, and the file that it is in.
#[derive(Debug)]
pub(crate) struct State {
    path: PathBuf,
    /// Locked as long as the state exists.
    _lock: File,
    attacks: BTreeMap<String, Progress>,
}

/// The progress of one attack over all runs.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Progress {
    pub(crate) next_seed: u64,
    pub(crate) accepted: u64,
    pub(crate) refused: u64,
    pub(crate) seconds: f64,
    /// The commit and the time of the last turn.
    pub(crate) commit: String,
    pub(crate) date: String,
}

impl State {
    /// Reads the file. It need not exist.
    pub(crate) fn open(path: &Path) -> Result<Self, StateError> {
        let io = |source| StateError::Io { path: path.to_owned(), source };
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).map_err(io)?;
        }
        let lock = File::create(path.with_extension("lock")).map_err(io)?;
        lock.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => StateError::InUse { path: path.to_owned() },
            TryLockError::Error(source) => io(source),
        })?;
        let text = match fs::read_to_string(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            text => text.map_err(io)?,
        };
        let attacks =
            toml::from_str(&text).map_err(|source| StateError::Damaged { path: path.to_owned(), source })?;
        Ok(Self { path: path.to_owned(), _lock: lock, attacks })
    }

    /// Returns the progress of an attack.
    pub(crate) fn progress(&self, attack: &str) -> Progress {
        self.attacks.get(attack).cloned().unwrap_or_default()
    }

    /// Replaces the progress of an attack, and the file.
    pub(crate) fn save(&mut self, attack: &str, progress: Progress) -> Result<(), StateError> {
        self.attacks.insert(attack.to_owned(), progress);
        self.replace().map_err(|source| StateError::Io { path: self.path.clone(), source })
    }

    fn replace(&self) -> io::Result<()> {
        let text = toml::to_string(&self.attacks).map_err(io::Error::other)?;
        let mut file = NamedTempFile::new_in(self.path.parent().unwrap_or(Path::new(".")))?;
        file.write_all(
            b"# The progress of `cargo xtask soak`. Delete the file to start again at seed 0.\n\n",
        )?;
        file.write_all(text.as_bytes())?;
        file.as_file().sync_all()?;
        file.persist(&self.path)?;
        Ok(())
    }
}

impl Progress {
    /// Adds the calls of a turn.
    pub(crate) fn add(&mut self, calls: Tally, seconds: f64) {
        self.accepted += calls.accepted;
        self.refused += calls.refused;
        self.seconds += seconds;
    }

    pub(crate) fn calls(&self) -> u64 {
        self.accepted + self.refused
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::{Progress, State, StateError};
    use crate::tally::Tally;

    #[test]
    fn a_later_run_continues() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new/state.toml");
        let mut state = State::open(&path).unwrap();
        assert_eq!(state.progress("core"), Progress::default());
        let mut progress = Progress { next_seed: 7, commit: "abc".into(), ..Progress::default() };
        progress.add(Tally { accepted: 3, refused: 2 }, 0.5);
        state.save("core", progress.clone()).unwrap();
        state.save("attention", Progress { next_seed: 1, ..Progress::default() }).unwrap();
        drop(state);
        let state = State::open(&path).unwrap();
        assert_eq!(state.progress("core"), progress);
        assert_eq!((state.progress("core").calls(), state.progress("attention").next_seed), (5, 1));
        let names = fs::read_dir(path.parent().unwrap()).unwrap();
        assert_eq!(names.count(), 2, "only the state and its lock remain");
    }

    #[test]
    fn a_damaged_file_is_an_error_and_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state.toml");
        for damaged in ["[core]\nnext_seed = ", "[core]\nnext_seed = -1", "[core]\nnext_seed = 1\nseeds = 1"]
        {
            fs::write(&path, damaged).unwrap();
            let error = State::open(&path).unwrap_err();
            assert!(matches!(error, StateError::Damaged { .. }), "{error}");
            assert!(error.to_string().contains("delete it to start again"), "{error}");
            assert_eq!(fs::read_to_string(&path).unwrap(), damaged);
        }
    }

    #[test]
    fn two_runs_cannot_share_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state.toml");
        let first = State::open(&path).unwrap();
        assert!(matches!(State::open(&path), Err(StateError::InUse { .. })));
        drop(first);
        assert!(State::open(&path).is_ok());
    }
}
