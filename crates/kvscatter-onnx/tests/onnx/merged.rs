//! Tests how the decoder with a past is taken out of a merged decoder.
//!
//! `python-tests/test_merged.py` shows in ONNX Runtime that the result computes the same.

use std::collections::BTreeSet;

use kvscatter_onnx::convert::{ConvertRefusal, convert};
use kvscatter_onnx::decoder::WriterStyle;
use kvscatter_onnx::internal::proto::{GraphProto, NodeProto, TensorProto};
use kvscatter_onnx::{DecoderError, ExportForm, Model, TakenBranch, unmerge};

use crate::support::{
    append, assert_refused, counts, declare, decoder, graph as body, graph_mut as graph, lines, load, maker,
    merge, nodes_mut, parsed, values,
};

const CONCAT: [&str; 4] = [
    "optimum-llama",
    "decoders/optimum-1.18-gpt2",
    "decoders/optimum-0.1-qwen3-float16",
    "decoders/optimum-1.18-opt",
];

fn flag() -> TakenBranch {
    TakenBranch { condition: "use_cache_branch".to_owned(), value: true }
}

fn merged(name: &str) -> Model {
    let mut model = load(name);
    merge(&mut model);
    model
}

/// Returns a branch of a merged decoder.
fn branch_of<'m>(model: &'m mut Model, name: &str) -> &'m mut GraphProto {
    let branch =
        choice(model).attribute.iter_mut().find(|branch| branch.name.as_deref() == Some(name)).unwrap();
    branch.g.get_or_insert_default()
}

fn choice(model: &mut Model) -> &mut NodeProto {
    nodes_mut(graph(model), "If").next().unwrap()
}

#[test]
fn the_branch_is_the_decoder_that_was_merged() {
    for decoder in CONCAT {
        let (original, merged) = (load(decoder), merged(decoder));
        let unmerged = unmerge(&merged).unwrap().unwrap();
        assert_eq!(unmerged.branch, flag(), "{decoder}");
        let (expected, taken) = (&original.proto().graph, &unmerged.model.proto().graph);
        assert_eq!(taken.node, expected.node, "{decoder}");
        assert_eq!((&taken.input, &taken.output), (&expected.input, &expected.output), "{decoder}");
        assert_eq!(taken.value_info, expected.value_info, "{decoder}");
        let by_name = |graph: &GraphProto| {
            let mut all = graph.initializer.clone();
            all.sort_by_key(|tensor| tensor.name.clone());
            all
        };
        assert_eq!(by_name(taken), by_name(expected), "{decoder}");
        assert!(unmerge(&unmerged.model).unwrap().is_none(), "{decoder}");
    }
}

/// Optimum merged this decoder. Its small initializers are `Constant` nodes, and the branches share weights.
#[test]
fn a_decoder_that_optimum_merged() {
    let model = load("decoders/optimum-1.18-gpt2-merged");
    let unmerged = unmerge(&model).unwrap().unwrap();
    assert_eq!(unmerged.branch, flag());
    let decoder = decoder(&unmerged.model);
    assert_eq!(decoder.caches.len(), 4);
    assert!(decoder.caches.iter().all(|cache| cache.style == WriterStyle::Concat));
    let converted = convert(&model, 24).unwrap();
    let of_branch = convert(&unmerged.model, 24).unwrap();
    assert_eq!(converted.model.proto().graph.node, of_branch.model.proto().graph.node);
    let form = Some(ExportForm::Merged(flag()));
    assert_eq!((counts(&converted), converted.report.form), ((2, 2, 2), form));
}

#[test]
fn the_decoder_may_be_either_branch() {
    let mut model = merged("optimum-llama");
    let [then, other] = choice(&mut model).attribute.as_mut_slice() else { panic!() };
    std::mem::swap(&mut then.g, &mut other.g);
    let branch = unmerge(&model).unwrap().unwrap().branch;
    assert_eq!(branch, TakenBranch { value: false, ..flag() });
}

#[test]
fn names_mean_nothing() {
    let mut model = merged("optimum-llama");
    let outer = graph(&mut model);
    outer.input.last_mut().unwrap().name = Some("x".to_owned());
    choice(&mut model).input = vec!["x".to_owned()];
    // Values of the branch have other names than the outputs that they become.
    let with = branch_of(&mut model, "then_branch");
    let outputs: BTreeSet<String> = with.output.iter().filter_map(|it| it.name.clone()).collect();
    let rename = |name: &mut String| {
        if outputs.contains(name) {
            *name = format!("inner_{name}");
        }
    };
    for node in &mut with.node {
        node.input.iter_mut().chain(&mut node.output).for_each(rename);
    }
    with.output.iter_mut().filter_map(|it| it.name.as_mut()).for_each(rename);
    let unmerged = unmerge(&model).unwrap().unwrap();
    assert_eq!(unmerged.branch.condition, "x");
    assert_eq!(unmerged.model.proto().graph.node, load("optimum-llama").proto().graph.node);
}

