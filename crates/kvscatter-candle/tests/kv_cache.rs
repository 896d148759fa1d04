//! Compares the drop-in caches with the tokens that were appended to them, and with candle-nn's caches. They must be
//! equal to candle-nn's except for the faults of candle-nn's.
#![expect(clippy::unwrap_used, reason = "a helper that panics fails its test")]

use candle_core::{DType, Device, Tensor};
use candle_nn::kv_cache as theirs;
use kvscatter::ring::{Feeding, least_capacity};
use kvscatter_candle::kv_cache::{self as ours, RingSize};
use kvscatter_oracle::cases::Random;

const CPU: Device = Device::Cpu;
/// The dimensions of all updates here, `[batch, heads, tokens, head size]`.
const BATCH: usize = 2;
const HEADS: usize = 3;
const SIZE: usize = 2;

/// Returns `count` tokens. Every element is different from those of other calls.
fn tokens(count: usize, call: usize) -> Tensor {
    let first = (call * 10_000) as f32;
    let elements = BATCH * HEADS * count * SIZE;
    let values: Vec<_> = (0..elements).map(|element| first + element as f32).collect();
    Tensor::from_vec(values, (BATCH, HEADS, count, SIZE), &CPU).unwrap()
}

fn values(tensor: &Tensor) -> Vec<f32> {
    if tensor.elem_count() == 0 { Vec::new() } else { tensor.flatten_all().unwrap().to_vec1().unwrap() }
}

/// Returns the row of a token in each head of each sample.
fn row(tensor: &Tensor, token: usize) -> Vec<f32> {
    values(&tensor.narrow(2, token, 1).unwrap())
}

fn same(ours: &Tensor, theirs: &Tensor, what: &str) {
    assert_eq!(ours.dims(), theirs.dims(), "{what}");
    assert_eq!(values(ours), values(theirs), "{what}");
}

fn same_if_any(ours: Option<Tensor>, theirs: Option<Tensor>, what: &str) {
    match (ours, theirs) {
        (Some(ours), Some(theirs)) => same(&ours, &theirs, what),
        (ours, theirs) => assert!(ours.is_none() && theirs.is_none(), "{what}: {ours:?} {theirs:?}"),
    }
}

/// What a ring is made for.
#[derive(Clone, Copy, Debug)]
struct Ring {
    window: usize,
    chunk: usize,
    rewind: usize,
    /// Whether the ring has a [`RingSize`], with which it refuses what would lose rows. Otherwise it has one slot for
    /// each token of the window, as candle-nn's.
    has_size: bool,
}

impl Ring {
    fn size(&self) -> RingSize {
        RingSize::for_window(self.window).chunk(self.chunk).rewind(self.rewind)
    }

    fn capacity(&self) -> usize {
        if self.has_size { self.size().capacity() } else { self.window }
    }
}

/// The tokens of a sequence, and the caches that they were appended to. The values are the negative keys.
struct Sequence {
    tokens: Tensor,
    growing: ours::KvCache,
    ring: ours::RotatingKvCache,
    made_for: Ring,
    /// The length of the longest sequence since the last empty one.
    high: usize,
    /// candle-nn's caches, until the sequence is shortened, which they cannot be.
    theirs: Option<(theirs::KvCache, theirs::RotatingKvCache)>,
}

impl Sequence {
    fn new(made_for: Ring) -> Self {
        let room = made_for.window;
        Self {
            tokens: tokens(0, 0),
            growing: ours::KvCache::new(2, room),
            ring: match made_for.has_size {
                true => ours::RotatingKvCache::with_size(2, made_for.size()),
                false => ours::RotatingKvCache::new(2, room),
            },
            made_for,
            high: 0,
            theirs: (!made_for.has_size)
                .then(|| (theirs::KvCache::new(2, room), theirs::RotatingKvCache::new(2, room))),
        }
    }

    fn length(&self) -> usize {
        self.tokens.dim(2).unwrap()
    }

