//! An exported decoder, with everything that its conversion needs to know.

use super::attention::Attentions;
use super::probe::{Inputs, Probe};
use super::sites::Sites;
use super::visibility::{self, Padding};
use crate::decoder::Decoder;
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
        let inputs = Inputs::of(decoder)?;
        inputs.check_size(max_seq)?;
        let external = model.external_data()?;
        let mut fold = Fold::new(graph, external.as_ref());
        let sites = Sites::find(graph, decoder, &inputs, max_seq, &mut fold)?;
        let attentions = Attentions::find(decoder, &mut fold)?;
        let probes = visibility::probes(&inputs, max_seq, padding);
        Ok(Self { model, graph, decoder, max_seq, inputs, sites, attentions, probes, external })
    }

    /// Finds the windows of attention, and checks on every probe that the masks follow the rule.
    pub(super) fn check_masks(&mut self) -> Result<(), OnnxError> {
        if let Some(longest) = self.probes.last() {
            // An error is left to the check of the same probe below, so that errors come in the order of the
            // probes.
            let mut fold = Fold::new(self.graph, self.external.as_ref());
            let _ = longest.feed(&self.inputs, &mut fold).and_then(|()| {
                visibility::find_windows(&mut self.sites, longest, &mut fold)?;
                self.attentions.find_windows(longest, &mut fold)
            });
        }
        for probe in &self.probes {
            let checked = self.fold(probe).and_then(|mut fold| {
                visibility::check_sites(&self.sites, probe, &mut fold)?;
                self.attentions.check(probe, &mut fold)
            });
            checked.map_err(|cause| probe.capacity(cause))?;
        }
        Ok(())
    }

    /// Returns the window of each attention operation.
    pub(super) fn windows(&self) -> impl Iterator<Item = Option<usize>> {
        self.sites.sites.iter().map(|site| site.window).chain(self.attentions.windows())
    }

    /// Creates an evaluation of the decoder on this probe.
    pub(super) fn fold(&self, probe: &Probe) -> Result<Fold<'_, 'm>, OnnxError> {
        let mut fold = Fold::new(self.graph, self.external.as_ref());
        probe.feed(&self.inputs, &mut fold)?;
        Ok(fold)
    }
}
