//! Tests the conversion to static caches: the contents of converted models, and refusals.
//!
//! `python-tests/test_convert.py` shows in ONNX Runtime that a converted model computes the same.

use std::collections::BTreeSet;

use kvscatter::ElementType;
use kvscatter_onnx::convert::{
    CacheWindow, ConvertOptions, ConvertOutcome, ConvertRefusal, Converted, WindowedCaches, convert,
};
use kvscatter_onnx::decoder::{Decoder, Hazard, InputRole, WriterStyle};
use kvscatter_onnx::proto::tensor_shape_proto::dimension::Value as DimValue;
use kvscatter_onnx::proto::type_proto::Value as TypeValue;
use kvscatter_onnx::proto::{GraphProto, ModelProto, NodeProto, TensorProto};
use kvscatter_onnx::{Dimension, Model, Node, OnnxError, tensor_proto};

use crate::support::{int, int64, int64s, load, node, value};

/// Decoders whose caches `Concat` appends to, and those with `Attention` that appends to them.
const CONCAT: [&str; 6] = [
    "optimum-llama",
    "decoders/optimum-1.18-gpt2",
    "decoders/optimum-0.1-qwen3-float16",
    "decoders/optimum-0.1-qwen3-moe",
    "decoders/optimum-1.18-opt",
    "decoders/torch-2.15-llama",
];
const ATTENTION: [&str; 3] =
    ["mobius-llama-dynamic", "decoders/mobius-0.1-gpt2", "decoders/mobius-0.1-qwen3-float16"];

const MAX_SEQ: usize = 24;

fn converted(decoder: &str) -> Converted {
    convert(&load(decoder), MAX_SEQ).unwrap_or_else(|error| panic!("{decoder}: {error}"))
}

fn graph(model: &ModelProto) -> &GraphProto {
    model.graph.as_option().unwrap()
}

fn refused(model: &Model, max_seq: usize) -> ConvertRefusal {
    let Err(error) = convert(model, max_seq) else { panic!("it was converted") };
    match error.root() {
        OnnxError::Convert(refusal) => refusal.clone(),
        other => panic!("{other}"),
    }
}

/// Loads a decoder and changes its first node of this operator.
fn changed(decoder: &str, op_type: &str, change: impl FnOnce(&mut NodeProto)) -> Model {
    let mut model = load(decoder);
    let graph = model.proto_mut().graph.as_option_mut().unwrap();
    change(graph.node.iter_mut().find(|node| node.op_type.as_deref() == Some(op_type)).unwrap());
    model
}

#[test]
fn every_cache_is_written_by_one_node_at_one_place() {
    for decoder in CONCAT.into_iter().chain(ATTENTION) {
        let converted = converted(decoder);
        let proto = converted.model.proto();
        assert_eq!(
            proto
                .opset_import
                .iter()
                .find(|it| it.domain.as_deref().unwrap_or("").is_empty())
                .unwrap()
                .version,
            Some(24)
        );
        let graph = converted.model.graph().unwrap();
        let found = Decoder::of(&graph).unwrap();
        assert_eq!((found.caches.len(), converted.caches, converted.attentions), (4, 4, 2), "{decoder}");
        for cache in &found.caches {
            assert!(matches!(cache.style, WriterStyle::TensorScatter(kvscatter::Mode::Linear)), "{decoder}");
            let writer = cache.writer.unwrap();
            let names = (writer.input(0), writer.input(2), writer.output(0));
            let expected = (cache.past, converted.write_indices.as_str(), cache.present);
            assert_eq!(names, (Some(expected.0), Some(expected.1), Some(expected.2)), "{decoder}");
            assert_eq!((cache.axis, cache.capacity()), (2, Dimension::Known(MAX_SEQ)), "{decoder}");
            assert_eq!(Some(&cache.past_shape), cache.present_info.shape.as_ref(), "{decoder}");
            assert!(cache.between.is_empty() && cache.earlier.is_empty() && cache.copies.is_empty());
        }
        let mask = found.input(InputRole::AttentionMask).unwrap();
        assert_eq!(mask.shape.as_ref().unwrap()[1], Dimension::Known(MAX_SEQ), "{decoder}");
        assert_eq!(converted.nonpad_kv_seqlen.as_deref(), Some("nonpad_kv_seqlen"), "{decoder}");
        let fused = if CONCAT.contains(&decoder) { 2 } else { 0 };
        assert_eq!((converted.attention_nodes, converted.fused), (2, fused), "{decoder}");
        assert!(converted.kept.is_empty(), "{decoder}: {:?}", converted.kept);
        for cache in &found.caches {
            let reads = |node: &&Node<'_>| node.reads().contains(cache.present);
            let readers: Vec<_> = graph.nodes().iter().filter(reads).map(Node::op_type).collect();
            assert_eq!(readers, ["Attention"], "{decoder}");
        }
        let hazards = found.hazards();
        let expected = hazards.iter().all(|hazard| format!("{hazard:?}").starts_with("Runtime"));
        assert!(expected, "{decoder}: {hazards:?}");
    }
}

#[test]
fn the_contract_is_in_the_metadata() {
    let converted = converted("mobius-llama-dynamic");
    let metadata = &converted.model.proto().metadata_props;
    let value = |key: &str| {
        let key = format!("kvscatter.{key}");
        metadata
            .iter()
            .find(|entry| entry.key.as_deref() == Some(&key))
            .and_then(|entry| entry.value.clone())
            .unwrap()
    };
    assert_eq!(value("max_seq"), "24");
    assert_eq!(value("caches").split("; ").count(), 4);
    assert!(value("cache_layout").starts_with("[batch, heads, 24, head size]"));
    assert!(value("write_indices").starts_with("write_indices: int64 [batch]"));
    assert!(value("attention_mask").starts_with("attention_mask: [batch, 24]"));
    assert!(value("nonpad_kv_seqlen").starts_with("nonpad_kv_seqlen: int64 [batch]"));
    assert_eq!(
        value("visibility"),
        "slot j is visible to new token i of sample b if and only if j <= write_indices[b] + i and \
         attention_mask[b, j] is not 0 (zeros between two tokens are allowed)"
    );
}

