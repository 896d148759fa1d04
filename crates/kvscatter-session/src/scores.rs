//! The scores that a step gave.

use crate::{Feed, Logits, Sample};

/// The scores after the tokens of a step, sample by sample: `vocabulary` numbers after each token.
#[derive(Clone, Debug, PartialEq)]
pub struct Scores {
    vocabulary: usize,
    samples: Vec<Scored>,
}

#[derive(Clone, Debug, PartialEq)]
struct Scored {
    sample: Sample,
    /// Tokens that the step gave it.
    tokens: usize,
    /// The first of them that is scored.
    first: usize,
    values: Vec<f32>,
}

impl Scores {
    /// How many numbers there are after a token.
    #[must_use]
    pub fn vocabulary(&self) -> usize {
        self.vocabulary
    }

    /// The samples that got tokens, in the order in which they were named.
    pub fn samples(&self) -> impl Iterator<Item = Sample> {
        self.samples.iter().map(|scored| scored.sample)
    }

    /// The scores after the token with this index among those that the step gave a sample. `None` for a sample that got
    /// none or fewer, and where nothing is kept or given but the scores after the last.
    #[must_use]
    pub fn after(&self, sample: Sample, token: usize) -> Option<&[f32]> {
        let scored = self.samples.iter().find(|scored| scored.sample == sample)?;
        let first = token.checked_sub(scored.first)?.checked_mul(self.vocabulary)?;
        scored.values.get(first..first.checked_add(self.vocabulary)?)
    }

    /// The scores after a sample's last token. `None` for a sample that got none.
    #[must_use]
    pub fn last(&self, sample: Sample) -> Option<&[f32]> {
        let scored = self.samples.iter().find(|scored| scored.sample == sample)?;
        self.after(sample, scored.tokens.checked_sub(1)?)
    }

    /// Of samples with these counts of tokens, before anything was run.
    pub(crate) fn none(samples: impl Iterator<Item = (Sample, usize)>) -> Self {
        let scored = |(sample, tokens)| Scored { sample, tokens, first: 0, values: Vec::new() };
        Self { vocabulary: 0, samples: samples.map(scored).collect() }
    }

    /// Takes what a round gave. `lengths` are those of the samples before the step. With `only_last`, scores that a
    /// later token of the sample follows are dropped.
    pub(crate) fn take(&mut self, feed: &Feed, lengths: &[usize], logits: &Logits, only_last: bool) {
        self.vocabulary = logits.vocabulary;
        for scored in &mut self.samples {
            let place = scored.sample.place;
            let (Some(fed), Some(before)) = (feed.samples.get(place), lengths.get(place)) else { continue };
            for position in fed.tokens.clone() {
                let token = position - before;
                if only_last && token + 1 < scored.tokens {
                    continue;
                }
                let Some(values) = logits.after(place, position - fed.tokens.start) else { continue };
                // A model may score the last token of each round only: what is kept has no gaps.
                if scored.values.len() != token.saturating_sub(scored.first) * logits.vocabulary {
                    scored.values.clear();
                }
                if scored.values.is_empty() {
                    scored.first = token;
                }
                scored.values.extend_from_slice(&values);
            }
        }
    }
}
