//! Compares the drop-in caches with candle-nn's. They must be equal except for the faults of candle-nn's.
#![expect(clippy::unwrap_used, reason = "a helper that panics fails its test")]

use candle_core::{DType, Device, Tensor};
use candle_nn::kv_cache as theirs;
use kvscatter_candle::kv_cache as ours;
use kvscatter_oracle::cases::Random;
use kvscatter_oracle::onnx;

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

#[test]
fn growing_caches_do_what_candle_nns_do() {
    let mut random = Random::new(1, 0);
    for dim in [2; 57].into_iter().chain([0, 1, 3]) {
        let room = random.between(1, 6);
        let (mut our, mut their) = (ours::KvCache::new(dim, room), theirs::KvCache::new(dim, room));
        for call in 0..30 {
            let what = format!("dimension {dim}, room {room}, call {call}");
            if random.below(9) == 0 {
                our.reset();
                their.reset();
            } else {
                // Updates may differ in the dimension that grows, and in no other.
                let count = if dim == 2 { random.between(1, 5) } else { 2 };
                let (k, v) = (tokens(count, call), tokens(count, call + 100));
                let (our_kv, their_kv) = (our.append(&k, &v).unwrap(), their.append(&k, &v).unwrap());
                same(&our_kv.0, &their_kv.0, &what);
                same(&our_kv.1, &their_kv.1, &what);
            }
            assert_eq!(our.current_seq_len(), their.current_seq_len(), "{what}");
            assert_eq!(our.k_cache().max_seq_len(), their.k_cache().max_seq_len(), "{what}");
            same_if_any(our.k().unwrap(), their.k().unwrap(), &what);
            same_if_any(our.v().unwrap(), their.v().unwrap(), &what);
            same_if_any(our.k_cache().all_data().clone(), their.k_cache().all_data().clone(), &what);
        }
    }
}

/// The contents of a ring are compared with the oracle's. Masks, positions and the results of `append` are
/// compared with candle-nn's.
#[test]
fn rings_do_what_candle_nns_do() {
    let mut random = Random::new(2, 0);
    for _ in 0..80 {
        let room = random.between(1, 6);
        let (mut our, mut their) =
            (ours::RotatingKvCache::new(2, room), theirs::RotatingKvCache::new(2, room));
        let mut slots = vec![0.0; BATCH * HEADS * room * SIZE];
        for call in 0..30 {
            let what = format!("room {room}, call {call}");
            if random.below(9) == 0 {
                our.reset();
                their.reset();
                slots.fill(0.0);
                continue;
            }
            // The tests of candle-nn's faults cover appends of at least one token per slot.
            let count = random.between(1, room.max(2) - 1);
            if count < room {
                assert_eq!(our.positions(count), their.positions(count), "{what}");
                let masks = [our.attn_mask(count, &CPU), their.attn_mask(count, &CPU)];
                let [ours, theirs] =
                    masks.map(|mask| mask.unwrap().map(|mask| mask.to_vec2::<u8>().unwrap()));
                assert_eq!(ours, theirs, "{what}");
            }
            let (k, v) = (tokens(count, call), tokens(count, call + 100));
            // An update of one token for each slot begins at slot 0.
            let start = if count >= room { 0 } else { our.offset() as i64 };
            slots = in_slots(&slots, room, &k, &[start; BATCH], None);
            let (our_kv, their_kv) = (our.append(&k, &v).unwrap(), their.append(&k, &v).unwrap());
            same(&our_kv.0, &their_kv.0, &what);
            same(&our_kv.1, &their_kv.1, &what);
            assert_eq!(
                (our.offset(), our.current_seq_len()),
                (their.offset(), their.current_seq_len()),
                "{what}"
            );
            assert_eq!(values(our.k_cache().all_data().as_ref().unwrap()), slots, "{what}");
        }
    }
}

/// Returns the oracle's slots after an update.
fn in_slots(
    slots: &[f32],
    room: usize,
    update: &Tensor,
    starts: &[i64],
    lengths: Option<&[i64]>,
) -> Vec<f32> {
    let operator = onnx::TensorScatter { mode: "circular".to_owned(), ..Default::default() };
    let (cache, new) = ([BATCH, HEADS, room, SIZE], update.dims());
    let update = values(update);
    let (past, update) =
        (kvscatter_oracle::Tensor::new(slots, &cache), kvscatter_oracle::Tensor::new(&update, new));
    operator.run(past, update, Some(starts), lengths).unwrap().present
}

