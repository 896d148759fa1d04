//! Reads the end tokens, the special tokens and the chat template of a model.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use serde_json::Value;

use super::template::ChatTemplate;
use super::{ModelFiles, TextError};
use crate::error::CommandError;
use crate::host::Host;

/// The special tokens that a chat template can name.
const SPECIAL: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

/// `tokenizer_config.json`, if the model has it.
#[derive(Debug)]
pub(crate) struct Config {
    path: PathBuf,
    content: Value,
}

/// The tokens that end a text, and the file and the key that name them.
#[derive(Debug, PartialEq, Eq)]
struct EndTokens {
    path: PathBuf,
    key: &'static str,
    ids: Vec<i64>,
}

impl Config {
    pub(crate) fn read(files: &ModelFiles) -> Result<Self, CommandError> {
        let (path, content) = files.json("tokenizer_config.json")?.unwrap_or_default();
        Ok(Self { path, content })
    }

    /// Returns a token, which is a string or an object with its content.
    fn token(&self, name: &str) -> Option<&str> {
        self.content.get(name).and_then(text_of)
    }

    /// Returns the special tokens by their names.
    pub(super) fn special_tokens(&self) -> BTreeMap<String, String> {
        SPECIAL.iter().filter_map(|name| Some(((*name).to_owned(), self.token(name)?.to_owned()))).collect()
    }

    /// Returns the tokens that transformers makes special, in addition to those of `tokenizer.json`. In lists without
    /// roles, tokens that `tokenizer.json` has added (`is_added`) stay as they are.
    pub(super) fn all_special_tokens(&self, is_added: impl Fn(&str) -> bool) -> BTreeSet<String> {
        let lists = ["additional_special_tokens", "extra_special_tokens"];
        let listed = lists.iter().filter_map(|name| self.content.get(name)?.as_array()).flatten();
        let listed = listed.filter_map(text_of).filter(|token| !is_added(token));
        let added = self.content.get("added_tokens_decoder").and_then(Value::as_object);
        let added = added.into_iter().flat_map(|added| added.values());
        let added =
            added.filter(|token| token.get("special") == Some(&Value::Bool(true))).filter_map(text_of);
        let named = SPECIAL.iter().filter_map(|name| self.token(name));
        named.chain(listed).chain(added).map(str::to_owned).collect()
    }

    /// Returns the tokens that the configuration puts before and after every text. Returns `None` if it leaves this to
    /// the tokenizer.
    pub(super) fn ends_of_text(&self) -> Option<[Option<&str>; 2]> {
        let adds = |key: &str| self.content.get(key)?.as_bool();
        let [bos, eos] = [adds("add_bos_token"), adds("add_eos_token")];
        if bos.is_none() && eos.is_none() {
            return None;
        }
        let token = |adds, name| if adds == Some(true) { self.token(name) } else { None };
        Some([token(bos, "bos_token"), token(eos, "eos_token")])
    }

    /// Reads the chat template, which `host` evaluates.
    ///
    /// # Errors
    /// Returns [`TextError::NoTemplate`] if there is none, and the errors of the files.
    pub(crate) fn chat_template(
        &self,
        files: &ModelFiles,
        host: &Host,
    ) -> Result<ChatTemplate, CommandError> {
        let (path, source) = match files.text("chat_template.jinja")? {
            Some(file) => file,
            None => (self.path.clone(), self.own_template(files)?.to_owned()),
        };
        Ok(ChatTemplate::new(path.display().to_string(), source, self.special_tokens(), host.clone()))
    }

    fn own_template(&self, files: &ModelFiles) -> Result<&str, TextError> {
        let template = self.content.get("chat_template").unwrap_or(&Value::Null);
        if let Some(named) = template.as_array() {
            let is_default = |named: &&Value| named.get("name").is_some_and(|name| name == "default");
            let default = named.iter().find(is_default).and_then(|named| named.get("template")?.as_str());
            return default.ok_or_else(|| TextError::NoDefaultTemplate { path: self.path.clone() });
        }
        template.as_str().ok_or_else(|| TextError::NoTemplate { folder: files.folder() })
    }

