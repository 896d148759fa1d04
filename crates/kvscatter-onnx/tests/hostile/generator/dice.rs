//! Random choices.

use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;

/// A source of random choices.
pub(crate) struct Dice {
    given: Vec<u8>,
    random: Pcg64Mcg,
}

impl Dice {
    /// Takes the first choices from these bytes, so that a fuzzer can change each of them, and the others from the
    /// seed.
    pub(crate) fn new(seed: u64, bytes: &[u8]) -> Self {
        Self { given: bytes.iter().rev().copied().collect(), random: Pcg64Mcg::seed_from_u64(seed) }
    }

    pub(crate) fn bits(&mut self) -> u64 {
        self.bytes(8)
    }

    fn bytes(&mut self, count: usize) -> u64 {
        if self.given.is_empty() {
            return self.random.next_u64();
        }
        (0..count).fold(0, |bits, _| bits << 8 | u64::from(self.given.pop().unwrap_or_default()))
    }

    /// Returns a number below `limit`, or 0 if the limit is 0.
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        let bits = self.bytes(if limit <= 256 { 1 } else { 8 });
        usize::try_from(bits % u64::try_from(limit.max(1)).unwrap()).unwrap()
    }

    /// Returns `true` in this share of the cases.
    pub(crate) fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    /// Returns an item of a list that is not empty.
    pub(crate) fn pick<'t, T>(&mut self, items: &'t [T]) -> &'t T {
        &items[self.below(items.len())]
    }
}
