//! The pass that expresses operators of ONNX Runtime in operators of ONNX.

use super::pass::{Change, Subject};
use super::probes::Padding;
use crate::OnnxError;
use crate::decoder::{Cache, WriterStyle};
use crate::standard::{self, Standardized};

/// Replaces the operators. `GroupQueryAttention` shows where the decoder supports padding.
pub(super) fn standardize(subject: &Subject<'_, '_>) -> Result<Option<Change>, OnnxError> {
    let Subject { model, graph, decoder, .. } = *subject;
    if !graph.nodes().iter().any(standard::replaces) {
        return Ok(None);
    }
    let mut fold = subject.small_step()?;
    let mut standard = model.clone();
    let Standardized { replaced, origins } =
        standard::standardize(standard.proto_mut(), graph, decoder, &mut fold)?;
    let counts_tokens = |cache: &Cache<'_>| matches!(cache.style, WriterStyle::GroupQueryAttention);
    let padding = decoder.caches.iter().any(counts_tokens).then_some(Padding::Right);
    let what: Vec<_> = replaced.iter().map(|(op_type, count)| format!("{count} {op_type}")).collect();
    let change = Change::new(standard, origins).what(what.join(", "));
    Ok(Some(Change { padding, ..change }.proof("each kind of node on random values")))
}
