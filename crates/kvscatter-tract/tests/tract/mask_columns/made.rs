//! Masks of all forms, which this file builds.

use kvscatter_onnx::internal::proto::{AttributeProto, ModelProto, NodeProto, ValueInfoProto};
use kvscatter_oracle::cases::Random;
use tract_onnx::prelude::*;

use super::{BATCH, BOOL, CAPACITY, FLOAT, INT64, Ran, bytes, names, run};
use crate::replay::protos::{floats, int64s};
use crate::support::{model, node, read, value, words};

/// The nodes that compute `mask` from `marks`, `[batch, capacity]`, and those that read it.
struct Made {
    nodes: Vec<NodeProto>,
    attentions: Vec<NodeProto>,
    outputs: Vec<ValueInfoProto>,
}

fn cast(input: &str, output: &str, to: i32) -> NodeProto {
    let attribute = vec![AttributeProto::int("to", to.into())];
    NodeProto { attribute, ..node("Cast", output, &[input], &[output]) }
}

fn attention(output: &str, lengths: &str) -> NodeProto {
    let inputs = ["query", "key", "value", "mask", "", "", lengths];
    node("Attention", output, &inputs, &[output])
}

/// Returns a model whose `mask` is computed by `nodes` and read by two nodes of attention.
fn made(nodes: Vec<NodeProto>) -> Made {
    let attentions = ["y", "z"].map(|output| attention(output, "lengths")).to_vec();
    let outputs = ["y", "z"].map(|output| value(output, FLOAT, &[])).to_vec();
    Made { nodes, attentions, outputs }
}

/// Returns the mask that `convert` writes, which is a boolean one.
fn converted() -> Vec<NodeProto> {
    vec![
        node("Unsqueeze", "places", &["starts", "one"], &["places"]),
        node("Add", "queries", &["places", "steps"], &["queries"]),
        node("Unsqueeze", "rows", &["queries", "two"], &["rows"]),
        node("LessOrEqual", "causal", &["slots", "rows"], &["causal"]),
        cast("marks", "marked", BOOL),
        node("Unsqueeze", "columns", &["marked", "one"], &["columns"]),
        node("And", "and", &["causal", "columns"], &["and"]),
        node("Unsqueeze", "whole", &["and", "one"], &["mask"]),
    ]
}

impl Made {
    fn proto(self, width: usize) -> ModelProto {
        let capacity = CAPACITY.to_string();
        let cache = |name: &str| value(name, FLOAT, &["batch", "2", &capacity, "8"]);
        let inputs = vec![
            value("query", FLOAT, &["batch", "4", &width.to_string(), "8"]),
            cache("key"),
            cache("value"),
            value("marks", INT64, &["batch", &capacity]),
            value("starts", INT64, &["batch"]),
            value("lengths", INT64, &["batch"]),
        ];
        let nodes = self.nodes.into_iter().chain(self.attentions).collect();
        let mut made = model(nodes, inputs, self.outputs);
        made.graph.get_or_insert_default().initializer = vec![
            int64s("slots", &[CAPACITY], 0..CAPACITY as i64),
            int64s("steps", &[width], 0..width as i64),
            int64s("one", &[1], [1]),
            int64s("two", &[1], [2]),
            int64s("one_two", &[2], [1, 2]),
            int64s("all_heads", &[4], [BATCH, 4, width, CAPACITY].map(|size| size as i64)),
            int64s("short", &[1], [CAPACITY as i64 - 1]),
            int64s("zero", &[1], [0]),
            floats("nothing", &[], [0.0]),
            floats("hidden", &[], [f32::NEG_INFINITY]),
        ];
        made
    }

    /// Returns a plan with cut masks, and one that tract has not changed.
    fn plans(self, width: usize) -> [Arc<TypedSimplePlan>; 2] {
        let proto = self.proto(width);
        let load = || read(proto.clone()).unwrap();
        [load().into_optimized(), load().into_typed()].map(|model| model.unwrap().into_runnable().unwrap())
    }

    /// Runs with cut masks, and checks that whole masks give the same bits.
    fn check(self, width: usize, lengths: [i64; BATCH]) -> Ran {
        let [cut, whole] =
            self.plans(width).map(|plan| run(&mut plan.spawn().unwrap(), CAPACITY, inputs(width, lengths)));
        assert!(whole.columns.iter().all(|columns| *columns + 1 >= CAPACITY), "{:?}", whole.columns);
        assert_eq!(bytes(&cut.outputs), bytes(&whole.outputs));
        cut
    }
}