fn our_batch(context: usize) -> (ours::ScatteredCacheBuilder, ours::ScatteredKvCache) {
    let builder = ours::ScatteredCacheBuilder::new(BATCH, context, DType::F32, &CPU).unwrap();
    let cache = builder.make_cache(HEADS, SIZE).unwrap();
    (builder, cache)
}

fn their_batch(context: usize) -> (theirs::ScatteredCacheBuilder, theirs::ScatteredKvCache) {
    let builder = theirs::ScatteredCacheBuilder::new(BATCH, context, DType::F32, &CPU).unwrap();
    let cache = builder.make_cache(HEADS, SIZE).unwrap();
    (builder, cache)
}

/// For prefills longer than the ring, both keep the last tokens in the same slots, and return the update.
#[test]
fn long_prefills_of_rings_are_candle_nns() {
    for (before, count) in [(0, 4), (0, 7), (3, 4), (3, 9), (5, 6)] {
        let (mut our, mut their) = (ours::RotatingKvCache::new(2, 4), theirs::RotatingKvCache::new(2, 4));
        for call in 0..before {
            let update = tokens(1, call);
            our.append(&update, &update).unwrap();
            their.append(&update, &update).unwrap();
        }
        let update = tokens(count, 50);
        let (our_kv, their_kv) =
            (our.append(&update, &update).unwrap(), their.append(&update, &update).unwrap());
        same(&our_kv.0, &their_kv.0, "returned");
        same_if_any(our.k().unwrap(), their.k().unwrap(), "held");
        let (next, step) = (tokens(1, 60), format!("{before}, then {count}"));
        let (our_kv, their_kv) = (our.append(&next, &next).unwrap(), their.append(&next, &next).unwrap());
        same(&our_kv.0, &their_kv.0, &step);
        assert_eq!(our.positions(1), their.positions(1), "{step}");
    }
}

/// An append of one token per slot returns the tokens in their order, so the positions must be in this order.
#[test]
fn positions_are_those_of_what_append_returns() {
    let (mut our, mut their) = (ours::RotatingCache::new(2, 3), theirs::RotatingCache::new(2, 3));
    our.append(&tokens(1, 0)).unwrap();
    their.append(&tokens(1, 0)).unwrap();
    assert_eq!(their.positions(3), [3, 1, 2], "the fault is gone: follow candle-nn again");
    assert_eq!(our.positions(3), [1, 2, 3]);
    let update = tokens(3, 1);
    same(&our.append(&update).unwrap(), &update, "returned");
}

/// A token attends to the same tokens if more tokens are appended with it.
#[test]
fn masks_of_long_prefills_show_what_single_steps_show() {
    let (context, count) = (3, 6);
    let ring = ours::RotatingCache::new(2, context);
    let mask = ring.attn_mask(count, &CPU).unwrap().unwrap().to_vec2::<u8>().unwrap();
    let their_mask = theirs::RotatingCache::new(2, context).attn_mask(count, &CPU).unwrap().unwrap();
    let their_mask = their_mask.to_vec2::<u8>().unwrap();
    let mut stepped = ours::RotatingCache::new(2, context);
    for (query, (hidden, theirs)) in mask.iter().zip(&their_mask).enumerate() {
        let mut seen = stepped.positions(1);
        seen.sort_unstable();
        stepped.append(&tokens(1, query)).unwrap();
        let visible = |hidden: &[u8]| (0..count).filter(|&key| hidden[key] == 0).collect::<Vec<_>>();
        assert_eq!(visible(hidden), seen, "token {query}");
        let one_more = usize::from(query >= context);
        assert_eq!(visible(theirs).len(), seen.len() + one_more, "the fault is gone: follow candle-nn again");
    }
}

