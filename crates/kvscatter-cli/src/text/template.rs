//! Applies chat templates, which are programs in Jinja.
//!
//! A template may come from a stranger, so it runs in its own thread with limits of its instructions, time and memory.
//! It cannot read files, because the environment has no other template.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Environment, Error, ErrorKind, Output, State, Value};
use serde::Serialize;

use super::TextError;
use super::python_json::tojson;

/// The most instructions of a template. A chat of 1,000 messages takes about 100,000.
const FUEL: u64 = 1_000_000;

/// The longest time that a template may take.
const MAX_TIME: Duration = Duration::from_secs(10);

/// The time between two looks at the memory that a template takes.
const LOOK: Duration = Duration::from_millis(5);

/// The most memory that a template may take. Templates take a few times the size of the chat.
const MAX_MEMORY: u64 = 512 << 20;

/// The longest text that a template may write.
const MAX_TEXT: usize = 64 << 20;

/// The most calls of macros inside each other.
const MAX_DEPTH: usize = 100;

/// The stack of a template's thread. [`FUEL`] allows about 200,000 lists inside each other, and each of them is freed
/// inside the one around it.
const STACK: usize = 256 << 20;

/// The name of the error that `raise_exception` returns, which no other error has.
const RAISED: &str = "raise_exception";

/// The author of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(serde::Deserialize))]
#[serde(rename_all = "lowercase")]
pub(crate) enum Role {
    System,
    User,
    Assistant,
}

/// One message of a chat.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(serde::Deserialize))]
pub(crate) struct Message {
    pub(crate) role: Role,
    pub(crate) content: String,
}

/// A chat template that can be applied.
#[derive(Clone, Debug)]
pub(crate) struct ChatTemplate {
    /// The path of its file.
    place: String,
    source: String,
    special_tokens: BTreeMap<&'static str, String>,
}

impl ChatTemplate {
    /// Checks a template's syntax.
    ///
    /// # Errors
    /// Returns [`TextError::Template`] if it is not a template.
    pub(super) fn new(
        place: String,
        source: String,
        special_tokens: BTreeMap<&'static str, String>,
    ) -> Result<Self, TextError> {
        let template = Self { place, source: without_tracking(&source), special_tokens };
        match environment().template_from_str(&template.source) {
            Ok(_) => Ok(template),
            Err(error) => Err(template.failed(&error)),
        }
    }

    /// Returns the text of a chat and of the beginning of the next answer, as `apply_chat_template` of transformers
    /// writes it with `add_generation_prompt=True`.
    ///
    /// # Errors
    /// Returns an error if the template fails, or takes more time or memory than a template needs.
    pub(crate) fn apply(&self, messages: &[Message]) -> Result<String, TextError> {
        self.apply_within(messages, MAX_TIME)
    }

    fn apply_within(&self, messages: &[Message], most: Duration) -> Result<String, TextError> {
        let mut context: BTreeMap<&str, Value> =
            self.special_tokens.iter().map(|(name, token)| (*name, Value::from(token))).collect();
        context.insert("messages", Value::from_serialize(messages));
        context.insert("tools", Value::from(()));
        context.insert("documents", Value::from(()));
        context.insert("add_generation_prompt", Value::from(true));
        let (source, before) = (self.source.clone(), resident());
        let (sender, receiver) = mpsc::channel();
        let run = move || {
            // A receiver that stopped waiting needs no answer.
            let _ = sender.send(render(&source, context));
        };
        let thread = thread::Builder::new().name("chat template".to_owned()).stack_size(STACK);
        let failed = |error: io::Error| TextError::Template {
            place: self.place.clone(),
            line: 0,
            problem: error.to_string(),
        };
        let _ = thread.spawn(run).map_err(failed)?;
        let started = Instant::now();
        loop {
            match receiver.recv_timeout(LOOK) {
                Ok(Ok(text)) => return Ok(text),
                Ok(Err(error)) => return Err(self.failed(&error)),
                // The command ends with this error, and the thread ends with the command.
                Err(RecvTimeoutError::Timeout) if started.elapsed() > most => {
                    return Err(TextError::TemplateTime { place: self.place.clone() });
                }
                Err(RecvTimeoutError::Timeout) if resident().saturating_sub(before) > MAX_MEMORY => {
                    return Err(self.too_large(MAX_MEMORY));
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(failed(io::Error::other("the thread has ended")));
                }
            }
        }
    }

    fn too_large(&self, limit: u64) -> TextError {
        TextError::TemplateMemory { place: self.place.clone(), limit }
    }

