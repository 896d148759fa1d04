//! Tests that caches of other layouts and types become `[batch, heads, slots, head size]` in one type.
//!
//! `python-tests/test_forms.py` shows in ONNX Runtime that such decoders compute the same.

use kvscatter::ElementType;
use kvscatter_onnx::convert::{CacheLayout, ConvertOptions, ConvertRefusal, Converted, KeptState, convert};
use kvscatter_onnx::decoder::{CachePart, Decoder, InputRole};
use kvscatter_onnx::internal::proto::{FunctionProto, GraphProto, NodeProto};
use kvscatter_onnx::internal::{MaskRule, mask_rule};
use kvscatter_onnx::{Dimension, Model, Node, OnnxError};

use crate::support::{
    Nodes, assert_refused, counts, declare, decoder, extend, fix_dim, function, graph_mut, insert, ints,
    kept_reasons, load, maker, parsed, raw, refusal, reroute, values,
};

const MAX_SEQ: usize = 24;

/// How a cache of `[batch, heads, length, head size]` is laid out in another decoder.
struct Layout {
    perm: &'static str,
    /// The dimensions of the past, whose length is `L`. With three of them, heads share that of the batch.
    dims: &'static str,
}

const TOKENS_FIRST: Layout = Layout { perm: "[0, 2, 1, 3]", dims: "batch_size, L, 2, 16" };
const TURNED: Layout = Layout { perm: "[0, 1, 3, 2]", dims: "batch_size, 2, 16, L" };
const MERGED: Layout = Layout { perm: "[0, 1, 2, 3]", dims: "batch_size x heads, L, 16" };
const MERGED_AND_TURNED: Layout = Layout { perm: "[0, 1, 3, 2]", dims: "batch_size x heads, 16, L" };

/// Returns the pasts of llama, with the updates and the presents.
fn writers(graph: &GraphProto) -> Vec<[String; 3]> {
    let concats = graph.node.iter().filter(|node| node.op_type.as_deref() == Some("Concat"));
    let caches = concats.filter(|node| node.input[0].starts_with("past_key_values"));
    caches.map(|node| [node.input[0].clone(), node.input[1].clone(), node.output[0].clone()]).collect()
}

/// Only the length is taken from the shape of a past, in which it is at this place.
fn move_length(model: &mut Model, past: &str, axis: usize) {
    let graph = graph_mut(model);
    let is_shape = |node: &&mut NodeProto| node.op_type.as_deref() == Some("Shape") && node.input[0] == past;
    let Some(shape) = graph.node.iter_mut().find(is_shape) else { return };
    let asked = std::mem::replace(&mut shape.output[0], format!("shape.{past}"));
    let place = maker(graph, &format!("shape.{past}"));
    insert(model, place + 1, Nodes::parse(&format!("{asked} = Gather(shape.{past}, [0, 0, {axis}, 0])")));
}

/// Returns llama with caches of another layout.
fn relaid(Layout { perm, dims }: Layout) -> Model {
    let sizes: Vec<_> = dims.split(", ").collect();
    let axis = sizes.iter().position(|size| *size == "L").unwrap();
    let mut model = load("optimum-llama");
    for [past, update, present] in writers(graph_mut(&mut model)) {
        let (new, old) = (format!("Transpose({update}) {{perm={perm}}}"), format!("old.{present}"));
        let nodes = if sizes.len() == 3 {
            format!(
                "turned.{present} = {new}
                shape.{present} = Concat([-1], Shape(turned.{present}) {{start=2}}) {{axis=0}}
                {present} = Concat({past}, Reshape(turned.{present}, shape.{present})) {{axis={axis}}}
                split.{present} = Concat([-1, 2], Shape({present}) {{start=1}}) {{axis=0}}
                {old} = Transpose(Reshape({present}, split.{present})) {{perm={perm}}}"
            )
        } else {
            format!(
                "turned.{present} = {new}
                {present} = Concat({past}, turned.{present}) {{axis={axis}}}
                {old} = Transpose({present}) {{perm={perm}}}"
            )
        };
        let graph = graph_mut(&mut model);
        reroute(graph, &present, &old);
        let place = maker(graph, &present);
        graph.node.remove(place);
        insert(&mut model, place, Nodes::parse(&nodes));
        move_length(&mut model, &past, axis);
        declare(&mut model, &format!("{past}: float[{}]", dims.replace('L', "past_sequence_length")));
        declare(&mut model, &format!("{present}: float[{}]", dims.replace('L', "all")));
    }
    model
}

