//! Tests caches whose style is not known, with the reason.

use kvscatter::ElementType;
use kvscatter_onnx::decoder::{CachePart, Decoder, UnknownStyle, WriterStyle};

use super::made::Made;
use crate::support::{graph, int, int64, node, tensor, value};

const FLOAT: ElementType = ElementType::Float32;

/// Returns the style of the keys and the axis of their sequence.
fn keys(made: Made) -> (String, usize) {
    let model = made.model();
    let decoder = Decoder::of(&model.graph().unwrap()).unwrap();
    let cache = decoder.caches.iter().find(|cache| cache.past == "past_k").unwrap();
    assert!(matches!(cache.style, WriterStyle::Unknown(_)), "{:?}", cache.style);
    assert_eq!(cache.present, "present_k");
    (cache.style.to_string(), cache.axis)
}

#[test]
fn rows_that_are_joined_otherwise() {
    let made = Made::growing()
        .before(vec![node("Relu", &["new_k"], "rows")])
        .change("present_k", |node| node.input = ["rows", "past_k"].map(str::to_owned).to_vec());
    assert_eq!(keys(made), ("unknown: the new rows come before the old ones".to_owned(), 2));
    let made = Made::growing().change("present_k", |node| node.input.push("new_v".to_owned()));
    assert_eq!(keys(made), ("unknown: a Concat of 3 tensors".to_owned(), 2));
    let made = Made::growing()
        .input(value("past_k", FLOAT, &["past", "batch", "2", "16"]))
        .output(value("present_k", FLOAT, &["all", "batch", "2", "16"]))
        .change("present_k", |node| node.attribute = vec![int("axis", 0)]);
    assert_eq!(keys(made), ("unknown: the sequence is axis 0".to_owned(), 0));
}

#[test]
fn caches_that_change_their_shape_on_the_way() {
    let made =
        Made::growing().reading("past_k", "flat").before(vec![node("Reshape", &["past_k", "shape"], "flat")]);
    let made = made.input(value("shape", ElementType::Int64, &["4"]));
    assert_eq!(keys(made), ("unknown: Reshape changes its shape".to_owned(), 2));
}

#[test]
fn other_operators() {
    let other = |domain: &str, op_type: &str, inputs: &[&str], outputs: &[&str]| {
        let mut node = node(op_type, inputs, "y");
        node.domain = Some(domain.to_owned());
        node.output = outputs.iter().map(|&output| output.to_owned()).collect();
        Made::attention_past().change("y", |old| *old = node)
    };
    let microsoft = "com.microsoft";
    let out = ["y", "present_k", "present_v"];
    let mha = ["q", "new_k", "new_v", "", "", "", "past_k", "past_v"];
    let made = || other(microsoft, "MultiHeadAttention", &mha, &out);
    assert_eq!(keys(made()).0, "unknown: com.microsoft's MultiHeadAttention writes it");
    let masked = ["q", "new_k", "new_v", "", "", "past_k", "past_v"];
    let (style, axis) = keys(other(microsoft, "DecoderMaskedMultiHeadAttention", &masked, &out));
    assert_eq!(
        (style.as_str(), axis),
        ("unknown: com.microsoft's DecoderMaskedMultiHeadAttention writes it", 2)
    );
    // In an unknown domain, pasts and presents are paired in order.
    let made = Made::attention_past();
    let mut model = {
        let mut node = node("KeyValueAttention", &["q", "past_v", "past_k"], "y");
        node.domain = Some("org.example".to_owned());
        node.output = out.map(str::to_owned).to_vec();
        let made = made.change("y", |old| *old = node);
        let hidden = |name: &str| value(name, FLOAT, &["batch", "s", "32"]);
        made.input(hidden("q")).output(hidden("y")).model()
    };
    model.proto_mut().opset_import.push(crate::support::opset("org.example", 1));
    let decoder = Decoder::of(&model.graph().unwrap()).unwrap();
    let pairs: Vec<_> = decoder.caches.iter().map(|cache| (cache.past, cache.present)).collect();
    assert_eq!(pairs, [("past_k", "present_k"), ("past_v", "present_v")]);
    let operator =
        UnknownStyle::Operator { domain: "org.example".to_owned(), op_type: "KeyValueAttention".to_owned() };
    assert_eq!(decoder.caches[0].style, WriterStyle::Unknown(operator));

    let model = other(microsoft, "MultiHeadAttention", &mha, &out).model();
    let decoder = Decoder::of(&model.graph().unwrap()).unwrap();
    let parts: Vec<_> = decoder.caches.iter().map(|cache| cache.part).collect();
    assert_eq!(parts, [CachePart::Key, CachePart::Value]);
}

/// `kvscatter lower` replaces a `TensorScatter` with such nodes.
#[test]
fn a_cache_that_is_scattered_into() {
    for op_type in ["ScatterND", "ScatterElements"] {
        let made = Made::fixed()
            .input(value("at", ElementType::Int64, &["batch", "2", "s", "16"]))
            .change("present_k", |old| *old = node(op_type, &["past_k", "at", "new_k"], "present_k"));
        assert_eq!(keys(made), (format!("unknown: {op_type} writes it"), 2));
    }
}

