//! The choice of the next token: the most likely one, or a random one.
//!
//! Random numbers depend on the seed and on the number of equal prompts before a prompt, so that a text does not depend
//! on the other prompts.

use std::borrow::Cow;
use std::collections::HashSet;

use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::{Rng, SeedableRng};

use crate::generate_options::{GenerateOptions, Sampling};
use crate::numbers::argmax;

/// Chooses the tokens of one sample.
pub(crate) struct Chooser {
    penalty: f32,
    /// The tokens of the prompt and those that were chosen, if there is a penalty.
    seen: HashSet<i64>,
    sampling: Option<(Sampling, Pcg64Mcg)>,
}

impl Chooser {
    /// Creates a chooser for a prompt. `equal` is the number of equal prompts before it.
    pub(crate) fn new(options: &GenerateOptions, prompt: &[i64], equal: usize) -> Self {
        let penalty = options.repetition_penalty;
        let seen = if penalty == 1.0 { HashSet::new() } else { prompt.iter().copied().collect() };
        let sampling = options.sampling.map(|sampling| (sampling, random(sampling.seed, equal)));
        Self { penalty, seen, sampling }
    }

    /// Returns the next token of the sample, or `None` if no logit is a number above -inf.
    pub(crate) fn choose(&mut self, logits: &[f32]) -> Option<i64> {
        let logits = self.penalised(logits);
        let token = match &mut self.sampling {
            None => {
                Some(argmax(&logits)).filter(|best| logits.get(*best).is_some_and(|most| is_possible(*most)))
            }
            Some((sampling, random)) => sampling.draw(&logits, uniform(random)),
        };
        let token = token.and_then(|token| i64::try_from(token).ok())?;
        if self.penalty != 1.0 {
            self.seen.insert(token);
        }
        Some(token)
    }

    /// Makes the tokens that were seen less likely. A penalty below 1 makes them more likely.
    fn penalised<'l>(&self, logits: &'l [f32]) -> Cow<'l, [f32]> {
        let mut logits = Cow::Borrowed(logits);
        for token in &self.seen {
            let token = usize::try_from(*token).unwrap_or(usize::MAX);
            if let Some(logit) = logits.to_mut().get_mut(token) {
                *logit = if *logit < 0.0 { *logit * self.penalty } else { *logit / self.penalty };
            }
        }
        logits
    }
}

impl Sampling {
    /// Returns the token at a point of the distribution, which is at least 0 and less than 1.
    ///
    /// The distribution is in the order of the tokens and not of their probabilities. So small differences between
    /// logits, which engines have for batches of different sizes, rarely change the token.
    fn draw(&self, logits: &[f32], point: f64) -> Option<usize> {
        let kept = self.weights(logits);
        let mut left = point * kept.iter().map(|(_, weight)| weight).sum::<f64>();
        let token = kept.iter().find(|(_, weight)| {
            left -= weight;
            left < 0.0
        });
        // The sum may be rounded up.
        token.or(kept.last()).map(|(token, _)| *token)
    }

    /// Returns the tokens that may be drawn, in order, and their probabilities relative to the most likely token.
    fn weights(&self, logits: &[f32]) -> Vec<(usize, f64)> {
        let mut kept: Vec<(usize, f32)> =
            logits.iter().copied().enumerate().filter(|(_, logit)| is_possible(*logit)).collect();
        if let Some(last) = self.top_k.checked_sub(1).filter(|last| *last < kept.len()) {
            let mut logits: Vec<f32> = kept.iter().map(|(_, logit)| *logit).collect();
            let (_, least, _) = logits.select_nth_unstable_by(last, |a, b| b.total_cmp(a));
            kept.retain(|(_, logit)| logit >= least);
        }
        let most = kept.iter().map(|(_, logit)| *logit).fold(f32::NEG_INFINITY, f32::max);
        let weight = |logit: f32| match logit == most {
            true => 1.0,
            false => (f64::from(logit - most) / f64::from(self.temperature)).exp(),
        };
        let mut kept: Vec<(usize, f64)> =
            kept.into_iter().map(|(token, logit)| (token, weight(logit))).collect();
        if self.top_p < 1.0 {
            keep_top_p(&mut kept, 1.0 - f64::from(self.top_p));
        }
        kept.retain(|(_, weight)| *weight > 0.0 && *weight >= f64::from(self.min_p));
        kept
    }
}

