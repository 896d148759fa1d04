//! Text for models of tokens: the tokenizer, the end tokens and the chat template in the files beside a model.
//!
//! The files may come from strangers. Their sizes are limited, and a template gets limited time and memory and no
//! access to files. They may be links to files in other folders, because only their text is used.

mod config;
mod error;
mod jinja;
mod process;
mod python_json;
mod stop;
mod template;
mod tokenizer;

pub(crate) use config::Config;
pub(crate) use error::TextError;
pub(crate) use jinja::{Message, Role};
pub(crate) use process::{ARGUMENT as EVALUATE_TEMPLATE, serve as evaluate_template};
pub(crate) use stop::Stops;
pub(crate) use template::ChatTemplate;
pub(crate) use tokenizer::{TextStream, Tokenizer};

use std::path::PathBuf;

use serde_json::Value;

use crate::error::CommandError;
use crate::{files, json_file};

/// The size limit of a tokenizer. The largest ones have about 35 MB.
const MAX_TOKENIZER: u64 = 1 << 28;

/// The size limit of the other files.
const MAX_CONFIG: u64 = 1 << 24;

/// The folder that contains the files of a model.
#[derive(Debug)]
pub(crate) struct ModelFiles {
    pub(crate) folder: PathBuf,
}

impl ModelFiles {
    /// Returns the path of a file, if it exists.
    fn find(&self, name: &str) -> Option<PathBuf> {
        Some(self.folder.join(name)).filter(|path| path.exists())
    }

    /// Returns the folder as errors about a missing file name it.
    fn folder(&self) -> String {
        self.folder.display().to_string()
    }

    /// Reads a JSON file, if there is one.
    fn json(&self, name: &str) -> Result<Option<(PathBuf, Value)>, CommandError> {
        let Some(path) = self.find(name) else { return Ok(None) };
        Ok(json_file::read(&path, MAX_CONFIG)?.map(|value| (path, value)))
    }

    /// Reads a text file, if there is one.
    fn text(&self, name: &str) -> Result<Option<(PathBuf, String)>, CommandError> {
        let Some(path) = self.find(name) else { return Ok(None) };
        match String::from_utf8(files::read_bytes(&path, MAX_CONFIG)?) {
            Ok(text) => Ok(Some((path, text))),
            Err(_) => Err(TextError::NotUtf8 { what: path.display().to_string() }.into()),
        }
    }
}
