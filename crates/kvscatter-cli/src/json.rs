//! Writes JSON that is safe to print in a terminal.

use std::io::{self, Write};

use kvscatter_onnx::text::names::misleads;
use serde::Serialize;
use serde_json::ser::{CompactFormatter, Formatter, PrettyFormatter, Serializer};

/// Writes a document. Characters that move a terminal's cursor or reverse text are written as `\u`
/// escapes, so a parser reads the same text.
///
/// # Errors
/// Returns the errors of the writer, and an error for a value that JSON cannot represent.
pub(crate) fn write(to: impl Write, document: &impl Serialize) -> serde_json::Result<()> {
    document.serialize(&mut Serializer::with_formatter(to, Escaping(PrettyFormatter::new())))
}

/// Writes a document in one line, with the same escapes as [`write`].
///
/// # Errors
/// Returns the errors of [`write`].
pub(crate) fn write_line(to: impl Write, document: &impl Serialize) -> serde_json::Result<()> {
    document.serialize(&mut Serializer::with_formatter(to, Escaping(CompactFormatter)))
}

/// A formatter that escapes the text of strings, and otherwise formats as the formatter `F`.
struct Escaping<F>(F);

impl<F: Formatter> Formatter for Escaping<F> {
    /// `serde_json` has already escaped the other control characters, quotes and backslashes, as JSON
    /// requires.
    fn write_string_fragment<W: ?Sized + Write>(&mut self, writer: &mut W, fragment: &str) -> io::Result<()> {
        let mut rest = fragment;
        while let Some((at, c)) = rest.char_indices().find(|&(_, c)| misleads(c)) {
            let (plain, after) = rest.split_at(at);
            writer.write_all(plain.as_bytes())?;
            for unit in c.encode_utf16(&mut [0; 2]) {
                write!(writer, "\\u{unit:04x}")?;
            }
            rest = after.get(c.len_utf8()..).unwrap_or_default();
        }
        writer.write_all(rest.as_bytes())
    }

    fn begin_array<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.begin_array(writer)
    }

    fn end_array<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.end_array(writer)
    }

    fn begin_array_value<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        self.0.begin_array_value(writer, first)
    }

    fn end_array_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.end_array_value(writer)
    }

    fn begin_object<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.begin_object(writer)
    }

    fn end_object<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.end_object(writer)
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        self.0.begin_object_key(writer, first)
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.begin_object_value(writer)
    }

    fn end_object_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.end_object_value(writer)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::{write, write_line};

    fn written(document: &impl serde::Serialize) -> String {
        let mut bytes = Vec::new();
        write(&mut bytes, document).unwrap();
        String::from_utf8(bytes).unwrap()
    }

    /// Writes every character, in a value and in a key.
    #[test]
    fn no_character_misleads_and_none_is_lost() {
        let all: Vec<char> = ('\0'..=char::MAX).collect();
        for chunk in all.chunks(1 << 14) {
            let text: String = chunk.iter().collect();
            let document = BTreeMap::from([(text.clone(), [text])]);
            let json = written(&document);
            let hidden = |c: char| {
                c != '\n' && c.is_control()
                    || "\u{61c}\u{200e}\u{200f}\u{2028}\u{2029}".contains(c)
                    || ('\u{202a}'..='\u{202e}').contains(&c)
                    || ('\u{2066}'..='\u{2069}').contains(&c)
            };
            assert!(!json.contains(hidden));
            let read: BTreeMap<String, [String; 1]> = serde_json::from_str(&json).unwrap();
            assert_eq!(read, document);
        }
    }

    #[test]
    fn other_text_is_as_serde_json_writes_it() {
        let document = serde_json::json!({"κ\"\\\n": [1, {"b": []}, {}, "键\u{1f600}"], "c": null});
        assert_eq!(written(&document), serde_json::to_string_pretty(&document).unwrap());
        let mut line = Vec::new();
        write_line(&mut line, &document).unwrap();
        assert_eq!(String::from_utf8(line).unwrap(), document.to_string());
        assert_eq!(written(&"k\u{9b}\u{202e}y\u{7f}"), r#""k\u009b\u202ey\u007f""#);
    }
}
