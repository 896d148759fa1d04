//! Tests that positions which a decoder computes from the length of its past become those of each sample.

use kvscatter::ElementType::Float32;
use kvscatter_onnx::convert::{ConvertRefusal, convert};
use kvscatter_onnx::{Graph, Model};

use crate::support::{Nodes, assert_refused, extend, first, graph_mut, refusal, values};

const SLOTS: usize = 16;

/// Returns a decoder that adds `rows` to the tokens `words`. Its table `places` has 2 rows more than a cache has slots.
fn model(rows: &str) -> Model {
    let mut nodes = Nodes::new(Float32);
    nodes.add("words = Gather(0.1[24, 8], input_ids); places = 0.3[18, 8]");
    nodes.add(
        "length = Squeeze(Shape(past.k) {start=2, end=3}); new = Squeeze(Shape(input_ids) {start=1, end=2})",
    );
    nodes.add(rows);
    nodes.add(
        "y, present.k, present.v = Attention(x, x, x, _, past.k, past.v)
            {is_causal=1, q_num_heads=2, kv_num_heads=2}; logits = Neg(y)",
    );
    nodes.model(
        values("input_ids: int64[batch, tokens], past.k, past.v: float[batch, 2, past, 4]"),
        values("logits: float[batch, tokens, 8], present.k, present.v: float[batch, 2, all, 4]"),
    )
}

/// Returns `true` if a value is computed from an input.
fn depends(graph: &Graph<'_>, value: &str, input: &str) -> bool {
    let Some((node, _)) = graph.producer(value) else { return value == input };
    node.inputs().flatten().any(|value| depends(graph, value, input))
}

/// Checks that the positions of the converted decoder are those of each sample.
fn check(rows: &str) {
    let converted = convert(&model(rows), SLOTS).unwrap_or_else(|error| panic!("{rows}: {error}"));
    let graph = converted.model.graph().unwrap();
    let lookup = graph.nodes().iter().find(|node| node.is("Gather") && node.input(0) == Some("places"));
    assert!(depends(&graph, lookup.unwrap().input(1).unwrap(), "write_indices"), "{rows}");
}

/// Positions may begin after rows that the table has for something else.
#[test]
fn positions_with_an_offset_are_those_of_each_sample() {
    for rows in [
        "x = Add(words, Gather(places, Unsqueeze(Add(Range(length, Add(length, new), 1), 2), [0])))",
        "first = Add(length, 2)
        x = Add(words, Gather(places, Unsqueeze(Range(first, Add(first, new), 1), [0])))",
        "first = Add(length, 2); where = Unsqueeze(Range(first, Add(first, new), 1), [0])
        x = SkipLayerNormalization@com.microsoft(words, Gather(places, where), 0.5[8], 0.1[8])",
    ] {
        check(rows);
        let table = "places".to_owned();
        let max_seq = SLOTS + 1;
        assert_eq!(
            refusal(&model(rows), max_seq),
            ConvertRefusal::Table { table, rows: 18, max_seq },
            "{rows}"
        );
    }
}

#[test]
fn positions_with_an_offset_that_changes_are_refused() {
    for first in ["Add(length, Min(length, 2))", "Add(length, new)", "Mul(length, 2)"] {
        let rows = format!(
            "first = {first}
            x = Add(words, Gather(0.3[64, 8], Unsqueeze(Range(first, Add(first, new), 1), [0])))"
        );
        assert_refused!(convert(&model(&rows), SLOTS), ConvertRefusal::LengthDependence { .. });
    }
}

/// Positions that count real tokens depend on the ids, so they are not known.
const COUNTED: &str = "real = Cast(Not(Equal(input_ids, 1))) {to=int32}
    counted = Mul(Add(CumSum(real, 1), $), real)
    x = Add(words, Gather(places, Add(Cast(counted) {to=int64}, 1)))";

#[test]
fn counted_positions_begin_at_the_past_of_each_sample() {
    for past in ["Cast(length) {to=int32}", "Cast(Unsqueeze(length, [0, 1])) {to=int32}"] {
        check(&COUNTED.replace('$', past));
    }
}

#[test]
fn a_table_for_counted_positions_needs_a_row_for_each_slot() {
    for padding in ["1", "0", "2"] {
        let rows = COUNTED
            .replace('$', "Cast(length) {to=int32}")
            .replace("input_ids, 1", &format!("input_ids, {padding}"));
        let (table, max_seq) = ("places".to_owned(), SLOTS + 1);
        assert_eq!(refusal(&model(&rows), max_seq), ConvertRefusal::Table { table, rows: 18, max_seq });
        check(&rows);
    }
}

#[test]
fn counted_positions_that_begin_elsewhere_are_refused() {
    let counted = COUNTED.replace("places", "0.3[64, 8]");
    for past in ["Min(length, 12)", "Mul(length, 2)", "Add(length, new)", "Unsqueeze(length, [0, 1, 2])"] {
        let rows = counted.replace('$', &format!("Cast({past}) {{to=int32}}"));
        assert_refused!(convert(&model(&rows), SLOTS), ConvertRefusal::LengthDependence { .. });
    }
    let rows = counted.replace("Add(CumSum(real, 1), $)", "Mul(CumSum(real, 1), Cast(length) {to=int32})");
    assert_refused!(convert(&model(&rows), SLOTS), ConvertRefusal::LengthDependence { .. });
}

/// Slots that are not in use may have any value in the mask, so positions must not count them.
#[test]
fn positions_that_count_the_whole_mask_are_refused() {
    for (counts, is_refused) in [
        ("CumSum(attention_mask, 1)", false),
        ("Expand(ReduceSum(attention_mask, [1]) {keepdims=1}, Shape(attention_mask))", true),
    ] {
        let rows = format!(
            "counts = {counts}
            x = Gather(0.1[64, 8], Add(input_ids, Slice(counts, Unsqueeze(length, [0]), [99], [1])))
            visible = Unsqueeze(Cast(attention_mask) {{to=bool}}, [1, 2])"
        );
        let mut model = model(&rows);
        extend(&mut model, "attention_mask: int64[batch, all]", "", "");
        let attention = first(graph_mut(&mut model), "Attention");
        graph_mut(&mut model).node[attention].input[3] = "visible".to_owned();
        match convert(&model, SLOTS) {
            Ok(_) => assert!(!is_refused, "{counts}"),
            Err(error) => {
                let refusal = error.cause();
                let depends = matches!(refusal, Some(ConvertRefusal::LengthDependence { .. }));
                assert!(is_refused && depends, "{counts}: {error}");
            }
        }
    }
}

/// The number of slots takes the place of the number of tokens in shapes alone.
#[test]
fn arithmetic_on_the_number_of_all_tokens_is_refused() {
    for sum in
        ["Add(words, Cast($) {to=float})", "Where(Equal(Mod(Unsqueeze(input_ids, [2]), $), 0), words, 0.0)"]
    {
        let rows = format!("x = {}", sum.replace('$', "Add(length, new)"));
        assert_refused!(convert(&model(&rows), SLOTS), ConvertRefusal::LengthDependence { .. });
    }
}
