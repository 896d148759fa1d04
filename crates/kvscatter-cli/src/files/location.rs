//! Where a tensor is: a file, and the entry inside it for formats that hold several.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// A tensor file format, told by the file name's extension.
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

/// `FILE` or `FILE#NAME`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Location {
    path: PathBuf,
    entry: Option<String>,
    format: Format,
}

/// Text that names no tensor file.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum LocationError {
    #[error("'{text}' has no known extension: .npy, .npz, .pb and .safetensors are tensor files")]
    Extension { text: String },
    #[error("'{text}' names an empty entry after '#'")]
    EmptyEntry { text: String },
}

impl Location {
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The entry's name; `None` where the format has no entries or the user left it to the file.
    pub(crate) fn entry(&self) -> Option<&str> {
        self.entry.as_deref()
    }

    pub(crate) fn format(&self) -> Format {
        self.format
    }

    /// The file at this path, if its extension is a tensor file's.
    pub(crate) fn of_path(path: &Path) -> Option<Self> {
        Some(Self { path: path.to_owned(), entry: None, format: Format::of(path)? })
    }
}

impl Format {
    fn of(path: &Path) -> Option<Self> {
        match path.extension()?.to_str()? {
            "npy" => Some(Self::Npy),
            "npz" => Some(Self::Npz),
            "pb" => Some(Self::Pb),
            "safetensors" => Some(Self::Safetensors),
            _ => None,
        }
    }

    fn has_entries(self) -> bool {
        matches!(self, Self::Npz | Self::Safetensors)
    }
}

impl FromStr for Location {
    type Err = LocationError;

    /// The first `#` that follows a file with entries ends the path, so that both `a#b.npy` and
    /// `model.safetensors#layers.0#k` mean what they look like.
    fn from_str(text: &str) -> Result<Self, LocationError> {
        for (at, _) in text.match_indices('#') {
            let (path, entry) = (&text[..at], text[at..].trim_start_matches('#'));
            if let Some(format) = Format::of(Path::new(path)).filter(|format| format.has_entries()) {
                if entry.is_empty() {
                    return Err(LocationError::EmptyEntry { text: text.to_owned() });
                }
                return Ok(Self { path: path.into(), entry: Some(entry.to_owned()), format });
            }
        }
        Self::of_path(Path::new(text)).ok_or_else(|| LocationError::Extension { text: text.to_owned() })
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
            let location: Location = text.parse().unwrap();
            assert_eq!(location.path().to_str(), Some(path), "{text}");
            assert_eq!(location.entry(), entry, "{text}");
            assert_eq!(location.format(), format, "{text}");
            assert_eq!(location.to_string(), text);
        }
    }

    #[test]
    fn other_names_are_refused() {
        for text in ["", "a", "a.onnx", "3,0,5", "a.npy#k"] {
            assert!(matches!(text.parse::<Location>(), Err(LocationError::Extension { .. })), "{text}");
        }
        let empty = "a.npz#".parse::<Location>();
        assert!(matches!(empty, Err(LocationError::EmptyEntry { .. })));
    }
}
