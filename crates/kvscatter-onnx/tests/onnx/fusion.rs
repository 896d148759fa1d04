//! Tests that attention of separate nodes becomes one `Attention` node in every form that exporters write, and
//! that it stays as it is where one node would compute something else.
//!
//! `python-tests/test_fuse.py` shows in ONNX Runtime that such decoders compute the same.

use half::{bf16, f16};
use kvscatter::ElementType::{self, BFloat16, Float16, Float32};
use kvscatter_onnx::convert::{
    ConvertOptions, ConvertRefusal, Converted, KeptReason, LinearReason, LinearWindow, WindowedCaches,
    convert,
};
use kvscatter_onnx::internal::{MaskRule, mask_rule};
use kvscatter_onnx::{Model, Node, OnnxError, RuntimeVersion};

use crate::support::{
    Nodes, assert_refused, counts, declare, first, float, graph_mut, insert, kept_reasons, load, maker,
    op_types, refusal, reroute, values,
};

const SLOTS: usize = 16;

/// One attention operation that reads two caches, with a node at each place where exporters put one. Each part is the
/// text of nodes that read a value, which is `$`.
///
/// There are 6 heads of size 4. The vocabulary is as large as the hidden state, so that the table of embeddings is
/// known by the logits.
#[derive(Clone, Copy)]
pub(super) struct Form<'t> {
    pub(super) element: ElementType,
    pub(super) kv_heads: usize,
    pub(super) queries: &'t str,
    pub(super) keys: &'t str,
    pub(super) repeat: &'t str,
    pub(super) values: &'t str,
    pub(super) scores: &'t str,
    pub(super) mask: &'t str,
    pub(super) masked: &'t str,
    pub(super) weights: &'t str,
}

/// Repeats each head of keys or values for the queries that share it.
const EXPANDED: &str = "Reshape(Expand(Unsqueeze($, [2]), [1, 1, 2, 1, 1]), [0, 6, -1, 4])";
pub(super) const TILED: &str = "Reshape(Tile(Unsqueeze($, [2]), [1, 1, 2, 1, 1]), [0, 6, -1, 4])";

/// Repeats all heads in a row, so that neighbouring queries read different heads.
pub(super) const TILED_HEADS: &str = "Reshape(Tile(Unsqueeze($, [1]), [1, 2, 1, 1, 1]), [0, 6, -1, 4])";

pub(super) const CAPPED: &str = "Mul(Tanh(Div(Mul($, 0.5), 4.0)), 4.0)";

/// A factor of each token that is 1 up to position 12, and 0.5 from there.
pub(super) const BY_POSITION: &str = "Unsqueeze(Where(Less(position_ids, [12]), 1.0, 0.5), [1, 3])";

/// Computes `visible` and `bias`, `[batch, 1, tokens, all]`.
pub(super) const VISIBLE: &str = "
    length = Squeeze(Shape(past.k) {start=2, end=3})
    new = Squeeze(Shape(input_ids) {start=1, end=2})
    total = Add(length, new)
    slots = Range(0, total, 1)
    column = Unsqueeze(Range(length, total, 1), [-1])
    visible = And(LessOrEqual(slots, column), Unsqueeze(Cast(attention_mask) {to=bool}, [1, 2]))
    bias = Where(visible, none, low)
";

/// Hides all but the last 4 positions by `seen`.
const WINDOWED: &str = "seen = And(visible, Greater(slots, Sub(column, [4]))); Where(seen, $, low)";

impl Form<'static> {
    /// Returns attention as it is defined, with a mask that is added.
    pub(super) fn plain() -> Self {
        let [scores, mask] = ["Mul($, 0.5)", "Add($, bias)"];
        let [queries, keys, repeat, values, masked, weights] = ["$"; 6];
        Self { element: Float32, kv_heads: 6, queries, keys, repeat, values, scores, mask, masked, weights }
    }

    pub(super) fn grouped() -> Self {
        Self { kv_heads: 3, repeat: EXPANDED, ..Self::plain() }
    }
}

