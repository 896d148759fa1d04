//! Tests that latent caches become static. Constant weights compute the keys and values of all heads from a latent row,
//! and another cache has the part of each key that depends on the position.

use kvscatter::ElementType::Float32;
use kvscatter_onnx::convert::{ConvertRefusal, Converted, KeptForm, KeptReason, convert};
use kvscatter_onnx::decoder::CachePart;
use kvscatter_onnx::{Model, OnnxError};

use crate::fusion::VISIBLE;
use crate::support::{Nodes, count, counts, decoder, kinds, values};

const SLOTS: usize = 16;

/// A decoder with 2 heads. Each part is the text of nodes.
#[derive(Clone, Copy)]
struct Latents<'t> {
    /// Reads the latents, which are `$`.
    read: &'t str,
    /// Computes `keys` from `nope` and `turned`.
    keys: &'t str,
    /// Computes `y` from `queries`, `keys`, `v` and `bias`.
    attention: &'t str,
}

const JOINED: &str = "keys = Concat(nope, turned) {axis=3}";

const SEPARATE: &str = "scores = MatMul(queries, Transpose(keys) {perm=[0, 1, 3, 2]})
    y = MatMul(Softmax(Add(scores, bias)), v)";

/// Both parts of the keys are copied into a new tensor, as PyTorch exports it.
const FILLED: &str = "zeros = ConstantOfShape(Concat(Shape(nope) {end=3}, [6]) {axis=0})
    numbers = Range(0, Squeeze(Shape(zeros) {start=3}), 1)
    first = Unsqueeze(Slice(numbers, [0], [4], [0]), [-1])
    begun = Transpose(ScatterND(Transpose(zeros) {perm=[3, 1, 2, 0]}, first, Transpose(nope) {perm=[3, 1, 2, 0]}))
        {perm=[3, 1, 2, 0]}
    last = Unsqueeze(Slice(numbers, [4], [6], [0]), [-1])
    keys = Transpose(ScatterND(Transpose(begun) {perm=[3, 1, 2, 0]}, last, Transpose(turned) {perm=[3, 1, 2, 0]}))
        {perm=[3, 1, 2, 0]}";

impl Default for Latents<'_> {
    fn default() -> Self {
        Self { read: "$", keys: JOINED, attention: SEPARATE }
    }
}

