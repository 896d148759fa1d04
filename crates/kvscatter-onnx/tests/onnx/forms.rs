//! Tests that caches of other layouts and types become `[batch, heads, slots, head size]` in one type.
//!
//! `python-tests/test_forms.py` shows in ONNX Runtime that such decoders compute the same.

use kvscatter::ElementType;
use kvscatter_onnx::convert::{ConvertRefusal, Converted, KeptState, MaskRule, convert, mask_rule};
use kvscatter_onnx::decoder::{CachePart, Decoder, InputRole};
use kvscatter_onnx::proto::tensor_shape_proto::dimension::Value as DimValue;
use kvscatter_onnx::proto::type_proto::Value as TypeValue;
use kvscatter_onnx::proto::{FunctionProto, GraphProto, NodeProto, TensorProto};
use kvscatter_onnx::{Dimension, Model, Node, OnnxError};

use crate::support::{int, ints, node, opset, testdata, value};

const MAX_SEQ: usize = 24;

/// The sizes of the decoder.
const HEADS: &str = "2";
const SIZE: &str = "16";

/// How a cache of `[batch, heads, length, head size]` is laid out in another decoder.
struct Layout {
    name: &'static str,
    perm: &'static [i64],
    /// The dimensions of the past before its heads are merged.
    dims: [&'static str; 4],
    axis: i64,
    is_merged: bool,
}

const TOKENS_FIRST: Layout = Layout {
    name: "tokens first",
    perm: &[0, 2, 1, 3],
    dims: ["batch_size", "past_sequence_length", HEADS, SIZE],
    axis: 1,
    is_merged: false,
};
const TURNED: Layout = Layout {
    name: "turned",
    perm: &[0, 1, 3, 2],
    dims: ["batch_size", HEADS, SIZE, "past_sequence_length"],
    axis: 3,
    is_merged: false,
};
const MERGED: Layout = Layout {
    name: "merged",
    perm: &[0, 1, 2, 3],
    dims: ["batch_size", HEADS, "past_sequence_length", SIZE],
    axis: 1,
    is_merged: true,
};
const MERGED_TURNED: Layout = Layout {
    name: "merged and turned",
    perm: &[0, 1, 3, 2],
    dims: ["batch_size", HEADS, SIZE, "past_sequence_length"],
    axis: 2,
    is_merged: true,
};

fn llama() -> Model {
    Model::load(&testdata("optimum-llama/model.onnx")).unwrap()
}

fn graph_of(model: &mut Model) -> &mut GraphProto {
    model.proto_mut().graph.as_option_mut().unwrap()
}

fn constant(graph: &mut GraphProto, name: &str, values: &[i64]) {
    graph.initializer.push(TensorProto {
        name: Some(name.to_owned()),
        dims: vec![values.len().try_into().unwrap()],
        data_type: Some(ElementType::Int64.onnx_code()),
        raw_data: Some(values.iter().flat_map(|value| value.to_le_bytes()).collect()),
        ..TensorProto::default()
    });
}

fn transpose(input: &str, output: &str, perm: &[i64]) -> NodeProto {
    NodeProto { attribute: vec![ints("perm", perm)], ..node("Transpose", &[input], output) }
}

fn shape_from(input: &str, output: &str, start: i64) -> NodeProto {
    NodeProto { attribute: vec![int("start", start)], ..node("Shape", &[input], output) }
}

fn concat(inputs: &[&str], output: &str, axis: i64) -> NodeProto {
    NodeProto { attribute: vec![int("axis", axis)], ..node("Concat", inputs, output) }
}

fn cast(input: &str, output: &str, to: ElementType) -> NodeProto {
    NodeProto { attribute: vec![int("to", to.onnx_code().into())], ..node("Cast", &[input], output) }
}

/// The nodes that append to caches: their places, and the names of past, update and present.
fn writers(graph: &GraphProto) -> Vec<(usize, [String; 3])> {
    let of = |(at, node): (usize, &NodeProto)| {
        let past = node.input.first().filter(|past| past.starts_with("past_key_values"))?;
        (node.op_type.as_deref() == Some("Concat"))
            .then(|| (at, [past.clone(), node.input[1].clone(), node.output[0].clone()]))
    };
    graph.node.iter().enumerate().filter_map(of).collect()
}

/// Renames what every node reads, and declares a cache again.
fn reroute(graph: &mut GraphProto, old: &str, new: &str) {
    let inputs = graph.node.iter_mut().flat_map(|node| &mut node.input);
    inputs.filter(|input| *input == old).for_each(|input| new.clone_into(input));
}

fn declare(graph: &mut GraphProto, name: &str, element: ElementType, dims: &[&str]) {
    let values = graph.input.iter_mut().chain(&mut graph.output);
    values.filter(|it| it.name.as_deref() == Some(name)).for_each(|it| *it = value(name, element, dims));
}

/// Returns llama with caches of another layout.
fn relaid(layout: &Layout) -> Model {
    let mut model = llama();
    let graph = graph_of(&mut model);
    constant(graph, "rows", &[-1]);
    constant(graph, "by_head", &[-1, 2]);
    constant(graph, "length_third", &[0, 0, layout.axis, 0]);
    for (at, [past, update, present]) in writers(graph).into_iter().rev() {
        let named = |what: &str| format!("{what}.{present}");
        // Only the length is taken from the shape of a past.
        let asking = graph
            .node
            .iter()
            .position(|node| node.op_type.as_deref() == Some("Shape") && node.input[0] == past);
        reroute(graph, &present, &named("old"));
        let new = named("new");
        let mut nodes = vec![transpose(&update, &named("turned"), layout.perm)];
        let mut dims = layout.dims.to_vec();
        if layout.is_merged {
            dims.splice(0..2, ["batch_size x heads"]);
            nodes.extend([
                shape_from(&named("turned"), &named("inner"), 2),
                concat(&["rows", &named("inner")], &named("merged_shape"), 0),
                node("Reshape", &[&named("turned"), &named("merged_shape")], &new),
                concat(&[&past, &new], &present, layout.axis),
                shape_from(&present, &named("all_inner"), 1),
                concat(&["by_head", &named("all_inner")], &named("split_shape"), 0),
                node("Reshape", &[&present, &named("split_shape")], &named("split")),
                transpose(&named("split"), &named("old"), layout.perm),
            ]);
        } else {
            nodes.push(concat(&[&past, &named("turned")], &present, layout.axis));
            nodes.push(transpose(&present, &named("old"), layout.perm));
        }
        graph.node.splice(at..=at, nodes);
        if let Some(asking) = asking {
            let asked = std::mem::replace(&mut graph.node[asking].output[0], named("shape"));
            let gather = node("Gather", &[&named("shape"), "length_third"], &asked);
            graph.node.insert(asking + 1, gather);
        }
        declare(graph, &past, ElementType::Float32, &dims);
        let dims: Vec<_> = dims.iter().map(|dim| if dim.starts_with("past") { "all" } else { dim }).collect();
        declare(graph, &present, ElementType::Float32, &dims);
    }
    model
}

fn refusal(model: &Model) -> ConvertRefusal {
    match convert(model, MAX_SEQ).unwrap_err().root() {
        OnnxError::Convert(refusal) => refusal.clone(),
        other => panic!("{other}"),
    }
}

/// Checks that the caches are static, of these types and dimensions, and read by `Attention` alone.
fn check(name: &str, converted: &Converted, elements: [ElementType; 4]) {
    let graph = converted.model.graph().unwrap();
    let decoder = Decoder::of(&graph).unwrap();
    let kept: Vec<_> = converted.kept.iter().map(|kept| kept.reason.to_string()).collect();
    assert_eq!((decoder.caches.len(), converted.attention_nodes), (4, 2), "{name}: {kept:?}");
    let [batch, heads, slots, size] = [
        Dimension::Symbolic("batch_size"),
        Dimension::Known(2),
        Dimension::Known(MAX_SEQ),
        Dimension::Known(16),
    ];
    for (cache, element) in decoder.caches.iter().zip(elements) {
        assert!(cache.is_static() && cache.between.is_empty(), "{name}");
        assert_eq!((cache.element, cache.present_info.element), (element, element), "{name}");
        assert_eq!((cache.axis, &cache.past_shape), (2, &vec![batch, heads, slots, size]), "{name}");
        assert_eq!(cache.present_info.shape.as_ref(), Some(&cache.past_shape), "{name}");
        let reads = |node: &&Node<'_>| node.reads().contains(cache.present);
        let readers: Vec<_> = graph.nodes().iter().filter(reads).map(Node::op_type).collect();
        assert_eq!(readers, ["Attention"], "{name}");
    }
}

#[test]
fn every_layout_becomes_heads_slots_and_head_size() {
    for layout in [TOKENS_FIRST, TURNED, MERGED, MERGED_TURNED] {
        let converted = convert(&relaid(&layout), MAX_SEQ);
        let converted = converted.unwrap_or_else(|error| panic!("{}: {error}", layout.name));
        check(layout.name, &converted, [ElementType::Float32; 4]);
    }
}

#[test]
fn the_mask_rule_is_known_for_every_layout() {
    for layout in [TOKENS_FIRST, TURNED, MERGED, MERGED_TURNED] {
        assert_eq!(mask_rule(&relaid(&layout), MAX_SEQ), Some(MaskRule::Causal), "{}", layout.name);
    }
}

#[test]
fn heads_that_do_not_follow_their_sample_are_refused() {
    // The first axis has the heads of all samples in turn: head 0 of each sample comes first.
    let mut model = relaid(&MERGED);
    for node in &mut graph_of(&mut model).node {
        let name = node.output[0].as_str();
        if name.starts_with("turned.") {
            node.attribute = vec![ints("perm", &[1, 0, 2, 3])];
        }
    }
    assert!(matches!(refusal(&model), ConvertRefusal::Layout { rank: 3, axis: 1, .. }));
}

#[test]
fn a_batch_that_a_file_claims_is_refused_before_anything_is_made_of_it() {
    let mut model = relaid(&MERGED);
    let graph = graph_of(&mut model);
    declare(graph, "input_ids", ElementType::Int64, &["1099511627776", "sequence_length"]);
    assert!(matches!(refusal(&model), ConvertRefusal::Layout { rank: 3, axis: 1, .. }));
}

#[test]
fn heads_that_share_a_dimension_with_a_fixed_batch_are_found() {
    let mut model = relaid(&MERGED);
    let graph = graph_of(&mut model);
    for input in graph.input.iter_mut().chain(&mut graph.output) {
        let Some(TypeValue::TensorType(tensor)) = &mut input.r#type.get_or_insert_default().value else {
            continue;
        };
        for dim in &mut tensor.shape.get_or_insert_default().dim {
            if matches!(&dim.value, Some(DimValue::DimParam(name)) if name == "batch_size") {
                dim.value = Some(DimValue::DimValue(2));
            }
        }
    }
    assert!(convert(&model, MAX_SEQ).is_ok());
}

