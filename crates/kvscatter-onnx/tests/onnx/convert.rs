//! Tests the conversion to static caches: the contents of converted models, and refusals.
//!
//! `python-tests/test_convert.py` shows in ONNX Runtime that a converted model computes the same.

use kvscatter::ElementType;
use kvscatter_onnx::convert::{ConvertError, ConvertRefusal, Converted, convert};
use kvscatter_onnx::decoder::{Decoder, InputRole, WriterStyle};
use kvscatter_onnx::internal::proto::{GraphProto, ModelProto, NodeProto};
use kvscatter_onnx::{Dimension, Model, Node, NodeLabel, OnnxError};

use crate::masks::falcon_with;
use crate::support::{
    Nodes, append, assert_refused, cache_names, counts, declare, decoder, extend, graph_mut, insert, kinds,
    load, maker, nodes_mut, op_types, raw, refusal, reroute,
};

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

pub(super) const MAX_SEQ: usize = 24;

pub(super) fn converted(decoder: &str) -> Converted {
    convert(&load(decoder), MAX_SEQ).unwrap_or_else(|error| panic!("{decoder}: {error}"))
}

fn graph(model: &ModelProto) -> &GraphProto {
    model.graph.as_option().unwrap()
}

/// Loads a decoder and changes its first node of this operator.
pub(super) fn changed(decoder: &str, op_type: &str, change: impl FnOnce(&mut NodeProto)) -> Model {
    let mut model = load(decoder);
    change(nodes_mut(graph_mut(&mut model), op_type).next().unwrap());
    model
}

/// Returns llama with more inputs, nodes after all others, and outputs.
fn llama_with(inputs: &str, nodes: &str, outputs: &str) -> Model {
    let mut model = load("optimum-llama");
    extend(&mut model, inputs, nodes, outputs);
    model
}

#[test]
fn every_cache_is_written_by_one_node_at_one_place() {
    for decoder in CONCAT.into_iter().chain(ATTENTION) {
        let converted = converted(decoder);
        let graph = converted.model.graph().unwrap();
        let found = Decoder::from_graph(&graph).unwrap();
        let report = &converted.report;
        assert_eq!((found.caches.len(), report.caches.count), (4, 4), "{decoder}");
        for cache in &found.caches {
            assert!(matches!(cache.style, WriterStyle::TensorScatter(kvscatter::Mode::Linear)), "{decoder}");
            let writer = cache.writer.unwrap();
            let names = (writer.input(0), writer.input(2), writer.output(0));
            let expected = (Some(cache.past), Some(&*report.inputs.write_indices), Some(cache.present));
            assert_eq!((names, writer.version()), (expected, 24), "{decoder}");
            assert_eq!((cache.axis, cache.capacity()), (2, Dimension::Known(MAX_SEQ)), "{decoder}");
            assert_eq!(Some(&cache.past_shape), cache.present_info.shape.as_ref(), "{decoder}");
            assert!(cache.between.is_empty() && cache.earlier.is_empty() && cache.copies.is_empty());
            let reads = |node: &&Node<'_>| node.reads().contains(cache.present);
            let readers: Vec<_> = graph.nodes().iter().filter(reads).map(Node::op_type).collect();
            assert_eq!(readers, ["Attention"], "{decoder}");
        }
        let mask = found.input(InputRole::AttentionMask).unwrap();
        assert_eq!(mask.shape.as_ref().unwrap()[1], Dimension::Known(MAX_SEQ), "{decoder}");
        assert_eq!(report.inputs.nonpad_kv_seqlen.as_deref(), Some("nonpad_kv_seqlen"), "{decoder}");
        let fused = if CONCAT.contains(&decoder) { 2 } else { 0 };
        assert_eq!(counts(&converted), (2, 2, fused), "{decoder}");
        assert!(report.attention.kept.is_empty(), "{decoder}: {:?}", report.attention.kept);
        let hazards = kinds(&found.hazards());
        assert!(hazards.iter().all(|kind| *kind == "runtime"), "{decoder}: {hazards:?}");
    }
}

#[test]
fn the_contract_is_in_the_metadata() {
    let converted = converted("mobius-llama-dynamic");
    let value = |key: &str| converted.model.metadata(&format!("kvscatter.{key}")).unwrap();
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
    let graph = graph_mut(&mut model);
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
    assert_eq!(
        (converted.report.caches.count, converted.report.inputs.write_indices.as_str()),
        (4, "write_indices_1")
    );
    assert_eq!(converted.report.inputs.attention_mask.as_deref(), Some("xattention_mask"));
}