impl Latents<'_> {
    fn model(&self) -> Model {
        let mut nodes = Nodes::new(Float32);
        nodes.add("low = -3.0e38; none = 0.0; x = Gather(0.1[24, 8], input_ids); up = 0.4[4, 16]");
        nodes.add(&VISIBLE.replace("past.k", "past.c"));
        nodes.add("present.c = Concat(past.c, Unsqueeze(MatMul(x, 0.2[8, 4]), [1])) {axis=2}");
        nodes.add("present.r = Concat(past.r, Unsqueeze(MatMul(x, 0.3[8, 2]), [1])) {axis=2}");
        nodes.add("queries = Transpose(Reshape(MatMul(x, 0.5[8, 12]), [0, 0, 2, 6])) {perm=[0, 2, 1, 3]}");
        let read = nodes.apply(self.read, "present.c");
        nodes.add(&format!(
            "rows = Transpose(Reshape(MatMul({read}, up), [0, -1, 2, 8])) {{perm=[0, 2, 1, 3]}}"
        ));
        nodes.add("nope, v = Split(rows, [4, 4]) {axis=3}; turned = Expand(present.r, [1, 2, 1, 1])");
        nodes.add(self.keys);
        nodes.add(self.attention);
        nodes.add("logits = Reshape(Transpose(y) {perm=[0, 2, 1, 3]}, [0, 0, 8])");
        let ids = "input_ids: int64[batch, tokens], attention_mask: int64[batch, all]";
        let caches = |[c, r]: [&str; 2], length| {
            format!("{c}: float[batch, 1, {length}, 4], {r}: float[batch, 1, {length}, 2]")
        };
        nodes.model(
            values(&format!("{ids}, {}", caches(["past.c", "past.r"], "past"))),
            values(&format!(
                "logits: float[batch, tokens, 8], {}",
                caches(["present.c", "present.r"], "all")
            )),
        )
    }

    /// Converts the decoder, whose caches both become static and are read by the nodes that read them before.
    fn converted(&self) -> Converted {
        let model = self.model();
        let converted = convert(&model, SLOTS).unwrap_or_else(|error| panic!("{}: {error}", self.read));
        let graph = converted.model.graph().unwrap();
        for (past, present, size) in [("past.c", "present.c", 4), ("past.r", "present.r", 2)] {
            let (writer, _) = graph.producer(present).unwrap();
            assert!(writer.is("TensorScatter") && writer.input(0) == Some(past), "{present}");
            let cache = converted.model.graph().unwrap().inputs().unwrap();
            let shape = cache.into_iter().find(|input| input.name == past).unwrap().shape.unwrap();
            let sizes: Vec<_> = shape.iter().skip(1).map(|dim| dim.size()).collect();
            assert_eq!(sizes, [Some(1), Some(SLOTS), Some(size)]);
        }
        let reasons: Vec<_> = converted.report.attention.kept.iter().map(|kept| &kept.reason).collect();
        assert!(matches!(reasons[..], [KeptReason::Form(KeptForm::PartOfCache)]), "{reasons:?}");
        assert_eq!(converted.report.caches.bytes_per_slot, Some(4 * (4 + 2)));
        converted
    }

    /// Returns the operator of the node that is refused, the value that it reads, and the reason if there is one.
    fn refused(&self) -> (String, String, Option<&'static str>) {
        let error = convert(&self.model(), SLOTS).unwrap_err();
        match (error.cause(), &error) {
            (Some(ConvertRefusal::Reader { value, reason }), OnnxError::InNode { node, .. }) => {
                (node.op_type.clone(), value.clone(), *reason)
            }
            _ => panic!("{error}"),
        }
    }
}

#[test]
fn latents_and_what_is_computed_from_them_are_read_as_before() {
    let normalised = "RMSNormalization(Add(Mul($, 0.5[4]), 0.1[4]), 0.5[4])";
    for read in ["$", normalised, "LayerNormalization($, 0.5[4], 0.1[4]) {axis=-1}", "MatMul($, 0.3[4, 4])"] {
        let converted = Latents { read, ..Latents::default() }.converted();
        assert_eq!(counts(&converted), (1, 0, 0), "{read}");
    }
    let attention = "y = Attention(queries, keys, v, bias)";
    assert_eq!(counts(&Latents { attention, ..Latents::default() }.converted()), (1, 1, 0));
}

#[test]
fn weights_may_be_transposed_or_quantized() {
    let turned = "MatMul($, Transpose(0.3[4, 4]) {perm=[1, 0]})";
    let codes = "MatMul($, DequantizeLinear(QuantizeLinear(0.3[4, 4], 0.1), 0.1))";
    for read in [turned, codes] {
        let _ = Latents { read, ..Latents::default() }.converted();
    }
}

#[test]
fn a_latent_cache_is_named() {
    for keys in [JOINED, FILLED] {
        let model = Latents { keys, ..Latents::default() }.model();
        let decoder = decoder(&model);
        let parts: Vec<_> = decoder.caches.iter().map(|cache| cache.part).collect();
        assert_eq!(parts, [CachePart::Latent, CachePart::Key], "{keys}");
        assert!(decoder.caches.iter().all(|cache| decoder.attentions(cache) == Some(1)), "{keys}");
        assert_eq!(kinds(&decoder.hazards()), ["grows"; 2], "{keys}");
    }
}

#[test]
fn keys_that_are_filled_part_by_part_are_joined() {
    let converted = Latents { keys: FILLED, ..Latents::default() }.converted();
    assert_eq!(count(&converted.model, "ScatterND"), 0);
    let graph = converted.model.graph().unwrap();
    let (joined, _) = graph.producer("keys").unwrap();
    let parts: Vec<_> = joined.inputs().flatten().collect();
    assert_eq!((joined.op_type(), &parts[..]), ("Concat", &["nope", "turned"][..]));
    let pass = converted.report.passes.iter().find(|pass| pass.name == "parts of values").unwrap();
    assert_eq!(pass.change, "1 values");
}

