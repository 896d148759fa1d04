//! Tests decoders whose masks show the tokens of a block to each other, such as those of an image.

use kvscatter::ElementType::{Float32, Int32};
use kvscatter_onnx::convert::{
    ConvertOptions, ConvertRefusal, Converted, LinearReason, WindowedCaches, convert,
};
use kvscatter_onnx::decoder::InputRole;
use kvscatter_onnx::{Dimension, Model};

use crate::support::{Nodes, count, counts, decoder, fix_dim, llama_with_blocks, refusal, values};

const SLOTS: usize = 24;

/// A decoder with one layer. Each part is the text of nodes.
#[derive(Clone, Copy)]
struct Blocks<'t> {
    /// Computes `block` from `own` and `ids`, the ids of the new tokens and of all slots.
    block: &'t str,
    /// Computes `visible` from `causal`, `near`, `block` and `real`.
    visible: &'t str,
    /// Computes `y` from `queries`, `keys`, `present.v` and `visible`.
    attention: &'t str,
    /// The type of the ids.
    ids: &'t str,
}

const SEPARATE: &str = "scores = MatMul(queries, Transpose(present.k) {perm=[0, 1, 3, 2]})
    y = MatMul(Softmax(Where(visible, scores, low)), present.v)";

const NODE: &str = "y = Attention(queries, present.k, present.v, visible)";

const IN_WINDOW: &str = "visible = And(And(Or(causal, block), near), real)";
const BEYOND_WINDOW: &str = "visible = And(Or(And(causal, near), block), real)";

impl Default for Blocks<'_> {
    fn default() -> Self {
        Self {
            block: "block = And(Equal(own, ids), GreaterOrEqual(own, 0))",
            visible: "visible = And(Or(causal, block), real)",
            attention: SEPARATE,
            ids: "int64",
        }
    }
}

impl Blocks<'_> {
    fn model(&self) -> Model {
        let mut nodes = Nodes::new(Float32);
        nodes.add("low = -3.0e38; x = Gather(0.1[24, 8], input_ids)");
        nodes.add(
            "length = Shape(past.k) {start=2, end=3}
            total = Add(length, Shape(input_ids) {start=1, end=2})
            slots = Range(0, Squeeze(total), 1)
            column = Unsqueeze(Range(Squeeze(length), Squeeze(total), 1), [-1])
            causal = LessOrEqual(slots, column)
            near = Greater(slots, Sub(column, 4))
            real = Unsqueeze(Cast(attention_mask) {to=bool}, [1, 2])
            wide = Cast(block_sequence_ids) {to=int64}
            of_new = Slice(wide, length, total, [1])
            own = Unsqueeze(of_new, [1, 3])
            ids = Unsqueeze(wide, [1, 2])",
        );
        nodes.add(self.block);
        nodes.add(self.visible);
        nodes.add(
            "queries = Transpose(Reshape(MatMul(x, 0.5[8, 8]), [0, 0, 2, 4])) {perm=[0, 2, 1, 3]}
            k = Transpose(Reshape(MatMul(x, 0.3[8, 8]), [0, 0, 2, 4])) {perm=[0, 2, 1, 3]}
            v = Transpose(Reshape(MatMul(x, 0.2[8, 8]), [0, 0, 2, 4])) {perm=[0, 2, 1, 3]}
            present.k = Concat(past.k, k) {axis=2}; present.v = Concat(past.v, v) {axis=2}",
        );
        nodes.add(self.attention);
        nodes.add("logits = Reshape(Transpose(y) {perm=[0, 2, 1, 3]}, [0, 0, 8])");
        let ids = format!(
            "input_ids: int64[batch, tokens], attention_mask: int64[batch, all], block_sequence_ids: {}[batch, all], \
             other: int64[batch, all]",
            self.ids
        );
        let caches = |[k, v]: [&str; 2], length| {
            format!("{k}: float[batch, 2, {length}, 4], {v}: float[batch, 2, {length}, 4]")
        };
        nodes.model(
            values(&format!("{ids}, {}", caches(["past.k", "past.v"], "past"))),
            values(&format!(
                "logits: float[batch, tokens, 8], {}",
                caches(["present.k", "present.v"], "all")
            )),
        )
    }

    fn converted(&self) -> Converted {
        let rings = WindowedCaches::Ring { chunk: Some(2), rewind: 0 };
        let options = ConvertOptions::new(SLOTS).windowed(rings);
        convert(&self.model(), options).unwrap_or_else(|error| panic!("{}: {error}", self.visible))
    }
}

