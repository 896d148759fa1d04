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
            }
        }
    }
}

#[test]
fn a_row_that_sees_nan_is_nan() {
    check_seen_nan::<f32>();
    check_seen_nan::<f16>();
    check_seen_nan::<bf16>();
}

/// Replaces the last token of a prompt, which only the last query sees.
fn check_seen_nan<T: Element>() {
    for (n, (query_heads, queries)) in [(1, 2), (2, 8), (1, 17), (16, 24), (2, 33)].into_iter().enumerate() {
        let r = &mut Random::new(36, n);
        let sizes = Sizes { batch: 1, query_heads, heads: 1, queries, keys: queries, ..LONG };
        let mut operands = Operands::<T>::random(r, sizes);
        let Operands { key, value, .. } = &mut operands;
        let changed = if n % 2 == 0 { key } else { value };
        let last = changed.data.len() - changed.shape[3];
        changed.data[last..].fill(T::from_f64(f64::NAN));
        for variant in Variant::all() {
            let y = operands.run_as(variant, &Attention::new().causal(true)).unwrap().y;
            for (row, elements) in y.chunks_exact(sizes.value_size).enumerate() {
                let is_nan = elements.iter().all(|element| element.to_f32().is_nan());
                assert_eq!(is_nan, row % queries == queries - 1, "{sizes:?} {variant:?}, row {row}");
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
    // One chunk, its first section, the first of three chunks, the second, and all but a few slots of all three.
    let ranges = [(40, 3..40), (300, 0..200), (2100, 0..1024), (2100, 1024..2048), (2100, 5..2100)];
    for (n, (keys, low)) in ranges.into_iter().enumerate() {
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
