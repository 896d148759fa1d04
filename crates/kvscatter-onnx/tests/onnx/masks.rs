//! Tests the masks, windows and biases of converted models, and refusals of masks.
//!
//! `python-tests/test_convert.py` shows in ONNX Runtime that a converted model computes the same.

use std::collections::BTreeSet;

use kvscatter::ElementType;
use kvscatter_onnx::Model;
use kvscatter_onnx::convert::{
    CacheWindow, ConvertOptions, ConvertOutcome, ConvertRefusal, Converted, WindowedCaches, convert,
};
use kvscatter_onnx::internal::proto::{AttributeProto, NodeProto};

use crate::convert::{MAX_SEQ, changed, converted};
use crate::support::{
    BY_SLOTS, BY_TOKENS, Nodes, assert_refused, count, counts, first, fix_dim, graph_mut, insert, int,
    llama_with_window, load, maker, nodes_mut, op_types, parsed, raw, reader, refusal, reroute,
};

#[test]
fn a_mask_that_keeps_another_rule_is_found_by_what_it_computes() {
    let operator = |new: &'static str| move |node: &mut NodeProto| node.op_type = Some(new.to_owned());
    let is_causal = |attribute: &AttributeProto| attribute.name.as_deref() == Some("is_causal");
    let (llama, dynamic) = ("optimum-llama", "mobius-llama-dynamic");
    let later = Some((0, 1, false, 0));
    for (what, model, expected) in [
        // A token does not see itself.
        ("before", changed(llama, "LessOrEqual", operator("Less")), Some((0, 0, true, 0))),
        ("later tokens", changed(llama, "LessOrEqual", operator("GreaterOrEqual")), later),
        (
            "not causal",
            changed(dynamic, "Attention", |node| node.attribute.retain(|it| !is_causal(it))),
            later,
        ),
        // Nothing is masked, because the mask exists but is not used.
        ("unused", changed(dynamic, "Attention", |node| node.input[3].clear()), None),
    ] {
        let refusal = refusal(&model, MAX_SEQ);
        let ConvertRefusal::Visibility { position, slot, hidden, padding } = refusal else {
            panic!("{refusal}")
        };
        let found = (position, slot, hidden, padding);
        assert!(expected.map_or(!hidden, |expected| found == expected), "{what}: {found:?}");
    }
    // Padding is visible.
    assert!(convert(&changed(dynamic, "Cast", operator("IsNaN")), MAX_SEQ).is_err());
}

/// Blocks of image tokens see each other, and so do the tokens of a prefix.
#[test]
fn a_mask_of_another_input_is_refused_with_its_name() {
    for (input, shown) in [
        ("types: int64[batch, new]", "Unsqueeze(Equal(types, 1), [1, 3])"),
        ("types: int64[batch]", "Less(slots, Unsqueeze(types, [1, 2, 3]))"),
    ] {
        let nodes = format!(
            "tokens = Gather(0.5[16, 4], ids)
            one = Unsqueeze(tokens, [1])
            rows = Concat(one, Neg(one)) {{axis=1}}
            present = Concat(past, rows) {{axis=2}}
            end = Shape(present) {{start=2, end=3}}
            start = Shape(past) {{start=2, end=3}}
            slots = Range(0, Squeeze(end), 1)
            causal = LessOrEqual(slots, Unsqueeze(Slice(slots, start, end), [1]))
            visible = Or(causal, {shown})
            scores = MatMul(rows, Transpose(present) {{perm=[0, 1, 3, 2]}})
            weights = Softmax(Where(visible, scores, -10000.0)) {{axis=-1}}
            logits = Gather(MatMul(weights, present), 0) {{axis=1}}"
        );
        let inputs = format!("ids: int64[batch, new], {input}, past: float[batch, 2, cached, 4]");
        let model = parsed(&inputs, &nodes, "logits: float[batch, new, 4], present: float[batch, 2, all, 4]");
        assert_eq!(
            refusal(&model, MAX_SEQ),
            ConvertRefusal::MaskInput { input: "types".to_owned() },
            "{shown}"
        );
    }
}

