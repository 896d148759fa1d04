//! The passes of a conversion, in order.
//!
//! A merged decoder loses its other branch. The operator set is raised, caches get one form, and operators of ONNX
//! Runtime become standard ones. The exported masks are checked on probes. The graph is rewritten and compared with the
//! exported one. Then separate nodes become `Attention`, and caches with windows become rings, each followed by another
//! comparison.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use super::equivalence::Comparison;
use super::exported::{Exported, Lane};
use super::fusion::{Fusions, Operands};
use super::kept::KeptAttention;
use super::length::{self, Replacement};
use super::probe::{Inputs, Probe, SAMPLES};
use super::probes::Padding;
use super::refusal::{ConvertError, ConvertRefusal};
use super::rewriter::StaticInputs;
use super::ring::{RingSize, Rings, Slots, UNLIMITED};
use super::rule::CacheWindow;
use super::windows::{LinearReason, LinearWindow};
use super::{ConvertOptions, caches, form, metadata, rewrite, tables};
use crate::decoder::{Cache, Cost, CostAt, Decoder, InputRole, WriterStyle};
use crate::fold::{Fold, FoldError};
use crate::{Graph, Model, NodeLabel, OnnxError, RuntimeVersion, TakenBranch, merged, opset, standard};

/// A decoder with a static cache, and a summary of the conversion.
#[derive(Debug)]
pub struct Converted {
    /// The decoder. Weights that the exported model keeps in other files stay in those files, and this model
    /// refers to them.
    pub model: Model,
    /// The number of caches that became static.
    pub caches: usize,
    /// The number of bytes that one slot of one sample takes in all caches, or `None` if the model leaves a
    /// size open.
    pub bytes_per_slot: Option<u64>,
    /// The number of bytes that all caches of one sample take, or `None` if the model leaves a size open.
    pub bytes_per_sample: Option<u64>,
    /// The number of bytes that they would take if all of them were linear.
    pub linear_bytes_per_sample: Option<u64>,
    /// The number of attention operations that read the caches.
    pub attentions: usize,
    /// The number of those that are one `Attention` node each. The others consist of separate nodes.
    pub attention_nodes: usize,
    /// The number of `Attention` nodes that took the place of separate nodes.
    pub fused: usize,
    /// The attention operations that keep their nodes: those of separate nodes that could not become one node, and
    /// `Attention` nodes that still read a copy of a cache. If the [options](ConvertOptions) keep all separate nodes,
    /// the list does not contain these.
    pub kept: Vec<KeptAttention>,
    /// The name of the input with the first slot written for each sample, int64 `[batch]`.
    pub write_indices: String,
    /// The name of the input with the number of slots in use after the write, int64 `[batch]`. It is `None`
    /// if the decoder has no `Attention` nodes.
    pub nonpad_kv_seqlen: Option<String>,
    /// The oldest ONNX Runtime that computes the model correctly without kvscatter's plugin.
    pub least_onnxruntime: RuntimeVersion,
    /// The name of the input that marks the slots of real tokens, now `[batch, max_seq]`. It is `None` if the
    /// decoder has no such input.
    pub attention_mask: Option<String>,
    /// The sizes of the rings, each with the number of its caches.
    pub rings: BTreeMap<RingSize, usize>,
    /// The number of tokens that a sample can have if all caches are rings, and `None` otherwise. It is
    /// [`UNLIMITED`](super::UNLIMITED) for a decoder without a table of positions and without a mask of all tokens.
    pub most_tokens: Option<usize>,
    /// The attention with windows that reads linear caches, although the options ask for rings.
    pub linear_windows: Vec<LinearWindow>,
    /// The window of each attention operation, as far as the checked texts are longer than the window. Equal ones are
    /// listed once for each cache.
    pub windows: Vec<CacheWindow>,
    /// The branch that was converted, if the exported model is a merged decoder.
    pub branch: Option<TakenBranch>,
    /// The states that the model has beside its caches. They are not changed.
    pub states: Vec<KeptState>,
    /// The inputs whose meaning the graph does not show. They are not changed, and only a caller who knows their values
    /// can run the model.
    pub unknown_inputs: Vec<String>,
}

