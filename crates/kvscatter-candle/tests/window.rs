//! Compares rings that have a size with growing caches and a window mask.
#![expect(clippy::unwrap_used, reason = "a helper that panics fails its test")]

use candle_core::{DType, Device, Tensor};
use kvscatter_candle::kv_cache::{KvCache, RingSize, RotatingKvCache};
use kvscatter_oracle::cases::Random;

const CPU: Device = Device::Cpu;
const HEADS: usize = 2;
const SIZE: usize = 3;

/// Returns tokens with elements between -1 and 1.
fn tokens(random: &mut Random, batch: usize, count: usize) -> Tensor {
    let elements = batch * HEADS * count * SIZE;
    let values = random.many(elements, |random| random.below(2_000_001) as f32 / 1e6 - 1.0);
    Tensor::from_vec(values, (batch, HEADS, count, SIZE), &CPU).unwrap()
}

/// Returns attention over the keys that a mask does not hide.
fn attention(queries: &Tensor, [keys, values]: [&Tensor; 2], hidden: Option<&Tensor>) -> Vec<f32> {
    let keys = keys.transpose(2, 3).unwrap().contiguous().unwrap();
    let mut scores = queries.contiguous().unwrap().matmul(&keys).unwrap();
    if let Some(hidden) = hidden {
        let hidden = hidden.broadcast_as(scores.shape()).unwrap();
        let never = Tensor::full(f32::NEG_INFINITY, scores.shape(), &CPU).unwrap();
        scores = hidden.where_cond(&never, &scores).unwrap();
    }
    let weights = candle_nn::ops::softmax_last_dim(&scores).unwrap();
    let outputs = weights.matmul(&values.contiguous().unwrap()).unwrap();
    outputs.flatten_all().unwrap().to_vec1().unwrap()
}

/// Returns the mask of a growing cache, in which a token sees itself and the `window - 1` tokens before it.
fn window_mask(window: usize, start: usize, count: usize) -> Tensor {
    let length = start + count;
    let hidden = |query: usize, key: usize| u8::from(key > query || query - key >= window);
    let mask = (start..length).flat_map(|query| (0..length).map(move |key| hidden(query, key)));
    Tensor::from_vec(mask.collect(), (count, length), &CPU).unwrap()
}

/// A sequence in a ring and in a growing cache.
struct Pair {
    ring: RotatingKvCache,
    growing: KvCache,
    batch: usize,
    window: usize,
    capacity: usize,
    /// The length of the longest sequence since the last empty one.
    high: usize,
}

impl Pair {
    fn new(batch: usize, window: usize, size: RingSize) -> Self {
        let (ring, growing) = (RotatingKvCache::with_size(2, size), KvCache::new(2, 16));
        Self { ring, growing, batch, window, capacity: size.capacity(), high: 0 }
    }

    fn length(&self) -> usize {
        self.growing.current_seq_len()
    }

    /// Appends to both caches and compares the outputs of attention.
    fn append(&mut self, random: &mut Random, count: usize) {
        let [queries, keys, values] = [0; 3].map(|_| tokens(random, self.batch, count));
        let (start, what) = (self.length(), format!("{} tokens after {}", count, self.length()));
        let mask = self.ring.attn_mask(count, &CPU).unwrap();
        let positions = self.ring.positions(count);
        let (ring_keys, ring_values) = self.ring.append(&keys, &values).unwrap();
        let (all_keys, all_values) = self.growing.append(&keys, &values).unwrap();
        let shown = attention(&queries, [&ring_keys, &ring_values], mask.as_ref());
        let full = window_mask(self.window, start, count);
        let expected = attention(&queries, [&all_keys, &all_values], Some(&full));
        let furthest =
            shown.iter().zip(&expected).map(|(one, other)| (one - other).abs()).fold(0.0, f32::max);
        assert!(furthest < 1e-5, "{what}: {furthest}");
        self.high = if start == 0 { count } else { self.high.max(start + count) };
        assert_eq!(self.ring.current_seq_len(), self.length(), "{what}");
        assert_eq!(self.ring.offset(), self.length() % self.capacity, "{what}");
        assert_eq!(positions.len(), ring_keys.dim(2).unwrap(), "{what}");
        self.check_seen(&ring_keys, &positions, mask.as_ref(), (start, count));
    }

