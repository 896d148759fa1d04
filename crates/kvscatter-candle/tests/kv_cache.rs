//! Compares the drop-in caches with the tokens that were appended to them, and with candle-nn's caches. They must be
//! equal to candle-nn's except for the faults of candle-nn's.
#![cfg(test)]

use candle_core::{DType, Device, Result, Tensor};
use candle_nn::kv_cache as theirs;
use kvscatter::ring::{Feeding, least_capacity};
use kvscatter_candle::kv_cache::{self as ours, RingSize};
use kvscatter_oracle::cases::Random;

const CPU: Device = Device::Cpu;
/// The dimensions of all updates here, `[batch, heads, tokens, head size]`.
const BATCH: usize = 2;
const HEADS: usize = 3;
const SIZE: usize = 2;

/// The elements of a token in each head of each sample.
type Row = Vec<f32>;

/// Returns `count` tokens. Every element is different from those of other calls.
fn tokens(count: usize, call: usize) -> Tensor {
    let first = (call * 10_000) as f32;
    let elements = Tensor::arange(first, first + (BATCH * HEADS * count * SIZE) as f32, &CPU).unwrap();
    elements.reshape((BATCH, HEADS, count, SIZE)).unwrap()
}

/// Returns tokens in the layout in which a projection makes them, `[batch, tokens, heads, size]`.
fn projected(tokens: &Tensor) -> Tensor {
    tokens.transpose(1, 2).unwrap().contiguous().unwrap().transpose(1, 2).unwrap()
}

fn values(tensor: &Tensor) -> Vec<f32> {
    let floats = tensor.to_dtype(DType::F32).unwrap();
    if tensor.elem_count() == 0 { Vec::new() } else { floats.flatten_all().unwrap().to_vec1().unwrap() }
}

/// Returns the rows of a tensor, which must have the dimensions of an update.
fn rows(tensor: &Tensor) -> Vec<Row> {
    let count = tensor.dim(2).unwrap();
    assert_eq!(tensor.dims(), [BATCH, HEADS, count, SIZE]);
    (0..count).map(|token| values(&tensor.narrow(2, token, 1).unwrap())).collect()
}

/// Returns the rows of keys. Their values must be the negative keys.
fn keys((k, v): (Tensor, Tensor)) -> Vec<Row> {
    let rows = [&k, &v.neg().unwrap()].map(rows);
    assert_eq!(rows[0], rows[1]);
    rows[0].clone()
}

fn mask_of(mask: Result<Option<Tensor>>) -> Option<Vec<Vec<u8>>> {
    mask.unwrap().map(|mask| mask.to_vec2().unwrap())
}

/// Returns what a growing cache and a ring contain, which are ours or candle-nn's.
macro_rules! contents {
    ($growing:expr, $ring:expr) => {{
        let (growing, ring) = (&$growing, &$ring);
        let pairs = [(growing.k(), growing.v()), (ring.k(), ring.v())].map(|(k, v)| {
            let (k, v) = (k.unwrap(), v.unwrap());
            assert_eq!(k.is_some(), v.is_some());
            k.zip(v).map(keys)
        });
        let lengths = [growing.k_cache(), growing.v_cache()]
            .map(|cache| (cache.current_seq_len(), cache.max_seq_len()));
        let rings =
            [ring.k_cache(), ring.v_cache()].map(|cache| (cache.current_seq_len(), cache.max_seq_len()));
        (pairs, ring.offset(), [lengths, rings].concat())
    }};
}

/// The tokens of a sequence, and the caches that they were appended to. The values are the negative keys.
struct Sequence {
    tokens: Vec<Row>,
    growing: ours::KvCache,
    ring: ours::RotatingKvCache,
    window: usize,
    /// The size of a ring that refuses what would lose rows. Otherwise the ring has one slot for each token of the
    /// window, as candle-nn's.
    size: Option<RingSize>,
    capacity: usize,
    /// The length of the longest sequence since the last empty one.
    high: usize,
    /// candle-nn's caches, until the sequence is shortened, which they cannot be.
    theirs: Option<(theirs::KvCache, theirs::RotatingKvCache)>,
}