/// Checks that the caches are static, of these types and dimensions, and read by `Attention` alone.
fn check(name: &str, converted: &Converted, elements: [ElementType; 4]) {
    let graph = converted.model.graph().unwrap();
    let decoder = Decoder::from_graph(&graph).unwrap();
    let nodes = (decoder.caches.len(), converted.report.attention.nodes);
    assert_eq!(nodes, (4, 2), "{name}: {:?}", kept_reasons(converted));
    let [heads, slots, size] = [2, MAX_SEQ, 16].map(Dimension::Known);
    let shape = vec![Dimension::Symbolic("batch_size"), heads, slots, size];
    for (cache, element) in decoder.caches.iter().zip(elements) {
        assert!(cache.is_static() && cache.between.is_empty(), "{name}");
        assert_eq!((cache.element, cache.present_info.element), (element, element), "{name}");
        assert_eq!((cache.axis, &cache.past_shape), (2, &shape), "{name}");
        assert_eq!(cache.present_info.shape.as_ref(), Some(&cache.past_shape), "{name}");
        let reads = |node: &&Node<'_>| node.reads().contains(cache.present);
        let readers: Vec<_> = graph.nodes().iter().filter(reads).map(Node::op_type).collect();
        assert_eq!(readers, ["Attention"], "{name}");
    }
}

#[test]
fn every_layout_becomes_heads_slots_and_head_size() {
    for layout in [TOKENS_FIRST, TURNED, MERGED, MERGED_AND_TURNED] {
        let (name, model) = (layout.dims, relaid(layout));
        assert_eq!(mask_rule(&model, MAX_SEQ), Some(MaskRule::Causal), "{name}");
        let converted = convert(&model, MAX_SEQ).unwrap_or_else(|error| panic!("{name}: {error}"));
        check(name, &converted, [ElementType::Float32; 4]);
    }
}

#[test]
fn heads_that_do_not_follow_their_sample_are_refused() {
    // The first axis has the heads of all samples in turn: head 0 of each sample comes first.
    let mut model = relaid(MERGED);
    for node in &mut graph_mut(&mut model).node {
        let name = node.output[0].as_str();
        if name.starts_with("turned.") {
            node.attribute = vec![ints("perm", &[1, 0, 2, 3])];
        }
    }
    assert_refused!(convert(&model, MAX_SEQ), ConvertRefusal::Layout { rank: 3, axis: 1, .. });
}

#[test]
fn a_batch_that_a_file_claims_is_refused_before_anything_is_made_of_it() {
    let mut model = relaid(MERGED);
    declare(&mut model, "input_ids: int64[1099511627776, sequence_length]");
    assert_refused!(convert(&model, MAX_SEQ), ConvertRefusal::Layout { rank: 3, axis: 1, .. });
}

#[test]
fn heads_that_share_a_dimension_with_a_fixed_batch_are_found() {
    let mut model = relaid(MERGED);
    fix_dim(&mut model, "batch_size", 2);
    assert!(convert(&model, MAX_SEQ).is_ok());
}

#[test]
fn another_reader_of_a_past_in_another_layout_is_refused() {
    let mut model = relaid(TOKENS_FIRST);
    extend(&mut model, "", "old = Neg(past_key_values.0.key)", "old: float[batch_size, p, 2, 16]");
    assert_refused!(convert(&model, MAX_SEQ), ConvertRefusal::Layout { rank: 4, axis: 1, .. });
}

