//! What the logits should be: each sequence alone, unpadded, on the original or on the model itself run apart.

use super::feed::Feed;
use super::runner::{Logits, Runner};
use crate::{Error, Tensor};

/// A sequence of tokens and the scores that it should give.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sequence {
    pub(crate) tokens: Vec<i64>,
    /// The scores after each token; `None` where they are not known.
    pub(crate) logits: Vec<Option<Vec<f32>>>,
}

/// A decoder that is run for its logits, one sequence at a time.
pub(crate) struct Reference<'r> {
    runner: &'r mut Runner,
    /// Slots of a static cache; a growing one has none.
    capacity: Option<usize>,
    pasts: Vec<Tensor>,
    written: usize,
}

impl<'r> Reference<'r> {
    /// `capacity` is what a cache that does not grow has.
    pub(crate) fn new(runner: &'r mut Runner, capacity: usize) -> Self {
        let grows = runner.interface.caches.iter().any(|cache| cache.grows);
        Self { runner, capacity: (!grows).then_some(capacity), pasts: Vec::new(), written: 0 }
    }

    /// The model's own scores for a prompt, fed whole, and for the `steps` most likely tokens that follow it, fed one
    /// by one.
    pub(crate) fn greedy(&mut self, prompt: &[i64], steps: usize) -> Result<Sequence, Error> {
        self.start()?;
        let mut sequence = Sequence::default();
        let whole = if self.runner.interface.is_decode_only { 1 } else { prompt.len() };
        for chunk in prompt.chunks(whole.max(1)) {
            self.feed(&mut sequence, chunk, true)?;
        }
        for _ in 0..steps {
            let next = sequence.logits.last().and_then(Option::as_deref).map_or(0, most_likely);
            self.feed(&mut sequence, &[i64::try_from(next).unwrap_or_default()], true)?;
        }
        Ok(sequence)
    }

    /// Its scores for tokens that are fed in chunks; only those after the last `keep` tokens are kept.
    pub(crate) fn forced(&mut self, tokens: &[i64], chunk: usize, keep: usize) -> Result<Sequence, Error> {
        self.start()?;
        let mut sequence = Sequence::default();
        let (body, tail) = tokens.split_at(tokens.len().saturating_sub(keep));
        for chunk in body.chunks(chunk.max(1)) {
            self.feed(&mut sequence, chunk, false)?;
        }
        for token in tail {
            self.feed(&mut sequence, std::slice::from_ref(token), true)?;
        }
        Ok(sequence)
    }

    /// How many tokens the model knows, asked of a run where it is not declared.
    pub(crate) fn vocabulary(&mut self) -> Result<usize, Error> {
        if let Some(vocabulary) = self.runner.interface.vocabulary {
            return Ok(vocabulary);
        }
        self.start()?;
        Ok(self.step(&[0], &Feed::next(&[0], 1))?.vocabulary)
    }

    fn start(&mut self) -> Result<(), Error> {
        self.written = 0;
        self.pasts = self.runner.caches(self.batch(), self.capacity.unwrap_or_default())?;
        Ok(())
    }

    /// One, or as many as the model insists on, all alike.
    fn batch(&self) -> usize {
        self.runner.interface.batch.unwrap_or(1)
    }

    fn feed(&mut self, sequence: &mut Sequence, tokens: &[i64], keep: bool) -> Result<(), Error> {
        sequence.tokens.extend(tokens);
        let feed = Feed::next(&vec![self.written; self.batch()], tokens.len());
        let logits = self.step(&sequence.tokens, &feed)?;
        let of = |token| logits.after(0, token).filter(|_| keep).map(<[f32]>::to_vec);
        sequence.logits.extend((0..tokens.len()).map(of));
        Ok(())
    }

    fn step(&mut self, tokens: &[i64], feed: &Feed) -> Result<Logits, Error> {
        let batch = self.batch();
        let after = self.written + feed.width;
        let slots = self.capacity.unwrap_or(after);
        let feed = Feed {
            samples: vec![feed.samples.first().cloned(); batch].into_iter().flatten().collect(),
            ..*feed
        };
        let inputs = feed.tensors(&self.runner.interface, &vec![tokens; batch], slots)?;
        let mut presents = self.runner.caches(batch, slots)?;
        let logits = self.runner.apart(&inputs, &self.pasts, &mut presents, feed.width)?;
        self.pasts = presents;
        self.written = after;
        Ok(logits)
    }
}

/// The entry with the highest score, the first of equal ones; 0 if none is a number.
pub(crate) fn most_likely(scores: &[f32]) -> usize {
    let mut best = (0, f32::NEG_INFINITY);
    for (entry, &score) in scores.iter().enumerate() {
        if score > best.1 {
            best = (entry, score);
        }
    }
    best.0
}