#[test]
fn another_reader_of_a_past_in_another_layout_is_refused() {
    let mut model = relaid(&TOKENS_FIRST);
    let graph = graph_of(&mut model);
    graph.node.push(node("Neg", &["past_key_values.0.key"], "old"));
    graph.output.push(value("old", ElementType::Float32, &["batch_size", "p", HEADS, SIZE]));
    assert!(matches!(refusal(&model), ConvertRefusal::Layout { rank: 4, axis: 1, .. }));
}

/// Returns llama with keys and values of each layer in one cache, `[batch, length, 2 * heads * head size]`.
fn packed() -> Model {
    let mut model = llama();
    let graph = graph_of(&mut model);
    constant(graph, "flat", &[0, 0, 32]);
    constant(graph, "by_head", &[0, 0, 2, 16]);
    constant(graph, "halves", &[32, 32]);
    constant(graph, "length_third", &[0, 0, 1, 0]);
    let found = writers(graph);
    for pair in found.chunks(2).rev() {
        let [(key_at, [past, keys, present]), (value_at, [past_value, values, present_value])] = pair else {
            panic!("keys and values")
        };
        let named = |what: &str| format!("{what}.{present}");
        reroute(graph, present, &named("k"));
        reroute(graph, present_value, &named("v"));
        let mut nodes = Vec::new();
        for (update, part) in [(keys, "keys"), (values, "values")] {
            nodes.push(transpose(update, &named(&format!("{part}_by_token")), &[0, 2, 1, 3]));
            let by_token = named(&format!("{part}_by_token"));
            nodes.push(node("Reshape", &[&by_token, "flat"], &named(part)));
        }
        nodes.push(concat(&[&named("keys"), &named("values")], &named("rows"), 2));
        nodes.push(concat(&[past, &named("rows")], present, 1));
        let mut split = node("Split", &[present, "halves"], &named("half_k"));
        split.output.push(named("half_v"));
        split.attribute = vec![int("axis", 2)];
        nodes.push(split);
        for part in ["k", "v"] {
            let half = named(&format!("half_{part}"));
            nodes.push(node("Reshape", &[&half, "by_head"], &named(&format!("{part}_by_head"))));
            nodes.push(transpose(&named(&format!("{part}_by_head")), &named(part), &[0, 2, 1, 3]));
        }
        let asking = graph
            .node
            .iter()
            .position(|node| node.op_type.as_deref() == Some("Shape") && node.input[0] == *past);
        let last = *key_at.max(value_at);
        graph.node.splice(last..=last, nodes);
        graph.node.remove(*key_at.min(value_at));
        if let Some(asking) = asking {
            let asked = std::mem::replace(&mut graph.node[asking].output[0], named("shape"));
            graph.node.insert(asking + 1, node("Gather", &[&named("shape"), "length_third"], &asked));
        }
        declare(graph, past, ElementType::Float32, &["batch_size", "past_sequence_length", "64"]);
        declare(graph, present, ElementType::Float32, &["batch_size", "all", "64"]);
        graph.input.retain(|input| input.name.as_ref() != Some(past_value));
        graph.output.retain(|output| output.name.as_ref() != Some(present_value));
    }
    model
}