#[test]
fn windows() {
    // A window of 4 tokens makes no difference in a cache of 4.
    let window = load("decoders/optimum-0.1-mistral-window");
    for (max_seq, has_window) in [(4, false), (MAX_SEQ, true)] {
        let converted = convert(&window, max_seq).unwrap();
        assert_eq!(op_types(&converted.model).contains(&"Greater"), has_window);
        assert_eq!((converted.report.caches.count, converted.report.attention.nodes), (4, 2));
        let expected = [0, 1].map(|layer| key_window(layer, has_window.then_some(4)));
        assert_eq!(converted.report.caches.windows, expected);
        let kept = convert(&window, ConvertOptions::new(max_seq).keep_attention(true)).unwrap();
        assert_eq!(kept.report.caches.windows, expected);
    }
}

/// Another way to count the places of new tokens and of slots.
const BY_POSITIONS: [&str; 2] = ["position_ids", "slot_numbers"];

/// Only padding between two tokens shows what a window counts, so probes must have such padding in every window.
#[test]
fn a_converted_window_counts_what_the_exported_one_does() {
    let options = ConvertOptions::new(MAX_SEQ).windowed(WindowedCaches::Mask);
    for window in [2, 4, 12, 16, 22, 23] {
        for (counted, tokens) in
            [(BY_SLOTS, None), (BY_SLOTS, Some(1)), (BY_TOKENS, None), (BY_TOKENS, Some(1))]
        {
            let mut model = llama_with_window(window, counted);
            fix_sizes(&mut model, tokens);
            let converted =
                convert(&model, options).unwrap_or_else(|error| panic!("{window} {counted:?}: {error}"));
            let rule = converted.model.metadata("kvscatter.windows").unwrap();
            assert!(rule.starts_with(&format!("{window}: ")), "{rule}");
            assert_eq!(rule.contains("contain real tokens"), counted == BY_TOKENS, "{rule}");
        }
    }
}

#[test]
fn a_window_that_counts_something_else_is_refused() {
    for (window, tokens) in
        [2, 4, 12, 16, 22].into_iter().flat_map(|window| [(window, None), (window, Some(1))])
    {
        let mut model = llama_with_window(window, BY_POSITIONS);
        fix_sizes(&mut model, tokens);
        let refusal = refusal(&model, MAX_SEQ);
        let is_named = matches!(refusal, ConvertRefusal::Visibility { hidden: false, padding: 1.., .. });
        assert!(is_named && refusal.to_string().contains("padding"), "{window}: {refusal}");
    }
}

/// A decoder with a fixed number of new tokens has no caches with fewer slots.
#[test]
fn fewer_slots_are_proposed_only_if_they_may_succeed() {
    for (hidden, tokens, depends) in [
        (20, None, true),
        (20, Some(16), true),
        (20, Some(20), true),
        (20, Some(21), false),
        (8, None, false),
    ] {
        let mut model = llama_with_window(hidden, BY_SLOTS);
        // One token does not see itself.
        let place = maker(graph_mut(&mut model), "near");
        graph_mut(&mut model).node.remove(place);
        let near = "near = Not(And(Equal(rows, window), Equal(columns, window)))";
        insert(&mut model, place, Nodes::parse(near));
        fix_sizes(&mut model, tokens);
        let outcome = ConvertOutcome::at(&model, MAX_SEQ);
        let ConvertOutcome::Refused { cause, depends_on_slots, .. } = &outcome else {
            panic!("{hidden} {tokens:?}")
        };
        let Some(ConvertRefusal::Visibility { position, .. }) = cause.cause() else { panic!("{cause}") };
        assert_eq!(i64::try_from(*position).unwrap(), hidden, "{tokens:?}");
        assert_eq!(*depends_on_slots, depends, "{hidden} {tokens:?}");
    }
}

