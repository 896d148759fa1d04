//! Finds the input with the positions that all samples share, from which scatters compute their slots.

use std::collections::BTreeSet;

use kvscatter::ElementType;

use super::cache::Cache;
use crate::{Graph, ValueInfo};

/// Returns the input that contains the position of the first new token, or of each, for all samples. The indices of
/// scatters are computed from its elements alone, so they cannot differ between samples.
///
/// An input with a number for each sample is not shared.
pub(super) fn find<'m>(
    graph: &Graph<'m>,
    inputs: &[ValueInfo<'m>],
    caches: &[Cache<'m>],
    logits: Option<&ValueInfo<'m>>,
) -> Option<&'m str> {
    let cache = caches.iter().find(|cache| cache.is_scattered())?;
    let index = cache.writer.and_then(|writer| writer.input(1))?;
    let name = source(graph, index)?;
    let input = inputs.iter().find(|input| input.name == name)?;
    let tokens = logits.and_then(|logits| logits.shape.as_ref()?.get(1));
    let is_shared = match input.shape.as_deref()? {
        [] => true,
        [count] => cache.past_shape.first() != Some(count) || tokens == Some(count),
        _ => false,
    };
    let is_integer = matches!(input.element, ElementType::Int64 | ElementType::Int32);
    (is_integer && is_shared).then_some(name)
}

/// Returns the only input from whose elements a value is computed.
pub(crate) fn source<'m>(graph: &Graph<'m>, value: &'m str) -> Option<&'m str> {
    let (mut seen, mut open, mut found) = (BTreeSet::new(), vec![value], BTreeSet::new());
    while let Some(value) = open.pop() {
        match graph.producer(value) {
            _ if !seen.insert(value) => {}
            // A shape contains no elements.
            Some((node, _)) if node.is("Shape") => {}
            Some((node, _)) => open.extend(node.reads()),
            None => found.extend(graph.is_input(value).then_some(value)),
        }
    }
    found.pop_first().filter(|_| found.is_empty())
}