#[test]
fn weights_are_not_touched() {
    for decoder in CONCAT.into_iter().chain(ATTENTION) {
        let (model, converted) = (load(decoder), converted(decoder));
        let before = &graph(model.proto()).initializer;
        let after = &graph(converted.model.proto()).initializer;
        let is_weight = |dims: &[i64]| dims.len() >= 2 && !dims.contains(&1);
        for weight in before.iter().filter(|tensor| is_weight(&tensor.dims)) {
            let kept = after.iter().find(|tensor| tensor.name == weight.name);
            assert_eq!(kept, Some(weight), "{decoder}");
        }
        assert_eq!(converted.model.external_files(), model.external_files(), "{decoder}");
    }
}

#[test]
fn names_that_are_taken_are_avoided_and_names_mean_nothing() {
    let mut model = load("optimum-llama");
    let graph = model.proto_mut().graph.as_option_mut().unwrap();
    // Every name changes, and one value gets the name that the new input would have.
    let rename = |name: &mut String| {
        if !name.is_empty() {
            *name = format!("x{name}").replace("xinput_ids", "write_indices").replace("past_key_values", "p");
        }
    };
    for node in &mut graph.node {
        node.input.iter_mut().chain(&mut node.output).for_each(rename);
    }
    let values = graph.input.iter_mut().chain(&mut graph.output);
    values.filter_map(|value| value.name.as_mut()).for_each(rename);
    graph.initializer.iter_mut().filter_map(|tensor| tensor.name.as_mut()).for_each(rename);
    let converted = convert(&model, MAX_SEQ).unwrap();
    assert_eq!((converted.caches, converted.write_indices.as_str()), (4, "write_indices_1"));
    assert_eq!(converted.attention_mask.as_deref(), Some("xattention_mask"));
}

#[test]
fn a_mask_that_keeps_another_rule_is_found_by_what_it_computes() {
    // A token does not see itself.
    let model = changed("optimum-llama", "LessOrEqual", |node| node.op_type = Some("Less".to_owned()));
    assert_eq!(
        refused(&model, MAX_SEQ),
        ConvertRefusal::Visibility { position: 0, slot: 0, hidden: true, padding: 0 }
    );
    // Later tokens are visible.
    let model =
        changed("optimum-llama", "LessOrEqual", |node| node.op_type = Some("GreaterOrEqual".to_owned()));
    assert_eq!(
        refused(&model, MAX_SEQ),
        ConvertRefusal::Visibility { position: 0, slot: 1, hidden: false, padding: 0 }
    );
    // Padding is visible.
    let model = changed("mobius-llama-dynamic", "Cast", |node| node.op_type = Some("IsNaN".to_owned()));
    assert!(convert(&model, MAX_SEQ).is_err());
    let model = changed("mobius-llama-dynamic", "Attention", |node| {
        node.attribute.retain(|attribute| attribute.name.as_deref() != Some("is_causal"));
    });
    assert_eq!(
        refused(&model, MAX_SEQ),
        ConvertRefusal::Visibility { position: 0, slot: 1, hidden: false, padding: 0 }
    );
    // Nothing is masked, because the mask exists but is not used.
    let model = changed("mobius-llama-dynamic", "Attention", |node| node.input[3].clear());
    assert!(matches!(refused(&model, MAX_SEQ), ConvertRefusal::Visibility { hidden: false, .. }));
}

#[test]
fn windows() {
    // A window of 4 tokens makes no difference in a cache of 4.
    let window = load("decoders/optimum-0.1-mistral-window");
    for (max_seq, has_window) in [(4, false), (MAX_SEQ, true)] {
        let converted = convert(&window, max_seq).unwrap();
        let nodes = &graph(converted.model.proto()).node;
        assert_eq!(nodes.iter().any(|node| node.op_type.as_deref() == Some("Greater")), has_window);
        assert_eq!((converted.caches, converted.attention_nodes), (4, 2));
        let expected = [0, 1].map(|layer| key_window(layer, has_window.then_some(4)));
        assert_eq!(converted.windows, expected);
        let kept = convert(&window, ConvertOptions::new(max_seq).keep_attention(true)).unwrap();
        assert_eq!(kept.windows, expected);
    }
}

/// How a decoder counts the places of new tokens and of slots in a window.
const BY_SLOTS: [&str; 2] = ["own_slots", "slot_numbers"];
const BY_TOKENS: [&str; 2] = ["own_tokens", "token_numbers"];
const BY_POSITIONS: [&str; 2] = ["position_ids", "slot_numbers"];

/// Returns a decoder whose causal mask has a window. The window hides a slot whose place is this far from a token's.
fn llama_with_window(window: i64, [own, slots]: [&str; 2]) -> Model {
    let mut model = load("mobius-llama-dynamic");
    let graph = model.proto_mut().graph.as_option_mut().unwrap();
    let first = graph.node.iter().position(|node| node.op_type.as_deref() == Some("Attention")).unwrap();
    let exported = graph.node[first].input[3].clone();
    for node in graph.node.iter_mut().filter(|node| node.input.get(3) == Some(&exported)) {
        "windowed".clone_into(&mut node.input[3]);
    }
    let mut nodes = vec![
        node("Equal", &["attention_mask", "attention_mask"], "all"),
        node("Cast", &["all"], "ones"),
        node("CumSum", &["ones", "axis_1"], "counts"),
        node("Sub", &["counts", "axis_1"], "slot_numbers"),
        node("CumSum", &["attention_mask", "axis_1"], "token_numbers"),
        node("Shape", &["input_ids"], "sizes"),
        node("Slice", &["sizes", "one", "two"], "new"),
        node("Neg", &["new"], "first"),
        node("Slice", &["slot_numbers", "first", "end", "one"], "own_slots"),
        node("Slice", &["token_numbers", "first", "end", "one"], "own_tokens"),
        node("Unsqueeze", &[own, "two"], "rows"),
        node("Unsqueeze", &[slots, "one"], "columns"),
        node("Sub", &["rows", "columns"], "distance"),
        node("Less", &["distance", "window"], "near"),
        node("Unsqueeze", &["near", "one"], "near_by_head"),
        node("And", &[&exported, "near_by_head"], "windowed"),
    ];
    nodes[1].attribute.push(int("to", i64::from(ElementType::Int64.onnx_code())));
    graph.node.splice(first..first, nodes);
    let constants = [("axis_1", 1), ("window", window)].map(|(name, value)| int64s(name, &[], &[value]));
    graph.initializer.extend(constants);
    let constants =
        [("one", 1), ("two", 2), ("end", i64::MAX)].map(|(name, value)| int64s(name, &[1], &[value]));
    graph.initializer.extend(constants);
    model
}

