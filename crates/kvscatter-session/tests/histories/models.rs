//! Models for random histories.

use std::path::PathBuf;

use kvscatter_onnx::convert::{ConvertOptions, WindowedCaches, convert};
use kvscatter_onnx::internal::proto::{AttributeProto, OperatorSetIdProto};
use kvscatter_onnx::{Model, WeightTransfer};
use tempfile::TempDir;

use super::decoders::{self, GROWING, STATIC};
use super::narrow::{Narrow, narrow};
use super::protos::{floats, int64s, node, value, with};

const FLOAT: i32 = 1;
const INT64: i32 = 7;
const BOOL: i64 = 9;

/// The windows of a model's first layers, and the capacity, chunk and rewind of two models with these windows. In the
/// small ones, a full sample waits for others, and its last rows are overwritten with padding.
pub(crate) const RINGS: [Windows; 12] = [
    (&[3], (48, 3, 2), (40, 3, 1)),
    (&[3, 3], (48, 1, 0), (40, 3, 1)),
    (&[3, 3], (48, 4, 1), (40, 3, 1)),
    (&[3, 3], (48, 2, 3), (40, 3, 1)),
    (&[1, 2], (48, 1, 0), (40, 3, 2)),
    (&[1, 4], (48, 3, 2), (40, 1, 0)),
    (&[6, 2], (48, 2, 5), (60, 4, 0)),
    (&[2, 5], (48, 6, 0), (44, 2, 9)),
    (&[1], (48, 4, 3), (44, 2, 9)),
    (&[6, 3], (20, 1, 7), (44, 2, 0)),
    (&[5, 1], (12, 2, 1), (44, 2, 0)),
    (&[2], (9, 5, 2), (44, 2, 0)),
];

pub(crate) type Windows = (&'static [i64], Sizes, Sizes);
type Sizes = (usize, usize, usize);

/// A model in a new folder.
pub(crate) struct Made(TempDir);

impl Made {
    fn new(model: &Model) -> Self {
        let made = Self(tempfile::tempdir().unwrap());
        model.save_with_weights(&made.path(), WeightTransfer::Copy).unwrap();
        made
    }

    /// Returns the same model with narrow caches.
    pub(crate) fn narrow(self, to: Narrow) -> Self {
        Self::new(&narrow(Model::load(&self.path()).unwrap(), to))
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.0.path().join("model.onnx")
    }
}

fn load(name: &str) -> Model {
    Model::load(&decoders::model(name)).unwrap()
}

/// Returns a model with linear caches.
pub(crate) fn linear(max_seq: usize) -> Made {
    converted(&load(GROWING), max_seq)
}

/// Returns a model with linear caches, and with keys and values from an encoder.
pub(crate) fn with_encoder(max_seq: usize, is_masked: bool) -> Made {
    converted(&add_cross_attention(load(GROWING), is_masked), max_seq)
}

fn converted(model: &Model, max_seq: usize) -> Made {
    Made::new(&convert(model, ConvertOptions::new(max_seq)).unwrap().model)
}

/// Returns a model whose first layers have rings for these windows. The other layers have linear caches.
pub(crate) fn rings(windows: &[i64], sizes: Sizes) -> Made {
    with_rings(load(GROWING), windows, sizes)
}

/// Returns a model with rings for these windows, linear caches, the state of a convolution, and keys and values from an
/// encoder.
pub(crate) fn with_all(windows: &[i64], sizes: Sizes, is_masked: bool) -> Made {
    with_rings(add_cross_attention(add_state(load(GROWING)), is_masked), windows, sizes)
}

fn with_rings(mut model: Model, windows: &[i64], (max_seq, chunk, rewind): Sizes) -> Made {
    let nodes = model.proto_mut().graph.get_or_insert_default().node.iter_mut();
    let layers = nodes.filter(|node| node.op_type.as_deref() == Some("Attention"));
    for (node, window) in layers.zip(windows) {
        node.attribute.push(AttributeProto::int("left_window_size", window - 1));
    }
    let windowed = WindowedCaches::Ring { chunk: Some(chunk), rewind };
    let converted = convert(&model, ConvertOptions::new(max_seq).windowed(windowed)).unwrap();
    assert_eq!(converted.report.caches.rings.values().sum::<usize>(), 2 * windows.len());
    Made::new(&converted.model)
}

/// Returns a model with linear caches and the state of a convolution, which it returns after each token.
pub(crate) fn linear_with_columns() -> Made {
    converted(&add_state(load(GROWING)), 48)
}

/// Returns such a model with more slots.
pub(crate) fn long_with_columns() -> Made {
    converted(&add_state(load("optimum-llama")), 400)
}

/// Returns a model with linear caches and the state of a convolution.
pub(crate) fn with_state() -> Made {
    Made::new(&add_state(load(STATIC)))
}

/// Returns a model with rings for these windows, linear caches and the state of a convolution, which it returns after
/// each token.
pub(crate) fn rings_with_state(windows: &[i64], sizes: Sizes) -> Made {
    with_rings(add_state(load(GROWING)), windows, sizes)
}

/// Removes the outputs that return the states after each token.
pub(crate) fn without_columns(made: &Made) -> Made {
    let mut model = Model::load(&made.path()).unwrap();
    let outputs = &mut model.proto_mut().graph.get_or_insert_default().output;
    let count = outputs.len();
    outputs.retain(|output| output.name.as_deref() != Some("present.conv.columns"));
    assert_eq!(outputs.len(), count - 1);
    Made::new(&model)
}

/// Adds attention to the keys and values of a text, whose heads have two sizes.
fn add_cross_attention(mut model: Model, is_masked: bool) -> Model {
    let graph = model.proto_mut().graph.get_or_insert_default();
    graph.input.push(value("cross.key", FLOAT, &["batch", "2", "text", "4"]));
    graph.input.push(value("cross.value", FLOAT, &["batch", "2", "text", "2"]));
    graph.output.push(value("attended", FLOAT, &["batch", "2", "tokens", "2"]));
    graph.initializer.push(floats("cross.query", &[2, 256, 4], [0.5; 2 * 256 * 4]));
    graph.initializer.push(int64s("cross.heads", &[1], [1]));
    graph.node.push(node("Unsqueeze", &["logits", "cross.heads"], &["cross.tokens"]));
    graph.node.push(node("MatMul", &["cross.tokens", "cross.query"], &["cross.queries"]));
    let mut read = vec!["cross.queries", "cross.key", "cross.value"];
    if is_masked {
        graph.input.push(value("encoder_attention_mask", INT64, &["batch", "text"]));
        graph.initializer.push(int64s("cross.axes", &[2], [1, 2]));
        graph.node.push(node("Unsqueeze", &["encoder_attention_mask", "cross.axes"], &["cross.mask"]));
        graph.node.push(with(node("Cast", &["cross.mask"], &["cross.shown"]), "to", BOOL));
        read.push("cross.shown");
    }
    graph.node.push(node("Attention", &read, &["attended"]));
    model
}

fn add_state(mut model: Model) -> Model {
    let domains = &mut model.proto_mut().opset_import;
    if domains.iter().all(|of| of.domain.as_deref() != Some("com.microsoft")) {
        let (domain, version) = (Some("com.microsoft".to_owned()), Some(1));
        domains.push(OperatorSetIdProto { domain, version, ..OperatorSetIdProto::default() });
    }
    super::conv_state::add(model.proto_mut().graph.get_or_insert_default());
    model
}
