//! The logits that a step returns.

use crate::model_runs::ModelRun;
use crate::runner::LogitsTensor;
use crate::sample::Sample;

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
    /// The index, among these tokens, of the first token that has logits.
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

    /// Returns the logits after the token with index `token` among the sample's tokens of the step.
    ///
    /// Returns `None` if the sample got no such token, if the logits were not kept (see
    /// [`prefill`](crate::KvSession::prefill)), or if the model computes logits only for the last token.
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

    /// Creates an empty list of logits, for samples with these numbers of tokens.
    pub(crate) fn none(samples: impl Iterator<Item = (Sample, usize)>) -> Self {
        let empty = |(sample, tokens)| SampleLogits { sample, tokens, first: 0, values: Vec::new() };
        Self { vocabulary: 0, samples: samples.map(empty).collect() }
    }

    /// Adds the logits of a run. `cached` contains the number of cached tokens of each sample before the
    /// step. With `only_last`, only the logits after the last token of a sample are kept.
    pub(crate) fn take(&mut self, run: &ModelRun, cached: &[usize], logits: &LogitsTensor, only_last: bool) {
        self.vocabulary = logits.vocabulary;
        for of in &mut self.samples {
            let batch_index = of.sample.batch_index();
            let index = batch_index.checked_sub(run.samples.start);
            let fed = index.and_then(|index| Some((index, run.feed.samples.get(index)?)));
            let (Some((index, fed)), Some(before)) = (fed, cached.get(batch_index)) else { continue };
            for position in fed.tokens.clone() {
                let token = position - before;
                if only_last && token + 1 < of.tokens {
                    continue;
                }
                let Some(values) = logits.after(index, position - fed.tokens.start) else { continue };
                // A model may return logits only for the last token of each run. The kept logits must not
                // have gaps.
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