/// Returns llama with keys and values of each layer in one cache, `[batch, length, 2 * heads * head size]`.
fn packed() -> Model {
    let mut model = load("optimum-llama");
    for pair in writers(graph_mut(&mut model)).chunks(2) {
        let [[past, keys, present], [past_value, values, present_value]] = pair else { panic!("{pair:?}") };
        let graph = graph_mut(&mut model);
        reroute(graph, present, &format!("old.{present}"));
        reroute(graph, present_value, &format!("old.{present_value}"));
        let [first, last] = [present, present_value].map(|name| maker(graph, name));
        let place = first.max(last) - 1;
        graph.node.remove(first.max(last));
        graph.node.remove(first.min(last));
        let by_token = |rows: &str| format!("Reshape(Transpose({rows}) {{perm=[0, 2, 1, 3]}}, [0, 0, 32])");
        let by_head =
            |half| format!("Transpose(Reshape({half}.{present}, [0, 0, 2, 16])) {{perm=[0, 2, 1, 3]}}");
        let (k, v) = (by_token(keys), by_token(values));
        insert(
            &mut model,
            place,
            Nodes::parse(&format!(
                "rows.{present} = Concat({k}, {v}) {{axis=2}}
                {present} = Concat({past}, rows.{present}) {{axis=1}}
                k.{present}, v.{present} = Split({present}, [32, 32]) {{axis=2}}
                old.{present} = {}
                old.{present_value} = {}",
                by_head("k"),
                by_head("v")
            )),
        );
        move_length(&mut model, past, 1);
        declare(&mut model, &format!("{past}: float[batch_size, past_sequence_length, 64]"));
        declare(&mut model, &format!("{present}: float[batch_size, all, 64]"));
        let graph = graph_mut(&mut model);
        graph.input.retain(|input| input.name.as_ref() != Some(past_value));
        graph.output.retain(|output| output.name.as_ref() != Some(present_value));
    }
    model
}

#[test]
fn keys_and_values_in_one_cache_are_written_at_once() {
    let converted = convert(&packed(), MAX_SEQ).unwrap();
    let graph = converted.model.graph().unwrap();
    let decoder = Decoder::from_graph(&graph).unwrap();
    assert_eq!((decoder.caches.len(), counts(&converted)), (2, (2, 0, 0)));
    let [heads, slots, size] = [1, MAX_SEQ, 64].map(Dimension::Known);
    let shape = vec![Dimension::Symbolic("batch_size"), heads, slots, size];
    for cache in &decoder.caches {
        assert_eq!((cache.axis, &cache.past_shape, cache.part), (2, &shape, CachePart::Both));
        assert!(cache.is_static());
    }
    assert_eq!(kept_reasons(&converted), ["keys or values are not a whole cache"; 2]);
}

/// Returns llama whose pasts of layer 1 are cast before the new rows are appended, and whose presents are cast
/// after it. `past` is their declared type.
fn with_casts(past: ElementType, before: &[ElementType], after: &[ElementType]) -> Model {
    let cast = |value: String, to: &ElementType| format!("Cast({value}) {{to={to}}}");
    let mut model = load("optimum-llama");
    for [name, update, present] in &writers(graph_mut(&mut model))[2..] {
        let graph = graph_mut(&mut model);
        let place = maker(graph, present);
        graph.node.remove(place);
        let wide = before.iter().fold(name.clone(), cast);
        let written = format!("Concat({wide}, {update}) {{axis=-2}}");
        let nodes = if after.is_empty() {
            format!("{present} = {written}")
        } else {
            reroute(graph, present, &format!("written.{present}"));
            let narrow = after.iter().fold(format!("written.{present}"), cast);
            format!("written.{present} = {written}; {present} = {narrow}")
        };
        insert(&mut model, place, Nodes::parse(&nodes));
        declare(&mut model, &format!("{name}: {past}[batch_size, 2, past_sequence_length, 16]"));
        let last = after.last().copied().unwrap_or(ElementType::Float32);
        let length = "past_sequence_length + sequence_length";
        declare(&mut model, &format!("{present}: {last}[batch_size, 2, {length}, 16]"));
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
        let graph = converted.model.graph().unwrap();
        let mut casts = graph.nodes().iter().filter(|node| node.is("Cast"));
        assert!(!casts.any(|cast| cast.input(0).unwrap().starts_with("past_key_values")));
    }
}

#[test]
fn new_rows_are_cast_where_the_present_is_cast_back() {
    use ElementType::{Float16, Float32};
    let converted = convert(&with_casts(Float16, &[Float32], &[Float16]), MAX_SEQ).unwrap();
    let graph = converted.model.graph().unwrap();
    let maker = |value: &str| graph.nodes().iter().find(|node| node.output(0) == Some(value)).unwrap();
    let decoder = Decoder::from_graph(&graph).unwrap();
    for (cache, element) in decoder.caches.iter().zip([Float32, Float32, Float16, Float16]) {
        assert!(cache.is_static() && cache.between.is_empty());
        assert_eq!((cache.element, cache.present_info.element), (element, element));
        assert_eq!(maker(cache.update.unwrap()).is("Cast"), element == Float16);
    }
    // Queries of float32 do not fit to a cache of float16.
    assert_eq!(converted.report.attention.fused, 1);
    assert_eq!(kept_reasons(&converted), ["the queries are float, and a cache is float16"]);
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
        assert_refused!(convert(&with_casts(past, before, after), MAX_SEQ), ConvertRefusal::Between { .. });
    }
}

