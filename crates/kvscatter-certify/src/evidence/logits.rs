//! Compares logits with the expected ones.

use kvscatter::ElementType;
use kvscatter_session::argmax;

use crate::certificate::{Check, Divergence, Failure, Fill, LogitPlace, LogitsComparison, LogitsReference};
use crate::drive::reference::Sequence;
use crate::report::words;

use super::check_builder::{CheckBuilder, Place};

/// The tolerance for differences of logits: `absolute + relative × the largest expected logit`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Tolerance {
    absolute: f64,
    relative: f64,
}

impl Tolerance {
    /// Returns the tolerance for rounding errors of sums in a different order. It is a few hundred rounding
    /// steps of the coarsest type that the numbers are rounded to.
    pub(crate) fn from_types(elements: impl IntoIterator<Item = ElementType>) -> Self {
        let one = |element| match element {
            ElementType::Float64 => 1e-9,
            ElementType::Float32 => 1e-4,
            ElementType::Float16 => 1e-2,
            // A difference of the last bit can change a code, which is 1/127 of the largest element of a row.
            ElementType::Int8 => 1e-1,
            // Types with at most eight bits of precision represent less than three decimal digits.
            _ => 5e-2,
        };
        let coarsest = elements.into_iter().map(one).fold(0.0, f64::max);
        Self { absolute: coarsest, relative: coarsest }
    }

    /// Returns the tolerance for a model that rounds activations to 8 bits. If sums are rounded in a
    /// different order, some activations change by one of 255 codes, which is a small part of a sum.
    pub(crate) fn from_quantised_types(elements: impl IntoIterator<Item = ElementType>) -> Self {
        const MIN_TOLERANCE: f64 = 1e-2;
        let Self { absolute, relative } = Self::from_types(elements);
        Self { absolute: absolute.max(MIN_TOLERANCE), relative: relative.max(MIN_TOLERANCE) }
    }

    /// Returns the largest difference that counts as equal, for these sequences.
    pub(crate) fn among(self, sequences: &[Sequence]) -> f64 {
        let all = sequences.iter().flat_map(|sequence| sequence.logits.iter().flatten().flatten());
        let largest =
            all.filter(|logit| logit.is_finite()).fold(0.0_f32, |largest, logit| largest.max(logit.abs()));
        self.absolute + self.relative * f64::from(largest)
    }
}

/// The comparison of one scenario with one fill.
pub(crate) struct Comparison {
    document: LogitsComparison,
    /// The number of tokens beyond the tolerance in steps that write from slot 0. The next field counts those
    /// of all other steps.
    pub(crate) wrong_at_start: u64,
    pub(crate) wrong_mid_cache: u64,
    pub(crate) mid_cache: u64,
}

/// One token of a run.
#[derive(Clone, Copy)]
pub(crate) struct Token {
    pub(crate) step: usize,
    pub(crate) sample: usize,
    pub(crate) column: usize,
    pub(crate) is_mid_cache: bool,
}

impl Comparison {
    pub(crate) fn new(scenario: &str, fill: Fill, against: LogitsReference, tolerance: f64) -> Self {
        Self {
            document: LogitsComparison {
                scenario: scenario.to_owned(),
                fill,
                against,
                compared: 0,
                worst: 0.0,
                worst_at: None,
                worst_by_step: Vec::new(),
                not_finite: 0,
                tolerance,
                greedy_compared: 0,
                greedy_equal: 0,
            },
            wrong_at_start: 0,
            wrong_mid_cache: 0,
            mid_cache: 0,
        }
    }

    pub(crate) fn begin_step(&mut self) {
        self.document.worst_by_step.push(0.0);
    }

    /// Compares the logits after one token.
    pub(crate) fn compare(&mut self, token: Token, got: &[f32], expected: &[f32], check: &mut CheckBuilder) {
        let document = &mut self.document;
        let difference = Difference::between(got, expected);
        document.compared += u64::try_from(got.len()).unwrap_or(u64::MAX);
        document.not_finite += difference.not_finite;
        document.greedy_compared += 1;
        document.greedy_equal += u64::from(argmax(got) == argmax(expected));
        if let Some(worst) = document.worst_by_step.last_mut() {
            *worst = worst.max(difference.worst);
        }
        if difference.worst > document.worst {
            document.worst = difference.worst;
            document.worst_at = Some(LogitPlace {
                step: token.step,
                sample: token.sample,
                token: token.column,
                entry: difference.entry,
            });
        }
        check.look(got.len());
        self.mid_cache += u64::from(token.is_mid_cache);
        if let Some(message) = difference.beyond(document.tolerance) {
            *if token.is_mid_cache { &mut self.wrong_mid_cache } else { &mut self.wrong_at_start } += 1;
            let place = Place { scenario: &document.scenario, step: token.step };
            let message = format!("{message} (caches initially filled with {})", words::fill(document.fill));
            check.fail(Failure { sample: Some(token.sample), ..place.failure(message) });
        }
    }

