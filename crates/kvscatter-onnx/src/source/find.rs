//! Finds the decoder in a folder.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::FolderError;
use crate::config_file::{self, Object};
use crate::external::Folder;
use crate::file::folder_of;
use crate::{ErrorPlace, ExternalError, OnnxError};

/// The configuration of ONNX Runtime GenAI.
const GENAI: &str = "genai_config.json";
/// The folder of models in a repository of the Hugging Face Hub.
const ONNX: &str = "onnx";
/// Optimum's files of one decoder, the best first: one that contains both others, the one with a past, and the one
/// without.
const FORMS: [&str; 3] = ["decoder_model_merged.onnx", "decoder_with_past_model.onnx", "decoder_model.onnx"];

/// An exported decoder, and the folder that it belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelSource {
    /// The path of the .onnx file.
    pub model: PathBuf,
    /// The folder of the tokenizer and the configuration. It is the folder of the file, or the folder above if the file
    /// is in a folder `onnx` without a tokenizer.
    pub folder: PathBuf,
}

impl ModelSource {
    /// Finds the model of a path, which is an .onnx file or a folder. A file is not read.
    ///
    /// # Errors
    /// Errors are wrapped in [`OnnxError::InFile`].
    ///
    /// * Returns [`FolderError`] if the folder contains no model, several models or an encoder, if its
    ///   `genai_config.json` is wrong, or if the model's file is not inside the folder.
    /// * Returns [`FileError::NotRegularFile`](crate::FileError::NotRegularFile) if it is no regular file, and
    ///   [`std::io::Error`] if the path does not exist or the folder cannot be read.
    pub fn find(path: &Path) -> Result<Self, OnnxError> {
        let metadata = path.metadata().in_file(path)?;
        if !metadata.is_dir() {
            return Ok(Self { model: path.to_owned(), folder: folder_of_file(path).to_owned() });
        }
        let config = path.join(GENAI);
        let object = config_file::read(path, GENAI).map_err(|reason| FolderError::Config { reason });
        let (location, named_in) = match object.in_file(&config)? {
            Some(object) => (PathBuf::from(decoder_of(&object).in_file(&config)?), config.as_path()),
            None => (listed(path).map_err(OnnxError::into_root).in_file(path)?, path),
        };
        match Folder::open(path)?.size(&location) {
            Ok(Some(_)) => Ok(Self { model: path.join(location), folder: path.to_owned() }),
            Ok(None) => {
                let model = location.to_string_lossy().into_owned();
                Err(FolderError::ModelMissing { model }).in_file(named_in)
            }
            Err(error) => match error.cause() {
                Some(ExternalError::Escape { location, is_link }) => {
                    let (model, is_link) = (location.clone(), *is_link);
                    Err(FolderError::LeadsOut { model, is_link }).in_file(named_in)
                }
                _ => Err(error).in_file(path.join(location)),
            },
        }
    }
}

/// Returns the folder of the tokenizer and the configuration of a model's file.
fn folder_of_file(path: &Path) -> &Path {
    let folder = folder_of(path);
    let has = |folder: &Path, name: &str| folder.join(name).is_file();
    let is_own = ["tokenizer.json", "config.json", GENAI].into_iter().any(|name| has(folder, name));
    match folder.parent() {
        Some(_) if is_own || folder.file_name() != Some(OsStr::new(ONNX)) => folder,
        Some(_) => folder_of(folder),
        None => folder,
    }
}

/// Returns the decoder's file that GenAI's configuration names.
fn decoder_of(config: &Object) -> Result<&str, FolderError> {
    let model = config.get("model");
    let filename = |part: &str| model?.get(part)?.get("filename").and_then(Value::as_str);
    match (filename("encoder"), filename("decoder")) {
        (Some(encoder), _) => Err(FolderError::EncoderDecoder { encoder: encoder.to_owned() }),
        (None, Some(decoder)) if !decoder.is_empty() => Ok(decoder),
        _ => Err(FolderError::NoDecoder),
    }
}

/// Finds the only decoder among the files of a folder.
fn listed(path: &Path) -> Result<PathBuf, OnnxError> {
    let folder = Folder::open(path)?;
    let has = |location: &str| matches!(folder.size(Path::new(location)), Ok(Some(_)));
    let of_parts = ["encoder", "decoder"].map(|part| format!("{part}/model.onnx"));
    let [encoder, decoder] = of_parts.each_ref().map(|location| has(location).then_some(location));
    if let Some(encoder) = encoder {
        return Err(FolderError::EncoderDecoder { encoder: encoder.clone() }.into());
    }
    let names = folder.names(Path::new("."))?;
    for inside in [None, Some(ONNX)] {
        let mut models = inside.map_or(Ok(names.clone()), |inside| folder.names(Path::new(inside)))?;
        models.retain(|name| has_extension(name, &["onnx"]));
        if !models.is_empty() {
            return Ok(Path::new(inside.unwrap_or_default()).join(only(&models)?));
        }
    }
    let original = names.iter().find(|name| has_extension(name, &["safetensors", "gguf", "bin", "pt"]));
    let original = original.map(|name| name.to_string_lossy().into_owned());
    decoder.map(PathBuf::from).ok_or(FolderError::NoModel { original }.into())
}

/// Returns the only decoder among these files.
fn only(models: &BTreeSet<OsString>) -> Result<&OsStr, OnnxError> {
    let texts = || models.iter().map(|name| name.to_string_lossy().into_owned());
    if let Some(encoder) = texts().find(|name| name.starts_with("encoder_model")) {
        return Err(FolderError::EncoderDecoder { encoder }.into());
    }
    let best = FORMS.into_iter().map(OsStr::new).find(|form| models.contains(*form));
    let is_form = |name: &OsString| FORMS.into_iter().any(|form| name == form);
    match (best, models.first()) {
        (Some(best), _) if models.iter().all(is_form) => Ok(best),
        (_, Some(first)) if models.len() == 1 => Ok(first),
        _ => Err(FolderError::SeveralModels { models: texts().collect() }.into()),
    }
}

fn has_extension(name: &OsStr, extensions: &[&str]) -> bool {
    Path::new(name)
        .extension()
        .is_some_and(|found| extensions.iter().any(|it| found.eq_ignore_ascii_case(it)))
}
