//! Writes JSON that is safe to print in a terminal.

use std::fmt::Write as _;
use std::io::Write;

use kvscatter_onnx::internal::text::names::misleads;
use serde::Serialize;
use serde_json::Value;

/// Writes a document. Characters that move a terminal's cursor or reverse text are written as `\u`
/// escapes, so a parser reads the same text.
pub(crate) fn write(mut to: impl Write, document: &impl Serialize) -> serde_json::Result<()> {
    let text = serde_json::to_string_pretty(document)?;
    to.write_all(escaped(&text).as_bytes()).map_err(serde_json::Error::io)
}

/// Returns a document as one line, with the same escapes as [`write`].
pub(crate) fn line(document: &Value) -> String {
    escaped(&document.to_string())
}

/// Returns an object with the fields of two.
pub(crate) fn joined(mut first: Value, second: Value) -> Value {
    if let (Value::Object(fields), Value::Object(more)) = (&mut first, second) {
        fields.extend(more);
    }
    first
}

/// Removes those of the named fields that are `null`.
pub(crate) fn without_null(mut document: Value, optional: &[&str]) -> Value {
    if let Value::Object(fields) = &mut document {
        fields.retain(|name, value| !value.is_null() || !optional.contains(&name.as_str()));
    }
    document
}

/// Escapes the text of strings. `serde_json` has already escaped the control characters that JSON forbids, so a line
/// feed here is between two values.
fn escaped(json: &str) -> String {
    let mut escaped = String::with_capacity(json.len());
    for c in json.chars() {
        if c == '\n' || !misleads(c) {
            escaped.push(c);
            continue;
        }
        for unit in c.encode_utf16(&mut [0; 2]) {
            // Writing to a string cannot fail.
            let _ = write!(escaped, "\\u{unit:04x}");
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::{line, write};

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
        assert_eq!(line(&document), document.to_string());
        assert_eq!(written(&"k\u{9b}\u{202e}y\u{7f}"), r#""k\u009b\u202ey\u007f""#);
    }
}
