//! What the slots of the caches contain. The same step has other slots in a ring than in a linear cache.

use std::num::NonZeroU32;
use std::ops::Range;

use kvscatter_session::{CachePort, Feed, Rows, SampleFeed};

use crate::certificate::SampleSlots;

/// The caches that have the same slots: all linear caches, or all rings of one capacity.
#[derive(Debug)]
pub(crate) struct SlotKind {
    rows: Rows,
    /// The capacity of the rings, or `None` for linear caches.
    ring: Option<usize>,
    /// For each sample and slot, one more than the position that was written last.
    written: Vec<Vec<Option<NonZeroU32>>>,
    /// Whether slots that were not written contain canaries.
    is_painted: bool,
}

impl SlotKind {
    /// Returns the kinds of a decoder's caches. Linear caches come first.
    pub(crate) fn all(ports: &[CachePort], batch: usize, capacity: usize, is_painted: bool) -> Vec<Self> {
        let mut kinds: Vec<Self> = Vec::new();
        for port in ports {
            let ring = ring(port);
            if !kinds.iter().any(|kind| kind.ring == ring) {
                let written = vec![vec![None; port.slots(capacity)]; batch];
                kinds.push(Self { rows: Rows::new(port, capacity), ring, written, is_painted });
            }
        }
        kinds.sort_by_key(|kind| kind.ring);
        kinds
    }

    pub(crate) fn is_ring(&self) -> bool {
        self.ring.is_some()
    }

    pub(crate) fn capacity(&self) -> usize {
        self.rows.capacity()
    }

    /// Returns `true` if a cache is of this kind.
    pub(crate) fn includes(&self, port: &CachePort) -> bool {
        self.ring == ring(port)
    }

    /// Returns the slots that a step writes for a sample, in the order of its rows.
    pub(crate) fn named(&self, sample: &SampleFeed, width: usize) -> [Range<usize>; 2] {
        self.rows.slots(sample.start..sample.start + width)
    }

    /// Returns `true` if a slot still contains its canary.
    pub(crate) fn is_fresh(&self, sample: usize, slot: usize) -> bool {
        let written = self.written.get(sample).and_then(|slots| slots.get(slot));
        self.is_painted && written.is_some_and(Option::is_none)
    }

    /// Records the rows of a step. Returns the slots of each sample after it.
    pub(crate) fn write(&mut self, feed: &Feed) -> Vec<SampleSlots> {
        for (index, sample) in feed.samples.iter().enumerate() {
            for position in sample.start..sample.start + feed.width {
                let [slots, _] = self.named(&SampleFeed { start: position, ..sample.clone() }, 1);
                let slot = self.written.get_mut(index).and_then(|of| of.get_mut(slots.start));
                let next = u32::try_from(position).unwrap_or(u32::MAX).saturating_add(1);
                slot.into_iter().for_each(|slot| *slot = NonZeroU32::new(next));
            }
        }
        let samples = feed.samples.iter().enumerate();
        samples.map(|(index, sample)| self.of_sample(index, sample, feed.width)).collect()
    }

    /// Returns the slots that a step wrote for a sample, and those with tokens of the sample.
    fn of_sample(&self, index: usize, sample: &SampleFeed, width: usize) -> SampleSlots {
        let [first, second] = self.named(sample, width);
        let valid = sample.valid();
        let valid = if self.is_ring() {
            let has_token = |position: &Option<NonZeroU32>| {
                let position = position.and_then(|next| usize::try_from(next.get()).ok()?.checked_sub(1));
                position.is_some_and(|position| valid.contains(&position))
            };
            let slots = self.written.get(index).map(Vec::as_slice).unwrap_or_default();
            let slots = slots.iter().enumerate().filter(|(_, position)| has_token(position));
            ranges(slots.map(|(slot, _)| slot))
        } else {
            Vec::from_iter(Some(valid).filter(|valid| !valid.is_empty()))
        };
        // The end of a ring comes after its beginning.
        let written = [second, first].into_iter().filter(|slots| !slots.is_empty()).collect();
        SampleSlots { written, valid, clobbered: Vec::new() }
    }
}

fn ring(port: &CachePort) -> Option<usize> {
    port.ring.map(|ring| ring.capacity)
}

/// Joins slots in ascending order into ranges.
pub(crate) fn ranges(slots: impl IntoIterator<Item = usize>) -> Vec<Range<usize>> {
    let mut ranges: Vec<Range<usize>> = Vec::new();
    for slot in slots {
        match ranges.last_mut() {
            Some(last) if last.end == slot => last.end = slot + 1,
            _ => ranges.push(slot..slot + 1),
        }
    }
    ranges
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use kvscatter::ElementType;
    use kvscatter_onnx::convert::RingSize;
    use kvscatter_session::{CachePort, Feed, SampleFeed};

    use super::{SlotKind, ranges};

    fn port(ring: Option<usize>) -> CachePort {
        CachePort {
            past: "past".to_owned(),
            present: "present".to_owned(),
            element: ElementType::Float32,
            axis: 1,
            layer: 0,
            dims: vec![None, ring.or(Some(16)), Some(2)],
            growth: None,
            ring: ring.map(|capacity| RingSize { capacity, window: 2, chunk: 1, rewind: 0 }),
        }
    }

    #[test]
    fn neighbours_join() {
        assert_eq!(ranges([1, 2, 3, 7, 9, 10]), [1..4, 7..8, 9..11]);
        assert_eq!(ranges([]), []);
    }

    #[test]
    fn a_ring_has_the_last_positions_and_forgets_what_padding_overwrites() {
        let mut kinds = SlotKind::all(&[port(Some(5)), port(None), port(Some(5))], 1, 16, true);
        let kinds = kinds.as_mut_slice();
        assert_eq!(kinds.iter().map(SlotKind::capacity).collect::<Vec<_>>(), [16, 5]);
        let mut write = |start: usize, width: usize, tokens: Range<usize>| -> Vec<String> {
            let feed = Feed { width, samples: vec![SampleFeed { start, padding: 0, tokens, first_slot: 0 }] };
            let slots = kinds.iter_mut().flat_map(|kind| kind.write(&feed));
            slots.map(|slots| format!("{:?} {:?}", slots.written, slots.valid)).collect()
        };
        assert_eq!(write(0, 3, 0..3), ["[0..3] [0..3]", "[0..3] [0..3]"]);
        // Three tokens and one row of padding, which takes the slot of position 1.
        assert_eq!(write(3, 4, 3..6), ["[3..7] [0..6]", "[0..2, 3..5] [0..1, 2..5]"]);
        // One token is taken back, and fed again.
        assert_eq!(write(5, 1, 5..6), ["[5..6] [0..6]", "[0..1] [0..1, 2..5]"]);
        assert!(!kinds[1].is_fresh(0, 4) && kinds[0].is_fresh(0, 7) && !kinds[0].is_fresh(0, 16));
    }
}
