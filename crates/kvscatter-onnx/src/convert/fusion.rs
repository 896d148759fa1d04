//! Finds attention that consists of separate nodes and proves that one `Attention` node computes the same.
//!
//! Such attention multiplies and masks every slot of a cache, and exporters repeat the heads of keys and
//! values before. One node reads the cache as it lies, and an engine can stop at the length in use.
//!
//! The structure of the graph only suggests the operands of the node: the queries, the caches, the scale and
//! the cap on the scores. The [proof](proof) then evaluates both on random queries and caches. An attention
//! whose node is not proved equal stays as it is. Layers that ask the same [question](question) are proved
//! once, and all proofs of a model share a budget of work.

mod kept;
mod operands;
mod proof;
mod question;
mod region;
mod sink;

pub use kept::{KeptAttention, KeptReason};
pub(super) use operands::Operands;

use operands::Finder;
use proof::FusionProofs;
use region::regions;

use super::ConvertOptions;
use super::exported::Exported;
use super::probe::Probe;
use super::ring::Slots;
use crate::fold::Fold;
use crate::{Model, OnnxError};

/// The attention operations that become one node each, and those that stay as they are.
#[derive(Debug, Default)]
pub(super) struct Fusions {
    pub(super) fused: Vec<Operands>,
    pub(super) kept: Vec<KeptAttention>,
}

impl Fusions {
    /// Examines every attention operation of a converted model that consists of separate nodes.
    ///
    /// # Errors
    /// Returns the errors of [`Model::graph`] and of feeding a probe. An attention that
    /// cannot be evaluated is not an error.
    pub(super) fn find(
        exported: &Exported<'_, '_>,
        converted: &Model,
        write_indices: &str,
        options: ConvertOptions,
    ) -> Result<Self, OnnxError> {
        let graph = converted.graph()?;
        let fed = |probe: &Probe, capacity| {
            let mut fold = Fold::new(&graph, exported.external.as_ref());
            let slots = Slots::linear(capacity);
            probe.feed_static(&graph, write_indices, &exported.inputs, slots, false, &mut fold)?;
            Ok(fold)
        };
        let probes = proof::probes(&exported.inputs, exported.padding, exported.max_seq);
        let folds = probes.iter().map(|probe| fed(probe, proof::capacity(probe, exported.max_seq)));
        let mut folds = folds.collect::<Result<Vec<_>, OnnxError>>()?;
        let at_lengths = exported.probes.iter().map(|probe| fed(probe, exported.max_seq));
        let at_lengths = at_lengths.collect::<Result<Vec<_>, OnnxError>>()?;
        let Some(first) = folds.first_mut() else { return Ok(Self::default()) };
        let mut candidates = Vec::new();
        let mut finder = Finder::new(&graph, exported.decoder, &exported.sites, first, at_lengths);
        for last in finder.ends() {
            let operands = finder.operands(&last).and_then(|it| {
                let is_wanted = options.may_cap() || !it.is_capped();
                if is_wanted { Ok(it) } else { Err(KeptReason::Softcap) }
            });
            candidates.push((last, operands));
        }
        let found: Vec<_> = candidates.iter().filter_map(|(_, operands)| operands.as_ref().ok()).collect();
        let mut regions = regions(&graph, &found).into_iter();
        let mut proofs = FusionProofs::new(converted, &probes);
        let mut fusions = Self::default();
        for (last, operands) in candidates {
            let proved = operands.and_then(|operands| {
                let region = regions.next().unwrap_or_default();
                proofs.prove(&region, &operands, &mut folds)?;
                Ok(operands)
            });
            match proved {
                Ok(operands) => fusions.fused.push(operands),
                Err(reason) => {
                    let output = last.output(0).unwrap_or_default().to_owned();
                    fusions.kept.push(KeptAttention { output, reason });
                }
            }
        }
        Ok(fusions)
    }
}