/// Makes a merged decoder of one cache of keys and one of values. `with` and `without` are the nodes of its
/// branches, which return `k`, `v` and `y`.
fn small(outer: &str, with: &str, without: &str) -> Model {
    parsed(
        "q: float[batch, 2, s, 16], past_k, past_v: float[batch, 2, past, 16], flag: bool[1]",
        &format!(
            "{outer}; k, v, y = If(flag) {{then_branch={{{with}; return k, v, y}},
                else_branch={{{without}; return k, v, y}}}}"
        ),
        "k, v: float[batch, 2, all, 16], y: float[batch, s, 32]",
    )
}

const WITH_PAST: &str = "rows = Identity(q)
    k = Concat(past_k, rows) {axis=2}; v = Concat(past_v, rows) {axis=2}
    inner = MatMul(k, v); y = Neg(inner)";
const WITHOUT_PAST: &str = "k = Neg(q); v = Abs(q); y = Neg(k)";

/// Returns a merged decoder in which one branch has more nodes.
fn with_more(nodes: &str) -> Model {
    small("", &format!("{WITH_PAST}; {nodes}"), WITHOUT_PAST)
}

/// Returns the nodes of the unmerged model.
fn taken(model: &Model) -> Vec<String> {
    let unmerged = unmerge(model).unwrap().unwrap().model;
    unmerged.graph().unwrap();
    lines(&unmerged.proto().graph.node)
}

#[test]
fn names_that_the_outer_graph_uses_are_avoided() {
    // `rows` and `inner` are other values outside, and `inner` is also a name of a nested graph there.
    let outer = ["rows = Exp(q)", "scanned = Scan(rows) {body={inner = Abs(rows)}}"];
    let expected = [
        "rows_1 = Identity(q)",
        "k = Concat(past_k, rows_1) {axis=2}",
        "v = Concat(past_v, rows_1) {axis=2}",
        "inner_1 = MatMul(k, v)",
        "y = Neg(inner_1)",
    ];
    let model = small(&outer.join(";"), WITH_PAST, WITHOUT_PAST);
    assert_eq!(taken(&model), [&outer[..], &expected].concat());
    // A nested graph of the branch reads the renamed value, and another one defines the name itself.
    let (joined, products) = WITH_PAST.split_once("inner").unwrap();
    let scans = "scanned_1 = Scan(k) {body={within = Abs(rows); return rows}}
        scanned_2 = Scan(k) {body={rows = Exp(k); z = Abs(rows)}}";
    let model = small(&outer.join(";"), &format!("{joined}; {scans}; inner{products}"), WITHOUT_PAST);
    let bodies = [
        "scanned_1 = Scan(k) {body={within = Abs(rows_1)}}",
        "scanned_2 = Scan(k) {body={rows = Exp(k); z = Abs(rows)}}",
    ];
    assert_eq!(taken(&model)[5..7], bodies);
    let unmerged = unmerge(&model).unwrap().unwrap().model;
    let first = &unmerged.proto().graph.node[5].attribute[0].g;
    assert_eq!(first.output[0].name.as_deref(), Some("rows_1"));
}

#[test]
fn outputs_that_are_other_values_are_copied() {
    // The branch returns one value twice, an outer value, and values under each other's names.
    let mut model = small("outer = Exp(q)", WITH_PAST, WITHOUT_PAST);
    choice(&mut model).output = ["k", "v", "y", "twice", "same"].map(str::to_owned).to_vec();
    for name in ["then_branch", "else_branch"] {
        let names = ["v", "k", "y", "y", "outer"];
        branch_of(&mut model, name).output = body("", vec![], &names).g.output.clone();
    }
    graph(&mut model).output.extend(values("twice, same: float[batch, 2, s, 16]"));
    let expected = [
        "v = Concat(past_k, rows) {axis=2}",
        "k = Concat(past_v, rows) {axis=2}",
        "inner = MatMul(v, k)",
        "y = Neg(inner)",
        "twice = Identity(y)",
        "same = Identity(outer)",
    ];
    assert_eq!(taken(&model)[2..], expected);
}

#[test]
fn a_nested_graph_may_define_the_name_of_an_output() {
    // The branch calls the value `other`, and a nested graph calls another value `y` and reads both.
    let with = WITH_PAST.replace("y = Neg", "other = Neg");
    let scan = "scanned = Scan(other) {body={y = Exp(k); z = Add(y, other)}}";
    let mut model = small("", &format!("{with}; {scan}"), WITHOUT_PAST);
    branch_of(&mut model, "then_branch").output[2].name = Some("other".to_owned());
    assert_eq!(taken(&model)[4..], ["other = Neg(inner)", scan, "y = Identity(other)"]);
}

