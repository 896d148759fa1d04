//! The smallest decoders that have everything a session can run: two layers, one head of keys and values, positions.

use std::ops::Range;
use std::path::PathBuf;

use kvscatter_onnx::convert::{ConvertOptions, WindowedCaches, convert};
use kvscatter_onnx::internal::proto::{AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto};
use kvscatter_onnx::{Model, WeightTransfer};
use tempfile::TempDir;

use super::Subject;
use super::narrow::{Narrow, narrow};
use super::protos::{floats, int64s, node, value, with};

/// The tokens that tests feed. Token 0 is the padding of samples without tokens.
pub(crate) const TOKENS: Range<i64> = 1..14;

/// Tokens with which a run fails. With the first, the last layer writes before its cache, or cannot write its ring.
/// With the second, a node after all writes reads beyond its table.
pub(crate) const TRAPS: [i64; 2] = [14, 15];

/// The size of the rings of a model.
#[derive(Clone, Copy)]
pub(crate) struct RingSetting {
    /// The number of layers that have rings.
    layers: usize,
    chunk: usize,
    rewind: usize,
}

/// The second has as many slots as its window.
pub(crate) const RINGS: [RingSetting; 4] = [
    RingSetting { layers: 1, chunk: 3, rewind: 2 },
    RingSetting { layers: 2, chunk: 1, rewind: 0 },
    RingSetting { layers: 2, chunk: 4, rewind: 1 },
    RingSetting { layers: 2, chunk: 2, rewind: 3 },
];

const VOCABULARY: usize = 16;
const CAPACITY: usize = 24;
const HIDDEN: usize = 8;
const HEAD: usize = 4;
const LAYERS: usize = 2;
/// The number of slots that a window sees, this one included.
const WINDOW: i64 = 3;

const FLOAT: i32 = 1;
const INT64: i32 = 7;

/// A model in a new folder.
pub(crate) struct Made {
    /// The folder is deleted when this is dropped.
    _folder: TempDir,
    path: PathBuf,
}

impl Made {
    fn new(model: &Model) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.onnx");
        model.save_with_weights(&path, WeightTransfer::Copy).unwrap();
        Self { _folder: folder, path }
    }

    /// Returns the same decoder with narrow caches.
    pub(crate) fn narrow(self, to: Narrow) -> Self {
        Self::new(&narrow(Model::load(&self.path).unwrap(), to))
    }

    pub(crate) fn subject(&self) -> Subject<'_> {
        Subject { model: &self.path, capacity: None, traps: &TRAPS }
    }
}

/// Returns a decoder with linear caches.
pub(crate) fn linear() -> Made {
    let converted = convert(&growing(0), CAPACITY).unwrap();
    Made::new(&with_traps(converted.model))
}

/// Returns a decoder with linear caches and the state of a convolution. Only ONNX Runtime has its operator.
pub(crate) fn with_state() -> Made {
    Made::new(&with_traps(convert(&add_state(growing(0)), CAPACITY).unwrap().model))
}

/// Returns a decoder with the state of a convolution, whose first layers have rings.
pub(crate) fn rings_with_state(RingSetting { layers, chunk, rewind }: RingSetting) -> Made {
    let windowed = WindowedCaches::Ring { chunk: Some(chunk), rewind };
    let options = ConvertOptions::new(CAPACITY).windowed(windowed);
    Made::new(&with_traps(convert(&add_state(growing(layers)), options).unwrap().model))
}

fn add_state(mut model: Model) -> Model {
    let graph = model.proto_mut().graph.get_or_insert_default();
    graph.input.push(value("past.conv", FLOAT, &["batch", "8", "2"]));
    graph.output.push(value("present.conv", FLOAT, &["batch", "8", "2"]));
    graph.initializer.push(weights("kernel", &[HIDDEN, 1, 3], 6));
    let add = graph.node.iter_mut().find(|node| node.output[0] == "x0").unwrap();
    add.output[0] = "rows".to_owned();
    add.name = Some("make_rows".to_owned());
    let at = graph.node.iter().position(|node| node.output[0] == "rows").unwrap();
    let transpose = |from, to| NodeProto {
        attribute: vec![AttributeProto::ints("perm", &[0, 2, 1])],
        ..node("Transpose", &[from], &[to])
    };
    let mixed = NodeProto {
        domain: Some("com.microsoft".to_owned()),
        ..node("CausalConvWithState", &["columns", "kernel", "", "past.conv"], &["mixed", "present.conv"])
    };
    let nodes = [transpose("rows", "columns"), mixed, transpose("mixed", "mixed_rows")];
    graph.node.splice(at + 1..at + 1, nodes);
    graph.node.insert(at + 4, node("Add", &["rows", "mixed_rows"], &["x0"]));
    model
}