    pub(crate) fn into_document(self) -> LogitsComparison {
        self.document
    }
}

/// Returns the largest mean divergence that counts as close for caches of these types. It is at least ten times what
/// the coarsest type has in language models of 135M and 270M parameters on English text.
pub(crate) fn divergence_limit(elements: impl IntoIterator<Item = ElementType>) -> f64 {
    let one = |element| match element {
        ElementType::Int8 => 1e-2,
        ElementType::BFloat16 => 1e-3,
        _ => 1e-4,
    };
    elements.into_iter().map(one).fold(0.0, f64::max)
}

/// The divergence of distributions of which one excludes a token that the other has, or is NaN. JSON has no infinity.
const MAX_DIVERGENCE: f64 = 1e6;

/// Returns the Kullback-Leibler divergence of the distribution of tokens from the expected one, in nats, of at most
/// [`MAX_DIVERGENCE`].
pub(crate) fn divergence(expected: &[f32], got: &[f32]) -> f64 {
    let log_sum = |logits: &[f32]| {
        let largest = logits.iter().fold(f64::NEG_INFINITY, |largest, x| largest.max((*x).into()));
        largest + logits.iter().map(|x| (f64::from(*x) - largest).exp()).sum::<f64>().ln()
    };
    let sums = [log_sum(expected), log_sum(got)];
    let terms = expected.iter().zip(got).map(|(expected, got)| {
        let [expected, got] = [f64::from(*expected) - sums[0], f64::from(*got) - sums[1]];
        if expected == f64::NEG_INFINITY { 0.0 } else { expected.exp() * (expected - got) }
    });
    let sum: f64 = terms.sum();
    // Rounding may make the sum of nearly equal distributions negative.
    if sum.is_nan() { MAX_DIVERGENCE } else { sum.clamp(0.0, MAX_DIVERGENCE) }
}

/// Returns the summary of the divergences of all tokens, or `None` if no token was compared.
pub(crate) fn summary(
    mut divergences: Vec<f64>,
    comparisons: &[LogitsComparison],
    limit: f64,
) -> Option<Divergence> {
    divergences.sort_by(f64::total_cmp);
    let tokens = divergences.len();
    let percentile = divergences.get((tokens * 99).div_ceil(100).checked_sub(1)?)?;
    let sum = |of: fn(&LogitsComparison) -> u64| comparisons.iter().map(of).sum::<u64>();
    Some(Divergence {
        tokens: u64::try_from(tokens).unwrap_or(u64::MAX),
        mean_kl: divergences.iter().sum::<f64>() / tokens as f64,
        p99_kl: *percentile,
        same_top_1: sum(|comparison| comparison.greedy_equal),
        largest_difference: comparisons.iter().map(|comparison| comparison.worst).fold(0.0, f64::max),
        limit,
    })
}

/// Returns the claim about divergences. It was measured and does not follow from a bound.
pub(crate) fn divergence_check(divergence: &Divergence) -> Check {
    let Divergence { tokens, mean_kl, p99_kl, same_top_1, largest_difference, limit } = divergence;
    let failures =
        (mean_kl > limit).then(|| Failure::new(format!("the mean KL divergence is {mean_kl:.3e} nats")));
    Check::unless(
        "near-original-distribution",
        "Measured, and no bound: the model's distributions of the next token are close to the original's.",
        format!(
            "{tokens} tokens: mean KL divergence {mean_kl:.3e} nats of up to {limit:.0e}, 99th percentile {p99_kl:.3e}, \
             the same most likely token for {same_top_1}, largest difference of a logit {largest_difference:.3e}"
        ),
        failures,
    )
}

/// The difference of two lists of logits.
pub(crate) struct Difference {
    /// The largest difference among the logits that are finite on both sides.
    pub(crate) worst: f64,
    entry: usize,
    not_finite: u64,
    /// Whether some logits are NaN or finite on one side only, or the two lists differ in length.
    is_unlike: bool,
}

