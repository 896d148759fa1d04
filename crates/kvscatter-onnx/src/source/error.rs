//! Errors about folders of models.

use crate::text::names::one_line;

/// The reason why no decoder is taken from a folder.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each variant's message names its fields")]
pub enum FolderError {
    /// Neither the folder nor its folder `onnx` contains a model.
    #[error("contains no .onnx file, and neither do the folders onnx and decoder in it{}", first(.original))]
    NoModel { original: Option<String> },
    /// There are several models, and no file names the one to use.
    #[error("contains {} models ({}): pass the path of one", .models.len(), list(.models))]
    SeveralModels { models: Vec<String> },
    /// The model is in two parts, of which only the decoder could run.
    #[error("contains an encoder ({}): pass the file of its decoder", one_line(.encoder))]
    EncoderDecoder { encoder: String },
    /// A configuration file names a model that does not exist.
    #[error("names {:?} as the decoder, but the folder does not contain this file", .model)]
    ModelMissing { model: String },
    /// The path of the model is absolute, contains `..`, or is a link that leads out of the folder.
    #[error(
        "the decoder {:?} {} of the folder{}",
        .model,
        if *.is_link { "is a link that leads out" } else { "is out" },
        if *.is_link { ": copy it with its link targets (cp -rL)" } else { "" }
    )]
    LeadsOut { model: String, is_link: bool },
    /// A configuration file names no model.
    #[error("names no file of a decoder (model.decoder.filename)")]
    NoDecoder,
    /// A configuration file cannot be read.
    #[error("{reason}")]
    Config { reason: String },
}

crate::cause!(FolderError, |_| "folder");

/// The most names that an error lists.
const LISTED: usize = 8;

fn list(names: &[String]) -> String {
    let listed: Vec<_> = names.iter().take(LISTED).map(|name| one_line(name)).collect();
    let more = if names.len() > LISTED { ", ..." } else { "" };
    format!("{}{more}", listed.join(", "))
}

/// Returns what to do with weights in another format.
fn first(original: &Option<String>) -> String {
    match original {
        Some(file) => format!("; export the model of {} to ONNX first", one_line(file)),
        None => String::new(),
    }
}
