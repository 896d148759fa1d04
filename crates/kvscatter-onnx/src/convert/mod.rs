//! Decoders whose cache grows, made into decoders whose cache has a fixed size and is written in place.
//!
//! Each past that a node copies on every step (`Concat`, or `Attention` with past inputs) becomes a static cache
//! `[batch, heads, max_seq, head size]` that `TensorScatter` writes at `write_indices`. What the exported masks hide is
//! computed for a handful of situations and compared with the rule
//!
//! > slot `j` is visible to new token `i` of sample `b` iff `j <= write_indices[b] + i` and `attention_mask[b, j]`
//!
//! and only a decoder that keeps it is converted: its masks are exchanged for this one, computed once a step. Then both
//! graphs are evaluated on the same situations, and whatever else leads into the arithmetic must be the same.
//! Structure decides, never a name. Weights are not touched, and those in other files not even read.

mod advice;
mod attention;
mod caches;
mod equivalence;
mod length;
mod metadata;
mod probe;
mod refusal;
mod rewrite;
mod sites;
mod visibility;

use std::collections::BTreeMap;

use crate::decoder::{At, Decoder, Role};
use crate::fold::Fold;
use crate::graph::Graph;
use crate::{Error, ExternalData, Model, opset};
pub use advice::Advice;
use attention::Attentions;
use equivalence::Comparison;
use length::Replacement;
use probe::{Inputs, Probe};
pub use refusal::Refusal;
use rewrite::Rewritten;
use sites::Sites;

/// The operator set of a converted model: the first with `TensorScatter`.
const OPSET: i64 = 24;

/// A decoder with a static cache, and what was done to get there.
#[derive(Debug)]
pub struct Converted {
    /// The decoder. It has no weights of its own where the exported one keeps them in other files.
    pub model: Model,
    /// How many caches became static.
    pub caches: usize,
    /// Bytes that one slot of one sample takes in all caches; `None` if a size is open.
    pub bytes_per_slot: Option<u64>,
    /// How many attentions read them.
    pub attentions: usize,
    /// The input that says where each sample is written: int64 `[batch]`.
    pub write_indices: String,
    /// The input that says how many slots are in use afterwards: int64 `[batch]`. Only beside `Attention`.
    pub nonpad_kv_seqlen: Option<String>,
    /// The input that says which slots hold real tokens, now `[batch, max_seq]`; `None` if the decoder has none.
    pub attention_mask: Option<String>,
}

/// Gives a decoder a static cache of `max_seq` slots for each sample.
///
/// # Errors
/// Those of [`Model::graph`]; [`Error::OpsetTooOld`], [`Error::OpsetTooNew`] and, within [`Error::InNode`],
/// [`Error::OperatorUnknown`] and [`Error::OperatorChanged`] if the operator set cannot be raised; [`Error::Capacity`]
/// and [`Error::Convert`], often within [`Error::InNode`], if this decoder cannot be converted.
pub fn convert(model: &Model, max_seq: usize) -> Result<Converted, Error> {
    // Before the operator set is raised, which many a decoder that is refused anyway would not survive.
    let graph = model.graph()?;
    caches::check(&graph, &Decoder::of(&graph)?, max_seq)?;
    let mut raised = model.clone();
    opset::upgrade(raised.proto_mut(), OPSET)?;
    let raised_graph = raised.graph()?;
    convert_raised(&raised, &raised_graph, max_seq)
        .map_err(|error| refusal::about(&graph, &raised_graph, error))
}

/// Converts a decoder of operator set 24.
fn convert_raised(model: &Model, graph: &Graph<'_>, max_seq: usize) -> Result<Converted, Error> {
    let decoder = Decoder::of(graph)?;
    let dims = BTreeMap::new();
    let at = At { batch: 1, length: 0, capacity: max_seq, dims: &dims };
    let mut costs = decoder.caches.iter().map(|cache| cache.cost(&at));
    let bytes_per_slot = costs.try_fold(0_u64, |sum, cost| sum.checked_add(cost?.per_token));
    let exported = Exported::new(model, graph, &decoder, max_seq)?;
    exported.check_masks()?;
    let (converted, rewritten) = exported.rewrite()?;
    Ok(Converted {
        caches: decoder.caches.len(),
        bytes_per_slot,
        attentions: exported.sites.sites.len().saturating_add(exported.attentions.len()),
        attention_mask: decoder.input(Role::AttentionMask).map(|mask| mask.name.to_owned()),
        write_indices: rewritten.write_indices,
        nonpad_kv_seqlen: rewritten.nonpad_kv_seqlen,
        model: converted,
    })
}

