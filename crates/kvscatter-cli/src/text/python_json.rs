//! Formats JSON as Python's `json.dumps` does.

use std::io;

use minijinja::value::Kwargs;
use minijinja::{Error, ErrorKind, Value};
use serde::Serialize;
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};

/// The filter `tojson` of chat templates. Unlike that of Jinja, it does not escape HTML. `ensure_ascii` and
/// `separators` must have their defaults.
pub(super) fn tojson(value: &Value, options: Kwargs) -> Result<String, Error> {
    let indent: Option<usize> = options.get("indent")?;
    let sort_keys: Option<bool> = options.get("sort_keys")?;
    let ensure_ascii: Option<bool> = options.get("ensure_ascii")?;
    options.assert_all_used()?;
    if ensure_ascii == Some(true) {
        return Err(Error::new(ErrorKind::InvalidOperation, "tojson: ensure_ascii is not supported"));
    }
    let value = if sort_keys == Some(true) { sorted(value)? } else { value.clone() };
    match indent {
        None => written(&value, OneLine),
        Some(indent) if indent <= MAX_INDENT => {
            written(&value, PrettyFormatter::with_indent(" ".repeat(indent).as_bytes()))
        }
        Some(_) => Err(Error::new(ErrorKind::InvalidOperation, "tojson: indent is too large")),
    }
}

/// The most blanks of an indent.
const MAX_INDENT: usize = 16;

fn sorted(value: &Value) -> Result<Value, Error> {
    let mut value = serde_json::to_value(value).map_err(failed)?;
    value.sort_all_objects();
    Ok(Value::from_serialize(value))
}

fn written(value: &Value, formatter: impl Formatter) -> Result<String, Error> {
    let mut bytes = Vec::new();
    value.serialize(&mut Serializer::with_formatter(&mut bytes, formatter)).map_err(failed)?;
    String::from_utf8(bytes).map_err(|error| Error::new(ErrorKind::InvalidOperation, error.to_string()))
}

fn failed(error: serde_json::Error) -> Error {
    Error::new(ErrorKind::InvalidOperation, format!("tojson: {error}"))
}

/// A formatter that writes one line with a blank after each comma and colon.
struct OneLine;

impl Formatter for OneLine {
    fn begin_array_value<W: ?Sized + io::Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + io::Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(b": ")
    }
}
