//! The expected logits. Each sequence runs alone and without padding, on the original or out of place on the
//! model itself.

use std::borrow::Cow;

use kvscatter_session::{OutOfPlace, Runner, SessionError, argmax};

use super::texts::Texts;

/// A sequence of tokens and its expected logits.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sequence {
    pub(crate) tokens: Vec<i64>,
    /// The logits after each token, or `None` if they are not known.
    pub(crate) logits: Vec<Option<Vec<f32>>>,
}

/// A decoder that computes the expected logits, one sequence at a time.
pub(crate) struct Reference<'r> {
    runner: &'r mut Runner,
    /// The number of slots of a cache that can be written in place, or `None` for a growing cache.
    capacity: Option<usize>,
    /// Whether the decoder is the model under test. Its faults are reported in the certificate and are not
    /// errors.
    is_model: bool,
    /// The largest number of tokens of a step that the model and the reference take.
    most_tokens: usize,
    texts: Texts,
    /// The number of sequences so far.
    sequences: usize,
}

impl<'r> Reference<'r> {
    /// Creates a reference that runs on `runner`.
    ///
    /// - `capacity` is the number of slots of a cache that can be written in place. It is ignored for a growing
    ///   cache.
    /// - `is_model` means that the runner runs the model that is certified.
    /// - `most_tokens` is the largest number of tokens of a step that the model that is certified takes.
    /// - `texts` are those that the sequences attend to, in order.
    pub(crate) fn new(
        runner: &'r mut Runner,
        capacity: usize,
        is_model: bool,
        most_tokens: usize,
        texts: Texts,
    ) -> Self {
        let interface = &runner.interface;
        let most_tokens =
            if interface.is_decode_only { 1 } else { most_tokens.min(interface.most_rows()).max(1) };
        let grows = interface.is_copied();
        Self { runner, capacity: (!grows).then_some(capacity), is_model, most_tokens, texts, sequences: 0 }
    }

    /// Computes logits for a prompt, and then for `steps` more tokens.
    ///
    /// The prompt is fed at once. Each later token is the most likely one and is fed alone. If the engine
    /// cannot run a step of the model under test, the rest of the sequence has no logits, and its tokens
    /// after the prompt are 0.
    pub(crate) fn greedy(&mut self, prompt: &[i64], steps: usize) -> Result<Sequence, SessionError> {
        let mut all = prompt.to_vec();
        all.resize(prompt.len() + steps, 0);
        let most_tokens = self.most_tokens;
        self.record(&all, |recording| {
            prompt.chunks(most_tokens).try_for_each(|tokens| recording.feed(tokens, true))?;
            (0..steps).try_for_each(|_| {
                let last = recording.sequence.logits.last().and_then(Option::as_deref);
                let next = i64::try_from(last.map_or(0, argmax)).unwrap_or_default();
                recording.feed(&[next], true)
            })
        })
    }

    /// Computes the logits after every token of a sequence that is fed in chunks.
    pub(crate) fn all(&mut self, tokens: &[i64], chunk: usize) -> Result<Sequence, SessionError> {
        let mut chunks = tokens.chunks(chunk.clamp(1, self.most_tokens));
        self.record(tokens, |recording| chunks.try_for_each(|chunk| recording.feed(chunk, true)))
    }

    /// Computes logits for tokens that are fed in chunks, and keeps those after the last `keep` tokens.
    pub(crate) fn forced(
        &mut self,
        tokens: &[i64],
        chunk: usize,
        keep: usize,
    ) -> Result<Sequence, SessionError> {
        let (body, tail) = tokens.split_at(tokens.len().saturating_sub(keep));
        self.record(tokens, |recording| {
            body.chunks(chunk.max(1)).try_for_each(|chunk| recording.feed(chunk, false))?;
            tail.chunks(1).try_for_each(|token| recording.feed(token, true))
        })
    }

    /// Records what `feed` feeds. The rest of the tokens has no logits if the model under test fails.
    fn record(
        &mut self,
        tokens: &[i64],
        feed: impl FnOnce(&mut Recording<'_>) -> Result<(), SessionError>,
    ) -> Result<Sequence, SessionError> {
        let samples = self.start()?;
        self.sequences += 1;
        let mut recording = Recording { runner: self.runner, samples, sequence: Sequence::default() };
        let fed = feed(&mut recording);
        let mut sequence = recording.sequence;
        match fed {
            Err(SessionError::Run { .. }) if self.is_model => {
                let fed = sequence.tokens.len();
                sequence.tokens.extend(tokens.get(fed..).unwrap_or_default());
                Ok(sequence)
            }
            fed => fed.map(|()| sequence),
        }
    }

    /// Returns the number of tokens in the vocabulary. Runs one step if the model does not declare it.
    pub(crate) fn vocabulary(&mut self) -> Result<usize, SessionError> {
        if let Some(vocabulary) = self.runner.interface.vocabulary {
            return Ok(vocabulary);
        }
        Ok(self.start()?.step(self.runner, 1, |_, _| 0)?.vocabulary)
    }

    /// Creates the caches for one sample, or for several equal samples if the model fixes a larger batch.
    fn start(&self) -> Result<OutOfPlace, SessionError> {
        let (interface, session) = (&self.runner.interface, self.runner.session());
        let batch = interface.batch.unwrap_or(1);
        let text = self.texts.of_batch(session, interface, &vec![self.sequences; batch])?;
        Ok(OutOfPlace::new(self.runner, batch, self.capacity)?.attending_to(text))
    }
}

/// A sequence that is being fed.
struct Recording<'r> {
    runner: &'r mut Runner,
    samples: OutOfPlace,
    sequence: Sequence,
}

impl Recording<'_> {
    fn feed(&mut self, tokens: &[i64], keep: bool) -> Result<(), SessionError> {
        let Self { runner, samples, sequence } = self;
        let before = sequence.tokens.len();
        sequence.tokens.extend(tokens);
        let token = |_, position: usize| sequence.tokens.get(position).copied().unwrap_or_default();
        let step = samples.step(runner, tokens.len(), token);
        if step.is_err() {
            sequence.tokens.truncate(before);
        }
        let logits = step?;
        let kept = |token| if keep { logits.after(0, token).map(Cow::into_owned) } else { None };
        sequence.logits.extend((0..tokens.len()).map(kept));
        Ok(())
    }
}