/// A decoder as it was exported, understood.
struct Exported<'a, 'm> {
    model: &'a Model,
    graph: &'a Graph<'m>,
    decoder: &'a Decoder<'m>,
    max_seq: usize,
    inputs: Inputs<'m>,
    sites: Sites<'m>,
    attentions: Attentions<'m>,
    probes: Vec<Probe>,
    /// Where small tables may lie.
    external: Option<ExternalData>,
}

impl<'a, 'm> Exported<'a, 'm> {
    fn new(
        model: &'a Model,
        graph: &'a Graph<'m>,
        decoder: &'a Decoder<'m>,
        max_seq: usize,
    ) -> Result<Self, Error> {
        let inputs = Inputs::of(decoder)?;
        inputs.check_size(max_seq)?;
        let external = model.external_data()?;
        let mut fold = Fold::new(graph, external.as_ref());
        let sites = Sites::find(graph, decoder, &inputs, max_seq, &mut fold)?;
        let attentions = Attentions::find(decoder, &mut fold)?;
        let probes = visibility::probes(&inputs, max_seq);
        Ok(Self { model, graph, decoder, max_seq, inputs, sites, attentions, probes, external })
    }

    /// Proves, as far as computing shows it, that the masks keep the rule.
    fn check_masks(&self) -> Result<(), Error> {
        for probe in &self.probes {
            let checked = self.fold(probe).and_then(|mut fold| {
                visibility::check_sites(&self.sites, probe, &mut fold)?;
                self.attentions.check(probe, &mut fold)
            });
            checked.map_err(|cause| probe.capacity(cause))?;
        }
        Ok(())
    }

    /// The converted model, compared with the exported one. What depends on the length of the past is replaced only
    /// where something does.
    fn rewrite(&self) -> Result<(Model, Rewritten), Error> {
        let plain = self.rewrite_with(&[])?;
        let Err(difference) = self.compare(&plain.0) else { return Ok(plain) };
        let replacements = length::replacements(self.graph, &self.probes, |probe| self.fold(probe))?;
        if replacements.is_empty() {
            return Err(difference);
        }
        let replaced = self.rewrite_with(&replacements)?;
        self.compare(&replaced.0)?;
        Ok(replaced)
    }

    fn rewrite_with(&self, replacements: &[Replacement<'m>]) -> Result<(Model, Rewritten), Error> {
        let mut model = self.model.clone();
        let rewritten = rewrite::rewrite(self, replacements, model.proto_mut())?;
        Ok((model, rewritten))
    }

    fn compare(&self, converted: &Model) -> Result<(), Error> {
        let graph = converted.graph()?;
        let decoder = Decoder::of(&graph)?;
        let outputs = self.graph.nodes().iter().flat_map(|node| &node.proto().output).map(String::as_str);
        let names = outputs.chain(self.graph.input_names()).collect();
        for probe in &self.probes {
            let mut converted = Fold::new(&graph, self.external.as_ref());
            probe.feed_static(&decoder, &self.inputs, self.max_seq, &mut converted)?;
            let exported = self.fold(probe)?;
            let mut comparison = Comparison { exported, converted, names: &names, sites: &self.sites };
            comparison
                .check(&graph)
                .map_err(|error| probe.capacity(refusal::about(self.graph, &graph, error)))?;
        }
        Ok(())
    }

    fn fold(&self, probe: &Probe) -> Result<Fold<'_, 'm>, Error> {
        let mut fold = Fold::new(self.graph, self.external.as_ref());
        probe.feed(&self.inputs, &mut fold)?;
        Ok(fold)
    }
}
