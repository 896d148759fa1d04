//! What does a write: our library, its peers, the yardsticks.

use crate::{Case, Scene};

/// Something that can write a case.
pub trait Engine {
    /// What tables call it.
    fn name(&self) -> &str;

    /// What it is expected to do; yardsticks do something else than the write.
    fn task(&self) -> Task {
        Task::Write
    }

    /// Everything a host would do once per shape.
    ///
    /// # Errors
    /// [`Unsupported`] if it cannot do this case.
    fn prepare(&self, case: &Case, scene: &Scene) -> Result<Box<dyn Run>, Unsupported>;
}

/// An engine that is ready for one case.
pub trait Run {
    /// New positions, before they are used. What the peer is handed ready-made, such as a hand-written loop's
    /// offsets, is computed here, untimed; what it computes in every call stays in [`run`](Self::run).
    fn aim(&mut self, starts: &[i64]) {
        let _ = starts;
    }

    /// One call on the scene's buffers: one cache, or the keys and the values of a layer. This is what is timed.
    ///
    /// # Errors
    /// Whatever the engine says; the case then goes on without it.
    fn run(&mut self, call: &mut Call<'_>) -> Result<(), Failed>;

    /// After a [`run`](Self::run), untimed: an engine whose library insists on memory of its own copies its result
    /// into the caches (or presents) of the call, so that it can be verified.
    ///
    /// # Errors
    /// Whatever the engine says; the case then goes on without it.
    fn publish(&mut self, call: &mut Call<'_>) -> Result<(), Failed> {
        let _ = call;
        Ok(())
    }
}

/// What an engine is expected to leave in the buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    /// The write that the case describes.
    Write,
    /// The same rows in linear mode, at starts modulo those that do not wrap.
    Unwrapped,
    /// As many bytes as the write moves, in one piece, into the same cache; in functional form the past as it is. Rows
    /// of 4-bit elements that straddle bytes go where the write has them instead, rounded up to bytes.
    Memcpy,
}

/// The buffers of one call. Their addresses stay the same as long as the [`Scene`] lives.
#[derive(Debug)]
pub struct Call<'a> {
    /// The layer, 0 where there is one.
    pub layer: usize,
    /// The first slot of every sample.
    pub starts: &'a [i64],
    /// The cache that is written, or the keys of the layer.
    pub keys: Tensor<'a>,
    /// The values of the layer, in cold cases.
    pub values: Option<Tensor<'a>>,
}

/// One write's buffers, as bytes.
#[derive(Debug)]
pub struct Tensor<'a> {
    /// The cache; in functional form the past, which does not change.
    pub cache: &'a mut [u8],
    /// What is written.
    pub update: &'a [u8],
    /// In functional form the new cache; empty otherwise.
    pub present: &'a mut [u8],
}

/// Why an engine cannot do a case, in a few words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unsupported(pub String);

/// What an engine says when a call fails.
pub type Failed = Box<dyn std::error::Error + Send + Sync>;

impl<'a> Call<'a> {
    /// The tensors to write, for engines that take longer than an iterator does: a few nanoseconds.
    pub fn tensors(&mut self) -> impl Iterator<Item = &mut Tensor<'a>> {
        [Some(&mut self.keys), self.values.as_mut()].into_iter().flatten()
    }

    /// Does something with every tensor there is: one, or keys and values.
    ///
    /// # Errors
    /// The first that `one` returns.
    #[inline(always)]
    pub fn each<E>(&mut self, mut one: impl FnMut(&mut Tensor<'a>) -> Result<(), E>) -> Result<(), E> {
        one(&mut self.keys)?;
        match &mut self.values {
            Some(values) => one(values),
            None => Ok(()),
        }
    }
}