impl Form<'_> {
    pub(super) fn model(&self) -> Model {
        let Self { element, kv_heads, .. } = *self;
        let mut nodes = Nodes::new(element);
        let low = match element {
            Float16 => f16::MIN.to_f32(),
            BFloat16 => bf16::MIN.to_f32(),
            _ => f32::MIN,
        };
        nodes.add(&format!(
            "low = {low:?}; none = 0.0; table = 0.1[24, 24]; project = 0.2[24, {}]",
            4 * kv_heads
        ));
        nodes.add("words = Gather(table, input_ids); places_table = 0.3[32, 24]");
        nodes.add("where = Gather(places_table, position_ids); x = Add(words, where)");
        nodes.add(VISIBLE);
        nodes.add("queries = Transpose(Reshape(x, [0, 0, 6, 4])) {perm=[0, 2, 1, 3]}");
        let rows = format!("Reshape(MatMul(x, project), [0, 0, {kv_heads}, 4])");
        nodes.add(&format!("rows = Transpose({rows}) {{perm=[0, 2, 1, 3]}}"));
        nodes.add("present.k = Concat(past.k, rows) {axis=2}; present.v = Concat(past.v, rows) {axis=2}");
        let mut chain = |first: &str, steps: &[&str]| {
            steps.iter().fold(first.to_owned(), |value, step| nodes.apply(step, &value))
        };
        let keys = chain("present.k", &[self.repeat, "Transpose($) {perm=[0, 1, 3, 2]}", self.keys]);
        let product = format!("MatMul($, {keys})");
        let scores = chain("queries", &[self.queries, &product, self.scores, self.mask, self.masked]);
        let weights = chain(&scores, &["Softmax($)", self.weights]);
        let values_read = chain("present.v", &[self.repeat, self.values]);
        nodes.add(&format!("y = MatMul({weights}, {values_read})"));
        nodes.add("by_token = Transpose(y) {perm=[0, 2, 1, 3]}; logits = Reshape(by_token, [0, 0, 24])");
        let cache = |length| format!("{element}[batch, {kv_heads}, {length}, 4]");
        let ids = "input_ids, position_ids: int64[batch, tokens], attention_mask: int64[batch, all]";
        nodes.model(
            values(&format!("{ids}, past.k, past.v: {}", cache("past"))),
            values(&format!("logits: {element}[batch, tokens, 24], present.k, present.v: {}", cache("all"))),
        )
    }
}

pub(super) fn converted(form: &Form<'_>) -> Converted {
    convert(&form.model(), SLOTS).unwrap()
}

/// Returns the attributes of the only `Attention`: its scale, its cap and the precision of its softmax.
fn attributes(attention: &Node<'_>) -> (f32, f32, i64) {
    let float = |name| attention.float(name).unwrap().unwrap_or_default();
    let precision = attention.int("softmax_precision").unwrap();
    (float("scale"), float("softcap"), precision.unwrap_or_default())
}

/// Checks that a decoder has one `Attention` that reads the caches, and returns the attributes.
fn fused(what: &str, form: &Form<'_>) -> (f32, f32, i64) {
    let converted = converted(form);
    assert_eq!(counts(&converted), (1, 1, 1), "{what}: {:?}", kept_reasons(&converted));
    let graph = converted.model.graph().unwrap();
    let attention = *graph.nodes().iter().find(|node| node.is("Attention")).unwrap();
    let read = [Some("present.k"), Some("present.v"), None, None, Some("nonpad_kv_seqlen")];
    assert_eq!([1, 2, 4, 5, 6].map(|slot| attention.input(slot)), read, "{what}");
    assert_eq!(converted.report.inputs.nonpad_kv_seqlen.as_deref(), Some("nonpad_kv_seqlen"), "{what}");
    let visible = attention.input(3).unwrap();
    let mask = graph.nodes().iter().find(|node| node.output(0) == Some(visible)).unwrap();
    assert_eq!(mask.op_type(), "Unsqueeze", "{what}");
    let readers = |name: &str| {
        graph.nodes().iter().filter(|node| node.reads().contains(name)).map(Node::op_type).collect::<Vec<_>>()
    };
    assert_eq!([readers("present.k"), readers("present.v")], [["Attention"], ["Attention"]], "{what}");
    let of_attention = ["Softmax", "Expand", "Tile", "Tanh", "Where", "Max"];
    assert!(!op_types(&converted.model).iter().any(|op_type| of_attention.contains(op_type)), "{what}");
    let found = attributes(&attention);
    // Older versions of ONNX Runtime cap scores that are masked.
    let least = if found.1 == 0.0 { "1.25" } else { "1.27" };
    assert_eq!(converted.model.metadata("kvscatter.least_onnxruntime"), Some(least), "{what}");
    found
}

