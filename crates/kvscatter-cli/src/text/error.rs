//! Errors about the files that turn text into tokens.

use std::path::PathBuf;

use super::jinja::MAX_TEXT;
use super::process::Ended;
use crate::output::count;

/// The reason why text cannot be generated with the files beside a model.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TextError {
    #[error(
        "{folder}: contains no tokenizer.json, which turns text into tokens; copy it from the model's source, or give \
         token ids with --prompt-ids"
    )]
    NoTokenizer { folder: String },
    #[error("{}: not a tokenizer: {problem}", .path.display())]
    Tokenizer { path: PathBuf, problem: String },
    #[error("{}: cannot encode this text: {problem}", .path.display())]
    Encode { path: PathBuf, problem: String },
    #[error("{}: cannot decode token {id}: {problem}", .path.display())]
    Decode { path: PathBuf, id: i64, problem: String },
    #[error(
        "{}: has the token {token:?} with id {id}, but the model has {vocabulary} tokens; it belongs to another model",
        .path.display()
    )]
    OtherVocabulary { path: PathBuf, token: String, id: u32, vocabulary: usize },
    #[error("{}: {key} must be a token id or a list of token ids", .path.display())]
    EndToken { path: PathBuf, key: &'static str },
    #[error("{}: the end token {token:?} is not in the tokenizer", .path.display())]
    EndTokenUnknown { path: PathBuf, token: String },
    #[error(
        "{}: {key} is {id}, but the model has {vocabulary} tokens; --eos chooses other end tokens", .path.display()
    )]
    EndTokenBeyond { path: PathBuf, key: &'static str, id: i64, vocabulary: usize },
    #[error("{what}: not UTF-8")]
    NotUtf8 { what: String },
    #[error(
        "{folder}: contains no chat template (chat_template.jinja, or chat_template in tokenizer_config.json); leave out \
         --chat"
    )]
    NoTemplate { folder: String },
    #[error("{}: chat_template has no template \"default\"", .path.display())]
    NoDefaultTemplate { path: PathBuf },
    /// A template that cannot be parsed or evaluated.
    #[error("{place}, line {line}: the chat template fails: {problem}")]
    Template { place: String, line: usize, problem: String },
    /// A template that called `raise_exception`.
    #[error("{place}: the chat template refuses this chat: {message}")]
    TemplateRefuses { place: String, message: String },
    /// A template that exceeds a limit.
    #[error("{place}: the chat template {ended}")]
    TemplateEnded { place: String, ended: Ended },
    #[error("{place}: the chat template writes a text of more than {} MiB, so it was stopped", MAX_TEXT >> 20)]
    TemplateLong { place: String },
    #[error("{what}: is empty")]
    PromptEmpty { what: String },
    #[error(
        "{what} has {}{}, but the cache has room for {capacity}{sized_by}", count(*.tokens, "token"), after(*.prefix)
    )]
    PromptTooLong { what: String, tokens: usize, prefix: usize, capacity: usize, sized_by: &'static str },
}

fn after(prefix: usize) -> String {
    if prefix == 0 { String::new() } else { format!(" after the {prefix} of --prefix") }
}