/// In the merged decoders of optimum, one branch has a past and the other has none.
#[test]
fn a_branch_that_holds_the_decoder() {
    let join = |past: &str, new: &str, output: &str| {
        let mut join = node("Concat", &[past, new], output);
        join.attribute = vec![int("axis", 2)];
        join
    };
    let with = vec![join("past_v", "new_v", "then_v"), join("past_k", "new_k", "then_k")];
    let without = vec![node("Identity", &["new_k"], "else_k"), node("Identity", &["new_v"], "else_v")];
    let mut branch = node("If", &["use_cache"], "present_k");
    branch.output = ["present_k", "present_v"].map(str::to_owned).to_vec();
    branch.attribute = vec![
        graph("then_branch", with, &["then_k", "then_v"]),
        graph("else_branch", without, &["else_k", "else_v"]),
    ];
    let mut made = Made::growing().input(value("use_cache", ElementType::Bool, &["1"]));
    made.nodes = vec![branch, node("Relu", &["q"], "y")];
    // New rows are not pasts. Here they have another layout.
    for name in ["new_k", "new_v"] {
        made = made.input(value(name, FLOAT, &["batch", "s", "32"]));
    }
    let model = made.model();
    let decoder = Decoder::of(&model.graph().unwrap()).unwrap();
    let pairs: Vec<_> = decoder.caches.iter().map(|cache| (cache.past, cache.present)).collect();
    assert_eq!(pairs, [("past_k", "present_k"), ("past_v", "present_v")]);
    assert_eq!(decoder.caches[0].style.to_string(), "unknown: If writes it");
}

#[test]
fn a_sliding_window_is_joined_and_cut() {
    for (start, end, axis, expected) in [
        (Some(-7), i64::MAX, 2, "unknown: a Slice keeps only its last 7 rows"),
        (Some(-7), i64::MAX, -2, "unknown: a Slice keeps only its last 7 rows"),
        (Some(-7), -1, 2, "unknown: a Slice drops some of its rows"),
        (Some(1), i64::MAX, 2, "unknown: a Slice drops some of its rows"),
        (None, i64::MAX, 2, "unknown: a Slice drops some of its rows"),
        (Some(0), i64::MAX, 2, "Concat"),
        (Some(1), i64::MAX, 1, "Concat"),
    ] {
        let model = cut(start, end, axis).model();
        let decoder = Decoder::of(&model.graph().unwrap()).unwrap();
        let cache = decoder.caches.iter().find(|cache| cache.past == "past_k").unwrap();
        assert_eq!((cache.style.to_string().as_str(), cache.between.len()), (expected, 1));
    }
}

/// Creates a layer whose keys are cut after the new rows were appended. A start that is `None` is an input.
pub(super) fn cut(start: Option<i64>, end: i64, axis: i64) -> Made {
    let constant = |name: &str, number: i64| {
        let mut constant = node("Constant", &[], name);
        constant.attribute = vec![tensor("value", &int64(&[1], &[number]))];
        constant
    };
    let mut constants = vec![constant("end", end), constant("axis", axis)];
    constants.extend(start.map(|start| constant("start", start)));
    let made = Made::growing()
        .making("present_k", "joined")
        .reading("present_k", "joined")
        .before(constants)
        .node(node("Slice", &["joined", "start", "end", "axis"], "present_k"))
        .output(value("present_k", FLOAT, &["batch", "2", "past", "16"]));
    if start.is_none() { made.input(value("start", ElementType::Int64, &["1"])) } else { made }
}

/// Models of sherpa-onnx take each layer from one cache, and put the layers together again.
#[test]
fn layers_that_are_put_together_again() {
    let mut nodes = vec![node("Relu", &["new_k"], "rows")];
    for layer in ["0", "1"] {
        let [taken, joined, stacked] = ["taken", "joined", "stacked"].map(|what| format!("{what}{layer}"));
        let mut join = node("Concat", &[&taken, "rows"], &joined);
        join.attribute = vec![int("axis", 1)];
        nodes.extend([
            node("Gather", &["past_k", "layer"], &taken),
            join,
            node("Unsqueeze", &[&joined, "layer"], &stacked),
        ]);
    }
    let mut stack = node("Concat", &["stacked0", "stacked1"], "present_k");
    stack.attribute = vec![int("axis", 0)];
    let made = Made::growing()
        .input(value("layer", ElementType::Int64, &[]))
        .output(value("logits", FLOAT, &["batch", "s", "32"]))
        .before(nodes)
        .node(node("Relu", &["q"], "logits"))
        .change("present_k", |node| *node = stack);
    // The second stack has two kinds of keys for each layer.
    for (stack, batch) in [(&["2", "batch"][..], 1), (&["2", "2", "batch"], 2)] {
        let shape = |length| [stack, &[length, "16"]].concat();
        let made = made.clone();
        let made = made.input(value("past_k", FLOAT, &shape("past")));
        let made = made.output(value("present_k", FLOAT, &shape("all")));
        let style = format!("unknown: one tensor has several caches, with the batch at axis {batch}");
        assert_eq!(keys(made), (style, stack.len()));
    }
}