/// Checks that the attention of a decoder stays as it is, and returns the reason.
pub(super) fn kept(form: &Form<'_>) -> KeptReason {
    let mut converted = converted(form);
    assert_eq!(counts(&converted), (1, 0, 0));
    let nodes = op_types(&converted.model);
    assert!(nodes.contains(&"Softmax") && !nodes.contains(&"Attention"));
    assert_eq!(converted.report.inputs.nonpad_kv_seqlen, None);
    let kept = converted.report.attention.kept.remove(0);
    assert!(converted.report.attention.kept.is_empty());
    assert_eq!(kept.output, "y");
    kept.reason
}

/// Checks that a value is read in an unknown way, and returns its name.
pub(super) fn refused_value(form: &Form<'_>) -> String {
    match refusal(&form.model(), SLOTS) {
        ConvertRefusal::Reader { value, .. } => value,
        other => panic!("{other}"),
    }
}

/// Each form becomes one node with these attributes.
#[test]
fn every_form_becomes_one_node() {
    let (plain, grouped) = (Form::plain(), Form::grouped());
    let unscaled = Form { scores: "$", ..plain };
    let (half, quarter, before) = ("Mul($, 0.5)", "Div($, 4.0)", "Mul(0.5[1], $)");
    // Some softmaxes are computed in float32.
    let wide = Form {
        scores: "Cast(Mul($, 0.5)) {to=float}",
        mask: "Add($, Cast(bias) {to=float})",
        weights: "Cast($) {to=float16}",
        element: Float16,
        ..grouped
    };
    let usual = (0.5, 0.0, 0);
    for (what, form, attributes) in [
        ("no scale", unscaled, (1.0, 0.0, 0)),
        ("scaled scores", plain, usual),
        ("divided scores", Form { scores: quarter, ..unscaled }, (0.25, 0.0, 0)),
        ("a factor before the scores", Form { scores: before, ..unscaled }, usual),
        ("scaled queries", Form { queries: half, ..unscaled }, usual),
        ("a factor before the queries", Form { queries: before, ..unscaled }, usual),
        ("divided keys", Form { keys: quarter, ..unscaled }, (0.25, 0.0, 0)),
        ("scaled queries and keys", Form { queries: half, keys: half, ..unscaled }, (0.25, 0.0, 0)),
        ("a scale in three places", Form { queries: half, keys: quarter, ..plain }, (0.0625, 0.0, 0)),
        ("a scale after the mask", Form { masked: half, ..unscaled }, usual),
        (
            "the same factor for each head",
            Form { scores: "Mul($, Expand(0.5, [1, 6, 1, 1]))", ..plain },
            usual,
        ),
        ("another factor of each head of queries", Form { queries: "Mul($, 0.5[6, 1, 1])", ..plain }, usual),
        ("a mask that chooses", Form { mask: "Where(visible, $, low)", ..plain }, usual),
        ("a mask that chooses where hidden", Form { mask: "Where(Not(visible), low, $)", ..plain }, usual),
        ("a mask with a floor", Form { mask: "Max(Add(bias, $), low)", ..plain }, usual),
        ("a mask with a floor before", Form { mask: "Max(low, Add(bias, $))", ..plain }, usual),
        ("a guard", Form { weights: "Where(IsNaN($), none, $)", ..plain }, usual),
        ("heads repeated by Expand", grouped, usual),
        ("heads repeated by Tile", Form { repeat: TILED, ..grouped }, usual),
        ("one head by broadcast", Form { kv_heads: 1, ..plain }, usual),
        ("a cap", Form { scores: CAPPED, ..grouped }, (0.5, 4.0, 0)),
        // The hyperbolic tangent is odd.
        ("a negative cap", Form { scores: "Mul(Tanh(Mul($, -0.25)), -2.0)", ..plain }, (0.5, 2.0, 0)),
        ("queries without a transposition", Form { queries: "Reshape(x, [0, 6, -1, 4])", ..plain }, usual),
        // The shape of a value inside is no other use, also if a node is between.
        (
            "a mask of as many slots as the keys",
            Form {
                keys: "turned = Identity($)",
                mask: "Add($, Slice(bias, [0], Shape(Identity(turned)) {start=3}, [3]))",
                ..plain
            },
            usual,
        ),
        ("float16", Form { element: Float16, ..grouped }, usual),
        ("a cap in float16", Form { element: Float16, scores: CAPPED, ..plain }, (0.5, 4.0, 0)),
        ("a softmax in float32", wide, (0.5, 0.0, 1)),
        ("bfloat16", Form { element: BFloat16, ..grouped }, usual),
    ] {
        assert_eq!(fused(what, &form), attributes, "{what}");
    }
    // The values are cast as well, so the result is float32 and is cast to it.
    let mut model = Form { weights: "$", values: "Cast($) {to=float}", ..wide }.model();
    declare(&mut model, "logits: float[batch, tokens, 24]");
    let converted = convert(&model, SLOTS).unwrap();
    assert_eq!(converted.report.attention.fused, 1);
    let graph = converted.model.graph().unwrap();
    let last = graph.nodes().iter().find(|node| node.output(0) == Some("y")).unwrap();
    assert_eq!((last.op_type(), last.int("to").unwrap()), ("Cast", Some(1)));
}