/// Drops the least likely tokens whose probabilities together are at most `dropped`, and keeps at least one token. Of
/// equally likely tokens, the first ones are dropped, as in transformers.
fn keep_top_p(kept: &mut Vec<(usize, f64)>, dropped: f64) {
    let dropped = dropped * kept.iter().map(|(_, weight)| weight).sum::<f64>();
    // All tokens of at most this weight are dropped, because together they have at most the weight `dropped`. This
    // leaves few tokens to sort.
    let certain = dropped / kept.len() as f64;
    let is_certain = |weight: f64| weight <= certain && weight < 1.0;
    let mut sum: f64 = kept.iter().map(|(_, weight)| *weight).filter(|weight| is_certain(*weight)).sum();
    kept.retain(|(_, weight)| !is_certain(*weight));
    let mut order = kept.clone();
    order.sort_by(|(_, a), (_, b)| a.total_cmp(b));
    let last = order.pop();
    let first = order.into_iter().find(|(_, weight)| {
        sum += weight;
        sum > dropped
    });
    if let Some((first, least)) = first.or(last) {
        kept.retain(|(token, weight)| *weight > least || (*weight == least && *token >= first));
    }
}

fn is_possible(logit: f32) -> bool {
    logit > f32::NEG_INFINITY
}

/// Returns the generator of a sample's random numbers. PCG promises the same numbers in every version and on every
/// machine.
fn random(seed: u64, equal: usize) -> Pcg64Mcg {
    let mut seeds = Pcg64Mcg::seed_from_u64(seed);
    (0..equal).for_each(|_| {
        seeds.next_u64();
    });
    Pcg64Mcg::seed_from_u64(seeds.next_u64())
}

