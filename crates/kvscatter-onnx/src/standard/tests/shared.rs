//! Tests layers of `GroupQueryAttention` that read the cache of another layer, as those of Gemma 4.
//!
//! `python-tests/test_standard.py` shows in ONNX Runtime that such a decoder computes the same.

use std::collections::BTreeMap;

use kvscatter::ElementType;

use super::{Case, F32, int32s, rotated};
use crate::convert::{
    CacheWindow, ConvertOptions, ConvertRefusal, Converted, LinearReason, LinearWindow, WindowedCaches,
    convert,
};
use crate::fold::{Fold, Value, Values};
use crate::standard::NoStandardForm;
use crate::support::{
    Nodes, assert_refused, counts, decoder, fix_dim, graph_mut, insert, kinds, maker, raw, refusal, reroute,
    values,
};
use crate::{Model, OnnxError};

const SLOTS: usize = 16;
const BATCH: usize = 2;

/// The number of new tokens in each step of a run. No ring is too small for them.
const STEPS: [usize; 6] = [3, 1, 3, 2, 1, 3];

/// Rings for steps of 3 tokens.
const RINGS: WindowedCaches = WindowedCaches::Ring { chunk: Some(3), rewind: 0 };

/// Returns a `GroupQueryAttention` of 4 and 2 heads of 8 elements without new keys and values. Its caches have 7 rows.
fn shared() -> Case {
    let (none, cache) = ([2, 0, 16], [2, 2, 7, 8]);
    Case::new("GroupQueryAttention", F32, &[&[2, 2, 32], &none, &none, &cache, &cache])
        .input(5, ElementType::Int32, &[2], int32s(&[6, 6]))
        .input(6, ElementType::Int32, &[1], int32s(&[7]))
        .with(|node| node.int("num_heads", 4).int("kv_num_heads", 2))
}

#[test]
fn every_form_is_proved() {
    for outputs in [&["out0"][..], &["out0", "out1", "out2"], &["out0", "", "out2"]] {
        let case = shared().outputs(outputs);
        case.check();
        case.clone().with(|node| node.int("local_window_size", 3).float("softcap", 3.0)).check();
        case.clone().input(10, F32, &[2, 1, 2, 7], None).check();
        let normed = case.input(14, F32, &[8], None).input(15, F32, &[8], None);
        rotated(normed, 4).with(|node| node.float("scale", 1.0)).check();
    }
    // In the first run, the other layer has appended all rows.
    let first = shared().input(5, ElementType::Int32, &[2], int32s(&[1, 1]));
    let first = first.input(6, ElementType::Int32, &[1], int32s(&[2]));
    let cache = [2, 2, 2, 8];
    rotated(first.input(3, F32, &cache, None).input(4, F32, &cache, None), 2).check();
}

#[test]
fn forms_without_a_counterpart_are_refused() {
    for case in [shared().input(11, F32, &[4], None), shared().with(|node| node.int("smooth_softmax", 1))] {
        assert_eq!(case.refused(), "a sink over the cache of another layer of GroupQueryAttention");
    }
    let outputs = ["out0", "out1", "out2"];
    let keys_alone = shared().input(1, F32, &[2, 2, 16], None).without(2).outputs(&outputs);
    assert_eq!(keys_alone.refused(), "a key without a value of GroupQueryAttention");
    // ONNX Runtime also requires as many keys as values, and a row for each token.
    assert!(shared().input(2, F32, &[2, 2, 16], None).outputs(&outputs).proved().is_err());
    let short = [2, 2, 6, 8];
    assert!(shared().input(3, F32, &short, None).input(4, F32, &short, None).proved().is_err());
}

