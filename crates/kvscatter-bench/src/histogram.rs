//! The distribution of the times of every engine, over one logarithmic time axis.

mod svg;
mod text;

use crate::report::Report;

/// Counts of times in columns. Each column is wider than the previous one by a constant factor.
#[derive(Clone, Debug, PartialEq)]
pub struct Histogram {
    axis: Axis,
    lanes: Vec<Lane>,
}

/// The time axis.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Axis {
    /// The time at the left edge of the first column, in nanoseconds.
    from: f64,
    /// The time at the right edge of the last column, in nanoseconds.
    to: f64,
    columns: usize,
}

/// The counts of one engine.
#[derive(Clone, Debug, PartialEq)]
struct Lane {
    engine: String,
    median: f64,
    counts: Vec<usize>,
    /// The number of times that are beyond the last column.
    beyond: usize,
}

impl Histogram {
    /// Counts the times of every engine that was measured. Returns `None` if no engine was.
    ///
    /// The axis ends at four times the slowest median. Times beyond the axis are counted separately.
    #[must_use]
    pub fn new(report: &Report, columns: usize) -> Option<Self> {
        let names = report.entries.iter().map(|entry| entry.engine.as_str());
        let samples: Vec<_> = names.filter_map(|name| Some((name, &report.times(name)?.write))).collect();
        let all = || samples.iter().flat_map(|(_, samples)| samples.by_round());
        let slowest = samples.iter().map(|(_, samples)| samples.spread().median).reduce(f64::max)?;
        let least = all().copied().reduce(f64::min)?;
        let most = all().copied().reduce(f64::max)?.min(4.0 * slowest);
        // The margin gives the axis a width even if all times are equal.
        let axis = Axis { from: least * 0.97, to: most * 1.03, columns };
        let lane = |(engine, samples): (&str, &crate::statistics::Timings)| {
            let mut lane = Lane {
                engine: engine.to_owned(),
                median: samples.spread().median,
                counts: vec![0; columns],
                beyond: 0,
            };
            for &sample in samples.by_round() {
                match axis.column(sample) {
                    Some(column) => lane.counts[column] += 1,
                    None => lane.beyond += 1,
                }
            }
            lane
        };
        Some(Self { axis, lanes: samples.into_iter().map(lane).collect() })
    }

    /// Returns the number of times beyond the last column, for all engines together.
    #[must_use]
    pub fn beyond(&self) -> usize {
        self.lanes.iter().map(|lane| lane.beyond).sum()
    }
}

impl Axis {
    /// Returns the position of a time on the axis, from 0 to 1.
    fn part(&self, nanoseconds: f64) -> f64 {
        (nanoseconds / self.from).ln() / (self.to / self.from).ln()
    }

    /// Returns the column of a time that is not before the axis. Returns `None` beyond the last column.
    fn column(&self, nanoseconds: f64) -> Option<usize> {
        let column = (self.part(nanoseconds) * self.columns as f64) as usize;
        (column < self.columns).then_some(column)
    }

    /// Returns round times on the axis, such as 1, 2, 5 and 10. If there would be fewer than two, returns
    /// finer ones.
    fn ticks(&self) -> Vec<f64> {
        const COARSE: &[f64] = &[1.0, 2.0, 5.0];
        const FINE: &[f64] =
            &[1.0, 1.2, 1.4, 1.6, 1.8, 2.0, 2.2, 2.5, 2.8, 3.0, 3.5, 4.0, 4.5, 5.0, 5.5, 6.0, 7.0, 8.0, 9.0];
        let of = |steps: &[f64]| -> Vec<f64> {
            let decades = self.from.log10().floor() as i32..=self.to.log10().floor() as i32;
            let all = decades.flat_map(|decade| steps.iter().map(move |step| step * 10_f64.powi(decade)));
            all.filter(|tick| (self.from..=self.to).contains(tick)).collect()
        };
        let coarse = of(COARSE);
        if coarse.len() >= 3 { coarse } else { of(FINE) }
    }
}

#[cfg(test)]
mod tests {
    use super::Axis;

    #[test]
    fn columns_are_a_constant_factor_apart() {
        let axis = Axis { from: 1.0, to: 16.0, columns: 4 };
        let columns = [1.0, 1.99, 2.01, 7.9, 8.1, 15.9, 16.1].map(|time| axis.column(time));
        assert_eq!(columns, [Some(0), Some(0), Some(1), Some(2), Some(3), Some(3), None]);
    }

    #[test]
    fn ticks_are_round_and_on_the_axis() {
        let ticks = |from, to| Axis { from, to, columns: 1 }.ticks();
        assert_eq!(ticks(9.0, 210.0), [10.0, 20.0, 50.0, 100.0, 200.0]);
        assert_eq!(ticks(95.0, 130.0), [100.0, 120.0]);
        assert!(ticks(103.0, 104.0).is_empty());
    }
}
