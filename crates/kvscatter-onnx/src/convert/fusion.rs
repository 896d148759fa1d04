//! Finds attention of separate nodes that one `Attention` node can replace.
//!
//! Such attention multiplies and masks every slot of a cache, and exporters repeat the heads of keys and
//! values before. One node reads the cache as it lies, and an engine can stop at the length in use.
//!
//! The structure of the graph only suggests the operands of the node: the queries, the caches, the scale and
//! the cap on the scores. The [proof](proof) then evaluates both on random queries and caches. An attention
//! whose node is not proved equal stays as it is.

mod fused;
mod operands;
mod proof;
mod region;
mod sink;

pub(super) use fused::FusedAttention;

use operands::OperandFinder;
use proof::FusionProofs;
use region::regions;

use super::ConvertOptions;
use super::exported::{ExportedDecoder, Lane};
use super::kept::{KeptAttention, KeptReason};
use crate::OnnxError;
use crate::fold::Fold;

/// The attention operations that become one node each, and those that stay as they are.
#[derive(Debug, Default)]
pub(super) struct Fusions<'m> {
    pub(super) fused: Vec<FusedAttention<'m>>,
    pub(super) kept: Vec<KeptAttention>,
}

impl<'m> Fusions<'m> {
    /// Examines every attention operation of a decoder that consists of separate nodes.
    ///
    /// # Errors
    /// Returns the errors of feeding a probe. An attention that cannot be evaluated is not an error.
    pub(super) fn find(
        exported: &ExportedDecoder<'_, 'm>,
        lanes: &mut [Lane<'m>],
        options: ConvertOptions,
    ) -> Result<Self, OnnxError> {
        let ExportedDecoder { graph, decoder, ref sites, .. } = *exported;
        let probes = proof::probes(&exported.inputs, exported.padding, exported.max_seq);
        let mut folds = Vec::new();
        for probe in &probes {
            let mut fold = Fold::new(graph, exported.external.as_ref());
            probe.feed(&exported.inputs, &mut fold)?;
            folds.push(fold);
        }
        let Some(first) = folds.first_mut() else { return Ok(Self::default()) };
        let mut finder = OperandFinder::new(graph, decoder, sites, first, lanes);
        let mut candidates = Vec::new();
        for end in &sites.ends {
            let fused = finder.fused(end).and_then(|fused| {
                let is_wanted = options.may_cap() || !fused.is_capped();
                if is_wanted { Ok(fused) } else { Err(KeptReason::Softcap) }
            });
            candidates.push((end, fused));
        }
        let found: Vec<_> = candidates.iter().filter_map(|(_, fused)| fused.as_ref().ok()).collect();
        let mut regions = regions(graph, &found, first).into_iter();
        let mut proofs = FusionProofs::new(&exported.model.proto().opset_import, &probes);
        let mut fusions = Self::default();
        for (end, fused) in candidates {
            let proved = fused.and_then(|fused| {
                let region = regions.next().unwrap_or_default();
                if let Some(first) = folds.first_mut() {
                    region.check_parameters(first, lanes)?;
                }
                proofs.prove(&region, &fused, &mut folds)?;
                Ok(fused)
            });
            match proved {
                Ok(fused) => fusions.fused.push(fused),
                Err(reason) => {
                    let output = end.node.output(0).unwrap_or_default().to_owned();
                    fusions.kept.push(KeptAttention { output, reason });
                }
            }
        }
        Ok(fusions)
    }
}