impl Sequence {
    fn new(window: usize, size: Option<RingSize>) -> Self {
        let ring = || ours::RotatingKvCache::new(2, window);
        let theirs = || (theirs::KvCache::new(2, window), theirs::RotatingKvCache::new(2, window));
        Self {
            tokens: Vec::new(),
            growing: ours::KvCache::new(2, window),
            ring: size.map_or_else(ring, |size| ours::RotatingKvCache::with_size(2, size)),
            window,
            size,
            capacity: size.map_or(window, |size| size.capacity()),
            high: 0,
            theirs: size.is_none().then(theirs),
        }
    }

    /// Appends to all caches, and compares what they return and show.
    fn append(&mut self, count: usize, call: usize) {
        let (start, window, has_size) = (self.tokens.len(), self.window, self.size.is_some());
        let what = format!("{count} tokens after {start}, window {window}, {:?}", self.size);
        let k = tokens(count, call);
        let v = k.neg().unwrap();
        let (mask, positions) = (mask_of(self.ring.attn_mask(count, &CPU)), self.ring.positions(count));
        let shown = keys(self.ring.append(&k, &v).unwrap());
        let all = keys(self.growing.append(&projected(&k), &projected(&v)).unwrap());
        if let Some((growing, ring)) = &mut self.theirs {
            // The positions and masks of longer updates are a fault of candle-nn's.
            if count < window {
                assert_eq!(mask, mask_of(ring.attn_mask(count, &CPU)), "{what}");
                assert_eq!(positions, ring.positions(count), "{what}");
            }
            assert_eq!(shown, keys(ring.append(&k, &v).unwrap()), "{what}");
            assert_eq!(all, keys(growing.append(&k, &v).unwrap()), "{what}");
            assert_eq!(contents!(self.growing, self.ring), contents!(*growing, *ring), "{what}");
            let slots = [self.growing.k_cache().all_data(), growing.k_cache().all_data()];
            let [ours, theirs] = slots.map(|slots| slots.as_ref().map(rows));
            assert_eq!(ours, theirs, "{what}");
        }
        self.tokens.extend(rows(&k));
        self.high = if start == 0 { count } else { self.high.max(start + count) };
        assert_eq!(all, self.tokens, "{what}");
        if has_size {
            let returned = if count > self.capacity { k } else { self.ring.k().unwrap().unwrap() };
            assert_eq!(shown, rows(&returned), "{what}");
        }
        assert_eq!(positions.len(), shown.len(), "{what}");
        for query in 0..count {
            let is_seen = |slot: usize| mask.as_ref().is_none_or(|mask| mask[query][slot] == 0);
            let slots = (0..positions.len()).filter(|&slot| is_seen(slot));
            let mut seen: Vec<_> = slots.map(|slot| (positions[slot], &shown[slot])).collect();
            seen.sort_unstable_by_key(|(position, _)| *position);
            let last = start + query;
            // A ring without a size hides the part of the window that the update has overwritten.
            let window =
                (last.saturating_sub(window - 1)..=last).filter(|last| has_size || positions.contains(last));
            let expected: Vec<_> = window.map(|position| (position, &self.tokens[position])).collect();
            assert_eq!(seen, expected, "{what}, token {last}");
        }
        self.check(&what);
    }

    /// Compares the lengths and the contents of our caches with the tokens.
    fn check(&self, what: &str) {
        let length = self.tokens.len();
        let ([growing, ring], offset, lengths) = contents!(self.growing, self.ring);
        assert!(lengths.iter().all(|(number, _)| *number == length), "{what}: {lengths:?}");
        let Some(slots) = ring else { return };
        assert_eq!(growing.as_ref(), Some(&self.tokens), "{what}");
        if self.size.is_some() {
            return assert_eq!(offset, length % self.capacity, "{what}"); // A slot may contain a dropped token.
        }
        for (slot, position) in self.ring.positions(0).into_iter().enumerate() {
            assert!(position + self.window >= length, "{what}");
            assert_eq!(slots[slot], self.tokens[position], "{what}, slot {slot}");
        }
    }

    /// Returns whether a step is exact, by the inequality that the project has proved.
    fn is_exact(&self, start: usize, rows: usize) -> bool {
        let high = if start == 0 { 0 } else { self.high };
        let kept = high.max(start + rows) - start.saturating_sub(self.window - 1);
        (if self.window == 1 { rows } else { kept }) <= self.capacity
    }

