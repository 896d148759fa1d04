//! The logits that a step returns.

use crate::{Feed, LogitsTensor, Sample};

/// The logits of a step, by sample: `vocabulary` numbers after each token.
#[derive(Clone, Debug, PartialEq)]
pub struct Logits {
    vocabulary: usize,
    samples: Vec<SampleLogits>,
}

#[derive(Clone, Debug, PartialEq)]
struct SampleLogits {
    sample: Sample,
    /// Tokens that the step gave it.
    tokens: usize,
    /// The first of them that has logits.
    first: usize,
    values: Vec<f32>,
}

impl Logits {
    /// Returns how many logits there are after a token.
    #[must_use]
    pub fn vocabulary(&self) -> usize {
        self.vocabulary
    }

    /// Returns the samples that got tokens, in the order of the step's list.
    pub fn samples(&self) -> impl Iterator<Item = Sample> {
        self.samples.iter().map(|of| of.sample)
    }

    /// Returns the logits after a sample's `token`th token of the step. `None` if the sample got no such token, or if its
    /// logits were not kept, as by [`prefill`](crate::KvSession::prefill), or not computed, as by models that give those
    /// of the last token only.
    #[must_use]
    pub fn after(&self, sample: Sample, token: usize) -> Option<&[f32]> {
        let of = self.samples.iter().find(|of| of.sample == sample)?;
        let first = token.checked_sub(of.first)?.checked_mul(self.vocabulary)?;
        of.values.get(first..first.checked_add(self.vocabulary)?)
    }

    /// Returns the logits after a sample's last token. `None` for a sample that got no tokens.
    #[must_use]
    pub fn last(&self, sample: Sample) -> Option<&[f32]> {
        let of = self.samples.iter().find(|of| of.sample == sample)?;
        self.after(sample, of.tokens.checked_sub(1)?)
    }

    /// Makes one without logits, for samples with these counts of tokens.
    pub(crate) fn none(samples: impl Iterator<Item = (Sample, usize)>) -> Self {
        let empty = |(sample, tokens)| SampleLogits { sample, tokens, first: 0, values: Vec::new() };
        Self { vocabulary: 0, samples: samples.map(empty).collect() }
    }

    /// Takes the logits of a run. `cached` counts each sample's cached tokens before the step. With `only_last`, only
    /// those after a sample's last token are kept.
    pub(crate) fn take(&mut self, feed: &Feed, cached: &[usize], logits: &LogitsTensor, only_last: bool) {
        self.vocabulary = logits.vocabulary;
        for of in &mut self.samples {
            let batch_index = of.sample.batch_index;
            let (Some(fed), Some(before)) = (feed.samples.get(batch_index), cached.get(batch_index)) else {
                continue;
            };
            for position in fed.tokens.clone() {
                let token = position - before;
                if only_last && token + 1 < of.tokens {
                    continue;
                }
                let Some(values) = logits.after(batch_index, position - fed.tokens.start) else { continue };
                // A model may give logits of the last token of each run only. Those that are kept have no gaps.
                if of.values.len() != token.saturating_sub(of.first) * logits.vocabulary {
                    of.values.clear();
                }
                if of.values.is_empty() {
                    of.first = token;
                }
                of.values.extend_from_slice(&values);
            }
        }
    }
}