/// The attention of each form stays as it is.
#[test]
fn forms_without_an_equal_node_stay() {
    let (plain, grouped) = (Form::plain(), Form::grouped());
    let half = "Mul($, 0.5)";
    let by_position = format!("Mul($, {BY_POSITION})");
    let tiled_keys = "Reshape(Tile(Unsqueeze($, [1]), [1, 2, 1, 1, 1]), [0, 6, 4, -1])";
    let differs = "Differs { scale: 0.5, softcap: 0.0, difference: ";
    for (what, form, expected) in [
        ("scaled values", Form { values: half, ..plain }, "the values are scaled"),
        ("scaled weights", Form { weights: half, ..plain }, "the weights are scaled"),
        ("a negative scale", Form { scores: "Mul($, -0.5)", ..plain }, "the scale is not a positive number"),
        ("two caps", Form { scores: "Tanh(Tanh($))", ..plain }, "the scores have two caps"),
        ("a shift", Form { scores: "Add($, 0.5)", ..plain }, "something is added to the scores"),
        // The factor is 1 at the lengths at which random values are compared.
        ("a factor by position", Form { weights: &by_position, ..plain }, "Factor { value: \"unsqueeze"),
        (
            "a factor by head",
            Form { scores: "factors = 0.5[6, 1, 1]; Mul($, factors)", ..plain },
            "Factor { value: \"factors\" }",
        ),
        // A number that depends on the tokens takes the place of NaN.
        (
            "a guard",
            Form { weights: "Where(IsNaN($), ReduceSum(x) {keepdims=0}, $)", ..plain },
            "Unknown { value: \"reducesum",
        ),
        ("another order of heads", Form { repeat: TILED_HEADS, ..grouped }, differs),
        (
            "another order of keys",
            Form { repeat: "$", keys: tiled_keys, values: EXPANDED, ..grouped },
            differs,
        ),
    ] {
        let reason = kept(&form);
        let is_expected = reason.to_string() == expected || format!("{reason:?}").starts_with(expected);
        assert!(is_expected, "{what}: {reason:?}");
        assert!(
            !matches!(reason, KeptReason::Differs { difference, .. } if difference <= 0.1),
            "{what}: {reason}"
        );
    }
}