#[test]
fn the_branch_declares_its_outputs() {
    let mut model = small("", WITH_PAST, WITHOUT_PAST);
    let declared = values("k: float[batch, 2, past + s, 16], v: int64[batch]");
    branch_of(&mut model, "then_branch").output.splice(..2, declared.clone());
    let unmerged = unmerge(&model).unwrap().unwrap().model;
    let expected = [declared[0].clone(), values("v: float[batch, 2, all, 16]").remove(0)];
    assert_eq!(unmerged.proto().graph.output[..2], expected);
}

#[test]
fn both_branches_are_decoders() {
    let model = small("", WITH_PAST, WITH_PAST);
    assert_refused!(unmerge(&model), DecoderError::MergedTwice { condition } if condition == "flag");
    assert_refused!(convert(&model, 16), DecoderError::MergedTwice { .. });
    assert_eq!(
        unmerge(&model).unwrap_err().to_string(),
        "node 0 \"nk\" (If, domain ai.onnx, version 24): both branches for input \"flag\" are decoders with a past: only one may be"
    );
}

#[test]
fn graphs_that_are_no_merged_decoders() {
    type Change = fn(&mut Model);
    let usual = || small("", WITH_PAST, WITHOUT_PAST);
    let changed = |change: Change| {
        let mut model = usual();
        change(&mut model);
        model
    };
    let mut computed = small("not = Not(flag)", WITH_PAST, WITHOUT_PAST);
    choice(&mut computed).input = vec!["not".to_owned()];
    let models = [
        ("neither branch has a past", small("", WITHOUT_PAST, WITHOUT_PAST)),
        (
            "two Ifs",
            changed(|model| {
                let mut second = choice(model).clone();
                second.output = ["a", "b", "c"].map(str::to_owned).to_vec();
                graph(model).node.push(second);
            }),
        ),
        ("another node reads the flag", small("not = Not(flag)", WITH_PAST, WITHOUT_PAST)),
        ("the flag is an output", changed(|model| graph(model).output.extend(values("flag: bool[1]")))),
        ("the branch reads the flag", with_more("not = Not(flag)")),
        ("the flag is computed", computed),
        ("the flag is no boolean", changed(|model| declare(model, "flag: int64[1]"))),
        (
            "most outputs are not those of the If",
            changed(|model| {
                append(model, "a = Neg(q); b = Neg(q); c = Neg(q)");
                graph(model).output.extend(values("a, b, c: float[batch, 2, s, 16]"));
            }),
        ),
        (
            "a branch has an input",
            changed(|model| branch_of(model, "else_branch").input.extend(values("a: float[1]"))),
        ),
        ("a branch is missing", changed(|model| drop(choice(model).attribute.pop()))),
        (
            "a branch has an output too few",
            changed(|model| drop(branch_of(model, "else_branch").output.pop())),
        ),
        (
            "the branch reads an output of the If that it does not produce",
            changed(|model| branch_of(model, "then_branch").node.retain(|node| node.output != ["v"])),
        ),
    ];
    for (what, model) in models {
        assert!(unmerge(&model).unwrap().is_none(), "{what}");
        assert!(convert(&model, 16).is_err(), "{what}");
    }
}

#[test]
fn names_that_occur_twice_and_nodes_in_a_wrong_order() {
    let changed = |change: fn(&mut GraphProto)| {
        let mut model = with_more("");
        change(branch_of(&mut model, "then_branch"));
        model
    };
    for (what, model) in [
        ("twice", with_more("rows = Neg(q)")),
        ("reversed", changed(|with| with.node.reverse())),
        ("absent", with_more("b = Neg(absent)")),
        ("no name", changed(|with| with.output[2].name = None)),
        ("a tensor without a name", changed(|with| with.initializer = vec![TensorProto::default()])),
    ] {
        assert!(unmerge(&model).unwrap().is_none(), "{what}");
    }
}

/// An If that chooses a part of a decoder is not a merged decoder, and the decoder is inspected as before.
#[test]
fn a_decoder_with_another_if() {
    let mut model = load("optimum-llama");
    graph(&mut model).input.extend(values("flag: bool[1]"));
    let logits = maker(graph(&mut model), "logits");
    graph(&mut model).node[logits].output = vec!["plain".to_owned()];
    append(&mut model, "logits = If(flag) {then_branch={a = Neg(plain)}, else_branch={b = Abs(plain)}}");
    assert!(unmerge(&model).unwrap().is_none());
    assert!(decoder(&model).caches.iter().all(|cache| cache.style == WriterStyle::Concat));
    assert_refused!(convert(&model, 16), ConvertRefusal::Subgraph);
}
