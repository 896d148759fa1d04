//! The logits that a step returns.

use crate::{Feed, LogitsTensor, Sample};

/// The logits of a step by sample. Each token has `vocabulary` logits.
#[derive(Clone, Debug, PartialEq)]
pub struct Logits {
    vocabulary: usize,
    samples: Vec<SampleLogits>,
}

#[derive(Clone, Debug, PartialEq)]
struct SampleLogits {
    sample: Sample,
    /// The number of tokens that the sample got in the step.
    tokens: usize,
    /// The index of the first of these tokens that has logits.
    first: usize,
    values: Vec<f32>,
}

impl Logits {
    /// Returns the number of logits after a token.
    #[must_use]
    pub fn vocabulary(&self) -> usize {
        self.vocabulary
    }

    /// Returns the samples that got tokens, in the order of the step's list.
    pub fn samples(&self) -> impl Iterator<Item = Sample> {
        self.samples.iter().map(|of| of.sample)
    }

    /// Returns the logits after a sample's `token`th token of the step.
    ///
    /// Returns `None` if the sample got no such token or its logits were not kept, as in
    /// [`prefill`](crate::KvSession::prefill). Also returns `None` if the model computes logits of the last
    /// token only and this is another token.
    #[must_use]
    pub fn after(&self, sample: Sample, token: usize) -> Option<&[f32]> {
        let of = self.samples.iter().find(|of| of.sample == sample)?;
        let first = token.checked_sub(of.first)?.checked_mul(self.vocabulary)?;
        of.values.get(first..first.checked_add(self.vocabulary)?)
    }

    /// Returns the logits after a sample's last token, or `None` for a sample that got no tokens.
    #[must_use]
    pub fn last(&self, sample: Sample) -> Option<&[f32]> {
        let of = self.samples.iter().find(|of| of.sample == sample)?;
        self.after(sample, of.tokens.checked_sub(1)?)
    }

    /// Creates logits that are still empty, for samples with these numbers of tokens.
    pub(crate) fn none(samples: impl Iterator<Item = (Sample, usize)>) -> Self {
        let empty = |(sample, tokens)| SampleLogits { sample, tokens, first: 0, values: Vec::new() };
        Self { vocabulary: 0, samples: samples.map(empty).collect() }
    }

    /// Takes the logits of a run. `cached` contains the number of cached tokens of each sample before the
    /// step. With `only_last`, only the logits after a sample's last token are kept.
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
                // A model may return logits of the last token of each run only. The kept logits must have no
                // gaps.
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