/// Only padding between two tokens shows what a window counts, so probes must have such padding in every window.
#[test]
fn a_converted_window_counts_what_the_exported_one_does() {
    let options = ConvertOptions::new(MAX_SEQ).windowed(WindowedCaches::Mask);
    for (window, counted) in
        [2, 4, 12, 16, 22, 23].into_iter().flat_map(|it| [(it, BY_SLOTS), (it, BY_TOKENS)])
    {
        for is_fixed in [false, true] {
            let mut model = llama_with_window(window, counted);
            if is_fixed {
                fix_sizes(&mut model, 1);
            }
            let converted =
                convert(&model, options).unwrap_or_else(|it| panic!("{window} {counted:?}: {it}"));
            let rule = converted.model.metadata("kvscatter.windows").unwrap();
            assert!(rule.starts_with(&format!("{window}: ")), "{rule}");
            assert_eq!(rule.contains("contain real tokens"), counted == BY_TOKENS, "{rule}");
        }
    }
}

#[test]
fn a_window_that_counts_something_else_is_refused() {
    for (window, is_fixed) in [2, 4, 12, 16, 22].into_iter().flat_map(|it| [(it, false), (it, true)]) {
        let mut model = llama_with_window(window, BY_POSITIONS);
        if is_fixed {
            fix_sizes(&mut model, 1);
        }
        let refusal = refused(&model, MAX_SEQ);
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
        let nodes = &mut model.proto_mut().graph.as_option_mut().unwrap().node;
        let at = nodes.iter().position(|node| node.output == ["near"]).unwrap();
        // One token does not see itself.
        let changed = [
            node("Equal", &["rows", "window"], "is_row"),
            node("Equal", &["columns", "window"], "is_column"),
            node("And", &["is_row", "is_column"], "is_hidden"),
            node("Not", &["is_hidden"], "near"),
        ];
        nodes.splice(at..=at, changed);
        if let Some(tokens) = tokens {
            fix_sizes(&mut model, tokens);
        }
        let outcome = ConvertOutcome::at(&model, MAX_SEQ);
        let ConvertOutcome::Refused { cause, depends_on_slots, .. } = &outcome else {
            panic!("{hidden} {tokens:?}")
        };
        let OnnxError::Convert(ConvertRefusal::Visibility { position, .. }) = cause.root() else {
            panic!("{cause}")
        };
        assert_eq!(i64::try_from(*position).unwrap(), hidden, "{tokens:?}");
        assert_eq!(*depends_on_slots, depends, "{hidden} {tokens:?}");
    }
}

/// Fixes the batch to 1, and the number of new tokens.
fn fix_sizes(model: &mut Model, tokens: i64) {
    for input in &mut model.proto_mut().graph.get_or_insert_default().input {
        let Some(TypeValue::TensorType(tensor)) = &mut input.r#type.get_or_insert_default().value else {
            continue;
        };
        for dim in &mut tensor.shape.get_or_insert_default().dim {
            let Some(DimValue::DimParam(name)) = &dim.value else { continue };
            match name.as_str() {
                "batch" | "batch_size" => dim.value = Some(DimValue::DimValue(1)),
                "sequence_len" | "sequence_length" => dim.value = Some(DimValue::DimValue(tokens)),
                _ => {}
            }
        }
    }
}

/// Checks that each layer has its own window.
#[test]
fn windows_of_group_query_attention() {
    let mut model = load("genai-llama-gqa");
    let nodes = &mut model.proto_mut().graph.get_or_insert_default().node;
    let first = nodes.iter_mut().find(|node| node.op_type.as_deref() == Some("GroupQueryAttention")).unwrap();
    first.attribute.retain(|attribute| attribute.name.as_deref() != Some("local_window_size"));
    first.attribute.push(int("local_window_size", 5));
    let expected = [key_window(0, Some(5)), key_window(1, None)];
    assert_eq!(convert(&model, MAX_SEQ).unwrap().windows, expected);
}

fn key_window(layer: usize, window: Option<usize>) -> CacheWindow {
    CacheWindow { past: format!("past_key_values.{layer}.key"), window }
}

const FALCON: &str = "decoders/optimum-1.18-falcon";

#[test]
fn a_bias_that_is_proportional_to_the_distance_is_converted() {
    let converted = converted(FALCON);
    assert_eq!((converted.caches, converted.attentions, converted.attention_nodes), (4, 2, 2));
    let bias = |converted: &Converted| {
        let entries = &converted.model.proto().metadata_props;
        entries.iter().find(|it| it.key.as_deref() == Some("kvscatter.bias")).and_then(|it| it.value.clone())
    };
    assert!(bias(&converted).unwrap().ends_with("counted in real tokens"));
    assert_eq!(bias(&self::converted("optimum-llama")), None);
    // A softmax ignores a number that is added to all scores.
    let three = floats("three", &[], &[3.0]);
    let shifted = falcon_with(vec![node("Add", &[BIAS, "three"], "biased")], vec![three]);
    assert_eq!(convert(&shifted, MAX_SEQ).unwrap().attention_nodes, 2);
    // There is no distance in a cache of one slot.
    assert_eq!(convert(&load(FALCON), 1).unwrap().attention_nodes, 2);
    // One sample with one new token also shows what counts.
    let mut fixed = load(FALCON);
    fix_sizes(&mut fixed, 1);
    assert!(bias(&convert(&fixed, MAX_SEQ).unwrap()).unwrap().ends_with("counted in real tokens"));
}

