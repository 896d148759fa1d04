//! Finds each idiom in a small decoder.

use std::collections::BTreeSet;

use super::IDIOMS;
use crate::convert::attention::{AttentionSites, shape_probe};
use crate::convert::probe::Inputs;
use crate::decoder::{Decoder, InputRole};
use crate::fold::Fold;
use crate::support::{Nodes, values};

/// The text of nodes that follow the caches `k` and `v`. The queries are `q`, and `bias` and `visible` are masks.
const FORMS: [&str; 5] = [
    "scores = Tanh(Mul(MatMul(q, Transpose(k) {perm=[0, 1, 3, 2]}), 0.5))
    weights = Softmax(Max(Where(visible, scores, low), low))
    y = MatMul(Where(IsNaN(weights), 0.0, weights), v)",
    // The score of a sink of each head follows those of the slots.
    "scores = Add(MatMul(q, Transpose(k) {perm=[0, 1, 3, 2]}), bias)
    all_scores = Concat(scores, Expand(0.5[1, 2, 1, 1], Concat(Shape(scores) {end=3}, [1]) {axis=0})) {axis=3}
    weights = Softmax(Sub(all_scores, ReduceMax(all_scores, [-1]) {keepdims=1}))
    y = MatMul(Slice(weights, [0], [-1], [3]), v)",
    // One cache has keys and values.
    "split.k, split.v = Split(k, [2, 2]) {axis=3}
    p = MatMul(Slice(q, [0], [2], [3]), Transpose(split.k) {perm=[0, 1, 3, 2]})
    y = MatMul(Softmax(Add(p, bias)), split.v)
    z = MatMul(Softmax(Add(MatMul(q, Transpose(v) {perm=[0, 1, 3, 2]}), bias)), v)",
    "y = Attention(q, k, v, bias)",
    // Keys are computed from the rows of one cache, and have a part of the rows of another one.
    "rows.of.k = LayerNormalization(Add(MatMul(k, 0.3[4, 2]), 0.1[2]), 0.5[2])
    keys = Concat(rows.of.k, MatMul(v, 0.2[4, 2])) {axis=3}
    y = MatMul(Softmax(Add(MatMul(q, Transpose(keys) {perm=[0, 1, 3, 2]}), bias)), v)",
];

#[test]
fn every_idiom_is_found_in_a_form() {
    let found: BTreeSet<_> = FORMS.into_iter().flat_map(idioms_in).collect();
    let all: BTreeSet<_> = IDIOMS.iter().map(|idiom| idiom.name).collect();
    assert_eq!(found, all);
}

/// Returns the names of the idioms with which a walk follows both caches. The decoder must follow them as well, which
/// proves the role of `marks`.
fn idioms_in(attention: &str) -> BTreeSet<&'static str> {
    let mut nodes = Nodes::new(kvscatter::ElementType::Float32);
    nodes.add(
        "low = -3.0e38; none = 0.0; table = 0.1[8, 8]; project = 0.2[8, 8]; x = Gather(table, input_ids)",
    );
    nodes.add("rows = Transpose(Reshape(MatMul(x, project), [0, 0, 2, 4])) {perm=[0, 2, 1, 3]}");
    nodes.add("q = Transpose(Reshape(x, [0, 0, 2, 4])) {perm=[0, 2, 1, 3]}");
    nodes.add("k = Concat(past.k, rows) {axis=2}; v = Concat(past.v, rows) {axis=2}");
    nodes.add(
        "length = Squeeze(Shape(past.k) {start=2, end=3}); new = Squeeze(Shape(input_ids) {start=1, end=2})
        total = Add(length, new); column = Unsqueeze(Range(length, total, 1), [-1])
        causal = LessOrEqual(Range(0, total, 1), column)
        visible = And(causal, Unsqueeze(Cast(marks) {to=bool}, [1, 2])); bias = Where(visible, none, low)",
    );
    nodes.add(attention);
    nodes.add("logits = Reshape(Transpose(y) {perm=[0, 2, 1, 3]}, [0, 0, -1])");
    let model = nodes.model(
        values("input_ids: int64[batch, tokens], marks: int64[batch, all], past.k, past.v: float[batch, 2, past, 4]"),
        values("logits: float[batch, tokens, 8], k, v: float[batch, 2, all, 4]"),
    );
    let graph = model.graph().unwrap();
    let decoder = Decoder::from_graph(&graph).unwrap();
    let mask = decoder.input(InputRole::AttentionMask).map(|mask| mask.name);
    assert_eq!(mask, Some("marks"), "{attention}");
    let inputs = Inputs::from_decoder(&decoder).unwrap();
    let probe = shape_probe(&decoder, &inputs, 99);
    let mut fold = Fold::new(&graph, None);
    probe.feed(&inputs, &mut fold).unwrap();
    let sites = AttentionSites::find(&graph, &decoder, &probe, &mut fold, IDIOMS)
        .unwrap_or_else(|error| panic!("{attention}: {error}"));
    sites.idioms.into_keys().collect()
}
