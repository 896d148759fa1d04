//! What ONNX does not have: sinks, another layout or type for queries than for caches, and caches that grow.

use half::f16;
use kvscatter::ElementType;
use kvscatter_attention::{Attention, AttentionError, Inputs, Mask, Operand, Outputs, Scores, Shapes, Valid};
use kvscatter_oracle::cases::Random;

use crate::element::bits;
use crate::variants::Variant;

/// The sizes of the operands: two heads of keys for six of queries.
const BATCH: usize = 2;
const HEADS: usize = 6;
const KV_HEADS: usize = 2;
const SIZE: usize = 24;

/// Returns numbers that float16 can contain.
fn numbers(r: &mut Random, count: usize) -> Vec<f32> {
    (0..count).map(|_| f16::from_f32(r.between(0, 2000) as f32 / 1000.0 - 1.0).to_f32()).collect()
}

/// Returns the shapes of float32 queries over caches without a mask and a past.
pub(crate) fn shapes<'a>(query: &'a [usize], cache: &'a [usize]) -> Shapes<'a> {
    Shapes { element: ElementType::Float32, query, key: cache, value: cache, mask: None, past: None }
}

/// A sink of score 0 has the weight of a slot whose key and value are zeros. Other scores multiply this weight.
#[test]
fn a_sink_takes_a_part_of_the_weights() {
    const SLOTS: usize = 50;
    let r = &mut Random::new(46, 0);
    for (variant, queries) in
        Variant::all().into_iter().flat_map(|variant| [1, 30].map(|queries| (variant, queries)))
    {
        let (query, cache) = ([BATCH, HEADS, queries, SIZE], [BATCH, KV_HEADS, SLOTS, SIZE]);
        let q = numbers(r, query.iter().product());
        let (mut key, mut value) = (numbers(r, cache.iter().product()), numbers(r, cache.iter().product()));
        for cache in [&mut key, &mut value] {
            cache.chunks_exact_mut(SLOTS * SIZE).for_each(|head| head[..SIZE].fill(0.0));
        }
        let run = |op: Attention, first: usize, sinks: Option<&[f32]>| {
            let without = |cache: &[f32]| -> Vec<f32> {
                cache.chunks_exact(SLOTS * SIZE).flat_map(|head| head[first * SIZE..].to_vec()).collect()
            };
            let cache = [BATCH, KV_HEADS, SLOTS - first, SIZE];
            let prepared = variant.apply(op.prepare(&shapes(&query, &cache)).unwrap());
            let (key, value) = (without(&key), without(&value));
            let lengths = [queries, 40].map(|length| length as i64 - first as i64);
            let valid = Valid::Lengths(&lengths);
            let inputs = Inputs { valid, sinks, ..Inputs::new(&q, &key, &value) };
            let mut y = vec![f32::NAN; q.len()];
            prepared.run(&inputs, &mut Outputs::new(&mut y), &mut prepared.scratch(1), None).unwrap();
            y
        };
        let op = Attention::new().causal(true);
        let with_slot = run(op, 0, None);
        let with_sink = run(op.sinks(), 1, Some(&[0.0; HEADS]));
        for (row, (sink, slot)) in with_sink.iter().zip(&with_slot).enumerate() {
            assert!((sink - slot).abs() < 2e-6, "{variant:?} {queries} {row}: {sink} {slot}");
        }
        // Each value is divided by the sum of the weights of the slots, and of exp(sink).
        let (none, heavy) = (run(op, 1, None), run(op.sinks(), 1, Some(&[2.0; HEADS])));
        for ((none, one), heavy) in none.iter().zip(&with_sink).zip(&heavy) {
            let (none, one, heavy) = (f64::from(*none), f64::from(*one), f64::from(*heavy));
            let expected = none * one / (one + (none - one) * 2_f64.exp());
            assert!(
                one.abs() < 1e-4 || (heavy - expected).abs() < 1e-3 * expected.abs().max(0.01),
                "{variant:?}"
            );
        }
        assert_eq!(bits(&run(op.sinks(), 1, Some(&[f32::NEG_INFINITY; HEADS]))), bits(&none));
        assert!(run(op.sinks(), 1, Some(&[1e9; HEADS])).iter().all(|y| *y == 0.0));
    }
}

#[test]
fn sinks_are_given_if_they_are_prepared() {
    let (query, cache) = ([1, 2, 1, 4], [1, 1, 3, 4]);
    let (q, c) = ([0.5; 8], [0.5; 12]);
    let run = |op: Attention, sinks: Option<&[f32]>| {
        let prepared = op.prepare(&shapes(&query, &cache)).unwrap();
        let inputs = Inputs { sinks, ..Inputs::new(&q, &c, &c) };
        prepared.run(&inputs, &mut Outputs::new(&mut [0.0; 8]), &mut prepared.scratch(1), None)
    };
    let operand = Operand::Sinks;
    assert_eq!(
        run(Attention::new(), Some(&[0.0; 2])),
        Err(AttentionError::Presence { operand, is_expected: false })
    );
    assert_eq!(
        run(Attention::new().sinks(), None),
        Err(AttentionError::Presence { operand, is_expected: true })
    );
    let length = AttentionError::Length { operand, got: 1, expected: 2 };
    assert_eq!(run(Attention::new().sinks(), Some(&[0.0])), Err(length));
    let both = Attention::new().sinks().scores(Scores::Weights).prepare(&shapes(&query, &cache));
    assert_eq!(both.err(), Some(AttentionError::SinksAndScores));
}