#[test]
fn keys_and_values_in_one_cache_are_written_at_once() {
    let converted = convert(&packed(), MAX_SEQ).unwrap();
    let graph = converted.model.graph().unwrap();
    let decoder = Decoder::of(&graph).unwrap();
    assert_eq!((decoder.caches.len(), converted.attentions, converted.fused), (2, 2, 0));
    let batch = Dimension::Symbolic("batch_size");
    for cache in &decoder.caches {
        let expected = vec![batch, Dimension::Known(1), Dimension::Known(MAX_SEQ), Dimension::Known(64)];
        assert_eq!((cache.axis, &cache.past_shape, cache.part), (2, &expected, CachePart::Both));
        assert!(cache.is_static());
    }
    assert!(converted.kept.iter().all(|it| it.reason.to_string() == "keys or values are not a whole cache"));
}

/// Returns llama whose pasts of layer 1 are cast before the new rows are appended, and whose presents are cast
/// after it. `past` is their declared type.
fn with_casts(past: ElementType, before: &[ElementType], after: &[ElementType]) -> Model {
    let mut model = llama();
    let graph = graph_of(&mut model);
    for (at, [name, update, present]) in writers(graph).into_iter().rev().take(2) {
        let named = |what: &str, at: usize| format!("{what}{at}.{present}");
        let mut nodes = Vec::new();
        let mut read = name.clone();
        for (step, &to) in before.iter().enumerate() {
            nodes.push(cast(&read, &named("wide", step), to));
            read = named("wide", step);
        }
        let written = if after.is_empty() { present.clone() } else { named("written", 0) };
        if !after.is_empty() {
            reroute(graph, &present, &written);
        }
        nodes.push(concat(&[&read, &update], &written, -2));
        let mut read = written;
        for (step, &to) in after.iter().enumerate() {
            let next = if step + 1 == after.len() { present.clone() } else { named("narrow", step) };
            nodes.push(cast(&read, &next, to));
            read = next;
        }
        graph.node.splice(at..=at, nodes);
        declare(graph, &name, past, &["batch_size", HEADS, "past_sequence_length", SIZE]);
        let last = after.last().copied().unwrap_or(ElementType::Float32);
        let dims = ["batch_size", HEADS, "past_sequence_length + sequence_length", SIZE];
        declare(graph, &present, last, &dims);
    }
    model
}