    /// Compares the rows that the mask shows with those of the growing cache, bit for bit.
    fn check_seen(
        &self,
        ring: &Tensor,
        positions: &[usize],
        mask: Option<&Tensor>,
        (start, count): (usize, usize),
    ) {
        let all = self.growing.k().unwrap().unwrap();
        let mask = mask.map(|mask| mask.to_vec2::<u8>().unwrap());
        for query in 0..count {
            let mut seen = Vec::new();
            for (slot, &position) in positions.iter().enumerate() {
                if mask.as_ref().is_none_or(|mask| mask[query][slot] == 0) {
                    seen.push(position);
                    let row = |tensor: &Tensor, at| {
                        let row = tensor.narrow(2, at, 1).unwrap().flatten_all().unwrap();
                        row.to_vec1::<f32>().unwrap()
                    };
                    assert_eq!(row(ring, slot), row(&all, position), "slot {slot}");
                }
            }
            seen.sort_unstable();
            let last = start + query;
            let window: Vec<_> = (last.saturating_sub(self.window - 1)..=last).collect();
            assert_eq!(seen, window, "token {last}");
        }
    }

    /// Returns whether a step is exact, by the inequality that the project has proved.
    fn is_exact(&self, start: usize, rows: usize) -> bool {
        if self.window == 1 {
            return rows <= self.capacity;
        }
        let high = if start == 0 { 0 } else { self.high };
        high.max(start + rows) - start.saturating_sub(self.window - 1) <= self.capacity
    }

    /// Tries an append that is one token too long. Nothing may change.
    fn refuse_append(&mut self, random: &mut Random) {
        let most = self.ring.max_chunk();
        let start = self.length();
        assert!(self.is_exact(start, most) && !self.is_exact(start, most + 1), "{most} after {start}");
        let before = [self.ring.k(), self.ring.v()].map(|held| held.unwrap().unwrap().copy().unwrap());
        let update = tokens(random, self.batch, most + 1);
        let refused = self.ring.append(&update, &update).unwrap_err().to_string();
        let slots = if self.capacity == 1 { "1 slot".to_owned() } else { format!("{} slots", self.capacity) };
        let limit = format!(
            "{} tokens after {start}: a ring of {slots} for a window of {} takes at most {most} here",
            most + 1,
            self.window
        );
        assert!(refused.starts_with(&limit), "{refused}");
        assert!(self.ring.attn_mask(most + 1, &CPU).unwrap_err().to_string().starts_with(&limit));
        let after = [self.ring.k(), self.ring.v()].map(|held| held.unwrap().unwrap());
        for (before, after) in before.iter().zip(&after) {
            let values = |tensor: &Tensor| tensor.flatten_all().unwrap().to_vec1::<f32>().unwrap();
            assert_eq!(values(before), values(after));
        }
        assert_eq!((self.ring.current_seq_len(), self.ring.offset()), (start, start % self.capacity));
    }

    /// Shortens both caches, or neither if the ring has lost what the next token needs.
    fn truncate(&mut self, length: usize) -> bool {
        let current = self.length();
        let expected = length == 0 || length == current || self.is_exact(length, 1);
        match self.ring.truncate(length) {
            Ok(()) => {
                assert!(expected, "truncate {current} to {length} of {}", self.high);
                self.growing.truncate(length).unwrap();
            }
            Err(refused) => {
                assert!(!expected, "{refused}");
                let least = (1..=current).find(|&least| self.is_exact(least, 1)).unwrap();
                let limit = format!("keeps at least {least} here, or none");
                assert!(refused.to_string().contains(&limit), "{refused}");
                assert_eq!(self.ring.current_seq_len(), current);
            }
        }
        expected
    }
}

/// Random chunks and rewinds, until each ring has wrapped three times.
#[test]
fn a_ring_with_slack_shows_what_a_growing_cache_shows() {
    let mut random = Random::new(11, 0);
    let (mut rewound, mut refused) = (0, 0);
    for window in 1..=6 {
        for chunk in 1..=2 * window {
            for rewind in [0, 1, window, random.below(2 * window + 1)] {
                let batch = random.between(1, 3);
                let size = RingSize::for_window(window).chunk(chunk).rewind(rewind);
                let mut pair = Pair::new(batch, window, size);
                // A prompt may be longer than the ring.
                let prompt = random.between(1, 2 * size.capacity());
                pair.append(&mut random, prompt);
                while pair.high < 3 * size.capacity() + prompt {
                    match random.below(6) {
                        0 | 1 => {
                            // Rewinds add up, and those that the size permits always succeed.
                            let lowest = pair.high.saturating_sub(rewind).min(pair.length()).max(1);
                            let length = random.between(lowest, pair.length());
                            rewound += usize::from(length < pair.length());
                            assert!(pair.truncate(length), "{size:?}: {length} of {}", pair.high);
                        }
                        2 => {
                            let length = random.below(pair.length() + 1);
                            if length > 0 {
                                refused += usize::from(!pair.truncate(length));
                            }
                        }
                        3 => pair.refuse_append(&mut random),
                        _ => {
                            let count = random.between(1, chunk);
                            pair.append(&mut random, count);
                        }
                    }
                }
                assert!(pair.truncate(0), "a sequence can always start over");
                pair.append(&mut random, 1);
            }
        }
    }
    assert!(rewound > 500 && refused > 500, "{rewound} {refused}");
}

