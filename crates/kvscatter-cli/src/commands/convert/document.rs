//! Writes a conversion as JSON.

use kvscatter_onnx::DataFile;
use kvscatter_onnx::convert::{Converted, LinearWindow, NarrowCaches, RingSize};
use kvscatter_session::SessionError;
use serde_json::{Value, json};

use super::args::Convert;
use super::cost::{ratios, slots_per_step};
use crate::commands::{form, weights};
use crate::json::{joined, without_null};

pub(super) fn document(
    args: &Convert,
    converted: &Converted,
    refusal: Option<&SessionError>,
    files: &[DataFile],
) -> Value {
    let report = &converted.report;
    let slots = slots_per_step(report, args.max_seq);
    let ring = |(ring, caches): (&RingSize, &usize)| joined(json!(ring), json!({"caches": caches}));
    // Attention with a window that reads linear caches.
    let linear = |LinearWindow { window, attentions, reason }: &LinearWindow| json!({"window": window, "attentions": attentions, "reason": reason.to_string()});
    // The bytes are those of all caches, and `null` if the model leaves a size open.
    let cost = json!({
        "bytes_per_sample": report.caches.bytes_per_sample,
        "bytes_per_linear_sample": report.caches.linear_bytes_per_sample,
        "bytes_per_slot": report.caches.bytes_per_slot,
        "slots_per_step": slots,
        // Whether attention also takes the used length, so that an engine can stop there.
        "takes_length": report.inputs.nonpad_kv_seqlen.is_some(),
        // The most tokens of a sample, if all caches are rings.
        "most_tokens": report.caches.most_tokens,
        "slots_to_context": ratios(slots)
            .map(|(context, ratio)| json!({"context": context, "ratio": ratio}))
            .collect::<Value>(),
    });
    let document = json!({
        "model": args.model.display().to_string(),
        "output": args.output.display().to_string(),
        "encoder_output": args.encoder_output.as_ref().map(|path| path.display().to_string()),
        "max_seq": args.max_seq,
        "caches": report.caches.count,
        "rings": report.caches.rings.iter().map(ring).collect::<Value>(),
        "linear_windows": report.caches.linear_windows.iter().map(linear).collect::<Value>(),
        // The type that the caches got; absent if they have that of the export.
        "narrow": report.caches.narrow.as_ref().map(narrow_document),
        "attentions": report.attention.count,
        "attention_nodes": report.attention.nodes,
        "fused": report.attention.fused,
        // What the nodes of the exported attention do, with the number of nodes.
        "idioms": report.attention.idioms,
        "passes": report
            .passes
            .iter()
            .map(|pass| {
                json!({
                    "name": pass.name,
                    "change": pass.change,
                    "keeps": pass.claim.to_string(),
                    "proof": pass.proof,
                })
            })
            .collect::<Value>(),
        // Attention operations that could not become one node.
        "kept": report
            .attention
            .kept
            .iter()
            .map(|kept| json!({"output": kept.output, "reason": kept.reason.to_string()}))
            .collect::<Value>(),
        "write_indices": report.inputs.write_indices,
        "attention_mask": report.inputs.attention_mask,
        "nonpad_kv_seqlen": report.inputs.nonpad_kv_seqlen,
        "least_onnxruntime": report.least_onnxruntime.to_string(),
        // The branch of a merged decoder that was converted.
        "merged": report.form.as_ref().and_then(form::merged),
        // The inputs that had all layers.
        "stacked": report.form.as_ref().and_then(form::stacked),
        // States beside the caches, which are not changed.
        "states": report
            .states
            .iter()
            .map(|state| json!({"past": state.past, "present": state.present, "columns": state.columns}))
            .collect::<Value>(),
        // The inputs whose meaning the graph does not show.
        "unknown_inputs": report.inputs.unknown,
        // The reason why sessions do not run the model; `null` if they do.
        "refusal": refusal.map(ToString::to_string),
        "cost": without_null(cost, &["most_tokens"]),
        "files": weights::document(files),
    });
    without_null(document, &["encoder_output", "merged", "narrow", "stacked"])
}

fn narrow_document(narrow: &NarrowCaches) -> Value {
    json!({
        "cache_type": narrow.cache_type.to_string(),
        "caches": narrow.count,
        "description": narrow.to_string(),
        // The past of each cache of codes with that of its scales.
        "scales": narrow.scales,
        "rotated": narrow.rotated,
        "unrotated_head_sizes": narrow.unrotated,
    })
}
