//! Tests that attention with sinks becomes one `Attention` node and a factor of its result.
//!
//! `python-tests/test_standard.py` shows in ONNX Runtime that such decoders compute the same.

use kvscatter::ElementType;
use kvscatter_onnx::convert::KeptReason;

use crate::fusion::{
    Form, Nodes, Step, as_it_is, capped, converted, factor_by_position, kept, op_types, refused_value,
    tiled_heads,
};
use crate::support::int;

/// The number of heads of [`Form::plain`].
const HEADS: usize = 6;

/// Appends a sink of each head to masked scores.
fn with_sinks(nodes: &mut Nodes, scores: &str) -> String {
    sunk(nodes, scores, 2.0)
}

fn sunk(nodes: &mut Nodes, scores: &str, first: f32) -> String {
    with_value(nodes, scores, |nodes| {
        nodes.floats("sinks", &[1, HEADS, 1, 1], first);
        "sinks".to_owned()
    })
}

/// Appends a value `[1, heads, 1, 1]` to the scores of every token.
fn with_value(nodes: &mut Nodes, scores: &str, value: impl FnOnce(&mut Nodes) -> String) -> String {
    let sinks = value(nodes);
    let rows = nodes.add("Shape", &[scores]);
    nodes.attribute(int("end", 3));
    let shape = nodes.add("Concat", &[&rows, "one"]);
    nodes.attribute(int("axis", 0));
    let sinks = nodes.add("Expand", &[&sinks, &shape]);
    let all = nodes.add("Concat", &[scores, &sinks]);
    nodes.attribute(int("axis", -1));
    all
}

/// Subtracts the largest score of each row, as transformers does.
fn with_sinks_below_0(nodes: &mut Nodes, scores: &str) -> String {
    let all = with_sinks(nodes, scores);
    let largest = nodes.add("ReduceMax", &[&all, "last"]);
    nodes.add("Sub", &[&all, &largest])
}

/// Drops the weight of the sink.
fn without_sinks(nodes: &mut Nodes, weights: &str) -> String {
    nodes.add("Slice", &[weights, "zero", "last", "last"])
}

/// Appends sinks in float16 to scores in float32.
fn with_narrow_sinks(nodes: &mut Nodes, scores: &str) -> String {
    with_value(nodes, scores, |nodes| {
        nodes.floats("narrow_sinks", &[1, HEADS, 1, 1], 2.0);
        nodes.cast("narrow_sinks", ElementType::Float32)
    })
}

/// Drops the weight of the sink from weights in float32, which become float16.
fn without_narrow_sinks(nodes: &mut Nodes, weights: &str) -> String {
    let narrow = nodes.cast(weights, ElementType::Float16);
    without_sinks(nodes, &narrow)
}

fn form(masked: Step) -> Form {
    Form { masked, weights: without_sinks, ..Form::grouped() }
}

#[test]
fn a_sink_becomes_a_factor_of_the_result() {
    let narrow = Form { element: ElementType::Float16, ..form(with_sinks_below_0) };
    // The softmax is computed in float32.
    let mask: Step = |nodes, scores| {
        let added = nodes.add("Add", &[scores, "bias"]);
        nodes.cast(&added, ElementType::Float32)
    };
    let wide = Form { mask, masked: with_narrow_sinks, weights: without_narrow_sinks, ..narrow.clone() };
    for (what, form) in [
        ("plain", form(with_sinks)),
        ("below 0", form(with_sinks_below_0)),
        ("float16", narrow),
        ("a softmax in float32", wide),
    ] {
        let converted = converted(&form);
        assert!(converted.kept.is_empty(), "{what}: {:?}", converted.kept);
        assert_eq!((converted.attentions, converted.attention_nodes, converted.fused), (1, 1, 1), "{what}");
        let graph = converted.model.graph().unwrap();
        let attention = *graph.nodes().iter().find(|node| node.is("Attention")).unwrap();
        assert_eq!(attention.attribute("qk_matmul_output_mode").and_then(|mode| mode.i), Some(2), "{what}");
        assert_eq!([1, 2].map(|slot| attention.output(slot)), [None, None], "{what}");
        let last = *graph.nodes().iter().find(|node| node.output(0) == Some("y")).unwrap();
        assert_eq!((last.op_type(), last.input(0)), ("Mul", attention.output(0)), "{what}");
        assert!(!op_types(&converted).contains(&"Softmax"), "{what}");
    }
}

