//! Results that must have the same bits.

use half::{bf16, f16};
use kvscatter::Executor;
use kvscatter_attention::{Attention, Scores, Softmax};
use kvscatter_oracle::cases::Random;

use crate::call::{AnyMask, Operands, Tensor};
use crate::element::{Element, bits};
use crate::executors::{Threads, Times};
use crate::variants::Variant;

/// The sizes of generated operands of rank 4.
#[derive(Clone, Copy)]
struct Sizes {
    batch: usize,
    query_heads: usize,
    heads: usize,
    queries: usize,
    keys: usize,
    head_size: usize,
    value_size: usize,
}

/// Sizes for which a call has enough work to use its executor.
const LONG: Sizes =
    Sizes { batch: 1, query_heads: 4, heads: 2, queries: 3, keys: 1700, head_size: 40, value_size: 24 };

#[test]
fn threads_do_not_change_the_result() {
    /// Few items are divided into chunks of positions, and many are not.
    const MANY: Sizes = Sizes { batch: 3, heads: 4, queries: 20, keys: 600, ..LONG };
    for variant in Variant::all() {
        for sizes in [LONG, MANY, Sizes { batch: 2, ..LONG }] {
            check_threads::<f32>(variant, sizes);
            check_threads::<f16>(variant, sizes);
            check_threads::<bf16>(variant, sizes);
        }
    }
}

fn check_threads<T: Element>(variant: Variant, sizes: Sizes) {
    let r = &mut Random::new(30, 0);
    let mut operands = Operands::<T>::random(r, sizes);
    let lengths: Vec<_> = (0..sizes.batch).map(|_| r.between(sizes.keys - 100, sizes.keys) as i64).collect();
    operands.lengths = Some(lengths);
    for op in [Attention::new().causal(true), Attention::new().causal(true).window(Some(700), None)] {
        let expected = operands.run_as(variant, &op).unwrap();
        let prepared = variant.apply(operands.prepare(&op).unwrap());
        for threads in 1..=8 {
            let mut scratch = prepared.scratch(threads);
            let executors: [&dyn Executor; 5] =
                [&Times(0), &Times(1), &Times(3), &Threads(2), &Threads(threads + 1)];
            for executor in executors {
                let results = operands.run_on(&prepared, &op, false, &mut scratch, Some(executor)).unwrap();
                assert!(bits(&results.y) == bits(&expected.y), "{variant:?}, {threads} threads, {op:?}");
            }
        }
    }
}

#[test]
fn a_ring_gives_the_bits_of_a_linear_cache() {
    for variant in Variant::all() {
        check_rings::<f32>(variant);
        check_rings::<f16>(variant);
        check_rings::<bf16>(variant);
    }
}

/// Compares rings with linear caches that contain the same positions and more.
fn check_rings<T: Element>(variant: Variant) {
    for (n, (capacity, tokens)) in
        [(5, 1300), (100, 512), (700, 1300), (700, 701), (1030, 1700), (1100, 1024)].into_iter().enumerate()
    {
        for queries in [1, 3] {
            let r = &mut Random::new(31, n);
            let sizes = Sizes { queries, keys: tokens, ..LONG };
            let mut linear = Operands::<T>::random(r, sizes);
            linear.lengths = Some(vec![tokens as i64]);
            let mut ring = linear.clone();
            let nan = T::from_f64(f64::NAN);
            for of_ring in [&mut ring.key, &mut ring.value] {
                let size = of_ring.shape[3];
                let of_linear = std::mem::replace(&mut of_ring.data, vec![nan; 2 * capacity * size]);
                of_ring.shape[2] = capacity;
                for (head, position) in
                    (0..2).flat_map(|head| (tokens.saturating_sub(capacity)..tokens).map(move |p| (head, p)))
                {
                    let from = &of_linear[(head * tokens + position) * size..][..size];
                    of_ring.data[(head * capacity + position % capacity) * size..][..size]
                        .copy_from_slice(from);
                }
            }
            // The first query sees only positions that are in the ring.
            let left = capacity.min(tokens) - queries;
            let windows = [left, left / 2, 0];
            for left in windows {
                let op = Attention::new().causal(true).window(Some(left), None);
                let expected = linear.run_as(variant, &op).unwrap();
                let results = ring.run_as(variant, &op.ring()).unwrap();
                assert!(
                    bits(&results.y) == bits(&expected.y),
                    "{variant:?} {capacity} {tokens} {queries} {left}"
                );
            }
        }
    }
}

