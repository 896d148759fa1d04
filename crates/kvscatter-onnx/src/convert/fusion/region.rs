//! The nodes of each attention operation, from its queries and caches to its result.

use std::collections::{BTreeMap, BTreeSet};

use super::fused::FusedAttention;
use crate::convert::exported::Lane;
use crate::convert::kept::{KeptForm, KeptReason};
use crate::fold::Fold;
use crate::{Graph, Node};

/// The maximum number of nodes between the operands and the result of an attention operation. It bounds the time for a
/// hostile graph.
const MAX_NODES: usize = 1024;

/// The maximum number of inputs of these nodes. Many attention operations may share a node with many inputs.
const MAX_READS: usize = 4 * MAX_NODES;

/// The nodes that one attention operation consists of.
#[derive(Debug, Default)]
pub(super) struct Region<'m> {
    /// The nodes in order. It is empty if the result is not computed from the operands, or by too many nodes.
    pub(super) nodes: Vec<Node<'m>>,
    /// A value inside of the region that a node outside of all regions reads, or that the graph returns. It may also be
    /// scores or weights that another region has as well.
    pub(super) escaped: Option<&'m str>,
    /// The values inside of the region that depend on queries and caches.
    scores: BTreeSet<&'m str>,
}

impl<'m> Region<'m> {
    /// Checks that the nodes have the same axes, bounds and repetitions at every length. The fold is an evaluation of a
    /// small step, as a proof has, and the lanes are evaluations at all lengths.
    ///
    /// # Errors
    /// Returns [`KeptReason::Form`] if they do not.
    pub(super) fn check_parameters(
        &self,
        fold: &mut Fold<'m>,
        lanes: &mut [Lane<'m>],
    ) -> Result<(), KeptReason> {
        let parameters: BTreeSet<_> = self.nodes.iter().flat_map(parameters).collect();
        for value in parameters {
            let Some(expected) = ints(fold, value)? else { continue };
            for lane in &mut *lanes {
                lane.fold.charge(expected.len())?;
                if ints(&mut lane.fold, value)?.as_ref() != Some(&expected) {
                    return Err(KeptForm::LengthDependence.into());
                }
            }
        }
        Ok(())
    }
}

/// Returns the region of each attention operation. The fold is an evaluation of a step.
///
/// Layers that share a cache or queries share nodes, such as those that repeat heads. Such nodes are in several
/// regions. What is known without the queries and caches, such as their shapes and masks, is not part of a region.
pub(super) fn regions<'m>(
    graph: &Graph<'m>,
    attentions: &[&FusedAttention<'m>],
    fold: &mut Fold<'m>,
) -> Vec<Region<'m>> {
    let paths = Paths::new(graph, attentions, fold);
    // A node may pass the written cache on to the present, which is not a value inside of the attention.
    let presents: BTreeSet<_> = attentions.iter().flat_map(|fused| fused.presents()).collect();
    let mut regions: Vec<_> = attentions.iter().map(|fused| paths.region(fused)).collect();
    let mut inside: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    let mut owned = BTreeSet::new();
    for (at, (region, fused)) in regions.iter().zip(attentions).enumerate() {
        owned.extend(region.nodes.iter().map(Node::index));
        let outputs = region.nodes.iter().flat_map(Node::outputs);
        let outputs = outputs.filter(|value| *value != fused.output && !presents.contains(value));
        outputs.for_each(|output| inside.entry(output).or_default().push(at));
    }
    // A shape is that of a static cache after the conversion, which compares it.
    let outside = graph.used_nodes().filter(|node| !owned.contains(&node.index()));
    let read: BTreeSet<_> = outside.flat_map(|node| node.reads()).chain(graph.output_names()).collect();
    for (value, of) in inside {
        for &at in &of {
            if let Some(region) = regions.get_mut(at)
                && (read.contains(value) || (of.len() > 1 && region.scores.contains(value)))
            {
                region.escaped = Some(value);
            }
        }
    }
    regions
}