#[test]
fn a_past_that_is_widened_is_declared_in_the_type_of_its_present() {
    use ElementType::{BFloat16, Float16, Float32};
    for (past, before) in [(Float16, &[Float32][..]), (BFloat16, &[Float32]), (Float16, &[Float16, Float32])]
    {
        let converted = convert(&with_casts(past, before, &[]), MAX_SEQ).unwrap();
        check("widened", &converted, [Float32; 4]);
        let nodes = &converted.model.proto().graph.as_option().unwrap().node;
        let is_left = |node: &NodeProto| node.output.iter().any(|output| output.starts_with("wide"));
        assert!(!nodes.iter().any(is_left));
    }
}

#[test]
fn new_rows_are_cast_where_the_present_is_cast_back() {
    use ElementType::{Float16, Float32};
    let converted = convert(&with_casts(Float16, &[Float32], &[Float16]), MAX_SEQ).unwrap();
    let graph = converted.model.graph().unwrap();
    let decoder = Decoder::of(&graph).unwrap();
    let maker = |value: &str| graph.nodes().iter().find(|node| node.output(0) == Some(value)).unwrap();
    for (cache, element) in decoder.caches.iter().zip([Float32, Float32, Float16, Float16]) {
        assert!(cache.is_static() && cache.between.is_empty());
        assert_eq!((cache.element, cache.present_info.element), (element, element));
        assert_eq!(maker(cache.update.unwrap()).is("Cast"), element == Float16);
    }
    // Queries of float32 do not fit to a cache of float16.
    assert_eq!((converted.fused, converted.kept.len()), (1, 1));
    assert_eq!(converted.kept[0].reason.to_string(), "the queries are float, and a cache is float16");
}

