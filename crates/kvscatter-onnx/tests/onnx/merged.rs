//! Tests how the decoder with a past is taken out of a merged decoder.
//!
//! `python-tests/test_merged.py` shows in ONNX Runtime that the result computes the same.

use std::collections::BTreeSet;

use kvscatter::ElementType;
use kvscatter_onnx::convert::{ConvertRefusal, convert};
use kvscatter_onnx::decoder::{Decoder, WriterStyle};
use kvscatter_onnx::proto::{AttributeProto, GraphProto, NodeProto, TensorProto};
use kvscatter_onnx::{Model, OnnxError, TakenBranch, unmerge};

use crate::support::{assert_refused, graph as body, int, load, model, node, value};

const FLOAT: ElementType = ElementType::Float32;
const CONCAT: [&str; 4] = [
    "optimum-llama",
    "decoders/optimum-1.18-gpt2",
    "decoders/optimum-0.1-qwen3-float16",
    "decoders/optimum-1.18-opt",
];

fn graph(model: &mut Model) -> &mut GraphProto {
    model.proto_mut().graph.get_or_insert_default()
}

fn flag() -> TakenBranch {
    TakenBranch { condition: "use_cache_branch".to_owned(), value: true }
}

fn branch(name: &str, graph: GraphProto) -> AttributeProto {
    AttributeProto { g: graph.into(), ..body(name, vec![], &[]) }
}

/// Merges a decoder as Optimum does.
///
/// The outputs of both branches have the names of the graph's outputs. Small initializers are in the branches.
/// The branch without a past is made from the same decoder: its pasts are empty, and other values have other
/// names.
fn merged(decoder: &str) -> Model {
    let mut model = load(decoder);
    let pasts: BTreeSet<String> = model
        .graph()
        .map(|graph| Decoder::of(&graph).unwrap().caches.iter().map(|it| it.past.to_owned()).collect())
        .unwrap();
    let outer = graph(&mut model);
    let is_small = |tensor: &TensorProto| {
        tensor.dims.is_empty() || (tensor.dims.len() == 1 && tensor.data_type == Some(7))
    };
    let (small, large) = std::mem::take(&mut outer.initializer).into_iter().partition(is_small);
    let with = GraphProto {
        name: Some("with_past".to_owned()),
        node: std::mem::take(&mut outer.node),
        output: outer.output.clone(),
        initializer: small,
        value_info: std::mem::take(&mut outer.value_info),
        ..GraphProto::default()
    };
    let outputs: BTreeSet<&str> = with.output.iter().filter_map(|it| it.name.as_deref()).collect();
    let made: BTreeSet<&str> = with.node.iter().flat_map(|node| &node.output).map(String::as_str).collect();
    let rename = |name: &mut String| {
        if pasts.contains(name.as_str()) {
            *name = format!("empty_{name}");
        } else if made.contains(name.as_str()) && !outputs.contains(name.as_str()) {
            name.push_str("_no_past");
        }
    };
    let mut without = with.clone();
    without.name = Some("no_past".to_owned());
    without.value_info.clear();
    for node in &mut without.node {
        node.input.iter_mut().chain(&mut node.output).filter(|name| !name.is_empty()).for_each(rename);
    }
    without.initializer.extend(pasts.iter().map(|past| TensorProto {
        name: Some(format!("empty_{past}")),
        dims: vec![1, 2, 0, 16],
        data_type: Some(1),
        raw_data: Some(vec![]),
        ..TensorProto::default()
    }));
    let mut choice = node("If", &["use_cache_branch"], "");
    choice.name = Some("optimum::if".to_owned());
    choice.output = outer.output.iter().filter_map(|output| output.name.clone()).collect();
    choice.attribute = vec![branch("then_branch", with), branch("else_branch", without)];
    outer.node = vec![choice];
    outer.initializer = large;
    outer.input.push(value("use_cache_branch", ElementType::Bool, &["1"]));
    model
}

/// Changes a branch of a merged decoder.
fn branch_of<'m>(model: &'m mut Model, name: &str) -> &'m mut GraphProto {
    let choice = graph(model).node.iter_mut().find(|node| node.op_type.as_deref() == Some("If")).unwrap();
    let branch = choice.attribute.iter_mut().find(|it| it.name.as_deref() == Some(name)).unwrap();
    branch.g.get_or_insert_default()
}

