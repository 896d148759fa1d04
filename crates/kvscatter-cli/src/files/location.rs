//! The location of a tensor: a file, and an entry in formats with several tensors.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::path::{Path, PathBuf};

use clap::builder::{OsStringValueParser, TypedValueParser, ValueParserFactory};

use super::os;

/// A tensor file format, which the file name's extension determines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// One NumPy array.
    Npy,
    /// A zip archive of NumPy arrays.
    Npz,
    /// One ONNX `TensorProto`.
    Pb,
    /// Named tensors with a JSON header.
    Safetensors,
}

/// A location, written as `FILE` or `FILE#NAME`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Location {
    path: PathBuf,
    entry: Option<String>,
    format: Format,
}

/// The reason why a text does not name a tensor file.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum LocationError {
    #[error("'{text}' has no known extension: must be .npy, .npz, .pb or .safetensors")]
    Extension { text: String },
    #[error("'{text}' names an empty entry after '#'")]
    EmptyEntry { text: String },
    #[error("'{text}' names an entry that is not Unicode")]
    EntryNotUnicode { text: String },
    #[error("'{text}': only .npz and .safetensors files have entries (#NAME)")]
    NoEntries { text: String },
}

impl Location {
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the name of the entry, or `None` if the format has no entries or the user gave no name.
    pub(crate) fn entry(&self) -> Option<&str> {
        self.entry.as_deref()
    }

    pub(crate) fn format(&self) -> Format {
        self.format
    }

    /// Returns the location of the file at this path, or `None` if its extension is not one of a tensor file.
    pub(crate) fn of_path(path: &Path) -> Option<Self> {
        Some(Self { path: path.to_owned(), entry: None, format: Format::from_extension(path)? })
    }
}

impl Format {
    fn from_extension(path: &Path) -> Option<Self> {
        match path.extension()?.to_str()? {
            "npy" => Some(Self::Npy),
            "npz" => Some(Self::Npz),
            "pb" => Some(Self::Pb),
            "safetensors" => Some(Self::Safetensors),
            _ => None,
        }
    }

    pub(super) fn has_entries(self) -> bool {
        matches!(self, Self::Npz | Self::Safetensors)
    }
}

impl TryFrom<&OsStr> for Location {
    type Error = LocationError;

    /// Parses a location. The path ends at the first `#` after a file with entries. Therefore `a#b.npy` is a
    /// path, and `model.safetensors#layers.0#k` names the entry `layers.0#k`.
    fn try_from(text: &OsStr) -> Result<Self, LocationError> {
        let shown = || text.display().to_string();
        for (path, entry) in os::positions(text, b'#').filter_map(|at| os::split_at(text, at)) {
            let path = PathBuf::from(path);
            if let Some(format) = Format::from_extension(&path).filter(|format| format.has_entries()) {
                return match entry.to_str() {
                    None => Err(LocationError::EntryNotUnicode { text: shown() }),
                    Some("") => Err(LocationError::EmptyEntry { text: shown() }),
                    Some(entry) => Ok(Self { path, entry: Some(entry.to_owned()), format }),
                };
            }
        }
        let location = Self::of_path(Path::new(text));
        location.ok_or_else(|| {
            let mut paths = os::positions(text, b'#').filter_map(|at| os::split_at(text, at));
            if paths.any(|(path, _)| Format::from_extension(Path::new(&path)).is_some()) {
                LocationError::NoEntries { text: shown() }
            } else {
                LocationError::Extension { text: shown() }
            }
        })
    }
}

impl ValueParserFactory for Location {
    type Parser = clap::builder::ValueParser;

    fn value_parser() -> Self::Parser {
        let parse = |text: OsString| Self::try_from(text.as_os_str());
        OsStringValueParser::new().try_map(parse).into()
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.path.display())?;
        match &self.entry {
            Some(entry) => write!(f, "#{entry}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use super::{Format, Location, LocationError};

    #[test]
    fn a_hash_splits_only_after_a_file_with_entries() {
        for (text, path, entry, format) in [
            ("a.npy", "a.npy", None, Format::Npy),
            ("a#b.npy", "a#b.npy", None, Format::Npy),
            ("d#1/m.npz#k", "d#1/m.npz", Some("k"), Format::Npz),
            ("m.safetensors", "m.safetensors", None, Format::Safetensors),
            ("m.safetensors#l.0#k", "m.safetensors", Some("l.0#k"), Format::Safetensors),
            ("x/output_0.pb", "x/output_0.pb", None, Format::Pb),
        ] {
            let location = Location::try_from(OsStr::new(text)).unwrap();
            assert_eq!(location.path().to_str(), Some(path), "{text}");
            assert_eq!(location.entry(), entry, "{text}");
            assert_eq!(location.format(), format, "{text}");
            assert_eq!(location.to_string(), text);
        }
    }

    #[test]
    fn other_names_are_refused() {
        let refusal = |text: &str| Location::try_from(OsStr::new(text)).unwrap_err();
        for text in ["", "a", "a.onnx", "3,0,5", "a#k"] {
            assert!(matches!(refusal(text), LocationError::Extension { .. }), "{text}");
        }
        for text in ["a.npy#k", "a.pb#", "a#b.npy#k"] {
            assert!(matches!(refusal(text), LocationError::NoEntries { .. }), "{text}");
        }
        assert!(matches!(refusal("a.npz#"), LocationError::EmptyEntry { .. }));
    }

    #[cfg(unix)]
    #[test]
    fn paths_are_bytes_and_entries_are_text() {
        use std::os::unix::ffi::OsStrExt;
        let location = Location::try_from(OsStr::from_bytes(b"\xff.npz#k")).unwrap();
        assert_eq!(location.path().as_os_str().as_bytes(), b"\xff.npz");
        assert_eq!(location.entry(), Some("k"));
        let entry = Location::try_from(OsStr::from_bytes(b"a.npz#\xff"));
        assert!(matches!(entry, Err(LocationError::EntryNotUnicode { .. })));
    }
}
