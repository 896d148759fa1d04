//! Whether a target is met.

use serde::{Deserialize, Serialize};

use crate::results::Percentiles;

/// What a measurement says about a target.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Verdict {
    /// What is compared.
    pub(crate) engine: String,
    /// With what.
    pub(crate) baseline: String,
    /// The largest ratio that meets the target.
    pub(crate) limit: f64,
    /// The ratio; `None` if one of the two was not measured.
    pub(crate) ratio: Option<f64>,
    pub(crate) status: Status,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Status {
    Met,
    Missed,
    /// The ratio is no further from the limit than one engine is from itself.
    InsideSpread,
    /// One of the two engines has no time.
    NotMeasured,
}

/// Compares a ratio with its limit. Both an engine that meets its target and one that misses it must do so by more
/// than the A/A spread, the ratio of an engine to itself.
pub(crate) fn status(ratio: f64, limit: f64, noise: Percentiles) -> Status {
    let nearest = |spread: f64| ratio * spread;
    if ratio <= limit && nearest(noise.p90.max(1.0)) <= limit {
        Status::Met
    } else if ratio > limit && nearest(noise.p10.min(1.0)) > limit {
        Status::Missed
    } else {
        Status::InsideSpread
    }
}

/// The largest ratio allowed: the target's own, or what its slack comes to over a baseline of so many nanoseconds.
pub(crate) fn limit(at_most: f64, slack_ns: Option<f64>, baseline_ns: f64) -> f64 {
    slack_ns.map_or(at_most, |slack| at_most.max((baseline_ns + slack) / baseline_ns))
}

impl Status {
    /// As tables have it.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Met => "met",
            Self::Missed => "missed",
            Self::InsideSpread => "inside the spread: not measured",
            Self::NotMeasured => "not measured",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Status, limit, status};
    use crate::results::Percentiles;

    const QUIET: Percentiles = Percentiles { p10: 0.98, median: 1.0, p90: 1.02 };

    #[test]
    fn met_and_missed_by_more_than_the_spread() {
        for (ratio, expected) in [
            (1.00, Status::Met),
            (1.07, Status::Met),
            (1.09, Status::InsideSpread),
            (1.10, Status::InsideSpread),
            (1.12, Status::InsideSpread),
            (1.13, Status::Missed),
        ] {
            assert_eq!(status(ratio, 1.10, QUIET), expected, "{ratio}");
        }
    }

    #[test]
    fn a_spread_to_one_side_does_not_help() {
        let slow = Percentiles { p10: 1.01, median: 1.05, p90: 1.2 };
        assert_eq!(status(1.2, 1.1, slow), Status::Missed);
        assert_eq!(status(1.0, 1.1, slow), Status::InsideSpread);
        assert_eq!(status(0.9, 1.1, slow), Status::Met);
    }

    #[test]
    fn slack_counts_where_it_is_more() {
        assert_eq!(limit(1.0, Some(15.0), 10.0), 2.5);
        assert_eq!(limit(1.1, Some(10.0), 1000.0), 1.1);
        assert_eq!(limit(0.8, None, 10.0), 0.8);
    }
}