/// Raising the operator set inserts nodes before others.
#[test]
fn a_refusal_names_the_node_as_the_file_has_it() {
    let model = falcon_with("biased = Sqrt($)");
    let node = node_of_error(&model);
    let there = &graph(model.proto()).node[node.index];
    assert_eq!((there.name.as_deref(), node.version), (Some(node.name.as_str()), Some(14)));
    assert_eq!(there.op_type.as_deref(), Some(node.op_type.as_str()));
}

/// The node that fails is one of those that take the place of `GroupQueryAttention`.
#[test]
fn a_refusal_about_an_added_node_names_a_node_of_the_file() {
    let mut model = changed("genai-llama-gqa", "GroupQueryAttention", |node| {
        let heads = node.attribute.iter_mut().find(|it| it.name.as_deref() == Some("num_heads"));
        heads.unwrap().i = Some(5);
    });
    for [past, _] in cache_names() {
        declare(&mut model, &format!("{past}: float[batch_size, 2, past_sequence_length, 16]"));
    }
    let node = node_of_error(&model);
    let there = &graph(model.proto()).node[node.index];
    assert_eq!(there.name.as_deref(), Some(node.name.as_str()));
    assert_eq!(node.op_type, "GroupQueryAttention");
}

/// Returns the node that a refusal names.
fn node_of_error(model: &Model) -> NodeLabel {
    match convert(model, MAX_SEQ).unwrap_err() {
        OnnxError::InNode { node, .. } => *node,
        error => panic!("{error}"),
    }
}

/// The second layer takes the cache of the first one as its past.
#[test]
fn group_query_attention_over_the_cache_of_another_layer_is_refused() {
    let mut model = load("genai-llama-gqa");
    let graph = graph_mut(&mut model);
    let is_dropped = |name: &Option<String>| name.as_deref().is_some_and(|name| name.contains(".1."));
    graph.input.retain(|input| !is_dropped(&input.name));
    graph.output.retain(|output| !is_dropped(&output.name));
    let second = nodes_mut(graph, "GroupQueryAttention").nth(1).unwrap();
    for (slot, part) in [(3, "key"), (4, "value")] {
        second.input[slot] = format!("present.0.{part}");
    }
    let name = second.name.clone().unwrap();
    let present = "present.0.key".to_owned();
    assert_eq!(refusal(&model, MAX_SEQ), ConvertRefusal::SharedCache { present });
    assert_eq!(node_of_error(&model).name, name);
    let mut kinds = kinds(&decoder(&model).hazards());
    kinds.retain(|kind| *kind != "operator-writes");
    assert_eq!(kinds, ["shared-cache"; 2]);
}

/// The attention of the last layer reaches no output, as in the LFM2 export of ONNX Runtime GenAI.
#[test]
fn attention_whose_result_is_lost_is_refused() {
    for (name, result) in [
        ("optimum-llama", "/model/layers.{}/self_attn/MatMul_1_output_0"),
        ("genai-llama-gqa", "/model/layers.{}/attn/GroupQueryAttention/output_0"),
    ] {
        let [first, last] = ["0", "1"].map(|layer| result.replace("{}", layer));
        let mut model = load(name);
        let graph = graph_mut(&mut model);
        let mut reads = graph.node.iter_mut().flat_map(|node| &mut node.input).filter(|read| **read == last);
        reads.next().unwrap().clone_from(&first);
        let past = "past_key_values.1.key".to_owned();
        assert_eq!(refusal(&model, MAX_SEQ), ConvertRefusal::ResultUnused { past }, "{name}");
        let hazards = decoder(&model).hazards();
        let unused: Vec<_> = hazards.iter().filter(|it| it.kind() == "result-unused").collect();
        assert_eq!(unused.iter().filter_map(|it| it.cache()).filter(|it| it.contains(".1.")).count(), 2);
        assert_eq!(unused.len(), 2, "{unused:?}");
    }
}

#[test]
fn a_mask_of_a_fixed_length_is_refused() {
    let mut model = load("optimum-llama");
    declare(&mut model, "attention_mask: int64[batch_size, 12]");
    let name = "attention_mask".to_owned();
    assert_eq!(refusal(&model, MAX_SEQ), ConvertRefusal::InputFixed { name, axis: 1, size: 12 });
}