/// The size is the least: with one slot less, a chunk or a rewind that it permits is refused.
#[test]
fn one_slot_less_refuses_a_step() {
    let mut random = Random::new(12, 0);
    for window in 1..=6 {
        for chunk in 1..=2 * window {
            for rewind in 0..=if window == 1 { 0 } else { 2 * window } {
                let size = RingSize::for_window(window).chunk(chunk).rewind(rewind);
                for (slots, is_enough) in [(size.capacity(), true), (size.capacity() - 1, false)] {
                    let mut ring = RotatingKvCache::with_size(2, size.slots(slots));
                    let token = tokens(&mut random, 1, 1);
                    let length = 3 * size.capacity();
                    let filled = (0..length).all(|_| ring.append(&token, &token).is_ok());
                    let mut accepts = filled && {
                        let mut again = ring.clone();
                        let update = tokens(&mut random, 1, chunk);
                        again.append(&update, &update).is_ok()
                    };
                    accepts = accepts && ring.truncate(length - rewind).is_ok();
                    assert_eq!(accepts, is_enough, "{size:?}, {slots} slots");
                }
            }
        }
    }
}

/// This is why a ring needs a size: candle-nn's ring hides rows that a chunk has overwritten.
#[test]
fn a_ring_without_slack_loses_a_part_of_the_window() {
    let mut random = Random::new(13, 0);
    let mut ring = RotatingKvCache::new(2, 4);
    let mut pair = Pair::new(1, 4, RingSize::for_window(4).chunk(3));
    pair.append(&mut random, 3);
    let first = pair.growing.k().unwrap().unwrap();
    ring.append(&first, &first).unwrap();
    let seen = |mask: Tensor| mask.to_vec2::<u8>().unwrap()[0].iter().filter(|&&hidden| hidden == 0).count();
    assert_eq!(seen(ring.attn_mask(3, &CPU).unwrap().unwrap()), 2, "tokens 2 and 3 of 0 to 3");
    assert_eq!(seen(pair.ring.attn_mask(3, &CPU).unwrap().unwrap()), 4);
    pair.append(&mut random, 3);
}

#[test]
fn sizes_that_cannot_be_are_errors() {
    let token = Tensor::zeros((1, HEADS, 1, SIZE), DType::F32, &CPU).unwrap();
    for size in [
        RingSize::for_window(usize::MAX).chunk(usize::MAX).rewind(usize::MAX),
        RingSize::for_window(4).slots(0),
        RingSize::for_window(4).slots(usize::MAX),
    ] {
        let mut ring = RotatingKvCache::with_size(2, size);
        assert!(ring.append(&token, &token).is_err(), "{size:?}");
        assert_eq!((ring.current_seq_len(), ring.positions(0)), (0, vec![]), "{size:?}");
        ring.truncate(0).unwrap();
    }
    assert_eq!(RingSize::for_window(0).chunk(0).capacity(), 1, "a token sees itself");
}

/// Keys and values stay in step, and a clone keeps its own rewinds.
#[test]
fn clones_and_errors_leave_a_ring_as_it_was() {
    let mut random = Random::new(14, 0);
    let mut pair = Pair::new(2, 3, RingSize::for_window(3).chunk(2).rewind(2));
    for _ in 0..6 {
        pair.append(&mut random, 2);
    }
    let mut clone = pair.ring.clone();
    clone.truncate(10).unwrap();
    let (one, two) = (tokens(&mut random, 2, 1), tokens(&mut random, 2, 2));
    clone.append(&two, &two).unwrap();
    let mut again = pair.ring.clone();
    assert!(again.append(&one, &two.narrow(0, 0, 1).unwrap()).is_err());
    assert_eq!((again.k_cache().current_seq_len(), again.v_cache().current_seq_len()), (12, 12));
    pair.append(&mut random, 2);
    pair.ring.reset();
    pair.growing.reset();
    pair.high = 0;
    pair.append(&mut random, 7);
    pair.append(&mut random, 2);
}