/// Returns llama with a causal convolution after its embeddings, as LFM2 has it. Its state is the last two
/// columns.
fn with_state() -> Model {
    let mut model = load("optimum-llama");
    let embedded = "/model/embed_tokens/Gather_output_0";
    let graph = graph_mut(&mut model);
    let place = maker(graph, embedded);
    graph.node[place].output = vec!["embedded".to_owned()];
    graph.initializer.push(raw("kernel", ElementType::Float32, &[64, 1, 3], vec![0; 64 * 3 * 4]));
    graph.input.extend(values("past.conv: float[batch_size, 64, 2]"));
    graph.output.extend(values("present.conv: float[batch_size, 64, 2]"));
    let turned = "Transpose(embedded) {perm=[0, 2, 1]}";
    let nodes = format!(
        "mixed, present.conv = CausalConvWithState@com.microsoft({turned}, kernel, _, past.conv)
        {embedded} = Transpose(mixed) {{perm=[0, 2, 1]}}"
    );
    insert(&mut model, place + 1, Nodes::parse(&nodes));
    model
}

/// Returns the model of [`with_state`] with these nodes, which compute `present.conv` and `mixed` from `past.conv`,
/// `new` and `kernel`.
fn with_state_of(nodes: &str) -> Model {
    let mut model = with_state();
    let embedded = "/model/embed_tokens/Gather_output_0";
    let graph = graph_mut(&mut model);
    let state = maker(graph, "present.conv");
    graph.node.drain(state - 1..=state + 1);
    let nodes = format!(
        "new = Transpose(embedded) {{perm=[0, 2, 1]}}
        {nodes}
        {embedded} = Transpose(mixed) {{perm=[0, 2, 1]}}"
    );
    insert(&mut model, state - 1, Nodes::parse(&nodes));
    model
}

/// The nodes of a convolution in the form of public LFM2 files: the columns are joined, convolved and cut.
const JOINED: &str = "joined = Concat(past.conv, new) {axis=2}
    present.conv = Slice(joined, [-2], [9223372036854775807], [2])
    mixed = Conv(joined, kernel) {group=64}";

fn with_joined_state() -> Model {
    with_state_of(JOINED)
}

/// Each conversion returns the columns of the convolution, from which follows the state after each token.
#[test]
fn the_columns_of_a_convolution_are_returned() {
    for exported in [with_state(), with_joined_state()] {
        let before = decoder(&exported);
        assert_eq!((before.caches.len(), before.states.len(), before.states[0].columns), (4, 1, None));
        let converted = convert(&exported, MAX_SEQ).unwrap();
        let state = &decoder(&converted.model).states[0];
        assert_eq!((state.present, state.columns), ("present.conv", Some("present.conv.columns")));
        let named = converted.model.metadata("kvscatter.state_columns");
        assert_eq!(named, Some("past.conv -> present.conv.columns"));
        check("with columns", &converted, [ElementType::Float32; 4]);
        // They are added once.
        let again =
            convert(&converted.model, ConvertOptions::new(MAX_SEQ).layout(CacheLayout::Flat)).unwrap();
        let outputs = |model: &Model| model.graph().unwrap().outputs().unwrap().len();
        assert_eq!(outputs(&again.model), outputs(&converted.model));
        assert_eq!(outputs(&converted.model), outputs(&exported) + 1);
    }
}

#[test]
fn each_convolution_of_lfm2_returns_its_columns() {
    let converted = convert(&load("decoders/transformers-lfm2"), MAX_SEQ).unwrap();
    let states = decoder(&converted.model).states;
    assert!(!states.is_empty() && states.iter().all(|state| state.columns.is_some()));
}

