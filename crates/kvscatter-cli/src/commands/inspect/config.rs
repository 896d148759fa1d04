//! Reads the configuration files beside a model.
//!
//! The files are untrusted. Only regular files of the model's folder are read, up to a limit. A file that
//! cannot be read is a hazard of the inspection, and no failure.

use std::path::Path;

use kvscatter_onnx::declared::{self, Declared};
use kvscatter_onnx::decoder::{Decoder, Hazard};
use kvscatter_onnx::{Graph, Model, OnnxError};
use serde_json::{Map, Value};

/// The largest configuration file that is read, in bytes.
const LIMIT: u64 = 1 << 20;

type Object = Map<String, Value>;
type Parse = fn(&Object) -> Result<Declared, String>;

/// The files of transformers and of ONNX Runtime GenAI.
const FILES: [(&str, Parse); 2] = [("config.json", transformers), ("genai_config.json", genai)];

/// Returns the hazards that result from the files beside a model.
pub(super) fn hazards(model: &Model, graph: &Graph<'_>, decoder: &Decoder<'_>) -> Vec<Hazard> {
    let mut hazards = Vec::new();
    for (file, parse) in FILES {
        match read(model, file, parse) {
            Ok(None) => {}
            Ok(Some(read)) => {
                let read = Declared { file: file.to_owned(), ..read };
                hazards.extend(declared::hazards(model, graph, decoder, &read));
            }
            Err(reason) => hazards.push(Hazard::FileUnread { file: file.to_owned(), reason }),
        }
    }
    hazards
}

/// Reads and parses a file. Returns `None` if it does not exist, and the reason if it is invalid.
fn read(model: &Model, file: &str, parse: Parse) -> Result<Option<Declared>, String> {
    let bytes = match model.read_beside(Path::new(file), LIMIT) {
        Ok(Some(bytes)) => bytes,
        Ok(None) => return Ok(None),
        Err(error) => {
            return Err(match error.root() {
                OnnxError::ExternalEscape { .. } => {
                    "it is a link that leads out of the model's folder".into()
                }
                cause => cause.to_string(),
            });
        }
    };
    let value: Value = serde_json::from_slice(&bytes).map_err(|error| error.to_string())?;
    let Value::Object(object) = value else { return Err("it is not an object".to_owned()) };
    parse(&object).map(Some)
}

/// Parses `config.json` of transformers. A model of several parts has the decoder in `text_config`.
fn transformers(file: &Object) -> Result<Declared, String> {
    let config = match file.get("text_config") {
        Some(Value::Object(text)) => text,
        _ => file,
    };
    let context = match number(config, "max_position_embeddings")? {
        None => number(config, "n_positions")?,
        found => found,
    };
    Ok(Declared { file: String::new(), window: window(config)?, alibi: alibi(config)?, context })
}

/// Parses `genai_config.json` of ONNX Runtime GenAI.
fn genai(file: &Object) -> Result<Declared, String> {
    let context = match file.get("model") {
        Some(Value::Object(model)) => number(model, "context_length")?,
        _ => None,
    };
    Ok(Declared { context, ..Declared::default() })
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

/// Returns a number of tokens or layers. `null`, 0 and negative numbers mean that there is none.
fn number(config: &Object, key: &str) -> Result<Option<usize>, String> {
    match config.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(value) if value.as_i64().is_some_and(|number| number <= 0) => Ok(None),
        Some(value) => match value.as_u64().map(usize::try_from) {
            Some(Ok(number)) => Ok(Some(number)),
            _ => Err(wrong(key, value, "a whole number")),
        },
    }
}

fn flag(config: &Object, key: &str) -> Result<Option<bool>, String> {
    match config.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Bool(flag)) => Ok(Some(*flag)),
        Some(other) => Err(wrong(key, other, "true or false")),
    }
}

/// Returns the error about a value of another type. Only numbers are short enough to repeat.
fn wrong(key: &str, value: &Value, expected: &str) -> String {
    let found = match value {
        Value::Number(number) => number.to_string(),
        Value::Bool(flag) => flag.to_string(),
        Value::String(_) => "a string".to_owned(),
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "an object".to_owned(),
        Value::Null => "null".to_owned(),
    };
    format!("{key} is {found}, expected {expected}")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{Declared, genai, transformers};

    fn of(config: Value) -> Result<(Option<usize>, bool, Option<usize>), String> {
        let Value::Object(config) = config else { panic!("{config}") };
        transformers(&config).map(|it| (it.window, it.alibi, it.context))
    }

    #[test]
    fn windows() {
        let window = |config: Value| of(config).unwrap().0;
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
            assert_eq!(of(config.clone()), Ok(expected), "{config}");
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
            assert_eq!(of(config), Err(expected.to_owned()));
        }
    }
}
