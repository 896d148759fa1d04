//! Targets, and whether a measurement meets them.

use kvscatter_onnx::internal::text::units;
use serde::{Deserialize, Serialize};

use crate::statistics::MedianSpread;

/// Compares a subject with another in the same case.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Target {
    pub(crate) subject: String,
    pub(crate) baseline: String,
    /// The largest ratio of times.
    pub(crate) at_most: f64,
    /// The nanoseconds above the baseline that are allowed if they are more than the ratio allows.
    #[serde(default)]
    pub(crate) slack_ns: Option<f64>,
}

/// Compares a subject in every case of a row with itself in the first case.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Flat {
    pub(crate) subject: String,
    /// The subject whose times show how the machine's speed changed between the cases.
    pub(crate) yardstick: String,
    pub(crate) at_most: f64,
}

impl Target {
    pub(crate) fn new(subject: &str, baseline: &str, at_most: f64) -> Self {
        Self { subject: subject.to_owned(), baseline: baseline.to_owned(), at_most, slack_ns: None }
    }

    /// Returns the largest allowed ratio, or the ratio that the slack allows if that is larger.
    pub(crate) fn limit(&self, baseline_ns: f64) -> f64 {
        self.slack_ns.map_or(self.at_most, |slack| self.at_most.max((baseline_ns + slack) / baseline_ns))
    }
}

/// The comparison of a measurement with a target.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Verdict {
    pub(crate) subject: String,
    pub(crate) baseline: String,
    /// The largest ratio that meets the target.
    pub(crate) limit: f64,
    /// The measured ratio. `None` if one of the two was not timed.
    pub(crate) ratio: Option<f64>,
    pub(crate) status: Status,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Status {
    Met,
    Missed,
    /// The limit is within the noise of the ratio, so another run may give the opposite result.
    Undecided,
    NotMeasured,
}

impl Verdict {
    /// Compares a ratio that has no noise.
    pub(crate) fn exact(target: &Target, ratio: f64) -> Self {
        Self::new(target, target.at_most, Some(ratio), MedianSpread::NONE)
    }

    pub(crate) fn new(target: &Target, limit: f64, ratio: Option<f64>, noise: MedianSpread) -> Self {
        Self {
            subject: target.subject.clone(),
            baseline: target.baseline.clone(),
            limit,
            ratio,
            status: ratio.map_or(Status::NotMeasured, |ratio| status(ratio, limit, noise)),
        }
    }

    pub(crate) fn line(&self) -> String {
        let Self { subject, baseline, limit, ratio, status } = self;
        let ratio = ratio.map_or("–".to_owned(), units::three_digits);
        format!("{subject} is {ratio} × {baseline}, at most {limit:.2}: {}", status.word())
    }
}

impl Status {
    fn word(self) -> &'static str {
        match self {
            Self::Met => "met",
            Self::Missed => "missed",
            Self::Undecided => "undecided",
            Self::NotMeasured => "not measured",
        }
    }
}

pub(crate) fn status(ratio: f64, limit: f64, noise: MedianSpread) -> Status {
    match (ratio * noise.lowest..=ratio * noise.highest).contains(&limit) {
        // A ratio without noise may equal its limit.
        true if noise != MedianSpread::NONE => Status::Undecided,
        _ if ratio <= limit => Status::Met,
        _ => Status::Missed,
    }
}

#[cfg(test)]
mod tests {
    use super::{Status, Target, status};
    use crate::statistics::MedianSpread;

    #[test]
    fn a_limit_within_the_noise_is_undecided() {
        let quiet = MedianSpread { lowest: 0.98, highest: 1.02 };
        for (ratio, expected) in [
            (1.00, Status::Met),
            (1.07, Status::Met),
            (1.09, Status::Undecided),
            (1.12, Status::Undecided),
            (1.13, Status::Missed),
        ] {
            assert_eq!(status(ratio, 1.10, quiet), expected, "{ratio}");
        }
        let slow = MedianSpread { lowest: 1.0, highest: 1.2 };
        assert_eq!(
            [1.11, 1.0, 0.9].map(|ratio| status(ratio, 1.1, slow)),
            [Status::Missed, Status::Undecided, Status::Met]
        );
        assert_eq!(
            [0.2, 0.21].map(|ratio| status(ratio, 0.2, MedianSpread::NONE)),
            [Status::Met, Status::Missed]
        );
    }

    #[test]
    fn the_larger_of_ratio_and_slack_is_the_limit() {
        let target = |at_most, slack_ns| Target { slack_ns, ..Target::new("a", "b", at_most) };
        assert_eq!(target(1.0, Some(15.0)).limit(10.0), 2.5);
        assert_eq!(target(1.1, Some(10.0)).limit(1000.0), 1.1);
        assert_eq!(target(0.8, None).limit(10.0), 0.8);
    }
}
