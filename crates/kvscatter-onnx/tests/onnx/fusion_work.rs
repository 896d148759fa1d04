//! Tests that proofs of attention take a limited time, for honest and for hostile models.

use kvscatter::ElementType;
use kvscatter_onnx::Model;
use kvscatter_onnx::convert::{KeptReason, convert};

use super::fusion::VISIBLE;
use crate::support::{Nodes, count, counts, kept_reasons, values};

/// A decoder of many layers with grouped heads. It has no weights.
struct Deep {
    layers: usize,
    heads: usize,
    kv_heads: usize,
    size: usize,
    /// Returns the text of nodes on the scores of a layer.
    scores: fn(usize) -> String,
    /// The layer that repeats all heads in a row, so that neighbouring queries read different heads. Its nodes
    /// differ from those of other layers in two constants alone.
    tiled: Option<usize>,
}

impl Deep {
    fn model(&self) -> Model {
        let Self { layers, heads, kv_heads, size, scores, tiled } = *self;
        let mut nodes = Nodes::new(ElementType::Float32);
        let (group, hidden) = (heads / kv_heads, heads * size);
        nodes.add(&format!("table = 0.1[64, 1]; low = {:?}; none = 0.0", f32::MIN));
        nodes.add("words = Add(Gather(table, input_ids), Gather(table, position_ids))");
        nodes.add(VISIBLE);
        let by_head = |value: &str, heads| {
            format!("Transpose(Reshape({value}, [0, 0, {heads}, {size}])) {{perm=[0, 2, 1, 3]}}")
        };
        let mut sum = nodes.add(&format!("Expand(words, [1, 1, {hidden}])"));
        let rows = format!("Expand(words, [1, 1, {}])", kv_heads * size);
        nodes.add(&format!("rows = {}", by_head(&rows, kv_heads)));
        let mut caches = Vec::new();
        for layer in 0..layers {
            let layer_name = if layer == 0 { String::new() } else { format!(".{layer}") };
            let [keys, values] = ["k", "v"].map(|part| {
                let [past, present] = ["past", "present"].map(|name| format!("{name}{layer_name}.{part}"));
                nodes.add(&format!("{present} = Concat({past}, rows) {{axis=2}}"));
                caches.push([past, present.clone()]);
                let (axis, times) = match tiled {
                    Some(tiled) if tiled == layer => (1, format!("[1, {group}, 1, 1, 1]")),
                    _ => (2, format!("[1, 1, {group}, 1, 1]")),
                };
                let repeated = format!("Expand(Unsqueeze({present}, [{axis}]), {times})");
                nodes.add(&format!("Reshape({repeated}, [0, {heads}, -1, {size}])"))
            });
            let keys = format!("Mul(Transpose({keys}) {{perm=[0, 1, 3, 2]}}, 0.3)");
            let products = nodes.add(&format!("MatMul(Mul({}, 0.3), {keys})", by_head(&sum, heads)));
            let products = nodes.apply(&scores(layer), &products);
            let attended = format!("MatMul(Softmax(Add({products}, bias)), {values})");
            let by_token = format!("Transpose({attended}) {{perm=[0, 2, 1, 3]}}");
            sum = nodes.add(&format!("Add({sum}, Reshape({by_token}, [0, 0, {hidden}]))"));
        }
        nodes.add(&format!("logits = Identity({sum})"));
        let cache = |name: &String, length| format!("{name}: float[batch, {kv_heads}, {length}, {size}] ");
        let pasts: String = caches.iter().map(|[past, _]| cache(past, "past")).collect();
        let presents: String = caches.iter().map(|[_, present]| cache(present, "all")).collect();
        let ids = "input_ids, position_ids: int64[batch, tokens], attention_mask: int64[batch, all]";
        nodes.model(
            values(&format!("{ids} {pasts}")),
            values(&format!("logits: float[batch, tokens, {hidden}] {presents}")),
        )
    }
}

/// A usual model asks one question or two, because its layers differ in weights alone.
#[test]
fn large_models_stay_far_below_the_limit() {
    // The scale changes with every fifth layer, so 16 proofs are needed.
    let scores = |layer| format!("Mul($, {:?})", by_layer(layer / 5));
    let deep = Deep { layers: 80, heads: 128, kv_heads: 8, size: 128, scores, tiled: None };
    let converted = convert(&deep.model(), 64).unwrap();
    assert_eq!((counts(&converted), kept_reasons(&converted).len()), ((80, 80, 80), 0));
}

/// Nothing is taken from the proof of another layer if a constant differs.
#[test]
fn a_layer_with_other_constants_is_examined() {
    let scores = |_| "$".to_owned();
    for tiled in 0..3 {
        let deep = Deep { layers: 3, heads: 6, kv_heads: 3, size: 4, scores, tiled: Some(tiled) };
        let converted = convert(&deep.model(), 16).unwrap();
        let kept = &converted.report.attention.kept;
        assert_eq!((converted.report.attention.fused, kept.len()), (2, 1), "{tiled}");
        assert!(matches!(kept[0].reason, KeptReason::Differs { .. }), "{tiled}: {kept:?}");
    }
}

/// Each layer has another scale and takes as much work as it may, so each needs a proof.
#[test]
fn layers_beyond_the_limit_stay() {
    let scores = |layer| {
        let scaled = format!("Mul($, {:?})", by_layer(layer));
        (0..40).fold(scaled, |scaled, _| format!("Mul({scaled}, 1.0)"))
    };
    let deep = Deep { layers: 40, heads: 1 << 14, kv_heads: 128, size: 1, scores, tiled: None };
    let converted = convert(&deep.model(), 64).unwrap();
    let attention = &converted.report.attention;
    assert!((1..10).contains(&attention.fused), "{}", attention.fused);
    assert_eq!(attention.fused + attention.kept.len(), 40);
    assert!(attention.kept.iter().all(|kept| matches!(kept.reason, KeptReason::Unproved)));
    assert_eq!(count(&converted.model, "Softmax"), attention.kept.len());
}

/// Returns a factor of each layer.
#[expect(clippy::cast_precision_loss, clippy::as_conversions, reason = "layers are few")]
fn by_layer(layer: usize) -> f32 {
    1.0 + layer as f32 / 1024.0
}