/// Returns a decoder whose first layers have rings.
pub(crate) fn rings(RingSetting { layers, chunk, rewind }: RingSetting) -> Made {
    let windowed = WindowedCaches::Ring { chunk: Some(chunk), rewind };
    let converted = convert(&growing(layers), ConvertOptions::new(CAPACITY).windowed(windowed)).unwrap();
    assert_eq!(converted.report.caches.rings.values().sum::<usize>(), 2 * layers);
    Made::new(&with_traps(converted.model))
}

/// Returns a decoder with growing caches in which tokens of a block see each other, and the converted one. The window
/// of the first layer hides tokens of a block, and that of the second one does not.
pub(crate) fn in_blocks() -> [Made; 2] {
    let mut model = growing(0);
    let graph = model.proto_mut().graph.get_or_insert_default();
    graph.input.push(value("block_sequence_ids", INT64, &["batch", "total"]));
    for (name, dims, numbers) in [
        ("zero", &[][..], &[0][..]),
        ("one", &[], &[1]),
        ("window", &[], &[WINDOW]),
        ("axis", &[1], &[1]),
        ("before_slots", &[2], &[1, 3]),
        ("before_heads", &[2], &[1, 2]),
    ] {
        graph.initializer.push(int64s(name, dims, numbers.iter().copied()));
    }
    let size = |of: &str, axis, name: &str| {
        with(with(node("Shape", &[of], &[name]), "start", axis), "end", axis + 1)
    };
    let sizes = [size("past_key_values.0.key", 2, "length"), size("input_ids", 1, "new")];
    let nodes: [(&str, &[&str], &str); 19] = [
        ("Add", &["length", "new"], "all"),
        ("Squeeze", &["length"], "start"),
        ("Squeeze", &["all"], "end"),
        ("Range", &["zero", "end", "one"], "slots"),
        ("Range", &["start", "end", "one"], "own_slots"),
        ("Unsqueeze", &["own_slots", "axis"], "rows"),
        ("Slice", &["block_sequence_ids", "length", "all", "axis"], "own_ids"),
        ("Unsqueeze", &["own_ids", "before_slots"], "own"),
        ("Unsqueeze", &["block_sequence_ids", "before_heads"], "ids"),
        ("Equal", &["own", "ids"], "is_same"),
        ("GreaterOrEqual", &["own", "zero"], "is_block"),
        ("And", &["is_same", "is_block"], "block"),
        ("LessOrEqual", &["slots", "rows"], "causal"),
        ("Sub", &["rows", "window"], "before"),
        ("Greater", &["slots", "before"], "near"),
        ("Or", &["causal", "block"], "shown"),
        ("And", &["shown", "near"], "visible0"),
        ("And", &["causal", "near"], "recent"),
        ("Or", &["recent", "block"], "visible1"),
    ];
    let nodes = nodes.into_iter().map(|(op_type, input, output)| node(op_type, input, &[output]));
    graph.node.splice(0..0, sizes.into_iter().chain(nodes));
    let attentions = graph.node.iter_mut().filter(|node| node.op_type.as_deref() == Some("Attention"));
    for (attention, mask) in attentions.zip(["visible0", "visible1"]) {
        mask.clone_into(&mut attention.input[3]);
        attention.attribute.retain(|attribute| attribute.name.as_deref() != Some("is_causal"));
    }
    let converted = convert(&model, CAPACITY).unwrap().model;
    [Made::new(&model), Made::new(&converted)]
}

/// Returns a decoder with growing caches, whose first `windows` layers have a window.
fn growing(windows: usize) -> Model {
    let mut graph = GraphProto { name: Some("tiny".to_owned()), ..GraphProto::default() };
    graph.input.push(value("input_ids", INT64, &["batch", "tokens"]));
    graph.input.push(value("position_ids", INT64, &["batch", "tokens"]));
    graph.output.push(value("logits", FLOAT, &["batch", "tokens", "16"]));
    graph.initializer.push(weights("embeddings", &[VOCABULARY, HIDDEN], 1));
    graph.initializer.push(weights("places", &[CAPACITY, HIDDEN], 2));
    graph.initializer.push(weights("head", &[HIDDEN, VOCABULARY], 3));
    graph.node.push(node("Gather", &["embeddings", "input_ids"], &["embedded"]));
    graph.node.push(node("Gather", &["places", "position_ids"], &["placed"]));
    graph.node.push(node("Add", &["embedded", "placed"], &["x0"]));
    for layer in 0..LAYERS {
        let layered = |name: &str| format!("{name}{layer}");
        let x = layered("x");
        for (seed, part) in [(4, "key"), (5, "value")] {
            let (past, present) =
                (format!("past_key_values.{layer}.{part}"), format!("present.{layer}.{part}"));
            graph.input.push(value(&past, FLOAT, &["batch", "1", "past", "4"]));
            graph.output.push(value(&present, FLOAT, &["batch", "1", "total", "4"]));
            graph.initializer.push(weights(&layered(part), &[HIDDEN, HEAD], 2 * seed + layer as u64));
            graph.node.push(node("MatMul", &[&x, &layered(part)], &[&format!("new_{part}{layer}")]));
        }
        let [key, value] = ["key", "value"].map(|part| format!("new_{part}{layer}"));
        let [pasts, presents] = ["past_key_values", "present"]
            .map(|name| ["key", "value"].map(|part| format!("{name}.{layer}.{part}")));
        let mut attention = node(
            "Attention",
            &[&x, &key, &value, "", &pasts[0], &pasts[1]],
            &[&layered("y"), &presents[0], &presents[1]],
        );
        for (name, value) in [("is_causal", 1), ("q_num_heads", 2), ("kv_num_heads", 1)] {
            attention.attribute.push(AttributeProto::int(name, value));
        }
        if layer < windows {
            attention.attribute.push(AttributeProto::int("left_window_size", WINDOW - 1));
        }
        graph.node.push(attention);
        graph.node.push(node("Add", &[&x, &layered("y")], &[&format!("x{}", layer + 1)]));
    }
    graph.node.push(node("MatMul", &[&format!("x{LAYERS}"), "head"], &["logits"]));
    Model::from_proto(ModelProto::new(11, &[("", 24), ("com.microsoft", 1)], graph))
}

