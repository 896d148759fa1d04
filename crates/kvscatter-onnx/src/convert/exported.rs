//! An exported decoder, with everything that its conversion needs to know.

use std::collections::BTreeSet;

use super::attention::Attentions;
use super::probe::{Distance, Inputs, Probe};
use super::refusal::ConvertRefusal;
use super::rule::{CacheWindow, Rule};
use super::sites::Sites;
use super::tables::{self, ShortTable};
use super::visibility::{self, Padding};
use crate::decoder::{Cache, Decoder, InputRole};
use crate::fold::Fold;
use crate::{ExternalData, Graph, Model, OnnxError};

/// An exported decoder with its inputs, its attention operations and its probes.
pub(super) struct Exported<'a, 'm> {
    pub(super) model: &'a Model,
    pub(super) graph: &'a Graph<'m>,
    pub(super) decoder: &'a Decoder<'m>,
    pub(super) max_seq: usize,
    pub(super) inputs: Inputs<'m>,
    pub(super) sites: Sites<'m>,
    pub(super) attentions: Attentions<'m>,
    pub(super) probes: Vec<Probe>,
    pub(super) padding: Padding,
    /// The folder of external data. Tables that must be evaluated may be stored there.
    pub(super) external: Option<ExternalData>,
}

impl<'a, 'm> Exported<'a, 'm> {
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
        let inputs = Inputs::of(decoder)?;
        inputs.check_size(max_seq)?;
        let external = model.external_data()?;
        let mut fold = Fold::new(graph, external.as_ref());
        let sites = Sites::find(graph, decoder, &inputs, max_seq, &mut fold)?;
        let attentions = Attentions::find(decoder, &mut fold)?;
        let probes = visibility::probes(&inputs, max_seq, padding, 1);
        Ok(Self { model, graph, decoder, max_seq, inputs, sites, attentions, probes, padding, external })
    }

    /// Finds the rule of each attention operation, and checks on every probe that its masks follow the rule.
    pub(super) fn check_masks(&mut self) -> Result<(), OnnxError> {
        if let Some(longest) = self.probes.last() {
            let mut fold = Fold::new(self.graph, self.external.as_ref());
            longest.feed(&self.inputs, &mut fold)?;
            visibility::find_rules(&mut self.sites, longest, &mut fold);
            self.attentions.find_rules(longest, &mut fold);
        }
        let heads = self.rules().filter_map(|rule| Some(rule.bias.as_ref()?.slopes.len())).max();
        let Some(heads) = heads else { return self.check_rules().map_err(|(_, error)| error) };
        self.probes = visibility::probes(&self.inputs, self.max_seq, self.padding, heads);
        // Exporters count slots or real tokens. Padding between two slots shows which.
        let Err((by_slots, error)) = self.check_rules() else { return Ok(()) };
        for bias in self.rules_mut().filter_map(|rule| rule.bias.as_mut()) {
            bias.distance = Distance::Tokens;
        }
        // The better fit has the better explanation.
        self.check_rules().map_err(|(by_tokens, other)| if by_tokens > by_slots { other } else { error })
    }

    /// Checks that all tables of positions have rows for the longest text.
    ///
    /// # Errors
    /// Returns [`ConvertRefusal::Table`], wrapped with the node that reads the table.
    pub(super) fn check_tables(&self) -> Result<(), OnnxError> {
        let Some(longest) = self.probes.last() else { return Ok(()) };
        match tables::short(self.graph, &mut self.fold(longest)?) {
            None => Ok(()),
            Some(ShortTable { node, table, rows }) => {
                let (table, max_seq) = (table.to_owned(), self.max_seq);
                Err(node.error(ConvertRefusal::Table { table, rows, max_seq }))
            }
        }
    }

    /// Checks the rules on every probe. An error comes with the index of its probe.
    fn check_rules(&self) -> Result<(), (usize, OnnxError)> {
        for (index, probe) in self.probes.iter().enumerate() {
            let checked = self.fold(probe).and_then(|mut fold| {
                visibility::check_sites(&self.sites, probe, &mut fold)?;
                self.attentions.check(probe, &mut fold)
            });
            checked.map_err(|cause| (index, probe.capacity(cause)))?;
        }
        Ok(())
    }

    /// Returns the rule of each attention operation.
    pub(super) fn rules(&self) -> impl Iterator<Item = &Rule> {
        self.sites.sites.iter().map(|site| &site.rule).chain(self.attentions.rules())
    }

    /// Returns the window of each attention operation, with the past of the cache that has its keys. Equal ones are
    /// returned once, in the order of the caches.
    pub(super) fn windows(&self) -> Vec<CacheWindow> {
        let mut windows: BTreeSet<(&str, Option<usize>)> = BTreeSet::new();
        windows.extend(self.sites.sites.iter().map(|site| (site.past, site.rule.window)));
        let past = |keys| Some(self.decoder.caches.iter().find(|cache| cache.written == keys)?.past);
        let readers = self.attentions.readers();
        windows.extend(readers.filter_map(|([keys, _], rule)| Some((past(keys)?, rule.window))));
        let of_cache = |cache: &Cache<'m>| {
            let of_past = windows.range((cache.past, None)..).take_while(|(past, _)| *past == cache.past);
            of_past.map(|&(past, window)| CacheWindow { past: past.to_owned(), window }).collect::<Vec<_>>()
        };
        self.decoder.caches.iter().flat_map(of_cache).collect()
    }

    fn rules_mut(&mut self) -> impl Iterator<Item = &mut Rule> {
        self.sites.sites.iter_mut().map(|site| &mut site.rule).chain(self.attentions.rules_mut())
    }

    /// Creates an evaluation of the decoder on this probe.
    pub(super) fn fold(&self, probe: &Probe) -> Result<Fold<'_, 'm>, OnnxError> {
        let mut fold = Fold::new(self.graph, self.external.as_ref());
        probe.feed(&self.inputs, &mut fold)?;
        Ok(fold)
    }
}