    /// Shortens our caches, or none if the ring has lost what it needs. Returns whether they are shorter.
    fn truncate(&mut self, length: usize) -> bool {
        let (current, has_size) = (self.tokens.len(), self.size.is_some());
        let is_kept =
            if has_size { length == 0 || self.is_exact(length, 1) } else { current <= self.capacity };
        let what =
            format!("truncate {current} to {length} of {}, {} {:?}", self.high, self.window, self.size);
        let done = self.ring.truncate(length);
        assert_eq!(done.is_ok(), is_kept || length == current, "{what}: {done:?}");
        if let Err(refused) = &done {
            let least = (1..=current).find(|&least| self.is_exact(least, 1)).unwrap();
            let wrapped = format!("{} has wrapped at {current}", slots(self.capacity));
            let limit = if has_size { format!("keeps at least {least} here, or none") } else { wrapped };
            assert!(refused.to_string().contains(&limit), "{refused}");
        } else {
            self.growing.truncate(length).unwrap();
            self.tokens.truncate(length);
            self.theirs.take_if(|_| length < current);
        }
        self.check(&what);
        done.is_ok() && length < current
    }

    /// Tries an append that is one token too long, and appends whose values do not fit, so that the keys must not
    /// change either. Appends to clones, which must not change the caches.
    fn append_in_vain(&mut self, call: usize) {
        let (most, start, window, k) =
            (self.ring.max_chunk(), self.tokens.len(), self.window, tokens(1, call));
        let before = contents!(self.growing, self.ring);
        if self.size.is_some() {
            assert!(self.is_exact(start, most) && !self.is_exact(start, most + 1), "{most} after {start}");
            let (update, slots) = (tokens(most + 1, call), slots(self.capacity));
            let limit = format!(
                "{} tokens after {start}: a ring of {slots} for a window of {window} takes at most {most} here",
                most + 1
            );
            let appended = self.ring.append(&update, &update).map(drop);
            for refused in [appended, self.ring.attn_mask(most + 1, &CPU).map(drop)] {
                let refused = refused.unwrap_err().to_string();
                assert!(refused.starts_with(&limit), "{refused}");
            }
        } else {
            assert_eq!(most, usize::MAX);
        }
        for v in [k.narrow(1, 0, 2).unwrap(), k.to_dtype(DType::F16).unwrap(), k.get(0).unwrap()] {
            assert!(self.growing.append(&k, &v).is_err() && self.ring.append(&k, &v).is_err(), "{v:?}");
            assert_eq!(contents!(self.growing, self.ring), before, "after an error");
        }
        let (mut growing, mut ring) = (self.growing.clone(), self.ring.clone());
        growing.append(&k, &k).unwrap();
        ring.append(&k, &k).unwrap();
        assert_eq!(rows(&growing.k().unwrap().unwrap())[start], values(&k));
        assert_eq!(contents!(self.growing, self.ring), before, "after appends to clones");
    }

    fn reset(&mut self) {
        self.ring.reset();
        self.growing.reset();
        if let Some((growing, ring)) = &mut self.theirs {
            growing.reset();
            ring.reset();
        }
        (self.tokens, self.high) = (Vec::new(), 0);
        self.check("after a reset");
    }
}

fn slots(count: usize) -> String {
    if count == 1 { "1 slot".to_owned() } else { format!("{count} slots") }
}

/// Updates, rewinds, errors and clones in any order, until each ring has wrapped three times.
#[test]
fn every_token_sees_its_window() {
    let (mut random, mut rewound, mut refused, mut rings) = (Random::new(11, 0), 0, 0, Vec::new());
    for window in 1..=6 {
        rings.extend([(window, window + 2, 0, None); 24]);
        for chunk in 1..=2 * window {
            for rewind in [0, 1, window, random.below(2 * window + 1)] {
                let size = RingSize::for_window(window).chunk(chunk).rewind(rewind);
                let least = least_capacity(window, chunk, rewind, Feeding::WithoutPadding);
                assert_eq!(size.capacity(), least);
                rings.push((window, chunk, rewind, Some(size)));
            }
        }
    }
    for (window, chunk, rewind, size) in rings {
        let mut sequence = Sequence::new(window, size);
        assert_eq!(sequence.ring.max_chunk(), usize::MAX);
        // A prompt may be longer than the ring.
        let prompt = random.between(1, 2 * sequence.capacity);
        sequence.append(prompt, 0);
        for call in 1.. {
            if sequence.high >= 3 * sequence.capacity + prompt {
                break;
            }
            let current = sequence.tokens.len();
            match random.below(6) {
                0 if size.is_some() => {
                    // Rewinds add up, and those that the size permits always succeed.
                    let lowest = sequence.high.saturating_sub(rewind).min(current).max(1);
                    let length = random.between(lowest, current);
                    assert_eq!(sequence.truncate(length), length < current, "{length} of {current}");
                    rewound += usize::from(length < current);
                }
                1 => {
                    let length = random.between(1, current);
                    refused += usize::from(!sequence.truncate(length) && length < current);
                }
                2 => sequence.append_in_vain(call),
                _ => sequence.append(random.between(1, chunk), call),
            }
        }
        if size.is_some() && random.below(2) == 0 {
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
            let [our, their] = [our.append(&k, &k).unwrap(), their.append(&k, &k).unwrap()]
                .map(|(k, v)| [k, v].map(|shown| (shown.dims().to_vec(), values(&shown))));
            assert_eq!(our, their, "dimension {dim}, call {call}");
        }
    }
}