/// Queries by token over a cache by head, in float32 and in float16, give the bits of queries by head over float32.
#[test]
fn layouts_and_types_of_caches_do_not_change_the_result() {
    const SLOTS: usize = 70;
    let r = &mut Random::new(45, 0);
    for (variant, queries) in
        Variant::all().into_iter().flat_map(|variant| [1, 3, 30].map(|queries| (variant, queries)))
    {
        let cache = [BATCH, KV_HEADS, SLOTS, SIZE];
        let (key, value) = (numbers(r, cache.iter().product()), numbers(r, cache.iter().product()));
        let by_token = numbers(r, BATCH * HEADS * queries * SIZE);
        let place = |index: usize| {
            let (sample, query, head) = (index / HEADS / queries, index / HEADS % queries, index % HEADS);
            (sample * HEADS + head) * queries + query
        };
        let mut by_head = by_token.clone();
        for (index, row) in by_token.chunks_exact(SIZE).enumerate() {
            by_head[place(index) * SIZE..][..SIZE].copy_from_slice(row);
        }
        let valid = Valid::Lengths(&[31, 64]);
        let op = Attention::new().causal(true).window(Some(40), None);
        let (mut expected, mut y) = (vec![f32::NAN; by_head.len()], vec![f32::NAN; by_head.len()]);
        let prepared = variant.apply(op.prepare(&shapes(&[BATCH, HEADS, queries, SIZE], &cache)).unwrap());
        let inputs = Inputs { valid, ..Inputs::new(&by_head, &key, &value) };
        prepared.run(&inputs, &mut Outputs::new(&mut expected), &mut prepared.scratch(1), None).unwrap();

        let op = op.heads(HEADS, KV_HEADS).cache_by_head();
        let flat = [BATCH, queries, HEADS * SIZE];
        let same = |y: &[f32]| {
            for (index, row) in y.chunks_exact(SIZE).enumerate() {
                assert_eq!(
                    bits(row),
                    bits(&expected[place(index) * SIZE..][..SIZE]),
                    "{variant:?} {queries}"
                );
            }
        };
        let inputs = Inputs { valid, ..Inputs::new(&by_token, &key, &value) };
        let prepared = variant.apply(op.prepare(&shapes(&flat, &cache)).unwrap());
        prepared.run(&inputs, &mut Outputs::new(&mut y), &mut prepared.scratch(1), None).unwrap();
        same(&y);
        y.fill(f32::NAN);
        let [key, value] = [key, value].map(|cache| cache.into_iter().map(f16::from_f32).collect::<Vec<_>>());
        let (key, value) = (&key[..], &value[..]);
        let inputs = Inputs { valid, ..Inputs::new(&by_token, key, value) };
        let op = op.cache_element(ElementType::Float16);
        let prepared = variant.apply(op.prepare(&shapes(&flat, &cache)).unwrap());
        prepared.run(&inputs, &mut Outputs::new(&mut y), &mut prepared.scratch(1), None).unwrap();
        same(&y);
    }
}

/// Shorter samples of a prompt see what they would see alone. Padding sees no padding.
#[test]
fn a_prompt_may_have_padding() {
    let r = &mut Random::new(48, 0);
    for (variant, window) in
        Variant::all().into_iter().flat_map(|variant| [None, Some(3)].map(|window| (variant, window)))
    {
        let (query, cache) = ([2, HEADS, 30, SIZE], [2, KV_HEADS, 40, SIZE]);
        let q = numbers(r, query.iter().product());
        let mut caches = [0; 2].map(|_| numbers(r, cache.iter().product()));
        // The slots after the ten tokens of the second sample must not be read.
        for cache in &mut caches {
            cache
                .chunks_exact_mut(40 * SIZE)
                .skip(KV_HEADS)
                .for_each(|head| head[10 * SIZE..].fill(f32::NAN));
        }
        let op = Attention::new().causal(true).window(window, None);
        let run = |op: Attention, valid| {
            let [key, value] = &caches;
            let prepared = variant.apply(op.prepare(&shapes(&query, &cache)).unwrap());
            let inputs = Inputs { valid, ..Inputs::new(&q, key, value) };
            let mut y = vec![f32::NAN; q.len()];
            prepared.run(&inputs, &mut Outputs::new(&mut y), &mut prepared.scratch(1), None).unwrap();
            y
        };
        let prompt = run(op, Valid::Prompt(&[30, 10]));
        let whole = run(op, Valid::Lengths(&[30, 30]));
        for (index, (prompt, whole)) in prompt.chunks_exact(SIZE).zip(whole.chunks_exact(SIZE)).enumerate() {
            let (sample, query) = (index / HEADS / 30, index % 30);
            if sample == 0 || query < 10 {
                let is_close = |(one, two): (&f32, &f32)| (one - two).abs() < 2e-6;
                assert!(prompt.iter().zip(whole).all(is_close), "{variant:?} {index}");
            }
            assert!(prompt.iter().all(|y| y.is_finite()), "{variant:?} {index}");
            let sees_nothing = sample == 1 && window.is_some_and(|window| query >= 10 + window);
            assert_eq!(prompt.iter().all(|y| *y == 0.0), sees_nothing, "{variant:?} {index}");
        }
    }
}