#[test]
fn a_converted_decoder_takes_the_id_of_each_slot() {
    for (ids, attention, fused) in [("int64", SEPARATE, 1), ("int64", NODE, 0), ("int32", SEPARATE, 1)] {
        let exported = Blocks { ids, attention, ..Blocks::default() };
        let (model, converted) = (exported.model(), exported.converted());
        for (model, slots) in
            [(&model, Dimension::Symbolic("all")), (&converted.model, Dimension::Known(SLOTS))]
        {
            let decoder = decoder(model);
            let input = decoder.input(InputRole::BlockIds).unwrap();
            assert_eq!(input.name, "block_sequence_ids");
            assert_eq!(input.element == Int32, ids == "int32");
            assert_eq!(input.shape.as_ref().unwrap()[1], slots);
        }
        assert_eq!(counts(&converted), (1, 1, fused), "{ids} {attention}");
        assert_eq!(count(&converted.model, "Or"), 1);
        let text = converted.model.metadata("kvscatter.blocks").unwrap();
        assert!(text.starts_with("block_sequence_ids: [batch, 24]"), "{text}");
    }
}

#[test]
fn a_window_may_end_blocks_or_not() {
    for (visible, is_limited) in [(IN_WINDOW, true), (BEYOND_WINDOW, false)] {
        for attention in [SEPARATE, NODE] {
            let converted = Blocks { visible, attention, ..Blocks::default() }.converted();
            let windows = &converted.report.caches.windows;
            assert!(
                windows.iter().all(|cache| cache.window == Some(4)) && !windows.is_empty(),
                "{windows:?}"
            );
            assert!(converted.report.caches.rings.is_empty());
            let linear = &converted.report.caches.linear_windows;
            assert!(
                linear.iter().all(|window| window.reason == LinearReason::Blocks) && linear.len() == 1,
                "{linear:?}"
            );
            let text = converted.model.metadata("kvscatter.blocks").unwrap();
            assert_eq!(text.contains("is not before the window"), is_limited, "{text}");
        }
    }
}

/// The past of a node with a past and a present is a cache that it appends to.
#[test]
fn attention_that_appends_rows_takes_blocks() {
    for shown in ["And(Or(causal, block), near)", "Or(And(causal, near), block)"] {
        let model = llama_with_blocks(shown);
        let converted = convert(&model, SLOTS).unwrap();
        assert!(decoder(&converted.model).input(InputRole::BlockIds).is_some(), "{shown}");
        assert_eq!(converted.report.attention.nodes, 2);
        assert!(converted.report.caches.rings.is_empty());
    }
    let refusal = refusal(&llama_with_blocks("Or(causal, near)"), SLOTS);
    assert!(matches!(refusal, ConvertRefusal::Visibility { hidden: false, .. }), "{refusal}");
}

/// Blocks of image tokens make no difference, so no input has their ids.
#[test]
fn ids_that_no_mask_uses_are_dropped() {
    let converted = Blocks { visible: "visible = And(causal, real)", ..Blocks::default() }.converted();
    assert!(decoder(&converted.model).input(InputRole::BlockIds).is_none());
    assert!(converted.model.metadata("kvscatter.blocks").is_none());
}

/// In steps of single tokens, only a window hides tokens of the same block.
#[test]
fn steps_of_one_token_have_no_later_tokens() {
    for (visible, has_ids) in [(Blocks::default().visible, false), (IN_WINDOW, false), (BEYOND_WINDOW, true)]
    {
        let mut model = Blocks { visible, ..Blocks::default() }.model();
        fix_dim(&mut model, "tokens", 1);
        let converted = convert(&model, SLOTS).unwrap();
        assert_eq!(decoder(&converted.model).input(InputRole::BlockIds).is_some(), has_ids, "{visible}");
    }
}

