//! Prompts as texts or token ids, from the command line, a file or standard input.

use std::path::{Path, PathBuf};

use clap::Args;
use kvscatter_onnx::internal::text::names::beginning;

use crate::error::CommandError;
use crate::files;
#[cfg(feature = "text")]
use crate::text::TextError;

/// The size limit of a file of prompts and of a turn of a chat. A person or a tokenizer writes far less.
pub(super) const MAX_BYTES: u64 = 1 << 24;

/// The most characters of a word that an error shows, because a whole file may be one word.
const SHOWN: usize = 40;

/// The mark that some editors write at the start of a text in UTF-8.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

#[derive(Debug, Args)]
#[group(required = true, multiple = true)]
pub(super) struct Prompts {
    /// A prompt as text; repeat the option for more samples
    #[arg(long, value_name = "TEXT")]
    prompt: Vec<String>,

    /// A file with one prompt as text; - is standard input
    #[arg(long, value_name = "FILE", allow_hyphen_values = true, conflicts_with = "prompt")]
    prompt_file: Option<PathBuf>,

    /// Apply the model's chat template to each prompt, or read turns from the terminal or standard input
    #[arg(long)]
    chat: bool,

    /// A prompt as token ids; repeat the option for more samples
    #[arg(
        long,
        value_name = "ID,...",
        value_parser = ids,
        allow_hyphen_values = true,
        conflicts_with_all = ["prompt", "prompt_file", "chat", "batch_file"]
    )]
    prompt_ids: Vec<Ids>,

    /// A file with one prompt a line, as ids separated by commas or blanks; # begins a comment, - is standard
    /// input
    #[arg(
        long,
        value_name = "FILE",
        allow_hyphen_values = true,
        conflicts_with_all = ["prompt", "prompt_file", "chat"]
    )]
    batch_file: Option<PathBuf>,
}

/// The ids of one prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Ids(Vec<i64>);

impl Prompts {
    /// Returns whether the prompts are texts and not token ids.
    pub(super) fn are_texts(&self) -> bool {
        self.chat || self.prompt_file.is_some() || !self.prompt.is_empty()
    }

    /// Returns the prompts that are token ids. There is at least one, and none of them is empty.
    pub(super) fn read(&self) -> Result<Vec<Vec<i64>>, CommandError> {
        match &self.batch_file {
            None => Ok(self.prompt_ids.iter().map(|ids| ids.0.clone()).collect()),
            Some(path) if path == Path::new("-") => lines("standard input", &files::read_stdin(MAX_BYTES)?),
            Some(path) => lines(&path.display().to_string(), &files::read_bytes(path, MAX_BYTES)?),
        }
    }
}

#[cfg(feature = "text")]
impl Prompts {
    pub(super) fn is_chat(&self) -> bool {
        self.chat
    }

    /// Returns the prompts that are texts. There is none in a chat that reads its turns.
    ///
    /// # Errors
    /// Returns [`TextError::PromptEmpty`] and [`TextError::NotUtf8`], and the errors of the file.
    pub(super) fn texts(&self) -> Result<Vec<String>, CommandError> {
        let texts = match &self.prompt_file {
            None => self.prompt.clone(),
            Some(path) => vec![self.file(path)?],
        };
        match texts.iter().position(String::is_empty) {
            None => Ok(texts),
            Some(prompt) => Err(TextError::PromptEmpty { what: self.name(prompt) }.into()),
        }
    }

    /// Reads a prompt. A line feed at its end belongs to the file and not to the prompt.
    fn file(&self, path: &Path) -> Result<String, CommandError> {
        let bytes = match path == Path::new("-") {
            true => files::read_stdin(MAX_BYTES)?,
            false => files::read_bytes(path, MAX_BYTES)?,
        };
        let bytes = bytes.strip_prefix(BYTE_ORDER_MARK).unwrap_or(&bytes);
        let text = std::str::from_utf8(bytes).map_err(|_| TextError::NotUtf8 { what: self.name(0) })?;
        let line = text.strip_suffix('\n').map(|line| line.strip_suffix('\r').unwrap_or(line));
        Ok(line.unwrap_or(text).to_owned())
    }