#[test]
fn the_capacity_does_not_change_the_result() {
    let r = &mut Random::new(32, 0);
    let small = Operands::<f32>::random(r, Sizes { keys: 530, ..LONG });
    let op = Attention::new().causal(true);
    for (variant, capacity) in Variant::all()
        .into_iter()
        .flat_map(|variant| [531, 544, 1024, 3000].map(|capacity| (variant, capacity)))
    {
        let mut large = small.clone();
        large.lengths = Some(vec![530]);
        for tensor in [&mut large.key, &mut large.value] {
            let size = tensor.shape[3];
            let rows = tensor.data.chunks_exact(530 * size);
            let padding = vec![f32::NAN; (capacity - 530) * size];
            tensor.data = rows.flat_map(|rows| [rows, &padding].concat()).collect();
            tensor.shape[2] = capacity;
        }
        let mut exact = small.clone();
        exact.lengths = Some(vec![530]);
        let (large_without, exact_without) =
            (large.run_as(variant, &op).unwrap(), exact.run_as(variant, &op).unwrap());
        assert_eq!(bits(&large_without.y), bits(&exact_without.y), "{variant:?} {capacity}");
        for (scores, of_hidden) in [(Scores::Masked, f32::NEG_INFINITY), (Scores::Weights, 0.0)] {
            let op = op.scores(scores);
            let (large, exact) = (large.run_as(variant, &op).unwrap(), exact.run_as(variant, &op).unwrap());
            assert_eq!(bits(&large.y), bits(&exact.y), "{variant:?} {capacity} {scores:?}");
            let (large, exact) = (large.scores.unwrap(), exact.scores.unwrap());
            for (large, exact) in large.chunks_exact(capacity).zip(exact.chunks_exact(530)) {
                assert_eq!(bits(&large[..530]), bits(exact), "{variant:?} {capacity} {scores:?}");
                assert!(
                    large[530..].iter().all(|score| *score == of_hidden),
                    "{variant:?} {capacity} {scores:?}"
                );
            }
        }
    }
}

#[test]
fn tensors_of_rank_3_give_the_bits_of_those_of_rank_4() {
    for variant in Variant::all() {
        check_ranks::<f32>(variant);
        check_ranks::<f16>(variant);
        check_ranks::<bf16>(variant);
    }
}

fn check_ranks<T: Element>(variant: Variant) {
    for (n, (head_size, value_size)) in [(40, 24), (7, 33), (64, 64), (128, 1)].into_iter().enumerate() {
        for queries in [1, 2, 5, 19] {
            let sizes = Sizes { batch: 2, queries, keys: 600, head_size, value_size, ..LONG };
            let r = &mut Random::new(33, n);
            let mut by_head = Operands::<T>::random(r, sizes);
            for with_mask in [false, true] {
                if with_mask {
                    by_head.mask = Some(AnyMask::Bool(Tensor {
                        shape: vec![2, 4, queries, 600],
                        data: r.many(2 * 4 * queries * 600, |r| r.below(3) as u8),
                    }));
                } else {
                    by_head.lengths = Some(vec![600, 571]);
                }
                let mut flat = by_head.clone();
                for tensor in [&mut flat.query, &mut flat.key, &mut flat.value] {
                    *tensor = tensor.flat();
                }
                let op = Attention::new().causal(true).heads(4, 2);
                for op in [op, op.scores(Scores::Masked)] {
                    let (by_head, flat) =
                        (by_head.run_as(variant, &op).unwrap(), flat.run_as(variant, &op).unwrap());
                    let y = Tensor { shape: vec![2, 4, queries, value_size], data: by_head.y };
                    assert!(bits(&y.flat().data) == bits(&flat.y), "{variant:?} {sizes:?} {op:?}");
                    assert!(by_head.scores.as_deref().map(bits) == flat.scores.as_deref().map(bits));
                }
            }
        }
    }
}