/// The scores or caches of each form are read in a way that is unknown, or that a static cache changes.
#[test]
fn forms_whose_result_would_change_are_refused() {
    let plain = Form::plain();
    for (what, form, expected) in [
        // A floor would show a slot that a later mask hides.
        ("a floor before", Form { scores: "floored = Max(low, $)", ..plain }, "matmul_"),
        ("a floor", Form { scores: "floored = Max($, low)", ..plain }, "matmul_"),
        // The parts of a cache that is split along its slots have other slots.
        (
            "a split",
            Form { values: "half, rest = Split($) {axis=2, num_outputs=2}; half", ..plain },
            "present.v",
        ),
        // Such factors have one entry for each slot, and a static cache has more slots.
        (
            "a factor by slot before",
            Form { scores: "multiplied = Mul(Cast(slots) {to=float}, $)", ..plain },
            "matmul_",
        ),
        ("a factor by slot", Form { scores: "divided = Div($, Cast(slots) {to=float})", ..plain }, "matmul_"),
        // A product with values that are not weights has no slots along its last axis.
        (
            "a sum without a softmax",
            Form { weights: "unused = Identity(MatMul(bias, present.v)); $", ..plain },
            "present.v",
        ),
    ] {
        let value = refused_value(&form);
        assert!(value.starts_with(expected), "{what}: {value}");
    }
    // Each factor is allowed alone. Three of 1/32 leave -0.3 of a hidden score of -1e4.
    let twice = Form { masked: "Div(Div($, 32.0), 32.0)", ..plain };
    // Heads that become the inner dimension of the slots mix the values of different slots.
    let regrouped = "Transpose(Reshape(Reshape($, [0, -1, 24]), [0, -1, 6, 4])) {perm=[0, 2, 1, 3]}";
    for (form, why) in [
        (twice, "masked scores may be multiplied once, by a factor from 1/32 to 1"),
        (Form { values: regrouped, ..plain }, "this node changes the order of the slots"),
    ] {
        assert_refused!(
            convert(&form.model(), SLOTS),
            ConvertRefusal::Reader { reason: Some(reason), .. } if *reason == why
        );
    }
    // A score of -1 is not hidden.
    let weak = Form { mask: "Where(visible, $, -1.0)", ..plain };
    assert_eq!(refusal(&weak.model(), SLOTS), ConvertRefusal::Filler { filler: -1.0, limit: -1e4 });
    // The factor is 1 up to slot 12, and 0.5 from there.
    let by_length = "Mul($, Where(Less([12], total), 0.5[1], 1.0[1]))";
    for form in [Form { queries: by_length, ..plain }, Form { scores: by_length, ..plain }] {
        let error = convert(&form.model(), SLOTS).unwrap_err();
        assert!(error.to_string().contains("depends on the length of the past"), "{error}");
    }
}

/// ONNX Runtime before 1.27 would compute something else.
#[test]
fn a_cap_stays_for_an_older_onnx_runtime() {
    let options = |version: &str| ConvertOptions::new(SLOTS).onnxruntime(version.parse().unwrap());
    let model = Form { scores: CAPPED, ..Form::grouped() }.model();
    assert_eq!(convert(&model, options("1.27")).unwrap().report.attention.fused, 1);
    let converted = convert(&model, options("1.26.9")).unwrap();
    assert_eq!(converted.model.metadata("kvscatter.least_onnxruntime"), Some("1.25"));
    assert_eq!(counts(&converted), (1, 0, 0));
    let kept = &converted.report.attention.kept;
    assert!(matches!(kept[0].reason, KeptReason::Softcap) && kept.len() == 1, "{kept:?}");
    let nodes = op_types(&converted.model);
    assert!(nodes.contains(&"Tanh") && !nodes.contains(&"Attention"));
    let error = convert(&model, options("1.24")).unwrap_err().to_string();
    assert_eq!(
        error,
        "ONNX Runtime 1.24 must run the model, but TensorScatter needs 1.25 or newer without kvscatter's plugin"
    );
}