/// Fixes the number of new tokens, and the batch to 1, if there is a number.
fn fix_sizes(model: &mut Model, tokens: Option<i64>) {
    for (symbol, size) in tokens.into_iter().flat_map(|tokens| {
        [("batch", 1), ("batch_size", 1), ("sequence_len", tokens), ("sequence_length", tokens)]
    }) {
        fix_dim(model, symbol, size);
    }
}

/// Checks that each layer has its own window.
#[test]
fn windows_of_group_query_attention() {
    let model = changed("genai-llama-gqa", "GroupQueryAttention", |node| {
        node.attribute.retain(|attribute| attribute.name.as_deref() != Some("local_window_size"));
        node.attribute.push(int("local_window_size", 5));
    });
    let expected = [key_window(0, Some(5)), key_window(1, None)];
    assert_eq!(convert(&model, MAX_SEQ).unwrap().report.caches.windows, expected);
}

fn key_window(layer: usize, window: Option<usize>) -> CacheWindow {
    CacheWindow { past: format!("past_key_values.{layer}.key"), window }
}

const FALCON: &str = "decoders/optimum-1.18-falcon";

#[test]
fn a_bias_that_is_proportional_to_the_distance_is_converted() {
    let converted = converted(FALCON);
    assert_eq!((converted.report.caches.count, counts(&converted)), (4, (2, 2, 2)));
    let bias = |converted: &Converted| converted.model.metadata("kvscatter.bias").map(str::to_owned);
    assert!(bias(&converted).unwrap().ends_with("counted in real tokens"));
    assert_eq!(bias(&self::converted("optimum-llama")), None);
    // A softmax ignores a number that is added to all scores.
    let shifted = falcon_with("biased = Add($, 3.0)");
    assert_eq!(convert(&shifted, MAX_SEQ).unwrap().report.attention.nodes, 2);
    // There is no distance in a cache of one slot.
    assert_eq!(convert(&load(FALCON), 1).unwrap().report.attention.nodes, 2);
    // One sample with one new token also shows what counts.
    let mut fixed = load(FALCON);
    fix_sizes(&mut fixed, Some(1));
    assert!(bias(&convert(&fixed, MAX_SEQ).unwrap()).unwrap().ends_with("counted in real tokens"));
}

/// The second layer gets its own nodes for the bias, in which all slots count.
#[test]
fn the_metadata_has_the_distance_of_every_bias() {
    let mut model = load(FALCON);
    let (sum, last) = (first(graph_mut(&mut model), "CumSum"), reader(graph_mut(&mut model), BIAS));
    let nodes = &mut graph_mut(&mut model).node;
    let mask = nodes[last].output[0].clone();
    let mut of_slots = nodes[sum..=last].to_vec();
    let outputs: BTreeSet<_> = of_slots.iter().flat_map(|node| node.output.clone()).collect();
    for name in of_slots.iter_mut().flat_map(|node| node.input.iter_mut().chain(&mut node.output)) {
        if outputs.contains(name) {
            *name += "/slots";
        }
    }
    // The nodes after these read the mask to hide padding.
    for name in of_slots.iter_mut().take(5).flat_map(|node| &mut node.input) {
        if name == "attention_mask" {
            "ones".clone_into(name);
        }
    }
    let reader = nodes.iter_mut().rfind(|node| node.input.contains(&mask)).unwrap();
    reader.input.iter_mut().filter(|name| **name == mask).for_each(|name| *name += "/slots");
    nodes.splice(sum..sum, of_slots);
    insert(&mut model, sum, Nodes::parse("ones = Cast(Equal(attention_mask, attention_mask)) {to=int64}"));
    let converted = convert(&model, MAX_SEQ).unwrap();
    let bias = converted.model.metadata("kvscatter.bias").unwrap();
    assert!(
        bias.ends_with("(ALiBi), counted in slots in some layers and in real tokens in others"),
        "{bias}"
    );
}

