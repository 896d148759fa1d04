//! Tests that an `Attention` that reads caches after `Concat` appended to them reads static caches.
//!
//! PyTorch exports such decoders at operator sets 23 and 24. `python-tests/` runs one of them, and
//! `python-tests/test_fuse.py` shows in ONNX Runtime that generated ones compute the same.

use std::collections::BTreeSet;

use kvscatter::ElementType;
use kvscatter_onnx::convert::{
    CacheWindow, ConvertOptions, ConvertRefusal, Converted, KeptAttention, KeptReason, LinearReason,
    LinearWindow, WindowedCaches, convert,
};
use kvscatter_onnx::proto::{GraphProto, NodeProto};
use kvscatter_onnx::{Model, Node, OnnxError};

use crate::fusion::{Form, Nodes, Step, as_it_is, op_types, tiled_heads};
use crate::support::{float, int, ints, node, opset, testdata, value};

const SLOTS: usize = 16;

/// Returns a decoder in which one `Attention` takes the place of all nodes from the keys' transposition to the product
/// of weights and values. `change` gets the node.
fn decoder(form: &Form, mask: &str, change: impl FnOnce(&mut NodeProto)) -> Model {
    let mut model = form.model();
    let graph: &mut GraphProto = model.proto_mut().graph.as_option_mut().unwrap();
    let is_turned = |node: &NodeProto| node.attribute.iter().any(|it| it.ints == [0, 1, 3, 2]);
    let turned = graph.node.iter().position(is_turned).unwrap();
    let keys = graph.node[turned].input[0].clone();
    let mut queries: Option<String> = None;
    let mut scores = BTreeSet::from([graph.node[turned].output[0].clone()]);
    let mut nodes = Vec::new();
    for mut each in std::mem::take(&mut graph.node) {
        let reads = |scores: &BTreeSet<String>| each.input.iter().any(|input| scores.contains(input));
        if each.output[0] == "y" {
            let inputs = [queries.as_deref().unwrap(), &keys, &each.input[1], mask];
            each = node("Attention", &inputs, "y");
            each.attribute = vec![float("scale", 0.5)];
        } else if scores.contains(&each.output[0]) || reads(&scores) {
            queries = queries.or_else(|| reads(&scores).then(|| each.input[0].clone()));
            scores.insert(each.output[0].clone());
            continue;
        }
        nodes.push(each);
    }
    change(nodes.iter_mut().find(|node| node.output[0] == "y").unwrap());
    graph.node = nodes;
    model.proto_mut().opset_import = vec![opset("", 23)];
    model
}

type Change = fn(&mut NodeProto);

fn as_exported(_: &mut NodeProto) {}

fn converted(model: &Model) -> Converted {
    convert(model, SLOTS).unwrap()
}

