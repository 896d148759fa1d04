//! Prints an error as one line, or with `--json` as one JSON object.

use std::io::{self, Write};

use kvscatter::error::{ErrorDetails, ErrorField};
use kvscatter_onnx::OnnxError;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::error::CommandError;
use crate::json;
use crate::output::one_line;
use crate::usage::UsageError;

/// The exit code of every error.
pub(crate) const EXIT_CODE: u8 = 2;

/// The reason why the command stops, in the form in which it is printed.
#[derive(Serialize)]
pub(crate) struct Failure {
    kind: &'static str,
    message: String,
    #[serde(flatten)]
    fields: Map<String, Value>,
}

#[derive(Serialize)]
struct FailureDocument<'a> {
    error: &'a Failure,
}

impl Failure {
    /// Prints the error on standard error. If standard error is closed, nothing is printed.
    pub(crate) fn print(&self, as_json: bool) {
        let mut stderr = io::stderr();
        if as_json {
            let _ = json::write_line(&mut stderr, &FailureDocument { error: self });
            let _ = writeln!(stderr);
        } else {
            let _ = writeln!(stderr, "error: {}", one_line(&self.message));
        }
    }

    /// Makes a failure of an error of the operating system about the process itself.
    pub(crate) fn of_system(message: String) -> Self {
        Self { kind: "system", message, fields: Map::new() }
    }
}

impl From<UsageError> for Failure {
    fn from(error: UsageError) -> Self {
        let UsageError { message, argument, value, hint } = error;
        let fields = [("argument", argument), ("value", value), ("hint", hint)];
        let fields = fields.into_iter().filter_map(|(name, field)| Some((name.to_owned(), field?.into())));
        Self { kind: "usage", message, fields: fields.collect() }
    }
}

impl From<&CommandError> for Failure {
    fn from(error: &CommandError) -> Self {
        let (kind, fields) = match error {
            CommandError::Write(rule) | CommandError::Hinted { rule, .. } => {
                ("operator", of_rule(&rule.details()))
            }
            CommandError::Onnx(error) => match error.root() {
                OnnxError::Operator(rule) => ("operator", of_rule(&rule.details())),
                OnnxError::Io(_) => ("file", Map::new()),
                _ => ("model", rule(error.kind())),
            },
            CommandError::Session(error) => ("session", rule(error.kind())),
            CommandError::File(_) => ("file", Map::new()),
            CommandError::Output(_) => ("output", Map::new()),
            CommandError::ManyCases { count, estimate } => {
                let fields = [
                    ("cases", u64::try_from(*count).unwrap_or(u64::MAX)),
                    ("files", estimate.files),
                    ("bytes", estimate.bytes),
                    ("seconds", estimate.time.as_secs()),
                ];
                (
                    "many-cases",
                    fields.map(|(name, number)| (name.to_owned(), number.into())).into_iter().collect(),
                )
            }
            _ => ("input", Map::new()),
        };
        Self { kind, message: error.to_string(), fields }
    }
}

/// Returns a field with the stable name of a rule.
fn rule(name: &'static str) -> Map<String, Value> {
    [("rule".to_owned(), name.into())].into_iter().collect()
}

/// Returns the fields of a broken rule of an operator: its stable name, the argument, and the numbers that
/// break it.
fn of_rule(details: &ErrorDetails) -> Map<String, Value> {
    let rule = rule(details.kind.name());
    let argument = details.argument.map(|argument| ("argument".to_owned(), argument.name().into()));
    let fields = details.fields().map(|(name, field)| (name.to_owned(), of_field(field)));
    rule.into_iter().chain(argument).chain(fields).collect()
}

fn of_field(field: ErrorField) -> Value {
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
