//! Applies chat templates.
//!
//! A template may come from a stranger, so a [process](super::process) with limits of its time, stack and memory
//! evaluates it. It cannot read files, because its environment has no other template.

use std::collections::BTreeMap;

use super::TextError;
use super::jinja::{Message, Refusal, Request};
use super::process::{self, Ended};
use crate::host::Host;

/// A chat template that can be applied.
#[derive(Clone, Debug)]
pub(crate) struct ChatTemplate {
    /// The path of its file.
    place: String,
    source: String,
    special_tokens: BTreeMap<String, String>,
    host: Host,
}

impl ChatTemplate {
    /// Makes a template of its source. `host` evaluates it.
    pub(super) fn new(
        place: String,
        source: String,
        special_tokens: BTreeMap<String, String>,
        host: Host,
    ) -> Self {
        Self { place, source, special_tokens, host }
    }

    /// Checks the syntax.
    ///
    /// # Errors
    /// Returns [`TextError::Template`] if it is not a template, and the errors of the limits.
    pub(crate) fn check(&self) -> Result<(), TextError> {
        self.text(process::evaluate(&self.request(None), &self.host)).map(drop)
    }

    /// Returns the text of a chat and of the beginning of the next answer, as `apply_chat_template` of transformers
    /// writes it with `add_generation_prompt=True`.
    pub(crate) fn apply(&self, messages: &[Message]) -> Result<String, TextError> {
        self.text(process::evaluate(&self.request(Some(messages.to_vec())), &self.host))
    }

    /// Applies the template in this process.
    #[cfg(test)]
    pub(super) fn apply_here(&self, messages: &[Message]) -> Result<String, TextError> {
        self.text(Ok(super::jinja::evaluate(&self.request(Some(messages.to_vec())))))
    }

    fn request(&self, messages: Option<Vec<Message>>) -> Request {
        Request { source: self.source.clone(), special_tokens: self.special_tokens.clone(), messages }
    }

    /// Returns the text, or the error that names the template's file.
    fn text(&self, evaluated: Result<Result<String, Refusal>, Ended>) -> Result<String, TextError> {
        let place = self.place.clone();
        let refusal = match evaluated {
            Ok(Ok(text)) => return Ok(text),
            Ok(Err(refusal)) => refusal,
            Err(ended) => return Err(TextError::TemplateEnded { place, ended }),
        };
        Err(match refusal {
            Refusal::Raised { message } => TextError::TemplateRefuses { place, message },
            Refusal::Instructions => TextError::TemplateEnded { place, ended: Ended::Time },
            Refusal::Length => TextError::TemplateLong { place },
            Refusal::Failed { line, problem } => TextError::Template { place, line, problem },
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::path::Path;

    use serde::Deserialize;

    use super::ChatTemplate;
    use crate::host::Host;
    use crate::text::{Message, Role};

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

    fn template(source: &str) -> ChatTemplate {
        let tokens = [("bos_token", "<s>"), ("eos_token", "</s>")];
        let tokens = tokens.map(|(name, token)| (name.to_owned(), token.to_owned()));
        ChatTemplate::new("t.jinja".to_owned(), source.to_owned(), BTreeMap::from(tokens), Host::Program)
    }

    fn hello() -> Vec<Message> {
        vec![Message { role: Role::User, content: "Hello".to_owned() }]
    }

    #[test]
    fn texts_are_those_of_transformers() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/text/templates.json");
        let Cases { chats, cases } = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        for Case { name, template: source, texts } in cases {
            let template = template(&source);
            for (chat, expected) in chats.iter().zip(&texts) {
                let text = template.apply_here(chat);
                assert_eq!(text.as_ref().ok(), expected.as_ref(), "{name}: {text:?}");
            }
        }
    }

    #[test]
    fn failures_are_one_line() {
        for (source, expected) in [
            (
                "\n{{ messages",
                "t.jinja, line 2: the chat template fails: syntax error: unexpected end of input, expected end of variable block",
            ),
            ("{{ raise_exception('no system') }}", "t.jinja: the chat template refuses this chat: no system"),
            (
                "{% macro refuse() %}{{ raise_exception('only tools') }}{% endmacro %}{{ refuse() }}",
                "t.jinja: the chat template refuses this chat: only tools",
            ),
            (
                "{{ raise_exceptionX('x') }}",
                "t.jinja, line 1: the chat template fails: unknown function: raise_exceptionX is unknown",
            ),
            (
                "{{ messages | join(raise_exception('a' * 2000)) }}",
                "t.jinja: the chat template refuses this chat: aaa",
            ),
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
            let error = template(source).apply_here(&hello()).unwrap_err().to_string();
            assert!(error.starts_with(expected) && !error.contains('\n'), "{source}: {error}");
        }
        assert!(template("{{ 'a' }}").apply_here(&[]).is_ok());
    }

    #[test]
    fn the_date_is_formatted_as_python_does() {
        let year = template("{{ strftime_now('%Y') }}").apply_here(&hello()).unwrap();
        assert!(year.parse::<u32>().is_ok_and(|year| year >= 2026), "{year}");
        let date = template("{{ strftime_now('%d %b %Y, %A %H:%M') }}").apply_here(&hello()).unwrap();
        assert_eq!(date.split(' ').count(), 5, "{date}");
    }
}
