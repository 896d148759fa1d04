//! Writes the metadata of a converted model.

use std::collections::BTreeSet;

use super::exported::ExportedDecoder;
use super::probe::{Distance, Probe};
use super::probes::Padding;
use super::report::{KeptState, NarrowCaches};
use super::rewriter::StaticInputs;
use super::ring::{self, Rings};
use super::rule::{Added, Bias, Blocks, Rule};
use crate::RuntimeVersion;
use crate::decoder::{Cache, Decoder, InputRole};
use crate::proto::{ModelProto, metadata, set_metadata};

/// The end of the layout of caches of codes.
const OF_SCALES: &str = "; scales have 1 in place of the head size";

/// Describes a rewritten model in its `metadata_props`, under keys that begin with `kvscatter.`.
pub(super) fn write(
    exported: &ExportedDecoder<'_, '_>,
    inputs: &StaticInputs,
    rings: &Rings,
    least_onnxruntime: RuntimeVersion,
    model: &mut ModelProto,
) {
    let (max_seq, decoder) = (exported.max_seq, exported.decoder);
    let (mask, write_indices) = (inputs.attention_mask.as_deref(), &inputs.write_indices);
    if !rings.is_empty() {
        let sizes: Vec<_> = rings.sizes().into_keys().map(|ring| ring.to_string()).collect();
        set_metadata(model, ring::METADATA, &sizes.join("; "));
    }
    if let Some(most_tokens) = rings.most_tokens {
        set_metadata(model, ring::MOST_TOKENS, &most_tokens.to_string());
    }
    let linear = if rings.is_empty() { "" } else { "in a linear cache, " };
    let slots = match (rings.is_empty(), rings.most_tokens) {
        (true, _) => max_seq.to_string(),
        (_, None) => format!("{max_seq} or the capacity of a ring"),
        _ => "the capacity of a ring".to_owned(),
    };
    write_caches(decoder, max_seq, &slots, model);
    let mut set = |key: &str, value: &str| set_metadata(model, &format!("kvscatter.{key}"), value);
    set(
        "write_indices",
        &format!(
            "{write_indices}: int64 [batch], the position of each sample's first new token; token i of sample b has \
             position {write_indices}[b] + i, which must be below {}. It is the slot in a linear cache, and the slot of a \
             ring is this position modulo its capacity. Tokens that are padding on the right are written too, and \
             overwritten if the next step begins at their position",
            rings.most_tokens.unwrap_or(max_seq)
        ),
    );
    if let Some(mask) = mask {
        set(
            "attention_mask",
            &format!(
                "{mask}: [batch, {max_seq}], 1 for every slot that holds a real token after this step, 0 for padding \
                 and for slots that are still empty"
            ),
        );
    }
    let zeros = match exported.padding {
        Padding::Anywhere if rings.is_empty() => " (zeros between two tokens are allowed)",
        _ => "",
    };
    let real = mask.map(|mask| format!(" and {mask}[b, j] is not 0{zeros}")).unwrap_or_default();
    if rings.most_tokens.is_none() {
        set(
            "visibility",
            &format!(
                "{linear}slot j is visible to new token i of sample b if and only if j <= {write_indices}[b] + i{real}"
            ),
        );
    }
    let ids = decoder.input(InputRole::BlockIds).map(|ids| ids.name);
    if let Some(ids) = ids.filter(|_| exported.rules().any(|rule| rule.blocks.is_some())) {
        let in_window = match exported.rules().any(|rule| rule.blocks == Some(Blocks::InWindow)) {
            true => ", and is not before the window of its layer",
            false => "",
        };
        let real = mask.map(|mask| format!(" and {mask}[b, j] is not 0")).unwrap_or_default();
        set(
            "blocks",
            &format!(
                "{ids}: [batch, {max_seq}], the id of the block of the token in each slot, and -1 for text and empty \
                 slots. Slot j is also visible to a token that has its id in layers with blocks, if the id is at least \
                 0{in_window}{real}. Feed all tokens of a block in one step"
            ),
        );
    }
    let windows = [Distance::Slots, Distance::Tokens].into_iter().filter_map(|distance| {
        let windows = exported.rules().filter_map(|rule| rule.window.filter(|it| it.distance == distance));
        let sizes: BTreeSet<_> = windows.map(|window| window.size).collect();
        let sizes: Vec<_> = sizes.iter().map(ToString::to_string).collect();
        let shown = match distance {
            Distance::Slots => format!("j > {write_indices}[b] + i - W"),
            Distance::Tokens => {
                format!("fewer than W of the slots j + 1 to {write_indices}[b] + i contain real tokens")
            }
        };
        let text = || {
            let sizes = sizes.join(", ");
            format!("{sizes}: in a layer with a window of W, {linear}slot j is also hidden unless {shown}")
        };
        (!sizes.is_empty()).then(text)
    });
    let windows: Vec<_> = windows.collect();
    if !windows.is_empty() {
        set("windows", &windows.join("; "));
    }
    if !rings.is_empty() {
        let positions =
            decoder.input(InputRole::PositionIds).filter(|_| mask.is_none() && rings.most_tokens.is_some());
        let counted =
            positions.map(|positions| format!(", as {} contains it for real tokens", positions.name));
        let counted = counted.unwrap_or_default();
        set(
            "ring_rule",
            &format!(
                "a cache whose capacity is listed under rings is written with mode circular, and position p is in slot p \
                 mod capacity. Slot j is visible to the new token at position q = {write_indices}[b] + i if and only if \
                 (q - j) mod capacity <= min(n, window - 1), where n is the number of real tokens of the sample before \
                 it{counted}. A sample may be padded on the left and on the right, and not in between. A step has at most chunk \
                 tokens, padding included, and {write_indices}[b] is at most rewind below the furthest token so far"
            ),
        );
    }
    let is_counted = |distance| {
        exported.rules().any(|rule| rule.bias.as_ref().is_some_and(|bias| bias.distance == distance))
    };
    let counted = match [Distance::Slots, Distance::Tokens].map(is_counted) {
        [false, false] => None,
        [true, false] => Some(""),
        [false, true] => Some(", counted in real tokens"),
        [true, true] => Some(", counted in slots in some layers and in real tokens in others"),
    };
    let is_table = |rule: &Rule| matches!(&rule.bias, Some(Bias { added: Added::Table { .. }, .. }));
    let numbers = match exported.rules().any(is_table) {
        false => {
            format!("a multiple of j - ({write_indices}[b] + i) to the score of visible slot j (ALiBi)")
        }
        true => {
            format!("a number for the distance {write_indices}[b] + i - j to the score of visible slot j")
        }
    };
    if let Some(counted) = counted {
        set("bias", &format!("each head adds {numbers}{counted}"));
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
    set("least_onnxruntime", &least_onnxruntime.to_string());
    if let Some(nonpad) = &inputs.nonpad_kv_seqlen {
        set(
            "nonpad_kv_seqlen",
            &format!(
                "{nonpad}: int64 [batch], {write_indices} + the number of new tokens of this step, those that are \
                 padding on the right included"
            ),
        );
    }
}

/// Describes caches that got a narrower type. The metadata of a converted model already describe the other ones.
/// `pairs` are those of [`pairs`].
pub(super) fn write_narrow(pairs: &str, narrow: &NarrowCaches, model: &mut ModelProto) {
    let layout = metadata(model, "kvscatter.cache_layout").map(str::to_owned);
    let mut set = |key: &str, value: &str| set_metadata(model, &format!("kvscatter.{key}"), value);
    set("cache_type", &narrow.to_string());
    set("caches", pairs);
    if narrow.scales.is_empty() {
        return;
    }
    let scales: Vec<_> = narrow.scales.iter().map(|(codes, scale)| format!("{codes} -> {scale}")).collect();
    set("scales", &scales.join("; "));
    // Names may be written again.
    if let Some(layout) = layout.filter(|layout| !layout.ends_with(OF_SCALES)) {
        set("cache_layout", &format!("{layout}{OF_SCALES}"));
    }
}

/// Describes the layout of flat caches.
pub(super) fn write_flat(model: &mut ModelProto) {
    let Some(layout) = metadata(model, "kvscatter.cache_layout") else { return };
    let layout =
        layout.replace("[batch, heads, ", "[batch, ").replace(", head size]", ", heads * head size]");
    set_metadata(model, "kvscatter.cache_layout", &layout.replace("along axis 2", "along axis 1"));
}

/// Names each past with its present. `pairs` are those of [`pairs`].
pub(super) fn write_pairs(pairs: &str, model: &mut ModelProto) {
    set_metadata(model, "kvscatter.caches", pairs);
}

/// Returns each past of a decoder with its present.
pub(super) fn pairs(decoder: &Decoder<'_>) -> String {
    let pair = |cache: &Cache<'_>| format!("{} -> {}", cache.past, cache.present);
    decoder.caches.iter().map(pair).collect::<Vec<_>>().join("; ")
}

/// Describes the caches and states of a decoder with static caches. `slots` is the number of slots in words.
pub(super) fn write_caches(decoder: &Decoder<'_>, max_seq: usize, slots: &str, model: &mut ModelProto) {
    let mut set = |key: &str, value: &str| set_metadata(model, &format!("kvscatter.{key}"), value);
    set("version", env!("CARGO_PKG_VERSION"));
    set("max_seq", &max_seq.to_string());
    set(
        "cache_layout",
        &format!(
            "[batch, heads, {slots}, head size], written along axis 2; give past and present the same buffer, whose \
             contents must be finite at the start"
        ),
    );
    set("caches", &pairs(decoder));
    if !decoder.states.is_empty() {
        let states = decoder.states.iter().map(|state| format!("{} -> {}", state.past, state.present));
        set("states", &states.collect::<Vec<_>>().join("; "));
    }
}

/// Names the outputs with the columns of states, each with the past that they begin with.
pub(super) fn write_columns(states: &[KeptState], model: &mut ModelProto) {
    let pair = |state: &KeptState| Some(format!("{} -> {}", state.past, state.columns.as_ref()?));
    let pairs: Vec<_> = states.iter().filter_map(pair).collect();
    set_metadata(model, "kvscatter.state_columns", &pairs.join("; "));
}