/// The second layer gets its own nodes for the bias, in which all slots count.
#[test]
fn the_metadata_has_the_distance_of_every_bias() {
    let mut model = load(FALCON);
    let nodes = &mut model.proto_mut().graph.as_option_mut().unwrap().node;
    let sum = nodes.iter().position(|node| node.op_type.as_deref() == Some("CumSum")).unwrap();
    let last = nodes.iter().position(|node| node.input.iter().any(|it| it == BIAS)).unwrap();
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
    reader.input.iter_mut().filter(|it| **it == mask).for_each(|it| *it += "/slots");
    let mut ones = node("Cast", &["same"], "ones");
    ones.attribute.push(int("to", i64::from(ElementType::Int64.onnx_code())));
    of_slots.splice(0..0, [node("Equal", &["attention_mask", "attention_mask"], "same"), ones]);
    nodes.splice(sum..sum, of_slots);
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
    let of = |op_type: &str| {
        let nodes = graph(converted.model.proto()).node.iter();
        nodes.filter(|node| node.op_type.as_deref() == Some(op_type)).cloned().collect::<Vec<_>>()
    };
    let masks: Vec<_> = of("Attention").iter().map(|node| node.input[3].clone()).collect();
    assert!(masks.len() == 2 && masks[0] == masks[1], "{masks:?}");
    assert_eq!(of("CumSum").len(), 1);
}

#[test]
fn other_biases_are_refused() {
    // It is not proportional.
    let root = falcon_with(vec![node("Sqrt", &[BIAS], "biased")], Vec::new());
    assert!(matches!(refused(&root, MAX_SEQ), ConvertRefusal::Bias { .. }));
    // It rounds the scores away.
    for huge in [17e3, 1e9] {
        let huge = floats("huge", &[], &[huge]);
        let refusal =
            refused(&falcon_with(vec![node("Add", &[BIAS, "huge"], "biased")], vec![huge]), MAX_SEQ);
        assert!(matches!(refusal, ConvertRefusal::Bias { added, .. } if added >= 16_384.0), "{refusal}");
    }
    // It is that of another sample. Only padding makes a difference.
    let back = node("Slice", &[BIAS, "last", "before_first", "batch_axis", "last"], "biased");
    let constants = [("last", -1), ("before_first", i64::MIN), ("batch_axis", 0)];
    let constants = constants.map(|(name, value)| int64s(name, &[1], &[value])).to_vec();
    let refusal = refused(&falcon_with(vec![back], constants), MAX_SEQ);
    assert!(matches!(refusal, ConvertRefusal::Bias { .. }), "{refusal}");
    // The slope of one head is greater beyond some position.
    for (head, bend) in [(0, 20_u8), (3, 15)] {
        let more: Vec<_> = (0..SLOPES.len()).map(|it| if it == head { 1e-3 } else { 0.0 }).collect();
        let nodes = vec![
            node("Sub", &[BIAS, "bend"], "beyond"),
            node("Relu", &["beyond"], "positive"),
            node("Mul", &["positive", "more"], "fault"),
            node("Add", &[BIAS, "fault"], "biased"),
        ];
        let bend_bias = floats("bend", &[], &[f32::from(bend) * SLOPES[head]]);
        let refusal =
            refused(&falcon_with(nodes, vec![bend_bias, floats("more", &[4, 1, 1], &more)]), MAX_SEQ);
        let ConvertRefusal::Bias { head: there, position, .. } = refusal else { panic!("{refusal}") };
        assert_eq!((there, position), (head, usize::from(bend) + 1), "{refusal}");
    }
}

/// The value that contains the bias of Falcon for each head and slot before slots are hidden, and its slopes.
const BIAS: &str = "/transformer/Div_output_0";
const SLOPES: [f32; 4] = [0.125, 0.03125, 0.007_812_5, 0.001_953_125];

fn floats(name: &str, dims: &[i64], values: &[f32]) -> TensorProto {
    TensorProto {
        name: Some(name.to_owned()),
        dims: dims.to_vec(),
        data_type: Some(ElementType::Float32.onnx_code()),
        float_data: values.to_vec(),
        ..TensorProto::default()
    }
}

/// A mask may look up each slot in a table, as this bias of `GroupQueryAttention` does. No slot is beyond the capacity.
#[test]
fn a_table_of_biases_needs_a_row_for_each_slot_and_no_more() {
    for (rows, max_seq) in [(16, 16), (17, 16), (600, 16), (3, 3), (1, 1), (100, 128), (15, 16)] {
        let mut model = load("genai-llama-gqa");
        let graph = model.proto_mut().graph.as_option_mut().unwrap();
        let is_grouped = |node: &NodeProto| node.op_type.as_deref() == Some("GroupQueryAttention");
        for node in graph.node.iter_mut().filter(|node| is_grouped(node)) {
            node.input.resize(10, String::new());
            node.input.push("bias".to_owned());
        }
        let first = graph.node.iter().position(is_grouped).unwrap();
        let nodes = [
            node("Shape", &["attention_mask"], "all"),
            node("Shape", &["input_ids"], "sizes"),
            node("Slice", &["all", "one", "two"], "total"),
            node("Slice", &["sizes", "one", "two"], "new"),
            node("Squeeze", &["total", "none"], "limit"),
            node("Range", &["zero", "limit", "step"], "slots"),
            node("Gather", &["table", "slots"], "of_slots"),
            node("Concat", &["one", "one", "new", "total"], "shape"),
            node("Expand", &["of_slots", "shape"], "bias"),
        ];
        let count = nodes.len();
        graph.node.splice(first..first, nodes);
        graph.node[first + count - 2].attribute.push(int("axis", 0));
        graph.initializer.extend([("zero", 0), ("step", 1)].map(|(name, value)| int64s(name, &[], &[value])));
        let constants =
            [("one", 1), ("two", 2), ("none", 0)].map(|(name, value)| int64s(name, &[1], &[value]));
        graph.initializer.extend(constants);
        let biases: Vec<_> = (0..rows).map(|row: i16| f32::from(row) / 4.0).collect();
        graph.initializer.push(floats("table", &[i64::from(rows)], &biases));
        let rows = usize::try_from(rows).unwrap();
        match convert(&model, max_seq) {
            Ok(_) => assert!(rows >= max_seq, "{rows} rows, {max_seq} slots"),
            Err(OnnxError::Capacity { tokens, .. }) if rows < tokens && tokens <= max_seq => {}
            Err(error) => panic!("{rows} rows, {max_seq} slots: {error}"),
        }
    }
}