    /// Appends to all caches, and compares what they return and show.
    fn append(&mut self, count: usize, call: usize) {
        let what = format!("{count} tokens after {} in {:?}", self.length(), self.made_for);
        let (start, k) = (self.length(), tokens(count, call));
        let v = k.neg().unwrap();
        let (mask, positions) = (self.ring.attn_mask(count, &CPU).unwrap(), self.ring.positions(count));
        let mask = mask.map(|mask| mask.to_vec2::<u8>().unwrap());
        let (shown, all) = (self.ring.append(&k, &v).unwrap(), self.growing.append(&k, &v).unwrap());
        if let Some((growing, ring)) = &mut self.theirs {
            // The positions and masks of longer updates are a fault of candle-nn's.
            if count < self.made_for.window {
                assert_eq!(positions, ring.positions(count), "{what}");
                let theirs = ring.attn_mask(count, &CPU).unwrap();
                assert_eq!(mask, theirs.map(|mask| mask.to_vec2::<u8>().unwrap()), "{what}");
            }
            let pairs = [(&shown, ring.append(&k, &v)), (&all, growing.append(&k, &v))];
            for (ours, theirs) in pairs {
                let theirs = theirs.unwrap();
                same(&ours.0, &theirs.0, &what);
                same(&ours.1, &theirs.1, &what);
            }
            assert_eq!(self.ring.offset(), ring.offset(), "{what}");
            same_if_any(self.ring.k().unwrap(), ring.k().unwrap(), &what);
            let growing = growing.k_cache();
            assert_eq!(self.growing.k_cache().max_seq_len(), growing.max_seq_len(), "{what}");
            same_if_any(self.growing.k_cache().all_data().clone(), growing.all_data().clone(), &what);
        }
        self.tokens = Tensor::cat(&[&self.tokens, &k], 2).unwrap();
        self.high = if start == 0 { count } else { self.high.max(start + count) };
        same(&all.0, &self.tokens, &what);
        same(&all.1, &self.tokens.neg().unwrap(), &what);
        same(&shown.1, &shown.0.neg().unwrap(), &what);
        if self.made_for.has_size && count <= self.made_for.capacity() {
            same(&shown.0, &self.ring.k().unwrap().unwrap(), &what);
        } else if self.made_for.has_size {
            same(&shown.0, &k, &what);
        }
        assert_eq!(positions.len(), shown.0.dim(2).unwrap(), "{what}");
        for query in 0..count {
            let is_seen = |slot: usize| mask.as_ref().is_none_or(|mask| mask[query][slot] == 0);
            let slots = (0..positions.len()).filter(|&slot| is_seen(slot));
            let mut seen: Vec<_> = slots.map(|slot| (positions[slot], row(&shown.0, slot))).collect();
            seen.sort_unstable_by_key(|(position, _)| *position);
            let last = start + query;
            let window = last.saturating_sub(self.made_for.window - 1)..=last;
            // A ring without a size hides the part of the window that the update has overwritten.
            let window = window.filter(|position| self.made_for.has_size || positions.contains(position));
            let expected: Vec<_> = window.map(|position| (position, row(&self.tokens, position))).collect();
            assert_eq!(seen, expected, "{what}, token {last}");
        }
        self.check(&what);
    }

    /// Compares the lengths and the contents of our caches with the tokens.
    fn check(&self, what: &str) {
        let length = self.length();
        let lengths = [self.growing.k_cache().current_seq_len(), self.growing.v_cache().current_seq_len()];
        assert_eq!(lengths, [length; 2], "{what}");
        let lengths = [self.ring.k_cache().current_seq_len(), self.ring.v_cache().current_seq_len()];
        assert_eq!(lengths, [length; 2], "{what}");
        let Some(slots) = self.ring.k().unwrap() else { return };
        same(&self.growing.k().unwrap().unwrap(), &self.tokens, what);
        same(&self.ring.v().unwrap().unwrap(), &slots.neg().unwrap(), what);
        if self.made_for.has_size {
            assert_eq!(self.ring.offset(), length % self.made_for.capacity(), "{what}");
            return; // After a rewind, a slot may contain a token that was dropped.
        }
        for (slot, position) in self.ring.positions(0).into_iter().enumerate() {
            assert!(position + self.made_for.window >= length, "{what}");
            assert_eq!(row(&slots, slot), row(&self.tokens, position), "{what}, slot {slot}");
        }
    }

