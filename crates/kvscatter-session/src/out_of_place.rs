//! A decoder run step by step with past and present in separate memory: the baseline for writing in place.

use crate::{Feed, Logits, Runner, SessionError, Tensor};

/// Samples of one length in caches that every step reads whole, and replaces by those that it wrote elsewhere.
#[derive(Debug)]
pub struct OutOfPlace {
    batch: usize,
    /// Slots of a static cache; a growing one has as many as its length.
    capacity: Option<usize>,
    pasts: Vec<Tensor>,
    length: usize,
}

impl OutOfPlace {
    /// Empty samples, with the capacity of caches that are static, and `None` for those that grow.
    ///
    /// # Errors
    /// [`SessionError::TensorTooLarge`].
    pub fn new(runner: &Runner, batch: usize, capacity: Option<usize>) -> Result<Self, SessionError> {
        let pasts = runner.caches(batch, capacity.unwrap_or_default())?;
        Ok(Self { batch, capacity, pasts, length: 0 })
    }

    /// How many samples there are.
    #[must_use]
    pub fn batch(&self) -> usize {
        self.batch
    }

    /// How many tokens each has.
    #[must_use]
    pub fn length(&self) -> usize {
        self.length
    }

    /// How many bytes the caches take.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.pasts.iter().map(Tensor::len).sum()
    }

    /// Gives every sample its next `width` tokens, for which static caches must have room: it is not checked, and an
    /// engine that is given too many says so in words of its own. `token` gives that of a sample at a place in its
    /// sequence.
    ///
    /// # Errors
    /// [`SessionError::Run`], after which everything is as before; [`SessionError::TensorTooLarge`], and what [`Feed::tensors`] and
    /// [`Runner::out_of_place`] say.
    pub fn step(
        &mut self,
        runner: &mut Runner,
        width: usize,
        token: impl Fn(usize, usize) -> i64,
    ) -> Result<Logits, SessionError> {
        let after = self.length + width;
        let slots = self.capacity.unwrap_or(after);
        let feed = Feed::next(&vec![self.length; self.batch], width);
        let inputs = feed.tensors(&runner.interface, token, slots)?;
        let mut presents = runner.caches(self.batch, slots)?;
        let logits = runner.out_of_place(&inputs, &self.pasts, &mut presents, width)?;
        (self.pasts, self.length) = (presents, after);
        Ok(logits)
    }
}