/// Returns Falcon with a bias that these nodes compute as `biased`.
fn falcon_with(nodes: Vec<NodeProto>, constants: Vec<TensorProto>) -> Model {
    let mut model = load(FALCON);
    let graph = model.proto_mut().graph.as_option_mut().unwrap();
    let reader = graph.node.iter().position(|node| node.input.iter().any(|it| it == BIAS)).unwrap();
    graph.node[reader].input.iter_mut().filter(|it| *it == BIAS).for_each(|it| *it = "biased".to_owned());
    graph.node.splice(reader..reader, nodes);
    graph.initializer.extend(constants);
    model
}

/// Raising the operator set inserts nodes before others.
#[test]
fn a_refusal_names_the_node_as_the_file_has_it() {
    let model = falcon_with(vec![node("Sqrt", &[BIAS], "biased")], Vec::new());
    let error = convert(&model, MAX_SEQ).unwrap_err();
    let OnnxError::InNode { node, .. } = &error else { panic!("{error}") };
    let there = &graph(model.proto()).node[node.index];
    assert_eq!((there.name.as_deref(), node.version), (Some(node.name.as_str()), Some(14)), "{error}");
    assert_eq!(there.op_type.as_deref(), Some(node.op_type.as_str()));
}

/// The node that fails is one of those that take the place of `GroupQueryAttention`.
#[test]
fn a_refusal_about_an_added_node_names_a_node_of_the_file() {
    let mut model = changed("genai-llama-gqa", "GroupQueryAttention", |node| {
        let heads = node.attribute.iter_mut().find(|it| it.name.as_deref() == Some("num_heads"));
        heads.unwrap().i = Some(5);
    });
    let inputs = &mut model.proto_mut().graph.as_option_mut().unwrap().input;
    for past in inputs.iter_mut().filter(|input| input.name.as_deref().unwrap().starts_with("past")) {
        let name = past.name.clone().unwrap();
        *past = value(&name, ElementType::Float32, &["batch_size", "2", "past_sequence_length", "16"]);
    }
    let error = convert(&model, MAX_SEQ).unwrap_err();
    let OnnxError::InNode { node, .. } = &error else { panic!("{error}") };
    let there = &graph(model.proto()).node[node.index];
    assert_eq!(there.name.as_deref(), Some(node.name.as_str()), "{error}");
    assert_eq!(node.op_type, "GroupQueryAttention", "{error}");
}

/// The second layer takes the cache of the first one as its past.
#[test]
fn group_query_attention_over_the_cache_of_another_layer_is_refused() {
    let mut model = load("genai-llama-gqa");
    let graph = model.proto_mut().graph.as_option_mut().unwrap();
    let is_dropped = |name: &Option<String>| name.as_deref().is_some_and(|name| name.contains(".1."));
    graph.input.retain(|input| !is_dropped(&input.name));
    graph.output.retain(|output| !is_dropped(&output.name));
    let mut nodes =
        graph.node.iter_mut().filter(|node| node.op_type.as_deref() == Some("GroupQueryAttention"));
    let second = nodes.nth(1).unwrap();
    for (slot, part) in [(3, "key"), (4, "value")] {
        second.input[slot] = format!("present.0.{part}");
    }
    let name = second.name.clone().unwrap();
    let error = convert(&model, MAX_SEQ).unwrap_err();
    let OnnxError::InNode { node, .. } = &error else { panic!("{error}") };
    let present = "present.0.key".to_owned();
    assert_eq!((&node.name, refused(&model, MAX_SEQ)), (&name, ConvertRefusal::SharedCache { present }));
    let decoder = model.graph().unwrap();
    let hazards = Decoder::of(&decoder).unwrap().hazards();
    let kinds: Vec<_> = hazards.iter().map(Hazard::kind).filter(|kind| *kind != "operator-writes").collect();
    assert_eq!(kinds, ["shared-cache"; 2]);
}

/// The attention of the last layer reaches no output, as in the LFM2 export of ONNX Runtime GenAI.
#[test]
fn attention_whose_result_is_lost_is_refused() {
    for (decoder, result) in [
        ("optimum-llama", "/model/layers.{}/self_attn/MatMul_1_output_0"),
        ("genai-llama-gqa", "/model/layers.{}/attn/GroupQueryAttention/output_0"),
    ] {
        let [first, last] = ["0", "1"].map(|layer| result.replace("{}", layer));
        let mut model = load(decoder);
        let graph = model.proto_mut().graph.as_option_mut().unwrap();
        let mut reads = graph.node.iter_mut().flat_map(|node| &mut node.input).filter(|read| **read == last);
        reads.next().unwrap().clone_from(&first);
        let past = "past_key_values.1.key".to_owned();
        assert_eq!(refused(&model, MAX_SEQ), ConvertRefusal::ResultUnused { past }, "{decoder}");
        let graph = model.graph().unwrap();
        let hazards = Decoder::of(&graph).unwrap().hazards();
        let unused: Vec<_> = hazards.iter().filter(|it| it.kind() == "result-unused").collect();
        assert_eq!(unused.iter().filter_map(|it| it.cache()).filter(|it| it.contains(".1.")).count(), 2);
        assert_eq!(unused.len(), 2, "{unused:?}");
    }
}

