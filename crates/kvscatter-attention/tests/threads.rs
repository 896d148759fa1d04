//! Tests which calls use the executor. Waking a thread takes as long as a short call.
#![cfg(test)]

use std::sync::atomic::{AtomicUsize, Ordering};

use kvscatter::{ElementType, Executor};
use kvscatter_attention::{Attention, Inputs, Outputs, Shapes, Valid};

/// Counts how often it was asked for help.
struct Counted(AtomicUsize);

impl Executor for Counted {
    fn broadcast(&self, work: &(dyn Fn() + Sync)) {
        self.0.fetch_add(1, Ordering::Relaxed);
        work();
    }
}

/// The multiplications of a query for one slot.
const FOR_A_SLOT: usize = 64 + 64;
const SLOTS: usize = 9000;

/// Returns how often a decode with so many valid slots uses the executor. It shares calls from `least` multiplications
/// on, or from the default on.
fn used(has_tiny_limits: bool, tokens: usize, threads: usize, least: Option<usize>) -> usize {
    let (query, key, value) = ([1, 1, 1, 64], [1, 1, SLOTS, 64], [1, 1, SLOTS, 64]);
    let shapes = Shapes {
        element: ElementType::Float32,
        query: &query,
        key: &key,
        value: &value,
        mask: None,
        past: None,
    };
    let prepared = Attention::new().prepare(&shapes).unwrap();
    let prepared = if has_tiny_limits { prepared.with_tiny_limits() } else { prepared };
    let (lengths, cache) = ([i64::try_from(tokens).unwrap()], vec![1.0_f32; SLOTS * 64]);
    let inputs = Inputs { valid: Valid::Lengths(&lengths), ..Inputs::new(&[1.0; 64], &cache, &cache) };
    let (mut y, executor) = ([0.0; 64], Counted(AtomicUsize::new(0)));
    let scratch = prepared.scratch(threads);
    let mut scratch = match least {
        Some(least) => scratch.share_from(least),
        None => scratch,
    };
    prepared.run(&inputs, &mut Outputs::new(&mut y), &mut scratch, Some(&executor)).unwrap();
    let expected = if tokens == 0 { 0.0 } else { 1.0 };
    assert!(y.iter().all(|value: &f32| (value - expected).abs() < 1e-5), "{y:?}");
    executor.0.into_inner()
}

#[test]
fn only_long_calls_use_the_executor() {
    for (has_tiny_limits, least) in [(false, (1 << 20) / FOR_A_SLOT), (true, 1)] {
        assert_eq!(used(has_tiny_limits, least, 2, None), 1);
        assert_eq!(used(has_tiny_limits, SLOTS, 2, None), 1);
        assert_eq!(used(has_tiny_limits, least - 1, 2, None), 0);
        // The caller has asked for no other thread.
        assert_eq!(used(has_tiny_limits, SLOTS, 1, None), 0);
        // The caller has chosen which calls are long.
        assert_eq!(used(has_tiny_limits, 64, 2, Some(64 * FOR_A_SLOT)), 1);
        assert_eq!(used(has_tiny_limits, 63, 2, Some(64 * FOR_A_SLOT)), 0);
    }
}
