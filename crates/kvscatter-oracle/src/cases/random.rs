/// The generator SplitMix64. Its quality is sufficient for cases, and it gives the same numbers on every
/// machine.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Returns a separate stream for each `(seed, stream)`.
    #[must_use]
    pub fn new(seed: u64, stream: usize) -> Self {
        let mut random = Self(seed);
        random.0 = random.next() ^ (stream as u64);
        random.next();
        random
    }

    /// Returns a number in `0..bound`, where `bound` is not 0.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    /// Returns a number in `low..=high`.
    pub fn between(&mut self, low: usize, high: usize) -> usize {
        low + self.below(high - low + 1)
    }

    /// Returns one of the options, chosen at random.
    pub fn pick<T: Clone>(&mut self, options: &[T]) -> T {
        options[self.below(options.len())].clone()
    }

    /// Calls `make` `count` times and returns the values.
    pub fn many<T>(&mut self, count: usize, mut make: impl FnMut(&mut Self) -> T) -> Vec<T> {
        (0..count).map(|_| make(self)).collect()
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::Random;

    #[test]
    fn the_reference_sequence() {
        // The first outputs of SplitMix64 from state 1234567, as its authors' C program prints them.
        let mut random = Random(1_234_567);
        assert_eq!(random.next(), 6_457_827_717_110_365_317);
        assert_eq!(random.next(), 3_203_168_211_198_807_973);
    }
}