#[test]
fn a_decoder_of_an_encoder_decoder_is_refused_by_the_input_of_the_encoder() {
    // Keys of the encoder, or states from which each layer computes them.
    for (name, dims) in [
        ("encoder_key", &["batch_size", "2", "encoder_length", "16"][..]),
        ("encoder_hidden_states", &["batch_size", "encoder_length", "64"]),
    ] {
        let mut model = load("optimum-llama");
        let graph = model.proto_mut().graph.as_option_mut().unwrap();
        graph.input.push(value(name, ElementType::Float32, dims));
        graph.initializer.push(floats("weights", &[64, 64], &[0.0; 64 * 64]));
        let keys = match dims.len() {
            4 => node("Identity", &[name], "keys"),
            _ => node("MatMul", &[name, "weights"], "keys"),
        };
        let embedded = "/model/embed_tokens/Gather_output_0";
        graph.node.extend([
            keys,
            node("Transpose", &["keys"], "turned"),
            node("MatMul", &[embedded, "turned"], "products"),
            node("Softmax", &["products"], "attended"),
            node("MatMul", &["attended", "keys"], "seen"),
        ]);
        let input = name.to_owned();
        assert_eq!(refused(&model, MAX_SEQ), ConvertRefusal::EncoderDecoder { input });
        let graph = model.graph().unwrap();
        assert_eq!(Decoder::of(&graph).unwrap().from_encoder, [name]);
    }
    assert!(Decoder::of(&load("optimum-llama").graph().unwrap()).unwrap().from_encoder.is_empty());
    // Matrices that change the weights for each sample, and a pool of queries, are multiplied by tokens.
    let mut model = load("optimum-llama");
    let graph = model.proto_mut().graph.as_option_mut().unwrap();
    let embedded = "/model/embed_tokens/Gather_output_0";
    for (name, dims) in [("low", ["64", "8"]), ("high", ["8", "64"]), ("queries", ["4", "64"])] {
        graph.input.push(value(name, ElementType::Float32, &["batch_size", dims[0], dims[1]]));
    }
    graph.node.extend([
        node("MatMul", &[embedded, "low"], "narrow"),
        node("MatMul", &["narrow", "high"], "wide"),
        node("Softmax", &["wide"], "chosen"),
        node("MatMul", &["chosen", embedded], "mixed"),
        node("Transpose", &[embedded], "tokens"),
        node("MatMul", &["queries", "tokens"], "products"),
        node("Softmax", &["products"], "weights"),
        node("MatMul", &["weights", embedded], "pooled"),
    ]);
    assert!(Decoder::of(&model.graph().unwrap()).unwrap().from_encoder.is_empty());
}

#[test]
fn a_mask_of_a_fixed_length_is_refused() {
    let mut model = load("optimum-llama");
    let graph = model.proto_mut().graph.as_option_mut().unwrap();
    let mask = graph.input.iter_mut().find(|input| input.name.as_deref() == Some("attention_mask")).unwrap();
    *mask = value("attention_mask", ElementType::Int64, &["batch_size", "12"]);
    let name = "attention_mask".to_owned();
    assert_eq!(refused(&model, MAX_SEQ), ConvertRefusal::InputFixed { name, axis: 1, size: 12 });
}

#[test]
fn caches_that_have_no_static_form() {
    assert!(matches!(refused(&load("mobius-llama-static"), MAX_SEQ), ConvertRefusal::AlreadyStatic { .. }));
    let again = converted("optimum-llama").model;
    assert!(matches!(refused(&again, MAX_SEQ), ConvertRefusal::AlreadyStatic { .. }));
    for max_seq in [0, 1 << 31] {
        assert_eq!(refused(&load("optimum-llama"), max_seq), ConvertRefusal::MaxSeq { max_seq });
    }
    let table = refused(&load("mobius-llama-dynamic"), 4096);
    assert!(matches!(table, ConvertRefusal::Table { rows: 128, max_seq: 4096, .. }), "{table}");
    // The triangle of its causal mask is too small, because its rows are positions as well.
    let mut model = load("decoders/optimum-1.18-gpt2");
    let graph = model.proto_mut().graph.as_option_mut().unwrap();
    let table = graph.initializer.iter_mut().find(|it| it.name.as_deref() == Some("transformer.wpe.weight"));
    table.unwrap().dims[0] = 4096;
    let error = convert(&model, 4096).unwrap_err();
    assert!(matches!(error, OnnxError::Capacity { .. }), "{error}");
}

#[test]
fn what_else_reads_the_cache_is_refused() {
    let with = |nodes: Vec<NodeProto>, output: Option<(&str, &[&str])>| {
        let mut model = load("optimum-llama");
        let graph = model.proto_mut().graph.as_option_mut().unwrap();
        graph.node.extend(nodes);
        graph.output.extend(output.map(|(name, dims)| value(name, ElementType::Float32, dims)));
        refused(&model, MAX_SEQ)
    };
    let dims = ["batch_size", "2", "all", "16"];
    let refusal = with(vec![node("Neg", &["past_key_values.0.key"], "old")], Some(("old", &dims)));
    assert!(matches!(refusal, ConvertRefusal::PastRead { .. }), "{refusal}");
    let refusal = with(vec![node("Neg", &["present.0.key"], "new")], Some(("new", &dims)));
    assert!(matches!(refusal, ConvertRefusal::Output { .. }), "{refusal}");
    let refusal = with(vec![node("Identity", &["present.0.key"], "copy")], Some(("copy", &dims)));
    assert!(matches!(refusal, ConvertRefusal::Output { .. }), "{refusal}");
    let refusal = with(vec![node("Relu", &["present.0.key"], "new")], Some(("new", &dims)));
    assert!(matches!(refusal, ConvertRefusal::Reader { .. }), "{refusal}");
    let softmax = ["batch_size", "4", "new", "all"];
    let refusal = with(
        vec![node("Identity", &["/model/layers.0/self_attn/Softmax_output_0"], "weights")],
        Some(("weights", &softmax)),
    );
    assert!(matches!(refusal, ConvertRefusal::Output { .. }), "{refusal}");
}