fn choice(model: &mut Model) -> &mut NodeProto {
    graph(model).node.iter_mut().find(|node| node.op_type.as_deref() == Some("If")).unwrap()
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

#[test]
fn the_conversion_is_that_of_the_decoder() {
    for decoder in CONCAT {
        let from_merged = convert(&merged(decoder), 24).unwrap();
        let expected = convert(&load(decoder), 24).unwrap();
        assert_eq!(from_merged.branch, Some(flag()), "{decoder}");
        assert_eq!(expected.branch, None, "{decoder}");
        let graphs = [&from_merged, &expected].map(|converted| &converted.model.proto().graph);
        assert_eq!(graphs[0].node, graphs[1].node, "{decoder}");
        assert_eq!((&graphs[0].input, &graphs[0].output), (&graphs[1].input, &graphs[1].output), "{decoder}");
        assert_eq!((from_merged.caches, from_merged.fused), (expected.caches, expected.fused), "{decoder}");
    }
}

/// Optimum merged this decoder. Its small initializers are `Constant` nodes, and the branches share weights.
#[test]
fn a_decoder_that_optimum_merged() {
    let model = load("decoders/optimum-1.18-gpt2-merged");
    let unmerged = unmerge(&model).unwrap().unwrap();
    assert_eq!(unmerged.branch, flag());
    let graph = unmerged.model.graph().unwrap();
    let decoder = Decoder::of(&graph).unwrap();
    assert_eq!(decoder.caches.len(), 4);
    assert!(decoder.caches.iter().all(|cache| cache.style == WriterStyle::Concat));
    let converted = convert(&model, 24).unwrap();
    assert_eq!((converted.caches, converted.fused, converted.branch), (4, 2, Some(flag())));
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
fn small(outer: Vec<NodeProto>, with: Vec<NodeProto>, without: Vec<NodeProto>) -> Model {
    let mut choice = node("If", &["flag"], "k");
    choice.output = ["k", "v", "y"].map(str::to_owned).to_vec();
    choice.attribute =
        vec![body("then_branch", with, &["k", "v", "y"]), body("else_branch", without, &["k", "v", "y"])];
    let cache = ["batch", "2", "past", "16"];
    let all = ["batch", "2", "all", "16"];
    let inputs = vec![
        value("q", FLOAT, &["batch", "2", "s", "16"]),
        value("past_k", FLOAT, &cache),
        value("past_v", FLOAT, &cache),
        value("flag", ElementType::Bool, &["1"]),
    ];
    let outputs =
        vec![value("k", FLOAT, &all), value("v", FLOAT, &all), value("y", FLOAT, &["batch", "s", "32"])];
    model(inputs, outer.into_iter().chain([choice]).collect(), outputs)
}

fn join(past: &str, output: &str) -> NodeProto {
    NodeProto { attribute: vec![int("axis", 2)], ..node("Concat", &[past, "rows"], output) }
}

fn with_past() -> Vec<NodeProto> {
    vec![
        node("Identity", &["q"], "rows"),
        join("past_k", "k"),
        join("past_v", "v"),
        node("MatMul", &["k", "v"], "inner"),
        node("Neg", &["inner"], "y"),
    ]
}

fn without_past() -> Vec<NodeProto> {
    vec![node("Neg", &["q"], "k"), node("Abs", &["q"], "v"), node("Neg", &["k"], "y")]
}

/// Returns `Op(inputs) -> output` for every node of the unmerged model.
fn lines(model: &Model) -> Vec<String> {
    let unmerged = unmerge(model).unwrap().unwrap().model;
    unmerged.graph().unwrap();
    let line = |node: &NodeProto| {
        format!(
            "{}({}) -> {}",
            node.op_type.as_deref().unwrap(),
            node.input.join(", "),
            node.output.join(", ")
        )
    };
    unmerged.proto().graph.node.iter().map(line).collect()
}

#[test]
fn names_that_the_outer_graph_uses_are_avoided() {
    // `rows` and `inner` are other values outside, and `inner` is also a name of a nested graph there.
    let nested = |result: &str| body("body", vec![node("Abs", &["rows"], "inner")], &[result]);
    let mut scan = node("Scan", &["rows"], "scanned");
    scan.attribute = vec![nested("inner")];
    let mut model = small(vec![node("Exp", &["q"], "rows"), scan], with_past(), without_past());
    assert_eq!(
        lines(&model),
        [
            "Exp(q) -> rows",
            "Scan(rows) -> scanned",
            "Identity(q) -> rows_1",
            "Concat(past_k, rows_1) -> k",
            "Concat(past_v, rows_1) -> v",
            "MatMul(k, v) -> inner_1",
            "Neg(inner_1) -> y",
        ]
    );
    // A nested graph of the branch reads the renamed value, and another one defines the name itself.
    let with = branch_of(&mut model, "then_branch");
    let mut reads = node("Scan", &["k"], "scanned_1");
    reads.attribute = vec![nested("rows")];
    let mut defines = node("Scan", &["k"], "scanned_2");
    defines.attribute =
        vec![body("body", vec![node("Exp", &["k"], "rows"), node("Abs", &["rows"], "z")], &["z"])];
    with.node.splice(4..4, [reads, defines]);
    let unmerged = unmerge(&model).unwrap().unwrap().model;
    let bodies: Vec<_> = unmerged.proto().graph.node[6..8].iter().map(|node| &node.attribute[0].g).collect();
    assert_eq!(bodies[0].node[0].input, ["rows_1"]);
    assert_eq!(bodies[0].output[0].name.as_deref(), Some("rows_1"));
    assert_eq!(bodies[1].node[0].output, ["rows"]);
    assert_eq!(bodies[1].node[1].input, ["rows"]);
}

#[test]
fn outputs_that_are_other_values_are_copied() {
    // The branch returns one value twice, an outer value, and values under each other's names.
    let mut model = small(vec![node("Exp", &["q"], "outer")], with_past(), without_past());
    choice(&mut model).output = ["k", "v", "y", "twice", "same"].map(str::to_owned).to_vec();
    for name in ["then_branch", "else_branch"] {
        let names = ["v", "k", "y", "y", "outer"];
        branch_of(&mut model, name).output = body("", vec![], &names).g.output.clone();
    }
    graph(&mut model)
        .output
        .extend(["twice", "same"].map(|name| value(name, FLOAT, &["batch", "2", "s", "16"])));
    assert_eq!(
        lines(&model)[2..],
        [
            "Concat(past_k, rows) -> v",
            "Concat(past_v, rows) -> k",
            "MatMul(v, k) -> inner",
            "Neg(inner) -> y",
            "Identity(y) -> twice",
            "Identity(outer) -> same",
        ]
    );
}

#[test]
fn a_nested_graph_may_define_the_name_of_an_output() {
    let mut model = small(vec![], with_past(), without_past());
    let with = branch_of(&mut model, "then_branch");
    // The branch calls the value `other`, and a nested graph calls another value `y` and reads both.
    with.node.last_mut().unwrap().output = vec!["other".to_owned()];
    let mut scan = node("Scan", &["other"], "scanned");
    scan.attribute =
        vec![body("body", vec![node("Exp", &["k"], "y"), node("Add", &["y", "other"], "z")], &["z"])];
    with.node.push(scan);
    with.output[2].name = Some("other".to_owned());
    let lines = lines(&model);
    assert_eq!(lines[4..], ["Neg(inner) -> other", "Scan(other) -> scanned", "Identity(other) -> y"]);
}

#[test]
fn the_branch_declares_its_outputs() {
    let mut model = small(vec![], with_past(), without_past());
    branch_of(&mut model, "then_branch").output[0] = value("k", FLOAT, &["batch", "2", "past + s", "16"]);
    branch_of(&mut model, "then_branch").output[1] = value("v", ElementType::Int64, &["batch"]);
    let unmerged = unmerge(&model).unwrap().unwrap().model;
    let outputs = &unmerged.proto().graph.output;
    assert_eq!(outputs[0], value("k", FLOAT, &["batch", "2", "past + s", "16"]));
    assert_eq!(outputs[1], value("v", FLOAT, &["batch", "2", "all", "16"]));
}

#[test]
fn both_branches_are_decoders() {
    let model = small(vec![], with_past(), with_past());
    assert_refused!(unmerge(&model), OnnxError::MergedTwice { condition } if condition == "flag");
    assert_refused!(convert(&model, 16), OnnxError::MergedTwice { .. });
    let error = unmerge(&model).unwrap_err().to_string();
    assert_eq!(
        error,
        "node 0 \"nk\" (If, domain ai.onnx, version 24): both branches for input \"flag\" are decoders with a past: only one may be"
    );
}

#[test]
fn graphs_that_are_no_merged_decoders() {
    type Change = fn(&mut Model);
    let changed = |change: Change| {
        let mut model = small(vec![], with_past(), without_past());
        change(&mut model);
        model
    };
    let models: [(&str, Change); 12] = [
        ("neither branch has a past", |model| {
            branch_of(model, "then_branch").node = without_past();
        }),
        ("two Ifs", |model| {
            let mut second = choice(model).clone();
            second.output = ["a", "b", "c"].map(str::to_owned).to_vec();
            graph(model).node.push(second);
        }),
        ("another node reads the flag", |model| graph(model).node.push(node("Not", &["flag"], "not"))),
        ("the flag is an output", |model| {
            graph(model).output.push(value("flag", ElementType::Bool, &["1"]));
        }),
        ("the branch reads the flag", |model| {
            branch_of(model, "then_branch").node.push(node("Not", &["flag"], "not"));
        }),
        ("the flag is computed", |model| {
            graph(model).node.insert(0, node("Not", &["flag"], "not"));
            choice(model).input = vec!["not".to_owned()];
        }),
        ("the flag is no boolean", |model| {
            *graph(model).input.last_mut().unwrap() = value("flag", ElementType::Int64, &["1"]);
        }),
        ("most outputs are not those of the If", |model| {
            let more = ["a", "b", "c"];
            graph(model).node.extend(more.map(|name| node("Neg", &["q"], name)));
            graph(model).output.extend(more.map(|name| value(name, FLOAT, &["batch", "2", "s", "16"])));
        }),
        ("a branch has an input", |model| {
            branch_of(model, "else_branch").input.push(value("a", FLOAT, &["1"]));
        }),
        ("a branch is missing", |model| {
            choice(model).attribute.pop();
        }),
        ("a branch has an output too few", |model| {
            branch_of(model, "else_branch").output.pop();
        }),
        ("the branch reads an output of the If that it does not produce", |model| {
            branch_of(model, "then_branch").node.retain(|node| node.output != ["v"]);
        }),
    ];
    for (what, change) in models {
        let model = changed(change);
        assert!(unmerge(&model).unwrap().is_none(), "{what}");
        assert!(convert(&model, 16).is_err(), "{what}");
    }
}

#[test]
fn names_that_occur_twice_and_nodes_in_a_wrong_order() {
    for change in [
        |with: &mut GraphProto| with.node.push(node("Neg", &["q"], "rows")),
        |with: &mut GraphProto| with.node.reverse(),
        |with: &mut GraphProto| with.node.push(node("Neg", &["absent"], "b")),
        |with: &mut GraphProto| with.output[2].name = None,
        |with: &mut GraphProto| with.initializer = vec![TensorProto::default()],
    ] {
        let mut model = small(vec![], with_past(), without_past());
        change(branch_of(&mut model, "then_branch"));
        assert!(unmerge(&model).unwrap().is_none());
    }
}

/// An If that chooses a part of a decoder is not a merged decoder, and the decoder is inspected as before.
#[test]
fn a_decoder_with_another_if() {
    let mut model = load("optimum-llama");
    let graph = graph(&mut model);
    graph.input.push(value("flag", ElementType::Bool, &["1"]));
    let logits = graph.node.iter_mut().find(|node| node.output == ["logits"]).unwrap();
    logits.output = vec!["plain".to_owned()];
    let mut choice = node("If", &["flag"], "logits");
    choice.attribute = vec![
        body("then_branch", vec![node("Neg", &["plain"], "a")], &["a"]),
        body("else_branch", vec![node("Abs", &["plain"], "b")], &["b"]),
    ];
    graph.node.push(choice);
    assert!(unmerge(&model).unwrap().is_none());
    let found = model.graph().unwrap();
    let decoder = Decoder::of(&found).unwrap();
    assert!(decoder.caches.iter().all(|cache| cache.style == WriterStyle::Concat));
    assert_refused!(convert(&model, 16), OnnxError::Convert(ConvertRefusal::Subgraph));
}
