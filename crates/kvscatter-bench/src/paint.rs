//! Fills buffers with contents that cannot be confused with each other.

/// Fills a buffer with words that depend on the offset and the seed, so that a block at a wrong offset is
/// always detected.
pub(crate) fn paint(buffer: &mut [u8], seed: u64) {
    let (words, rest) = buffer.as_chunks_mut::<8>();
    for (index, word) in words.iter_mut().enumerate() {
        *word = word_at(seed, index);
    }
    let last = word_at(seed, words.len());
    rest.copy_from_slice(&last[..rest.len()]);
}

fn word_at(seed: u64, index: usize) -> [u8; 8] {
    let word = (index as u64 ^ seed << 44).wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (word ^ word >> 32).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::paint;

    fn painted(len: usize, seed: u64) -> Vec<u8> {
        let mut buffer = vec![0; len];
        paint(&mut buffer, seed);
        buffer
    }

    #[test]
    fn words_differ_from_place_to_place_and_from_seed_to_seed() {
        let mut words = painted(1 << 16, 1);
        words.extend(painted(1 << 16, 2));
        let mut words: Vec<_> = words.as_chunks::<8>().0.to_vec();
        words.sort_unstable();
        words.dedup();
        assert_eq!(words.len(), 1 << 14);
    }

    #[test]
    fn ends_within_a_word() {
        assert_eq!(painted(13, 5), painted(16, 5)[..13]);
        assert_eq!(painted(3, 5).len(), 3);
    }
}
