//! The pass that makes caches static.
//!
//! The exported masks are checked on probes. The graph is rewritten, with `Attention` nodes for separate nodes and with
//! rings for caches with windows, and compared with the exported one.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use super::equivalence::{Comparison, Correspondence};
use super::exported::{ExportedDecoder, Lane};
use super::fusion::{FusedAttention, Fusions};
use super::length::{self, LengthReplacement};
use super::options::ConvertOptions;
use super::pass::{Change, Subject, at_origin};
use super::refusal::ConvertRefusal;
use super::report::{AttentionReport, CacheReport, InputReport, KeptState, Report};
use super::rewrite::{self, Replaced};
use super::rewriter::StaticInputs;
use super::ring::{Rings, Slots, UNLIMITED};
use super::windows::{LinearReason, LinearWindow};
use super::{caches, metadata, tables};
use crate::decoder::{CachePart, Cost, CostAt, Decoder, InputRole};
use crate::edit::Origins;
use crate::fold::{Fold, FoldError};
use crate::{Graph, Model, OnnxError, RuntimeVersion};

/// Converts a decoder of the newest operator set with standard operators.
pub(super) fn make_static(subject: &Subject<'_, '_>) -> Result<Option<Change>, OnnxError> {
    let Subject { model, graph, decoder, options, padding } = *subject;
    caches::check(graph, decoder, options.max_seq)?;
    let mut exported = ExportedDecoder::new(model, graph, decoder, options.max_seq, padding)?;
    let mut lanes = exported.check_masks()?;
    exported.check_tables(&mut lanes)?;
    let fusions = match options.keep_attention {
        true => Fusions::default(),
        false => Fusions::find(&exported, &mut lanes, options)?,
    };
    let (mut rewritten, rings, linear_windows) = rewrite(&exported, &mut lanes, &fusions.fused, options)?;
    let finished = rewritten.model.graph()?;
    // Sessions find the caches of the converted model in this way.
    Decoder::from_graph(&finished)?;
    let least_onnxruntime =
        least_onnxruntime(&finished, options).map_err(|error| at_origin(error, &rewritten.origins, graph))?;
    metadata::write(&exported, &rewritten.inputs, &rings, least_onnxruntime, rewritten.model.proto_mut());
    let mut what = format!("{} caches", decoder.caches.len());
    let parts = [(rings.by_past.len(), "of them rings"), (fusions.fused.len(), "attention operations fused")];
    for (number, part) in parts.into_iter().filter(|(number, _)| *number > 0) {
        what.push_str(&format!(", {number} {part}"));
    }
    let proof = format!("masks and values in {} kinds of steps", lanes.len());
    let report = report(exported, fusions, rewritten.inputs, rings, linear_windows, least_onnxruntime);
    let change = Change::new(rewritten.model, rewritten.origins).what(what).proof(proof);
    Ok(Some(Change { report: Some(report), ..change }))
}

fn report(
    exported: ExportedDecoder<'_, '_>,
    fusions: Fusions<'_>,
    inputs: StaticInputs,
    rings: Rings,
    linear_windows: Vec<LinearWindow>,
    least_onnxruntime: RuntimeVersion,
) -> Report {
    let slots = Slots { max_seq: exported.max_seq, rings: &rings };
    let basic = basic_report(exported.decoder, slots, inputs, least_onnxruntime);
    let nodes = exported.attentions.len();
    Report {
        caches: CacheReport {
            rings: rings.sizes(),
            most_tokens: rings.most_tokens,
            linear_windows,
            windows: exported.windows(),
            ..basic.caches
        },
        attention: AttentionReport {
            count: exported.sites.sites.len().saturating_add(nodes),
            nodes: nodes.saturating_add(fusions.fused.len()),
            fused: fusions.fused.len(),
            idioms: exported.sites.idioms,
            kept: exported.attentions.kept.into_iter().chain(fusions.kept).collect(),
        },
        ..basic
    }
}