/// A recurrent or convolution state of a converted model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptState {
    /// The name of the input with the state before a step.
    pub past: String,
    /// The name of the output with the state after a step, which is the next step's past.
    pub present: String,
}

/// Converts a decoder to a static cache. The options are a number of slots for each sample, or
/// [`ConvertOptions`].
///
/// Of a merged decoder, the branch with a past is converted, as [`unmerge`](crate::unmerge) takes it out.
///
/// # Errors
/// * Returns the errors of [`Model::graph`] for an invalid graph.
/// * Returns [`DecoderError::MergedTwice`](crate::DecoderError::MergedTwice) if both branches of a merged decoder have
///   a past.
/// * Returns [`GraphError::OpsetTooOld`](crate::GraphError::OpsetTooOld) or
///   [`GraphError::OpsetTooNew`](crate::GraphError::OpsetTooNew) if the operator set cannot be raised.
/// * Returns [`GraphError::OperatorUnknown`](crate::GraphError::OperatorUnknown) or
///   [`GraphError::OperatorChanged`](crate::GraphError::OperatorChanged), wrapped in [`OnnxError::InNode`], if a node
///   has no equivalent in the operator set of the converted model.
/// * Returns [`NoStandardForm`](super::NoStandardForm), wrapped in [`OnnxError::InNode`], if an operator of ONNX
///   Runtime cannot be expressed in operators of ONNX.
/// * Returns [`ConvertError::Capacity`] or [`ConvertRefusal`], often wrapped in [`OnnxError::InNode`], if
///   this decoder cannot be converted.
pub fn convert(model: &Model, options: impl Into<ConvertOptions>) -> Result<Converted, OnnxError> {
    let unmerged = merged::unmerge(model)?;
    let model = unmerged.as_ref().map_or(model, |unmerged| &unmerged.model);
    let options = options.into();
    let graph = model.graph()?;
    let (standard, padding) = prepared(model, &graph, options.max_seq)?;
    let standard_graph = standard.graph()?;
    let mut converted = convert_standard(&standard, &standard_graph, options, padding)
        .map_err(|error| about(&graph, &standard_graph, error))?;
    let ConvertOptions { keep_attention, .. } = options;
    let exported = model.graph_hash()?.with_options([keep_attention, options.may_cap()]);
    exported.set(converted.model.graph_hash()?, converted.model.proto_mut());
    Ok(Converted { branch: unmerged.as_ref().map(|unmerged| unmerged.branch.clone()), ..converted })
}

/// Returns the decoder in the newest operator set, with caches of the expected form and standard operators, and
/// the padding that it supports.
///
/// # Errors
/// Returns the errors of [`convert`] for a decoder that has no such form.
pub(super) fn prepared(
    model: &Model,
    graph: &Graph<'_>,
    max_seq: usize,
) -> Result<(Model, Padding), OnnxError> {
    // The caches are checked before the operator set is raised, so that the error is about the caches.
    // Raising the operator set fails for many decoders whose caches cannot be converted in any case.
    caches::check_written(graph, &Decoder::from_graph(graph)?, max_seq)?;
    let mut raised = model.clone();
    opset::upgrade(raised.proto_mut(), opset::NEWEST)?;
    let formed = form::formed(raised)?;
    match standardized(&formed, max_seq) {
        Ok(Some(standard)) => Ok(standard),
        Ok(None) => Ok((formed, Padding::Anywhere)),
        Err(error) => Err(about(graph, &formed.graph()?, error)),
    }
}