#[test]
fn layers_share_the_mask_of_a_bias() {
    let converted = converted(FALCON);
    let graph = converted.model.graph().unwrap();
    let attentions = graph.nodes().iter().filter(|node| node.is("Attention"));
    let masks: Vec<_> = attentions.map(|node| node.input(3)).collect();
    assert!(masks.len() == 2 && masks[0] == masks[1], "{masks:?}");
    assert_eq!(count(&converted.model, "CumSum"), 1);
}

#[test]
fn other_biases_are_refused() {
    // It is not proportional.
    let converted = |nodes: &str| convert(&falcon_with(nodes), MAX_SEQ);
    assert_refused!(converted("biased = Sqrt($)"), ConvertRefusal::Bias { .. });
    // It rounds the scores away.
    for huge in ["17e3", "1e9"] {
        let added = converted(&format!("biased = Add($, {huge})"));
        assert_refused!(added, ConvertRefusal::Bias { added, .. } if *added >= 16_384.0);
    }
    // It is that of another sample. Only padding makes a difference.
    let back = format!("biased = Slice($, [-1], [{}], [0], [-1])", i64::MIN);
    assert_refused!(converted(&back), ConvertRefusal::Bias { .. });
    // The slope of one head is greater beyond some position.
    for (head, bend, slope) in [(0, 20, 0.125), (3, 15, 0.001_953_125)] {
        let bend_bias = f32::from(u8::try_from(bend).unwrap()) * slope;
        let heads = format!("Unsqueeze(Equal([0, 1, 2, 3], {head}), [1, 2])");
        let more = format!("Where({heads}, 0.001, 0.0)");
        let fault = format!("biased = Add($, Mul(Relu(Sub($, {bend_bias:?})), {more}))");
        let bent = converted(&fault);
        assert_refused!(
            bent,
            ConvertRefusal::Bias { head: there, position, .. } if (*there, *position) == (head, bend + 1)
        );
    }
}

/// The value that contains the bias of Falcon for each head and slot before slots are hidden.
const BIAS: &str = "/transformer/Div_output_0";

/// Returns Falcon with a bias that these nodes compute as `biased` from the bias `$`.
pub(super) fn falcon_with(nodes: &str) -> Model {
    let mut model = load(FALCON);
    let place = reader(graph_mut(&mut model), BIAS);
    reroute(graph_mut(&mut model), BIAS, "biased");
    insert(&mut model, place, Nodes::parse(&nodes.replace('$', BIAS)));
    model
}

/// A mask may look up each slot in a table, as this bias of `GroupQueryAttention` does. No slot is beyond the capacity.
#[test]
fn a_table_of_biases_needs_a_row_for_each_slot_and_no_more() {
    for (rows, max_seq) in [(16, 16), (17, 16), (600, 16), (3, 3), (1, 1), (100, 128), (15, 16)] {
        let mut model = load("genai-llama-gqa");
        let graph = graph_mut(&mut model);
        let place = first(graph, "GroupQueryAttention");
        for node in nodes_mut(graph, "GroupQueryAttention") {
            node.input.resize(10, String::new());
            node.input.push("bias".to_owned());
        }
        let biases = (0..rows).flat_map(|row: u16| (f32::from(row) / 4.0).to_le_bytes()).collect();
        graph.initializer.push(raw("table", ElementType::Float32, &[i64::from(rows)], biases));
        let nodes = "total = Slice(Shape(attention_mask), [1], [2])
            of_slots = Gather(table, Range(0, Squeeze(total, [0]), 1)) {axis=0}
            bias = Expand(of_slots, Concat([1], [1], Slice(Shape(input_ids), [1], [2]), total) {axis=0})";
        insert(&mut model, place, Nodes::parse(nodes));
        let rows = usize::from(rows);
        match convert(&model, max_seq) {
            Ok(_) => assert!(rows >= max_seq, "{rows} rows, {max_seq} slots"),
            Err(error) => {
                let Some(ConvertRefusal::Table { rows: got, .. }) = error.cause() else { panic!("{error}") };
                assert!(*got == rows && rows < max_seq, "{rows} rows, {max_seq} slots: {error}");
            }
        }
    }
}