    /// Returns the tokens that end a text: those of `generation_config.json`, else those of `genai_config.json`, else
    /// the end token of the tokenizer. A model may have none. `id_of` is the tokenizer's id of a token.
    ///
    /// # Errors
    /// Returns an error for a value that is not a token, and the errors of the files.
    pub(crate) fn end_tokens(
        &self,
        files: &ModelFiles,
        id_of: impl Fn(&str) -> Option<i64>,
        vocabulary: Option<usize>,
    ) -> Result<Vec<i64>, CommandError> {
        let named = match of_file(files, "generation_config.json", "eos_token_id", "/eos_token_id")? {
            Some(named) => Some(named),
            None => match of_file(files, "genai_config.json", "model.eos_token_id", "/model/eos_token_id")? {
                Some(named) => Some(named),
                None => self.of_tokenizer(id_of)?,
            },
        };
        let Some(EndTokens { path, key, ids }) = named else { return Ok(Vec::new()) };
        let is_beyond = |id: &&i64| match (usize::try_from(**id), vocabulary) {
            (Ok(id), Some(vocabulary)) => id >= vocabulary,
            (Ok(_), None) => false,
            (Err(_), _) => true,
        };
        match (ids.iter().find(is_beyond), vocabulary) {
            (None, _) => Ok(ids),
            (Some(&id), Some(vocabulary)) => {
                Err(TextError::EndTokenBeyond { path, key, id, vocabulary }.into())
            }
            (Some(_), None) => Err(TextError::EndToken { path, key }.into()),
        }
    }

    fn of_tokenizer(&self, id_of: impl Fn(&str) -> Option<i64>) -> Result<Option<EndTokens>, TextError> {
        let Some(token) = self.token("eos_token") else { return Ok(None) };
        match id_of(token) {
            Some(id) => Ok(Some(EndTokens { path: self.path.clone(), key: "eos_token", ids: vec![id] })),
            None => Err(TextError::EndTokenUnknown { path: self.path.clone(), token: token.to_owned() }),
        }
    }
}

fn text_of(token: &Value) -> Option<&str> {
    token.as_str().or_else(|| token.get("content")?.as_str())
}

