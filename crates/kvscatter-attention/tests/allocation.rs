//! A prepared call allocates nothing, with any executor, and also if it is refused.
#![cfg(test)]

use std::hint::black_box;

use allocation_counter::measure;
use half::f16;
use kvscatter::Executor;
use kvscatter_attention::{
    Attention, AttentionError, Float, Inputs, Mask, Outputs, Scores, Shapes, Softmax, Valid,
};

/// An executor that runs the work of two threads on one thread, because the counter counts only that thread.
struct InTurn;

impl Executor for InTurn {
    fn broadcast(&self, work: &(dyn Fn() + Sync)) {
        work();
        work();
    }
}

#[test]
fn the_counter_counts() {
    assert_eq!(measure(|| drop(black_box(vec![0_u8; 9]))).count_total, 1);
}

#[test]
fn a_decode() {
    for queries in [1, 3] {
        let op = Attention::new().causal(true);
        check::<f32>(op, queries, false);
        check::<f16>(op.softcap(3.0), queries, false);
        check::<f32>(op.window(Some(900), None).ring(), queries, false);
        check::<f32>(op, queries, true);
        check::<f16>(op.softmax(Softmax::Float64), queries, true);
        check::<f32>(op.scores(Scores::Weights), queries, true);
    }
}

#[test]
fn a_prompt() {
    let op = Attention::new().causal(true);
    check::<f32>(op, 40, false);
    check::<f16>(op.softcap(3.0), 40, false);
    check::<f32>(op.window(Some(900), None), 40, true);
}

/// Runs a call over tensors of both ranks, twice with the same scratch.
fn check<T: Float>(op: Attention, queries: usize, with_mask: bool) {
    const SLOTS: usize = 2000;
    let shapes: [[&[usize]; 3]; 2] = [
        [&[2, 4, queries, 24], &[2, 2, SLOTS, 24], &[2, 2, SLOTS, 40]],
        [&[2, queries, 96], &[2, SLOTS, 48], &[2, SLOTS, 80]],
    ];
    let numbers = |count: usize| (0..count).map(|n| T::of_f32((n % 17) as f32 / 16.0)).collect::<Vec<_>>();
    let (query, key, value) = (numbers(192 * queries), numbers(96 * SLOTS), numbers(160 * SLOTS));
    let mask: Vec<_> = (0..SLOTS).map(|n| u8::from(n % 3 != 0)).collect();
    let has_scores = op.has_scores();
    let mut y = numbers(320 * queries);
    let mut scores = numbers(if has_scores { 8 * queries * SLOTS } else { 0 });
    for [query_shape, key_shape, value_shape] in shapes {
        let (is_flat, shape) = (query_shape.len() == 3, [SLOTS]);
        let op = if is_flat { op.heads(4, 2) } else { op };
        let prepared = op
            .prepare(&Shapes {
                element: T::ELEMENT,
                query: query_shape,
                key: key_shape,
                value: value_shape,
                mask: with_mask.then_some(&shape),
                past: None,
            })
            .unwrap();
        let inputs =
            Inputs { mask: with_mask.then_some(Mask::Bool(&mask)), ..Inputs::new(&query, &key, &value) };
        for threads in [1, 2, 8] {
            let mut scratch = prepared.scratch(threads);
            for executor in [None, Some(&InTurn as &dyn Executor)] {
                let allocations = measure(|| {
                    for lengths in [[2000, 1200], [0, 3]] {
                        let mut outputs = Outputs::new(&mut y);
                        if has_scores {
                            outputs = outputs.scores(&mut scores);
                        }
                        let inputs = Inputs { valid: Valid::Lengths(&lengths), ..inputs };
                        prepared.run(&inputs, &mut outputs, &mut scratch, executor).unwrap();
                    }
                    let mut outputs = Outputs::new(&mut y);
                    if has_scores {
                        outputs = outputs.scores(&mut scores);
                    }
                    let inputs = Inputs { valid: Valid::Lengths(&[-1, 0]), ..inputs };
                    let refused = prepared.run(&inputs, &mut outputs, &mut scratch, executor);
                    assert!(matches!(refused, Err(AttentionError::LengthOutOfRange { index: 0, .. })));
                });
                assert_eq!(allocations.count_total, 0, "{op:?} {threads} {allocations:?}");
            }
        }
    }
}