/// A recurrent state has no columns, so tokens run again in any case.
#[test]
fn no_columns_are_returned_beside_a_recurrent_state() {
    let mut model = with_state();
    let graph = graph_mut(&mut model);
    graph.input.extend(values("past.linear: float[batch_size, 1, 64, 64]"));
    graph
        .output
        .extend(values("present.linear: float[batch_size, 1, 64, 64], linear: float[batch_size, n, 64]"));
    let place = maker(graph, "embedded");
    let nodes =
        "linear, present.linear = LinearAttention@com.microsoft(embedded, embedded, embedded, past.linear)
                 {q_num_heads=1, kv_num_heads=1}";
    insert(&mut model, place + 1, Nodes::parse(nodes));
    let converted = convert(&model, MAX_SEQ).unwrap();
    let decoder = decoder(&converted.model);
    assert_eq!(decoder.states.iter().map(|state| state.columns).collect::<Vec<_>>(), [None; 2]);
}

/// A window of keys is also joined and cut, but no convolution reads it.
#[test]
fn columns_that_no_convolution_reads_are_no_state() {
    let mut model = with_joined_state();
    let graph = graph_mut(&mut model);
    let reader = maker(graph, "mixed");
    graph.node[reader] =
        Nodes::parse("mixed = Slice(joined, [2], [9223372036854775807], [2])").nodes.remove(0);
    assert_refused!(convert(&model, MAX_SEQ), ConvertRefusal::Cut { .. });
}

/// The state after a token is no part of such columns, or they are of another type.
#[test]
fn columns_that_contain_no_state_after_each_token_are_not_returned() {
    let cut = "present.conv = Slice(joined, [-2], [9223372036854775807], [2])";
    let twice = format!(
        "joined = Concat(past.conv, Concat(new, new) {{axis=2}}) {{axis=2}}
        {cut}
        mixed = Conv(joined, kernel) {{group=64, strides=[2]}}"
    );
    let shortened = format!(
        "last = Slice(new, [-2], [9223372036854775807], [2])
        joined = Concat(past.conv, last) {{axis=2}}
        {cut}
        mixed = Add(new, ReduceSum(Conv(joined, kernel) {{group=64}}, [2]))"
    );
    let through_identity = JOINED.replace("(past.conv", "(Identity(past.conv)");
    for nodes in [&twice, &shortened, &through_identity] {
        let converted = convert(&with_state_of(nodes), MAX_SEQ).unwrap();
        let decoder = decoder(&converted.model);
        assert_eq!((decoder.caches.len(), decoder.states.len()), (4, 1), "{nodes}");
        assert_eq!(decoder.states[0].columns, None, "{nodes}");
    }
    let casts = "joined = Concat(Cast(past.conv) {to=float}, new) {axis=2}
        present.conv = Cast(Slice(joined, [-2], [9223372036854775807], [2])) {to=float16}
        mixed = Conv(joined, kernel) {group=64}";
    let of_operator =
        "mixed, last = CausalConvWithState@com.microsoft(new, kernel, _, Cast(past.conv) {to=float})
        present.conv = Cast(last) {to=float16}";
    let turns = "mixed, last = \
        CausalConvWithState@com.microsoft(new, kernel, _, Transpose(past.conv) {perm=[0, 2, 1]})
        present.conv = Transpose(last) {perm=[0, 2, 1]}";
    let narrow = "float16[batch_size, 64, 2]";
    for (nodes, declared) in [(casts, narrow), (of_operator, narrow), (turns, "float[batch_size, 2, 64]")] {
        let mut model = with_state_of(nodes);
        declare(&mut model, &format!("past.conv: {declared}"));
        declare(&mut model, &format!("present.conv: {declared}"));
        let converted = convert(&model, MAX_SEQ).unwrap();
        let columns = decoder(&converted.model).states.iter().map(|state| state.columns).collect::<Vec<_>>();
        assert_eq!(columns, [None], "{nodes}");
    }
}

/// The present has other columns than the last ones of the joined value, or other channels.
#[test]
fn a_state_of_other_columns_than_the_last_is_refused() {
    let reversed = JOINED.replace(
        "[-2], [9223372036854775807], [2]",
        "[-1, -2], [-9223372036854775807, 9223372036854775807], [1, 2], [-1, 1]",
    );
    let past_cut = "joined = Concat(Slice(past.conv, [-2], [9223372036854775807], [2]), new) {axis=2}
        present.conv = Identity(joined)
        mixed = Conv(joined, kernel) {group=64}";
    let cut_twice = JOINED.replace("Slice(joined", "Slice(Slice(joined, [-2], [9223372036854775807], [2])");
    for nodes in [&reversed, past_cut, &cut_twice] {
        assert_refused!(convert(&with_state_of(nodes), MAX_SEQ), ConvertRefusal::Cut { .. });
    }
}