/// Returns the inputs of a model for samples of these lengths. The second sample is padded on the left.
fn inputs(width: usize, lengths: [i64; BATCH]) -> TVec<TValue> {
    let random = &mut Random::new(7, 0);
    let mut numbers = |shape: &[usize]| {
        let values = random.many(shape.iter().product(), |random| random.below(99) as f32 / 33.0);
        Tensor::from_shape(shape, &values).unwrap()
    };
    let (cache, query) = ([BATCH, 2, CAPACITY, 8], [BATCH, 4, width, 8]);
    let marks = (0..BATCH * CAPACITY).map(|at| i64::from(at % CAPACITY >= 3 * (at / CAPACITY)));
    let starts = lengths.map(|length| length - width as i64);
    tvec![
        numbers(&query).into(),
        numbers(&cache).into(),
        numbers(&cache).into(),
        Tensor::from_shape(&[BATCH, CAPACITY], &marks.collect::<Vec<_>>()).unwrap().into(),
        tensor1(&starts).into(),
        tensor1(&lengths).into(),
    ]
}

#[test]
fn a_length_out_of_range_is_the_same_error() {
    let plans = made(converted()).plans(1);
    for (lengths, expected) in [
        ([CAPACITY as i64 + 1, 3], "nonpad_kv_seqlen[0] = 48: must be between 0 and 47"),
        ([3, -1], "nonpad_kv_seqlen[1] = -1: must be between 0 and 47"),
    ] {
        for plan in &plans {
            let words = words(plan.run(inputs(1, lengths)));
            assert!(words.contains(expected), "{words}");
        }
    }
}

#[test]
fn a_state_runs_again_after_an_error() {
    let plans = made(converted()).plans(2);
    let mut states = plans.each_ref().map(|plan| plan.spawn().unwrap());
    for lengths in [[2, 2], [17, 3], [CAPACITY as i64 + 1, 2], [5, 5], [33, 40], [-1, 9], [2, 16]] {
        let [cut, whole] = states.each_mut().map(|state| state.run(inputs(2, lengths)));
        let is_valid = lengths.iter().all(|length| (0..=CAPACITY as i64).contains(length));
        match (cut, whole) {
            (Ok(cut), Ok(whole)) if is_valid => assert_eq!(bytes(&cut), bytes(&whole), "{lengths:?}"),
            (Err(_), Err(_)) if !is_valid => states.iter_mut().for_each(|state| state.reset_turn().unwrap()),
            other => panic!("{lengths:?}: {other:?}"),
        }
    }
}

#[test]
fn the_mask_of_converted_models_has_columns_for_valid_slots() {
    for (width, lengths, columns) in [
        (1, [1, 16], 16),
        (1, [17, 4], 32),
        (5, [5, 5], 16),
        (3, [0, 0], 16),
        (1, [0, 40], CAPACITY),
        (2, [CAPACITY as i64, 7], CAPACITY),
    ] {
        let ran = made(converted()).check(width, lengths);
        assert_eq!(ran.columns, [columns; 2], "{lengths:?}");
        if columns < CAPACITY {
            assert_eq!(ran.whole, names(["Source"]), "{lengths:?}");
        }
    }
}

#[test]
fn cuts_move_over_operators_that_compute_each_slot_alone() {
    let numbers =
        || vec![cast("marks", "marked", BOOL), node("Where", "w", &["marked", "nothing", "hidden"], &["w"])];
    let unsqueeze = || node("Unsqueeze", "u", &["w", "one_two"], &["u"]);
    for nodes in [
        [numbers(), vec![node("Unsqueeze", "mask", &["w", "one_two"], &["mask"])]].concat(),
        [numbers(), vec![unsqueeze(), node("Expand", "mask", &["u", "all_heads"], &["mask"])]].concat(),
        [
            numbers(),
            vec![
                node("Transpose", "t", &["w"], &["t"]),
                node("Neg", "n", &["t"], &["n"]),
                node("Neg", "p", &["n"], &["p"]),
                node("Transpose", "back", &["p"], &["back"]),
                node("Unsqueeze", "mask", &["back", "one_two"], &["mask"]),
            ],
        ]
        .concat(),
        // Two ways from the marks to the mask.
        [
            numbers(),
            vec![
                unsqueeze(),
                node("Add", "mask", &["u", "u2"], &["mask"]),
                cast("marks", "m2", FLOAT),
                node("Unsqueeze", "u2", &["m2", "one_two"], &["u2"]),
            ],
        ]
        .concat(),
    ] {
        let ran = made(nodes.clone()).check(1, [9, 5]);
        assert_eq!(ran.columns, [16; 2], "{nodes:?}");
        assert!(ran.whole.is_subset(&names(["Source"])), "{:?}: {nodes:?}", ran.whole);
    }
}