/// A node that reads no values of a past, or whose result nothing uses, does not prevent a conversion.
#[test]
fn the_size_of_a_past_may_be_read() {
    for op_type in ["Shape", "Size", "Identity"] {
        let mut model = load("optimum-llama");
        let graph = model.proto_mut().graph.as_option_mut().unwrap();
        graph.node.push(node(op_type, &["past_key_values.0.key"], "read"));
        assert!(convert(&model, MAX_SEQ).is_ok(), "{op_type}");
    }
}

#[test]
fn a_cache_that_is_written_in_another_way_is_refused() {
    let mut model = load("optimum-llama");
    let graph = model.proto_mut().graph.as_option_mut().unwrap();
    let writer =
        graph.node.iter_mut().find(|node| node.output.first().is_some_and(|it| it == "present.0.key"));
    writer.unwrap().input.reverse();
    let refusal = refused(&model, MAX_SEQ);
    assert!(matches!(refusal, ConvertRefusal::Writer { .. }), "{refusal}");
}

/// transformers' `DynamicCache(config)` keeps as many rows of a layer with a window as the next step needs.
#[test]
fn a_cache_that_is_cut_is_refused() {
    let mut model = load("optimum-llama");
    let graph = model.proto_mut().graph.as_option_mut().unwrap();
    let present = "present.0.key";
    for node in &mut graph.node {
        let values = node.input.iter_mut().chain(&mut node.output);
        values.filter(|value| *value == present).for_each(|value| *value = "joined".to_owned());
    }
    for (name, number) in [("start", -7), ("end", i64::MAX), ("axis", 2)] {
        graph.initializer.push(tensor_proto::encode(name, &int64(&[1], &[number])));
    }
    graph.node.push(node("Slice", &["joined", "start", "end", "axis"], present));
    let past = "past_key_values.0.key".to_owned();
    assert_eq!(
        refused(&model, MAX_SEQ),
        ConvertRefusal::Cut { past, reason: "a Slice keeps only its last 7 rows".to_owned() }
    );
}

/// Llama's caches become one tensor of all layers, `[layers, batch, length, width]`.
#[test]
fn a_stack_of_caches_is_refused() {
    let mut model = load("optimum-llama");
    let graph = model.proto_mut().graph.as_option_mut().unwrap();
    for declared in graph.input.iter_mut().chain(&mut graph.output) {
        let name = declared.name.clone().unwrap();
        if name.ends_with("key") || name.ends_with("value") {
            let length = if name.starts_with("past") { "past_sequence_length" } else { "all" };
            *declared = value(&name, ElementType::Float32, &["2", "batch_size", length, "16"]);
        }
    }
    let refusal = refused(&model, MAX_SEQ);
    assert!(
        refusal.to_string().ends_with("one tensor has several caches, with the batch at axis 1"),
        "{refusal}"
    );
}

#[test]
fn positions_that_are_counted_inside_are_counted_for_each_sample() {
    let ops =
        |model: &ModelProto| graph(model).node.iter().filter_map(|it| it.op_type.clone()).collect::<Vec<_>>();
    // OPT slices the running sum of its mask at the end of the past. The index is different for each sample.
    let converted = converted("decoders/optimum-1.18-opt");
    assert!(ops(converted.model.proto()).contains(&"GatherElements".to_owned()));
    // Llama has the positions as an input.
    let converted = self::converted("optimum-llama");
    assert!(!ops(converted.model.proto()).contains(&"GatherElements".to_owned()));
}

#[test]
fn a_length_that_leads_into_arithmetic_is_refused() {
    // The length of the past scales the embeddings.
    let mut model = load("optimum-llama");
    let graph = model.proto_mut().graph.as_option_mut().unwrap();
    let at =
        graph.node.iter().position(|it| it.name.as_deref() == Some("/model/embed_tokens/Gather")).unwrap();
    let embedded = std::mem::replace(&mut graph.node[at].output[0], "embedded".to_owned());
    let mut shape = node("Shape", &["past_key_values.0.key"], "size");
    shape.attribute = vec![int("start", 2), int("end", 3)];
    let mut cast = node("Cast", &["size"], "factor");
    cast.attribute = vec![int("to", 1)];
    let mul = node("Mul", &["embedded", "factor"], &embedded);
    graph.node.splice(at + 1..at + 1, [shape, cast, mul]);
    let refusal = refused(&model, MAX_SEQ);
    assert_eq!(refusal, ConvertRefusal::LengthDependence { value: "factor".to_owned() });
}

/// Creates a decoder in which a node processes the masked scores before the first softmax reads them.
fn before_softmax(mut first: NodeProto) -> Model {
    let mut model = load("optimum-llama");
    let graph = model.proto_mut().graph.as_option_mut().unwrap();
    let at = graph.node.iter().position(|node| node.op_type.as_deref() == Some("Softmax")).unwrap();
    first.input[0] = std::mem::replace(&mut graph.node[at].input[0], first.output[0].clone());
    graph.initializer.push(TensorProto {
        name: Some("factor".to_owned()),
        data_type: Some(1),
        float_data: vec![1e-4],
        ..TensorProto::default()
    });
    graph.node.insert(at, first);
    model
}