#[test]
fn caches_that_have_no_static_form() {
    for model in [load("mobius-llama-static"), converted("optimum-llama").model] {
        assert_refused!(convert(&model, MAX_SEQ), ConvertRefusal::AlreadyStatic { .. });
    }
    for max_seq in [0, 1 << 31] {
        assert_eq!(refusal(&load("optimum-llama"), max_seq), ConvertRefusal::MaxSeq { max_seq });
    }
    let dynamic = load("mobius-llama-dynamic");
    assert_refused!(convert(&dynamic, 4096), ConvertRefusal::Table { rows: 128, max_seq: 4096, .. });
    // The triangle of its causal mask is too small, because its rows are positions as well.
    let mut model = load("decoders/optimum-1.18-gpt2");
    let graph = graph_mut(&mut model);
    let name = "transformer.wpe.weight";
    let table = graph.initializer.iter_mut().find(|it| it.name.as_deref() == Some(name)).unwrap();
    *table = raw(name, ElementType::Float32, &[4096, 16], vec![0; 4096 * 16 * 4]);
    assert_refused!(convert(&model, 4096), ConvertError::Capacity { .. });
}

#[test]
fn other_readers_of_a_cache_are_refused() {
    let (past, present, all) = ("past_key_values.0.key", "present.0.key", "float[batch_size, 2, all, 16]");
    let weights = "/model/layers.0/self_attn/Softmax_output_0";
    let with = |node: &str, ty: &str| {
        convert(&llama_with("", &format!("read = {node}"), &format!("read: {ty}")), MAX_SEQ)
    };
    assert_refused!(with(&format!("Neg({past})"), all), ConvertRefusal::PastRead { .. });
    assert_refused!(with(&format!("Neg({present})"), all), ConvertRefusal::Output { .. });
    assert_refused!(with(&format!("Identity({present})"), all), ConvertRefusal::Output { .. });
    assert_refused!(with(&format!("Relu({present})"), all), ConvertRefusal::Reader { .. });
    let read = format!("Identity({weights})");
    assert_refused!(with(&read, "float[batch_size, 4, new, all]"), ConvertRefusal::Output { .. });
    // A node that reads no values of a past, or whose result nothing uses, does not prevent a conversion.
    for op_type in ["Shape", "Size", "Identity"] {
        let model = llama_with("", &format!("read = {op_type}({past})"), "");
        assert!(convert(&model, MAX_SEQ).is_ok(), "{op_type}");
    }
}

#[test]
fn a_cache_that_is_written_in_another_way_is_refused() {
    let mut model = load("optimum-llama");
    let place = maker(graph_mut(&mut model), "present.0.key");
    graph_mut(&mut model).node[place].input.reverse();
    assert_refused!(convert(&model, MAX_SEQ), ConvertRefusal::Writer { .. });
}

/// transformers' `DynamicCache(config)` keeps as many rows of a layer with a window as the next step needs.
#[test]
fn a_cache_that_is_cut_is_refused() {
    let mut model = load("optimum-llama");
    let graph = graph_mut(&mut model);
    let present = "present.0.key";
    let place = maker(graph, present);
    graph.node[place].output = vec!["joined".to_owned()];
    reroute(graph, present, "joined");
    append(&mut model, &format!("{present} = Slice(joined, [-7], [{}], [2])", i64::MAX));
    let past = "past_key_values.0.key".to_owned();
    assert_eq!(
        refusal(&model, MAX_SEQ),
        ConvertRefusal::Cut { past, reason: "a Slice keeps only its last 7 rows".to_owned() }
    );
}

/// Llama's caches become one tensor of all layers, `[layers, batch, length, width]`.
#[test]
fn a_stack_of_caches_is_refused() {
    let mut model = load("optimum-llama");
    for [past, present] in cache_names() {
        declare(&mut model, &format!("{past}: float[2, batch_size, past_sequence_length, 16]"));
        declare(&mut model, &format!("{present}: float[2, batch_size, all, 16]"));
    }
    let text = refusal(&model, MAX_SEQ).to_string();
    assert!(text.ends_with("one tensor has several caches, with the batch at axis 1"), "{text}");
}

#[test]
fn positions_that_are_counted_inside_are_counted_for_each_sample() {
    // OPT slices the running sum of its mask at the end of the past. The index is different for each sample. Llama has
    // the positions as an input.
    for (decoder, is_gathered) in [("decoders/optimum-1.18-opt", true), ("optimum-llama", false)] {
        assert_eq!(op_types(&converted(decoder).model).contains(&"GatherElements"), is_gathered);
    }
}