    fn failed(&self, error: &Error) -> TextError {
        let place = self.place.clone();
        match (error.kind(), error.detail()) {
            (ErrorKind::OutOfFuel, _) => TextError::TemplateTime { place },
            (ErrorKind::WriteFailure, _) => self.too_large(u64::try_from(MAX_TEXT).unwrap_or(u64::MAX)),
            (_, Some(detail)) if detail.starts_with(RAISED) => {
                let message = detail.strip_prefix(RAISED).unwrap_or_default().to_owned();
                TextError::TemplateRefuses { place, message }
            }
            (kind, detail) => {
                let problem = detail.map_or_else(|| kind.to_string(), |detail| format!("{kind}: {detail}"));
                TextError::Template { place, line: error.line().unwrap_or(1), problem }
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
        Err(Error::new(ErrorKind::InvalidOperation, format!("{RAISED}{message}")))
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

/// Returns the memory of this process in bytes, or 0 if it is not known.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0).saturating_mul(1024)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::path::Path;
    use std::time::Duration;

    use serde::Deserialize;

    use super::{ChatTemplate, Message, Role, TextError, without_tracking};

    /// The chats and templates of `testdata/text/templates.json`, and the texts that transformers makes.
    #[derive(Deserialize)]
    struct Cases {
        chats: Vec<Vec<Message>>,
        cases: Vec<Case>,
    }

    #[derive(Deserialize)]
    struct Case {
        name: String,
        template: String,
        /// `null` if the template refuses the chat.
        texts: Vec<Option<String>>,
    }

    fn template(source: &str) -> Result<ChatTemplate, TextError> {
        let tokens = [("bos_token", "<s>".to_owned()), ("eos_token", "</s>".to_owned())];
        ChatTemplate::new("t.jinja".to_owned(), source.to_owned(), BTreeMap::from(tokens))
    }

    fn hello() -> Vec<Message> {
        vec![Message { role: Role::User, content: "Hello".to_owned() }]
    }

    #[test]
    fn texts_are_those_of_transformers() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/text/templates.json");
        let Cases { chats, cases } = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        for Case { name, template: source, texts } in cases {
            let template = template(&source).unwrap();
            for (chat, expected) in chats.iter().zip(&texts) {
                let text = template.apply(chat);
                assert_eq!(text.as_ref().ok(), expected.as_ref(), "{name}: {text:?}");
            }
        }
    }

    #[test]
    fn what_fails_is_one_line() {
        for (source, expected) in [
            (
                "\n{{ messages",
                "t.jinja, line 2: the chat template fails: syntax error: unexpected end of input, expected end of variable block",
            ),
            ("{{ raise_exception('no system') }}", "t.jinja: the chat template refuses this chat: no system"),
            (
                "\n{{ search('x') }}",
                "t.jinja, line 2: the chat template fails: unknown function: search is unknown",
            ),
            (
                "{{ messages | rot13 }}",
                "t.jinja, line 1: the chat template fails: unknown filter: filter rot13 is unknown",
            ),
            ("{{ messages[0].x.y }}", "t.jinja, line 1: the chat template fails: undefined value"),
            (
                "{% for tool in tools.items() %}{% endfor %}",
                "t.jinja, line 1: the chat template fails: unknown method: none has no method named items",
            ),
            (
                "{% include '/etc/passwd' %}",
                "t.jinja, line 1: the chat template fails: template not found: tried to include non-existing template \"/etc/passwd\"",
            ),
            (
                "{{ strftime_now('%') }}",
                "t.jinja, line 1: the chat template fails: invalid operation: strftime_now: ",
            ),
        ] {
            let error =
                template(source).and_then(|template| template.apply(&hello())).unwrap_err().to_string();
            assert!(error.starts_with(expected) && !error.contains('\n'), "{source}: {error}");
        }
        assert!(template("{{ 'a' }}").unwrap().apply(&[]).is_ok());
    }

    /// Runs templates that would take hours or all memory.
    #[test]
    fn time_and_memory_are_limited() {
        // A slow machine must not reach the limit of time before the others.
        let slow = Duration::from_secs(600);
        let failed =
            |source: &str| template(source).unwrap().apply_within(&hello(), slow).unwrap_err().to_string();
        let many = |body: &str| {
            let range = "range(100000)";
            format!("{{% for a in {range} %}}{{% for b in {range} %}}{body}{{% endfor %}}{{% endfor %}}")
        };
        let long = "{% set x = 'x' * 900000 %}";
        for (source, expected) in [
            (many(""), "takes too long"),
            (many(&format!("{long}{{{{ x }}}}")), "needs more than 64 MiB"),
            ("{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}".to_owned(), "recursion limit exceeded"),
            (
                many("{% set ns.x = [ns.x] %}").replacen("{%", "{% set ns = namespace(x=0) %}{%", 1),
                "takes too long",
            ),
        ] {
            let error = failed(&source);
            assert!(error.contains(expected), "{source}: {error}");
        }
        if cfg!(target_os = "linux") {
            let doubled = many("{% set ns.x = ns.x ~ ns.x %}");
            let source = format!("{long}{{% set ns = namespace(x=x) %}}{doubled}");
            let error = failed(&source);
            assert!(error.contains("needs more than 512 MiB"), "{error}");
        }
    }

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

    #[test]
    fn the_date_is_formatted_as_python_does() {
        let year = template("{{ strftime_now('%Y') }}").unwrap().apply(&hello()).unwrap();
        assert!(year.parse::<u32>().is_ok_and(|year| year >= 2026), "{year}");
        let date = template("{{ strftime_now('%d %b %Y, %A %H:%M') }}").unwrap().apply(&hello()).unwrap();
        assert_eq!(date.split(' ').count(), 5, "{date}");
    }
}