#[test]
fn a_scratch_grows_with_a_cache() {
    let op = Attention::new().causal(true);
    let query = [1, 2, 1, 8];
    let r = &mut Random::new(47, 0);
    let q = numbers(r, 16);
    let first = op.prepare(&shapes(&query, &[1, 1, 10, 8])).unwrap();
    let mut scratch = first.scratch(4);
    for (slots, queries) in [(10, 1), (11, 1), (1500, 1), (5000, 1), (20, 1), (40, 2), (41, 1)] {
        let (query, cache) = ([1, 2, queries, 8], [1, 1, slots, 8]);
        let prepared = op.prepare(&shapes(&query, &cache)).unwrap();
        let (q, key, value) = (numbers(r, 16 * queries), numbers(r, 8 * slots), numbers(r, 8 * slots));
        let inputs = Inputs::new(&q, &key, &value);
        let run = |scratch: &mut _| {
            let mut y = vec![f32::NAN; 16 * queries];
            prepared.run(&inputs, &mut Outputs::new(&mut y), scratch, Some(&crate::executors::Threads(3)))?;
            Ok::<_, AttentionError>(y)
        };
        let expected = run(&mut prepared.scratch(4)).unwrap();
        prepared.fit(&mut scratch);
        assert_eq!(bits(&run(&mut scratch).unwrap()), bits(&expected), "{slots}");
    }
    let inputs = Inputs::new(&q, &[0.5; 80], &[0.5; 80]);
    let refused = first.run(&inputs, &mut Outputs::new(&mut [0.0; 16]), &mut scratch, None);
    assert_eq!(refused, Err(AttentionError::Scratch));
}

/// Padding on the left is hidden as by a mask that is false there.
#[test]
fn starts_hide_what_lies_before_them() {
    for seed in 0..60 {
        let r = &mut Random::new(75, seed);
        let (queries, slots) = (r.pick(&[1, 1, 3, 40]), r.pick(&[50, 130, 1500]));
        let (query, cache) = ([2, 4, queries, SIZE], [2, 2, slots, SIZE]);
        let (q, key) = (numbers(r, query.iter().product()), numbers(r, cache.iter().product()));
        let value = numbers(r, cache.iter().product());
        let lengths = [slots as i64, r.between(queries, slots) as i64];
        let starts = [0, 1].map(|_| r.below(slots + 20) as i64);
        let is_ring = r.below(3) == 0;
        let op = Attention::new().causal(true).window(if is_ring { Some(7) } else { None }, None);
        let op = if is_ring { op.ring() } else { op };
        let seen =
            starts.into_iter().flat_map(|start| (0..slots).map(move |slot| u8::from(slot as i64 >= start)));
        let seen: Vec<_> = seen.collect();
        let mask_shape = [2, 1, 1, slots];
        for variant in Variant::all() {
            let run = |mask: Option<&[u8]>, starts: Option<&[i64]>| {
                let shapes = Shapes { mask: mask.map(|_| &mask_shape[..]), ..shapes(&query, &cache) };
                let prepared = variant.apply(op.prepare(&shapes).unwrap());
                let mask = mask.map(Mask::Bool);
                let valid = Valid::Lengths(&lengths);
                let inputs = Inputs { mask, starts, valid, ..Inputs::new(&q, &key, &value) };
                let mut y = vec![f32::NAN; q.len()];
                prepared.run(&inputs, &mut Outputs::new(&mut y), &mut prepared.scratch(1), None).unwrap();
                y
            };
            let expected = run(Some(&seen), None);
            assert!(bits(&run(None, Some(&starts))) == bits(&expected), "{seed} {variant:?}");
        }
    }
}

#[test]
fn starts_that_are_refused() {
    let (query, cache) = ([2, 1, 1, 4], [2, 1, 3, 4]);
    let prepared = Attention::new().prepare(&shapes(&query, &cache)).unwrap();
    let run = |starts: &[i64]| {
        let inputs = Inputs { starts: Some(starts), ..Inputs::new(&[1.0; 8], &[1.0; 24], &[1.0; 24]) };
        let mut y = [7.0; 8];
        let result = prepared.run(&inputs, &mut Outputs::new(&mut y), &mut prepared.scratch(1), None);
        result.map(|()| y)
    };
    assert_eq!(run(&[0, -1]), Err(AttentionError::NegativeStart { index: 1, value: -1 }));
    let length = AttentionError::Length { operand: Operand::Starts, got: 1, expected: 2 };
    assert_eq!(run(&[0]), Err(length));
    // Nothing is left to see, as after the last slot.
    assert_eq!(run(&[i64::MAX, 3]), Ok([0.0; 8]));
}
