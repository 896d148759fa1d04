//! Tests that attention with sinks becomes one `Attention` node and a factor of its result.
//!
//! `python-tests/test_standard.py` shows in ONNX Runtime that such decoders compute the same.

use kvscatter::ElementType::Float16;
use kvscatter_onnx::convert::KeptReason;

use crate::fusion::{BY_POSITION, CAPPED, Form, TILED_HEADS, converted, kept, refused_value};
use crate::support::{counts, kept_reasons, op_types};

/// Appends sinks, `[1, heads, 1, 1]`, to the scores of every token.
fn appended(sinks: &str) -> String {
    format!("Concat($, Expand({sinks}, Concat(Shape($) {{end=3}}, [1]) {{axis=0}})) {{axis=-1}}")
}

/// Appends a sink of each head to masked scores.
fn with_sinks() -> String {
    appended("2.0[1, 6, 1, 1]")
}

/// Appends sinks in float16 to scores in float32.
fn with_narrow_sinks() -> String {
    appended("Cast(2.0[1, 6, 1, 1]) {to=float}")
}

/// Drops the weight of the sink.
const WITHOUT_SINKS: &str = "Slice($, [0], [-1], [-1])";

/// Drops the weight of the sink from weights in float32, which become float16.
const WITHOUT_NARROW_SINKS: &str = "Slice(Cast($) {to=float16}, [0], [-1], [-1])";

fn form(masked: &str) -> Form<'_> {
    Form { masked, weights: WITHOUT_SINKS, ..Form::grouped() }
}

#[test]
fn a_sink_becomes_a_factor_of_the_result() {
    let (sinks, narrow_sinks) = (with_sinks(), with_narrow_sinks());
    // transformers subtracts the largest score of each row.
    let below_0 = format!("all = {sinks}; Sub(all, ReduceMax(all, [-1]))");
    let narrow = Form { element: Float16, ..form(&below_0) };
    // The softmax is computed in float32.
    let mask = "Cast(Add($, bias)) {to=float}";
    let wide = Form { mask, masked: &narrow_sinks, weights: WITHOUT_NARROW_SINKS, ..narrow };
    for (what, form) in [
        ("plain", form(&sinks)),
        ("below 0", form(&below_0)),
        ("float16", narrow),
        ("a softmax in float32", wide),
    ] {
        let converted = converted(&form);
        assert_eq!(counts(&converted), (1, 1, 1), "{what}: {:?}", kept_reasons(&converted));
        let graph = converted.model.graph().unwrap();
        let attention = *graph.nodes().iter().find(|node| node.is("Attention")).unwrap();
        assert_eq!(attention.int("qk_matmul_output_mode").unwrap(), Some(2), "{what}");
        assert_eq!([1, 2].map(|slot| attention.output(slot)), [None, None], "{what}");
        let last = *graph.nodes().iter().find(|node| node.output(0) == Some("y")).unwrap();
        assert_eq!((last.op_type(), last.input(0)), ("Mul", attention.output(0)), "{what}");
        assert!(!op_types(&converted.model).contains(&"Softmax"), "{what}");
    }
}

/// Large sinks leave almost nothing of the result, so the proof has other sinks.
#[test]
fn large_sinks_do_not_hide_another_order_of_heads() {
    let large = appended("20.0[1, 6, 1, 1]");
    let right = form(&large);
    assert_eq!(converted(&right).report.attention.fused, 1);
    let reason = kept(&Form { repeat: TILED_HEADS, ..right });
    assert!(matches!(reason, KeptReason::Differs { difference, .. } if difference > 0.1), "{reason}");
}

#[test]
fn columns_that_are_no_sinks_are_refused() {
    let sinks = with_sinks();
    let by_column = format!("all = {sinks}; largest = ReduceMax(all, [2]); all");
    let columns = "Cast(Range(0, Add(total, 1), 1)) {to=float}";
    let shifted = format!("all = {sinks}; shifted = Sub(all, {columns})");
    let first_dropped = Form { weights: "Slice($, [1], [9223372036854775807], [-1])", ..form(&sinks) };
    for (what, form, expected) in [
        ("scores without a mask", Form { mask: &sinks, ..form("$") }, "mul_"),
        ("the largest score of each column", form(&by_column), "all"),
        ("the weight of the first slot dropped", first_dropped, "softmax_"),
        ("another number subtracted from each column", form(&shifted), "all"),
    ] {
        let value = refused_value(&form);
        assert!(value.starts_with(expected), "{what}: {value}");
    }
}

#[test]
fn other_sinks_stay() {
    let (sinks, narrow_sinks) = (with_sinks(), with_narrow_sinks());
    // The scores would be rounded to the type of the caches.
    let wide = Form {
        element: Float16,
        queries: "Cast($) {to=float}",
        keys: "Cast($) {to=float}",
        scores: "$",
        mask: "Add(Cast($) {to=float}, Cast(bias) {to=float})",
        masked: &narrow_sinks,
        weights: WITHOUT_NARROW_SINKS,
        ..Form::grouped()
    };
    let infinite = appended("-inf[1, 6, 1, 1]");
    let by_token = "Concat($, Slice(queries, [0], [1], [-1])) {axis=-1}";
    let far = appended(&format!("Mul(2.0[1, 6, 1, 1], {BY_POSITION})"));
    for (form, expected) in [
        (wide, "it has a sink, and its scores have another type than its caches"),
        // With a cap, mode 2 of the scores changed in ONNX Runtime 1.27.
        (Form { scores: CAPPED, ..form(&sinks) }, "its scores have both a cap and a sink"),
        (form(&infinite), "a sink is not one finite number for each head"),
        (form(by_token), "Unknown {"),
        // The sinks are others far into a text.
        (form(&far), "a sink is not one finite number for each head"),
    ] {
        let reason = kept(&form);
        assert!(reason.to_string() == expected || format!("{reason:?}").starts_with(expected), "{reason:?}");
    }
}
