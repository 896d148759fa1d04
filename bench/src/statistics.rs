//! Medians, percentiles and paired ratios.

use serde::Serialize;

/// The times of one subject in nanoseconds per call, one for each round. There is at least one.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Timings(Vec<f64>);

/// A distribution, as three of its percentiles.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Spread {
    pub(crate) p10: f64,
    pub(crate) median: f64,
    pub(crate) p90: f64,
}

/// The range of the median ratio of a subject to itself, over blocks of rounds. It always includes 1.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct MedianSpread {
    pub(crate) lowest: f64,
    pub(crate) highest: f64,
}

/// The number of blocks into which rounds are divided, unless the blocks would have fewer than [`BLOCK_ROUNDS`].
const BLOCKS: usize = 8;

/// The smallest number of rounds whose median is meaningful.
const BLOCK_ROUNDS: usize = 5;

impl Timings {
    /// # Panics
    /// Panics if there are no times.
    pub(crate) fn new(by_round: Vec<f64>) -> Self {
        assert!(!by_round.is_empty(), "no times");
        Self(by_round)
    }

    #[cfg(test)]
    pub(crate) fn by_round(&self) -> &[f64] {
        &self.0
    }

    pub(crate) fn spread(&self) -> Spread {
        Spread::of(self.0.clone())
    }

    /// Returns the median of the ratios to another subject within a round.
    pub(crate) fn over(&self, baseline: &Self) -> f64 {
        Spread::of(self.ratios(baseline)).median
    }

    /// Returns how far medians of blocks of rounds differ from those of other times of the same subject.
    pub(crate) fn spread_from(&self, again: &Self) -> MedianSpread {
        let ratios = self.ratios(again);
        let blocks = (ratios.len() / BLOCK_ROUNDS).clamp(1, BLOCKS);
        let end = |block: usize| block * ratios.len() / blocks;
        let medians = (0..blocks).map(|block| Spread::of(ratios[end(block)..end(block + 1)].to_vec()).median);
        medians.fold(MedianSpread::NONE, |spread, median| MedianSpread {
            lowest: spread.lowest.min(median),
            highest: spread.highest.max(median),
        })
    }

    fn ratios(&self, baseline: &Self) -> Vec<f64> {
        self.0.iter().zip(&baseline.0).map(|(time, base)| time / base).collect()
    }
}

impl Spread {
    fn of(mut values: Vec<f64>) -> Self {
        values.sort_unstable_by(f64::total_cmp);
        let at = |part: f64| {
            let index = part * (values.len() - 1) as f64;
            let (below, above) = (values[index.floor() as usize], values[index.ceil() as usize]);
            below + (above - below) * index.fract()
        };
        Self { p10: at(0.1), median: at(0.5), p90: at(0.9) }
    }
}

impl MedianSpread {
    pub(crate) const NONE: Self = Self { lowest: 1.0, highest: 1.0 };

    /// Returns a range that contains both.
    pub(crate) fn joined(self, other: Self) -> Self {
        Self { lowest: self.lowest.min(other.lowest), highest: self.highest.max(other.highest) }
    }
}

#[cfg(test)]
mod tests {
    use super::{MedianSpread, Spread, Timings};

    fn timings(values: &[f64]) -> Timings {
        Timings::new(values.to_vec())
    }

    #[test]
    fn percentiles() {
        let eleven: Vec<f64> = (0..11).rev().map(f64::from).collect();
        assert_eq!(timings(&eleven).spread(), Spread { p10: 1.0, median: 5.0, p90: 9.0 });
        assert_eq!(timings(&[7.0]).spread(), Spread { p10: 7.0, median: 7.0, p90: 7.0 });
        assert_eq!(timings(&[4.0, 2.0]).spread(), Spread { p10: 2.2, median: 3.0, p90: 3.8 });
    }

    #[test]
    fn ratios_are_paired_by_round() {
        let (fast, slow) = (timings(&[1.0, 2.0, 1.0, 2.0]), timings(&[3.0, 6.0, 3.0, 6.0]));
        assert_eq!((slow.over(&fast), fast.over(&fast)), (3.0, 1.0));
    }

    #[test]
    fn the_spread_has_eight_blocks_or_one_of_few_rounds() {
        let spread = |values: &[f64]| timings(values).spread_from(&timings(&vec![1.0; values.len()]));
        // Medians differ less than single rounds.
        let rounds = [1.0, 1.1, 1.02, 9.0, 0.1, 1.0, 0.97, 0.5, 0.96, 7.0];
        assert_eq!(spread(&rounds), MedianSpread { lowest: 0.97, highest: 1.02 });
        // The last of eight blocks is slow, and an eighth of 43 rounds is at least 5.
        let slow_end: Vec<_> = (0..43).map(|round| if round < 37 { 1.0 } else { 1.5 }).collect();
        assert_eq!(spread(&slow_end), MedianSpread { lowest: 1.0, highest: 1.5 });
        assert_eq!(spread(&[2.0, 1.0, 3.0]), MedianSpread { lowest: 1.0, highest: 2.0 });
        assert_eq!(spread(&[0.5]), MedianSpread { lowest: 0.5, highest: 1.0 });
    }
}
