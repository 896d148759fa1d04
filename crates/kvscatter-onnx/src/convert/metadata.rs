//! Writes the metadata of a converted model.

use super::rewriter::AddedInputs;
use crate::decoder::{Decoder, InputRole};
use crate::edit::Editor;

/// Describes the new inputs in `metadata_props`, under keys that begin with `kvscatter.`.
pub(super) fn write(max_seq: usize, decoder: &Decoder<'_>, added: &AddedInputs, editor: &mut Editor<'_>) {
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
