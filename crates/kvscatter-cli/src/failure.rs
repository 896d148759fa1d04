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
        let text = if as_json { self.document() } else { format!("error: {}", one_line(&self.message)) };
        let _ = writeln!(io::stderr(), "{text}");
    }

    /// Returns the JSON object, in one line.
    pub(crate) fn document(&self) -> String {
        let error = joined(json!({"kind": self.kind, "message": self.message}), self.fields.clone());
        json::line(&json!({"error": error}))
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
        let (kind, fields) = match error {
            CommandError::Write(rule) | CommandError::Hinted { rule, .. } => {
                ("operator", broken_rule(&rule.details()))
            }
            CommandError::Onnx(error) | CommandError::NoConvert(error) => of_onnx(error),
            CommandError::Session(error) => of_session(error),
            #[cfg(feature = "certify")]
            CommandError::Certify(error) => of_certify(error),
            #[cfg(feature = "onnxruntime")]
            CommandError::OnnxRuntime(error) => ("engine", named_rule(error.kind())),
            CommandError::File(_) => ("file", Value::Null),
            CommandError::Output(_) => ("output", Value::Null),
            CommandError::ManyCases { count, .. } => ("many-cases", json!({"cases": count})),
            _ => ("input", Value::Null),
        };
        Self { kind, message: error.to_string(), fields }
    }
}

/// The kind of an error, and its fields.
type KindAndFields = (&'static str, Value);

fn of_onnx(error: &kvscatter_onnx::OnnxError) -> KindAndFields {
    match error.cause::<kvscatter::Error>() {
        Some(rule) => ("operator", broken_rule(&rule.details())),
        None if error.cause::<std::io::Error>().is_some() => ("file", Value::Null),
        None => ("model", named_rule(error.kind())),
    }
}

fn of_session(error: &kvscatter_session::SessionError) -> KindAndFields {
    ("session", named_rule(error.kind()))
}

#[cfg(feature = "certify")]
fn of_certify(error: &kvscatter_certify::CertifyError) -> KindAndFields {
    use kvscatter_certify::CertifyError;

    match error {
        CertifyError::InModel { cause, .. } => of_certify(cause),
        CertifyError::Onnx(error) => of_onnx(error),
        CertifyError::Session(error) => of_session(error),
        CertifyError::Io { .. } => ("file", Value::Null),
        _ => ("input", Value::Null),
    }
}

fn named_rule(name: &str) -> Value {
    json!({"rule": name})
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