/// Creates a decoder in which a node processes the masked scores `$` before the first softmax reads them.
fn before_softmax(node: &str) -> Model {
    let mut model = load("optimum-llama");
    let graph = graph_mut(&mut model);
    let place = first(graph, "Softmax");
    let scores = std::mem::replace(&mut graph.node[place].input[0], "processed".to_owned());
    insert(&mut model, place, Nodes::parse(&format!("processed = {}", node.replace('$', &scores))));
    model
}

#[test]
fn a_slot_must_be_hidden_where_softmax_reads_it() {
    let over = |axis| changed("optimum-llama", "Softmax", |node| node.attribute = vec![int("axis", axis)]);
    for (what, model) in [
        ("the most negative float is minus infinity in float16", before_softmax("Cast($) {to=float16}")),
        ("the factor is so small that a mask of -10000 hides nothing", before_softmax("Mul($, 1e-4)")),
        ("the softmax is over the tokens instead of the slots", over(2)),
    ] {
        let refusal = refusal(&model, MAX_SEQ);
        assert!(matches!(refusal, ConvertRefusal::Reader { .. }), "{what}: {refusal}");
    }
    assert_eq!(convert(&over(3), MAX_SEQ).unwrap().report.attention.count, 2);
}

/// The only new token of each step sees all tokens, so exporters leave its mask out.
#[test]
fn the_only_token_needs_no_mask() {
    let separate = "y = MatMul(Softmax(MatMul(rows, Transpose(present.k) {perm=[0, 1, 3, 2]})), present.v)";
    let merged = "shape = Concat(Mul(Shape(input_ids) {end=1}, 2), [-1, 4]) {axis=0}
        scores = MatMul(Reshape(rows, shape), Transpose(Reshape(present.k, shape)) {perm=[0, 2, 1]})
        y = Reshape(MatMul(Softmax(scores), Reshape(present.v, shape)), [-1, 2, 1, 4])";
    let model = |tokens: &str, attention: &str| {
        // The table has no row for lengths that the conversion does not need.
        let nodes = format!(
            "length = Shape(past.k) {{start=2, end=3}}
            places = Slice(0.3[{MAX_SEQ}, 8], length, Add(length, Shape(input_ids) {{start=1}}), [0])
            x = Add(Gather(0.1[24, 8], input_ids), places)
            rows = Transpose(Reshape(x, [0, 0, 2, 4])) {{perm=[0, 2, 1, 3]}}
            present.k = Concat(past.k, rows) {{axis=2}}
            present.v = Concat(past.v, rows) {{axis=2}}
            {attention}
            logits = Reshape(Transpose(y) {{perm=[0, 2, 1, 3]}}, [0, 0, 8])"
        );
        let inputs = format!("input_ids: int64[batch, {tokens}], past.k, past.v: float[batch, 2, past, 4]");
        let outputs =
            format!("logits: float[batch, {tokens}, 8], present.k, present.v: float[batch, 2, all, 4]");
        parsed(&inputs, &nodes, &outputs)
    };
    for attention in [separate, merged] {
        let model = model("1", attention);
        let fused = convert(&model, MAX_SEQ).unwrap_or_else(|error| panic!("{attention}: {error}"));
        assert_eq!(counts(&fused), (1, 1, 1));
        let kept = convert(&model, ConvertOptions::new(MAX_SEQ).keep_attention(true)).unwrap();
        let softmax = kept.model.graph().unwrap();
        let softmax = softmax.nodes().iter().find(|node| node.is("Softmax")).unwrap().input(0).unwrap();
        assert!(kept.model.graph().unwrap().producer(softmax).unwrap().0.is("Where"), "{attention}");
    }
    for tokens in ["2", "tokens"] {
        assert_eq!(refusal(&model(tokens, separate), MAX_SEQ), ConvertRefusal::Unmasked, "{tokens}");
    }
}
