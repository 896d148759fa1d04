//! Tests each hazard in a graph that has it and no other.

use kvscatter::{ElementType, Mode};
use kvscatter_onnx::Model;
use kvscatter_onnx::decoder::{Decoder, Hazard, InputRole, RuntimeBug, WriterStyle};

use super::made::{Made, attention, circular, scatter};
use crate::support::{float, int, node, testdata, value};

const FLOAT: ElementType = ElementType::Float32;
const CACHE: [&str; 4] = ["batch", "2", "64", "16"];

fn kinds(hazards: &[Hazard]) -> Vec<&'static str> {
    hazards.iter().map(Hazard::kind).collect()
}

#[test]
fn what_is_right_has_none() {
    for made in [Made::fixed(), Made::growing(), Made::attention_past()] {
        assert_eq!(made.hazards(), []);
    }
    // The operator copies the whole cache unless past and present share memory.
    assert_eq!(kinds(&Made::group_query().hazards()), ["operator-writes"; 2]);
    // Reading the shape of a cache is not reading its rows.
    let shapes =
        Made::fixed().node(node("Shape", &["past_k"], "shape")).node(node("Size", &["present_v"], "n"));
    assert_eq!(shapes.hazards(), []);
    // A prefill starts with empty caches, so its attention reads the new rows alone.
    for made in [Made::fixed(), Made::growing()] {
        let prefill =
            made.change("y", |node| node.input = ["q", "new_k", "new_v"].map(str::to_owned).to_vec());
        assert_eq!(prefill.hazards(), []);
    }
}

#[test]
fn caches_that_grow() {
    for (made, grows) in [
        (Made::growing(), 2),
        (Made::attention_past(), 2),
        (Made::fixed(), 0),
        // These grow only if past and present do not share memory.
        (Made::group_query(), 0),
    ] {
        let model = made.model();
        let hazards = Decoder::of(&model.graph().unwrap()).unwrap().hazards();
        assert_eq!(hazards.iter().filter(|hazard| hazard.kind() == "grows").count(), grows, "{hazards:?}");
    }
}

#[test]
fn past_is_read_by_another_node() {
    let mut sum = node("ReduceSum", &["past_k"], "sum");
    sum.attribute = vec![int("keepdims", 0)];
    for made in [
        Made::fixed().node(sum.clone()),
        // Nodes that pass on the past do not hide its reader.
        Made::fixed().node(node("Neg", &["past_k"], "turned")).node(node("ReduceSum", &["turned"], "sum")),
        // The caller of the model reads its outputs.
        Made::fixed().node(node("Identity", &["past_k"], "old")).output(value("old", FLOAT, &CACHE)),
        Made::fixed()
            .node(node("Neg", &["past_k"], "turned"))
            .node(node("Abs", &["turned"], "old"))
            .output(value("old", FLOAT, &CACHE)),
        Made::fixed().reading("q", "past_k"),
        Made::growing().node(sum),
    ] {
        let hazards = made.hazards();
        assert!(
            matches!(&hazards[..], [Hazard::PastReadElsewhere { past, .. }] if past == "past_k"),
            "{hazards:?}"
        );
        assert!(hazards[0].node().is_some() && hazards[0].cache() == Some("past_k"));
    }
}

#[test]
fn a_subgraph_reads_past() {
    let mut branch = node("If", &["is_first"], "either");
    branch.attribute =
        vec![crate::support::graph("then_branch", vec![node("Neg", &["past_v"], "inside")], &["inside"])];
    let made = Made::fixed().input(value("is_first", ElementType::Bool, &[])).node(branch);
    let hazards = made.hazards();
    assert!(
        matches!(&hazards[..], [Hazard::PastReadElsewhere { past, reader }] if past == "past_v" && reader.op_type == "If"),
        "{hazards:?}"
    );
}

#[test]
fn present_is_read_by_something_that_is_no_attention() {
    let made = Made::fixed().node(node("ReduceMax", &["present_v"], "most"));
    let hazards = made.hazards();
    assert!(
        matches!(&hazards[..], [Hazard::PresentReadElsewhere { present, reader }]
            if present == "present_v" && reader.name == "nmost"),
        "{hazards:?}"
    );
    // A second attention reads the cache like the first one.
    let mut second = attention(&["q", "present_k", "present_v"], &["z"]);
    second.name = Some("second".to_owned());
    assert_eq!(Made::fixed().node(second).hazards(), []);
}

