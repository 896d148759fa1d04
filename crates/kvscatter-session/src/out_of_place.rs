//! A decoder run step by step with past and present in separate memory: the baseline for writing in place.

use crate::{Feed, LogitsTensor, Runner, SessionError, Tensor};

/// Samples of one length. Every step reads whole caches and writes new ones elsewhere, which replace them.
#[derive(Debug)]
pub struct OutOfPlace {
    batch: usize,
    /// Slots of a static cache; `None` for a growing one, which has a slot for each cached token.
    capacity: Option<usize>,
    pasts: Vec<Tensor>,
    cached_tokens: usize,
}

impl OutOfPlace {
    /// Makes empty samples. `capacity` is that of static caches, and `None` for caches that grow.
    ///
    /// # Errors
    /// [`SessionError::TensorTooLarge`].
    pub fn new(runner: &Runner, batch: usize, capacity: Option<usize>) -> Result<Self, SessionError> {
        let pasts = runner.caches(batch, capacity.unwrap_or_default())?;
        Ok(Self { batch, capacity, pasts, cached_tokens: 0 })
    }

    /// Returns how many samples there are.
    #[must_use]
    pub fn batch(&self) -> usize {
        self.batch
    }

    /// Returns how many tokens of each sample are in the caches.
    #[must_use]
    pub fn cached_tokens(&self) -> usize {
        self.cached_tokens
    }

    /// Returns how many bytes the caches take.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.pasts.iter().map(Tensor::len).sum()
    }

    /// Gives every sample its next `width` tokens. `token(sample, position)` is a token of a sample's sequence.
    ///
    /// Static caches must have room for them. This is not checked: for too many tokens the engine returns its own error.
    ///
    /// # Errors
    /// [`SessionError::Run`], after which everything is as before; [`SessionError::TensorTooLarge`]; those of
    /// [`Feed::tensors`] and [`Runner::out_of_place`].
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
        let logits = runner.out_of_place(&inputs, &self.pasts, &mut presents, width)?;
        (self.pasts, self.cached_tokens) = (presents, after);
        Ok(logits)
    }
}