    /// Returns whether a step is exact, by the inequality that the project has proved.
    fn is_exact(&self, start: usize, rows: usize) -> bool {
        let (window, capacity) = (self.made_for.window, self.made_for.capacity());
        if window == 1 {
            return rows <= capacity;
        }
        let high = if start == 0 { 0 } else { self.high };
        high.max(start + rows) - start.saturating_sub(window - 1) <= capacity
    }

    /// Shortens our caches, or none if the ring has lost what it needs. Returns whether they are shorter.
    fn truncate(&mut self, length: usize) -> bool {
        let (current, capacity) = (self.length(), self.made_for.capacity());
        let expected = length == current
            || if self.made_for.has_size {
                length == 0 || self.is_exact(length, 1)
            } else {
                current <= capacity
            };
        let what = format!("truncate {current} to {length} of {}, {:?}", self.high, self.made_for);
        match self.ring.truncate(length) {
            Ok(()) => {
                assert!(expected, "{what}");
                self.growing.truncate(length).unwrap();
                self.tokens = self.tokens.narrow(2, 0, length).unwrap();
                if length < current {
                    self.theirs = None;
                }
            }
            Err(refused) => {
                assert!(!expected, "{what}: {refused}");
                let least = (1..=current).find(|&least| self.is_exact(least, 1)).unwrap();
                let limit = match self.made_for.has_size {
                    true => format!("keeps at least {least} here, or none"),
                    false => format!("{} has wrapped at {current}", slots(capacity)),
                };
                assert!(refused.to_string().contains(&limit), "{refused}");
            }
        }
        self.check(&what);
        expected && length < current
    }

    /// Tries an append that is one token too long.
    fn append_too_much(&mut self, call: usize) {
        let (most, start, Ring { window, .. }) = (self.ring.max_chunk(), self.length(), self.made_for);
        if !self.made_for.has_size || start == 0 {
            return assert_eq!(most, usize::MAX);
        }
        assert!(self.is_exact(start, most) && !self.is_exact(start, most + 1), "{most} after {start}");
        let before = self.ring.k().unwrap().unwrap().copy().unwrap();
        let update = tokens(most + 1, call);
        let limit = format!(
            "{} tokens after {start}: a ring of {} for a window of {window} takes at most {most} here",
            most + 1,
            slots(self.made_for.capacity())
        );
        for refused in [
            self.ring.append(&update, &update).map(drop).unwrap_err(),
            self.ring.attn_mask(most + 1, &CPU).map(drop).unwrap_err(),
        ] {
            assert!(refused.to_string().starts_with(&limit), "{refused}");
        }
        same(&self.ring.k().unwrap().unwrap(), &before, &limit);
        self.check(&limit);
    }

    /// Tries appends whose values do not fit, so that the keys must not change either.
    fn append_misfits(&mut self, call: usize) {
        let k = tokens(1, call);
        let heads = tokens(2, call).narrow(1, 0, 2).unwrap();
        let room = self.growing.k_cache().max_seq_len();
        for v in [heads, k.to_dtype(DType::F16).unwrap(), k.get(0).unwrap()] {
            assert!(self.growing.append(&k, &v).is_err(), "{v:?}");
            assert!(self.ring.append(&k, &v).is_err(), "{v:?}");
            assert_eq!(self.growing.k_cache().max_seq_len(), room);
        }
        self.check("after errors");
    }

