//! The nodes of each attention operation, from its queries and caches to its result.

use std::collections::BTreeMap;

use super::Operands;
use crate::{Graph, Node};

/// The nodes that one attention operation consists of.
#[derive(Debug, Default)]
pub(super) struct Region<'m> {
    /// The nodes in order. The last one computes the result.
    pub(super) nodes: Vec<Node<'m>>,
    /// A value inside of the region that a node outside of it reads, or that the graph returns.
    pub(super) escaped: Option<&'m str>,
}

/// Returns the region of each attention operation.
///
/// One walk finds all of them, in time proportional to the graph. The shape of a query or of a cache is not
/// part of a region, because it is known without one.
pub(super) fn regions<'m>(graph: &Graph<'m>, attentions: &[&Operands]) -> Vec<Region<'m>> {
    let mut regions: Vec<Region<'m>> = attentions.iter().map(|_| Region::default()).collect();
    let mut caches: BTreeMap<&str, usize> = BTreeMap::new();
    let mut queries: BTreeMap<&str, usize> = BTreeMap::new();
    let mut ends: BTreeMap<&str, usize> = BTreeMap::new();
    for (at, operands) in attentions.iter().enumerate() {
        caches.extend([&operands.keys, &operands.values].map(|it| (it.as_str(), at)));
        queries.insert(&operands.queries, at);
        ends.insert(&operands.output, at);
    }
    // The region of each value that is computed inside of one.
    let mut inside: BTreeMap<&str, usize> = BTreeMap::new();
    for node in graph.nodes() {
        let reads = node.reads();
        let asks_for_shape = node.is("Shape") || node.is("Size");
        let of = |starts: &BTreeMap<&str, usize>| {
            let starting = reads.iter().filter_map(|value| starts.get(value).copied());
            starting.max().filter(|_| !asks_for_shape)
        };
        let within = reads.iter().filter_map(|value| inside.get(value).copied()).max();
        // Several attention operations may share their queries, so the caches come first.
        let within = within.max(of(&caches)).or_else(|| of(&queries));
        let Some(region) = within else { continue };
        let outputs: Vec<_> = (0..node.proto().output.len()).filter_map(|slot| node.output(slot)).collect();
        let is_end = outputs.iter().any(|output| ends.get(output) == Some(&region));
        let is_outside = !is_end
            && outputs.iter().any(|it| [&caches, &queries, &ends].iter().any(|known| known.contains_key(it)));
        for &value in &reads {
            let of = inside.get(value).filter(|of| is_outside || **of != region);
            if let Some(other) = of.and_then(|&of| regions.get_mut(of)) {
                other.escaped = Some(value);
            }
        }
        let Some(region_of_node) = regions.get_mut(region).filter(|_| !is_outside) else { continue };
        region_of_node.nodes.push(*node);
        if !is_end {
            inside.extend(outputs.into_iter().map(|output| (output, region)));
        }
    }
    for output in graph.output_names() {
        if let Some(region) = inside.get(output).and_then(|&region| regions.get_mut(region)) {
            region.escaped = Some(output);
        }
    }
    regions
}