/// The error is about the exported node, and not about the one that takes its place.
#[test]
fn an_attention_with_a_cap_is_refused_for_an_older_onnx_runtime() {
    let mut model = load("mobius-llama-dynamic");
    let index = first(graph_mut(&mut model), "Attention");
    let attributes = &mut graph_mut(&mut model).node[index].attribute;
    attributes.retain(|attribute| attribute.name.as_deref() != Some("softcap"));
    attributes.push(float("softcap", 5.0));
    let exported = model.graph().unwrap().nodes()[index].label();
    let options = ConvertOptions::new(SLOTS);
    assert_eq!(convert(&model, options).unwrap().report.least_onnxruntime, RuntimeVersion::WITH_CAP);
    let older = options.onnxruntime(RuntimeVersion::WITH_SCATTER);
    assert_refused!(convert(&model, older), ConvertRefusal::OnnxRuntime { .. });
    let OnnxError::InNode { node, .. } = convert(&model, older).unwrap_err() else { panic!() };
    assert_eq!(*node, exported);
}

#[test]
fn products_of_rank_3_are_reshaped_away() {
    let model = load("decoders/optimum-1.18-opt");
    let converted = convert(&model, SLOTS).unwrap();
    assert_eq!((converted.report.attention.fused, converted.report.attention.kept.len()), (2, 0));
    let graph = converted.model.graph().unwrap();
    let attentions: Vec<_> = graph.nodes().iter().filter(|node| node.is("Attention")).collect();
    assert_eq!(attentions.len(), 2);
    for attention in attentions {
        let reader = graph.nodes().iter().find(|node| node.reads().contains(attention.output(0).unwrap()));
        assert_eq!(reader.unwrap().op_type(), "Transpose");
    }
}

/// The new masks have the heads of one sample in a row.
#[test]
fn heads_of_several_samples_in_a_row_are_refused() {
    let merged = "Reshape(Transpose($) {perm=[1, 0, 2, 3]}, Concat([-1], Shape($) {start=2}) {axis=0})";
    let mask = "Add($, Reshape(Slice(bias, [0], [1], [0]), Shape(bias) {start=1}))";
    let plain = Form::plain();
    let model = Form { queries: merged, keys: merged, values: merged, mask, ..plain }.model();
    assert_refused!(
        convert(&model, SLOTS),
        ConvertRefusal::ScoresShape { rank: 3 } | ConvertRefusal::Reader { .. }
    );
}

/// BLOOM multiplies matrices with all heads of all samples in one axis.
#[test]
fn samples_and_heads_may_be_merged() {
    let merged = "Reshape($, Concat([-1], Shape($) {start=2}) {axis=0})";
    let mask = "by_head = Expand(bias, [1, 6, 1, 1]);
        Add($, Reshape(by_head, Concat([-1], Shape(by_head) {start=2}) {axis=0}))";
    let form = Form { queries: merged, keys: merged, values: merged, mask, ..Form::plain() };
    let mut model = form.model();
    // The heads are split after another node has read the result.
    let graph = graph_mut(&mut model);
    let end = maker(graph, "y");
    graph.node[end].output[0] = "attended".to_owned();
    let split = "y = Reshape(Neg(attended), Concat([-1, 6], Shape(attended) {start=1}) {axis=0})";
    insert(&mut model, end + 1, Nodes::parse(split));
    let converted = convert(&model, SLOTS).unwrap();
    assert_eq!(counts(&converted), (1, 1, 1), "{:?}", kept_reasons(&converted));
    let graph = converted.model.graph().unwrap();
    let attended = graph.nodes().iter().find(|node| node.output(0) == Some("attended")).unwrap();
    assert_eq!(attended.op_type(), "Reshape");
}

#[test]
fn a_bias_is_compared_with_the_precision_of_its_type() {
    for element in [Float16, BFloat16] {
        let masked = |places: &str| format!("Add(Add($, Mul(0.5[6, 1, 1], {places})), bias)");
        let places = format!("Cast(slots) {{to={element}}}");
        let [mask, bent] = [masked(&places), masked(&format!("Sqrt({places})"))];
        let form = Form { element, mask: &mask, ..Form::plain() };
        assert!(convert(&form.model(), SLOTS).is_ok(), "{element}");
        let model = Form { mask: &bent, ..form }.model();
        assert_eq!(mask_rule(&model, SLOTS), Some(MaskRule::Bias));
        assert_refused!(convert(&model, SLOTS), ConvertRefusal::Bias { .. });
    }
}