/// A batch of sequences, and the rows that their ring must contain.
struct Batch {
    builder: ours::ScatteredCacheBuilder,
    cache: ours::ScatteredKvCache,
    positions: [usize; BATCH],
    slots: Vec<Row>,
    context: usize,
}

impl Batch {
    fn new(context: usize) -> Self {
        let builder = ours::ScatteredCacheBuilder::new(BATCH, context, DType::F64, &CPU).unwrap();
        let cache = builder.make_cache(HEADS, SIZE).unwrap();
        let slots = vec![vec![0.0; BATCH * HEADS * SIZE]; context];
        Self { builder, cache, positions: [0; BATCH], slots, context }
    }

    /// Appends an update to the active samples, and returns the step and the keys that the update attends to.
    fn append(&mut self, k: &Tensor, active: [bool; BATCH], what: &str) -> (ours::IndicesAndMask, Vec<Row>) {
        let (new, starts, context) = (rows(k), self.positions, self.context);
        let count = new.len();
        let step = self.builder.indices_and_mask(count, &active).unwrap();
        let untouched = self.cache.clone();
        let before = rows(untouched.k());
        let shown = keys(self.cache.append(k, &k.neg().unwrap(), &step).unwrap());
        assert_eq!(rows(untouched.k()), before, "{what}: a clone is an independent cache");
        for sample in (0..BATCH).filter(|&sample| active[sample]) {
            let elements = sample * HEADS * SIZE..(sample + 1) * HEADS * SIZE;
            for (token, row) in new.iter().enumerate() {
                let slot = &mut self.slots[(starts[sample] + token) % context];
                slot[elements.clone()].copy_from_slice(&row[elements.clone()]);
            }
            self.positions[sample] += count;
        }
        assert_eq!(self.builder.positions(), self.positions, "{what}");
        assert_eq!(rows(self.cache.k()), self.slots, "{what}");
        // A long update attends to itself, so each of its tokens is in the slot of its index.
        let is_long = count >= context;
        assert_eq!(shown, if is_long { new } else { self.slots.clone() }, "{what}");
        let dims = if is_long { vec![count; 2] } else { vec![BATCH, 1, count, context] };
        assert_eq!((step.mask().dims(), step.mask().dtype()), (&dims[..], DType::F64), "{what}");
        let mut mask = Vec::new();
        for sample in 0..if is_long { 1 } else { BATCH } {
            let start = if is_long { 0 } else { starts[sample] };
            for query in start..start + count {
                mask.extend((0..dims[dims.len() - 1]).map(|slot| {
                    let position = if is_long { Some(slot) } else { newest(start + count, slot, context) };
                    let is_seen = position.is_some_and(|at| at <= query && query < at + context);
                    let is_shown = is_seen || !(is_long || active[sample]);
                    if is_shown { 0.0 } else { f32::NEG_INFINITY }
                }));
            }
        }
        assert_eq!(values(step.mask()), mask, "{what}");
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
        let mut their = theirs::ScatteredCacheBuilder::new(BATCH, context, DType::F64, &CPU).unwrap();
        let mut their_kv = their.make_cache(HEADS, SIZE).unwrap();
        let mut has_their_masks = true;
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
            let count = random.between(1, context + 2);
            let k = tokens(count, call).to_dtype(DType::F64).unwrap();
            let (step, shown) = our.append(&k, active, &what);
            has_their_masks = has_their_masks && count < context;
            if has_their_masks {
                let theirs = their.indices_and_mask(count, &active).unwrap();
                assert_eq!(step.mask().dims(), theirs.mask().dims(), "{what}");
                assert_eq!(values(step.mask()), values(theirs.mask()), "{what}");
                assert_eq!(our.builder.positions(), their.positions(), "{what}");
                let (theirs, _) = their_kv.append(&k, &k, &theirs).unwrap();
                assert!(!are_all_active || shown == rows(&theirs), "{what}");
            }
        }
    }
}

