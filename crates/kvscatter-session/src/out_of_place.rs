//! A decoder that runs step by step with past and present in separate memory. It is a baseline for writing in
//! place.

use crate::encoder::EncoderInputs;
use crate::error::SessionError;
use crate::feed::Feed;
use crate::runner::{LogitsTensor, Runner};
use crate::states::States;
use crate::tensor::Tensor;

/// A batch of samples of the same length. Every step reads whole caches and writes new ones, which then
/// replace the old ones.
#[derive(Debug)]
pub struct OutOfPlace {
    batch: usize,
    /// The number of slots of static caches, or `None` for growing caches. Those have one slot for each
    /// cached token.
    capacity: Option<usize>,
    pasts: Vec<Tensor>,
    states: States,
    encoder: EncoderInputs,
    cached_tokens: usize,
}

impl OutOfPlace {
    /// Creates empty samples. `capacity` is the capacity of static caches, or `None` for growing caches.
    ///
    /// # Errors
    /// Returns [`SessionError::TensorTooLarge`] if there is no memory for the caches and states.
    pub fn new(runner: &Runner, batch: usize, capacity: Option<usize>) -> Result<Self, SessionError> {
        let pasts = runner.caches(batch, capacity.unwrap_or_default())?;
        let states = States::new(runner.session(), &runner.interface, batch)?;
        let encoder = EncoderInputs::new(&runner.interface, batch, u64::MAX);
        Ok(Self { batch, capacity, pasts, states, encoder, cached_tokens: 0 })
    }

    /// Lets the samples attend to these outputs of an encoder. All samples of an encoder-decoder need them before the
    /// first step.
    #[must_use]
    pub fn attending_to(self, encoder: EncoderInputs) -> Self {
        Self { encoder, ..self }
    }

    /// Returns the number of samples.
    #[must_use]
    pub fn batch(&self) -> usize {
        self.batch
    }

    /// Returns the number of cached tokens of each sample.
    #[must_use]
    pub fn cached_tokens(&self) -> usize {
        self.cached_tokens
    }

    /// Returns the number of bytes of the caches.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.pasts.iter().map(Tensor::len).sum()
    }

    /// Gives every sample its next `width` tokens. `token(sample, position)` returns a token of a sample's
    /// sequence.
    ///
    /// Static caches must have room for the tokens, which this method does not check. For too many tokens,
    /// the engine returns an error.
    ///
    /// # Errors
    /// - Returns [`SessionError::Run`] with the engine's message. All caches, states and numbers of tokens are
    ///   unchanged.
    /// - Returns [`SessionError::TensorTooLarge`] if there is no memory for a tensor.
    /// - Returns the errors of [`Feed::tensors`] and [`Runner::out_of_place`].
    pub fn step(
        &mut self,
        runner: &mut Runner,
        width: usize,
        token: impl Fn(usize, usize) -> i64,
    ) -> Result<LogitsTensor, SessionError> {
        let after = self.cached_tokens + width;
        let slots = self.capacity.unwrap_or(after);
        let feed = Feed::next(&vec![self.cached_tokens; self.batch], width);
        let inputs = feed.tensors(&runner.interface, token, slots)?;
        let mut presents = runner.caches(self.batch, slots)?;
        let (of_encoder, states) = (self.encoder.tensors(), &mut self.states);
        let logits = runner.out_of_place(&inputs, of_encoder, &self.pasts, &mut presents, states, &feed)?;
        (self.pasts, self.cached_tokens) = (presents, after);
        Ok(logits)
    }
}