/// Returns a decoder whose layers 2 and 3 read the caches of layers 0 and 1. A window of -1 is none.
fn layers(windows: [i64; 4]) -> Model {
    let mut nodes = Nodes::parse(
        "last = Cast(Sub(ReduceSum(attention_mask, [1]) {keepdims=0}, 1)) {to=int32}
        total = Cast(Gather(Shape(attention_mask), 1)) {to=int32}
        none = ConstantOfShape(Concat(Shape(input_ids) {start=0, end=1}, [0, 16]) {axis=0})
        cos = 0.5[16, 4]; sin = 0.5[16, 4]; table = 0.5[24, 32]
        x0 = Gather(table, input_ids)",
    );
    for (layer, window) in windows.into_iter().enumerate() {
        let (new, outputs) = match layer {
            0 | 1 => {
                nodes.add(&format!("wk{layer} = 0.5[32, 16]; k{layer} = MatMul(x{layer}, wk{layer})"));
                nodes.add(&format!("wv{layer} = 0.5[32, 16]; v{layer} = MatMul(x{layer}, wv{layer})"));
                let new = format!("k{layer}, v{layer}, past.{layer}.k, past.{layer}.v");
                (new, format!("present.{layer}.k, present.{layer}.v"))
            }
            // The operator returns copies, which nothing reads.
            _ => {
                let source = layer - 2;
                let read = format!("none, none, present.{source}.k, present.{source}.v");
                (read, format!("copy.{layer}.k, copy.{layer}.v"))
            }
        };
        nodes.add(&format!(
            "wq{layer} = 0.5[32, 32]; q{layer} = MatMul(x{layer}, wq{layer})
            y{layer}, {outputs} = GroupQueryAttention@com.microsoft(q{layer}, {new}, last, total, cos, sin)
                {{num_heads=4, kv_num_heads=2, do_rotary=1, local_window_size={window}}}
            wo{layer} = 0.5[32, 32]; x{} = Add(x{layer}, MatMul(y{layer}, wo{layer}))",
            layer + 1
        ));
    }
    nodes.add("head = 0.5[32, 24]; logits = MatMul(x4, head)");
    let caches = |name: &str, length| {
        let names = [0, 1].map(|layer| format!("{name}.{layer}.k, {name}.{layer}.v")).join(", ");
        format!("{names}: float[batch, 2, {length}, 8]")
    };
    let ids = "input_ids: int64[batch, tokens], attention_mask: int64[batch, all]";
    let logits = "logits: float[batch, tokens, 24]";
    let mut model = nodes.model(
        values(&format!("{ids}, {}", caches("past", "past"))),
        values(&format!("{logits}, {}", caches("present", "all"))),
    );
    model.proto_mut().opset_import[0].version = Some(22);
    // The numbers of a text repeat, so heads would be equal.
    for (at, weights) in (1..).zip(&mut graph_mut(&mut model).initializer) {
        if weights.data_type != Some(F32.onnx_code()) {
            continue;
        }
        let number = |each: i64| f32::from(i16::try_from((each * each + at * each) % 997 - 498).unwrap());
        let numbers = (1..=weights.dims.iter().product()).map(|each| number(each) / 1000.0);
        let (name, dims) = (weights.name.clone().unwrap(), weights.dims.clone());
        *weights = raw(&name, F32, &dims, numbers.flat_map(f32::to_le_bytes).collect());
    }
    model
}

/// Runs all steps, and returns the outputs of each. Caches that grow begin without rows, and others with zeros.
fn run(model: &Model) -> Vec<BTreeMap<String, Value>> {
    let graph = model.graph().unwrap();
    let (mut past, mut caches, mut results) = (0, BTreeMap::new(), Vec::new());
    let int64 = |number: usize| i64::try_from(number).unwrap();
    for new in STEPS {
        let total = past + new;
        let mut fold = Fold::new(&graph, None);
        for input in graph.inputs().unwrap().iter().filter(|input| graph.is_input(input.name)) {
            let dims = input.shape.as_ref().unwrap();
            let size = |axis: usize| dims.get(axis).and_then(|dim| dim.size());
            let (shape, numbers) = match input.name {
                "input_ids" => {
                    let token = |sample, position| int64((7 * sample + 5 * position + 3) % 24);
                    let row = |sample| (past..total).map(move |position| token(sample, position));
                    (vec![BATCH, new], (0..BATCH).flat_map(row).collect())
                }
                "attention_mask" => {
                    let slots = size(1).unwrap_or(total);
                    let row = |_| (0..slots).map(|slot| i64::from(slot < total));
                    (vec![BATCH, slots], (0..BATCH).flat_map(row).collect())
                }
                "write_indices" => (vec![BATCH], vec![int64(past); BATCH]),
                "nonpad_kv_seqlen" => (vec![BATCH], vec![int64(total); BATCH]),
                name => {
                    let shape = vec![BATCH, 2, size(2).unwrap_or(0), 8];
                    let zeros = Values::Floats(vec![0.0; shape.iter().product()]);
                    let empty = Value::new(F32, shape, Some(zeros)).unwrap();
                    fold.set(name, caches.remove(name).unwrap_or(empty)).unwrap();
                    continue;
                }
            };
            let value = Value::new(ElementType::Int64, shape, Some(Values::Ints(numbers)));
            fold.set(input.name, value.unwrap()).unwrap();
        }
        // The evaluation computes only the shapes of `TensorScatter`.
        for scatter in graph.nodes().iter().filter(|node| node.is("TensorScatter")) {
            let [cache, update] =
                [0, 1].map(|slot| fold.value(scatter.input(slot).unwrap()).unwrap().clone());
            fold.set(scatter.output(0).unwrap(), scattered(cache, &update, past)).unwrap();
        }
        let names: Vec<_> = graph.output_names().collect();
        let outputs = names.into_iter().map(|name| (name.to_owned(), fold.value(name).unwrap().clone()));
        let outputs: BTreeMap<_, _> = outputs.collect();
        let presents = outputs.iter().filter(|(name, _)| name.as_str() != "logits");
        caches = presents.map(|(name, value)| (name.replace("present", "past"), value.clone())).collect();
        results.push(outputs);
        past = total;
    }
    results
}