/// Adds what makes a run fail with a token of [`TRAPS`].
fn with_traps(mut model: Model) -> Model {
    let graph = model.proto_mut().graph.get_or_insert_default();
    graph.initializer.push(int64s("last_axis", &[1], [-1]));
    graph.initializer.push(int64s("inner_axes", &[2], [1, 2]));
    graph.initializer.push(floats("zero", &[1], [0.0]));
    let last = graph.node.iter().rposition(|node| node.op_type.as_deref() == Some("TensorScatter")).unwrap();
    let is_ring = graph.node[last].attribute.iter().any(|of| of.s.as_deref() == Some(b"circular"));
    let indices = std::mem::replace(&mut graph.node[last].input[2], "trapped_indices".to_owned());
    let mut nodes = if is_ring {
        // A ring takes every index, so the node before the write fails.
        let mut nodes = read_beyond(graph, TRAPS[0], &format!("x{}", LAYERS - 1), "write_zeros");
        nodes.push(with(node("Cast", &["write_zeros"], &["no_offsets"]), "to", INT64.into()));
        nodes.push(with(node("ReduceMax", &["no_offsets", "inner_axes"], &["offsets"]), "keepdims", 0));
        nodes
    } else {
        graph.initializer.push(table("write_trap", TRAPS[0], -1000));
        let offsets = node("ReduceMin", &["write_traps", "last_axis"], &["offsets"]);
        vec![node("Gather", &["write_trap", "input_ids"], &["write_traps"]), with(offsets, "keepdims", 0)]
    };
    nodes.push(node("Add", &[&indices, "offsets"], &["trapped_indices"]));
    graph.node.splice(last..last, nodes);
    let logits = graph.node.iter_mut().find(|node| node.output[0] == "logits").unwrap();
    logits.output[0] = "scored".to_owned();
    logits.name = Some("make_scored".to_owned());
    let nodes = read_beyond(graph, TRAPS[1], "scored", "read_zeros");
    graph.node.extend(nodes);
    graph.node.push(node("Add", &["scored", "read_zeros"], &["logits"]));
    model
}

/// Returns nodes that compute zeros, `[batch, tokens, 1]`, from a table of one element. They wait for the value
/// `after`, and read beyond the table if a token is `trap`.
fn read_beyond(graph: &mut GraphProto, trap: i64, after: &str, zeros: &str) -> Vec<NodeProto> {
    let named = |name: &str| format!("{name}_{trap}");
    graph.initializer.push(table(&named("trap"), trap, 1000));
    vec![
        node("ReduceMax", &[after, "last_axis"], &[&named("most")]),
        node("Mul", &[&named("most"), "zero"], &[&named("nothing")]),
        with(node("Cast", &[&named("nothing")], &[&named("no_index")]), "to", INT64.into()),
        node("Gather", &[&named("trap"), "input_ids"], &[&named("traps")]),
        node("Unsqueeze", &[&named("traps"), "last_axis"], &[&named("traps_of_tokens")]),
        node("Add", &[&named("no_index"), &named("traps_of_tokens")], &[&named("index")]),
        node("Gather", &["zero", &named("index")], &[zeros]),
    ]
}

/// Returns a table by token with one number that is not 0.
fn table(name: &str, token: i64, number: i64) -> TensorProto {
    let numbers = (0..VOCABULARY as i64).map(|of| if of == token { number } else { 0 });
    int64s(name, &[VOCABULARY], numbers)
}

/// Returns irregular values from -1 to 1.
fn weights(name: &str, dims: &[usize], seed: u64) -> TensorProto {
    let mut random = kvscatter_oracle::cases::Random::new(seed, 0);
    let count = dims.iter().product();
    floats(name, dims, random.many(count, |random| random.below(20_001) as f32 / 10_000.0 - 1.0))
}
