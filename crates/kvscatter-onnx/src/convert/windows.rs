//! Decides which caches of layers with a window become rings.

use std::collections::{BTreeMap, BTreeSet};

use super::exported::ExportedDecoder;
use super::fusion::FusedAttention;
use super::options::WindowedCaches;
use super::ring::{RingSize, Rings, add_one};
use super::rule::Rule;
use crate::Graph;
use crate::decoder::Cache;

/// The largest number of new tokens of a step if the options do not set it.
const CHUNK: usize = 512;

/// Why the caches of attention with a window are not rings.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each variant's message names its fields")]
pub enum LinearReason {
    /// A ring would not be smaller than a linear cache.
    #[error("a ring of {ring} slots (W - 1 + chunk + rewind) is not smaller than max_seq = {max_seq}")]
    NotSmaller { ring: usize, max_seq: usize },
    /// Attention adds a bias to its scores.
    #[error("its attention adds a bias (ALiBi), which is not supported in a ring")]
    Bias,
    /// Tokens of a block see each other.
    #[error("tokens of its attention see later tokens of their blocks, which is not supported in a ring")]
    Blocks,
    /// The cache is not read by `Attention` nodes with this window alone.
    #[error("only Attention nodes with one window can read a ring")]
    Reader,
    /// The converted decoder computes other values than the exported one if there are rings.
    #[error("with a ring, the decoder computes other values: {difference}")]
    Differs { difference: String },
}

/// Attention with a window that reads linear caches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinearWindow {
    /// The number of tokens that a token sees, itself included.
    pub window: usize,
    /// The number of attention operations.
    pub attentions: usize,
    /// The reason.
    pub reason: LinearReason,
}

impl Rings {
    /// Returns the attention operations that read these rings, if the rings are not used for this reason.
    pub(super) fn refused(self, reason: &LinearReason) -> Vec<LinearWindow> {
        let window = |(ring, attentions): (RingSize, usize)| LinearWindow {
            window: ring.window,
            attentions,
            reason: reason.clone(),
        };
        self.readers.into_iter().map(window).collect()
    }

    /// Finds the caches that can be rings, in a converted decoder whose caches are all linear. Returns the reasons for
    /// the other attention with windows.
    ///
    /// Every node that reads a ring is an `Attention` with the ring's window, whose keys and values have one capacity.
    pub(super) fn find(
        exported: &ExportedDecoder<'_, '_>,
        converted: &Graph<'_>,
        fused: &[FusedAttention<'_>],
        wanted: WindowedCaches,
    ) -> (Self, Vec<LinearWindow>) {
        let WindowedCaches::Ring { chunk, rewind } = wanted else { return (Self::default(), Vec::new()) };
        let least_chunk = exported.inputs.new_tokens().unwrap_or(1);
        let max_seq = exported.max_seq;
        let ring = |rule: &Rule| {
            let window = rule.window?.size;
            let ring = RingSize::new(window, chunk.unwrap_or(window.min(CHUNK)).max(least_chunk), rewind);
            Some(match ring.capacity {
                _ if rule.bias.is_some() => Err(LinearReason::Bias),
                _ if rule.blocks.is_some() => Err(LinearReason::Blocks),
                slots if slots >= max_seq => Err(LinearReason::NotSmaller { ring: slots, max_seq }),
                _ => Ok(ring),
            })
        };
        let fused = fused.iter().map(|it| (it.presents(), &it.rule));
        let readers: Vec<_> = fused.chain(exported.attentions.readers()).collect();
        let caches = &exported.decoder.caches;
        let by_present = by_present(&readers, reads(converted, caches), |rule| ring(rule)?.ok());
        let mut rings = Self::default();
        for cache in caches {
            if let Some(size) = by_present.get(cache.present) {
                rings.by_past.insert(cache.past.to_owned(), *size);
                rings.by_present.insert(cache.present.to_owned(), *size);
            }
        }
        for size in readers.iter().filter_map(|([keys, _], _)| by_present.get(keys)) {
            add_one(&mut rings.readers, *size);
        }
        let reason = |rule| ring(rule).map(|ring| ring.err().unwrap_or(LinearReason::Reader));
        let linear =
            rings.linear(exported.rules().filter_map(|rule| Some((rule.window?.size, reason(rule)?))));
        (rings, linear)
    }

    /// Returns the attention with windows that reads no ring. All attention with windows is given, each with the reason
    /// if it reads none.
    fn linear(&self, all: impl Iterator<Item = (usize, LinearReason)>) -> Vec<LinearWindow> {
        let mut linear: BTreeMap<(usize, LinearReason), usize> = BTreeMap::new();
        all.for_each(|window| add_one(&mut linear, window));
        for (ring, readers) in &self.readers {
            let of_ring = linear.entry((ring.window, LinearReason::Reader));
            of_ring.and_modify(|left| *left = left.saturating_sub(*readers));
        }
        let linear = linear.into_iter().filter(|(_, attentions)| *attentions > 0);
        linear.map(|((window, reason), attentions)| LinearWindow { window, attentions, reason }).collect()
    }
}

/// The presents with keys and values that an `Attention` node reads, and its rule.
type Reader<'r> = ([&'r str; 2], &'r Rule);

/// Returns the ring of each present that can be one. `reads` is the number of all nodes that read each present.
fn by_present<'r>(
    readers: &[Reader<'r>],
    mut reads: BTreeMap<&'r str, usize>,
    ring: impl Fn(&Rule) -> Option<RingSize>,
) -> BTreeMap<&'r str, RingSize> {
    let mut rings: BTreeMap<&str, RingSize> = BTreeMap::new();
    let mut linear: BTreeSet<&str> = BTreeSet::new();
    for (presents, rule) in readers {
        for present in presents {
            reads.entry(present).and_modify(|reads| *reads = reads.saturating_sub(1));
            match ring(rule) {
                Some(ring) if *rings.entry(present).or_insert(ring) == ring => {}
                _ => _ = linear.insert(present),
            }
        }
    }
    linear.extend(reads.iter().filter(|(_, others)| **others > 0).map(|(present, _)| *present));
    // If one cache of a pair stays linear, so does the other one, and so may its next partner.
    let mut partners: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for ([keys, values], _) in readers {
        partners.entry(keys).or_default().insert(values);
        partners.entry(values).or_default().insert(keys);
    }
    let mut open: Vec<&str> = linear.iter().copied().collect();
    while let Some(present) = open.pop() {
        let partners = partners.remove(present).into_iter().flatten();
        open.extend(partners.filter(|partner| linear.insert(partner)));
    }
    rings.retain(|present, _| !linear.contains(present));
    rings
}

/// Returns how many times nodes read each present, not counting nodes that read its shape only.
fn reads<'m>(graph: &Graph<'_>, caches: &[Cache<'m>]) -> BTreeMap<&'m str, usize> {
    let mut reads: BTreeMap<_, usize> = caches.iter().map(|cache| (cache.present, 0)).collect();
    for node in graph.nodes().iter().filter(|node| !node.reads_shape()) {
        for input in &node.proto().input {
            if let Some(reads) = reads.get_mut(input.as_str()) {
                *reads = reads.saturating_add(1);
            }
        }
    }
    reads
}
