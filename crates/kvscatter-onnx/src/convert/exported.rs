//! An exported decoder, with everything that its conversion needs to know.

use std::collections::BTreeSet;
use std::rc::Rc;

use super::attention::{
    AttentionNode, AttentionSites, Attentions, IDIOMS, Mask, Site, WholeCaches, shape_probe,
};
use super::masks;
use super::probe::{Inputs, Probe};
use super::probes::{self, Padding};
use super::refusal::ConvertRefusal;
use super::rule::{CacheWindow, CandidateRules, Rule};
use super::tables::{self, ShortTable};
use crate::decoder::{Cache, Decoder, Input, InputRole};
use crate::fold::{Fold, Value, Values};
use crate::{ExternalData, Graph, Model, OnnxError};

/// A number of slots that no other axis is likely to have as its size.
const MANY: usize = 1009;

/// An exported decoder with its inputs, its attention operations and its probes.
pub(super) struct ExportedDecoder<'a, 'm> {
    pub(super) model: &'a Model,
    pub(super) graph: &'a Graph<'m>,
    pub(super) decoder: &'a Decoder<'m>,
    pub(super) max_seq: usize,
    pub(super) inputs: Inputs<'m>,
    pub(super) sites: AttentionSites<'m>,
    pub(super) attentions: Attentions<'m>,
    pub(super) probes: Vec<Probe>,
    pub(super) padding: Padding,
    /// The folder of external data. Tables that must be evaluated may be stored there.
    pub(super) external: Option<Rc<ExternalData>>,
}

/// An evaluation of the exported decoder on one probe. Its values are computed once for all comparisons.
#[derive(Debug)]
pub(super) struct Lane<'m> {
    pub(super) probe: Probe,
    pub(super) fold: Fold<'m>,
}

impl<'a, 'm> ExportedDecoder<'a, 'm> {
    /// Creates the description of a decoder.
    ///
    /// # Errors
    /// Returns an error if an input has no known meaning, if the probes would be too large, or if the decoder
    /// attends to its caches in an unknown way.
    pub(super) fn new(
        model: &'a Model,
        graph: &'a Graph<'m>,
        decoder: &'a Decoder<'m>,
        max_seq: usize,
        padding: Padding,
    ) -> Result<Self, OnnxError> {
        let has_mask = decoder.input(InputRole::AttentionMask).is_some();
        let padding = if has_mask { padding } else { Padding::Nowhere };
        let inputs = Inputs::checked(decoder, max_seq)?;
        let external = model.shared_external_data()?;
        let find = |most| {
            let probe = shape_probe(decoder, &inputs, most);
            let mut fold = Fold::new(graph, external.as_ref());
            let fed = probe.feed(&inputs, &mut fold);
            let sites = fed.and_then(|()| AttentionSites::find(graph, decoder, &probe, &mut fold, IDIOMS));
            let found = sites.and_then(|sites| {
                let mut attentions = Attentions::find(decoder, &mut fold)?;
                if !sites.over_concat.is_empty() || sites.merged().next().is_some() {
                    let mut whole = WholeCaches::new(graph, &inputs, external.as_ref())?;
                    attentions.find_readers(decoder, &sites.over_concat, &mut fold, &mut whole)?;
                    sites.check_order(decoder, &mut whole)?;
                }
                Ok((sites, attentions))
            });
            found.map_err(|cause| {
                let may_fit = cause.cause::<ConvertRefusal>().is_none();
                let short = short_table(graph, max_seq, &mut fold);
                (may_fit || short.is_some(), short.unwrap_or_else(|| probe.error_at_length(cause)))
            })
        };
        // Tables of positions and masks may have no row beyond `max_seq`. Fewer slots are tried then, although two axes
        // are then more likely to have the same size.
        let (sites, attentions) = match find(if inputs.fits(MANY) { MANY } else { max_seq.min(MANY) }) {
            Err((may_fit, _)) if may_fit && max_seq < MANY => find(max_seq),
            found => found,
        }
        .map_err(|(_, error)| error)?;
        let probes = probes::probes(&inputs, max_seq, padding, 1, &BTreeSet::new());
        Ok(Self { model, graph, decoder, max_seq, inputs, sites, attentions, probes, padding, external })
    }