fn with_rings(model: &Model) -> Converted {
    let windows = WindowedCaches::Ring { chunk: Some(2), rewind: 0 };
    convert(model, ConvertOptions::new(SLOTS).windowed(windows)).unwrap()
}

/// A ring has no slot for the bias of an early position.
#[test]
fn a_window_with_a_bias_is_no_ring() {
    let mask = WINDOWED.replace('$', "Add($, Mul(0.5[6, 1, 1], Cast(slots) {to=float}))");
    let converted = with_rings(&Form { mask: &mask, ..Form::plain() }.model());
    let reason = LinearReason::Bias;
    assert_eq!(converted.report.caches.linear_windows, [LinearWindow { window: 4, attentions: 1, reason }]);
    assert!(converted.report.caches.rings.is_empty());
}

/// The table is as long as the cache of the model needs, and a list of all positions up to the last one grows with it.
#[test]
fn positions_limit_the_tokens_of_a_ring() {
    let windowed = Form { mask: WINDOWED, ..Form::plain() };
    assert_eq!(with_rings(&windowed.model()).report.caches.most_tokens, Some(SLOTS));
    let queries = "all = Range(0, Add(ReduceMax(position_ids) {keepdims=0}, 1), 1)
        Add($, ReduceMin(Cast(all) {to=float}) {keepdims=0})";
    let mut model = Form { queries, ..windowed }.model();
    let graph = graph_mut(&mut model);
    reroute(graph, "where", "words");
    graph.node.retain(|node| node.output[0] != "where");
    assert_eq!(with_rings(&model).report.caches.most_tokens, Some(SLOTS));
}

/// Both layers read the cache of the first one, and share the nodes that repeat its heads.
#[test]
fn layers_that_share_a_cache_become_one_node_each() {
    let mut model = load("optimum-llama");
    let graph = graph_mut(&mut model);
    let is_dropped = |name: &str| name.starts_with("past_key_values.1") || name.starts_with("present.1");
    graph.input.retain(|input| !is_dropped(input.name.as_deref().unwrap()));
    graph.output.retain(|output| !is_dropped(output.name.as_deref().unwrap()));
    graph.node.retain(|node| !is_dropped(&node.output[0]));
    for read in graph.node.iter_mut().flat_map(|node| &mut node.input) {
        *read = read.replace("present.1", "present.0");
    }
    let converted = convert(&model, SLOTS).unwrap();
    assert!(converted.report.attention.kept.is_empty(), "{:?}", kept_reasons(&converted));
    assert_eq!((converted.report.caches.count, counts(&converted)), (2, (2, 2, 2)));
}

/// Scores whose heads and samples share a dimension, as in Bloom and Falcon.
#[test]
fn a_bias_of_merged_heads_is_found() {
    let scores = "sizes = Shape($) {start=2}
        shape = Concat([-1], sizes) {axis=0}
        bias_by_head = Expand(Mul(0.5[6, 1, 1], Add(Cast(slots) {to=float}, 1.0)), Shape($))
        Reshape(Add(Reshape($, shape), Reshape(bias_by_head, shape)), Concat([-1, 6], sizes) {axis=0})";
    let model = Form { scores, ..Form::plain() }.model();
    assert_eq!(mask_rule(&model, SLOTS), Some(MaskRule::Bias));
    convert(&model, SLOTS).unwrap();
}

/// The dimensions of embeddings follow from what they are.
#[test]
fn embeddings_need_no_names_of_dimensions() {
    let mut model = Form::plain().model();
    let graph = graph_mut(&mut model);
    graph.input.splice(..1, values("inputs_embeds: float[?, ?, 24]"));
    graph.node.retain(|node| node.output[0] != "words");
    reroute(graph, "input_ids", "inputs_embeds");
    reroute(graph, "words", "inputs_embeds");
    assert!(convert(&model, SLOTS).is_ok());
}