#[test]
fn a_cache_whose_last_rows_are_another_output_stays_a_cache() {
    let mut model = load("optimum-llama");
    let graph = graph_mut(&mut model);
    let writer = maker(graph, "present.0.key");
    let [axis] = graph.node[writer].attribute.as_mut_slice() else { panic!() };
    axis.i = Some(2);
    graph.output.extend(values("last: float[batch_size, 2, n, 16]"));
    insert(
        &mut model,
        writer + 1,
        Nodes::parse("last = Slice(present.0.key, [-1], [9223372036854775807], [2])"),
    );
    let decoder = decoder(&model);
    assert_eq!(decoder.caches.len(), 4);
    assert!(decoder.caches.iter().all(|cache| cache.present.starts_with("present.")));
}

/// Another output may return the same columns.
#[test]
fn columns_that_two_outputs_return_are_no_cache() {
    let mut model = convert(&with_state(), MAX_SEQ).unwrap().model;
    let graph = graph_mut(&mut model);
    let mut join = graph.node[maker(graph, "present.conv.columns")].clone();
    join.output = vec!["more".to_owned()];
    graph.node.push(join);
    graph.output.splice(0..0, values("more: float[batch_size, 64, n]"));
    let decoder = decoder(&model);
    assert_eq!((decoder.caches.len(), decoder.states.len()), (4, 1));
    assert!(decoder.states[0].columns.is_some());
}

#[test]
fn a_state_stays_as_it_is_and_is_named() {
    let exported = with_state();
    let before = decoder(&exported);
    assert_eq!((before.caches.len(), before.states.len()), (4, 1));
    let role = before.inputs.iter().find(|input| input.value.name == "past.conv").unwrap().role;
    assert_eq!((role, before.logits.as_ref().unwrap().name), (InputRole::State(0), "logits"));

    let converted = convert(&exported, MAX_SEQ).unwrap();
    let [past, present, columns] = ["past.conv", "present.conv", "present.conv.columns"].map(str::to_owned);
    let expected = KeptState { past, present, columns: Some(columns) };
    assert_eq!((converted.report.states.as_slice(), converted.report.caches.count), (&[expected][..], 4));
    assert_eq!(converted.model.metadata("kvscatter.states"), Some("past.conv -> present.conv"));
    let after = decoder(&converted.model);
    assert_eq!(before.states[0].shape, after.states[0].shape);
    assert_eq!(before.states[0].writer.op_type(), after.states[0].writer.op_type());
    check("with a state", &converted, [ElementType::Float32; 4]);
}

/// mobius defines the operators of states in the model, for runtimes that lack them.
#[test]
fn a_state_of_an_operator_that_the_model_defines() {
    let mut model = with_state();
    let nodes = "mixed = Conv(input, weight); present = Identity(past)";
    model.proto_mut().functions.push(FunctionProto {
        domain: Some("com.microsoft".to_owned()),
        ..function("CausalConvWithState(input, weight, bias, past) -> mixed, present", nodes)
    });
    assert_eq!(decoder(&model).states.len(), 1);
    let converted = convert(&model, MAX_SEQ).unwrap();
    assert_eq!((converted.report.states.len(), converted.report.caches.count), (1, 4));
    assert_eq!(converted.model.proto().functions.len(), 1);
}

#[test]
fn a_state_of_unknown_size_is_refused() {
    let mut model = with_state();
    // The samples may have another name.
    declare(&mut model, "past.conv: float[samples, 64, 2]");
    assert_eq!(convert(&model, MAX_SEQ).unwrap().report.states.len(), 1);
    declare(&mut model, "past.conv: float[batch_size, ?, 2]");
    let name = "past.conv".to_owned();
    assert_eq!(refusal(&model, MAX_SEQ), ConvertRefusal::InputShape { name, axis: 1 });
}

#[test]
fn a_cache_that_is_appended_to_itself_is_refused() {
    let model = parsed(
        "ids: int64[batch, new], past: float[batch, past, 2, 4]",
        "present = Concat(past, past) {axis=1}; y = Add(ReduceSum(present), Cast(ReduceMax(ids)) {to=float})",
        "y: float[], present: float[batch, all, 2, 4]",
    );
    let error = convert(&model, MAX_SEQ).unwrap_err();
    assert!(matches!(&error, OnnxError::InNode { node, .. } if node.name == "npresent"), "{error}");
}