    /// Finds the rule of each attention operation, and checks on every probe that its masks follow the rule. Returns
    /// the probes with the evaluations of the decoder on them.
    pub(super) fn check_masks(&mut self) -> Result<Vec<Lane<'m>>, OnnxError> {
        let checked = self.checked_masks();
        checked.map_err(|error| self.naming_input(error))
    }

    /// Names the input without a role from which a mask is computed, if that is why the mask is not known. Names the
    /// input with the ids of blocks if a mask that is computed from it follows no rule.
    fn naming_input(&self, error: OnnxError) -> OnnxError {
        let role = match error.cause() {
            Some(ConvertRefusal::MaskUnknown) => InputRole::Other,
            Some(ConvertRefusal::Visibility { .. }) => InputRole::BlockIds,
            _ => return error,
        };
        let OnnxError::InNode { node, .. } = &error else { return error };
        let of_sites = self.sites.sites.iter().flat_map(Site::masks);
        let of_sites = of_sites.filter(|mask| mask.node.index() == node.index).filter_map(Mask::value);
        let nodes = self.attentions.nodes.iter().filter(|attention| attention.node.index() == node.index);
        let sources = self.decoder.sources(of_sites.chain(nodes.filter_map(AttentionNode::mask)));
        let is_source = |input: &&Input<'_>| input.role == role && sources.contains(input.value.name);
        let Some(input) = self.decoder.inputs.iter().find(is_source) else { return error };
        let input = input.value.name.to_owned();
        let refusal = match error.cause() {
            Some(&ConvertRefusal::Visibility { position, slot, hidden, .. }) => {
                ConvertRefusal::MaskBlocks { input, position, slot, hidden }
            }
            _ => ConvertRefusal::MaskInput { input },
        };
        error.caused_by(refusal)
    }

    fn checked_masks(&mut self) -> Result<Vec<Lane<'m>>, OnnxError> {
        if let Some(longest) = self.probes.last() {
            let mut fold = Fold::new(self.graph, self.external.as_ref());
            longest.feed(&self.inputs, &mut fold)?;
            let found = masks::find_rules(self.sites.sites.iter_mut(), longest, &mut fold);
            let found =
                found.and_then(|()| masks::find_rules(self.attentions.nodes.iter_mut(), longest, &mut fold));
            found.map_err(|cause| {
                short_table(self.graph, self.max_seq, &mut fold)
                    .unwrap_or_else(|| longest.error_at_length(cause))
            })?;
        }
        let heads = self.rules().map(Rule::biased_heads).max().unwrap_or(1);
        let windows = self.rules().filter_map(|rule| Some(rule.window?.size)).collect();
        self.probes = probes::probes(&self.inputs, self.max_seq, self.padding, heads, &windows);
        // Exporters count slots or real tokens. Padding between two tokens shows which.
        if self.padding == Padding::Anywhere {
            self.rules_mut().for_each(CandidateRules::add_token_counting);
        }
        if self.inputs.have_blocks() {
            self.rules_mut().for_each(CandidateRules::add_blocks);
        }
        let Self { graph, external, inputs, max_seq, probes, sites, attentions, .. } = self;
        let mut lanes = Vec::new();
        for probe in &*probes {
            let mut fold = Fold::new(graph, external.as_ref());
            let fed = probe.feed(inputs, &mut fold);
            fed.and_then(|()| masks::check_neutral(&sites.neutral, &mut fold))
                .and_then(|()| masks::check(sites.sites.iter_mut(), probe, &mut fold))
                .and_then(|()| masks::check(attentions.nodes.iter_mut(), probe, &mut fold))
                .map_err(|cause| {
                    short_table(graph, *max_seq, &mut fold).unwrap_or_else(|| probe.error_at_length(cause))
                })?;
            lanes.push(Lane { probe: probe.clone(), fold });
        }
        Ok(lanes)
    }

    /// Checks that all tables of positions have rows for the longest text.
    ///
    /// # Errors
    /// Returns [`ConvertRefusal::Table`], wrapped with the node that reads the table.
    pub(super) fn check_tables(&self, lanes: &mut [Lane<'m>]) -> Result<(), OnnxError> {
        let Some(longest) = lanes.last_mut() else { return Ok(()) };
        let mut short = short_table(self.graph, self.max_seq, &mut longest.fold);
        // Positions may count the ids that are not padding, and at most one of two ids is.
        for id in [0, 1] {
            if short.is_none() {
                let mut fold = Fold::new(self.graph, self.external.as_ref());
                longest.probe.feed(&self.inputs, &mut fold)?;
                self.feed_ids(id, &mut fold)?;
                short = short_table(self.graph, self.max_seq, &mut fold);
            }
        }
        short.map_or(Ok(()), Err)
    }

    /// Makes this the id of all tokens of a step that was fed to the fold.
    fn feed_ids(&self, id: i64, fold: &mut Fold<'m>) -> Result<(), OnnxError> {
        let Some(ids) = self.decoder.input(InputRole::TokenIds) else { return Ok(()) };
        let Value { element, shape, .. } = fold.value(ids.name)?.clone();
        let data = Values::Ints(vec![id; shape.iter().product()]);
        fold.set(ids.name, Value { element, shape, data: Some(data) })
    }

    /// Returns the rule of each attention operation.
    pub(super) fn rules(&self) -> impl Iterator<Item = &Rule> {
        self.sites.sites.iter().map(Site::rule).chain(self.attentions.rules())
    }

    /// Returns the window of each attention operation, with the past of the cache that has its keys. Equal ones are
    /// returned once, in the order of the caches.
    pub(super) fn windows(&self) -> Vec<CacheWindow> {
        let mut windows: BTreeSet<(&str, Option<usize>)> = BTreeSet::new();
        let size = |rule: &Rule| Some(rule.window?.size);
        windows.extend(self.sites.sites.iter().map(|site| (site.past(), size(site.rule()))));
        windows.extend(self.attentions.by_past().map(|(past, rule)| (past, size(rule))));
        let of_cache = |cache: &Cache<'m>| {
            let of_past = windows.range((cache.past, None)..).take_while(|(past, _)| *past == cache.past);
            of_past.map(|&(past, window)| CacheWindow { past: past.to_owned(), window }).collect::<Vec<_>>()
        };
        self.decoder.caches.iter().flat_map(of_cache).collect()
    }

    fn rules_mut(&mut self) -> impl Iterator<Item = &mut CandidateRules> {
        self.sites.sites.iter_mut().map(|site| &mut site.rules).chain(self.attentions.rules_mut())
    }
}

/// Returns the refusal of a table that has no row for a position, if there is one in this evaluation.
fn short_table<'m>(graph: &Graph<'m>, max_seq: usize, fold: &mut Fold<'m>) -> Option<OnnxError> {
    let ShortTable { node, table, rows } = tables::first_short_table(graph, fold)?;
    Some(node.error(ConvertRefusal::Table { table: table.to_owned(), rows, max_seq }))
}