/// Returns a random number that is at least 0 and less than 1.
fn uniform(random: &mut Pcg64Mcg) -> f64 {
    // A float64 represents integers of 53 bits.
    (random.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::{Chooser, Sampling, random, uniform};
    use crate::error::GenerateSetting;
    use crate::generate_options::GenerateOptions;

    const NONE: f32 = f32::NEG_INFINITY;
    const ALL: Sampling = Sampling { temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0, seed: 0 };

    fn options(repetition_penalty: f32, sampling: Sampling) -> GenerateOptions {
        GenerateOptions { repetition_penalty, sampling: Some(sampling), ..GenerateOptions::default() }
    }

    /// Logits, a prompt, a penalty, options and the probabilities.
    type Case<'c> = (&'c [f32], &'c [i64], f32, Sampling, &'c [f64]);

    /// The probabilities are those of transformers 5.24.0, with torch 2.15.
    #[test]
    fn probabilities_are_those_of_transformers() {
        let a = &[2.0, 1.0, 0.5, -1.0, 0.25, 3.0, -0.5, 1.5][..];
        let (ties, same) = (&[1.0, 2.0, 2.0, 0.5, 2.0, 1.0][..], &[1.0; 4][..]);
        let masked = &[NONE, 1.0, NONE, 0.0, 2.0][..];
        let three = &[0.23122, 0.0, 0.0, 0.0, 0.0, 0.62853, 0.0, 0.14024][..];
        let only_best = &[0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0][..];
        let (none, p) = (&[][..], |top_p| Sampling { top_p, ..ALL });
        let cases: [Case<'_>; 18] = [
            (a, none, 1.0, ALL, &[0.19152, 0.07046, 0.04273, 0.00954, 0.03328, 0.5206, 0.01572, 0.11616]),
            (
                a,
                none,
                1.0,
                Sampling { temperature: 0.5, ..ALL },
                &[0.11134, 0.01507, 0.00554, 0.00028, 0.00336, 0.8227, 0.00075, 0.04096],
            ),
            (a, none, 1.0, Sampling { top_k: 3, ..ALL }, three),
            (a, none, 1.0, p(0.8), three),
            (a, none, 1.0, p(0.05), only_best),
            (a, none, 1.0, Sampling { min_p: 0.2, ..ALL }, three),
            (a, none, 1.0, Sampling { min_p: 1.0, ..ALL }, only_best),
            // A token counts once.
            (
                a,
                &[5, 3, 5],
                1.5,
                ALL,
                &[0.28706, 0.1056, 0.06405, 0.00867, 0.04988, 0.28706, 0.02356, 0.17411],
            ),
            (
                a,
                &[5, 3, 6],
                0.5,
                ALL,
                &[0.0175, 0.00644, 0.0039, 0.00144, 0.00304, 0.95523, 0.00184, 0.01061],
            ),
            (
                a,
                &[5, 0],
                1.3,
                Sampling { temperature: 0.7, top_k: 5, top_p: 0.9, min_p: 0.1, seed: 0 },
                &[0.18482, 0.08564, 0.0, 0.0, 0.0, 0.55461, 0.0, 0.17494],
            ),
            (
                a,
                none,
                1.0,
                Sampling { temperature: 2.0, top_k: 4, top_p: 0.7, ..ALL },
                &[0.29176, 0.0, 0.0, 0.0, 0.0, 0.48102, 0.0, 0.22722],
            ),
            (same, none, 1.0, Sampling { top_k: 2, ..ALL }, &[0.25; 4]),
            (same, none, 1.0, p(0.5), &[0.0, 0.0, 0.5, 0.5]),
            (same, none, 1.0, p(0.6), &[0.0, 0.33333, 0.33333, 0.33333]),
            (ties, none, 1.0, Sampling { top_k: 2, ..ALL }, &[0.0, 0.33333, 0.33333, 0.0, 0.33333, 0.0]),
            (ties, none, 1.0, p(0.5), &[0.0, 0.0, 0.5, 0.0, 0.5, 0.0]),
            (
                masked,
                none,
                1.0,
                Sampling { top_k: 4, top_p: 0.95, ..ALL },
                &[0.0, 0.24473, 0.0, 0.09003, 0.66524],
            ),
            (masked, &[0, 4], 2.0, Sampling { min_p: 0.3, ..ALL }, &[0.0, 0.42232, 0.0, 0.15536, 0.42232]),
        ];
        for (logits, prompt, penalty, sampling, expected) in cases {
            let chooser = Chooser::new(&options(penalty, sampling), prompt, 0);
            let weights = sampling.weights(&chooser.penalised(logits));
            let total: f64 = weights.iter().map(|(_, weight)| weight).sum();
            let mut got = vec![0.0; logits.len()];
            weights.iter().for_each(|(token, weight)| got[*token] = weight / total);
            for (got, expected) in got.iter().zip(expected) {
                assert!((got - expected).abs() < 1e-5, "{sampling:?} {prompt:?} {penalty}: {got} {expected}");
            }
        }
    }

    #[test]
    fn a_token_is_chosen_only_if_its_logit_is_a_number_above_minus_infinity() {
        let (nan, inf) = (f32::NAN, f32::INFINITY);
        let lists: [(&[f32], Option<i64>); 8] = [
            (&[nan, NONE, -3.0, nan], Some(2)),
            (&[NONE, 0.0], Some(1)),
            (&[1.0, inf, nan], Some(1)),
            (&[-9.0, NONE], Some(0)),
            (&[nan, nan], None),
            (&[NONE, NONE], None),
            (&[NONE, nan], None),
            (&[], None),
        ];
        for (logits, expected) in lists {
            for temperature in [1e-40, 1.0, f32::MAX] {
                for sampling in [
                    Sampling { temperature, ..ALL },
                    Sampling { temperature, top_k: 2, top_p: 0.5, min_p: 0.5, seed: 3 },
                ] {
                    for penalty in [1.0, 1e30] {
                        let options = options(penalty, sampling);
                        let greedy = GenerateOptions { sampling: None, ..options.clone() };
                        for options in [options, greedy] {
                            let got = Chooser::new(&options, &[0], 0).choose(logits);
                            assert_eq!(got, expected, "{logits:?} {options:?}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn tokens_are_drawn_as_often_as_they_are_likely() {
        let logits = [0.5_f32, 0.125, 0.25, 0.125].map(f32::ln);
        let mut chooser = Chooser::new(&options(1.0, ALL), &[], 0);
        let mut counts = [0.0_f64; 4];
        for _ in 0..20_000 {
            counts[usize::try_from(chooser.choose(&logits).unwrap()).unwrap()] += 1.0 / 20_000.0;
        }
        for (count, expected) in counts.iter().zip([0.5, 0.125, 0.25, 0.125]) {
            assert!((count - expected).abs() < 0.015, "{counts:?}");
        }
    }

    /// Other numbers would change the texts of all seeds.
    #[test]
    fn random_numbers_stay_the_same_and_differ_between_equal_prompts() {
        let first = |seed, equal| {
            let mut random = random(seed, equal);
            [(); 3].map(|()| (uniform(&mut random) * 1e6) as u32)
        };
        assert_eq!(first(0, 0), [809_956, 725_960, 522_842]);
        assert_eq!(first(0, 1), [690_146, 96_740, 994_808]);
        assert_eq!(first(1, 0), [136_360, 720_972, 550_115]);
        assert_eq!(first(u64::MAX, 2), [400_624, 536_582, 488_699]);
    }

    #[test]
    fn options_outside_their_range_are_refused() {
        let (nan, inf) = (f32::NAN, f32::INFINITY);
        for (setting, valid, refused, range) in [
            (
                GenerateSetting::Temperature,
                &[1e-40, 1.0, f32::MAX][..],
                &[0.0, -1.0, inf, nan][..],
                "finite and above 0",
            ),
            (GenerateSetting::RepetitionPenalty, &[0.1, 2.0], &[0.0, -0.0, inf, nan], "finite and above 0"),
            (GenerateSetting::TopP, &[1e-40, 1.0], &[0.0, 1.1, nan, inf], "above 0 and at most 1"),
            (GenerateSetting::MinP, &[0.0, 1.0], &[-0.1, 1.1, nan, inf], "from 0 to 1"),
        ] {
            valid.iter().for_each(|value| setting.check(*value).unwrap());
            for value in refused {
                let expected = format!("{setting} is {value}, must be {range}");
                assert_eq!(setting.check(*value).unwrap_err().to_string(), expected);
            }
        }
    }
}