/// Expresses operators of ONNX Runtime in operators of ONNX. Returns the model and the padding that the
/// decoder supports, or `None` if there is nothing to replace.
fn standardized(model: &Model, max_seq: usize) -> Result<Option<(Model, Padding)>, OnnxError> {
    let graph = model.graph()?;
    if !graph.nodes().iter().any(standard::replaces) {
        return Ok(None);
    }
    let decoder = Decoder::from_graph(&graph)?;
    let inputs = Inputs::from_decoder(&decoder)?;
    inputs.check_size(max_seq)?;
    let external = model.external_data()?.map(Rc::new);
    let mut fold = Fold::new(&graph, external.as_ref());
    let new = inputs.new_tokens().unwrap_or(2.min(max_seq));
    let past = 3.min(max_seq.saturating_sub(new));
    let probe = Probe::new(inputs.batch().unwrap_or(SAMPLES), past, new);
    probe.feed(&inputs, &mut fold)?;
    let mut standard = model.clone();
    standard::standardize(standard.proto_mut(), &graph, &decoder, &mut fold)?;
    let counts_tokens = |cache: &Cache<'_>| matches!(cache.style, WriterStyle::GroupQueryAttention);
    let padding = if decoder.caches.iter().any(counts_tokens) { Padding::Right } else { Padding::Anywhere };
    Ok(Some((standard, padding)))
}

/// Converts a decoder of operator set 24 with standard operators.
fn convert_standard(
    model: &Model,
    graph: &Graph<'_>,
    options: ConvertOptions,
    padding: Padding,
) -> Result<Converted, OnnxError> {
    let max_seq = options.max_seq;
    let decoder = Decoder::from_graph(graph)?;
    caches::check(graph, &decoder, max_seq)?;
    let mut exported = Exported::new(model, graph, &decoder, max_seq, padding)?;
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
        least_onnxruntime(&finished, options).map_err(|error| about(graph, &finished, error))?;
    metadata::write(&exported, &rewritten.inputs, &rings, least_onnxruntime, rewritten.model.proto_mut());
    let slots = Slots { max_seq, rings: &rings };
    Ok(Converted {
        caches: decoder.caches.len(),
        bytes_per_slot: bytes(&decoder, slots, |cost| cost.per_token),
        bytes_per_sample: bytes(&decoder, slots, |cost| cost.static_size),
        linear_bytes_per_sample: bytes(&decoder, Slots::linear(max_seq), |cost| cost.static_size),
        rings: rings.sizes(),
        most_tokens: rings.most_tokens,
        linear_windows,
        windows: exported.windows(),
        attentions: exported.sites.sites.len().saturating_add(exported.attentions.len()),
        attention_nodes: exported.attentions.len().saturating_add(fusions.fused.len()),
        fused: fusions.fused.len(),
        kept: exported.attentions.kept.into_iter().chain(fusions.kept).collect(),
        attention_mask: rewritten.inputs.attention_mask,
        states: decoder
            .states
            .iter()
            .map(|state| KeptState { past: state.past.to_owned(), present: state.present.to_owned() })
            .collect(),
        unknown_inputs: decoder
            .inputs
            .iter()
            .filter(|input| input.role == InputRole::Other)
            .map(|input| input.value.name.to_owned())
            .collect(),
        write_indices: rewritten.inputs.write_indices,
        nonpad_kv_seqlen: rewritten.inputs.nonpad_kv_seqlen,
        least_onnxruntime,
        model: rewritten.model,
        branch: None,
    })
}

/// Returns the sum of one cost of all caches of one sample, or `None` if the model leaves a size open.
fn bytes(decoder: &Decoder<'_>, slots: Slots<'_>, of: fn(&Cost) -> u64) -> Option<u64> {
    let dims = BTreeMap::new();
    decoder.caches.iter().try_fold(0_u64, |sum, cache| {
        let at = CostAt { batch: 1, length: 0, capacity: slots.capacity(cache.past), dims: &dims };
        sum.checked_add(of(&cache.cost(&at)?))
    })
}