/// The contents are compared with the oracle's, where samples that are left out have length 0. candle-nn's cache
/// has the same contents until a sample is left out, and its masks are right even then.
#[test]
fn scattered_caches_do_what_candle_nns_do() {
    let mut random = Random::new(3, 0);
    let mut theirs_wrote = 0;
    for round in 0..100 {
        let (context, are_all_active) = (random.between(2, 6), round < 60);
        let (mut our, mut our_kv) = our_batch(context);
        let (mut their, mut their_kv) = their_batch(context);
        for call in 1..30 {
            let what = format!("context {context}, call {call}");
            if random.below(9) == 0 {
                let sample = random.below(BATCH);
                our.reset_batch_index(sample);
                their.reset_batch_index(sample);
            }
            let active = random.many(BATCH, |random| are_all_active || random.below(2) == 0);
            let count = random.between(1, context - 1);
            let before = [our_kv.k().copy().unwrap(), their_kv.k().copy().unwrap()];
            let our_step = our.indices_and_mask(count, &active).unwrap();
            let their_step = their.indices_and_mask(count, &active).unwrap();
            same(our_step.mask(), their_step.mask(), &what);
            assert_eq!(our.positions(), their.positions(), "{what}");
            let (k, v) = (tokens(count, call), tokens(count, call + 100));
            let returned = our_kv.append(&k, &v, &our_step).unwrap();
            let expected = their_kv.append(&k, &v, &their_step).unwrap();
            if are_all_active {
                same(&returned.0, &expected.0, &what);
                same(&returned.1, &expected.1, &what);
            }
            let sample = |tensor: &Tensor, index| values(&tensor.get(index).unwrap());
            let left_out = (0..BATCH).filter(|index| !active[*index]);
            theirs_wrote +=
                left_out.filter(|&index| sample(their_kv.k(), index) != sample(&before[1], index)).count();
            let starts = our.positions().iter().zip(&active);
            let starts: Vec<_> =
                starts.map(|(&end, &active)| (if active { end - count } else { end }) as i64).collect();
            let lengths: Vec<_> =
                active.iter().map(|&active| if active { count as i64 } else { 0 }).collect();
            let expected = in_slots(&values(&before[0]), context, &k, &starts, Some(&lengths));
            assert_eq!(values(our_kv.k()), expected, "{what}");
        }
    }
    assert!(theirs_wrote > 0, "the fault is gone: follow candle-nn again");
}

/// The next step's mask shows every slot, so every slot must have its token.
#[test]
fn after_a_long_prefill_the_ring_is_what_single_steps_leave() {
    for count in [4, 5, 6, 7, 9] {
        let (mut our, mut our_kv) = our_batch(4);
        let (mut their, mut their_kv) = their_batch(4);
        let (mut stepped, mut stepped_kv) = our_batch(4);
        // The first sample has one token already. The second is not in the prefill.
        let active = [true, false];
        for update in [tokens(1, 0), tokens(count, 1)] {
            let step = our.indices_and_mask(update.dim(2).unwrap(), &active).unwrap();
            let returned = our_kv.append(&update, &update, &step).unwrap();
            if update.dim(2).unwrap() == count {
                same(&returned.0, &update, "returned");
            }
            let step = their.indices_and_mask(update.dim(2).unwrap(), &active).unwrap();
            their_kv.append(&update, &update, &step).unwrap();
            for token in 0..update.dim(2).unwrap() {
                let update = update.narrow(2, token, 1).unwrap();
                let step = stepped.indices_and_mask(1, &active).unwrap();
                stepped_kv.append(&update, &update, &step).unwrap();
            }
        }
        assert_eq!((our.positions(), stepped.positions()), (their.positions(), their.positions()));
        same(our_kv.k(), stepped_kv.k(), "keys");
        same(our_kv.v(), stepped_kv.v(), "values");
        assert_ne!(values(their_kv.k()), values(our_kv.k()), "the fault is gone: follow candle-nn again");
        let next = [&mut our, &mut stepped].map(|builder| builder.indices_and_mask(1, &active).unwrap());
        same(next[0].mask(), next[1].mask(), "the next mask");
    }
}

#[test]
fn long_masks_have_the_caches_type_and_show_the_context() {
    let mut our = ours::ScatteredCacheBuilder::new(1, 2, DType::F16, &CPU).unwrap();
    let mask = our.indices_and_mask(4, &[true]).unwrap().mask().clone();
    assert_eq!((mask.dtype(), mask.dims()), (DType::F16, &[4, 4][..]));
    let hidden = f32::NEG_INFINITY;
    let rows = mask.to_dtype(DType::F32).unwrap().to_vec2::<f32>().unwrap();
    let expected = [
        [0., hidden, hidden, hidden],
        [0., 0., hidden, hidden],
        [hidden, 0., 0., hidden],
        [hidden, hidden, 0., 0.],
    ];
    assert_eq!(rows, expected);
}

