//! Logarithmic axes with readable ticks.

use kvscatter_onnx::text::units;

/// A logarithmic axis.
pub(super) struct Axis {
    pub(super) name: &'static str,
    unit: Unit,
    low: f64,
    high: f64,
}

/// The unit of an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    /// Times in nanoseconds.
    Time,
    Bytes,
    /// Counts of rows or samples, with ticks at powers of two.
    Count,
    /// Bandwidths in gigabytes per second.
    Bandwidth,
}

/// The most ticks that fit on an axis.
const MOST_TICKS: usize = 10;

impl Axis {
    /// Returns an axis that contains all values with some margin, or `None` without values.
    pub(super) fn over(unit: Unit, name: &'static str, values: impl Iterator<Item = f64>) -> Option<Self> {
        let (low, high) = values.fold((f64::INFINITY, 0.0_f64), |(low, high), v| (low.min(v), high.max(v)));
        let room = if matches!(unit, Unit::Time | Unit::Bandwidth) { 1.35 } else { 1.0 };
        (low <= high).then_some(Self { name, unit, low: low / room, high: high * room })
    }

    /// Returns how far along the axis a value lies, from 0 to 1.
    pub(super) fn fraction(&self, value: f64) -> f64 {
        let span = (self.high / self.low).ln();
        if span > 0.0 { (value / self.low).ln() / span } else { 0.5 }
    }

    /// Whether larger values are better.
    pub(super) fn is_better_above(&self) -> bool {
        self.unit == Unit::Bandwidth
    }

    /// Returns the values that get a tick.
    pub(super) fn ticks(&self) -> Vec<f64> {
        let steps: &[&[f64]] = match self.unit {
            Unit::Time | Unit::Bandwidth => &[&[1.0, 2.0, 5.0], &[1.0]],
            Unit::Bytes | Unit::Count => &[&[1.0]],
        };
        let dense = steps.iter().map(|steps| self.multiples(steps, 1));
        let sparse = (2..).map(|stride| self.multiples(&[1.0], stride));
        dense.chain(sparse).find(|ticks| ticks.len() <= MOST_TICKS).unwrap_or_default()
    }

    pub(super) fn label(&self, value: f64) -> String {
        match self.unit {
            Unit::Time => trimmed(&units::time(value)),
            Unit::Bytes => units::bytes(value as u64),
            Unit::Count if value >= 1048576.0 => format!("{} Mi", value / 1048576.0),
            Unit::Count if value >= 1024.0 => format!("{} Ki", value / 1024.0),
            Unit::Count => value.to_string(),
            Unit::Bandwidth => format!("{} GB/s", rounded(value)),
        }
    }

    /// Returns the factors times every `stride`-th power of the unit's base that lie on the axis.
    fn multiples(&self, factors: &[f64], stride: i32) -> Vec<f64> {
        let base: f64 = if matches!(self.unit, Unit::Time | Unit::Bandwidth) { 10.0 } else { 2.0 };
        let first = self.low.log(base).floor() as i32;
        let last = self.high.log(base).ceil() as i32;
        let powers = (first..=last).filter(|power| power.rem_euclid(stride) == 0);
        let all = powers.flat_map(|power| factors.iter().map(move |factor| factor * base.powi(power)));
        // The margin keeps the ends in spite of rounding errors.
        all.filter(|&tick| (self.low * 0.999..=self.high * 1.001).contains(&tick)).collect()
    }
}

/// Removes zeros after the decimal point: `1.00 µs` becomes `1 µs`.
fn trimmed(text: &str) -> String {
    match text.split_once(' ') {
        Some((number, unit)) => {
            number.parse().map_or(text.to_owned(), |n: f64| format!("{} {unit}", rounded(n)))
        }
        None => text.to_owned(),
    }
}

/// Rounds to three decimals, which removes errors of binary fractions.
fn rounded(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

#[cfg(test)]
mod tests {
    use super::{Axis, Unit};

    fn labels(unit: Unit, low: f64, high: f64) -> Vec<String> {
        let axis = Axis::over(unit, "", [low, high].into_iter()).unwrap();
        axis.ticks().into_iter().map(|tick| axis.label(tick)).collect()
    }

    #[test]
    fn ticks_are_human() {
        assert_eq!(labels(Unit::Time, 40.0, 900.0), ["50 ns", "100 ns", "200 ns", "500 ns", "1 µs"]);
        assert_eq!(labels(Unit::Time, 90.0, 2e7), ["100 ns", "1 µs", "10 µs", "100 µs", "1 ms", "10 ms"]);
        assert_eq!(labels(Unit::Count, 1.0, 256.0), ["1", "2", "4", "8", "16", "32", "64", "128", "256"]);
        assert_eq!(
            labels(Unit::Count, 1024.0, 1048576.0),
            ["1 Ki", "4 Ki", "16 Ki", "64 Ki", "256 Ki", "1 Mi"]
        );
        assert_eq!(
            labels(Unit::Bytes, 2048.0, 16777216.0),
            ["4 KiB", "16 KiB", "64 KiB", "256 KiB", "1 MiB", "4 MiB", "16 MiB"]
        );
        assert_eq!(labels(Unit::Bandwidth, 0.6, 20.0)[..3], ["0.5 GB/s", "1 GB/s", "2 GB/s"]);
    }

    #[test]
    fn values_lie_on_the_axis() {
        let axis = Axis::over(Unit::Count, "", [4.0, 64.0].into_iter()).unwrap();
        assert_eq!([4.0, 16.0, 64.0].map(|value| axis.fraction(value)), [0.0, 0.5, 1.0]);
        assert!(Axis::over(Unit::Count, "", std::iter::empty()).is_none());
    }
}