/// Nodes that share a mask may read each other's results, in any order of the nodes in the file.
#[test]
fn attention_reads_the_result_of_attention() {
    let chained = |first: usize, second: usize| {
        let mut chained = made(converted());
        let output = chained.attentions[first].output[0].clone();
        chained.attentions[second].input[0] = output;
        chained
    };
    let of_present = || {
        let mut shared = made(converted());
        shared.attentions[0].output.extend(["keys", "values"].map(str::to_owned));
        shared.attentions[1].input[1] = "keys".to_owned();
        shared.attentions[1].input[2] = "values".to_owned();
        shared
    };
    for made in [chained(0, 1), chained(1, 0), of_present()] {
        assert_eq!(made.check(1, [9, 5]).columns, [16; 2]);
    }
}

#[test]
fn a_long_chain_is_cut_in_the_middle() {
    let mut nodes = vec![cast("marks", "n0", FLOAT)];
    nodes.extend((0..100).map(|at| {
        let (before, after) = (format!("n{at}"), format!("n{}", at + 1));
        node("Sin", &after, &[&before], &[&after])
    }));
    nodes.push(node("Unsqueeze", "mask", &["n100", "one_two"], &["mask"]));
    let ran = made(nodes).check(1, [9, 5]);
    assert_eq!(ran.columns, [16; 2]);
    assert_eq!(ran.whole, names(["Source", "Cast", "Sin"]));
}

/// The sum of all slots up to one is computed for all slots, and only then cut.
#[test]
fn readers_of_other_slots_are_computed_for_all() {
    let attribute = vec![AttributeProto::int("reverse", 1)];
    let nodes = vec![
        node("Squeeze", "axis", &["one"], &["axis"]),
        NodeProto { attribute, ..node("CumSum", "sums", &["marks", "axis"], &["sums"]) },
        cast("sums", "marked", BOOL),
        node("Unsqueeze", "mask", &["marked", "one_two"], &["mask"]),
    ];
    let ran = made(nodes).check(1, [9, 5]);
    assert_eq!(ran.columns, [16; 2]);
    assert!(ran.whole.iter().any(|name| name.contains("Scan") || name.contains("CumSum")), "{ran:?}");
    assert!(!ran.whole.contains("Cast"), "{ran:?}");
}

#[test]
fn other_masks_are_whole() {
    type Change = fn(&mut Made);
    let changes: [(&str, Change); 5] = [
        ("read elsewhere", |made| {
            made.nodes.push(node("Not", "hides", &["mask"], &["hides"]));
            made.outputs.push(value("hides", BOOL, &[]));
        }),
        ("returned", |made| made.outputs.push(value("mask", BOOL, &[]))),
        ("of two lengths", |made| {
            made.nodes.push(node("Abs", "others", &["lengths"], &["others"]));
            made.attentions[1] = attention("z", "others");
        }),
        ("with scores", |made| {
            made.attentions[0].output.extend(["", "", "scores"].map(str::to_owned));
            made.outputs.push(value("scores", FLOAT, &[]));
        }),
        ("without lengths", |made| {
            made.attentions.iter_mut().for_each(|attention| attention.input.truncate(4));
        }),
    ];
    for (name, change) in changes {
        let mut made = made(converted());
        change(&mut made);
        assert_eq!(made.check(1, [9, 5]).columns, [CAPACITY; 2], "{name}");
    }
    let mut shorter = converted();
    shorter.last_mut().unwrap().output[0] = "full".to_owned();
    shorter.push(node("Add", "three", &["one", "two"], &["three"]));
    shorter.push(node("Slice", "slice", &["full", "zero", "short", "three"], &["mask"]));
    assert_eq!(made(shorter).check(1, [9, 5]).columns, [CAPACITY - 1; 2]);
}
