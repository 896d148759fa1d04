//! The JSON document of an inspection. Sizes are bytes, and unknown values are `null`.

use kvscatter_onnx::CheckedRing;
use kvscatter_onnx::convert::{CacheWindow, ConvertOutcome, Windows};
use kvscatter_onnx::decoder::{Cache, Cost, Decoder, Hazard, Input, InputRole, TensorRtRefusal};
use kvscatter_onnx::{Dimension, NodeLabel};
use serde_json::{Value, json};

use super::facts::{Inspected, Sizes, WholeCache, total};
use super::group_query::Coverage;
use super::words::{dim, part, role};
use crate::commands::form;
use crate::json::{joined, without_null};

pub(super) fn document(inspected: &Inspected<'_>) -> Value {
    let Inspected { model, decoder, sizes, .. } = inspected;
    let inputs = decoder.inputs.iter().filter(|input| !matches!(input.role, InputRole::Past(_)));
    let input = |input: &Input<'_>| {
        json!({
            "name": input.value.name,
            "is": role(input),
            "type": input.value.element.onnx_name(),
            "shape": input.value.shape.as_deref().map(dims),
        })
    };
    let document = json!({
        "model": model,
        "batch": sizes.batch,
        "length": sizes.length,
        "capacity": sizes.capacity,
        "caches": inspected.caches.iter().map(|each| cache(each, decoder, sizes)).collect::<Value>(),
        // The cost of all caches.
        "total": cost(total(inspected.caches.iter().map(|each| each.cost(sizes)))),
        "inputs": inputs.map(input).collect::<Value>(),
        "logits": decoder.logits.as_ref().map(|logits| logits.name),
        // The branch of a merged decoder that is inspected.
        "merged": inspected.form.and_then(form::merged),
        // The inputs that have all layers.
        "stacked": inspected.form.and_then(form::stacked),
        "hazards": inspected.hazards.iter().map(hazard).collect::<Value>(),
        // The rings, once for each node that reads one.
        "rings": inspected.rings.iter().map(ring).collect::<Value>(),
        // The result of converting the growing caches, or `null` if there are none.
        "convert": inspected.advice.as_ref().map(|advice| conversion(advice, sizes.batch)),
        // The `GroupQueryAttention` nodes, if there are any, and those that kvscatter's plugin does not take.
        "group_query_nodes": inspected.group_query_nodes.as_ref().map(group_query_nodes),
        // The nodes that TensorRT refuses, if it is the target.
        "tensorrt": inspected.refusals.as_ref().map(|all| all.iter().map(refusal).collect::<Value>()),
    });
    without_null(document, &["merged", "stacked", "group_query_nodes", "tensorrt"])
}

/// Returns a cache. The bytes contain those of its scales.
fn cache(whole: &WholeCache<'_>, decoder: &Decoder<'_>, sizes: &Sizes) -> Value {
    let cache = whole.cache;
    let scales = |scales: &Cache<'_>| {
        json!({
            "past": scales.past,
            "present": scales.present,
            "type": scales.element.onnx_name(),
            "shape": dims(&scales.known_shape),
            "writer": scales.writer.map(|writer| node(&writer.label())),
        })
    };
    let document = json!({
        "past": cache.past,
        "present": cache.present,
        "style": cache.style.to_string(),
        "holds": part(cache.part),
        // The number of attention operations that read the cache, or `null` if there are too many to be counted.
        "attentions": decoder.attentions(cache),
        "type": cache.element.onnx_name(),
        "shape": dims(&cache.known_shape),
        "axis": cache.axis,
        "writer": cache.writer.map(|writer| node(&writer.label())),
        // The nodes that make another tensor of the size of the cache.
        "between": cache.between.iter().map(|between| node(&between.label())).collect::<Value>(),
        // The cache of the scales, one for each token and head, if this cache contains codes.
        "scales": whole.scales.map(scales),
    });
    joined(without_null(document, &["scales"]), cost(whole.cost(sizes)))
}

/// Returns sizes as text. A symbolic size is its name, and an unknown size is `?`.
fn dims(shape: &[Dimension<'_>]) -> Vec<String> {
    shape.iter().map(dim).collect()
}

fn cost(cost: Option<Cost>) -> Value {
    json!({
        "bytes_per_token": cost.map(|cost| cost.per_token),
        "bytes": cost.map(|cost| cost.size),
        "copied_per_step": cost.and_then(|cost| cost.copied),
        "static_bytes": cost.map(|cost| cost.static_size),
        "static_copied_per_step": cost.and_then(|cost| cost.copied_static),
    })
}

fn hazard(hazard: &Hazard) -> Value {
    json!({
        "kind": hazard.kind(),
        "cache": hazard.cache(),
        "node": hazard.node().map(node),
        "message": hazard.to_string(),
    })
}

/// Returns the sizes for which a ring is sound. They are `null` if there is a hazard, whose kind is the last field.
fn ring(ring: &CheckedRing) -> Value {
    let size = ring.outcome.as_ref().ok();
    json!({
        "cache": ring.past,
        "reader": ring.reader.as_ref().map(node),
        "capacity": size.map(|size| size.capacity),
        "window": size.map(|size| size.window),
        "chunk": size.map(|size| size.chunk),
        "rewind": size.map(|size| size.rewind),
        "hazard": ring.outcome.as_ref().err().map(Hazard::kind),
    })
}

fn conversion(advice: &ConvertOutcome, batch: usize) -> Value {
    let none = Windows::default();
    let (max_seq, refused, windows) = match advice {
        ConvertOutcome::Convert { max_seq, windows } => (max_seq, None, windows),
        ConvertOutcome::Refused { max_seq, cause, .. } => (max_seq, Some(cause.to_string()), &none),
    };
    let of_batch = |bytes: Option<u64>| bytes?.checked_mul(u64::try_from(batch).ok()?);
    // The window of an attention is `null` if a token sees all tokens. It is named by the past with the keys.
    let window = |each: &CacheWindow| json!({"cache": each.past, "window": each.window});
    json!({
        "max_seq": max_seq,
        // The reason why `convert` refuses the model, or `null` if it succeeds.
        "refused": refused,
        "windows": windows.caches.iter().map(window).collect::<Value>(),
        // The bytes of all caches with `max_seq` slots of each sample, linear and with rings. They are `null` if a
        // size is open, and the second one also if there is no ring.
        "linear_bytes": of_batch(windows.linear_bytes),
        "ring_bytes": of_batch(windows.ring_bytes),
    })
}

fn group_query_nodes(of_model: &Coverage) -> Value {
    let left =
        of_model.left.iter().map(|(label, why)| json!({"node": node(label), "message": why.to_string()}));
    json!({"nodes": of_model.nodes, "in_plugin": of_model.in_plugin(), "left": left.collect::<Value>()})
}

fn refusal(refusal: &TensorRtRefusal) -> Value {
    json!({"node": node(&refusal.node), "message": refusal.to_string()})
}

fn node(node: &NodeLabel) -> Value {
    json!({"index": node.index, "name": node.name, "operator": node.op_type})
}