/// Large sinks leave almost nothing of the result, so the proof has other sinks.
#[test]
fn large_sinks_do_not_hide_another_order_of_heads() {
    let large: Step = |nodes, scores| sunk(nodes, scores, 20.0);
    let right = form(large);
    assert_eq!(converted(&right).fused, 1);
    let reason = kept(&Form { repeat: tiled_heads, ..right });
    assert!(matches!(reason, KeptReason::Differs { difference, .. } if difference > 0.1), "{reason}");
}

#[test]
fn columns_that_are_no_sinks_are_refused() {
    // Scores without a mask.
    let unmasked = refused_value(&Form { mask: with_sinks, ..form(as_it_is) });
    assert!(unmasked.starts_with("mul_"), "{unmasked}");
    // The largest score of each column.
    let largest = refused_value(&form(|nodes, scores| {
        let all = with_sinks(nodes, scores);
        nodes.called("largest", "ReduceMax", &[&all, "two"]);
        all
    }));
    assert!(largest.starts_with("concat_"), "{largest}");
    // The weight of the first slot is dropped, and that of the sink is kept.
    let dropped = refused_value(&Form {
        weights: |nodes, weights| {
            nodes.ints("end", &[i64::MAX]);
            nodes.add("Slice", &[weights, "one", "end", "last"])
        },
        ..form(with_sinks)
    });
    assert!(dropped.starts_with("softmax_"), "{dropped}");
    // Another number is subtracted from each column.
    let columns = refused_value(&form(|nodes, scores| {
        let all = with_sinks(nodes, scores);
        nodes.called("after_total", "Add", &["total", "step"]);
        let columns = nodes.add("Range", &["from", "after_total", "step"]);
        let columns = nodes.cast(&columns, ElementType::Float32);
        nodes.called("shifted", "Sub", &[&all, &columns]);
        "shifted".to_owned()
    }));
    assert!(columns.starts_with("concat_"), "{columns}");
}

#[test]
fn other_sinks_stay() {
    // The scores would be rounded to the type of the caches.
    let wide: Step = |nodes, value| nodes.cast(value, ElementType::Float32);
    let mask: Step = |nodes, scores| {
        let bias = nodes.cast("bias", ElementType::Float32);
        let scaled = nodes.cast(scores, ElementType::Float32);
        nodes.add("Add", &[&scaled, &bias])
    };
    let element = ElementType::Float16;
    let reason = kept(&Form {
        element,
        queries: wide,
        keys: wide,
        scores: as_it_is,
        mask,
        masked: with_narrow_sinks,
        weights: without_narrow_sinks,
        ..Form::grouped()
    });
    assert_eq!(reason.to_string(), "it has a sink, and its scores have another type than its caches");
    // With a cap, mode 2 of the scores changed in ONNX Runtime 1.27.
    let reason = kept(&Form { scores: capped, ..form(with_sinks) });
    assert_eq!(reason.to_string(), "its scores have both a cap and a sink");
    let reason = kept(&form(|nodes, scores| sunk(nodes, scores, f32::NEG_INFINITY)));
    assert_eq!(reason.to_string(), "a sink is not one finite number for each head");
    // The sinks depend on the tokens.
    let reason = kept(&form(|nodes, scores| {
        let sinks = nodes.by_head("x", "by_head");
        let sinks = nodes.add("Slice", &[&sinks, "zero", "one", "last"]);
        let all = nodes.add("Concat", &[scores, &sinks]);
        nodes.attribute(int("axis", -1));
        all
    }));
    assert!(matches!(reason, KeptReason::Unknown { .. }), "{reason}");
    // The sinks are others far into a text.
    let reason = kept(&form(|nodes, scores| {
        with_value(nodes, scores, |nodes| {
            nodes.floats("sinks", &[1, HEADS, 1, 1], 2.0);
            let factor = factor_by_position(nodes);
            nodes.add("Mul", &["sinks", &factor])
        })
    }));
    assert!(matches!(reason, KeptReason::Form { .. }), "{reason}");
}