#[test]
fn present_is_given_twice() {
    for op_type in ["Identity", "Neg"] {
        let made = Made::fixed().node(node(op_type, &["present_k"], "copy")).output(value(
            "copy",
            ElementType::Float32,
            &CACHE,
        ));
        let expected =
            Hazard::PresentGivenTwice { present: "present_k".to_owned(), copies: vec!["copy".to_owned()] };
        assert_eq!(made.hazards(), [expected], "{op_type}");
    }
}

#[test]
fn one_cache_is_written_twice() {
    // Two nodes write the same past.
    let made = Made::fixed().node(scatter("past_k", "new_v", "other")).output(value(
        "other",
        ElementType::Float32,
        &CACHE,
    ));
    let hazards = made.hazards();
    assert!(
        matches!(&hazards[..], [Hazard::WrittenTwice { past, first, second }]
            if past == "past_k" && first.name == "npresent_k" && second.name == "nother"),
        "{hazards:?}"
    );
    // Two nodes write one after the other.
    let made = Made::fixed().making("present_k", "half").reading("present_k", "half").node(scatter(
        "half",
        "new_k",
        "present_k",
    ));
    let hazards = made.hazards();
    assert!(
        matches!(&hazards[..], [Hazard::WrittenInTurn { past, first, second }]
            if past == "past_k" && first.index == 0 && second.index == 3),
        "{hazards:?}"
    );
    // A node writes after the present.
    let hazards = Made::fixed().node(scatter("present_v", "new_v", "later")).hazards();
    assert!(
        matches!(&hazards[..], [Hazard::WrittenInTurn { second, .. }] if second.name == "nlater"),
        "{hazards:?}"
    );
}

/// The pointers are equal and the rows are right, but the whole cache is copied twice.
#[test]
fn nodes_between_past_and_present() {
    let there_and_back = vec![node("Neg", &["past_k"], "once"), node("Neg", &["once"], "twice")];
    let hazards = Made::fixed().reading("past_k", "twice").before(there_and_back).hazards();
    let names: Vec<_> = hazards.iter().filter_map(Hazard::node).map(|node| node.name.as_str()).collect();
    assert_eq!((kinds(&hazards), names), (vec!["node-between"; 2], vec!["nonce", "ntwice"]));

    // The node is after the writer.
    let made = Made::fixed().making("present_k", "raw").reading("present_k", "raw").node(node(
        "Neg",
        &["raw"],
        "present_k",
    ));
    assert_eq!(kinds(&made.hazards()), ["node-between"]);

    // The tensor is passed on unchanged, and a runtime removes these nodes.
    let mut cast = node("Cast", &["same"], "cast");
    cast.attribute = vec![int("to", 1)];
    let same = vec![node("Identity", &["past_k"], "same"), cast];
    assert_eq!(Made::fixed().reading("past_k", "cast").before(same).hazards(), []);
}

#[test]
fn turned_caches_keep_their_sequence() {
    let turn = |input: &str, output: &str| {
        let mut turn = node("Transpose", &[input], output);
        turn.attribute = vec![crate::support::ints("perm", &[0, 2, 1, 3])];
        turn
    };
    let cache = ["batch", "64", "2", "16"];
    let made = Made::fixed()
        .input(value("past_k", ElementType::Float32, &cache))
        .output(value("present_k", ElementType::Float32, &cache))
        .reading("past_k", "turned")
        .before(vec![turn("past_k", "turned")])
        .making("present_k", "raw")
        .reading("present_k", "raw")
        .node(turn("raw", "present_k"));
    let model = made.model();
    let decoder = Decoder::of(&model.graph().unwrap()).unwrap();
    let key = decoder.caches.iter().find(|cache| cache.past == "past_k").unwrap();
    assert_eq!((key.axis, key.between.len(), &key.style), (1, 2, &WriterStyle::TensorScatter(Mode::Linear)));
    assert_eq!(decoder.hazards().iter().filter(|hazard| hazard.kind() == "node-between").count(), 2);
}