#[test]
fn a_length_that_leads_into_arithmetic_is_refused() {
    // The length of the past scales the embeddings.
    let mut model = load("optimum-llama");
    let embedded = "/model/embed_tokens/Gather_output_0";
    let place = maker(graph_mut(&mut model), embedded);
    graph_mut(&mut model).node[place].output = vec!["embedded".to_owned()];
    let nodes = "factor = Cast(Shape(past_key_values.0.key) {start=2, end=3}) {to=float}";
    insert(&mut model, place + 1, Nodes::parse(&format!("{nodes}; {embedded} = Mul(embedded, factor)")));
    let refusal = refusal(&model, MAX_SEQ);
    assert_eq!(refusal, ConvertRefusal::LengthDependence { value: "factor".to_owned() });
}

/// Inserts nodes into a mixture of experts, before the node of this name.
///
/// That node then reads their output as its input `slot`, which they read as `$`. Their input `routed` lists the
/// indices of the first expert's tokens, as many as the router chooses.
fn routed(before: &str, slot: usize, nodes: &str) -> Model {
    let mut model = load("decoders/optimum-0.1-qwen3-moe");
    let graph = graph_mut(&mut model);
    let place = graph.node.iter().position(|node| node.name.as_deref() == Some(before)).unwrap();
    let read = std::mem::replace(&mut graph.node[place].input[slot], "made".to_owned());
    let nodes = nodes.replace("routed", "/model/layers.0/mlp/NonZero_output_0").replace('$', &read);
    insert(&mut model, place, Nodes::parse(&nodes));
    model
}

#[test]
fn choices_of_the_router_may_reach_tokens_and_not_masks_or_caches() {
    let why = "the shape of its output depends on the values of input 0, of which only the shape is known";
    let by_router = ("/model/layers.0/mlp/NonZero", why);
    for (before, slot, nodes, expected) in [
        // The mask depends on the tokens of an expert.
        (
            "/model/layers.1/self_attn/Add_2",
            1,
            "made = Mul($, ReduceSum(Cast(routed) {to=float}) {keepdims=0})",
            by_router,
        ),
        // There are as many new rows as an expert has tokens.
        (
            "/model/layers.1/self_attn/Concat_6",
            1,
            "made = Gather($, Squeeze(Flatten(routed))) {axis=2}",
            by_router,
        ),
        // The length of the past is used together with an open value.
        (
            "/model/layers.0/mlp/Cast_3",
            0,
            "factor = Cast(Shape(past_key_values.0.key) {start=2, end=3}) {to=float}; made = Mul($, factor)",
            ("nmade", "\"factor\" depends on the length of the past in an unknown way"),
        ),
    ] {
        match convert(&routed(before, slot, nodes), MAX_SEQ).unwrap_err() {
            OnnxError::InNode { node, cause } => {
                assert_eq!((node.name.as_str(), cause.to_string().as_str()), expected, "{nodes}");
            }
            other => panic!("{nodes}: {other}"),
        }
    }
}

#[test]
fn sizes_that_a_file_claims_are_refused_before_anything_is_made_of_them() {
    let mut model = load("optimum-llama");
    declare(&mut model, "input_ids: int64[batch_size, 1000000]");
    assert_eq!(refusal(&model, MAX_SEQ), ConvertRefusal::NewTokens { new: 1_000_000, max_seq: MAX_SEQ });
    let mut model = load("optimum-llama");
    for [past, _] in cache_names() {
        declare(&mut model, &format!("{past}: float[4611686018427387904, 2, past_sequence_length, 16]"));
    }
    for new in ["sequence_length", "0"] {
        declare(&mut model, &format!("input_ids: int64[batch_size, {new}]"));
        let refusal = refusal(&model, MAX_SEQ);
        assert!(matches!(refusal, ConvertRefusal::MaskSize { batch, .. } if batch == 1 << 62), "{refusal}");
    }
}

/// The limit is on the elements of the largest mask: three samples, three tokens and all slots.
#[test]
fn the_most_slots_are_refused_by_their_number() {
    let (most, limit) = (466_033, 4 << 20);
    let model = load("optimum-llama");
    assert!(convert(&model, most).is_ok());
    let expected = ConvertRefusal::MaskSize { batch: 3, new: 3, max_seq: most + 1, limit };
    assert_eq!(refusal(&model, most + 1), expected);
}

#[test]
fn an_output_of_the_length_of_the_past_is_refused() {
    let length = "length = Shape(present.0.key) {start=2, end=3}";
    let model = llama_with("", length, "length: int64[1]");
    assert_eq!(refusal(&model, MAX_SEQ), ConvertRefusal::LengthDependence { value: "length".to_owned() });
}
