//! Compares `visibility` with the oracle's statement of the rule, and with where a write puts a position.

use kvscatter::spec::onnx::TensorScatter;
use kvscatter::visibility::Visibility;
use kvscatter::{ElementType, Mode, positions};
use kvscatter_oracle::visibility::Visibility as Oracle;

const MODES: [Mode; 2] = [Mode::Linear, Mode::Circular];
const CAPACITIES: std::ops::RangeInclusive<usize> = 0..=6;

/// Returns the rule for the cache that the oracle describes.
fn rule(oracle: &Oracle) -> Visibility {
    let mode = if oracle.ring { Mode::Circular } else { Mode::Linear };
    let rule = Visibility::new(mode, oracle.capacity as usize);
    let rule = oracle.left.map_or(rule, |left| rule.left(left as usize));
    oracle.right.map_or(rule, |right| rule.right(right as usize))
}

/// Returns every cache of at most 6 slots that has wrapped at most twice, with every pair of limits up to one
/// more than the capacity.
fn caches() -> impl Iterator<Item = Oracle> {
    let sizes = CAPACITIES.flat_map(|capacity| (0..=3 * capacity).map(move |tokens| (capacity, tokens)));
    let modes = sizes.flat_map(|size| MODES.map(|mode| (size, mode)));
    modes.flat_map(|((capacity, tokens), mode)| {
        let limits = move || (0..=capacity as u64 + 1).map(Some).chain([None]);
        let pairs = limits().flat_map(move |left| limits().map(move |right| (left, right)));
        pairs.map(move |(left, right)| Oracle {
            tokens: tokens as u64,
            capacity: capacity as u64,
            ring: mode == Mode::Circular,
            left,
            right,
        })
    })
}

/// Compares which slots each query sees: with the predicate, and with the ranges of slots, in the order of
/// the positions.
#[test]
fn every_query_sees_the_slots_of_the_oracle() {
    let mut compared = 0;
    for oracle in caches() {
        let (rule, tokens, capacity) = (rule(&oracle), oracle.tokens as i64, oracle.capacity as usize);
        for query in -3..=tokens + 3 {
            // One slot more than there are, because no query sees it.
            let expected: Vec<_> = (0..=capacity).map(|slot| oracle.sees(query, slot as u64)).collect();
            let seen: Vec<_> = (0..=capacity).map(|slot| rule.sees(tokens, query, slot)).collect();
            assert_eq!(seen, expected, "{oracle:?}, query {query}");
            let positions = rule.positions(tokens, query);
            assert!(positions.start <= positions.end, "{oracle:?}, query {query}");
            let slots: Vec<_> = rule.slots(positions.clone()).into_iter().flatten().collect();
            let in_order: Vec<_> = slots.iter().map(|&slot| rule.position_of(tokens, slot)).collect();
            assert_eq!(in_order, positions.map(Some).collect::<Vec<_>>(), "{oracle:?}, query {query}");
            let in_ranges: Vec<_> = (0..=capacity).map(|slot| slots.contains(&slot)).collect();
            assert_eq!(in_ranges, expected, "{oracle:?}, query {query}");
            compared += 1;
        }
    }
    assert!(compared > 50_000, "{compared}");
}

#[test]
fn every_slot_contains_the_position_of_the_oracle() {
    for oracle in caches().filter(|oracle| (oracle.left, oracle.right) == (None, None)) {
        let (rule, tokens) = (rule(&oracle), oracle.tokens as i64);
        let mut cached = Vec::new();
        for slot in 0..=oracle.capacity {
            let position = oracle.position(slot).map(|position| position as i64);
            assert_eq!(rule.position_of(tokens, slot as usize), position, "{oracle:?}, slot {slot}");
            if let Some(position) = position {
                assert_eq!(rule.slot_of(position), Some(slot as usize), "{oracle:?}, slot {slot}");
                cached.push(position);
            }
        }
        cached.sort_unstable();
        assert_eq!(rule.cached(tokens).collect::<Vec<_>>(), cached, "{oracle:?}");
    }
}

#[test]
fn extreme_numbers_do_not_overflow() {
    let numbers = [i64::MIN, -1, 0, i64::MAX];
    for (mode, capacity) in MODES.into_iter().flat_map(|mode| [0, 1, usize::MAX].map(|c| (mode, c))) {
        let rule = Visibility::new(mode, capacity).left(usize::MAX).right(usize::MAX);
        assert_eq!(rule.cached(-1), 0..0, "{rule:?}");
        for (tokens, query) in numbers.into_iter().flat_map(|tokens| numbers.map(|query| (tokens, query))) {
            let positions = rule.positions(tokens, query);
            assert!(positions.start <= positions.end, "{rule:?} {tokens} {query}");
            assert!(tokens > 0 || rule.slots(positions) == [0..0, 0..0], "{rule:?} {tokens} {query}");
            assert!(!rule.sees(tokens, query, usize::MAX), "{rule:?} {tokens} {query}");
        }
    }
}

/// A window of `size` positions has `size - 1` to the left. Causal attention has none to the right.
#[test]
fn windows_and_causality_are_limits() {
    let all = Visibility::new(Mode::Circular, 4);
    assert_eq!((all.mode(), all.capacity()), (Mode::Circular, 4));
    for size in 1..9 {
        assert_eq!(all.causal().window(size), all.left(size - 1).right(0));
    }
    assert_eq!(all.window(0), all.window(1));
    assert_eq!(all.left(5).left(2).left(3), all.left(2));
}

/// The rule for reading finds a row where the rule for writing put it.
#[test]
fn a_row_is_written_to_the_slot_of_its_position() {
    for (mode, capacity) in MODES.into_iter().flat_map(|mode| (1..=6).map(move |capacity| (mode, capacity))) {
        let scatter = TensorScatter::new().mode(mode);
        let write = scatter.prepare(ElementType::UInt8, &[1, capacity, 1], &[1, 1, 1]).unwrap();
        let rule = Visibility::new(mode, capacity);
        for position in 0..3 * capacity as i64 {
            let written = write.plan(&[position]).ok().map(|plan| {
                let segments: Vec<_> = plan.segments().map(|segment| segment.slot).collect();
                assert_eq!(segments.len(), 1);
                segments[0]
            });
            assert_eq!(rule.slot_of(position), written, "{mode:?}, {capacity} slots, position {position}");
            let length = positions::nonpad_kv_seqlen(position, 1, capacity, mode).ok();
            let cached = written.map(|_| rule.cached(position + 1).count() as i64);
            assert_eq!(length, cached, "{mode:?}, {capacity} slots, position {position}");
        }
    }
}