    /// Appends to clones, which must not change the caches.
    fn append_to_clones(&self, call: usize) {
        let (mut growing, mut ring, update) = (self.growing.clone(), self.ring.clone(), tokens(1, call));
        growing.append(&update, &update).unwrap();
        ring.append(&update, &update).unwrap();
        assert_eq!(row(&growing.k().unwrap().unwrap(), self.length()), values(&update));
        self.check("after appends to clones");
    }

    fn reset(&mut self) {
        self.ring.reset();
        self.growing.reset();
        if let Some((growing, ring)) = &mut self.theirs {
            growing.reset();
            ring.reset();
        }
        (self.tokens, self.high) = (tokens(0, 0), 0);
        self.check("after a reset");
    }
}

fn slots(count: usize) -> String {
    if count == 1 { "1 slot".to_owned() } else { format!("{count} slots") }
}

/// Updates, rewinds, errors and clones in any order, until each ring has wrapped three times.
#[test]
fn every_token_sees_its_window() {
    let mut random = Random::new(11, 0);
    let (mut rewound, mut refused) = (0, 0);
    let mut rings = Vec::new();
    for window in 1..=6 {
        let plain = Ring { window, chunk: window + 2, rewind: 0, has_size: false };
        rings.extend([plain; 24]);
        for chunk in 1..=2 * window {
            for rewind in [0, 1, window, random.below(2 * window + 1)] {
                rings.push(Ring { window, chunk, rewind, has_size: true });
                let least = least_capacity(window, chunk, rewind, Feeding::WithoutPadding);
                assert_eq!(RingSize::for_window(window).chunk(chunk).rewind(rewind).capacity(), least);
            }
        }
    }
    for made_for in rings {
        let (mut sequence, capacity) = (Sequence::new(made_for), made_for.capacity());
        // A prompt may be longer than the ring.
        let prompt = random.between(1, 2 * capacity);
        sequence.append(prompt, 0);
        for call in 1.. {
            if sequence.high >= 3 * capacity + prompt {
                break;
            }
            let current = sequence.length();
            match random.below(9) {
                0 if made_for.has_size => {
                    // Rewinds add up, and those that the size permits always succeed.
                    let lowest = sequence.high.saturating_sub(made_for.rewind).min(current).max(1);
                    let length = random.between(lowest, current);
                    assert_eq!(sequence.truncate(length), length < current, "{length} of {current}");
                    rewound += usize::from(length < current);
                }
                1 => {
                    let length = random.between(1, current);
                    refused += usize::from(!sequence.truncate(length) && length < current);
                }
                2 => sequence.append_too_much(call),
                3 => sequence.append_misfits(call),
                4 => sequence.append_to_clones(call),
                _ => sequence.append(random.between(1, made_for.chunk), call),
            }
        }
        if made_for.has_size && random.below(2) == 0 {
            assert!(sequence.truncate(0), "a sequence can always start over");
        } else {
            sequence.reset();
        }
        sequence.append(1, 0);
    }
    assert!(rewound > 300 && refused > 300, "{rewound} {refused}");
}

/// Dimensions other than that of the sequence may grow too.
#[test]
fn any_dimension_grows() {
    for dim in [0, 1, 3] {
        let (mut our, mut their) = (ours::KvCache::new(dim, 3), theirs::KvCache::new(dim, 3));
        for call in 0..9 {
            let k = tokens(2, call);
            let (our, their) = (our.append(&k, &k).unwrap(), their.append(&k, &k).unwrap());
            same(&our.0, &their.0, &format!("dimension {dim}, call {call}"));
        }
    }
}

/// A batch of sequences, and the rows that their ring must contain.
struct Batch {
    builder: ours::ScatteredCacheBuilder,
    cache: ours::ScatteredKvCache,
    positions: [usize; BATCH],
    /// The keys in each slot of each sample.
    slots: Vec<[Vec<f32>; BATCH]>,
    context: usize,
}

