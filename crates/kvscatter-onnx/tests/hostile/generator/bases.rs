//! The models that are changed: decoders of exporters, built decoders, and graphs that can be evaluated.

use std::sync::Arc;
use std::sync::OnceLock;

use kvscatter_onnx::Model;
use kvscatter_onnx::convert::{ConvertOptions, WindowedCaches, convert};

use super::dice::Dice;
use super::scatters;
use crate::families;
use crate::support::{graph_mut, int, nodes_mut};

/// A model before it is changed.
#[derive(Clone)]
pub(crate) struct Base {
    pub(crate) name: String,
    pub(crate) model: Vec<u8>,
    /// The contents of `model.onnx.data`, if the model has such a file.
    pub(crate) data: Option<&'static [u8]>,
}

/// A file of the repository, and the file with its values.
type Exported = (&'static str, &'static [u8], Option<&'static [u8]>);

macro_rules! file {
    ($path:literal) => {
        ($path, include_bytes!(concat!("../../../../../testdata/", $path)), None)
    };
    ($path:literal, with data) => {
        (
            $path,
            include_bytes!(concat!("../../../../../testdata/", $path)),
            Some(include_bytes!(concat!("../../../../../testdata/", $path, ".data"))),
        )
    };
}

/// Models of at most 60 KB.
const SMALL: &[Exported] = &[
    file!("genai-llama-gqa/model.onnx", with data),
    file!("decoders/genai-0.18-llama-float16/model.onnx", with data),
    file!("decoders/genai-0.18-hunyuan/model.onnx", with data),
    file!("mobius-llama-static/model.onnx", with data),
    file!("mobius-llama-dynamic/model.onnx", with data),
    file!("decoders/mobius-0.1-gpt2/model.onnx", with data),
    file!("decoders/mobius-0.1-qwen3-float16/model.onnx", with data),
    file!("decoders/torch-2.15-llama/model.onnx"),
    file!("decoders/torch-2.15-llama-static/model.onnx"),
];

/// Models of less than 1 KB.
const TINY: &[Exported] = &[
    file!("onnx-node/test_tensorscatter/model.onnx"),
    file!("onnx-node/test_tensorscatter_3d/model.onnx"),
    file!("onnx-node/test_tensorscatter_circular/model.onnx"),
    file!("onnx-attention/test_attention_4d_diff_heads_mask4d_padded_kv/model.onnx"),
    file!("onnx-attention/test_attention_4d_gqa_causal_nonpad_decode_fp16/model.onnx"),
    file!("onnx-tensors/tensors.onnx"),
    file!("files/kv_pair.onnx"),
];

/// Models of more than 60 KB, which take long to convert.
const LARGE: &[Exported] = &[
    file!("optimum-llama/model.onnx"),
    file!("decoders/optimum-1.18-falcon/model.onnx"),
    file!("decoders/optimum-1.18-opt/model.onnx"),
    file!("decoders/optimum-1.18-gpt2/model.onnx"),
    file!("decoders/optimum-1.18-gpt2-merged/model.onnx"),
    file!("decoders/optimum-0.1-qwen3-float16/model.onnx"),
    file!("decoders/optimum-0.1-mistral-window/model.onnx"),
    file!("decoders/optimum-0.1-qwen3-moe/model.onnx"),
    file!("decoders/optimum-llama-4bit/model.onnx"),
    file!("decoders/optimum-llama-int8/model.onnx"),
];

/// The families of models that can be converted, and appear more often than the others for that reason.
const CONVERTIBLE: [&str; 6] = [
    "layers of Attention",
    "layers of Concat",
    "layers of ScatterElements",
    "layers of a merged decoder",
    "masks in a chain",
    "layers with separate masks",
];

impl Base {
    pub(crate) fn new(dice: &mut Dice) -> Self {
        match dice.below(200) {
            0..=1 => Self::exported(dice.pick(LARGE)),
            2..=21 => Self::exported(dice.pick(SMALL)),
            22..=27 => Self::exported(dice.pick(TINY)),
            28..=75 => Self::made("scatters".to_owned(), &scatters::model(dice)),
            76..=95 => dice.pick(converted()).clone(),
            96..=115 => Self::family(dice, |name| name == "layers of a merged decoder"),
            116..=155 => Self::family(dice, |name| CONVERTIBLE.contains(&name)),
            // This family reads a file of the repository.
            _ => Self::family(dice, |name| name != "tensors in other files"),
        }
    }

    fn made(name: String, model: &Model) -> Self {
        Self { name, model: model.to_bytes().unwrap(), data: None }
    }

    fn exported((name, bytes, data): &Exported) -> Self {
        Self { name: (*name).to_owned(), model: bytes.to_vec(), data: *data }
    }

    fn family(dice: &mut Dice, is_wanted: impl Fn(&str) -> bool) -> Self {
        let families: Vec<_> = families::ALL.iter().filter(|(name, ..)| is_wanted(name)).collect();
        let (name, _, make) = *dice.pick(&families);
        let count = if dice.chance(3) { 40 } else { 2 + dice.below(2) };
        Self::made(format!("{count} {name}"), &convertible(make(count)))
    }
}

/// Gives the table of embeddings as many rows as there are logits. The conversion then knows which tokens exist.
fn convertible(mut model: Model) -> Model {
    let tensors = &mut graph_mut(&mut model).initializer;
    for table in tensors.iter_mut().filter(|tensor| tensor.name.as_deref() == Some("table")) {
        table.dims = vec![8, 8];
        Arc::make_mut(table.raw_data.get_or_insert_default()).truncate(256);
    }
    model
}

/// Returns models that a conversion has made, with linear caches and with rings.
fn converted() -> &'static [Base] {
    static CONVERTED: OnceLock<[Base; 3]> = OnceLock::new();
    CONVERTED.get_or_init(|| {
        let family = |wanted| {
            let (_, _, make) = *families::ALL.iter().find(|(name, ..)| *name == wanted).unwrap();
            convertible(make(2))
        };
        let mut windowed = family("layers of Attention");
        let attentions = nodes_mut(graph_mut(&mut windowed), "Attention");
        attentions.for_each(|node| node.attribute.push(int("left_window_size", 3)));
        let options = ConvertOptions::new(16);
        let rings = options.windowed(WindowedCaches::Ring { chunk: Some(3), rewind: 1 });
        let models = [
            ("converted Attention", family("layers of Attention"), options),
            ("converted Concat", family("layers of Concat"), options),
            ("converted Attention with windows", windowed, rings),
        ];
        models.map(|(name, model, options)| {
            Base::made(name.to_owned(), &convert(&model, options).unwrap().model)
        })
    })
}