/// The table is not read to evaluate masks, so only its size shows that it is too short.
#[test]
fn a_table_of_positions_with_too_few_rows_is_named() {
    let mut later = Form::plain().model();
    let place = maker(graph_mut(&mut later), "where");
    graph_mut(&mut later).node[place].input[1] = "second".to_owned();
    insert(&mut later, place, Nodes::parse("second = Add(position_ids, [1])"));
    for (what, model, most) in [("positions", Form::plain().model(), 32), ("later positions", later, 31)] {
        assert!(convert(&model, most).is_ok(), "{what}");
        let (table, max_seq) = ("places_table".to_owned(), most + 1);
        assert_eq!(refusal(&model, max_seq), ConvertRefusal::Table { table, rows: 32, max_seq }, "{what}");
    }
}

/// Llama 4 multiplies queries by a factor that is 1 for the first positions and grows from there.
#[test]
fn a_factor_that_changes_far_into_a_text_stays_with_the_queries() {
    let queries = format!("scaled = Mul($, {BY_POSITION}); Mul(scaled, 0.5)");
    let converted = converted(&Form { queries: &queries, ..Form::plain() });
    let graph = converted.model.graph().unwrap();
    let attention = graph.nodes().iter().find(|node| node.is("Attention")).unwrap();
    assert_eq!((attention.input(0), attributes(attention)), (Some("scaled"), (0.25, 0.0, 0)));
}

#[test]
fn values_that_are_read_elsewhere_stay() {
    let weights = "other = Identity(MatMul($, present.v)); $";
    let mut model = Form { weights, ..Form::plain() }.model();
    graph_mut(&mut model).output.extend(values("other: float[batch, 6, tokens, 4]"));
    let converted = convert(&model, SLOTS).unwrap();
    let kept = &converted.report.attention.kept;
    assert_eq!((converted.report.attention.nodes, kept.len()), (0, 2));
    assert!(kept.iter().any(|kept| matches!(kept.reason, KeptReason::Read { .. })), "{kept:?}");
    assert!(op_types(&converted.model).contains(&"Softmax"));
}

#[test]
fn types_of_queries_and_caches_must_be_equal() {
    let mut model = Form::plain().model();
    // The caches become float16, and are cast before they are read.
    declare(
        &mut model,
        "past.k, past.v: float16[batch, 6, past, 4], present.k, present.v: float16[batch, 6, all, 4]",
    );
    for part in ["k", "v"] {
        let graph = graph_mut(&mut model);
        reroute(graph, &format!("present.{part}"), &format!("wide_{part}"));
        let place = maker(graph, &format!("present.{part}"));
        graph.node[place].input[1] = format!("narrow_{part}");
        let cast = format!("wide_{part} = Cast(present.{part}) {{to=float}}");
        insert(&mut model, place + 1, Nodes::parse(&cast));
        insert(&mut model, place, Nodes::parse(&format!("narrow_{part} = Cast(rows) {{to=float16}}")));
    }
    let converted = convert(&model, SLOTS).unwrap();
    assert_eq!(converted.report.attention.fused, 0);
    let reason = &converted.report.attention.kept[0].reason;
    assert!(matches!(reason, KeptReason::Types { queries: Float32, cache: Float16 }), "{reason}");
}

#[test]
fn keep_attention_leaves_every_node() {
    let options = ConvertOptions::new(SLOTS).keep_attention(true);
    let converted = convert(&Form::grouped().model(), options).unwrap();
    assert_eq!(counts(&converted), (1, 0, 0));
    assert!(converted.report.attention.kept.is_empty() && converted.report.inputs.nonpad_kv_seqlen.is_none());
    assert!(["Expand", "Softmax"].iter().all(|op_type| op_types(&converted.model).contains(op_type)));
    // Nodes that the exporter wrote as Attention are not kept, because they have the past as inputs.
    let exported = load("mobius-llama-dynamic");
    let converted = convert(&exported, options).unwrap();
    assert_eq!(counts(&converted), (2, 2, 0));
}
