//! Decides which caches become rings.
//!
//! A layer with a window of `W` tokens needs the last `W` tokens, and as many slots more as a step writes and as may
//! be taken back. [`kvscatter::ring`] has the rule and its proof.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

use kvscatter::ring::{Feeding, Ring, least_capacity};

use super::exported::Exported;
use super::fusion::Operands;
use super::options::WindowedCaches;
use super::rule::Rule;
use crate::decoder::{Cache, Decoder};
use crate::{Graph, Model};

/// The largest number of new tokens of a step if the options do not set it.
const CHUNK: usize = 512;

/// The entry of a converted model's metadata with the sizes of its rings.
pub(super) const METADATA: &str = "kvscatter.rings";

/// The entry of the metadata of a converted model without linear caches. It is the number of tokens that a sample can
/// have.
pub const MOST_TOKENS: &str = "kvscatter.most_tokens";

/// The number of tokens of a sample that has no other limit, which is the largest number of 32 bits.
pub const UNLIMITED: usize = (1 << 31) - 1;

/// The size of a ring, and what it is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RingSize {
    /// The number of slots of each sample.
    pub capacity: usize,
    /// The number of tokens that a token sees, itself included.
    pub window: usize,
    /// The largest number of rows that a step may write, padding included.
    pub chunk: usize,
    /// The number of tokens below the furthest one that a sample may be taken back.
    pub rewind: usize,
}

/// Why the caches of attention with a window are not rings.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each variant's message names its fields")]
pub enum LinearReason {
    /// A ring would not be smaller than a linear cache.
    #[error("a ring of {ring} slots is not smaller than max_seq = {max_seq}")]
    NotSmaller { ring: usize, max_seq: usize },
    /// Attention adds a bias to its scores.
    #[error("its attention adds a bias (ALiBi), which is not supported in a ring")]
    Bias,
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

/// The rings of a converted decoder.
#[derive(Clone, Debug, Default)]
pub(super) struct Rings {
    by_past: BTreeMap<String, RingSize>,
    /// The number of attention operations that read rings of each size.
    readers: BTreeMap<RingSize, usize>,
    /// The number of tokens that a sample can have if all caches are rings.
    pub(super) most_tokens: Option<usize>,
}

/// Writes the numbers as the metadata of a converted model contains them.
impl fmt::Display for RingSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { capacity, window, chunk, rewind } = self;
        write!(f, "capacity={capacity} window={window} chunk={chunk} rewind={rewind}")
    }
}

/// Reads the numbers as [`Display`](fmt::Display) writes them.
impl FromStr for RingSize {
    type Err = RingSizeError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut numbers = text.split(' ');
        let mut number = |key: &str| {
            let (found, number) = numbers.next().and_then(|entry| entry.split_once('='))?;
            number.parse().ok().filter(|_| found == key)
        };
        let of = |it: Option<usize>| it.ok_or_else(|| RingSizeError { text: text.to_owned() });
        Ok(Self {
            capacity: of(number("capacity"))?,
            window: of(number("window"))?,
            chunk: of(number("chunk"))?,
            rewind: of(number("rewind"))?,
        })
    }
}

/// A text that is not the size of a ring.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not capacity=C window=W chunk=S rewind=R")]
pub struct RingSizeError {
    text: String,
}

impl RingSize {
    /// Reads the sizes of the rings of a converted model from its metadata. A model without rings has none.
    ///
    /// # Errors
    /// Returns [`RingSizeError`] if the metadata has another form.
    pub fn of_model(model: &Model) -> Result<Vec<Self>, RingSizeError> {
        let sizes = model.metadata(METADATA).unwrap_or_default();
        sizes.split("; ").filter(|size| !size.is_empty()).map(str::parse).collect()
    }

    /// Returns the ring for [tests of single steps](kvscatter::ring).
    #[must_use]
    pub fn ring(&self) -> Ring {
        Ring::new(self.capacity, self.window)
    }

    /// Returns `true` if a ring of this capacity serves the window, the chunk and the rewind.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        let least = least_capacity(self.window, self.chunk, self.rewind, Feeding::Idle);
        self.window > 0 && self.chunk > 0 && least <= self.capacity
    }

    /// Returns the least ring for a window, for samples that may idle.
    fn new(window: usize, chunk: usize, rewind: usize) -> Self {
        let capacity = least_capacity(window, chunk, rewind, Feeding::Idle);
        Self { capacity, window, chunk, rewind }
    }
}

impl Rings {
    #[cfg(test)]
    pub(super) fn insert(&mut self, past: &str, ring: RingSize) {
        self.by_past.insert(past.to_owned(), ring);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_past.is_empty()
    }

    /// Returns `true` if all caches of a decoder are rings.
    pub(super) fn are_all(&self, decoder: &Decoder<'_>) -> bool {
        decoder.caches.iter().all(|cache| self.of(cache.past).is_some())
    }

    /// Returns the ring of a cache, or `None` if the cache is linear.
    pub(super) fn of(&self, past: &str) -> Option<RingSize> {
        self.by_past.get(past).copied()
    }