#[test]
fn casts_that_may_change_a_past_are_refused() {
    use ElementType::{BFloat16, Float16, Float32, Float64};
    for (past, before, after) in [
        (Float16, &[BFloat16, Float32][..], &[][..]),
        (Float64, &[Float32], &[]),
        (Float64, &[Float32], &[Float64]),
        (Float16, &[Float32], &[BFloat16, Float16]),
        (Float16, &[Float32], &[BFloat16]),
    ] {
        let refusal = refusal(&with_casts(past, before, after));
        assert!(matches!(refusal, ConvertRefusal::Between { .. }), "{past} {before:?} {after:?}: {refusal}");
    }
}

/// Returns llama with a causal convolution after its embeddings, as LFM2 has it. Its state is the last two
/// columns.
fn with_state() -> Model {
    let mut model = llama();
    let imports = &mut model.proto_mut().opset_import;
    let mut import = imports[0].clone();
    (import.domain, import.version) = (Some("com.microsoft".to_owned()), Some(1));
    imports.push(import);
    let graph = graph_of(&mut model);
    let table = |node: &NodeProto| node.name.as_deref() == Some("/model/embed_tokens/Gather");
    let at = graph.node.iter().position(table).unwrap();
    let embedded = std::mem::replace(&mut graph.node[at].output[0], "embedded".to_owned());
    graph.initializer.push(TensorProto {
        name: Some("kernel".to_owned()),
        dims: vec![64, 1, 3],
        data_type: Some(ElementType::Float32.onnx_code()),
        raw_data: Some(vec![0; 64 * 3 * 4]),
        ..TensorProto::default()
    });
    let conv = NodeProto {
        domain: Some("com.microsoft".to_owned()),
        output: vec!["mixed".to_owned(), "present.conv".to_owned()],
        ..node("CausalConvWithState", &["by_channel", "kernel", "", "past.conv"], "mixed")
    };
    let nodes =
        [transpose("embedded", "by_channel", &[0, 2, 1]), conv, transpose("mixed", &embedded, &[0, 2, 1])];
    graph.node.splice(at + 1..at + 1, nodes);
    graph.input.push(value("past.conv", ElementType::Float32, &["batch_size", "64", "2"]));
    graph.output.push(value("present.conv", ElementType::Float32, &["batch_size", "64", "2"]));
    model
}

