//! Reads the JSON files beside a model, which are untrusted.

use std::path::Path;

use serde_json::{Map, Value};

use crate::external::Folder;
use crate::{ExternalError, OnnxError};

/// The largest file beside a model that is read, in bytes.
const LIMIT: u64 = 1 << 20;

pub(crate) type Object = Map<String, Value>;

/// Reads a regular file of a folder, which must contain an object. Returns `None` if it does not exist, and the reason
/// if it cannot be read. The parser limits how deep values may be nested.
pub(crate) fn read(folder: &Path, file: &str) -> Result<Option<Object>, String> {
    read_within(folder, file, LIMIT)
}

/// Reads a file of at most `limit` bytes as [`read`] does.
pub(crate) fn read_within(folder: &Path, file: &str, limit: u64) -> Result<Option<Object>, String> {
    let reason = |error: OnnxError| match error.cause() {
        Some(ExternalError::Escape { .. }) => "it is a link that leads out of the model's folder".to_owned(),
        _ => error.root().to_string(),
    };
    let read = Folder::open(folder).and_then(|folder| folder.read(Path::new(file), limit));
    let Some(bytes) = read.map_err(reason)? else { return Ok(None) };
    match serde_json::from_slice(&bytes) {
        Ok(Value::Object(object)) => Ok(Some(object)),
        Ok(_) => Err("it is not an object".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

/// Returns a number of tokens or layers. `null`, 0 and negative numbers mean that there is none.
pub(crate) fn number(config: &Object, key: &str) -> Result<Option<usize>, String> {
    match config.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(value) if value.as_i64().is_some_and(|number| number <= 0) => Ok(None),
        Some(value) => match value.as_u64().map(usize::try_from) {
            Some(Ok(number)) => Ok(Some(number)),
            _ => Err(wrong(key, value, "a whole number")),
        },
    }
}

/// Returns a flag, or `None` if it is absent or `null`.
pub(crate) fn flag(config: &Object, key: &str) -> Result<Option<bool>, String> {
    match config.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Bool(flag)) => Ok(Some(*flag)),
        Some(other) => Err(wrong(key, other, "true or false")),
    }
}

/// Returns the error about a value of another type. Only numbers are short enough to repeat.
pub(crate) fn wrong(key: &str, value: &Value, expected: &str) -> String {
    let found = match value {
        Value::Number(number) => number.to_string(),
        Value::Bool(flag) => flag.to_string(),
        Value::String(_) => "a string".to_owned(),
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "an object".to_owned(),
        Value::Null => "null".to_owned(),
    };
    format!("{key} is {found}, expected {expected}")
}