/// The order in which the parts are written does not matter if they do not overlap.
#[test]
fn parts_are_joined_in_their_places() {
    let parts = FILLED.replace("[0], [4], [0]", "[2], [6], [0]").replace("[4], [6], [0]", "[0], [2], [0]");
    let converted = Latents { keys: &parts, ..Latents::default() }.converted();
    let graph = converted.model.graph().unwrap();
    let (joined, _) = graph.producer("keys").unwrap();
    assert_eq!(joined.inputs().flatten().collect::<Vec<_>>(), ["turned", "nope"]);
}

#[test]
fn parts_that_are_not_the_whole_value_are_not_joined() {
    for (from, to) in [
        // In another order.
        ("[0], [4], [0]", "[3], [-7], [0], [-1]"),
        // Over each other.
        ("[4], [6], [0]", "[3], [5], [0]"),
        // At other places in long texts.
        ("[4], [6], [0]", "Reshape(Add(Mul(Cast(Greater(length, 9)) {to=int64}, -1), 4), [1]), [6], [0]"),
        // In another order of axes.
        ("Transpose(begun) {perm=[3, 1, 2, 0]}", "Transpose(begun) {perm=[3, 2, 1, 0]}"),
        (
            "last, Transpose(turned) {perm=[3, 1, 2, 0]})",
            "last, Transpose(turned) {perm=[3, 1, 2, 0]}) {reduction=\"add\"}",
        ),
    ] {
        let keys = FILLED.replace(from, to);
        assert_ne!(keys, FILLED, "{from}");
        let (op_type, ..) = Latents { keys: &keys, ..Latents::default() }.refused();
        assert_eq!(op_type, "ScatterND", "{to}");
    }
}

/// What is computed from a slot must not depend on other slots, nor on what is no number in a row of zeros.
#[test]
fn rows_of_several_slots_are_refused() {
    for (read, op_type) in [
        ("Softmax($) {axis=2}", "Softmax"),
        ("Sub($, ReduceMean($, [2]) {keepdims=1})", "ReduceMean"),
        ("Conv($, 0.1[1, 1, 3, 1]) {pads=[1, 0, 1, 0]}", "Conv"),
        ("CumSum($, 2)", "CumSum"),
        ("MatMul(Transpose(MatMul(Transpose($) {perm=[0, 1, 3, 2]}, $)) {perm=[0, 1, 3, 2]}, up)", "MatMul"),
        ("Slice($, [-1], [-99], [2], [-1])", "Slice"),
        ("Concat($, $) {axis=2}", "Concat"),
        ("LayerNormalization($, 0.5[4]) {axis=2}", "LayerNormalization"),
        ("RMSNormalization($, 0.5[4]) {epsilon=0.0}", "RMSNormalization"),
        ("Div($, $)", "Div"),
        ("Add($, $)", "Add"),
        ("MatMul($, Squeeze(ReduceMean(MatMul(Transpose(x) {perm=[0, 2, 1]}, x), [0, 1])))", "MatMul"),
    ] {
        let (found, value, _) = Latents { read, ..Latents::default() }.refused();
        let is_before = value == "present.c" || value.starts_with("transpose_");
        assert!(found == op_type && is_before, "{read}: {found} of {value}");
    }
}

#[test]
fn a_latent_cache_that_is_also_read_before_the_write_is_refused() {
    let attention = "old = ReduceSum(MatMul(past.c, up)) {keepdims=0}
        scores = MatMul(queries, Transpose(keys) {perm=[0, 1, 3, 2]})
        y = Add(MatMul(Softmax(Add(scores, bias)), v), old)";
    let error = convert(&Latents { attention, ..Latents::default() }.model(), SLOTS).unwrap_err();
    let refusal = error.cause();
    assert!(matches!(refusal, Some(ConvertRefusal::PastRead { past }) if past == "past.c"), "{error}");
}