/// Two clones are independent. candle-nn's clones overwrite each other's tokens.
#[test]
fn clones_are_caches_of_their_own() {
    let [first, second, third] = [0, 1, 2].map(|call| tokens(1, call));
    let mut their = theirs::KvCache::new(2, 4);
    their.append(&first, &first).unwrap();
    let mut their_clone = their.clone();
    let (held, _) = their.append(&second, &second).unwrap();
    let before = values(&held);
    their_clone.append(&third, &third).unwrap();
    assert_ne!(values(&held), before, "the fault is gone: follow candle-nn again");

    let mut our = ours::KvCache::new(2, 4);
    our.append(&first, &first).unwrap();
    let mut our_clone = our.clone();
    our.append(&second, &second).unwrap();
    our_clone.append(&third, &third).unwrap();
    let expected = |last: &Tensor| values(&Tensor::cat(&[&first, last], 2).unwrap());
    assert_eq!(values(&our.k().unwrap().unwrap()), expected(&second));
    assert_eq!(values(&our_clone.k().unwrap().unwrap()), expected(&third));

    let mut ring = ours::RotatingKvCache::new(2, 2);
    ring.append(&first, &first).unwrap();
    let mut ring_clone = ring.clone();
    ring.append(&second, &second).unwrap();
    ring_clone.append(&third, &third).unwrap();
    assert_eq!(values(&ring.v().unwrap().unwrap()), expected(&second));
    assert_eq!(values(&ring_clone.v().unwrap().unwrap()), expected(&third));

    let mut builder = ours::ScatteredCacheBuilder::new(BATCH, 2, DType::F32, &CPU).unwrap();
    let mut slots = builder.make_cache(HEADS, SIZE).unwrap();
    let untouched = slots.clone();
    let step = builder.indices_and_mask(1, &[true, true]).unwrap();
    slots.append(&first, &first, &step).unwrap();
    assert_eq!(values(untouched.k()), vec![0.0; BATCH * HEADS * 2 * SIZE]);
    assert_ne!(values(slots.k()), values(untouched.k()));
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
fn sequences_can_be_shortened() {
    let mut cache = ours::KvCache::new(2, 3);
    cache.append(&tokens(4, 0), &tokens(4, 0)).unwrap();
    cache.truncate(2).unwrap();
    let (k, _) = cache.append(&tokens(1, 1), &tokens(1, 1)).unwrap();
    let expected = Tensor::cat(&[&tokens(4, 0).narrow(2, 0, 2).unwrap(), &tokens(1, 1)], 2).unwrap();
    same(&k, &expected, "after a rollback");
    let refused = cache.truncate(4).unwrap_err().to_string();
    assert_eq!(refused.lines().next(), Some("truncate to 4 tokens: the cache has 3"));
    assert_eq!(cache.current_seq_len(), 3);

    let mut ring = ours::RotatingKvCache::new(2, 4);
    ring.append(&tokens(3, 0), &tokens(3, 0)).unwrap();
    ring.truncate(1).unwrap();
    let (k, _) = ring.append(&tokens(1, 1), &tokens(1, 1)).unwrap();
    let expected = Tensor::cat(&[&tokens(3, 0).narrow(2, 0, 1).unwrap(), &tokens(1, 1)], 2).unwrap();
    same(&k, &expected, "after a rollback");
    ring.append(&tokens(3, 2), &tokens(3, 2)).unwrap();
    assert!(ring.truncate(4).unwrap_err().to_string().contains("the ring of 4 slots has wrapped at 5"));
    ring.truncate(5).unwrap();

    let mut builder = ours::ScatteredCacheBuilder::new(2, 4, DType::F32, &CPU).unwrap();
    builder.indices_and_mask(3, &[true, true]).unwrap();
    builder.truncate_batch_index(1, 1).unwrap();
    assert_eq!(builder.positions(), [3, 1]);
    assert_eq!(builder.indices_and_mask(1, &[true, true]).unwrap().write_indices(), [3, 1]);
    builder.indices_and_mask(1, &[true, false]).unwrap();
    assert!(builder.truncate_batch_index(0, 2).is_err());
}

/// Compares with the whole sequence. A ring contains its end.
#[test]
fn random_appends_and_truncations_keep_the_sequence() {
    let mut random = Random::new(5, 0);
    let mut wrapped = 0;
    for _ in 0..60 {
        let room = random.between(2, 6);
        let (mut cache, mut ring) = (ours::KvCache::new(2, room), ours::RotatingKvCache::new(2, room));
        let mut sequence = tokens(0, 0);
        for call in 1..30 {
            if random.below(3) == 0 {
                let length = random.below(sequence.dim(2).unwrap() + 1);
                if ring.truncate(length).is_ok() {
                    cache.truncate(length).unwrap();
                    sequence = sequence.narrow(2, 0, length).unwrap();
                } else {
                    wrapped += 1;
                    assert!(ring.current_seq_len() > room);
                }
            } else {
                let update = tokens(random.between(1, room + 2), call);
                cache.append(&update, &update).unwrap();
                ring.append(&update, &update).unwrap();
                sequence = Tensor::cat(&[&sequence, &update], 2).unwrap();
            }
            let length = sequence.dim(2).unwrap();
            assert_eq!((cache.current_seq_len(), ring.current_seq_len()), (length, length));
            let Some(held) = ring.k().unwrap() else { continue };
            same(&cache.v().unwrap().unwrap(), &sequence, "growing");
            for (slot, position) in ring.positions(0).into_iter().enumerate() {
                assert!(position + room >= length);
                let token = |tensor: &Tensor, at| tensor.narrow(2, at, 1).unwrap();
                same(&token(&held, slot), &token(&sequence, position), "ring");
            }
        }
    }
    assert!(wrapped > 50, "{wrapped}");
}

/// An error of the values leaves the keys unchanged. An empty cache accepts another shape.
#[test]
fn an_append_that_is_refused_changes_nothing() {
    let mut cache = ours::KvCache::new(2, 2);
    cache.append(&tokens(1, 0), &tokens(1, 0)).unwrap();
    let wrong = [
        tokens(2, 1).narrow(1, 0, 2).unwrap(),
        tokens(1, 1).to_dtype(DType::F16).unwrap(),
        tokens(1, 1).get(0).unwrap(),
        cache.v().unwrap().unwrap(),
        cache.k().unwrap().unwrap(),
    ];
    let held = cache.k_cache().all_data().as_ref().unwrap().copy().unwrap();
    for v in &wrong {
        assert!(cache.append(&tokens(1, 5), v).is_err(), "{v:?}");
        let length = [cache.k_cache().current_seq_len(), cache.v_cache().current_seq_len()];
        assert_eq!((length, cache.k_cache().max_seq_len()), ([1, 1], 2));
        same(cache.k_cache().all_data().as_ref().unwrap(), &held, "keys");
    }
    let mut ring = ours::RotatingKvCache::new(2, 2);
    ring.append(&tokens(3, 0), &tokens(3, 0)).unwrap();
    let held = ring.k().unwrap().unwrap().copy().unwrap();
    for v in &wrong[..3] {
        assert!(ring.append(&tokens(1, 5), v).is_err(), "{v:?}");
        same(&ring.k().unwrap().unwrap(), &held, "keys");
        assert_eq!((ring.offset(), ring.current_seq_len()), (0, 3));
    }
    let mut empty = ours::KvCache::new(2, 2);
    assert!(empty.append(&tokens(1, 0), &tokens(1, 0).get(0).unwrap().get(0).unwrap()).is_err());
    let other = tokens(1, 0).to_dtype(DType::F64).unwrap().narrow(0, 0, 1).unwrap();
    empty.append(&other, &other).unwrap();
    assert_eq!(empty.k().unwrap().unwrap().dims(), [1, HEADS, 1, SIZE]);
}

#[test]
fn impossible_calls_are_errors() {
    assert!(ours::KvCache::new(2, 0).append(&tokens(1, 0), &tokens(1, 0)).is_err());
    assert!(ours::RotatingKvCache::new(2, 0).append(&tokens(1, 0), &tokens(1, 0)).is_err());
    assert!(ours::KvCache::new(4, 2).append(&tokens(1, 0), &tokens(1, 0)).is_err());
    assert!(ours::ScatteredCacheBuilder::new(2, 0, DType::F32, &CPU).is_err());
    let mut builder = ours::ScatteredCacheBuilder::new(2, 4, DType::F32, &CPU).unwrap();
    assert!(builder.indices_and_mask(1, &[true]).is_err());
    assert_eq!(builder.positions(), [0, 0]);
    let mut cache = builder.make_cache(HEADS, SIZE).unwrap();
    let step = builder.indices_and_mask(1, &[true, true]).unwrap();
    assert!(cache.append(&tokens(2, 0), &tokens(2, 0), &step).is_err());
}

/// A projection's `[batch, tokens, heads, size]`, transposed, needs no copy.
#[test]
fn updates_may_be_strided() {
    let projected = tokens(5, 0).transpose(1, 2).unwrap().contiguous().unwrap().transpose(1, 2).unwrap();
    assert!(theirs::KvCache::new(2, 8).append(&projected, &projected).is_err());
    let (k, v) = ours::KvCache::new(2, 8).append(&projected, &projected).unwrap();
    same(&k, &tokens(5, 0), "keys");
    same(&v, &tokens(5, 0), "values");
}

#[test]
fn a_context_that_no_memory_holds_is_an_error() {
    for context in [usize::MAX, 1 << 62] {
        let mut cache = ours::KvCache::new(2, context);
        let refused = cache.append(&tokens(1, 0), &tokens(1, 1)).map(|_| ()).unwrap_err();
        assert!(refused.to_string().contains("past_cache"), "{refused}");
        assert_eq!(cache.current_seq_len(), 0);
    }
}
