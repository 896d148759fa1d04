//! Writes the metadata of a converted model.

use std::collections::BTreeSet;

use super::exported::Exported;
use super::probe::{Distance, Probe};
use super::rewriter::AddedInputs;
use crate::decoder::InputRole;
use crate::edit::Editor;
use crate::proto::NodeProto;

/// The oldest ONNX Runtime with `TensorScatter`.
const WITH_SCATTER: &str = "1.25";

/// The oldest ONNX Runtime whose `Attention` caps scores before it masks them. Older versions cap the masked
/// scores, so that hidden slots count.
const WITH_CAP: &str = "1.27";

/// Describes the model in `metadata_props`, under keys that begin with `kvscatter.`.
pub(super) fn write(exported: &Exported<'_, '_>, added: &AddedInputs, editor: &mut Editor<'_>) {
    let (max_seq, decoder) = (exported.max_seq, exported.decoder);
    let is_capped = editor.nodes().iter().any(is_capped);
    let write_indices = &added.write_indices;
    let mut set = |key: &str, value: &str| editor.metadata(&format!("kvscatter.{key}"), value);
    set("version", env!("CARGO_PKG_VERSION"));
    set("max_seq", &max_seq.to_string());
    set(
        "cache_layout",
        &format!(
            "[batch, heads, {max_seq}, head size], written along axis 2; give past and present the same buffer, whose \
             contents must be finite at the start"
        ),
    );
    let pairs: Vec<_> =
        decoder.caches.iter().map(|cache| format!("{} -> {}", cache.past, cache.present)).collect();
    set("caches", &pairs.join("; "));
    if !decoder.states.is_empty() {
        let states = decoder.states.iter().map(|state| format!("{} -> {}", state.past, state.present));
        set("states", &states.collect::<Vec<_>>().join("; "));
    }
    set(
        "write_indices",
        &format!(
            "{write_indices}: int64 [batch], the slot of each sample's first new token; token i of sample b is written \
             to slot {write_indices}[b] + i, which must be below {max_seq}. Tokens that are padding on the right are \
             written too, and overwritten if the next step begins at their slot"
        ),
    );
    let mask = decoder.input(InputRole::AttentionMask).map(|mask| mask.name);
    if let Some(mask) = mask {
        set(
            "attention_mask",
            &format!(
                "{mask}: [batch, {max_seq}], 1 for every slot that holds a real token after this step, 0 for padding \
                 and for slots that are still empty"
            ),
        );
    }
    let real = mask.map(|mask| format!(" and {mask}[b, j] is not 0")).unwrap_or_default();
    set(
        "visibility",
        &format!(
            "slot j is visible to new token i of sample b if and only if j <= {write_indices}[b] + i{real}"
        ),
    );
    let windows: BTreeSet<_> = exported.rules().filter_map(|rule| rule.window).collect();
    if !windows.is_empty() {
        let windows: Vec<_> = windows.iter().map(ToString::to_string).collect();
        set(
            "windows",
            &format!(
                "{}: in a layer with a window of W, slot j is also hidden unless j > {write_indices}[b] + i - W",
                windows.join(", ")
            ),
        );
    }
    let bias = exported.rules().find_map(|rule| rule.bias.as_ref());
    if let Some(bias) = bias {
        let counted = match bias.distance {
            Distance::Slots => String::new(),
            Distance::Tokens => ", counted in real tokens".to_owned(),
        };
        set(
            "bias",
            &format!(
                "each head adds a multiple of j - ({write_indices}[b] + i) to the score of visible slot j (ALiBi){counted}"
            ),
        );
    }
    let most = |of: fn(&Probe) -> usize| exported.probes.iter().map(of).max().unwrap_or_default();
    set(
        "compared",
        &format!(
            "the exported masks and positions were evaluated and compared for batches of up to {}, steps of up to {} \
             new tokens, and lengths up to {max_seq}",
            most(|probe| probe.batch),
            most(|probe| probe.new)
        ),
    );
    set("least_onnxruntime", if is_capped { WITH_CAP } else { WITH_SCATTER });
    if let Some(nonpad) = &added.nonpad_kv_seqlen {
        set(
            "nonpad_kv_seqlen",
            &format!(
                "{nonpad}: int64 [batch], {write_indices} + the number of new tokens of this step, those that are \
                 padding on the right included"
            ),
        );
    }
}

/// Returns `true` if a node is an `Attention` that caps its scores.
fn is_capped(node: &NodeProto) -> bool {
    let is_cap = |name: Option<&str>| name == Some("softcap");
    node.op_type.as_deref() == Some("Attention")
        && node.attribute.iter().any(|it| is_cap(it.name.as_deref()) && it.f.unwrap_or_default() != 0.0)
}