#[test]
fn past_and_present_of_two_types() {
    let made = Made::growing().output(value("present_k", ElementType::Float16, &["batch", "2", "all", "16"]));
    let expected = Hazard::TypesDiffer {
        past: "past_k".to_owned(),
        present: "present_k".to_owned(),
        past_type: ElementType::Float32,
        present_type: ElementType::Float16,
    };
    assert_eq!(made.hazards(), [expected]);
}

#[test]
fn mixed_conventions() {
    let mut join = node("Concat", &["past_v", "new_v"], "present_v");
    join.attribute = vec![int("axis", 2)];
    let made = Made::fixed()
        .input(value("past_v", ElementType::Float32, &["batch", "2", "past", "16"]))
        .output(value("present_v", ElementType::Float32, &["batch", "2", "all", "16"]))
        .change("present_v", |node| *node = join);
    let hazards = made.hazards();
    let expected = [
        (WriterStyle::Concat, "past_v".to_owned(), 1),
        (WriterStyle::TensorScatter(Mode::Linear), "past_k".to_owned(), 1),
    ];
    assert!(matches!(&hazards[..], [Hazard::MixedStyles { styles }] if *styles == expected), "{hazards:?}");

    let wide = ["batch", "2", "128", "16"];
    let made = Made::fixed().input(value("past_v", ElementType::Float32, &wide)).output(value(
        "present_v",
        ElementType::Float32,
        &wide,
    ));
    let expected = [(64, "past_k".to_owned(), 1), (128, "past_v".to_owned(), 1)];
    let hazards = made.hazards();
    assert!(
        matches!(&hazards[..], [Hazard::MixedCapacities { capacities }] if *capacities == expected),
        "{hazards:?}"
    );
}

#[test]
fn positions_that_differ() {
    let made = Made::fixed()
        .input(value("elsewhere", ElementType::Int64, &["batch"]))
        .change("present_v", |node| node.input[2] = "elsewhere".to_owned());
    let hazards = made.hazards();
    assert!(
        matches!(&hazards[..], [Hazard::MixedWriteIndices { past, write_indices: Some(here), other, other_write_indices: Some(there) }]
            if (past.as_str(), here.as_str(), other.as_str(), there.as_str()) == ("past_v", "elsewhere", "past_k", "write_indices")),
        "{hazards:?}"
    );
    // The indices are the same under another name.
    let made = Made::fixed()
        .before(vec![node("Identity", &["write_indices"], "renamed")])
        .change("present_v", |node| node.input[2] = "renamed".to_owned());
    assert_eq!(made.hazards(), []);

    let made = Made::fixed()
        .change("present_k", |node| node.input.truncate(2))
        .change("present_v", |node| node.input.truncate(2));
    assert_eq!(kinds(&made.hazards()), ["no-write-indices"; 2]);
}

#[test]
fn one_input_for_two_conventions() {
    let made = Made::fixed().change("y", |node| node.input[6] = "write_indices".to_owned());
    let hazards = made.hazards();
    assert!(
        matches!(&hazards[..], [Hazard::TwoConventions { input, first: InputRole::WriteIndices, second: InputRole::NonpadKvSeqlen, .. }]
            if input == "write_indices"),
        "{hazards:?}"
    );

    // `nonpad_kv_seqlen` is used in place of `seqlens_k`.
    let mut other = node("GroupQueryAttention", &["q", "new_k", "new_v", "", "", "nonpad"], "z");
    other.domain = Some("com.microsoft".to_owned());
    let hazards = Made::fixed().node(other).hazards();
    assert!(
        matches!(&hazards[..], [Hazard::TwoConventions { input, first: InputRole::NonpadKvSeqlen, second: InputRole::SeqlensK, .. }]
            if input == "nonpad"),
        "{hazards:?}"
    );
}

