//! Tests that proofs of attention take a limited time, for honest and for hostile models.

use kvscatter::ElementType;
use kvscatter_onnx::Model;
use kvscatter_onnx::convert::{KeptReason, convert};

use super::fusion::{Nodes, op_types};
use crate::support::{int, ints, model, value};

/// A decoder of many layers with grouped heads. It has no weights.
struct Deep {
    layers: usize,
    heads: usize,
    kv_heads: usize,
    size: usize,
    /// Adds nodes on the scores of a layer.
    scores: Scores,
    /// The layer that repeats all heads in a row, so that neighbouring queries read different heads. Its nodes
    /// differ from those of other layers in two constants alone.
    tiled: Option<usize>,
}

type Scores = fn(&mut Nodes, &str, usize) -> String;

impl Deep {
    fn model(&self) -> Model {
        let Self { layers, heads, kv_heads, size, scores, tiled } = *self;
        let mut nodes = Nodes { element: ElementType::Float32, nodes: Vec::new(), initializers: Vec::new() };
        let number = |number: usize| i64::try_from(number).unwrap();
        nodes.floats("table", &[64, 1], 0.1);
        nodes.floats("low", &[], f32::MIN);
        nodes.floats("none", &[], 0.0);
        for (name, values) in [
            ("zero", &[0_i64][..]),
            ("one", &[1]),
            ("two", &[2]),
            ("last", &[-1]),
            ("first_two", &[1, 2]),
            ("shared", &[1, 1, number(heads / kv_heads), 1, 1]),
            ("times", &[1, number(heads / kv_heads), 1, 1, 1]),
            ("hidden", &[1, 1, number(heads * size)]),
            ("kv_hidden", &[1, 1, number(kv_heads * size)]),
            ("by_head", &[0, 0, number(heads), number(size)]),
            ("by_kv_head", &[0, 0, number(kv_heads), number(size)]),
            ("all_heads", &[0, number(heads), -1, number(size)]),
            ("flat", &[0, 0, number(heads * size)]),
        ] {
            nodes.ints(name, values);
        }
        nodes.called("ids", "Gather", &["table", "input_ids"]);
        nodes.called("places_of_ids", "Gather", &["table", "position_ids"]);
        nodes.called("words", "Add", &["ids", "places_of_ids"]);
        nodes.visible();
        let mut sum = nodes.add("Expand", &["words", "hidden"]);
        let rows = nodes.add("Expand", &["words", "kv_hidden"]);
        let rows = nodes.by_head(&rows, "by_kv_head");
        let mut caches = Vec::new();
        for layer in 0..layers {
            let name = |what: &str, part: &str| match layer {
                0 => format!("{what}.{part}"),
                _ => format!("{what}.{layer}.{part}"),
            };
            let [keys, values] = ["k", "v"].map(|part| {
                let present = name("present", part);
                nodes.called(&present, "Concat", &[&name("past", part), &rows]);
                nodes.attribute(int("axis", 2));
                caches.push([name("past", part), present.clone()]);
                let [axis, times] = if tiled == Some(layer) { ["one", "times"] } else { ["two", "shared"] };
                let apart = nodes.add("Unsqueeze", &[&present, axis]);
                let repeated = nodes.add("Expand", &[&apart, times]);
                nodes.add("Reshape", &[&repeated, "all_heads"])
            });
            let keys = nodes.add("Transpose", &[&keys]);
            nodes.attribute(ints("perm", &[0, 1, 3, 2]));
            let queries = nodes.by_head(&sum, "by_head");
            let scaled = nodes.number("Mul", &queries, 0.3);
            let keys = nodes.number("Mul", &keys, 0.3);
            let products = nodes.add("MatMul", &[&scaled, &keys]);
            let products = scores(&mut nodes, &products, layer);
            let masked = nodes.add("Add", &[&products, "bias"]);
            let weights = nodes.add("Softmax", &[&masked]);
            let attended = nodes.add("MatMul", &[&weights, &values]);
            let by_token = nodes.add("Transpose", &[&attended]);
            nodes.attribute(ints("perm", &[0, 2, 1, 3]));
            let flat = nodes.add("Reshape", &[&by_token, "flat"]);
            sum = nodes.add("Add", &[&sum, &flat]);
        }
        nodes.called("logits", "Identity", &[&sum]);
        let [of_kv, of_size, hidden] = [kv_heads, size, heads * size].map(|it| it.to_string());
        let cache =
            |name: &String, length| value(name, ElementType::Float32, &["batch", &of_kv, length, &of_size]);
        let mut inputs = vec![
            value("input_ids", ElementType::Int64, &["batch", "tokens"]),
            value("position_ids", ElementType::Int64, &["batch", "tokens"]),
            value("attention_mask", ElementType::Int64, &["batch", "all"]),
        ];
        inputs.extend(caches.iter().map(|[past, _]| cache(past, "past")));
        let mut outputs = vec![value("logits", ElementType::Float32, &["batch", "tokens", &hidden])];
        outputs.extend(caches.iter().map(|[_, present]| cache(present, "all")));
        let mut model = model(inputs, nodes.nodes, outputs);
        model.proto_mut().graph.get_or_insert_default().initializer = nodes.initializers;
        model
    }
}

/// A usual model asks one question or two, because its layers differ in weights alone.
#[test]
fn large_models_stay_far_below_the_limit() {
    // The scale changes with every fifth layer, so 16 proofs are needed.
    let scores: Scores = |nodes, scores, layer| nodes.number("Mul", scores, by_layer(layer / 5));
    let deep = Deep { layers: 80, heads: 128, kv_heads: 8, size: 128, scores, tiled: None };
    let converted = convert(&deep.model(), 64).unwrap();
    assert_eq!((converted.fused, converted.kept.len()), (80, 0));
}

/// Nothing is taken from the proof of another layer if a constant differs.
#[test]
fn a_layer_with_other_constants_is_examined() {
    let scores: Scores = |_, scores, _| scores.to_owned();
    for tiled in 0..3 {
        let deep = Deep { layers: 3, heads: 6, kv_heads: 3, size: 4, scores, tiled: Some(tiled) };
        let converted = convert(&deep.model(), 16).unwrap();
        let reasons: Vec<_> = converted.kept.iter().map(|kept| &kept.reason).collect();
        assert_eq!(converted.fused, 2, "{tiled}");
        assert!(matches!(*reasons, [KeptReason::Differs { .. }]), "{tiled}: {reasons:?}");
    }
}

/// Each layer has another scale and takes as much work as it may, so each needs a proof.
#[test]
fn layers_beyond_the_limit_stay() {
    let scores: Scores = |nodes, scores, layer| {
        let scores = nodes.number("Mul", scores, by_layer(layer));
        (0..40).fold(scores, |scores, _| nodes.number("Mul", &scores, 1.0))
    };
    let deep = Deep { layers: 40, heads: 1 << 14, kv_heads: 128, size: 1, scores, tiled: None };
    let converted = convert(&deep.model(), 64).unwrap();
    assert!((1..10).contains(&converted.fused), "{}", converted.fused);
    assert_eq!(converted.fused + converted.kept.len(), 40);
    assert!(converted.kept.iter().all(|kept| matches!(kept.reason, KeptReason::Unproved)));
    let softmaxes = op_types(&converted).into_iter().filter(|op_type| *op_type == "Softmax").count();
    assert_eq!(softmaxes, converted.kept.len());
}

/// Returns a factor of each layer.
#[expect(clippy::cast_precision_loss, clippy::as_conversions, reason = "layers are few")]
fn by_layer(layer: usize) -> f32 {
    1.0 + layer as f32 / 1024.0
}