    /// Returns each size once, with the number of its caches.
    pub(super) fn sizes(&self) -> BTreeMap<RingSize, usize> {
        let mut sizes = BTreeMap::new();
        self.by_past.values().for_each(|ring| add_one(&mut sizes, *ring));
        sizes
    }

    /// Returns the largest number of new tokens that fits into every ring.
    pub(super) fn most_tokens(&self) -> usize {
        self.by_past.values().map(|ring| ring.capacity).min().unwrap_or(usize::MAX)
    }

    /// Returns the attention operations that read these rings, if the rings are not used for this reason.
    pub(super) fn refused(self, reason: &LinearReason) -> Vec<LinearWindow> {
        let of = |(ring, attentions): (RingSize, usize)| LinearWindow {
            window: ring.window,
            attentions,
            reason: reason.clone(),
        };
        self.readers.into_iter().map(of).collect()
    }

    /// Finds the caches that can be rings, in a converted decoder whose caches are all linear. Returns the reasons for
    /// the other attention with windows.
    ///
    /// Every node that reads a ring is an `Attention` with the ring's window. Its keys and values have one capacity.
    pub(super) fn find(
        exported: &Exported<'_, '_>,
        converted: &Graph<'_>,
        fused: &[Operands],
        wanted: WindowedCaches,
    ) -> (Self, Vec<LinearWindow>) {
        let WindowedCaches::Ring { chunk, rewind } = wanted else { return (Self::default(), Vec::new()) };
        let least_chunk = exported.inputs.new_tokens().unwrap_or(1);
        let max_seq = exported.max_seq;
        let ring = |rule: &Rule| {
            let window = rule.window?;
            let ring = RingSize::new(window, chunk.unwrap_or(window.min(CHUNK)).max(least_chunk), rewind);
            Some(match ring.capacity {
                _ if rule.bias.is_some() => Err(LinearReason::Bias),
                slots if slots >= max_seq => Err(LinearReason::NotSmaller { ring: slots, max_seq }),
                _ => Ok(ring),
            })
        };
        let fused = fused.iter().map(|it| ([it.keys.as_str(), it.values.as_str()], &it.rule));
        let readers: Vec<_> = fused.chain(exported.attentions.readers()).collect();
        let mut reads = reads(converted, &exported.decoder.caches);
        let mut rings: BTreeMap<&str, RingSize> = BTreeMap::new();
        let mut linear: BTreeSet<&str> = BTreeSet::new();
        for (presents, rule) in &readers {
            for present in presents {
                reads.entry(present).and_modify(|reads| *reads = reads.saturating_sub(1));
                match ring(rule) {
                    Some(Ok(ring)) if *rings.entry(present).or_insert(ring) == ring => {}
                    _ => _ = linear.insert(present),
                }
            }
        }
        linear.extend(reads.iter().filter(|(_, others)| **others > 0).map(|(present, _)| *present));
        // If one cache of a pair stays linear, so does the other one, and so may its next partner.
        let mut partners: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for ([keys, values], _) in &readers {
            partners.entry(keys).or_default().insert(values);
            partners.entry(values).or_default().insert(keys);
        }
        let mut open: Vec<&str> = linear.iter().copied().collect();
        while let Some(present) = open.pop() {
            let partners = partners.remove(present).into_iter().flatten();
            open.extend(partners.filter(|partner| linear.insert(partner)));
        }
        let mut left: BTreeMap<(usize, LinearReason), usize> = BTreeMap::new();
        for rule in exported.rules() {
            if let (Some(window), Some(ring)) = (rule.window, ring(rule)) {
                let reason = ring.err().unwrap_or(LinearReason::Reader);
                add_one(&mut left, (window, reason));
            }
        }
        rings.retain(|present, _| !linear.contains(present));
        let mut of_rings = BTreeMap::new();
        for ring in readers.iter().filter_map(|([keys, _], _)| rings.get(keys)) {
            add_one(&mut of_rings, *ring);
            left.entry((ring.window, LinearReason::Reader)).and_modify(|left| *left = left.saturating_sub(1));
        }
        left.retain(|_, attentions| *attentions > 0);
        let of_past = |cache: &Cache<'_>| Some((cache.past.to_owned(), *rings.get(cache.present)?));
        let by_past = exported.decoder.caches.iter().filter_map(of_past).collect();
        let left = left.into_iter();
        let left = left.map(|((window, reason), attentions)| LinearWindow { window, attentions, reason });
        (Self { by_past, readers: of_rings, most_tokens: None }, left.collect())
    }
}

fn add_one<K: Ord>(counts: &mut BTreeMap<K, usize>, key: K) {
    let count = counts.entry(key).or_default();
    *count = count.saturating_add(1);
}

/// Returns how many times nodes read each present, not counting nodes that read its shape only.
fn reads<'m>(graph: &Graph<'_>, caches: &[Cache<'m>]) -> BTreeMap<&'m str, usize> {
    let mut reads: BTreeMap<_, usize> = caches.iter().map(|cache| (cache.present, 0)).collect();
    for node in graph.nodes().iter().filter(|node| !node.is("Shape") && !node.is("Size")) {
        for input in &node.proto().input {
            if let Some(reads) = reads.get_mut(input.as_str()) {
                *reads = reads.saturating_add(1);
            }
        }
    }
    reads
}
