//! Tests caches whose style is not known, with the reason.

use kvscatter_onnx::decoder::{CachePart, UnknownStyle, WriterStyle};

use super::made::Made;
use crate::support::decoder;

const MHA: &str = "MultiHeadAttention@com.microsoft(q, new_k, new_v, _, _, _, past_k, past_v)";

/// Returns a decoder whose caches a node of another operator writes.
fn written_by(node: &str) -> Made {
    Made::attention_past().edit("Attention(q, new_k, new_v, _, past_k, past_v)", node)
}

#[test]
fn unknown_styles_have_a_reason() {
    let concat = |text| Made::growing().edit("Concat(past_k, new_k) {axis=-2}", text);
    let masked = "DecoderMaskedMultiHeadAttention@com.microsoft(q, new_k, new_v, _, _, past_k, past_v)";
    // `kvscatter lower` replaces a `TensorScatter` with such nodes.
    let scattered = |op_type: &str| {
        let made = Made::fixed().input("at: int64[batch, 2, s, 16]");
        made.edit("TensorScatter(past_k, new_k, write_indices)", &format!("{op_type}(past_k, at, new_k)"))
    };
    let reshaped = Made::growing().edit("(past_k", "(Reshape(past_k, shape)");
    for (made, reason, axis) in [
        (concat("Concat(Relu(new_k), past_k) {axis=-2}"), "the new rows come before the old ones", 2),
        (concat("Concat(past_k, new_k, new_v) {axis=-2}"), "a Concat of 3 tensors", 2),
        (
            Made::growing()
                .edit("axis=-2", "axis=0")
                .input("past_k: float[past, batch, 2, 16]")
                .output("present_k: float[all, batch, 2, 16]"),
            "the sequence is axis 0",
            0,
        ),
        (reshaped.input("shape: int64[4]"), "Reshape changes its shape", 2),
        (written_by(MHA), "com.microsoft's MultiHeadAttention writes it", 2),
        (written_by(masked), "com.microsoft's DecoderMaskedMultiHeadAttention writes it", 2),
        (scattered("ScatterND"), "ScatterND writes it", 2),
        (scattered("ScatterElements"), "ScatterElements writes it", 2),
    ] {
        let model = made.model();
        let decoder = decoder(&model);
        let cache = decoder.caches.iter().find(|cache| cache.past == "past_k").unwrap();
        assert_eq!((cache.style.to_string(), cache.axis), (format!("unknown: {reason}"), axis));
        assert_eq!(cache.present, "present_k", "{reason}");
    }
    let parts: Vec<_> = decoder(&written_by(MHA).model()).caches.iter().map(|cache| cache.part).collect();
    assert_eq!(parts, [CachePart::Key, CachePart::Value]);
}

/// In an unknown domain, pasts and presents are paired in order.
#[test]
fn an_operator_of_an_unknown_domain() {
    let made = written_by("KeyValueAttention@org.example(q, past_v, past_k)");
    let model = made.input("q: float[batch, s, 32]").output("y: float[batch, s, 32]").model();
    let decoder = decoder(&model);
    let pairs: Vec<_> = decoder.caches.iter().map(|cache| (cache.past, cache.present)).collect();
    assert_eq!(pairs, [("past_k", "present_k"), ("past_v", "present_v")]);
    let operator =
        UnknownStyle::Operator { domain: "org.example".to_owned(), op_type: "KeyValueAttention".to_owned() };
    assert_eq!(decoder.caches[0].style, WriterStyle::Unknown(operator));
}

/// In the merged decoders of optimum, one branch has a past and the other has none.
#[test]
fn a_branch_that_holds_the_decoder() {
    // New rows are not pasts. Here they have another layout.
    let mut made = Made::growing().input("use_cache: bool[1], new_k, new_v: float[batch, s, 32]");
    made.nodes = "y = Relu(q)
        present_k, present_v = If(use_cache) {
            then_branch={then_v = Concat(past_v, new_v) {axis=2}; then_k = Concat(past_k, new_k) {axis=2}
                return then_k, then_v},
            else_branch={else_k = Identity(new_k); else_v = Identity(new_v); return else_k, else_v}}"
        .to_owned();
    let model = made.model();
    let decoder = decoder(&model);
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
        let decoder = decoder(&model);
        let cache = decoder.caches.iter().find(|cache| cache.past == "past_k").unwrap();
        assert_eq!((cache.style.to_string().as_str(), cache.between.len()), (expected, 1));
    }
}

/// Creates a layer whose keys are cut after the new rows were appended. A start that is `None` is an input.
pub(super) fn cut(start: Option<i64>, end: i64, axis: i64) -> Made {
    let made = Made::growing()
        .edit("present_k", "joined")
        .before(&format!(
            "end = Constant() {{value=int64[{end}]}}; axis = Constant() {{value=int64[{axis}]}}"
        ))
        .node("present_k = Slice(joined, start, end, axis)")
        .output("present_k: float[batch, 2, past, 16]");
    match start {
        None => made.input("start: int64[1]"),
        Some(start) => made.before(&format!("start = Constant() {{value=int64[{start}]}}")),
    }
}