    /// Returns the name of a prompt in errors.
    pub(super) fn name(&self, prompt: usize) -> String {
        match &self.prompt_file {
            Some(path) if path == Path::new("-") => "standard input".to_owned(),
            Some(path) => path.display().to_string(),
            None if self.prompt.is_empty() => "the chat".to_owned(),
            None if self.prompt.len() == 1 => "--prompt".to_owned(),
            None => format!("--prompt number {}", prompt.saturating_add(1)),
        }
    }
}

/// Parses a token id.
pub(super) fn id(text: &str) -> Result<i64, String> {
    match text.parse() {
        Ok(id @ 0..) => Ok(id),
        Ok(_) => Err(format!("'{text}' is not a token id: must be at least 0")),
        Err(_) => Err(format!("'{}' is not a token id", beginning(text, SHOWN))),
    }
}

/// Parses ids that are separated by commas or blanks.
fn ids(text: &str) -> Result<Ids, String> {
    if text.trim().is_empty() {
        return Err("a prompt has at least one token id".to_owned());
    }
    let mut ids = Vec::new();
    for piece in text.split(',') {
        if piece.trim().is_empty() {
            return Err("a token id is missing next to a comma".to_owned());
        }
        for word in piece.split_whitespace() {
            ids.push(id(word)?);
        }
    }
    Ok(Ids(ids))
}

/// Parses a text with one prompt a line.
fn lines(place: &str, bytes: &[u8]) -> Result<Vec<Vec<i64>>, CommandError> {
    let problem =
        |line: usize, problem: String| CommandError::Prompt { place: place.to_owned(), line, problem };
    let bytes = bytes.strip_prefix(BYTE_ORDER_MARK).unwrap_or(bytes);
    let mut prompts = Vec::new();
    for (number, line) in (1_usize..).zip(bytes.split(|byte| *byte == b'\n')) {
        let line = std::str::from_utf8(line).map_err(|_| problem(number, "not UTF-8".to_owned()))?;
        let text = line.split('#').next().unwrap_or_default();
        if !text.trim().is_empty() {
            prompts.push(ids(text).map_err(|error| problem(number, error))?.0);
        }
    }
    if prompts.is_empty() { Err(CommandError::NoPrompts { place: place.to_owned() }) } else { Ok(prompts) }
}

#[cfg(test)]
mod tests {
    use super::{ids, lines};

    #[test]
    fn ids_are_separated_by_commas_or_blanks() {
        for text in ["1,22,3", "1 22 3", " 1, 22 ,3\r", "1\t22, 3"] {
            assert_eq!(ids(text).unwrap().0, [1, 22, 3], "{text:?}");
        }
        for (text, expected) in [
            ("", "at least one"),
            ("1,,2", "missing next to a comma"),
            ("1,2,", "missing next to a comma"),
            ("1,x", "'x' is not a token id"),
            ("1 -2", "must be at least 0"),
            ("9223372036854775808", "is not a token id"),
        ] {
            let error = ids(text).unwrap_err();
            assert!(error.contains(expected), "{text:?}: {error}");
        }
        let long = "x".repeat(1_000_000);
        assert_eq!(ids(&long).unwrap_err(), format!("'{}...' is not a token id", "x".repeat(super::SHOWN)));
    }

    #[test]
    fn a_prompt_a_line() {
        let text = b"# two prompts\n\n1,2,3 # the first\r\n  7\n";
        assert_eq!(lines("f", text).unwrap(), [vec![1, 2, 3], vec![7]]);
        assert_eq!(lines("f", b"\xef\xbb\xbf1,2\r\n").unwrap(), [vec![1, 2]], "a byte order mark");
        for (text, expected) in [
            (&b"1\n2,x\n"[..], "f, line 2: 'x' is not a token id"),
            (b"1\n\xff\n", "f, line 2: not UTF-8"),
            (b"# nothing\n", "f: contains no prompt"),
        ] {
            assert_eq!(lines("f", text).unwrap_err().to_string(), expected);
        }
    }
}
