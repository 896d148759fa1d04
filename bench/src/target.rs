//! Decides whether a target is met.

use kvscatter_bench::{MedianSpread, Timings};
use serde::{Deserialize, Serialize};

use crate::suite::Target;

/// The result of a measurement for a target.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Verdict {
    /// The engine that the target is about.
    pub(crate) engine: String,
    /// The engine that it is compared with.
    pub(crate) baseline: String,
    /// The largest ratio that meets the target.
    pub(crate) limit: f64,
    /// The measured ratio. `None` if one of the two was not measured.
    pub(crate) ratio: Option<f64>,
    /// The smallest and the largest ratio of all processes that measured the case.
    #[serde(default)]
    pub(crate) processes: Option<MedianSpread>,
    pub(crate) status: Status,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Status {
    Met,
    Missed,
    /// The median meets the target, but by no more than the noise. The noise is the A/A spread, and the
    /// difference between the ratios of this process and of others.
    MetWithinSpread,
    /// The median misses the target, but by no more than the noise.
    MissedWithinSpread,
    /// One of the two engines has no time.
    NotMeasured,
}

impl Verdict {
    /// Compares two engines of one measurement by their times, which `times` returns by name.
    pub(crate) fn new<'t>(
        target: &Target,
        times: impl Fn(&str) -> Option<&'t Timings>,
        noise: MedianSpread,
    ) -> Self {
        let ratio = || Some(times(&target.engine)?.over(times(&target.baseline)?).median);
        let ratio = ratio();
        Self {
            engine: target.engine.clone(),
            baseline: target.baseline.clone(),
            limit: target.at_most,
            ratio,
            processes: None,
            status: ratio.map_or(Status::NotMeasured, |ratio| status(ratio, target.at_most, noise)),
        }
    }
}

/// Compares a median ratio with its limit. If the limit is within the noise of the ratio, another run may
/// give the opposite result.
pub(crate) fn status(ratio: f64, limit: f64, noise: MedianSpread) -> Status {
    let is_close = (ratio * noise.lowest..=ratio * noise.highest).contains(&limit);
    match (ratio <= limit, is_close) {
        (true, false) => Status::Met,
        (true, true) => Status::MetWithinSpread,
        (false, false) => Status::Missed,
        (false, true) => Status::MissedWithinSpread,
    }
}

/// Returns the target's largest allowed ratio, or the ratio that its slack allows if that is larger.
pub(crate) fn limit(at_most: f64, slack_ns: Option<f64>, baseline_ns: f64) -> f64 {
    slack_ns.map_or(at_most, |slack| at_most.max((baseline_ns + slack) / baseline_ns))
}

impl Status {
    /// Returns the words for tables.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Met => "met",
            Self::Missed => "missed",
            Self::MetWithinSpread => "undecided: met by less than the noise",
            Self::MissedWithinSpread => "undecided: missed by less than the noise",
            Self::NotMeasured => "not measured",
        }
    }
}

#[cfg(test)]
mod tests {
    use kvscatter_bench::MedianSpread;

    use super::{Status, limit, status};

    #[test]
    fn met_and_missed_by_more_than_the_spread() {
        let quiet = MedianSpread { lowest: 0.98, highest: 1.02 };
        for (ratio, expected) in [
            (1.00, Status::Met),
            (1.07, Status::Met),
            (1.09, Status::MetWithinSpread),
            (1.10, Status::MetWithinSpread),
            (1.12, Status::MissedWithinSpread),
            (1.13, Status::Missed),
        ] {
            assert_eq!(status(ratio, 1.10, quiet), expected, "{ratio}");
        }
    }

    #[test]
    fn a_spread_to_one_side_does_not_help_the_other() {
        let slow = MedianSpread { lowest: 1.0, highest: 1.2 };
        assert_eq!(status(1.11, 1.1, slow), Status::Missed);
        assert_eq!(status(1.0, 1.1, slow), Status::MetWithinSpread);
        assert_eq!(status(0.9, 1.1, slow), Status::Met);
    }

    #[test]
    fn slack_counts_where_it_is_more() {
        assert_eq!(limit(1.0, Some(15.0), 10.0), 2.5);
        assert_eq!(limit(1.1, Some(10.0), 1000.0), 1.1);
        assert_eq!(limit(0.8, None, 10.0), 0.8);
    }
}