/// Writes rows of 8 elements from a slot on, around the end of a ring.
fn scattered(mut cache: Value, update: &Value, start: usize) -> Value {
    let (slots, new) = (cache.shape[2], update.shape[2]);
    let Some(Values::Floats(floats)) = &mut cache.data else { panic!("{cache:?}") };
    for (at, row) in update.as_floats().unwrap().chunks(8).enumerate() {
        let first = 8 * (at / new * slots + (start + at % new) % slots);
        floats[first..first + 8].copy_from_slice(row);
    }
    cache
}

/// Checks that both decoders compute the same logits, and write the same rows to linear caches.
fn check_equal(exported: &Model, converted: &Model) {
    let mut total = 0;
    for ((before, after), new) in run(exported).iter().zip(&run(converted)).zip(STEPS) {
        total += new;
        assert!(before.keys().eq(after.keys()));
        for (name, before) in before {
            let after = &after[name];
            let (slots, expected) = (after.shape[2], before.as_floats().unwrap());
            let found = after.as_floats().unwrap();
            if name == "logits" {
                assert!(expected.iter().zip(found).all(|(a, b)| (a - b).abs() < 1e-5), "{total}");
                assert!(expected.iter().any(|logit| logit.abs() > 0.1), "{total}");
            } else if slots == SLOTS {
                let rows = found.chunks(SLOTS * 8).flat_map(|rows| &rows[..total * 8]);
                assert!(rows.eq(expected), "{name}, {total}");
            }
        }
    }
}

fn converted(model: &Model, windowed: WindowedCaches) -> Converted {
    convert(model, ConvertOptions::new(SLOTS).windowed(windowed)).unwrap()
}

#[test]
fn a_shared_layer_reads_the_static_cache() {
    for windows in [[-1; 4], [-1, -1, 3, -1], [-1, 3, 5, 4], [3, -1, -1, 3]] {
        let exported = layers(windows);
        let converted = converted(&exported, WindowedCaches::Mask);
        check_equal(&exported, &converted.model);
        assert_eq!((converted.report.caches.count, counts(&converted)), (4, (4, 4, 0)));
        let graph = converted.model.graph().unwrap();
        let read = |present: String| {
            let readers = graph.uses(&present).filter_map(|(node, slot)| Some((node.op_type(), slot?)));
            readers.collect::<Vec<_>>()
        };
        for layer in [0, 1] {
            assert_eq!(read(format!("present.{layer}.k")), [("Attention", 1); 2]);
            assert_eq!(read(format!("present.{layer}.v")), [("Attention", 2); 2]);
        }
        assert!(graph.nodes().iter().all(|node| node.domain() == "ai.onnx" && !node.is("ConstantOfShape")));
        let window = |size: &i64| usize::try_from(*size).ok();
        let expected = [0, 1].map(|layer: usize| {
            let mut sizes = [window(&windows[layer]), window(&windows[layer + 2])].to_vec();
            sizes.sort_unstable();
            sizes.dedup();
            let past = format!("past.{layer}.k");
            sizes.into_iter().map(move |window| CacheWindow { past: past.clone(), window })
        });
        assert!(
            converted.report.caches.windows.into_iter().eq(expected.into_iter().flatten()),
            "{windows:?}"
        );
    }
}

