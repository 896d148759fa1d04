//! Reads what the configuration files of a model declare.

use std::path::Path;

use serde_json::Value;

use crate::config_file::{self, Object, flag, number, wrong};
use crate::declared::{self, Declared};
use crate::decoder::{Decoder, Hazard};
use crate::file::folder_of;
use crate::{Graph, Model};

type Parse<T> = fn(&Object) -> Result<T, String>;

/// A configuration file.
struct File {
    name: &'static str,
    declared: Parse<Declared>,
    /// Returns the number of tokens that a text may have. Reads no other field, whose type may be wrong.
    context: Parse<Option<usize>>,
}

/// The files of transformers and of ONNX Runtime GenAI.
const FILES: [File; 2] = [
    File { name: "config.json", declared: transformers, context: context_of_transformers },
    File { name: "genai_config.json", declared: genai, context: context_of_genai },
];

/// Returns the hazards that result from `config.json` and `genai_config.json` beside a model.
///
/// The files are untrusted. Only regular files of the model's folder are read, up to 1 MiB each. A file that cannot be
/// read is a hazard, and no failure. A model that was created in memory has no files.
///
/// `decoder` must have been found in the graph of `model`.
#[must_use]
pub fn hazards_beside(model: &Model, graph: &Graph<'_>, decoder: &Decoder<'_>) -> Vec<Hazard> {
    let Some(path) = model.path() else { return Vec::new() };
    let mut hazards = Vec::new();
    for File { name: file, declared, .. } in FILES {
        match read(folder_of(path), file, declared) {
            Ok(None) => {}
            Ok(Some(declared)) => {
                let declared = Declared { file: file.to_owned(), ..declared };
                hazards.extend(declared::hazards(model, graph, decoder, &declared));
            }
            Err(reason) => hazards.push(Hazard::FileUnread { file: file.to_owned(), reason }),
        }
    }
    hazards
}

/// Returns the smallest number of tokens that the configuration files of a folder allow for a text, or `None` if no
/// file declares it.
///
/// # Errors
/// Returns the name of a file that cannot be read, and the reason.
pub(crate) fn context(folder: &Path) -> Result<Option<usize>, (&'static str, String)> {
    let mut least = None;
    for File { name, context, .. } in FILES {
        let context = read(folder, name, context).map_err(|reason| (name, reason))?;
        least = least.into_iter().chain(context.flatten()).min();
    }
    Ok(least)
}

/// Reads and parses a file. Returns `None` if it does not exist, and the reason if it is invalid.
fn read<T>(folder: &Path, file: &str, parse: Parse<T>) -> Result<Option<T>, String> {
    config_file::read(folder, file)?.map(|object| parse(&object)).transpose()
}

/// Parses `config.json` of transformers.
fn transformers(file: &Object) -> Result<Declared, String> {
    let (config, context) = (decoder_of(file), context_of_transformers(file)?);
    Ok(Declared { window: window(config)?, alibi: alibi(config)?, context, ..Declared::default() })
}

fn context_of_transformers(file: &Object) -> Result<Option<usize>, String> {
    let config = decoder_of(file);
    match number(config, "max_position_embeddings")? {
        None => number(config, "n_positions"),
        found => Ok(found),
    }
}

/// Returns the configuration of the decoder, which a model of several parts has in `text_config`.
fn decoder_of(file: &Object) -> &Object {
    match file.get("text_config") {
        Some(Value::Object(text)) => text,
        _ => file,
    }
}

/// Parses `genai_config.json` of ONNX Runtime GenAI.
fn genai(file: &Object) -> Result<Declared, String> {
    Ok(Declared { context: context_of_genai(file)?, ..Declared::default() })
}

fn context_of_genai(file: &Object) -> Result<Option<usize>, String> {
    match file.get("model") {
        Some(Value::Object(model)) => number(model, "context_length"),
        _ => Ok(None),
    }
}

