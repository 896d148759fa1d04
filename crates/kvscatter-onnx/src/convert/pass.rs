//! One pass of a conversion.

use super::options::ConvertOptions;
use super::probes::Padding;
use super::refusal::ConvertError;
use super::report::{Claim, Report};
use crate::decoder::{Cache, Decoder};
use crate::edit::Origins;
use crate::{Graph, Model, OnnxError};

/// One change of a decoder.
pub(super) struct Pass {
    pub(super) name: &'static str,
    /// What the change keeps.
    pub(super) claim: Claim,
    /// Whether the pass makes caches static. The conversion then ends.
    pub(super) makes_static: bool,
    /// Whether the pass replaces the node that writes a cache.
    pub(super) takes: fn(&Decoder<'_>, &Cache<'_>) -> bool,
    pub(super) run: for<'m> fn(&Subject<'_, 'm>) -> Result<Option<Change>, OnnxError>,
}

/// A decoder that a pass may change.
pub(super) struct Subject<'a, 'm> {
    pub(super) model: &'m Model,
    pub(super) graph: &'a Graph<'m>,
    pub(super) decoder: &'a Decoder<'m>,
    pub(super) options: ConvertOptions,
    /// Where the exported decoder supports padding.
    pub(super) padding: Padding,
}

/// What a pass has changed.
pub(super) struct Change {
    pub(super) model: Model,
    /// Where the nodes of the new graph come from.
    pub(super) origins: Origins,
    /// What was changed, such as `3 GroupQueryAttention`.
    pub(super) what: String,
    /// What was compared.
    pub(super) proof: String,
    /// Where the decoder supports padding, if the change shows it.
    pub(super) padding: Option<Padding>,
    /// The report of the pass that makes the caches static.
    pub(super) report: Option<Report>,
}

impl Change {
    pub(super) fn new(model: Model, origins: Origins) -> Self {
        let (what, proof) = (String::new(), String::new());
        Self { model, origins, what, proof, padding: None, report: None }
    }

    /// Sets what was changed.
    pub(super) fn what(self, what: String) -> Self {
        Self { what, ..self }
    }

    /// Sets what was compared.
    pub(super) fn proof(self, proof: impl Into<String>) -> Self {
        Self { proof: proof.into(), ..self }
    }
}

/// Converts an error about a node of a changed graph to an error about the node that it comes from, because the user
/// has only the exported model.
pub(super) fn at_origin(mut error: OnnxError, origins: &Origins, exported: &Graph<'_>) -> OnnxError {
    move_to_origin(&mut error, origins, exported);
    error
}

/// Changes an error as [`at_origin`] does.
pub(super) fn move_to_origin(error: &mut OnnxError, origins: &Origins, exported: &Graph<'_>) {
    if let Some(ConvertError::Capacity { cause, .. }) = error.cause_mut() {
        return move_to_origin(cause, origins, exported);
    }
    if let OnnxError::InNode { node, .. } = error
        && let Some(origin) = origins.index_of(node.index).and_then(|index| exported.nodes().get(index))
    {
        **node = origin.label();
    }
}