impl Batch {
    fn new(context: usize) -> Self {
        let builder = ours::ScatteredCacheBuilder::new(BATCH, context, DType::F32, &CPU).unwrap();
        let cache = builder.make_cache(HEADS, SIZE).unwrap();
        let slots = vec![[(); BATCH].map(|()| vec![0.0; HEADS * SIZE]); context];
        Self { builder, cache, positions: [0; BATCH], slots, context }
    }

    /// Appends an update to the active samples, and returns the step and the tensors that the update attends to.
    fn append(&mut self, k: &Tensor, active: [bool; BATCH], what: &str) -> (ours::IndicesAndMask, Tensor) {
        let (count, starts) = (k.dim(2).unwrap(), self.positions);
        let step = self.builder.indices_and_mask(count, &active).unwrap();
        let untouched = self.cache.clone();
        let before = values(untouched.k());
        let (shown, shown_values) = self.cache.append(k, &k.neg().unwrap(), &step).unwrap();
        assert_eq!(values(untouched.k()), before, "{what}: a clone is an independent cache");
        same(&shown_values, &shown.neg().unwrap(), what);
        for sample in (0..BATCH).filter(|&sample| active[sample]) {
            for token in 0..count {
                let slot = (starts[sample] + token) % self.context;
                self.slots[slot][sample] = row(&k.narrow(0, sample, 1).unwrap(), token);
            }
            self.positions[sample] += count;
        }
        assert_eq!(self.builder.positions(), self.positions, "{what}");
        for (slot, rows) in self.slots.iter().enumerate() {
            assert_eq!(row(self.cache.k(), slot), rows.concat(), "{what}, slot {slot}");
        }
        // A long update attends to itself, so each of its tokens is in the slot of its index.
        let is_long = count >= self.context;
        same(&shown, if is_long { k } else { self.cache.k() }, what);
        let dims = if is_long { vec![count; 2] } else { vec![BATCH, 1, count, self.context] };
        assert_eq!(step.mask().dims(), dims, "{what}");
        let mut mask = values(step.mask()).into_iter();
        for sample in 0..if is_long { 1 } else { BATCH } {
            let (start, end) = if is_long { (0, count) } else { (starts[sample], starts[sample] + count) };
            for (query, slot) in (start..start + count)
                .flat_map(|query| (0..dims[dims.len() - 1]).map(move |slot| (query, slot)))
            {
                let position = if is_long { Some(slot) } else { newest(end, slot, self.context) };
                let is_seen = position.is_some_and(|at| at <= query && query < at + self.context);
                let is_shown = is_seen || !(is_long || active[sample]);
                let expected = if is_shown { 0.0 } else { f32::NEG_INFINITY };
                assert_eq!(
                    mask.next(),
                    Some(expected),
                    "{what}, sample {sample}, token {query}, slot {slot}"
                );
            }
        }
        (step, shown)
    }
}

/// Returns the last position below `end` in this slot.
fn newest(end: usize, slot: usize, context: usize) -> Option<usize> {
    (0..end).rev().take(context).find(|position| position % context == slot)
}

