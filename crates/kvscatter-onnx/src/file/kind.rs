//! Recognises the kind of a file by its first bytes, so that an output never replaces a file of another kind.

use std::io::{self, Read};
use std::path::Path;

use crate::proto::{BYTES, Reader, VARINT};
use crate::{FileError, OnnxError};

/// The kind of an output whose file name does not determine its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputFileKind {
    /// An ONNX model.
    Model,
    /// An HTML page.
    Html,
    /// An SVG picture.
    Svg,
}

/// The number of bytes at the start of a file that are examined.
const BEGINNING: u64 = 64 << 10;

impl OutputFileKind {
    /// Checks that a file of this kind may be written to a path.
    ///
    /// If a regular file already exists there and is not empty, it must begin like a file of this kind.
    ///
    /// # Errors
    /// Returns [`FileError::OtherKind`] if the file has another kind, and [`std::io::Error`] if it cannot be
    /// read.
    pub fn check(self, path: &Path) -> Result<(), OnnxError> {
        match std::fs::metadata(path) {
            Ok(meta) if meta.is_file() && meta.len() > 0 => {}
            Ok(_) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error.into()),
        }
        let (file, size) = super::open(path).map_err(OnnxError::into_root)?;
        let mut bytes = Vec::new();
        file.take(BEGINNING).read_to_end(&mut bytes)?;
        if self.begins(&bytes, size > BEGINNING) {
            Ok(())
        } else {
            Err(FileError::OtherKind { kind: self.name() }.into())
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Model => "ONNX model",
            Self::Html => "HTML page",
            Self::Svg => "SVG picture",
        }
    }

    fn begins(self, bytes: &[u8], has_more: bool) -> bool {
        let text = String::from_utf8_lossy(bytes).trim_start_matches('\u{feff}').trim_start().to_lowercase();
        match self {
            Self::Model => begins_model(bytes, has_more),
            Self::Html => text.starts_with("<!doctype html") || text.starts_with("<html"),
            Self::Svg => {
                let is_xml = text.starts_with("<?xml") || text.starts_with("<!doctype svg");
                text.starts_with("<svg") || (is_xml && text.contains("<svg"))
            }
        }
    }
}

/// Returns `true` if the bytes are fields of a `ModelProto`, up to the graph or to the last of the bytes.
fn begins_model(bytes: &[u8], has_more: bool) -> bool {
    const GRAPH: u32 = 7;
    let mut reader = Reader::new(bytes);
    while !reader.rest().is_empty() {
        let Ok(tag) = reader.tag() else { return false };
        match (tag.number, tag.wire) {
            (GRAPH, BYTES) => return true,
            (1 | 5, VARINT) | (2..=4 | 6 | 8 | 14 | 20 | 25 | 26, BYTES) => {
                if reader.skip(tag).is_err() {
                    return has_more;
                }
            }
            _ => return false,
        }
    }
    has_more
}

#[cfg(test)]
mod tests {
    use super::{FileError, OutputFileKind};

    #[test]
    fn kinds_are_told_apart_by_their_beginnings() {
        let model = include_bytes!("../../../../testdata/onnx-node/test_tensorscatter/model.onnx");
        let files: [(&[u8], Option<OutputFileKind>); 13] = [
            (model, Some(OutputFileKind::Model)),
            (b"<!DOCTYPE html>\n<html>", Some(OutputFileKind::Html)),
            (b"\xef\xbb\xbf <html lang=en>", Some(OutputFileKind::Html)),
            (b"<svg xmlns='http://www.w3.org/2000/svg'/>", Some(OutputFileKind::Svg)),
            (b"<?xml version='1.0'?>\n<!-- a --><svg/>", Some(OutputFileKind::Svg)),
            (b"<?xml version='1.0'?>\n<rss/>", None),
            (b"text", None),
            (b"\x93NUMPY", None),
            (b"PK\x03\x04", None),
            (b"GGUF", None),
            // Tensors of rank 2 and 0.
            (b"\x08\x02\x08\x01\x10\x01", None),
            (b"\x10\x01\x4a\x00", None),
            (b"\x08\x0a\x12", None),
        ];
        for (bytes, kind) in files {
            for asked in [OutputFileKind::Model, OutputFileKind::Html, OutputFileKind::Svg] {
                let text = String::from_utf8_lossy(bytes);
                assert_eq!(asked.begins(bytes, false), kind == Some(asked), "{asked:?}: {text}");
            }
        }
        // The metadata is longer than the examined bytes.
        assert!(OutputFileKind::Model.begins(b"\x08\x0a\x72\xff\xff\xff\x7fkey", true));
    }

    #[test]
    fn absent_and_empty_files_may_be_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("page.html");
        assert!(OutputFileKind::Html.check(&path).is_ok());
        std::fs::write(&path, b"").unwrap();
        assert!(OutputFileKind::Html.check(&path).is_ok());
        std::fs::write(&path, b"notes").unwrap();
        let error = OutputFileKind::Html.check(&path).unwrap_err();
        assert!(matches!(error.cause(), Some(FileError::OtherKind { .. })), "{error}");
        #[cfg(unix)]
        assert!(OutputFileKind::Html.check("/dev/null".as_ref()).is_ok());
    }
}