impl Difference {
    pub(crate) fn between(got: &[f32], expected: &[f32]) -> Self {
        let mut difference =
            Self { worst: 0.0, entry: 0, not_finite: 0, is_unlike: got.len() != expected.len() };
        for (entry, (&got, &expected)) in got.iter().zip(expected).enumerate() {
            if got.is_finite() && expected.is_finite() {
                let distance = (f64::from(got) - f64::from(expected)).abs();
                if distance > difference.worst {
                    (difference.worst, difference.entry) = (distance, entry);
                }
            } else {
                difference.not_finite += 1;
                // Masked-out entries are -inf on both sides. NaN is always an error.
                difference.is_unlike |= got.is_nan() || got != expected;
            }
        }
        difference
    }

    /// Returns a message if the difference is larger than the tolerance.
    pub(crate) fn beyond(&self, tolerance: f64) -> Option<String> {
        if self.is_unlike {
            let count = self.not_finite;
            Some(format!("{count} logits are infinite or NaN on one side"))
        } else if self.worst > tolerance {
            let Self { worst, entry, .. } = self;
            Some(format!("logit {entry} is off by {worst:.3e}, the tolerance is {tolerance:.3e}"))
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Difference, MAX_DIVERGENCE, Tolerance, divergence, divergence_check, summary};
    use crate::certificate::Verdict;
    use crate::drive::reference::Sequence;
    use kvscatter::ElementType;

    #[test]
    fn nan_and_one_sided_infinities_are_beyond_any_tolerance() {
        let infinite = f32::NEG_INFINITY;
        assert!(Difference::between(&[1.0, infinite], &[1.0, infinite]).beyond(0.0).is_none());
        for (got, expected) in
            [([f32::NAN], [1.0]), ([f32::NAN], [f32::NAN]), ([infinite], [0.0]), ([0.0], [infinite])]
        {
            assert!(Difference::between(&got, &expected).beyond(1e9).is_some(), "{got:?} {expected:?}");
        }
        assert!(Difference::between(&[1.0], &[1.5]).beyond(0.4).is_some());
        assert!(Difference::between(&[1.0], &[1.5]).beyond(0.5).is_none());
        assert!(Difference::between(&[1.0], &[]).beyond(1e9).is_some());
    }

    #[test]
    fn the_tolerance_grows_with_the_logits_and_with_the_coarsest_type() {
        let sequence = Sequence { tokens: vec![1], logits: vec![Some(vec![-9.0, f32::INFINITY]), None] };
        let single = Tolerance::from_types([ElementType::Float32]).among(std::slice::from_ref(&sequence));
        assert!((single - 1e-3).abs() < 1e-9, "{single}");
        let mixed = Tolerance::from_types([ElementType::Float32, ElementType::Float16]).among(&[sequence]);
        assert!((mixed - 0.1).abs() < 1e-9, "{mixed}");
    }

    #[test]
    fn divergences_are_those_of_distributions() {
        // p = (3/4, 1/4) and q = (1/2, 1/2).
        let p = [3_f32.ln(), 0.0];
        let expected = 0.75 * 1.5_f64.ln() + 0.25 * 0.5_f64.ln();
        assert!((divergence(&p, &[7.0, 7.0]) - expected).abs() < 1e-6);
        assert!(divergence(&p, &[3_f32.ln() + 5.0, 5.0]) < 1e-6, "a constant changes nothing");
        assert!(divergence(&[1.0, f32::NEG_INFINITY], &[1.0, f32::NEG_INFINITY]).abs() < 1e-6);
        for other in [[f32::NAN, 0.0], [0.0, f32::NEG_INFINITY]] {
            assert_eq!(divergence(&p, &other), MAX_DIVERGENCE);
        }
    }

    #[test]
    fn the_mean_divergence_decides() {
        let divergences: Vec<_> = (1..=200).rev().map(f64::from).collect();
        let found = summary(divergences, &[], 100.0).unwrap();
        assert_eq!((found.tokens, found.mean_kl, found.p99_kl), (200, 100.5, 198.0));
        assert_eq!(divergence_check(&found).verdict, Verdict::Failed);
        assert_eq!(divergence_check(&summary(vec![1.0, 3.0], &[], 2.0).unwrap()).verdict, Verdict::Passed);
        assert_eq!(summary(vec![], &[], 1.0), None);
    }
}