#[test]
fn samples_do_not_influence_each_other() {
    let r = &mut Random::new(34, 0);
    let sizes = Sizes { batch: 3, keys: 700, ..LONG };
    let mut together = Operands::<f32>::random(r, sizes);
    let lengths = [700, 3, 520];
    together.lengths = Some(lengths.to_vec());
    let op = Attention::new().causal(true).softcap(5.0);
    for flat in [false, true] {
        if flat {
            for tensor in [&mut together.query, &mut together.key, &mut together.value] {
                *tensor = tensor.flat();
            }
        }
        let op = if flat { op.heads(4, 2) } else { op };
        for variant in Variant::all() {
            let expected = together.run_as(variant, &op).unwrap().y;
            for (sample, length) in lengths.into_iter().enumerate() {
                let mut alone = together.clone();
                for tensor in [&mut alone.query, &mut alone.key, &mut alone.value] {
                    let size = tensor.data.len() / 3;
                    tensor.data = tensor.data[sample * size..][..size].to_vec();
                    tensor.shape[0] = 1;
                }
                alone.lengths = Some(vec![length]);
                let y = alone.run_as(variant, &op).unwrap().y;
                assert!(bits(&y) == bits(&expected[sample * y.len()..][..y.len()]), "{variant:?} {sample}");
                // What the other samples contain has no influence, either.
                let mut poisoned = together.clone();
                for tensor in [&mut poisoned.query, &mut poisoned.key, &mut poisoned.value] {
                    let size = tensor.data.len() / 3;
                    tensor
                        .data
                        .iter_mut()
                        .enumerate()
                        .filter(|(at, _)| at / size != sample)
                        .for_each(|(_, element)| *element = f32::NAN);
                }
                let poisoned = poisoned.run_as(variant, &op).unwrap().y;
                assert!(bits(&y) == bits(&poisoned[sample * y.len()..][..y.len()]), "{variant:?} {sample}");
            }
        }
    }
}

#[test]
fn a_token_that_is_nan_changes_no_row_before_it() {
    check_last_token::<f32>();
    check_last_token::<f16>();
    check_last_token::<bf16>();
}

/// Replaces the last token of a prompt, which is padding in many batches.
fn check_last_token<T: Element>() {
    for (n, (query_heads, queries)) in
        [(1, 2), (1, 8), (2, 8), (1, 17), (2, 24), (16, 24), (2, 33)].into_iter().enumerate()
    {
        let r = &mut Random::new(36, n);
        let sizes = Sizes { batch: 1, query_heads, heads: 1, queries, keys: queries, ..LONG };
        let clean = Operands::<T>::random(r, sizes);
        let op = Attention::new().causal(true);
        for variant in Variant::all() {
            let prepared = variant.apply(clean.prepare(&op).unwrap());
            let run = |operands: &Operands<T>| {
                operands.run_on(&prepared, &op, false, &mut prepared.scratch(1), None).unwrap().y
            };
            let expected = run(&clean);
            for (last, [in_key, in_value]) in [f64::NAN, f64::INFINITY]
                .into_iter()
                .flat_map(|last| [[true, false], [false, true], [true, true]].map(|places| (last, places)))
            {
                let mut operands = clean.clone();
                for (tensor, is_changed) in [(&mut operands.key, in_key), (&mut operands.value, in_value)] {
                    let rest = tensor.data.len() - tensor.shape[3];
                    tensor.data[rest..]
                        .iter_mut()
                        .filter(|_| is_changed)
                        .for_each(|element| *element = T::from_f64(last));
                }
                let y = run(&operands);
                let of_head = queries * sizes.value_size;
                for (y, expected) in y.chunks_exact(of_head).zip(expected.chunks_exact(of_head)) {
                    let before = of_head - sizes.value_size;
                    assert!(bits(&y[..before]) == bits(&expected[..before]), "{sizes:?} {variant:?} {last}");
                    let is_nan = y[before..].iter().all(|element| element.to_f32().is_nan());
                    // Infinity alone may give infinity, or a weight of 0.
                    let must_be_nan = last.is_nan() || (in_key && in_value);
                    assert!(is_nan || !must_be_nan, "{sizes:?} {variant:?}");
                }
            }
        }
    }
}

#[test]
fn a_value_of_weight_0_has_no_influence_in_any_chunk() {
    // In float32, exp(-120) is 0, and in float64 it is not.
    check_low_bias::<f32>(&[-3e38, -1e30, -120.0]);
    check_low_bias::<f16>(&[-6e4]);
    check_low_bias::<bf16>(&[-120.0]);
}

