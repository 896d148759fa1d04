//! Evaluates chat templates, which are programs in Jinja.
//!
//! [`evaluate`] limits a template's instructions and the length of its text. It cannot limit the stack and the memory,
//! so it runs in a [process](super::process) that has these limits.

use std::collections::BTreeMap;
use std::io::{self, Write};

use kvscatter_onnx::internal::text::names::beginning;
use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Environment, Error, ErrorKind, Output, State, Value};
use serde::{Deserialize, Serialize};

use super::python_json::tojson;

/// The most instructions of a template. A chat of 1,000 messages takes about 100,000.
const FUEL: u64 = 1_000_000;

/// The longest text that a template may write, which is also that of a prompt.
pub(super) const MAX_TEXT: usize = 16 << 20;

/// The most calls of macros inside each other.
const MAX_DEPTH: usize = 100;

/// The most characters of a problem, which may repeat a text of any length.
const MAX_PROBLEM: usize = 1000;

/// The author of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Role {
    System,
    User,
    Assistant,
}

/// One message of a chat.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub(crate) struct Message {
    pub(crate) role: Role,
    pub(crate) content: String,
}

/// A template, and what it is applied to.
#[derive(Deserialize, Serialize)]
pub(super) struct Request {
    pub(super) source: String,
    /// The special tokens by their names.
    pub(super) special_tokens: BTreeMap<String, String>,
    /// The messages of a chat, or `None` if only the syntax is to be checked.
    pub(super) messages: Option<Vec<Message>>,
}

/// The reason why a template gives no text.
#[derive(Debug, Deserialize, Serialize)]
pub(super) enum Refusal {
    /// It called `raise_exception`.
    Raised { message: String },
    /// It took too many instructions.
    Instructions,
    /// Its text is longer than [`MAX_TEXT`].
    Length,
    /// It cannot be parsed or evaluated.
    Failed { line: usize, problem: String },
}

/// The source of the error that `raise_exception` returns.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Raised(String);

/// Returns the text that a template makes of the messages, or an empty one if there are none to apply it to.
pub(super) fn evaluate(request: &Request) -> Result<String, Refusal> {
    let context = request.messages.as_ref().map(|messages| {
        let tokens = request.special_tokens.iter();
        let mut context: BTreeMap<&str, Value> =
            tokens.map(|(name, token)| (name.as_str(), Value::from(token))).collect();
        context.insert("messages", Value::from_serialize(messages));
        context.insert("tools", Value::from(()));
        context.insert("documents", Value::from(()));
        context.insert("add_generation_prompt", Value::from(true));
        context
    });
    let source = without_tracking(&request.source);
    let text = match context {
        None => environment().template_from_str(&source).map(|_| String::new()),
        Some(context) => render(&source, context),
    };
    text.map_err(|error| Refusal::from_error(&error))
}

impl Refusal {
    fn from_error(error: &Error) -> Self {
        let mut source = std::error::Error::source(error);
        while let Some(cause) = source {
            if let Some(Raised(message)) = cause.downcast_ref() {
                return Self::Raised { message: beginning(message, MAX_PROBLEM) };
            }
            source = cause.source();
        }
        match (error.kind(), error.detail()) {
            (ErrorKind::OutOfFuel, _) => Self::Instructions,
            (ErrorKind::WriteFailure, _) => Self::Length,
            (kind, detail) => {
                let problem = detail.map_or_else(|| kind.to_string(), |detail| format!("{kind}: {detail}"));
                Self::Failed { line: error.line().unwrap_or(1), problem: beginning(&problem, MAX_PROBLEM) }
            }
        }
    }
}

/// Returns an environment in which templates give the same texts as in that of transformers.
fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_trim_blocks(true);
    environment.set_lstrip_blocks(true);
    environment.set_fuel(Some(FUEL));
    environment.set_recursion_limit(MAX_DEPTH);
    environment.set_formatter(python_formatter);
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    // In Python, `None` is not iterable.
    environment.add_test("iterable", |value: &Value| !value.is_none() && value.try_iter().is_ok());
    environment.add_filter("tojson", |value: &Value, options: Kwargs| tojson(value, options));
    environment.add_function("raise_exception", |message: String| -> Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, "the chat is refused").with_source(Raised(message)))
    });
    environment.add_function("strftime_now", |format: String| {
        jiff::fmt::strtime::format(format, &jiff::ZonedDateTime::now())
            .map_err(|error| Error::new(ErrorKind::InvalidOperation, format!("strftime_now: {error}")))
    });
    environment
}

/// Writes the words of Python for values that are no text.
fn python_formatter(out: &mut Output<'_>, state: &State<'_, '_>, value: &Value) -> Result<(), Error> {
    let word = match value.kind() {
        ValueKind::None => "None",
        ValueKind::Bool if value.is_true() => "True",
        ValueKind::Bool => "False",
        _ => return minijinja::escape_formatter(out, state, value),
    };
    out.write_str(word).map_err(Error::from)
}

fn render(source: &str, context: BTreeMap<&str, Value>) -> Result<String, Error> {
    let environment = environment();
    let mut text = Bounded(Vec::new());
    environment.template_from_str(source)?.render_captured_to(context, &mut text)?;
    String::from_utf8(text.0).map_err(|error| Error::new(ErrorKind::InvalidOperation, error.to_string()))
}

/// A text that cannot become longer than [`MAX_TEXT`].
struct Bounded(Vec<u8>);

impl Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.len().saturating_add(bytes.len()) > MAX_TEXT {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Replaces the tags `generation` and `endgeneration` by tags that have no effect. In transformers, they mark answers
/// and do not change the text.
fn without_tracking(source: &str) -> String {
    let mut text = String::with_capacity(source.len());
    let mut rest = source;
    while let Some((before, tag)) = rest.split_once("{%") {
        let (tag, after) = tag.split_once("%}").unwrap_or((tag, ""));
        let is_closed = before.len().saturating_add(tag.len()).saturating_add(4) <= rest.len();
        let name = tag.trim_matches(|c: char| c.is_whitespace() || c == '-' || c == '+');
        let tag = match name {
            "generation" => tag.replace(name, "if true"),
            "endgeneration" => tag.replace(name, "endif"),
            _ => tag.to_owned(),
        };
        text.extend([before, "{%", &tag, if is_closed { "%}" } else { "" }]);
        rest = after;
    }
    text + rest
}

#[cfg(test)]
mod tests {
    use super::without_tracking;

    #[test]
    fn tags_that_mark_answers_have_no_effect() {
        for (source, expected) in [
            ("{% generation %}a{% endgeneration %}", "{% if true %}a{% endif %}"),
            ("x{%- generation -%} a {%+ endgeneration %}", "x{%- if true -%} a {%+ endif %}"),
            ("{% if generation %}{% endif %}{%", "{% if generation %}{% endif %}{%"),
            ("{{ 'generation' }}", "{{ 'generation' }}"),
        ] {
            assert_eq!(without_tracking(source), expected);
        }
    }
}
