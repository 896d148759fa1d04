//! Compares `ring` with a ring that the oracle fills slot by slot.

use kvscatter::ring::{Feeding, Ring, high_after, least_capacity};
use kvscatter_oracle::cases::Random;
use kvscatter_oracle::ring::{Ring as Oracle, Step};

/// A sample in a ring, by the rule and by the oracle.
#[derive(Clone)]
struct Sample {
    ring: Ring,
    oracle: Oracle,
    high: usize,
}

impl Sample {
    fn new(capacity: usize, window: usize) -> Self {
        Self { ring: Ring::new(capacity, window), oracle: Oracle::new(capacity, window), high: 0 }
    }

    /// Returns a sample that has read `tokens` tokens, one at a time.
    fn with_tokens(capacity: usize, window: usize, tokens: usize) -> Self {
        let mut sample = Self::new(capacity, window);
        for _ in 0..tokens {
            sample.step(Step { rewind: 0, rows: 1, tokens: 1 });
        }
        sample
    }

    /// Writes a step, and returns whether it is exact. The rule must say the same.
    fn step(&mut self, step: Step) -> bool {
        let start = self.oracle.tokens().saturating_sub(step.rewind);
        let takes = self.ring.takes(self.high, start, step.rows);
        let most = self.ring.most_rows(self.high, start);
        assert_eq!(takes, most >= step.rows, "{:?} {} {step:?}", self.ring, self.high);
        if start > 0 && self.ring.capacity() >= self.ring.window() {
            let is_reached = start >= self.ring.least_start(self.high);
            assert_eq!(is_reached, most > 0, "{:?} {} {start}", self.ring, self.high);
        }
        let is_exact = self.oracle.step(step);
        // A step of padding alone has no query that could see something else.
        assert_eq!(is_exact, takes || step.tokens == 0, "{:?} {} {start} {step:?}", self.ring, self.high);
        self.high = high_after(self.high, start, step.rows);
        is_exact
    }
}

/// Returns every step of up to `rows` rows with at least `fewest` tokens, after a rewind of up to `rewind` tokens.
fn steps(rewind: usize, rows: usize, fewest: impl Fn(usize) -> usize) -> Vec<Step> {
    let mut steps = Vec::new();
    for rewind in 0..=rewind {
        for rows in 1..=rows {
            steps.extend((fewest(rows)..=rows).map(|tokens| Step { rewind, rows, tokens }));
        }
    }
    steps
}

/// Three steps after six tokens, so that every ring has wrapped.
#[test]
fn a_step_is_exact_if_and_only_if_the_ring_takes_it() {
    let mut compared = 0;
    for window in 1..=3 {
        for capacity in 1..=7 {
            // A window that does not fit the ring spoils it before.
            if capacity < window {
                let mut sample = Sample::new(capacity, window);
                let exact = (0..window).map(|_| sample.step(Step { rewind: 0, rows: 1, tokens: 1 }));
                assert!(exact.take(capacity + 1).last() == Some(false));
                continue;
            }
            let first = Sample::with_tokens(capacity, window, 6);
            let steps = steps(3, 2, |_| 0);
            for &one in &steps {
                let mut after_one = first.clone();
                compared += 1;
                if !after_one.step(one) {
                    continue;
                }
                for &two in &steps {
                    let mut after_two = after_one.clone();
                    compared += 1;
                    if !after_two.step(two) {
                        continue;
                    }
                    for &three in &steps {
                        after_two.clone().step(three);
                        compared += 1;
                    }
                }
            }
        }
    }
    assert!(compared > 50_000, "{compared}");
}

