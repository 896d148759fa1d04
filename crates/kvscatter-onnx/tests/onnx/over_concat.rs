//! Tests that an `Attention` that reads caches after `Concat` appended to them reads static caches.
//!
//! PyTorch exports such decoders at operator sets 23 and 24. `python-tests/` runs one of them, and
//! `python-tests/test_fuse.py` shows in ONNX Runtime that generated ones compute the same.

use std::collections::BTreeSet;

use kvscatter::ElementType::{BFloat16, Float16};
use kvscatter_onnx::convert::{
    CacheWindow, ConvertOptions, ConvertRefusal, Converted, KeptAttention, KeptForm, KeptReason,
    LinearReason, LinearWindow, WindowedCaches, convert,
};
use kvscatter_onnx::internal::proto::NodeProto;
use kvscatter_onnx::{Model, Node};

use crate::fusion::{Form, TILED, TILED_HEADS};
use crate::support::{
    assert_refused, count, counts, declare, fix_dim, float, graph_mut, int, load, node, op_types, opset,
    refusal,
};

const SLOTS: usize = 16;

/// Returns a decoder in which one `Attention` takes the place of all nodes from the keys' transposition to the product
/// of weights and values. `change` gets the node.
fn decoder(form: &Form<'_>, mask: &str, change: impl FnOnce(&mut NodeProto)) -> Model {
    let mut model = form.model();
    let graph = graph_mut(&mut model);
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
    assert_eq!(counts(converted), (1, 1, 0));
    let graph = converted.model.graph().unwrap();
    let attention = graph.nodes().iter().find(|node| node.is("Attention")).unwrap();
    assert_eq!([4, 5].map(|slot| attention.input(slot)), [None, None]);
    let made = |name| graph.nodes().iter().find(|node: &&Node<'_>| node.output(0) == Some(name));
    assert_eq!(made(attention.input(3).unwrap()).unwrap().op_type(), "Unsqueeze");
    // The node of a kept attention reads a copy of a cache.
    let reads_caches = [1, 2].map(|slot| attention.input(slot)) == ["present.k", "present.v"].map(Some);
    match converted.report.attention.kept.as_slice() {
        [] => assert!(reads_caches),
        [
            KeptAttention { output, reason: KeptReason::Form(KeptForm::PartOfCache | KeptForm::ScaledCache) },
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
    let grouped = Form { repeat: "$", ..Form::grouped() };
    for (what, form) in [
        ("as many as queries", Form::plain()),
        ("shared", grouped),
        ("repeated by Expand", Form::grouped()),
        ("repeated by Tile", Form { repeat: TILED, ..Form::grouped() }),
        ("one for all", Form { kv_heads: 1, ..Form::plain() }),
        ("float16", Form { element: Float16, ..Form::grouped() }),
        ("bfloat16", Form { element: BFloat16, ..grouped }),
    ] {
        for mask in ["visible", "bias"] {
            let converted = converted(&decoder(&form, mask, as_exported));
            let (read, attributes) = attention(&converted);
            assert_eq!(
                (&read, &*attributes),
                (&WHOLE.map(str::to_owned), &["scale".to_owned()][..]),
                "{what}, {mask}"
            );
            let nodes = op_types(&converted.model);
            assert!(["Expand", "Tile", "Concat"].iter().all(|it| !nodes.contains(it)), "{what}: {nodes:?}");
        }
    }
}

/// Queries, keys and values have all heads of a token in a row.
#[test]
fn rank_3_reads_the_cache_of_rank_4() {
    let flat = "Reshape(Transpose($) {perm=[0, 2, 1, 3]}, [0, 0, 12])";
    let repeated =
        "Reshape(Expand(Unsqueeze(Transpose($) {perm=[0, 2, 1, 3]}, [3]), [1, 1, 1, 2, 1]), [0, 0, 24])";
    for (what, repeat, heads) in [("shared", flat, 3), ("repeated", repeated, 6)] {
        let form = Form { repeat, ..Form::grouped() };
        let mut model = decoder(&form, "visible", |node| {
            node.input[0] = "x".to_owned();
            node.attribute.extend([int("q_num_heads", 6), int("kv_num_heads", heads)]);
            node.output[0] = "logits".to_owned();
        });
        graph_mut(&mut model).node.retain(|node| {
            !["by_token", "logits"].contains(&node.output[0].as_str()) || node.input[0] == "x"
        });
        let converted = converted(&model);
        let (read, attributes) = attention(&converted);
        assert_eq!((read, attributes), (WHOLE.map(str::to_owned), vec!["scale".to_owned()]), "{what}");
        assert_eq!(count(&converted.model, "Expand"), 0, "{what}");
    }
}

/// A decoder of single tokens needs no mask. Every other one needs it, because a token would see those after it.
#[test]
fn a_mask_may_be_absent_if_steps_have_one_token() {
    let mut model = decoder(&Form::grouped(), "", as_exported);
    assert_refused!(convert(&model, SLOTS), ConvertRefusal::Visibility { hidden: false, .. });
    fix_dim(&mut model, "tokens", 1);
    let graph = graph_mut(&mut model);
    graph.input.retain(|input| input.name.as_deref() != Some("attention_mask"));
    // Nothing may read the mask that was dropped.
    let used: BTreeSet<_> = graph.node.iter().flat_map(|node| node.input.clone()).collect();
    graph.node.retain(|node| used.contains(&node.output[0]) || node.output[0] == "logits");
    let masks = graph.node.iter().position(|node| node.input.contains(&"attention_mask".to_owned())).unwrap();
    graph.node.drain(masks..=masks + 1);
    graph.node.retain(|node| !["visible", "bias"].contains(&node.output[0].as_str()));
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
const WINDOWED: &str = "seen = And(visible, Greater(slots, Sub(column, [4]))); $";

#[test]
fn windows_become_rings() {
    let windows = WindowedCaches::Ring { chunk: Some(2), rewind: 0 };
    let with_rings = |model: &Model| convert(model, ConvertOptions::new(SLOTS).windowed(windows)).unwrap();
    let form = Form { queries: WINDOWED, ..Form::grouped() };
    let ring = with_rings(&decoder(&form, "seen", as_exported));
    assert_eq!(attention(&ring).0[..2], WHOLE[..2]);
    assert_eq!(rings(&ring), [(4, 2)]);
    assert_eq!(ring.report.caches.windows, [CacheWindow { past: "past.k".to_owned(), window: Some(4) }]);
    // Another node reads the caches, which might be slot by slot.
    let linear = with_rings(&decoder(&Form { repeat: TILED_HEADS, ..form }, "seen", as_exported));
    let reason = LinearReason::Reader;
    assert_eq!(linear.report.caches.linear_windows, [LinearWindow { window: 4, attentions: 1, reason }]);
    assert!(linear.report.caches.rings.is_empty());
}

#[test]
fn layers_of_an_export_have_their_own_windows() {
    let model = load("decoders/torch-2.15-gemma3");
    let converted = convert(&model, 64).unwrap();
    assert_eq!((counts(&converted), rings(&converted)), ((2, 2, 0), vec![(4, 2)]));
    assert_eq!(["Expand", "TensorScatter"].map(|op_type| count(&converted.model, op_type)), [0, 4]);
}

/// Returns the window of each size of rings, and the number of caches.
fn rings(converted: &Converted) -> Vec<(usize, usize)> {
    converted.report.caches.rings.iter().map(|(ring, caches)| (ring.window, *caches)).collect()
}

/// The node reads what is computed from the caches, as it did before.
#[test]
fn keys_and_values_that_are_no_whole_cache_stay() {
    let wide = "Cast($) {to=float}";
    let mut widened = decoder(
        &Form { element: Float16, repeat: wide, queries: wide, ..Form::plain() },
        "visible",
        as_exported,
    );
    declare(&mut widened, "logits: float[batch, tokens, 24]");
    let other = |form: Form<'_>, mask| decoder(&form, mask, as_exported);
    for (what, model) in [
        ("in another order", other(Form { repeat: TILED_HEADS, ..Form::grouped() }, "visible")),
        ("cast", widened),
        ("scaled", other(Form { repeat: "Mul($, 0.5)", ..Form::plain() }, "bias")),
        // At other lengths the factor may be another one.
        ("multiplied by 1", other(Form { repeat: "Mul($, 1.0)", ..Form::plain() }, "bias")),
        ("scaled values", other(Form { values: "Mul($, 0.5)", ..Form::plain() }, "bias")),
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
        let refusal = refusal(&decoder(&Form::grouped(), "visible", change), SLOTS);
        assert_eq!(refusal, ConvertRefusal::AttentionForm { what: expected });
    }
}