/// Each sample contains the tokens that were appended while it was active. candle-nn's caches agree until they meet
/// one of their faults.
#[test]
fn each_sample_of_a_batch_has_its_own_tokens() {
    let mut random = Random::new(3, 0);
    for round in 0..100 {
        let (context, are_all_active) = (random.between(2, 6), round < 60);
        let mut our = Batch::new(context);
        let mut their = theirs::ScatteredCacheBuilder::new(BATCH, context, DType::F32, &CPU).unwrap();
        let mut their_kv = their.make_cache(HEADS, SIZE).unwrap();
        let (mut has_their_masks, mut has_their_rows) = (true, true);
        for call in 1..30 {
            let (sample, what) = (random.below(BATCH), format!("context {context}, call {call}"));
            let length = our.positions[sample];
            match random.below(18) {
                0 | 1 => {
                    our.builder.reset_batch_index(sample);
                    their.reset_batch_index(sample);
                    our.positions[sample] = 0;
                }
                2 if length > context => {
                    assert!(our.builder.truncate_batch_index(sample, length - 1).is_err(), "{what}");
                }
                2 => {
                    our.positions[sample] = random.below(length + 1);
                    our.builder.truncate_batch_index(sample, our.positions[sample]).unwrap();
                    has_their_masks = has_their_masks && our.positions[sample] == length;
                }
                _ => {}
            }
            let active = [(); BATCH].map(|()| are_all_active || random.below(2) == 0);
            let k = tokens(random.between(1, context + 2), call);
            let (step, shown) = our.append(&k, active, &what);
            let is_long = k.dim(2).unwrap() >= context;
            has_their_masks = has_their_masks && !is_long;
            has_their_rows = has_their_rows && has_their_masks && active == [true; BATCH];
            if has_their_masks {
                let theirs = their.indices_and_mask(k.dim(2).unwrap(), &active).unwrap();
                same(step.mask(), theirs.mask(), &what);
                assert_eq!(our.builder.positions(), their.positions(), "{what}");
                let theirs = their_kv.append(&k, &k, &theirs).unwrap();
                if has_their_rows {
                    same(&shown, &theirs.0, &what);
                }
            }
        }
    }
}

/// The reasons for which these caches differ from candle-nn's.
#[test]
fn candle_nns_caches_have_these_faults() {
    const GONE: &str = "the fault is gone: follow candle-nn again";
    // Positions of an update with one token for each slot are rotated, and masks of long updates show one more token.
    let mut ring = theirs::RotatingCache::new(2, 3);
    ring.append(&tokens(1, 0)).unwrap();
    assert_eq!(ring.positions(3), [3, 1, 2], "{GONE}");
    let mask = theirs::RotatingCache::new(2, 3).attn_mask(6, &CPU).unwrap().unwrap();
    assert_eq!(mask.to_vec2::<u8>().unwrap()[5], [1, 1, 0, 0, 0, 0], "{GONE}");
    // Clones overwrite each other's tokens, and updates must be contiguous.
    let mut growing = theirs::KvCache::new(2, 4);
    growing.append(&tokens(1, 0), &tokens(1, 0)).unwrap();
    let mut clone = growing.clone();
    let (shown, _) = growing.append(&tokens(1, 1), &tokens(1, 1)).unwrap();
    let before = values(&shown);
    clone.append(&tokens(1, 2), &tokens(1, 2)).unwrap();
    assert_ne!(values(&shown), before, "{GONE}");
    assert!(theirs::KvCache::new(2, 8).append(&projected(), &projected()).is_err(), "{GONE}");
    // Samples that are left out are written, and updates with one token for each slot are not.
    let mut builder = theirs::ScatteredCacheBuilder::new(BATCH, 2, DType::F32, &CPU).unwrap();
    let mut cache = builder.make_cache(HEADS, SIZE).unwrap();
    for (count, is_written) in [(1, true), (2, false)] {
        let step = builder.indices_and_mask(count, &[true, false]).unwrap();
        cache.append(&tokens(count, count), &tokens(count, count), &step).unwrap();
        let last =
            values(&cache.k().get(1).unwrap()).contains(&values(&tokens(count, count))[count * HEADS * SIZE]);
        assert_eq!(last, is_written, "{GONE}");
    }
}

/// Returns `[batch, tokens, heads, size]` as a projection makes it, transposed.
fn projected() -> Tensor {
    tokens(5, 0).transpose(1, 2).unwrap().contiguous().unwrap().transpose(1, 2).unwrap()
}

#[test]
fn updates_may_be_strided() {
    let (k, v) = ours::KvCache::new(2, 8).append(&projected(), &projected()).unwrap();
    same(&k, &tokens(5, 0), "keys");
    same(&v, &tokens(5, 0), "values");
}

#[test]
fn long_masks_have_the_caches_type() {
    let mut our = ours::ScatteredCacheBuilder::new(1, 2, DType::F16, &CPU).unwrap();
    for count in [1, 4] {
        assert_eq!(our.indices_and_mask(count, &[true]).unwrap().mask().dtype(), DType::F16);
    }
}