#[test]
fn what_hides_a_slot_hides_it_where_softmax_reads_it() {
    // The most negative float is minus infinity in this type.
    let mut cast = node("Cast", &[""], "narrow");
    cast.attribute = vec![int("to", 10)];
    assert!(matches!(refused(&before_softmax(cast), MAX_SEQ), ConvertRefusal::Reader { .. }));
    // The factor is so small that a mask of -10000 hides nothing.
    let mul = node("Mul", &["", "factor"], "small");
    assert!(matches!(refused(&before_softmax(mul), MAX_SEQ), ConvertRefusal::Reader { .. }));
    // The softmax is over the tokens instead of the slots.
    let over = |axis| changed("optimum-llama", "Softmax", |node| node.attribute = vec![int("axis", axis)]);
    assert!(matches!(refused(&over(2), MAX_SEQ), ConvertRefusal::Reader { .. }));
    assert_eq!(convert(&over(3), MAX_SEQ).unwrap().attentions, 2);
}

/// Inserts `nodes` into a mixture of experts, before the node that makes `before`.
///
/// That node then reads their output as its input `slot`. The input `routed` of the new nodes lists the
/// indices of the first expert's tokens, as many as the router chooses.
fn routed(before: &str, slot: usize, mut nodes: Vec<NodeProto>) -> Model {
    let mut model = load("decoders/optimum-0.1-qwen3-moe");
    let graph = model.proto_mut().graph.as_option_mut().unwrap();
    let at = graph.node.iter().position(|it| it.name.as_deref() == Some(before)).unwrap();
    let made = nodes.last().unwrap().output[0].clone();
    let read = std::mem::replace(&mut graph.node[at].input[slot], made);
    for input in nodes.iter_mut().flat_map(|node| &mut node.input) {
        *input = match input.as_str() {
            "routed" => "/model/layers.0/mlp/NonZero_output_0".to_owned(),
            "read" => read.clone(),
            _ => continue,
        };
    }
    graph.node.splice(at..at, nodes);
    model
}

#[test]
fn what_the_router_chooses_may_reach_tokens_and_not_masks_or_caches() {
    const SCORES: &str = "/model/layers.1/self_attn/Add_2";
    const CACHE: &str = "/model/layers.1/self_attn/Concat_6";
    let refused = |model: Model| match convert(&model, MAX_SEQ).unwrap_err() {
        OnnxError::InNode { node, cause } => (node.name, cause.to_string()),
        other => panic!("{other}"),
    };
    let why = "the shape of its output depends on the values of input 0, of which only the shape is known";
    let by_router = ("/model/layers.0/mlp/NonZero".to_owned(), why.to_owned());
    let cast = || {
        let mut cast = node("Cast", &["routed"], "numbers");
        cast.attribute = vec![int("to", 1)];
        cast
    };
    let sum = |keepdims| {
        let mut sum = node("ReduceSum", &["numbers"], "sum");
        sum.attribute = vec![int("keepdims", keepdims)];
        sum
    };
    // The mask depends on the tokens of an expert.
    let mask = vec![cast(), sum(0), node("Mul", &["read", "sum"], "mask")];
    assert_eq!(refused(routed(SCORES, 1, mask)), by_router);
    // There are as many new rows as an expert has tokens.
    let rows = |axis| {
        let mut rows = node("Gather", &["read", "places"], "rows");
        rows.attribute = vec![int("axis", axis)];
        vec![node("Flatten", &["routed"], "flat"), node("Squeeze", &["flat"], "places"), rows]
    };
    assert_eq!(refused(routed(CACHE, 1, rows(2))), by_router);
    // The length of the past is used together with an open value.
    let mut length = node("Shape", &["past_key_values.0.key"], "length");
    length.attribute = vec![int("start", 2), int("end", 3)];
    let mut factor = node("Cast", &["length"], "factor");
    factor.attribute = vec![int("to", 1)];
    let model = routed(
        "/model/layers.0/mlp/Cast_3",
        0,
        vec![length, factor, node("Mul", &["read", "factor"], "more")],
    );
    let (node, why) = refused(model);
    assert_eq!(
        (node.as_str(), why.as_str()),
        ("nmore", "\"factor\" depends on the length of the past in an unknown way")
    );
}

#[test]
fn sizes_that_a_file_claims_are_refused_before_anything_is_made_of_them() {
    let mut model = load("optimum-llama");
    let graph = model.proto_mut().graph.as_option_mut().unwrap();
    graph.input[0] = value("input_ids", ElementType::Int64, &["batch_size", "1000000"]);
    assert_eq!(refused(&model, MAX_SEQ), ConvertRefusal::NewTokens { new: 1_000_000, max_seq: MAX_SEQ });
    let mut model = load("optimum-llama");
    let graph = model.proto_mut().graph.as_option_mut().unwrap();
    for past in &mut graph.input[3..7] {
        let dims = ["4611686018427387904", "2", "past_sequence_length", "16"];
        *past = value(past.name.as_deref().unwrap(), ElementType::Float32, &dims);
    }
    let refusal = refused(&model, MAX_SEQ);
    assert!(matches!(refusal, ConvertRefusal::MaskSize { batch, .. } if batch == 1 << 62), "{refusal}");
}

/// The limit is on the elements of the largest mask: three samples, three tokens and all slots.
#[test]
fn the_most_slots_are_refused_by_their_number() {
    let (most, limit) = (466_033, 4 << 20);
    let model = load("optimum-llama");
    assert!(convert(&model, most).is_ok());
    let refusal = ConvertRefusal::MaskSize { batch: 3, new: 3, max_seq: most + 1, limit };
    assert_eq!(refused(&model, most + 1), refusal);
}

#[test]
fn an_output_that_says_how_long_the_past_is_is_refused() {
    let mut model = load("optimum-llama");
    let graph = model.proto_mut().graph.as_option_mut().unwrap();
    let mut shape = node("Shape", &["present.0.key"], "length");
    shape.attribute = vec![int("start", 2), int("end", 3)];
    graph.node.push(shape);
    graph.output.push(value("length", ElementType::Int64, &["1"]));
    assert_eq!(refused(&model, MAX_SEQ), ConvertRefusal::LengthDependence { value: "length".to_owned() });
}
