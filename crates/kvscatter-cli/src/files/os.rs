//! Splits arguments that need not be Unicode, because file names are bytes on Unix.

use std::ffi::{OsStr, OsString};

/// Returns the text before and after the ASCII character at `at`, or `None` if `at` is out of range.
#[cfg(unix)]
pub(crate) fn split_at(text: &OsStr, at: usize) -> Option<(OsString, OsString)> {
    use std::os::unix::ffi::OsStrExt;
    let (before, rest) = text.as_bytes().split_at_checked(at)?;
    let (_, after) = rest.split_first()?;
    Some((OsStr::from_bytes(before).to_owned(), OsStr::from_bytes(after).to_owned()))
}

/// Returns the text before and after the ASCII character at `at`. Returns `None` if `at` is out of range, or
/// if the text is not Unicode.
#[cfg(not(unix))]
pub(crate) fn split_at(text: &OsStr, at: usize) -> Option<(OsString, OsString)> {
    let text = text.to_str()?;
    Some((text.get(..at)?.into(), text.get(at.checked_add(1)?..)?.into()))
}

/// Returns the positions of an ASCII character.
pub(crate) fn positions(text: &OsStr, ascii: u8) -> impl Iterator<Item = usize> {
    let bytes = text.as_encoded_bytes().iter().enumerate();
    bytes.filter(move |&(_, &byte)| byte == ascii).map(|(at, _)| at)
}