#[test]
fn a_state_stays_as_it_is_and_is_named() {
    let exported = with_state();
    let graph = exported.graph().unwrap();
    let decoder = Decoder::of(&graph).unwrap();
    assert_eq!((decoder.caches.len(), decoder.states.len()), (4, 1));
    let role = decoder.inputs.iter().find(|input| input.value.name == "past.conv").unwrap().role;
    assert_eq!((role, decoder.logits.as_ref().unwrap().name), (InputRole::State(0), "logits"));

    let converted = convert(&exported, MAX_SEQ).unwrap();
    let expected = KeptState { past: "past.conv".to_owned(), present: "present.conv".to_owned() };
    assert_eq!((converted.states.as_slice(), converted.caches), (&[expected][..], 4));
    let metadata = &converted.model.proto().metadata_props;
    let states = metadata.iter().find(|entry| entry.key.as_deref() == Some("kvscatter.states")).unwrap();
    assert_eq!(states.value.as_deref(), Some("past.conv -> present.conv"));
    let after = converted.model.graph().unwrap();
    let after = Decoder::of(&after).unwrap();
    let [before, after] =
        [&decoder, &after].map(|it| (it.states[0].shape.clone(), it.states[0].writer.op_type()));
    assert_eq!(before, after);
    check("with a state", &converted, [ElementType::Float32; 4]);
}

/// mobius defines the operators of states in the model, for runtimes that lack them.
#[test]
fn a_state_of_an_operator_that_the_model_defines() {
    let mut model = with_state();
    let inputs = ["input", "weight", "bias", "past"].map(str::to_owned).to_vec();
    model.proto_mut().functions.push(FunctionProto {
        name: Some("CausalConvWithState".to_owned()),
        domain: Some("com.microsoft".to_owned()),
        input: inputs,
        output: ["mixed", "present"].map(str::to_owned).to_vec(),
        node: vec![node("Conv", &["input", "weight"], "mixed"), node("Identity", &["past"], "present")],
        opset_import: vec![opset("", 24)],
        ..FunctionProto::default()
    });
    let graph = model.graph().unwrap();
    assert_eq!(Decoder::of(&graph).unwrap().states.len(), 1);
    let error = convert(&model, MAX_SEQ).unwrap_err().to_string();
    assert!(
        error.contains("(CausalConvWithState, domain com.microsoft, version 1): in this function, node 0"),
        "{error}"
    );
    assert!(error.ends_with("kvscatter cannot evaluate this operator"), "{error}");
}

#[test]
fn the_samples_of_a_state_may_have_another_name() {
    let mut model = with_state();
    declare(graph_of(&mut model), "past.conv", ElementType::Float32, &["samples", "64", "2"]);
    assert_eq!(convert(&model, MAX_SEQ).unwrap().states.len(), 1);
}

#[test]
fn a_state_of_unknown_size_is_refused() {
    let mut model = with_state();
    declare(graph_of(&mut model), "past.conv", ElementType::Float32, &["batch_size", "?", "2"]);
    assert_eq!(refusal(&model), ConvertRefusal::InputShape { name: "past.conv".to_owned(), axis: 1 });
}