/// Histories of at least three wraps with rewinds that add up, padding, idle steps and capacities around the least one.
#[test]
fn random_histories_are_exact_if_and_only_if_the_ring_takes_every_step() {
    const HISTORIES: usize = 1_000_000;
    let (mut exact, mut spoilt) = (0_u32, 0_u32);
    for history in 0..HISTORIES {
        let r = &mut Random::new(40, history);
        let window = r.between(1, 6);
        let (rows, rewind) = (r.between(1, 2 * window), r.between(0, window));
        let feeding = r.pick(&[Feeding::WithoutPadding, Feeding::PaddedOnTheRight, Feeding::Idle]);
        let least = least_capacity(window, rows, rewind, feeding);
        let capacity = r.between(least.saturating_sub(1), least + 1).max(1);
        let mut sample = Sample::new(capacity, window);
        let mut is_exact = true;
        while is_exact && sample.oracle.tokens() < 4 * capacity && r.below(40) > 0 {
            let rows = r.between(1, rows);
            let tokens = match feeding {
                Feeding::WithoutPadding => rows,
                Feeding::PaddedOnTheRight => r.between(1, rows),
                Feeding::Idle => r.between(0, rows),
            };
            let rewind = if r.below(3) == 0 { r.between(0, rewind) } else { 0 };
            is_exact = sample.step(Step { rewind, rows, tokens });
        }
        *(if is_exact { &mut exact } else { &mut spoilt }) += 1;
    }
    assert!(exact > 500_000 && spoilt > 50_000, "{exact} {spoilt}");
}

/// Returns how far a history takes a sample back below its furthest token. Rewinds add up until that token is passed.
fn deepest(history: &[Step]) -> usize {
    let (mut start, mut end, mut deepest) = (0_i64, 0_i64, 0);
    for step in history {
        deepest = deepest.max(end - (start - step.rewind as i64));
        start += step.tokens as i64 - step.rewind as i64;
        end = end.max(start);
    }
    deepest as usize
}

#[test]
fn the_least_capacity_is_enough_and_one_slot_less_is_not() {
    for feeding in [Feeding::WithoutPadding, Feeding::PaddedOnTheRight, Feeding::Idle] {
        for (window, rows, rewind) in (1..=3)
            .flat_map(|window| (1..=3).map(move |rows| (window, rows)))
            .flat_map(|(window, rows)| (0..=3).map(move |rewind| (window, rows, rewind)))
        {
            let fewest = |rows| match feeding {
                Feeding::WithoutPadding => rows,
                Feeding::PaddedOnTheRight => 1,
                Feeding::Idle => 0,
            };
            let steps = steps(rewind, rows, fewest);
            let last: Vec<_> = (0..=rewind).map(|rewind| Step { rewind, rows: 1, tokens: 1 }).collect();
            let is_enough = |capacity: usize| {
                let first = Sample::with_tokens(capacity, window, capacity + window + rewind);
                steps.iter().all(|&one| {
                    steps.iter().all(|&two| {
                        last.iter().filter(|&&three| deepest(&[one, two, three]) <= rewind).all(|&three| {
                            let mut sample = first.clone();
                            [one, two, three].into_iter().all(|step| sample.step(step))
                        })
                    })
                })
            };
            let least = least_capacity(window, rows, rewind, feeding);
            let what = format!("{feeding:?}, W {window}, S {rows}, R {rewind}: {least}");
            assert!(is_enough(least.max(rows)), "{what}");
            if least > rows {
                assert!(!is_enough(least - 1), "{what}, one less");
            }
        }
    }
}

#[test]
fn a_sample_that_starts_over_reads_nothing_old() {
    let mut sample = Sample::with_tokens(5, 3, 9);
    assert_eq!(sample.ring.least_start(sample.high), 6);
    assert!(sample.step(Step { rewind: 9, rows: 5, tokens: 4 }));
    assert_eq!(sample.high, 5);
    assert!(sample.step(Step { rewind: 0, rows: 3, tokens: 3 }));
}

#[test]
fn extreme_numbers_do_not_overflow() {
    const MAX: usize = usize::MAX;
    for (capacity, window) in [(0, 0), (0, MAX), (MAX, 0), (MAX, MAX), (1, MAX)] {
        let ring = Ring::new(capacity, window);
        for (high, start) in [(0, 0), (MAX, 0), (0, MAX), (MAX, MAX)] {
            assert!(ring.takes(high, start, 0));
            assert!(ring.most_rows(high, start) <= capacity);
            assert!(ring.least_start(high) <= high.max(window));
            assert_eq!(high_after(high, start, MAX), MAX);
        }
    }
    for feeding in [Feeding::WithoutPadding, Feeding::PaddedOnTheRight, Feeding::Idle] {
        assert_eq!(least_capacity(MAX, MAX, MAX, feeding), MAX);
        assert_eq!(least_capacity(2, 0, 0, feeding), 1);
    }
}