/// Returns the keys, values and lengths that the only `Attention` reads, and the names of its attributes.
fn attention(converted: &Converted) -> ([String; 3], Vec<String>) {
    assert_eq!((converted.attentions, converted.attention_nodes, converted.fused), (1, 1, 0));
    let graph = converted.model.graph().unwrap();
    let attentions: Vec<_> = graph.nodes().iter().filter(|node| node.is("Attention")).collect();
    let [attention] = *attentions else { panic!("{attentions:?}") };
    assert_eq!([4, 5].map(|slot| attention.input(slot)), [None, None]);
    let made = |name| graph.nodes().iter().find(|node: &&Node<'_>| node.output(0) == Some(name));
    assert_eq!(made(attention.input(3).unwrap()).unwrap().op_type(), "Unsqueeze");
    // The node of a kept attention reads a copy of a cache.
    let reads_caches = [1, 2].map(|slot| attention.input(slot)) == ["present.k", "present.v"].map(Some);
    match converted.kept.as_slice() {
        [] => assert!(reads_caches),
        [
            KeptAttention {
                output,
                reason: KeptReason::Form { what: "keys or values are not a whole cache" },
            },
        ] => {
            assert!(!reads_caches && output == "y");
        }
        other => panic!("{other:?}"),
    }
    let attributes = attention.proto().attribute.iter().map(|it| it.name.clone().unwrap()).collect();
    ([1, 2, 6].map(|slot| attention.input(slot).unwrap().to_owned()), attributes)
}

const WHOLE: [&str; 3] = ["present.k", "present.v", "nonpad_kv_seqlen"];

#[test]
fn heads_are_read_as_the_cache_has_them() {
    let grouped = Form { repeat: as_it_is, ..Form::grouped() };
    let tiled: Step = |nodes, value| {
        let apart = nodes.add("Unsqueeze", &[value, "two"]);
        let repeated = nodes.add("Tile", &[&apart, "shared"]);
        nodes.add("Reshape", &[&repeated, "all_heads"])
    };
    for (what, form) in [
        ("as many as queries", Form::plain()),
        ("shared", grouped.clone()),
        ("repeated by Expand", Form::grouped()),
        ("repeated by Tile", Form { repeat: tiled, ..Form::grouped() }),
        ("one for all", Form { kv_heads: 1, repeat: as_it_is, ..Form::plain() }),
        ("float16", Form { element: ElementType::Float16, ..Form::grouped() }),
        ("bfloat16", Form { element: ElementType::BFloat16, ..grouped }),
    ] {
        for mask in ["visible", "bias"] {
            let converted = converted(&decoder(&form, mask, as_exported));
            let (read, attributes) = attention(&converted);
            assert_eq!(
                (read, attributes),
                (WHOLE.map(str::to_owned), vec!["scale".to_owned()]),
                "{what}, {mask}"
            );
            let nodes = op_types(&converted);
            assert!(["Expand", "Tile", "Concat"].iter().all(|it| !nodes.contains(it)), "{what}: {nodes:?}");
        }
    }
}

/// Queries, keys and values have all heads of a token in a row.
#[test]
fn rank_3_reads_the_cache_of_rank_4() {
    let flat: Step = |nodes, value| {
        let by_token = nodes.add("Transpose", &[value]);
        nodes.attribute(ints("perm", &[0, 2, 1, 3]));
        nodes.add("Reshape", &[&by_token, "by_row"])
    };
    let repeated: Step = |nodes, value| {
        let by_token = nodes.add("Transpose", &[value]);
        nodes.attribute(ints("perm", &[0, 2, 1, 3]));
        let apart = nodes.add("Unsqueeze", &[&by_token, "three"]);
        let wide = nodes.add("Expand", &[&apart, "shared_last"]);
        nodes.add("Reshape", &[&wide, "by_row"])
    };
    for (what, repeat, heads) in [("shared", flat, 3), ("repeated", repeated, 6)] {
        let form = Form { repeat, ..Form::grouped() };
        let mut model = decoder(&form, "visible", |node| {
            node.input[0] = "x".to_owned();
            node.attribute.extend([int("q_num_heads", 6), int("kv_num_heads", heads)]);
            node.output[0] = "logits".to_owned();
        });
        let graph = model.proto_mut().graph.as_option_mut().unwrap();
        graph.node.retain(|node| {
            !["by_token", "logits"].contains(&node.output[0].as_str()) || node.input[0] == "x"
        });
        let mut more = Nodes { element: form.element, nodes: Vec::new(), initializers: Vec::new() };
        more.ints("by_row", &[0, 0, 4 * heads]);
        more.ints("three", &[3]);
        more.ints("shared_last", &[1, 1, 1, 2, 1]);
        graph.initializer.extend(more.initializers);
        let converted = converted(&model);
        let (read, attributes) = attention(&converted);
        assert_eq!((read, attributes), (WHOLE.map(str::to_owned), vec!["scale".to_owned()]), "{what}");
        assert!(!op_types(&converted).contains(&"Expand"), "{what}");
    }
}

/// A decoder of single tokens needs no mask. Every other one needs it, because a token would see those after it.
#[test]
fn a_mask_may_be_absent_if_steps_have_one_token() {
    let mut model = decoder(&Form::grouped(), "", as_exported);
    assert!(matches!(
        convert(&model, SLOTS).unwrap_err().root(),
        OnnxError::Convert(ConvertRefusal::Visibility { hidden: false, .. })
    ));
    let graph = model.proto_mut().graph.as_option_mut().unwrap();
    for name in ["input_ids", "position_ids"] {
        let declared = graph.input.iter_mut().find(|it| it.name.as_deref() == Some(name)).unwrap();
        *declared = value(name, ElementType::Int64, &["batch", "1"]);
    }
    graph.input.retain(|input| input.name.as_deref() != Some("attention_mask"));
    // Nothing may read the mask that was dropped.
    let used: BTreeSet<_> = graph.node.iter().flat_map(|node| node.input.clone()).collect();
    graph.node.retain(|node| used.contains(&node.output[0]) || node.output[0] == "logits");
    graph.node.retain(|node| !node.input.contains(&"attention_mask".to_owned()));
    let masks = ["real", "visible", "bias"];
    graph.node.retain(|node| !masks.contains(&node.output[0].as_str()));
    assert_eq!(attention(&converted(&model)).0, WHOLE);
}

#[test]
fn other_attributes_stay() {
    let kept = |node: &mut NodeProto| {
        node.attribute.extend([
            float("softcap", 4.0),
            int("softmax_precision", 1),
            int("is_causal", 0),
            int("qk_matmul_output_mode", 0),
        ]);
    };
    let (read, attributes) = attention(&converted(&decoder(&Form::grouped(), "bias", kept)));
    assert_eq!(read, WHOLE);
    assert_eq!(attributes, ["scale", "softcap", "softmax_precision", "qk_matmul_output_mode"]);
}

/// Adds `seen`, which hides all but the last 4 positions.
fn windowed(nodes: &mut Nodes, queries: &str) -> String {
    nodes.ints("width", &[4]);
    let edge = nodes.add("Sub", &["column", "width"]);
    let recent = nodes.add("Greater", &["slots", &edge]);
    nodes.called("seen", "And", &["visible", &recent]);
    queries.to_owned()
}

#[test]
fn windows_become_rings() {
    let windows = WindowedCaches::Ring { chunk: Some(2), rewind: 0 };
    let with_rings = |model: &Model| convert(model, ConvertOptions::new(SLOTS).windowed(windows)).unwrap();
    let form = Form { queries: windowed, ..Form::grouped() };
    let ring = with_rings(&decoder(&form, "seen", as_exported));
    assert_eq!(attention(&ring).0[..2], WHOLE[..2]);
    assert_eq!(ring.rings.iter().map(|(ring, caches)| (ring.window, *caches)).collect::<Vec<_>>(), [(4, 2)]);
    assert_eq!(ring.windows, [CacheWindow { past: "past.k".to_owned(), window: Some(4) }]);
    // Another node reads the caches, which might be slot by slot.
    let linear = with_rings(&decoder(&Form { repeat: tiled_heads, ..form }, "seen", as_exported));
    let reason = LinearReason::Reader;
    assert_eq!(linear.linear_windows, [LinearWindow { window: 4, attentions: 1, reason }]);
    assert!(linear.rings.is_empty());
}

#[test]
fn layers_of_an_export_have_their_own_windows() {
    let model = Model::load(&testdata("decoders/torch-2.15-gemma3/model.onnx")).unwrap();
    let converted = convert(&model, 64).unwrap();
    assert_eq!((converted.attentions, converted.attention_nodes, converted.fused), (2, 2, 0));
    assert_eq!(
        converted.rings.iter().map(|(ring, caches)| (ring.window, *caches)).collect::<Vec<_>>(),
        [(4, 2)]
    );
    let nodes = op_types(&converted);
    assert!(!nodes.contains(&"Expand"), "{nodes:?}");
    assert_eq!(nodes.iter().filter(|it| **it == "TensorScatter").count(), 4);
}

/// The node reads what is computed from the caches, as it did before.
#[test]
fn keys_and_values_that_are_no_whole_cache_stay() {
    let cast: Step = |nodes, value| nodes.cast(value, ElementType::Float32);
    let wide = Form { element: ElementType::Float16, repeat: cast, queries: cast, ..Form::plain() };
    let mut widened = decoder(&wide, "visible", as_exported);
    let graph = widened.proto_mut().graph.as_option_mut().unwrap();
    graph.output[0] = value("logits", ElementType::Float32, &["batch", "tokens", "24"]);
    let scaled: Step = |nodes, value| nodes.number("Mul", value, 0.5);
    // At other lengths the factor may be another one.
    let unscaled: Step = |nodes, value| nodes.number("Mul", value, 1.0);
    for (what, model) in [
        (
            "in another order",
            decoder(&Form { repeat: tiled_heads, ..Form::grouped() }, "visible", as_exported),
        ),
        ("cast", widened),
        ("scaled", decoder(&Form { repeat: scaled, ..Form::plain() }, "bias", as_exported)),
        ("multiplied by 1", decoder(&Form { repeat: unscaled, ..Form::plain() }, "bias", as_exported)),
        ("scaled values", decoder(&Form { values: scaled, ..Form::plain() }, "bias", as_exported)),
    ] {
        let converted = converted(&model);
        let ([keys, values, lengths], _) = attention(&converted);
        assert!(values != "present.v" && lengths == "nonpad_kv_seqlen", "{what}");
        assert_eq!(keys == "present.k", what == "scaled values", "{what}");
    }
}

#[test]
fn forms_without_a_counterpart_are_refused_by_name() {
    let limited = "is_causal or a window without a past";
    let second = "a second output without a past";
    let forms: [(&str, Change); 7] = [
        (limited, |node| node.attribute.push(int("is_causal", 1))),
        (limited, |node| node.attribute.push(int("left_window_size", 3))),
        (second, |node| node.output.push("present".to_owned())),
        (second, |node| node.output.extend(["", "", "products"].map(str::to_owned))),
        ("a past beside another cache", |node| node.input.extend(["x", "x"].map(str::to_owned))),
        ("nonpad_kv_seqlen beside a growing cache", |node| {
            node.input.extend(["", "", "x"].map(str::to_owned));
        }),
        ("queries, keys and values of different ranks", |node| "x".clone_into(&mut node.input[0])),
    ];
    for (expected, change) in forms {
        match convert(&decoder(&Form::grouped(), "visible", change), SLOTS).unwrap_err().root() {
            OnnxError::Convert(ConvertRefusal::AttentionForm { what }) => assert_eq!(*what, expected),
            other => panic!("{expected}: {other}"),
        }
    }
}