/// The values that are computed from the queries and caches of attention operations, up to their results.
struct Paths<'g, 'm> {
    graph: &'g Graph<'m>,
    values: BTreeSet<&'m str>,
    /// The queries, caches and results of all attention operations.
    ends: BTreeSet<&'m str>,
}

impl<'g, 'm> Paths<'g, 'm> {
    fn new(graph: &'g Graph<'m>, attentions: &[&FusedAttention<'m>], fold: &mut Fold<'m>) -> Self {
        let starts: BTreeSet<_> = attentions.iter().flat_map(|fused| fused.starts()).collect();
        let ends = starts.iter().copied().chain(attentions.iter().map(|fused| fused.output)).collect();
        let mut paths = Self { graph, values: BTreeSet::new(), ends };
        for node in graph.nodes() {
            let is_inside = |value: &str| {
                starts.contains(value) || (paths.values.contains(value) && !paths.ends.contains(value))
            };
            if node.reads().iter().any(|value| is_inside(value)) {
                paths.values.extend(node.outputs().filter(|output| !has_elements(fold, output)));
            }
        }
        paths
    }

    /// Returns the nodes between the operands and the result of an attention operation.
    fn region(&self, fused: &FusedAttention<'m>) -> Region<'m> {
        let (mut before, mut reads) = (BTreeSet::new(), 0_usize);
        let mut pending = vec![fused.output];
        while let Some(value) = pending.pop() {
            let is_end = self.ends.contains(value) && value != fused.output;
            if is_end || !self.values.contains(value) {
                continue;
            }
            let Some((node, _)) = self.graph.producer(value).filter(|(node, _)| before.insert(node.index()))
            else {
                continue;
            };
            reads = reads.saturating_add(node.proto().input.len());
            if before.len() > MAX_NODES || reads > MAX_READS {
                return Region::default();
            }
            pending.extend(node.reads());
        }
        // A node that does not depend on these operands is outside of the region, which reads its outputs.
        let [queries, caches @ ..] = fused.starts();
        let [mut of_queries, mut of_caches] = [BTreeSet::from([queries]), BTreeSet::from(caches)];
        let mut region = Region::default();
        for node in before.iter().filter_map(|&index| self.graph.nodes().get(index)) {
            let reads = node.reads();
            let [reads_queries, reads_caches] = [&of_queries, &of_caches].map(|of| !reads.is_disjoint(of));
            let outputs = || node.outputs().filter(|output| self.values.contains(output));
            of_queries.extend(outputs().filter(|_| reads_queries));
            of_caches.extend(outputs().filter(|_| reads_caches));
            region.scores.extend(outputs().filter(|_| reads_queries && reads_caches));
            if reads_queries || reads_caches {
                region.nodes.push(*node);
            }
        }
        if of_caches.contains(fused.output) { region } else { Region::default() }
    }
}

/// Returns the inputs of a node whose integers may decide which element goes where. Shapes and the ends of slices grow
/// with the text.
fn parameters<'m>(node: &Node<'m>) -> impl Iterator<Item = &'m str> {
    let grows = match node.op_type() {
        "Reshape" | "Expand" => Some(1),
        "Slice" => Some(2),
        _ => None,
    };
    let slots = (0..node.proto().input.len()).filter(move |&slot| Some(slot) != grows);
    let node = *node;
    slots.filter_map(move |slot| node.input(slot))
}

/// Returns the elements of integers that are known.
fn ints(fold: &mut Fold<'_>, value: &str) -> Result<Option<Vec<i64>>, KeptReason> {
    Ok(fold.known(value)?.and_then(|known| known.as_ints()).map(<[i64]>::to_vec))
}

/// Returns `true` if the elements of a value are known without queries and caches.
fn has_elements(fold: &mut Fold<'_>, value: &str) -> bool {
    fold.known(value).is_ok_and(|known| known.is_some_and(|known| known.data.is_some()))
}