/// A clone that has been dropped causes no copy, so the memory stays at its address.
#[test]
fn memory_is_copied_only_while_a_clone_lives() {
    let address = |cache: &ours::KvCache| {
        let all = cache.k_cache().all_data().as_ref().unwrap();
        std::ptr::from_ref(&*all.storage_and_layout().0).addr()
    };
    let mut cache = ours::KvCache::new(2, 8);
    cache.append(&tokens(1, 0), &tokens(1, 0)).unwrap();
    let begin = address(&cache);
    drop(cache.clone());
    cache.append(&tokens(1, 1), &tokens(1, 1)).unwrap();
    assert_eq!(address(&cache), begin);
    let clone = cache.clone();
    cache.append(&tokens(1, 2), &tokens(1, 2)).unwrap();
    assert_ne!(address(&cache), begin);
    assert_eq!(address(&clone), begin);
}

#[test]
fn impossible_calls_are_errors() {
    let one = tokens(1, 0);
    let mut cache = ours::KvCache::new(2, 2);
    cache.append(&one, &one).unwrap();
    let refused = cache.truncate(2).unwrap_err().to_string();
    assert_eq!(refused.lines().next(), Some("truncate to 2 tokens: the cache has 1"));
    for own in [cache.k(), cache.v()] {
        assert!(cache.append(&tokens(1, 1), &own.unwrap().unwrap()).is_err());
        assert_eq!(row(cache.k_cache().all_data().as_ref().unwrap(), 1), [0.0; BATCH * HEADS * SIZE]);
    }
    // An empty cache accepts another shape and type, if it has the dimension.
    let mut cache = ours::KvCache::new(2, 2);
    assert!(cache.append(&one, &one.get(0).unwrap().get(0).unwrap()).is_err());
    let other = one.to_dtype(DType::F64).unwrap().narrow(0, 0, 1).unwrap();
    cache.append(&other, &other).unwrap();
    assert_eq!(cache.k().unwrap().unwrap().dims(), [1, HEADS, 1, SIZE]);

    for mut cache in [ours::KvCache::new(2, 0), ours::KvCache::new(4, 2)] {
        assert!(cache.append(&one, &one).is_err());
    }
    for slots in [usize::MAX, 1 << 62] {
        let mut cache = ours::KvCache::new(2, slots);
        let refused = cache.append(&one, &one).unwrap_err();
        assert!(refused.to_string().contains("past_cache"), "{refused}");
        assert_eq!(cache.current_seq_len(), 0);
    }
    let size = RingSize::for_window;
    let sizes =
        [size(usize::MAX).chunk(usize::MAX).rewind(usize::MAX), size(4).slots(0), size(4).slots(usize::MAX)];
    let rings = sizes.map(|size| ours::RotatingKvCache::with_size(2, size));
    for mut ring in [ours::RotatingKvCache::new(2, 0)].into_iter().chain(rings) {
        assert!(ring.append(&one, &one).is_err());
        assert_eq!((ring.current_seq_len(), ring.positions(0)), (0, vec![]));
        ring.truncate(0).unwrap();
    }
    assert_eq!(size(0).chunk(0).capacity(), 1, "a token sees itself");

    assert!(ours::ScatteredCacheBuilder::new(2, 0, DType::F32, &CPU).is_err());
    let mut builder = ours::ScatteredCacheBuilder::new(2, 4, DType::F32, &CPU).unwrap();
    assert!(builder.indices_and_mask(1, &[true]).is_err());
    assert_eq!(builder.positions(), [0, 0]);
    let step = builder.indices_and_mask(1, &[true, true]).unwrap();
    let mut cache = builder.make_cache(HEADS, SIZE).unwrap();
    assert!(cache.append(&tokens(2, 0), &tokens(2, 0), &step).is_err());
}
