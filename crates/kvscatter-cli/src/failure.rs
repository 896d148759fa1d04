//! Prints an error as one line, or with `--json` as one JSON object.

use std::io::{self, Write};

use kvscatter::Argument;
use kvscatter::error::{ErrorDetails, ErrorField};
use serde_json::{Value, json};

use crate::error::CommandError;
use crate::json::{self, joined, without_null};
use crate::output::one_line;
use crate::usage::UsageError;

/// The exit code of every error.
pub(crate) const EXIT_CODE: u8 = 2;

/// The reason why the command stops, in the form in which it is printed.
pub(crate) struct Failure {
    kind: &'static str,
    message: String,
    /// An object with more fields for `--json`.
    fields: Value,
}

impl Failure {
    /// Prints the error on standard error. If standard error is closed, nothing is printed.
    pub(crate) fn print(&self, as_json: bool) {
        let mut stderr = io::stderr();
        if as_json {
            let error = joined(json!({"kind": self.kind, "message": self.message}), self.fields.clone());
            let _ = json::write_line(&mut stderr, &json!({"error": error}));
            let _ = writeln!(stderr);
        } else {
            let _ = writeln!(stderr, "error: {}", one_line(&self.message));
        }
    }

    /// Makes a failure of an error of the operating system about the process itself.
    pub(crate) fn of_system(message: String) -> Self {
        Self { kind: "system", message, fields: Value::Null }
    }
}

impl From<UsageError> for Failure {
    fn from(error: UsageError) -> Self {
        let UsageError { message, argument, value, hint } = error;
        let fields = json!({"argument": argument, "value": value, "hint": hint});
        Self { kind: "usage", message, fields: without_null(fields, &["argument", "value", "hint"]) }
    }
}

impl From<&CommandError> for Failure {
    fn from(error: &CommandError) -> Self {
        let rule = |name: &'static str| json!({"rule": name});
        let (kind, fields) = match error {
            CommandError::Write(rule) | CommandError::Hinted { rule, .. } => {
                ("operator", broken_rule(&rule.details()))
            }
            CommandError::Onnx(error) => match error.cause::<kvscatter::Error>() {
                Some(rule) => ("operator", broken_rule(&rule.details())),
                None if error.cause::<std::io::Error>().is_some() => ("file", Value::Null),
                None => ("model", rule(error.kind())),
            },
            CommandError::Session(error) => ("session", rule(error.kind())),
            CommandError::File(_) => ("file", Value::Null),
            CommandError::Output(_) => ("output", Value::Null),
            CommandError::ManyCases { count, .. } => ("many-cases", json!({"cases": count})),
            _ => ("input", Value::Null),
        };
        Self { kind, message: error.to_string(), fields }
    }
}

/// Returns the fields of a broken rule of an operator: its stable name, the argument, and the numbers that
/// break it.
fn broken_rule(details: &ErrorDetails) -> Value {
    let rule = json!({"rule": details.kind.name(), "argument": details.argument.map(Argument::name)});
    let fields = details.fields().map(|(name, field)| (name.to_owned(), field_value(field)));
    joined(without_null(rule, &["argument"]), Value::Object(fields.collect()))
}

fn field_value(field: ErrorField) -> Value {
    match field {
        ErrorField::Size(size) => size.into(),
        ErrorField::Integer(value) => value.into(),
        ErrorField::Argument(argument) => argument.name().into(),
        ErrorField::Element(element) => element.onnx_name().into(),
        ErrorField::Sizes(sizes) => sizes.into(),
        ErrorField::Elements(elements) => elements.iter().map(|element| element.onnx_name()).collect(),
        _ => Value::Null,
    }
}