/// Returns the window, if at least one layer has one.
fn window(config: &Object) -> Result<Option<usize>, String> {
    let Some(window) = number(config, "sliding_window")? else { return Ok(None) };
    // The layers of Qwen's models have no window unless this flag is set.
    let is_qwen = model_type(config).starts_with("qwen");
    let is_used = flag(config, "use_sliding_window")?.unwrap_or(!is_qwen);
    let is_windowed = match config.get("layer_types") {
        Some(Value::Array(types)) => types.iter().any(|it| it.as_str() == Some("sliding_attention")),
        Some(Value::Null) | None => {
            // The first layers of Qwen2 have no window.
            let full = number(config, "max_window_layers")?;
            full.zip(number(config, "num_hidden_layers")?).is_none_or(|(full, layers)| full < layers)
        }
        Some(other) => return Err(wrong("layer_types", other, "a list")),
    };
    Ok((is_used && is_windowed).then_some(window))
}

fn alibi(config: &Object) -> Result<bool, String> {
    let nested = match config.get("attn_config") {
        Some(Value::Object(nested)) => flag(nested, "alibi")?,
        _ => None,
    };
    let is_set = flag(config, "alibi")?.or(nested).unwrap_or_default();
    Ok(is_set || model_type(config) == "bloom")
}

fn model_type(config: &Object) -> &str {
    config.get("model_type").and_then(Value::as_str).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{Declared, genai, transformers};

    fn parsed(config: Value) -> Result<(Option<usize>, bool, Option<usize>), String> {
        let Value::Object(config) = config else { panic!("{config}") };
        transformers(&config).map(|it| (it.window, it.alibi, it.context))
    }

    #[test]
    fn windows() {
        let window = |config: Value| parsed(config).unwrap().0;
        for (config, expected) in [
            (json!({"model_type": "mistral", "sliding_window": 4096}), Some(4096)),
            (json!({"sliding_window": null}), None),
            (json!({"sliding_window": 0}), None),
            (json!({"sliding_window": -1}), None),
            (json!({"sliding_window": 32, "use_sliding_window": false}), None),
            (json!({"model_type": "qwen2", "sliding_window": 32}), None),
            (json!({"model_type": "qwen2", "sliding_window": 32, "use_sliding_window": true}), Some(32)),
            (json!({"sliding_window": 32, "max_window_layers": 4, "num_hidden_layers": 4}), None),
            (json!({"sliding_window": 32, "max_window_layers": 3, "num_hidden_layers": 4}), Some(32)),
            (json!({"sliding_window": 32, "layer_types": ["full_attention"]}), None),
            (json!({"sliding_window": 32, "layer_types": ["full_attention", "sliding_attention"]}), Some(32)),
            (json!({"text_config": {"sliding_window": 32}, "sliding_window": 64}), Some(32)),
        ] {
            assert_eq!(window(config.clone()), expected, "{config}");
        }
    }

    #[test]
    fn alibi_and_context() {
        for (config, expected) in [
            (json!({"model_type": "falcon", "alibi": true}), (None, true, None)),
            (json!({"model_type": "falcon", "alibi": false}), (None, false, None)),
            (json!({"model_type": "bloom"}), (None, true, None)),
            (json!({"model_type": "mpt", "attn_config": {"alibi": true}}), (None, true, None)),
            (json!({"model_type": "gpt2", "n_positions": 1024}), (None, false, Some(1024))),
            (json!({"max_position_embeddings": 2048, "n_positions": 1024}), (None, false, Some(2048))),
        ] {
            assert_eq!(parsed(config.clone()), Ok(expected), "{config}");
        }
        let Value::Object(config) = json!({"model": {"context_length": 131072}, "search": {}}) else {
            panic!()
        };
        assert_eq!(genai(&config), Ok(Declared { context: Some(131_072), ..Declared::default() }));
    }

    #[test]
    fn values_of_other_types() {
        for (config, expected) in [
            (json!({"sliding_window": "4096"}), "sliding_window is a string, expected a whole number"),
            (json!({"sliding_window": 0.5}), "sliding_window is 0.5, expected a whole number"),
            (json!({"n_positions": [1]}), "n_positions is a list, expected a whole number"),
            (json!({"alibi": 1}), "alibi is 1, expected true or false"),
            (json!({"sliding_window": 1, "layer_types": {}}), "layer_types is an object, expected a list"),
        ] {
            assert_eq!(parsed(config), Err(expected.to_owned()));
        }
    }
}
