//! The options `NAME=FILE` and `NAME=N`, which several commands have.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::str::FromStr;

use clap::builder::{OsStringValueParser, TypedValueParser, ValueParser, ValueParserFactory};

use crate::error::CommandError;
use crate::files::{self, Location};
use crate::numbers::integer;

/// The value of an option `NAME=FILE`.
#[derive(Clone, Debug)]
pub(crate) struct NamedFile {
    pub(crate) name: String,
    pub(crate) location: Location,
}

/// The reason why a text is not `NAME=FILE`.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NamedFileError {
    #[error("must be NAME=FILE")]
    Form,
    #[error("the name is not Unicode")]
    NameNotUnicode,
    #[error(transparent)]
    File(#[from] files::LocationError),
}

/// The value of an option `NAME=N`.
#[derive(Clone, Debug)]
pub(crate) struct Dim {
    pub(crate) name: String,
    pub(crate) size: usize,
}

/// Checks that an option does not name anything twice.
///
/// # Errors
/// Returns [`CommandError::Twice`] with the first repeated name.
pub(crate) fn unique<'a>(
    option: &'static str,
    mut names: impl Iterator<Item = &'a String>,
) -> Result<(), CommandError> {
    let mut seen = BTreeSet::new();
    match names.find(|name| !seen.insert(*name)) {
        None => Ok(()),
        Some(name) => Err(CommandError::Twice { option, name: name.clone() }),
    }
}

impl TryFrom<&OsStr> for NamedFile {
    type Error = NamedFileError;

    fn try_from(text: &OsStr) -> Result<Self, NamedFileError> {
        let mut equals = files::positions(text, b'=');
        let (name, file) =
            equals.next().and_then(|at| files::split_at(text, at)).ok_or(NamedFileError::Form)?;
        if name.is_empty() {
            return Err(NamedFileError::Form);
        }
        let name = name.into_string().map_err(|_| NamedFileError::NameNotUnicode)?;
        Ok(Self { name, location: Location::try_from(file.as_os_str())? })
    }
}

impl ValueParserFactory for NamedFile {
    type Parser = ValueParser;

    fn value_parser() -> ValueParser {
        OsStringValueParser::new().try_map(|text: OsString| Self::try_from(text.as_os_str())).into()
    }
}

impl FromStr for Dim {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let named = text.rsplit_once('=').filter(|(name, _)| !name.is_empty());
        let (name, size) = named.ok_or("must be NAME=N")?;
        let size = integer(size).map_err(|problem| format!("'{size}' {problem}"))?;
        Ok(Self { name: name.to_owned(), size })
    }
}
