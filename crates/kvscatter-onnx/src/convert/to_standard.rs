//! The pass that expresses operators of ONNX Runtime in operators of ONNX.

use super::pass::{Change, Subject};
use super::probe::{Inputs, SAMPLES};
use super::probes::Padding;
use crate::OnnxError;
use crate::decoder::{Cache, WriterStyle};
use crate::fold::Fold;
use crate::standard::{self, Standardized};

/// Replaces the operators. `GroupQueryAttention` shows where the decoder supports padding.
pub(super) fn standardize(subject: &Subject<'_, '_>) -> Result<Option<Change>, OnnxError> {
    let Subject { model, graph, decoder, options, .. } = *subject;
    if !graph.nodes().iter().any(standard::replaces) {
        return Ok(None);
    }
    let max_seq = options.max_seq;
    let inputs = Inputs::checked(decoder, max_seq)?;
    let external = model.shared_external_data()?;
    let mut fold = Fold::new(graph, external.as_ref());
    inputs.probe(SAMPLES, 3, 2.min(max_seq)).within(max_seq).feed(&inputs, &mut fold)?;
    let mut standard = model.clone();
    let Standardized { replaced, origins } =
        standard::standardize(standard.proto_mut(), graph, decoder, &mut fold)?;
    let counts_tokens = |cache: &Cache<'_>| matches!(cache.style, WriterStyle::GroupQueryAttention);
    let padding = decoder.caches.iter().any(counts_tokens).then_some(Padding::Right);
    let what: Vec<_> = replaced.iter().map(|(op_type, count)| format!("{count} {op_type}")).collect();
    let change = Change::new(standard, origins).what(what.join(", "));
    Ok(Some(Change { padding, ..change }.proof("each kind of node on random values")))
}
