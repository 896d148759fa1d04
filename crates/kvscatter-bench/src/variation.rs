//! The variation of a case between blocks of rounds and between processes.
//!
//! Ratios within a round do not show two effects. The first affects all engines alike, such as a slow moment
//! of the machine. The second is the addresses of the stack, the heap and the pages of the process, which do
//! not change while the process runs. A new process gets other addresses, so the medians of several processes
//! also show the second effect.

use serde::{Deserialize, Serialize};

use crate::engines::HAND_LOOP;
use crate::report::{Outcome, Report};
use crate::statistics::MedianSpread;

/// The medians that one process measured for a case.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Medians {
    /// The engine that the others are compared with: the hand loop if it was measured, and otherwise the
    /// first engine.
    pub baseline: String,
    /// The baseline's medians of consecutive blocks of rounds, in nanoseconds per call.
    pub blocks: Vec<f64>,
    /// The median ratio of each other engine to the baseline.
    pub ratios: Vec<(String, f64)>,
}

/// The variation of a case over at least one process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Variation {
    /// The name of the engine that was measured.
    pub engine: String,
    /// The number of processes that measured the case.
    pub processes: usize,
    /// The smallest median of a block of rounds of any process, in nanoseconds per call.
    pub lowest: f64,
    /// The largest median of a block of rounds of any process, in nanoseconds per call.
    pub highest: f64,
    /// The ratios of all other engines to this one.
    pub ratios: Vec<RatioRange>,
}

/// The smallest and the largest median ratio of an engine, over all processes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RatioRange {
    /// The name of the engine.
    pub engine: String,
    /// The smallest median ratio of any process.
    pub lowest: f64,
    /// The largest median ratio of any process.
    pub highest: f64,
}

impl Medians {
    /// Returns the medians of a report, or `None` if no engine was measured.
    #[must_use]
    pub fn of(report: &Report) -> Option<Self> {
        let measured = |name: &&str| report.times(name).is_some();
        let mut names = report.entries.iter().map(|entry| entry.engine.as_str());
        let baseline = Some(HAND_LOOP).filter(measured).or_else(|| names.find(measured))?;
        let others = report
            .entries
            .iter()
            .filter(|entry| entry.engine != baseline && matches!(entry.outcome, Outcome::Measured(_)));
        let ratio = |engine: &str| Some((engine.to_owned(), report.ratio(engine, baseline)?.median));
        Some(Self {
            baseline: baseline.to_owned(),
            blocks: report.times(baseline)?.write.block_medians(),
            ratios: others.filter_map(|entry| ratio(&entry.engine)).collect(),
        })
    }
}

impl Variation {
    /// Combines the medians of all processes. Engines that one of the processes did not measure are left out.
    ///
    /// Returns `None` if there are no processes or if their baselines differ.
    #[must_use]
    pub fn over(processes: &[Medians]) -> Option<Self> {
        let first = processes.first()?;
        if processes.iter().any(|other| other.baseline != first.baseline) {
            return None;
        }
        let (lowest, highest) = ends(processes.iter().flat_map(|medians| medians.blocks.iter().copied()))?;
        let ratio = |(engine, _): &(String, f64)| {
            let of = |medians: &Medians| Some(medians.ratios.iter().find(|(name, _)| name == engine)?.1);
            let values = processes.iter().map(of).collect::<Option<Vec<_>>>()?;
            let (lowest, highest) = ends(values.into_iter())?;
            Some(RatioRange { engine: engine.clone(), lowest, highest })
        };
        Some(Self {
            engine: first.baseline.clone(),
            processes: processes.len(),
            lowest,
            highest,
            ratios: first.ratios.iter().filter_map(ratio).collect(),
        })
    }

    /// Returns the range of the ratios of an engine in all processes, relative to the ratio that this process
    /// measured. The range always includes 1.
    #[must_use]
    pub fn spread(&self, engine: &str, measured: f64) -> MedianSpread {
        let range = self.ratios.iter().find(|range| range.engine == engine);
        let (lowest, highest) = range.map_or((measured, measured), |range| (range.lowest, range.highest));
        MedianSpread { lowest: (lowest / measured).min(1.0), highest: (highest / measured).max(1.0) }
    }
}

fn ends(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    values.fold(None, |ends, value| {
        let (lowest, highest) = ends.unwrap_or((value, value));
        Some((lowest.min(value), highest.max(value)))
    })
}

#[cfg(test)]
mod tests {
    use super::{Medians, RatioRange, Variation};
    use crate::statistics::{MedianSpread, Timings};

    fn process(blocks: &[f64], ratio: f64) -> Medians {
        let ratios = vec![("kvscatter".to_owned(), ratio)];
        Medians { baseline: "hand loop".to_owned(), blocks: blocks.to_vec(), ratios }
    }

    /// Each process is steady and its two turns agree, so its own A/A spread is 1.00 to 1.00.
    #[test]
    fn what_moves_between_processes_is_seen() {
        let steady = |time: f64| Timings::new(vec![time; 80]);
        let runs = [370.0, 448.0, 401.0].map(|time| {
            let (first, again) = (steady(time), steady(time));
            assert_eq!(first.spread_from(&again), MedianSpread { lowest: 1.0, highest: 1.0 });
            process(&first.block_medians(), 390.0 / time)
        });
        let variation = Variation::over(&runs).unwrap();
        assert_eq!((variation.lowest, variation.highest, variation.processes), (370.0, 448.0, 3));
        let engine = "kvscatter".to_owned();
        let range = RatioRange { engine, lowest: 390.0 / 448.0, highest: 390.0 / 370.0 };
        assert_eq!(variation.ratios, [range]);
        let spread = variation.spread("kvscatter", 1.0);
        assert_eq!(spread, MedianSpread { lowest: 390.0 / 448.0, highest: 390.0 / 370.0 });
        assert!(spread.covers(1.05) && !spread.covers(1.06));
    }

    /// The machine slows down in the middle of one process, for both turns of the hand loop.
    #[test]
    fn what_moves_between_blocks_is_seen() {
        let slowing = Timings::new((0..80).map(|round| if round < 40 { 370.0 } else { 448.0 }).collect());
        assert_eq!(slowing.spread_from(&slowing.clone()), MedianSpread { lowest: 1.0, highest: 1.0 });
        let variation = Variation::over(&[process(&slowing.block_medians(), 1.0)]).unwrap();
        assert_eq!((variation.lowest, variation.highest, variation.processes), (370.0, 448.0, 1));
    }

    #[test]
    fn only_what_all_processes_measured_is_compared() {
        let fewer = Medians { ratios: Vec::new(), ..process(&[2.0], 1.0) };
        let variation = Variation::over(&[process(&[1.0], 1.0), fewer]).unwrap();
        assert_eq!((variation.lowest, variation.highest), (1.0, 2.0));
        assert_eq!(variation.ratios, []);
        assert_eq!(variation.spread("kvscatter", 2.0), MedianSpread { lowest: 1.0, highest: 1.0 });
        let other = Medians { baseline: "memcpy".to_owned(), ..process(&[1.0], 1.0) };
        assert_eq!(Variation::over(&[process(&[1.0], 1.0), other]), None);
        assert_eq!(Variation::over(&[]), None);
    }
}