/// The reasons for which these caches differ from candle-nn's.
#[test]
fn candle_nns_caches_have_these_faults() {
    const GONE: &str = "the fault is gone: follow candle-nn again";
    let [one, other, last] = [0, 1, 2].map(|call| tokens(1, call));
    // Positions of an update with one token for each slot are rotated, and masks of long updates show one more token.
    let mut ring = theirs::RotatingCache::new(2, 3);
    ring.append(&one).unwrap();
    assert_eq!(ring.positions(3), [3, 1, 2], "{GONE}");
    let mask = mask_of(theirs::RotatingCache::new(2, 3).attn_mask(6, &CPU)).unwrap();
    assert_eq!(mask[5], [1, 1, 0, 0, 0, 0], "{GONE}");
    // Clones overwrite each other's tokens, and updates must be contiguous.
    let mut growing = theirs::KvCache::new(2, 4);
    growing.append(&one, &one).unwrap();
    let mut clone = growing.clone();
    let (shown, _) = growing.append(&other, &other).unwrap();
    let before = values(&shown);
    clone.append(&last, &last).unwrap();
    assert_ne!(values(&shown), before, "{GONE}");
    let strided = projected(&tokens(5, 0));
    assert!(theirs::KvCache::new(2, 8).append(&strided, &strided).is_err(), "{GONE}");
    // Samples that are left out are written, and updates with one token for each slot are not.
    let mut builder = theirs::ScatteredCacheBuilder::new(BATCH, 2, DType::F32, &CPU).unwrap();
    let mut cache = builder.make_cache(HEADS, SIZE).unwrap();
    for (count, is_written) in [(1, true), (2, false)] {
        let (step, k) = (builder.indices_and_mask(count, &[true, false]).unwrap(), tokens(count, count));
        cache.append(&k, &k, &step).unwrap();
        let left_out = values(&k.get(1).unwrap())[0];
        assert_eq!(values(&cache.k().get(1).unwrap()).contains(&left_out), is_written, "{GONE}");
    }
}

/// A clone that has been dropped causes no copy, so the memory stays at its address.
#[test]
fn memory_is_copied_only_while_a_clone_lives() {
    let address = |cache: &ours::KvCache| {
        let all = cache.k_cache().all_data().as_ref().unwrap();
        std::ptr::from_ref(&*all.storage_and_layout().0).addr()
    };
    let (mut cache, one) = (ours::KvCache::new(2, 8), tokens(1, 0));
    cache.append(&one, &one).unwrap();
    let begin = address(&cache);
    drop(cache.clone());
    cache.append(&one, &one).unwrap();
    assert_eq!(address(&cache), begin);
    let clone = cache.clone();
    cache.append(&one, &one).unwrap();
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
        assert_eq!(rows(cache.k_cache().all_data().as_ref().unwrap())[1], [0.0; BATCH * HEADS * SIZE]);
    }
    // An empty cache accepts another shape and type, if it has the dimension.
    let mut cache = ours::KvCache::new(2, 2);
    assert!(cache.append(&one, &one.get(0).unwrap().get(0).unwrap()).is_err());
    let other = one.to_dtype(DType::F64).unwrap().narrow(0, 0, 1).unwrap();
    cache.append(&other, &other).unwrap();
    assert_eq!(cache.k().unwrap().unwrap().dims(), [1, HEADS, 1, SIZE]);

    for mut cache in
        [(2, 0), (4, 2), (2, usize::MAX), (2, 1 << 62)].map(|(dim, slots)| ours::KvCache::new(dim, slots))
    {
        let refused = cache.append(&one, &one).unwrap_err().to_string();
        assert!(cache.k_cache().max_seq_len() <= 2 || refused.contains("past_cache"), "{refused}");
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