#[test]
fn a_mask_that_uses_the_ids_in_another_way_is_refused_with_the_name_of_the_input() {
    let same = Blocks::default().block;
    let visible = Blocks::default().visible;
    for (what, block, visible) in [
        ("later blocks", "block = And(GreaterOrEqual(ids, own), GreaterOrEqual(own, 0))", visible),
        ("earlier blocks", "block = And(LessOrEqual(ids, own), GreaterOrEqual(own, 0))", visible),
        ("text is a block", "block = Equal(own, ids)", visible),
        ("0 is text", "block = And(Equal(own, ids), Greater(own, 0))", visible),
        ("any block", "block = And(GreaterOrEqual(ids, 0), GreaterOrEqual(own, 0))", visible),
        ("padding of a block", same, "visible = Or(And(causal, real), block)"),
        ("the causal part is missing", same, "visible = And(block, real)"),
        ("only the block and text", same, "visible = And(And(causal, Or(block, Less(own, 0))), real)"),
        ("hides the block", same, "visible = And(And(causal, Not(block)), real)"),
        ("later windows", same, "visible = And(Or(causal, And(block, Less(slots, Add(column, 3)))), real)"),
        (
            "the first ids",
            "first = Unsqueeze(Slice(wide, [0], Shape(input_ids) {start=1, end=2}, [1]), [1, 3])
            block = And(Equal(first, ids), GreaterOrEqual(first, 0))",
            visible,
        ),
        (
            "the ids of the first sample",
            "first = Slice(own, [0], [1], [0]); block = And(Equal(first, ids), GreaterOrEqual(first, 0))",
            visible,
        ),
        (
            "narrow ids",
            "few = Cast(own) {to=float}; all = Cast(ids) {to=float}
            block = And(Equal(few, all), GreaterOrEqual(own, 0))",
            visible,
        ),
        ("large ids", "block = And(And(Equal(own, ids), GreaterOrEqual(own, 0)), Less(own, 5))", visible),
    ] {
        for attention in [SEPARATE, NODE] {
            let refusal = refusal(&Blocks { block, visible, attention, ..Blocks::default() }.model(), SLOTS);
            let is_named =
                matches!(&refusal, ConvertRefusal::MaskBlocks { input, .. } if input == "block_sequence_ids");
            assert!(is_named, "{what}: {refusal}");
        }
    }
    let distances = "counts = CumSum(attention_mask, 1); places = Unsqueeze(counts, [1, 2])
        of_own = Unsqueeze(Slice(counts, length, total, [1]), [1, 3])
        block = And(Equal(own, ids), GreaterOrEqual(own, 0))
        tokens = Greater(places, Sub(of_own, 12)); slots_near = Greater(slots, Sub(column, 12))";
    let several = "block = And(And(Equal(own, ids), GreaterOrEqual(own, 0)), Greater(Sub(total, length), 1))";
    for (block, visible) in [
        (distances, "visible = And(Or(And(causal, slots_near), And(block, tokens)), real)"),
        (several, BEYOND_WINDOW),
    ] {
        let refusal = refusal(&Blocks { block, visible, ..Blocks::default() }.model(), SLOTS);
        assert!(matches!(&refusal, ConvertRefusal::MaskBlocks { .. }), "{visible}: {refusal}");
    }
    let block = "types = Unsqueeze(other, [1, 2]); block = And(Equal(own, types), GreaterOrEqual(own, 0))";
    let refusal = refusal(&Blocks { block, ..Blocks::default() }.model(), SLOTS);
    assert_eq!(refusal, ConvertRefusal::MaskInput { input: "other".to_owned() });
}

/// A step has the ids of its new tokens only.
#[test]
fn values_may_depend_on_the_ids_of_new_tokens_and_not_on_those_of_cached_ones() {
    let scaled = |scale: &str| {
        let attention = format!("{SEPARATE}; scale = {scale}").replace("y = ", "unscaled = ");
        let scaled = "y = Mul(unscaled, Unsqueeze(Cast(scale) {to=float}, [1, 3]))";
        let attention = format!("{attention}\n{scaled}");
        convert(&Blocks { attention: &attention, ..Blocks::default() }.model(), SLOTS)
    };
    assert!(scaled("Max(of_new, 1)").is_ok());
    for scale in
        ["ReduceMax(wide, [1])", "Slice(CumSum(Cast(Less(wide, 0)) {to=int64}, 1), length, total, [1])"]
    {
        let error = scaled(scale).unwrap_err();
        let refusal = error.cause::<ConvertRefusal>();
        let is_named = matches!(refusal, Some(ConvertRefusal::CachedBlocks { input, value })
            if input == "block_sequence_ids" && value.contains("unsqueeze"));
        assert!(is_named, "{scale}: {error}");
    }
}
