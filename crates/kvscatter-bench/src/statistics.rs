//! Medians, percentiles and paired ratios.

use serde::{Deserialize, Serialize, Serializer, ser::SerializeStruct};

/// The times of one engine in nanoseconds per call, one for each round. There is at least one.
#[derive(Clone, Debug, PartialEq)]
pub struct Timings(Vec<f64>);

/// A distribution, as three of its percentiles.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// The 10th percentile of the values.
    pub p10: f64,
    /// The 50th percentile of the values.
    pub median: f64,
    /// The 90th percentile of the values.
    pub p90: f64,
}

/// The range of the median ratio of an engine to itself. It always includes 1.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct MedianSpread {
    /// The smallest median of a block of rounds, at most 1.
    pub lowest: f64,
    /// The largest median of a block of rounds, at least 1.
    pub highest: f64,
}

/// The number of blocks into which rounds are divided, unless the blocks would have fewer than
/// [`BLOCK_ROUNDS`].
const BLOCKS: usize = 8;

/// The smallest number of rounds whose median is meaningful.
const BLOCK_ROUNDS: usize = 5;

impl Timings {
    /// Creates a list from times in the order of their rounds.
    ///
    /// # Panics
    /// Panics if there are no times. Every measurement has at least one round.
    #[must_use]
    pub fn new(by_round: Vec<f64>) -> Self {
        assert!(!by_round.is_empty(), "no times");
        Self(by_round)
    }

    /// Returns one time per round.
    #[must_use]
    pub fn by_round(&self) -> &[f64] {
        &self.0
    }

    /// Returns the median and two percentiles, in nanoseconds.
    #[must_use]
    pub fn spread(&self) -> Spread {
        Spread::of(self.0.clone())
    }

    /// Returns the ratios to the times of a baseline in the same rounds. If the machine is slow for a moment,
    /// both times of a round are affected.
    #[must_use]
    pub fn over(&self, baseline: &Self) -> Spread {
        Spread::of(self.0.iter().zip(&baseline.0).map(|(time, base)| time / base).collect())
    }

    /// Returns the range of the median ratio to other times of the same engine.
    ///
    /// The medians are those of eight consecutive blocks of rounds, or of fewer blocks if eight would have
    /// fewer than five rounds each. The median of a block deviates more than the median of all rounds, so the
    /// range is too large rather than too small.
    #[must_use]
    pub fn spread_from(&self, again: &Self) -> MedianSpread {
        let ratios = Self(self.0.iter().zip(&again.0).map(|(time, base)| time / base).collect());
        let medians = ratios.block_medians().into_iter();
        let nothing = MedianSpread { lowest: 1.0, highest: 1.0 };
        medians.fold(nothing, |MedianSpread { lowest, highest }, median| MedianSpread {
            lowest: lowest.min(median),
            highest: highest.max(median),
        })
    }

    /// Returns the medians of eight consecutive blocks of rounds, or of fewer blocks if eight would have
    /// fewer than five rounds each.
    #[must_use]
    pub fn block_medians(&self) -> Vec<f64> {
        let blocks = (self.0.len() / BLOCK_ROUNDS).clamp(1, BLOCKS);
        let end = |block: usize| block * self.0.len() / blocks;
        (0..blocks).map(|block| Spread::of(self.0[end(block)..end(block + 1)].to_vec()).median).collect()
    }

    /// Returns the differences to the times of a baseline in the same rounds, in nanoseconds.
    #[must_use]
    pub fn minus(&self, baseline: &Self) -> Spread {
        Spread::of(self.0.iter().zip(&baseline.0).map(|(time, base)| time - base).collect())
    }
}

/// Serialises three percentiles and the number of times.
impl Serialize for Timings {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let Spread { p10, median, p90 } = self.spread();
        let mut fields = to.serialize_struct("Timings", 4)?;
        fields.serialize_field("median", &median)?;
        fields.serialize_field("p10", &p10)?;
        fields.serialize_field("p90", &p90)?;
        fields.serialize_field("count", &self.0.len())?;
        fields.end()
    }
}

impl Spread {
    /// Returns percentiles of values in any order, with linear interpolation. There must be at least one
    /// value.
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
    /// Returns the smallest range that contains both ranges.
    #[must_use]
    pub fn joined(self, other: Self) -> Self {
        Self { lowest: self.lowest.min(other.lowest), highest: self.highest.max(other.highest) }
    }

    /// Returns `true` if a median ratio cannot be distinguished from 1, given this range.
    #[must_use]
    pub fn covers(&self, ratio: f64) -> bool {
        (self.lowest..=self.highest).contains(&ratio)
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

    /// The machine halves its speed in every other round. The times differ, and the ratio does not.
    #[test]
    fn ratios_are_paired_by_round() {
        let (fast, slow) = (timings(&[1.0, 2.0, 1.0, 2.0]), timings(&[3.0, 6.0, 3.0, 6.0]));
        assert_eq!(slow.over(&fast), Spread { p10: 3.0, median: 3.0, p90: 3.0 });
        assert_eq!(slow.minus(&fast).median, 3.0);
    }

    #[test]
    fn a_ratio_within_the_spread_is_covered() {
        let spread = MedianSpread { lowest: 0.97, highest: 1.04 };
        assert!(spread.covers(0.97) && spread.covers(1.0) && spread.covers(1.04));
        assert!(!spread.covers(0.96) && !spread.covers(1.05) && !spread.covers(f64::NAN));
    }

    /// Ten rounds make two blocks. An outlier in a single round changes neither median.
    #[test]
    fn medians_stray_less_than_single_rounds() {
        let first = timings(&[1.0, 1.1, 1.02, 9.0, 0.1, 1.0, 0.97, 0.5, 0.96, 7.0]);
        let again = timings(&[1.0; 10]);
        assert_eq!(first.spread_from(&again), MedianSpread { lowest: 0.97, highest: 1.02 });
        assert_eq!(first.spread_from(&first), MedianSpread { lowest: 1.0, highest: 1.0 });
    }

    #[test]
    fn blocks_are_eight_and_one_of_few_rounds() {
        let spread = |values: &[f64]| timings(values).spread_from(&timings(&vec![1.0; values.len()]));
        // The last of eight blocks is slow, and an eighth of 43 rounds is at least 5.
        let slow_end: Vec<_> = (0..43).map(|round| if round < 37 { 1.0 } else { 1.5 }).collect();
        assert_eq!(spread(&slow_end), MedianSpread { lowest: 1.0, highest: 1.5 });
        assert_eq!(spread(&[2.0, 1.0, 3.0]), MedianSpread { lowest: 1.0, highest: 2.0 });
        assert_eq!(spread(&[0.5]), MedianSpread { lowest: 0.5, highest: 1.0 });
    }
}
