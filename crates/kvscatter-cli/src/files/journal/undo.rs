//! Undoes a write that was interrupted.

use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom, Write};

use serde::Serialize;

use super::format::{Journal, Subject};
use super::rows::MAX_PIECE;
use crate::files::error::JournalProblem;

/// The result of a write that was interrupted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Interrupted {
    /// The old bytes are in the file again.
    Undone,
    /// All new bytes were already in the file.
    Complete,
}

/// Reads a whole journal, compares it with the file and its tensor, and undoes the write unless it is complete.
///
/// `tensor` finds the tensor of the journal in the file. The journal can be of another entry of the file than
/// the one that the command updates.
///
/// # Errors
/// Returns [`JournalProblem`] if the journal is damaged or not of this tensor, or if the file has bytes that
/// the interrupted write has not left there. The file is then unchanged.
pub(super) fn undo(
    journal: &File,
    file: &File,
    inode: u64,
    tensor: impl FnOnce(&Subject) -> Option<Subject>,
) -> Result<Interrupted, JournalProblem> {
    let journal_len = journal.metadata()?.len();
    let open = || {
        let mut journal = journal;
        journal.rewind()?;
        Journal::open(BufReader::with_capacity(MAX_PIECE, journal), journal_len)
    };
    let first = open()?;
    let subject = first.subject;
    if (subject.inode, subject.file_len) != (inode, file.metadata()?.len()) {
        return Err(JournalProblem::OtherFile);
    }
    if tensor(&subject) != Some(subject) {
        return Err(JournalProblem::OtherTensor);
    }
    let mut now = Vec::new();
    let (mut is_old, mut is_new, mut has_changed) = (true, true, false);
    first.for_each_piece(|start, old, new| {
        read_at(file, subject.offset.saturating_add(start), old.len(), &mut now)?;
        is_old &= now == old;
        is_new &= now == new;
        has_changed |= !is_between(&now, old, new);
        Ok(())
    })?;
    // The checksum is right, so the pieces count.
    if has_changed {
        return Err(JournalProblem::Changed);
    }
    if is_old {
        return Ok(Interrupted::Undone);
    }
    if is_new {
        return Ok(Interrupted::Complete);
    }
    open()?.for_each_piece(|start, old, _| {
        let mut file = file;
        file.seek(SeekFrom::Start(subject.offset.saturating_add(start)))?;
        Ok(file.write_all(old)?)
    })?;
    // After a power loss the journal must not be missing while old bytes are.
    file.sync_data()?;
    Ok(Interrupted::Undone)
}

/// Returns whether every nibble is the old or the new one, as an interrupted write leaves them. Two 4-bit rows
/// can share a byte, so a byte can be half new.
fn is_between(now: &[u8], old: &[u8], new: &[u8]) -> bool {
    let nibble = |now: u8, old: u8, new: u8, mask: u8| (now ^ old) & mask == 0 || (now ^ new) & mask == 0;
    now == old
        || now == new
        || now
            .iter()
            .zip(old)
            .zip(new)
            .all(|((&now, &old), &new)| nibble(now, old, new, 0x0f) && nibble(now, old, new, 0xf0))
}

fn read_at(mut file: &File, at: u64, len: usize, bytes: &mut Vec<u8>) -> Result<(), JournalProblem> {
    bytes.resize(len, 0);
    file.seek(SeekFrom::Start(at))?;
    Ok(file.read_exact(bytes)?)
}