#[test]
fn a_cache_is_a_ring_if_all_its_readers_have_the_same_window() {
    for (windows, rings, linear) in [
        ([3, -1, 3, -1], 2, vec![]),
        ([3, 4, 3, 4], 4, vec![]),
        ([3, -1, -1, -1], 0, vec![(3, 1)]),
        ([3, -1, 4, -1], 0, vec![(3, 1), (4, 1)]),
    ] {
        let exported = layers(windows);
        let converted = converted(&exported, RINGS);
        check_equal(&exported, &converted.model);
        assert_eq!(converted.report.caches.rings.values().sum::<usize>(), rings, "{windows:?}");
        let reason = LinearReason::Reader;
        let linear = linear.into_iter().map(|(window, attentions)| LinearWindow {
            window,
            attentions,
            reason: reason.clone(),
        });
        assert!(converted.report.caches.linear_windows.into_iter().eq(linear), "{windows:?}");
    }
}

/// Returns the hazards beside that of the operator, and the pasts of the caches.
fn inspected(model: &Model) -> (Vec<&'static str>, Vec<String>) {
    let decoder = decoder(model);
    let mut kinds = kinds(&decoder.hazards());
    kinds.retain(|kind| *kind != "operator-writes");
    (kinds, decoder.caches.iter().map(|cache| cache.past.to_owned()).collect())
}

#[test]
fn a_cache_that_several_layers_read_is_found_once() {
    let pasts = ["past.0.k", "past.0.v", "past.1.k", "past.1.v"].map(str::to_owned).to_vec();
    for none in [
        "ConstantOfShape(Concat(Shape(input_ids) {start=0, end=1}, [0, 16]) {axis=0})",
        "CastLike(ConstantOfShape(Concat(Shape(input_ids) {end=1}, Constant() {value_ints=[0, 16]}) {axis=0}), q2)",
        "0.5[1, 0, 16]",
    ] {
        let mut model = layers([-1; 4]);
        let graph = graph_mut(&mut model);
        let (place, text) = (maker(graph, "none"), format!("none_of_it = {none}"));
        let after = maker(graph, "q2") + 1;
        insert(&mut model, after, Nodes::parse(&text));
        let graph = graph_mut(&mut model);
        graph.node.remove(place);
        reroute(graph, "none", "none_of_it");
        // A constant has rows of a fixed batch.
        fix_dim(&mut model, "batch", 1);
        assert_eq!(inspected(&model), (Vec::new(), pasts.clone()), "{none}");
        let converted = converted(&model, WindowedCaches::Mask);
        assert_eq!(converted.report.caches.count, 4, "{none}");
        for model in [&model, &converted.model] {
            let decoder = decoder(model);
            assert!(decoder.caches.iter().all(|cache| decoder.attentions(cache) == Some(2)), "{none}");
        }
    }
}

/// Changes the inputs of the last layer.
fn last_layer_reads(inputs: &[(usize, &str)]) -> Model {
    let mut model = layers([-1; 4]);
    let graph = graph_mut(&mut model);
    let last = maker(graph, "y3");
    for &(slot, name) in inputs {
        name.clone_into(&mut graph.node[last].input[slot]);
    }
    model
}

#[test]
fn other_ways_to_read_a_cache_of_another_layer_are_refused() {
    // The last layer appends its own rows to the cache of another layer.
    let appended = last_layer_reads(&[(1, "k1"), (2, "v1")]);
    let present = "present.1.k".to_owned();
    assert_eq!(refusal(&appended, SLOTS), ConvertRefusal::SharedCache { present });
    assert_eq!(inspected(&appended).0, ["shared-cache"; 2]);
    // Queries, keys and values are packed, so nothing is empty.
    let packed = last_layer_reads(&[(1, ""), (2, "")]);
    assert_refused!(convert(&packed, SLOTS), ConvertRefusal::SharedCache { .. });
    // The cache lacks the rows of this step.
    let error = convert(&last_layer_reads(&[(3, "past.1.k"), (4, "past.1.v")]), SLOTS).unwrap_err();
    let OnnxError::InNode { node, .. } = &error else { panic!("{error}") };
    assert_eq!(node.op_type, "GroupQueryAttention", "{error}");
    assert_refused!(convert(&last_layer_reads(&[(2, "")]), SLOTS), NoStandardForm::Form { .. });
}

/// Keys and values may be those of different layers.
#[test]
fn keys_and_values_of_two_layers() {
    let exported = last_layer_reads(&[(3, "present.0.k")]);
    check_equal(&exported, &converted(&exported, RINGS).model);
}