/// A converted model, and what was replaced in it.
struct Rewritten<'m> {
    model: Model,
    inputs: StaticInputs,
    replacements: Vec<Replacement<'m>>,
}

/// Rewrites the model and compares it with the exported one, with rings where the options ask for them and a ring can
/// be used. Returns the rings, and the attention with windows that has none.
fn rewrite<'m>(
    exported: &Exported<'_, 'm>,
    lanes: &mut [Lane<'m>],
    fused: &[Operands<'m>],
    options: ConvertOptions,
) -> Result<(Rewritten<'m>, Rings, Vec<LinearWindow>), OnnxError> {
    let linear_slots = Slots::linear(exported.max_seq);
    let linear = Rewritten::new(exported, Vec::new(), fused, linear_slots)?;
    let (mut rings, mut windows) = Rings::find(exported, &linear.model.graph()?, fused, options.windowed);
    if rings.is_empty() {
        return Ok((compared(linear, exported, lanes, fused, linear_slots)?, rings, windows));
    }
    let slots = Slots { max_seq: exported.max_seq, rings: &rings };
    let with_rings = Rewritten::new(exported, Vec::new(), fused, slots)?;
    let difference = match compared(with_rings, exported, lanes, fused, slots) {
        Ok(rewritten) => {
            if slots.first_linear(exported.decoder).is_none() {
                let endless = rewritten.is_endless(exported, slots)?;
                rings.most_tokens = Some(if endless { UNLIMITED } else { exported.max_seq });
            }
            return Ok((rewritten, rings, windows));
        }
        Err(difference) => difference.to_string(),
    };
    let rewritten = compared(linear, exported, lanes, fused, linear_slots)?;
    windows.extend(rings.refused(&LinearReason::Differs { difference }));
    Ok((rewritten, Rings::default(), windows))
}

/// Compares a rewritten model with the exported one. Values that depend on the length of the past are replaced only if
/// the first comparison fails.
fn compared<'m>(
    rewritten: Rewritten<'m>,
    exported: &Exported<'_, 'm>,
    lanes: &mut [Lane<'m>],
    fused: &[Operands<'m>],
    slots: Slots<'_>,
) -> Result<Rewritten<'m>, OnnxError> {
    let Err(difference) = compare(exported, lanes, &rewritten, slots) else { return Ok(rewritten) };
    drop(rewritten);
    let replacements = length::replacements(exported.graph, lanes);
    if replacements.is_empty() {
        return Err(difference);
    }
    let replaced = Rewritten::new(exported, replacements, fused, slots)?;
    match compare(exported, lanes, &replaced, slots) {
        Ok(()) => Ok(replaced),
        // The first comparison has the reason.
        Err(error) if matches!(error.cause(), Some(FoldError::FailedBefore { .. })) => Err(difference),
        Err(error) => Err(error),
    }
}

impl<'m> Rewritten<'m> {
    fn new(
        exported: &Exported<'_, 'm>,
        replacements: Vec<Replacement<'m>>,
        fused: &[Operands<'m>],
        slots: Slots<'_>,
    ) -> Result<Self, OnnxError> {
        let mut model = exported.model.clone();
        let inputs = rewrite::rewrite(exported, &replacements, fused, slots, model.proto_mut())?;
        Ok(Self { model, inputs, replacements })
    }

    /// Returns `true` if a decoder whose caches are all rings computes a step at any position. A decoder that looks up
    /// positions in a table does not, and neither does one with a mask of all tokens.
    fn is_endless(&self, exported: &Exported<'_, '_>, slots: Slots<'_>) -> Result<bool, OnnxError> {
        let counts_slots = |it: &Replacement<'_>| matches!(it, Replacement::Total { .. });
        if self.inputs.attention_mask.is_some() || self.replacements.iter().any(counts_slots) {
            return Ok(false);
        }
        let graph = self.model.graph()?;
        let new = exported.inputs.new_tokens().unwrap_or(1);
        let probe = Probe::new(exported.inputs.batch().unwrap_or(1), UNLIMITED.saturating_sub(new), new);
        let mut fold = Fold::new(&graph, exported.external.as_ref());
        probe.feed_static(&graph, &self.inputs.write_indices, &exported.inputs, slots, false, &mut fold)?;
        let values = graph.nodes().iter().flat_map(|node| &node.proto().output);
        let mut values = values.filter(|name| !name.is_empty());
        Ok(values.all(|name| fold.known(name).is_ok()) && tables::short(&graph, &mut fold).is_none())
    }
}

/// Compares the values of both decoders on all probes that fit into the caches.
fn compare<'m>(
    exported: &Exported<'_, 'm>,
    lanes: &mut [Lane<'m>],
    converted: &Rewritten<'m>,
    slots: Slots<'_>,
) -> Result<(), OnnxError> {
    let graph = converted.model.graph()?;
    let outputs = exported.graph.nodes().iter().flat_map(|node| &node.proto().output).map(String::as_str);
    let names = outputs.chain(exported.graph.input_names()).collect();
    // A slot that is not in use may have any value in the mask. A position that is counted in the whole mask
    // shows there.
    let write_indices = &converted.inputs.write_indices;
    for Lane { probe, fold: before } in lanes.iter_mut().filter(|lane| lane.probe.new <= slots.most_rows()) {
        for unread in [false, true] {
            let mut fold = Fold::new(&graph, exported.external.as_ref());
            probe.feed_static(&graph, write_indices, &exported.inputs, slots, unread, &mut fold)?;
            let mut comparison =
                Comparison { exported: &mut *before, converted: fold, names: &names, sites: &exported.sites };
            comparison.check(&graph).map_err(|error| probe.capacity(about(exported.graph, &graph, error)))?;
        }
    }
    Ok(())
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

/// Converts an error about a node of `changed` to an error about a node of `original`, because the user has only the
/// original.
fn about(original: &Graph<'_>, changed: &Graph<'_>, mut error: OnnxError) -> OnnxError {
    let place = match error.cause_mut() {
        Some(ConvertError::Capacity { cause, .. }) => &mut **cause,
        _ => &mut error,
    };
    if let OnnxError::InNode { node, .. } = place
        && let Some(counterpart) = counterpart(original, changed, node)
    {
        **node = counterpart;
    }
    error
}

/// Returns the node of `original` that produces the same value as a node of `changed`. For a node that was added, it
/// is the node that produces the first value computed from the added one.
fn counterpart(original: &Graph<'_>, changed: &Graph<'_>, node: &NodeLabel) -> Option<NodeLabel> {
    let mut computed = BTreeSet::new();
    for next in changed.nodes().iter().skip_while(|it| it.label() != *node) {
        if !computed.is_empty() && next.reads().is_disjoint(&computed) {
            continue;
        }
        if let Some((there, _)) = next.outputs().find_map(|output| original.producer(output)) {
            return Some(there.label());
        }
        computed.extend(next.outputs());
    }
    None
}

#[cfg(test)]
mod tests {
    use super::counterpart;
    use crate::support::parsed;

    #[test]
    fn an_added_node_has_the_node_that_it_leads_to_as_its_counterpart() {
        let original = parsed("x: float[2]", "a = Neg(x); b = Abs(a); c = Exp(b)", "c: float[2]");
        let changed = "a = Neg(x); new = Relu(a); b = Abs(new); c = Exp(b)";
        let changed = parsed("x: float[2]", changed, "c: float[2]");
        let (original, changed) = (original.graph().unwrap(), changed.graph().unwrap());
        let counterpart_of =
            |at: usize| counterpart(&original, &changed, &changed.nodes()[at].label()).unwrap().op_type;
        assert_eq!([0, 1, 2, 3].map(counterpart_of), ["Neg", "Abs", "Abs", "Exp"]);
    }
}