/// Returns the report of a decoder whose caches are static, and whose masks are those of the exported one.
///
/// # Errors
/// Returns the errors of [`caches::check_readers`] and [`least_onnxruntime`].
pub(super) fn report_of_static(
    graph: &Graph<'_>,
    decoder: &Decoder<'_>,
    options: ConvertOptions,
) -> Result<Report, OnnxError> {
    caches::check_readers(graph, decoder)?;
    let least_onnxruntime = least_onnxruntime(graph, options)?;
    let input = |role| decoder.input(role).map(|input| input.name.to_owned());
    let inputs = StaticInputs {
        write_indices: input(InputRole::WriteIndices).unwrap_or_default(),
        nonpad_kv_seqlen: input(InputRole::NonpadKvSeqlen),
        attention_mask: input(InputRole::AttentionMask),
    };
    let nodes = graph.nodes().iter().filter(|node| node.is("Attention")).count();
    let keys = decoder.caches.iter().filter(|cache| cache.part == CachePart::Key).count();
    let attention = AttentionReport { count: keys.max(nodes), nodes, ..AttentionReport::default() };
    let report = basic_report(decoder, Slots::linear(options.max_seq), inputs, least_onnxruntime);
    Ok(Report { attention, ..report })
}

/// Returns the part of a report that does not depend on how the caches became static.
fn basic_report(
    decoder: &Decoder<'_>,
    slots: Slots<'_>,
    inputs: StaticInputs,
    least_onnxruntime: RuntimeVersion,
) -> Report {
    let state = |past: &str, present: &str| KeptState {
        columns: None,
        past: past.to_owned(),
        present: present.to_owned(),
    };
    let unknown = decoder.inputs.iter().filter(|input| input.role == InputRole::Other);
    Report {
        caches: CacheReport {
            count: decoder.caches.len(),
            bytes_per_slot: bytes(decoder, slots, |cost| cost.per_token),
            bytes_per_sample: bytes(decoder, slots, |cost| cost.static_size),
            linear_bytes_per_sample: bytes(decoder, Slots::linear(slots.max_seq), |cost| cost.static_size),
            ..CacheReport::default()
        },
        inputs: InputReport {
            write_indices: inputs.write_indices,
            nonpad_kv_seqlen: inputs.nonpad_kv_seqlen,
            attention_mask: inputs.attention_mask,
            unknown: unknown.map(|input| input.value.name.to_owned()).collect(),
        },
        states: decoder.states.iter().map(|it| state(it.past, it.present)).collect(),
        least_onnxruntime,
        ..Report::default()
    }
}

/// Returns the sum of one cost of all caches of one sample, or `None` if the model leaves a size open.
pub(super) fn bytes(decoder: &Decoder<'_>, slots: Slots<'_>, of: fn(&Cost) -> u64) -> Option<u64> {
    let dims = BTreeMap::new();
    decoder.caches.iter().try_fold(0_u64, |sum, cache| {
        let at = CostAt { batch: 1, length: 0, capacity: slots.capacity(cache.past), dims: &dims };
        sum.checked_add(of(&cache.cost(&at)?))
    })
}

/// A converted model, and what was replaced in it.
struct Rewritten<'m> {
    model: Model,
    /// Where the nodes of its graph come from.
    origins: Origins,
    inputs: StaticInputs,
    replaced: Replaced<'m>,
    replacements: Vec<LengthReplacement<'m>>,
}