/// Adds finite biases that leave no weight to some slots, and replaces the values of these slots.
fn check_low_bias<T: Element>(biases: &[f64]) {
    // One chunk, the first of three, the second, and all but a few slots of all three.
    for (n, (keys, low)) in
        [(40, 3..40), (2100, 0..1024), (2100, 1024..2048), (2100, 5..2100)].into_iter().enumerate()
    {
        let r = &mut Random::new(37, n);
        let clean = Operands::<T>::random(r, Sizes { keys, ..LONG });
        for (op, bias) in [Attention::new(), Attention::new().softmax(Softmax::Float64)]
            .into_iter()
            .flat_map(|op| biases.iter().map(move |bias| (op, *bias)))
        {
            let mut with_bias = clean.clone();
            let mask =
                (0..keys).map(|slot| T::from_f64(if low.contains(&slot) { bias } else { 0.0 })).collect();
            with_bias.mask = Some(AnyMask::Float(Tensor { shape: vec![1, keys], data: mask }));
            let mut with_nan = with_bias.clone();
            let rows = with_nan.value.data.chunks_exact_mut(LONG.value_size).enumerate();
            rows.filter(|(at, _)| low.contains(&(at % keys)))
                .for_each(|(_, row)| row.fill(T::from_f64(f64::NAN)));
            for variant in Variant::all() {
                let prepared = variant.apply(with_bias.prepare(&op).unwrap());
                let mut scratch = prepared.scratch(3);
                let mut run = |operands: &Operands<T>, executor| {
                    operands.run_on(&prepared, &op, false, &mut scratch, executor).unwrap().y
                };
                let expected = run(&with_bias, None);
                for executor in [None, Some(&Threads(3) as &dyn Executor)] {
                    let y = run(&with_nan, executor);
                    assert!(bits(&y) == bits(&expected), "{low:?} of {keys}, {bias}, {variant:?}, {op:?}");
                }
            }
        }
    }
}

#[test]
fn earlier_uses_of_a_scratch_have_no_influence() {
    let r = &mut Random::new(35, 0);
    let sizes = Sizes { head_size: 37, value_size: 21, queries: 5, ..LONG };
    let masks = [
        None,
        Some(AnyMask::Bool(Tensor { shape: vec![5, 1700], data: r.many(5 * 1700, |r| r.below(2) as u8) })),
    ];
    for mask in masks {
        let mut operands = Operands::<f32>::random(r, sizes);
        operands.mask = mask;
        operands.lengths = Some(vec![1111]);
        let mut poisoned = operands.clone();
        for tensor in [&mut poisoned.query, &mut poisoned.key, &mut poisoned.value] {
            tensor.data.fill(f32::NAN);
        }
        poisoned.lengths = Some(vec![1700]);
        let op = Attention::new().causal(true);
        for (variant, op) in Variant::all()
            .into_iter()
            .flat_map(|variant| [op, op.scores(Scores::Weights)].map(|op| (variant, op)))
        {
            let expected = operands.run_as(variant, &op).unwrap();
            let prepared = variant.apply(operands.prepare(&op).unwrap());
            for threads in [1, 3] {
                let mut scratch = prepared.scratch(threads);
                let executor = Some(&Times(3) as &dyn Executor);
                poisoned.run_on(&prepared, &op, true, &mut scratch, executor).unwrap();
                let results = operands.run_on(&prepared, &op, true, &mut scratch, executor).unwrap();
                assert!(bits(&results.y) == bits(&expected.y), "{variant:?} {threads} {op:?}");
                assert!(results.scores.as_deref().map(bits) == expected.scores.as_deref().map(bits));
            }
        }
    }
}

impl core::fmt::Debug for Sizes {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let Self { batch, query_heads, heads, queries, keys, head_size, value_size } = self;
        write!(f, "{batch}x{query_heads}/{heads}x{queries} on {keys} slots of {head_size} and {value_size}")
    }
}

impl<T: Element> Operands<T> {
    fn random(r: &mut Random, sizes: Sizes) -> Self {
        let Sizes { batch, query_heads, heads, queries, keys, head_size, value_size } = sizes;
        Self {
            query: Tensor::random(r, [batch, query_heads, queries, head_size]),
            key: Tensor::random(r, [batch, heads, keys, head_size]),
            value: Tensor::random(r, [batch, heads, keys, value_size]),
            mask: None,
            past: None,
            lengths: None,
        }
    }
}

impl<T: Element> Tensor<T> {
    pub(crate) fn random(r: &mut Random, shape: [usize; 4]) -> Self {
        let element = |r: &mut Random| T::from_f64(r.below(1 << 20) as f64 / f64::from(1 << 19) - 1.0);
        Self { shape: shape.to_vec(), data: r.many(shape.iter().product(), element) }
    }
}
