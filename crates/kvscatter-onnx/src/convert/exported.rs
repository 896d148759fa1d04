//! An exported decoder with the facts that its conversion needs.

use super::attention::Attentions;
use super::probe::{Inputs, Probe};
use super::sites::Sites;
use super::visibility;
use crate::decoder::Decoder;
use crate::fold::Fold;
use crate::{ExternalData, Graph, Model, OnnxError};

/// An exported decoder with its inputs, its attentions, and the situations in which it is evaluated.
pub(super) struct Exported<'a, 'm> {
    pub(super) model: &'a Model,
    pub(super) graph: &'a Graph<'m>,
    pub(super) decoder: &'a Decoder<'m>,
    pub(super) max_seq: usize,
    pub(super) inputs: Inputs<'m>,
    pub(super) sites: Sites<'m>,
    pub(super) attentions: Attentions<'m>,
    pub(super) probes: Vec<Probe>,
    /// The folder of external data, which may contain small tables.
    pub(super) external: Option<ExternalData>,
}

impl<'a, 'm> Exported<'a, 'm> {
    /// Collects the facts about a decoder.
    ///
    /// # Errors
    /// Returns the errors of [`Inputs::of`], [`Inputs::check_size`], [`Sites::find`] and
    /// [`Attentions::find`].
    pub(super) fn new(
        model: &'a Model,
        graph: &'a Graph<'m>,
        decoder: &'a Decoder<'m>,
        max_seq: usize,
    ) -> Result<Self, OnnxError> {
        let inputs = Inputs::of(decoder)?;
        inputs.check_size(max_seq)?;
        let external = model.external_data()?;
        let mut fold = Fold::new(graph, external.as_ref());
        let sites = Sites::find(graph, decoder, &inputs, max_seq, &mut fold)?;
        let attentions = Attentions::find(decoder, &mut fold)?;
        let probes = visibility::probes(&inputs, max_seq);
        Ok(Self { model, graph, decoder, max_seq, inputs, sites, attentions, probes, external })
    }

    /// Checks on every probe that the masks follow the rule. Evaluation cannot prove more than this.
    pub(super) fn check_masks(&self) -> Result<(), OnnxError> {
        for probe in &self.probes {
            let checked = self.fold(probe).and_then(|mut fold| {
                visibility::check_sites(&self.sites, probe, &mut fold)?;
                self.attentions.check(probe, &mut fold)
            });
            checked.map_err(|cause| probe.capacity(cause))?;
        }
        Ok(())
    }

    /// Returns an evaluation of the decoder in this situation.
    pub(super) fn fold(&self, probe: &Probe) -> Result<Fold<'_, 'm>, OnnxError> {
        let mut fold = Fold::new(self.graph, self.external.as_ref());
        probe.feed(&self.inputs, &mut fold)?;
        Ok(fold)
    }
}