/// Rewrites the model and compares it with the exported one, with rings where the options ask for them and a ring can
/// be used. Returns the rings, and the attention with windows that has none.
fn rewrite<'m>(
    exported: &ExportedDecoder<'_, 'm>,
    lanes: &mut [Lane<'m>],
    fused: &[FusedAttention<'m>],
    options: ConvertOptions,
) -> Result<(Rewritten<'m>, Rings, Vec<LinearWindow>), OnnxError> {
    let linear_slots = Slots::linear(exported.max_seq);
    let linear = Rewritten::new(exported, Vec::new(), fused, linear_slots)?;
    let (mut rings, mut windows) = Rings::find(exported, &linear.model.graph()?, fused, options.windowed);
    if rings.is_empty() {
        return Ok((compared(linear, exported, lanes, fused, (linear_slots, ALL))?, rings, windows));
    }
    let slots = Slots { max_seq: exported.max_seq, rings: &rings };
    // No ring takes the largest steps. They are compared with linear caches.
    let (small, large) = (0..=slots.most_rows(), slots.most_rows().saturating_add(1)..=usize::MAX);
    let linear = compared(linear, exported, lanes, fused, (linear_slots, large))?;
    let with_rings = Rewritten::new(exported, linear.replacements.clone(), fused, slots)?;
    let difference = match compared(with_rings, exported, lanes, fused, (slots, small.clone())) {
        Ok(rewritten) => {
            if slots.first_linear(exported.decoder).is_none() {
                let endless = rewritten.is_endless(exported, slots)?;
                rings.most_tokens = Some(if endless { UNLIMITED } else { exported.max_seq });
            }
            return Ok((rewritten, rings, windows));
        }
        Err(difference) => difference.to_string(),
    };
    let rewritten = compared(linear, exported, lanes, fused, (linear_slots, small))?;
    windows.extend(rings.refused(&LinearReason::Differs { difference }));
    Ok((rewritten, Rings::default(), windows))
}

/// The numbers of new tokens of all steps.
const ALL: RangeInclusive<usize> = 0..=usize::MAX;

/// Compares a rewritten model with the exported one, in steps of these numbers of new tokens. Values that depend on the
/// length of the past are replaced only if the first comparison fails.
fn compared<'m>(
    rewritten: Rewritten<'m>,
    exported: &ExportedDecoder<'_, 'm>,
    lanes: &mut [Lane<'m>],
    fused: &[FusedAttention<'m>],
    (slots, steps): (Slots<'_>, RangeInclusive<usize>),
) -> Result<Rewritten<'m>, OnnxError> {
    let compare =
        |lanes: &mut [Lane<'m>], rewritten: &_| compare(exported, lanes, rewritten, (slots, &steps));
    let Err(difference) = compare(lanes, &rewritten) else { return Ok(rewritten) };
    if !rewritten.replacements.is_empty() {
        return Err(difference);
    }
    drop(rewritten);
    let replacements = length::replacements(exported.graph, lanes);
    if replacements.is_empty() {
        return Err(difference);
    }
    let replaced = Rewritten::new(exported, replacements, fused, slots)?;
    match compare(lanes, &replaced) {
        Ok(()) => Ok(replaced),
        // The first comparison has the reason.
        Err(error) if matches!(error.cause(), Some(FoldError::FailedBefore { .. })) => Err(difference),
        Err(error) => Err(error),
    }
}

impl<'m> Rewritten<'m> {
    fn new(
        exported: &ExportedDecoder<'_, 'm>,
        replacements: Vec<LengthReplacement<'m>>,
        fused: &[FusedAttention<'m>],
        slots: Slots<'_>,
    ) -> Result<Self, OnnxError> {
        let mut model = exported.model.clone();
        let (inputs, origins, replaced) =
            rewrite::rewrite(exported, &replacements, fused, slots, model.proto_mut())?;
        Ok(Self { model, origins, inputs, replaced, replacements })
    }

    /// Returns `true` if a decoder whose caches are all rings computes a step at any position. A decoder that looks up
    /// positions in a table does not, and neither does one with a mask of all tokens.
    fn is_endless(&self, exported: &ExportedDecoder<'_, '_>, slots: Slots<'_>) -> Result<bool, OnnxError> {
        let counts_slots = |it: &LengthReplacement<'_>| matches!(it, LengthReplacement::Total { .. });
        if self.inputs.attention_mask.is_some() || self.replacements.iter().any(counts_slots) {
            return Ok(false);
        }
        let graph = self.model.graph()?;
        let probe = exported.inputs.probe(1, 0, 1).ending(UNLIMITED);
        let mut fold = Fold::new(&graph, exported.external.as_ref());
        probe.feed_static(&graph, &self.inputs.write_indices, &exported.inputs, slots, &mut fold)?;
        let values = graph.nodes().iter().flat_map(|node| &node.proto().output);
        let mut values = values.filter(|name| !name.is_empty());
        Ok(values.all(|name| fold.known(name).is_ok())
            && tables::first_short_table(&graph, &mut fold).is_none())
    }
}

/// Compares the values of both decoders in steps of these numbers of new tokens.
fn compare<'m>(
    exported: &ExportedDecoder<'_, 'm>,
    lanes: &mut [Lane<'m>],
    converted: &Rewritten<'m>,
    (slots, steps): (Slots<'_>, &RangeInclusive<usize>),
) -> Result<(), OnnxError> {
    let graph = converted.model.graph()?;
    let correspondence = |name| {
        if let Some(exported) = converted.replaced.get(name) {
            Correspondence::Exported(exported)
        } else if exported.sites.has_slots(name) {
            Correspondence::WithSlots(name)
        } else if exported.graph.name(name).is_some() && exported.graph.initializer(name).is_none() {
            Correspondence::Exported(name)
        } else {
            // Both graphs have the initializers. The other new values are caches, scores and masks.
            Correspondence::NotCompared
        }
    };
    let (write_indices, origins) = (&converted.inputs.write_indices, &converted.origins);
    for Lane { probe, fold: before } in lanes.iter_mut().filter(|lane| steps.contains(&lane.probe.new)) {
        let mut fold = Fold::new(&graph, exported.external.as_ref());
        probe.feed_static(&graph, write_indices, &exported.inputs, slots, &mut fold)?;
        let (changed, correspondence) = (&mut fold, &correspondence);
        let mut comparison =
            Comparison { exported: before, changed, correspondence, sample: None, may_be_open: false };
        let place = |error| probe.error_at_length(at_origin(error, origins, exported.graph));
        comparison.check(&graph).map_err(place)?;
        // A slot that is not in use may have any value in the mask. A position that is counted in the whole mask
        // shows there.
        if probe.feed_unread(&graph, &exported.inputs, slots, comparison.changed)? {
            comparison.check(&graph).map_err(place)?;
        }
        if let Some(ids) = probe.feed_new_blocks(&graph, &exported.inputs, slots, comparison.changed)? {
            comparison.check(&graph).map_err(|error| place(of_cached_blocks(error, ids)))?;
        }
    }
    Ok(())
}

/// Names the input with the ids of blocks in an error about a value that differs.
fn of_cached_blocks(error: OnnxError, input: &str) -> OnnxError {
    let Some(ConvertRefusal::LengthDependence { value }) = error.cause() else { return error };
    let refusal = ConvertRefusal::CachedBlocks { input: input.to_owned(), value: value.clone() };
    error.caused_by(refusal)
}

/// Returns the oldest ONNX Runtime that computes a converted graph correctly without kvscatter's plugin.
///
/// # Errors
/// Returns [`ConvertRefusal::OnnxRuntime`] if the options name an older one, wrapped with the node.
fn least_onnxruntime(graph: &Graph<'_>, options: ConvertOptions) -> Result<RuntimeVersion, OnnxError> {
    let capped = graph.nodes().iter().find(|node| node.caps_scores());
    let least = if capped.is_some() { RuntimeVersion::WITH_CAP } else { RuntimeVersion::WITH_SCATTER };
    let Some(oldest) = options.onnxruntime.filter(|&oldest| oldest < least) else { return Ok(least) };
    let refusal = ConvertRefusal::OnnxRuntime { oldest, least };
    Err(match capped {
        Some(node) => node.error(refusal),
        None => refusal.into(),
    })
}