#[test]
fn known_bugs_of_runtimes_are_reported() {
    let bugs = |made: Made| -> Vec<RuntimeBug> {
        let model = made.model();
        let hazards = Decoder::of(&model.graph().unwrap()).unwrap().hazards();
        let bug = |hazard: &Hazard| match hazard {
            Hazard::RuntimeBug { bug, .. } => Some(*bug),
            _ => None,
        };
        hazards.iter().filter_map(bug).collect()
    };
    let all = [RuntimeBug::NoKernel, RuntimeBug::RowsLeftWritten, RuntimeBug::IndexClamped];
    assert_eq!(bugs(Made::fixed()), all);
    assert_eq!(bugs(Made::growing()), []);
    let causal = Made::fixed().change("y", |node| node.attribute = vec![int("is_causal", 1)]);
    assert_eq!(bugs(causal)[3..], [RuntimeBug::MaskTopLeft]);
    let cap = |cap| Made::fixed().change("y", |node| node.attribute = vec![float("softcap", cap)]);
    assert_eq!(bugs(cap(2.0))[3..], [RuntimeBug::CapAfterMask]);
    assert_eq!(bugs(cap(0.0)), all);
    let of_growing = |inputs: &[&str]| {
        Made::growing().change("y", |node| {
            node.input = inputs.iter().map(|&input| input.to_owned()).collect();
            node.attribute = vec![float("softcap", 2.0)];
        })
    };
    let inputs = ["q", "present_k", "present_v", "mask"];
    assert_eq!(bugs(of_growing(&inputs[..3])), []);
    let masked = of_growing(&inputs).input(value("mask", ElementType::Bool, &["batch", "1", "s", "all"]));
    assert_eq!(bugs(masked), [RuntimeBug::CapAfterMask]);
    assert_eq!(bugs(Made::fixed().change("present_v", circular))[3..], [RuntimeBug::ModuloEverywhere]);
    let odd = ElementType::Float8E4M3Fn;
    let made = Made::fixed().input(value("past_v", odd, &CACHE)).output(value("present_v", odd, &CACHE));
    assert_eq!(bugs(made)[1], RuntimeBug::NoKernelForType(odd));
}

#[test]
fn a_real_export_names_its_runtimes() {
    let model = kvscatter_onnx::Model::load(&testdata("mobius-llama-static/model.onnx")).unwrap();
    let hazards = Decoder::of(&model.graph().unwrap()).unwrap().hazards();
    assert_eq!(kinds(&hazards), ["runtime"; 4]);
}

#[test]
fn one_scale_for_the_activations_of_all_samples() {
    let quantise = |op_type: &str, domain: &str| {
        let mut quantise = node(op_type, &["q"], "quantised");
        (quantise.name, quantise.domain) = (Some("quantise".to_owned()), Some(domain.to_owned()));
        let used = value("quantised", ElementType::UInt8, &["batch", "tokens"]);
        Made::fixed().node(quantise).output(used).hazards()
    };
    for (op_type, domain) in [("DynamicQuantizeLinear", ""), ("DynamicQuantizeMatMul", "com.microsoft")] {
        let hazards = quantise(op_type, domain);
        let [hazard @ Hazard::TensorWideScale { node }] = &hazards[..] else { panic!("{hazards:?}") };
        assert_eq!((node.name.as_str(), hazard.cache()), ("quantise", None));
        assert!(hazard.to_string().contains("one scale for a whole tensor"), "{hazard}");
    }
    // An operator of this name in another domain may be anything.
    assert_eq!(quantise("DynamicQuantizeLinear", "com.microsoft"), []);
    // A scale changes nothing if no output depends on it, or if it is the same in every step.
    let unused = node("DynamicQuantizeLinear", &["q"], "quantised");
    assert_eq!(Made::fixed().node(unused).hazards(), []);
    let constant = node("DynamicQuantizeLinear", &["weight"], "quantised");
    let used = value("quantised", ElementType::UInt8, &["4"]);
    assert_eq!(Made::fixed().node(node("Constant", &[], "weight")).node(constant).output(used).hazards(), []);
    let model = Model::load(&testdata("decoders/optimum-llama-int8/model.onnx")).unwrap();
    let hazards = Decoder::of(&model.graph().unwrap()).unwrap().hazards();
    assert_eq!(kinds(&hazards).iter().filter(|kind| **kind == "tensor-wide-scale").count(), 9);
}