/// Returns the end tokens in a file. Returns `None` if there is no such file, or if it has no such key.
fn of_file(
    files: &ModelFiles,
    file: &str,
    key: &'static str,
    pointer: &str,
) -> Result<Option<EndTokens>, CommandError> {
    let Some((path, content)) = files.json(file)? else { return Ok(None) };
    let ids = match content.pointer(pointer) {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::Array(ids)) => ids.iter().map(Value::as_i64).collect(),
        Some(id) => id.as_i64().map(|id| vec![id]),
    };
    match ids {
        Some(ids) => Ok(Some(EndTokens { path, key, ids })),
        None => Err(TextError::EndToken { path, key }.into()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use tempfile::TempDir;

    use super::{Config, ModelFiles};
    use crate::host::Host;
    use crate::text::{Message, Role, Tokenizer};

    fn folder(files: &[(&str, Value)]) -> TempDir {
        let folder = TempDir::new().unwrap();
        let end = json!({
            "id": 7, "content": "</s>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
            "special": true
        });
        let tokenizer = json!({
            "added_tokens": [end], "model": {"type": "BPE", "vocab": {"a": 0, "</s>": 7}, "merges": []}
        });
        for (name, content) in [("tokenizer.json", tokenizer)].iter().chain(files) {
            let text = content.as_str().map_or_else(|| content.to_string(), str::to_owned);
            std::fs::write(folder.path().join(name), text).unwrap();
        }
        folder
    }

    fn end_tokens(files: &[(&str, Value)]) -> Result<Vec<i64>, String> {
        let folder = folder(files);
        let files = ModelFiles { folder: folder.path().to_owned() };
        let tokens = || {
            let config = Config::read(&files)?;
            let tokenizer = Tokenizer::read(&files, &config)?;
            config.end_tokens(&files, |token| tokenizer.id(token), Some(8))
        };
        let name = format!("{}/", folder.path().display());
        tokens().map_err(|error| error.to_string().replace(&name, ""))
    }

    #[test]
    fn end_tokens_come_from_the_first_file_that_names_one() {
        let generation = |ids: Value| ("generation_config.json", json!({"eos_token_id": ids}));
        let genai = |ids: Value| ("genai_config.json", json!({"model": {"eos_token_id": ids}}));
        let own = ("tokenizer_config.json", json!({"eos_token": {"content": "</s>", "lstrip": false}}));
        for (files, expected) in [
            (vec![generation(json!([1, 2])), genai(json!(3)), own.clone()], vec![1, 2]),
            (vec![generation(json!(1))], vec![1]),
            (vec![generation(Value::Null), genai(json!(3)), own.clone()], vec![3]),
            (vec![genai(json!([3, 4])), own.clone()], vec![3, 4]),
            (vec![("genai_config.json", json!({})), own], vec![7]),
            (vec![("tokenizer_config.json", json!({"eos_token": "</s>"}))], vec![7]),
            (vec![("tokenizer_config.json", json!({"eos_token": null}))], vec![]),
            (vec![], vec![]),
        ] {
            assert_eq!(end_tokens(&files), Ok(expected), "{files:?}");
        }
        for (files, expected) in [
            (
                generation(json!(8)),
                "generation_config.json: eos_token_id is 8, but the model has 8 tokens; --eos chooses other end tokens",
            ),
            (
                genai(json!([1, -1])),
                "genai_config.json: model.eos_token_id is -1, but the model has 8 tokens; --eos chooses other end tokens",
            ),
            (
                generation(json!("x")),
                "generation_config.json: eos_token_id must be a token id or a list of token ids",
            ),
            (
                ("tokenizer_config.json", json!({"eos_token": "<end>"})),
                "tokenizer_config.json: the end token \"<end>\" is not in the tokenizer",
            ),
            (
                ("generation_config.json", json!("{")),
                "generation_config.json: EOF while parsing an object at line 1 column 1",
            ),
        ] {
            assert_eq!(end_tokens(&[files]), Err(expected.to_owned()));
        }
    }

    #[test]
    fn a_template_comes_from_its_file_or_from_the_configuration() {
        let config = |template: Value| {
            ("tokenizer_config.json", json!({"chat_template": template, "bos_token": "<s>"}))
        };
        let named = |name: &str, template: &str| json!({"name": name, "template": template});
        let jinja = ("chat_template.jinja", json!("file {{ bos_token }}"));
        let text = |files: &[(&str, Value)]| {
            let folder = folder(files);
            let files = ModelFiles { folder: folder.path().to_owned() };
            let hello = Message { role: Role::User, content: "Hello".to_owned() };
            let template =
                Config::read(&files).and_then(|config| config.chat_template(&files, &Host::Program));
            let name = format!("{}/", folder.path().display());
            let text = template.and_then(|template| Ok(template.apply_here(&[hello])?));
            text.map_err(|error| error.to_string().replace(&name, "").replace(&name[..name.len() - 1], "."))
        };
        for (files, expected) in [
            (vec![jinja, config(json!("config"))], "file <s>"),
            (vec![config(json!("config {{ messages[0].content }}"))], "config Hello"),
            (vec![config(json!([named("tool_use", "tools"), named("default", "list")]))], "list"),
        ] {
            assert_eq!(text(&files), Ok(expected.to_owned()), "{files:?}");
        }
        let none = "contains no chat template (chat_template.jinja, or chat_template in tokenizer_config.json); leave out --chat";
        for (files, expected) in [
            (vec![], format!(".: {none}")),
            (vec![config(Value::Null)], format!(".: {none}")),
            (
                vec![config(json!([named("tool_use", "tools")]))],
                "tokenizer_config.json: chat_template has no template \"default\"".to_owned(),
            ),
        ] {
            assert_eq!(text(&files), Err(expected), "{files:?}");
        }
    }
}
