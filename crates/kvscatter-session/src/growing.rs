//! A decoder whose caches grow, run as it was exported.

use std::path::Path;

use crate::kv_session::bytes;
use crate::{Engine, Error, Feed, Interface, Logits, MemoryReport, Options, Runner, SessionOptions, Tensor};

/// A decoder that gives every cache back one step longer (`Concat`, `Attention`'s past, `GroupQueryAttention`).
///
/// All samples have one length, and every step copies all caches: this is what a static cache is compared with.
pub(crate) struct Growing {
    runner: Runner,
    batch: usize,
    pasts: Vec<Tensor>,
    length: usize,
    written: u64,
    /// The most bytes that the caches may take.
    memory: u64,
}

impl Growing {
    /// Loads a model for this many samples, or as many as it insists on.
    pub(crate) fn of_interface(
        engine: &dyn Engine,
        model: &Path,
        mut interface: Interface,
        samples: usize,
        options: SessionOptions,
    ) -> Result<Self, Error> {
        interface.settle(None)?;
        let batch = match interface.batch {
            Some(batch) if batch < samples => {
                return Err(Error::SizeFixed { what: "batch", fixed: batch, got: samples });
            }
            batch => batch.unwrap_or(samples),
        };
        MemoryReport::check(&interface, batch, 1, options.memory)?;
        let session = engine.load(model, Options { threads: options.threads })?;
        let runner = Runner::new(session, interface);
        let pasts = runner.caches(batch, 0)?;
        Ok(Self { runner, batch, pasts, length: 0, written: 0, memory: options.memory })
    }

    pub(crate) fn interface(&self) -> &Interface {
        &self.runner.interface
    }

    pub(crate) fn batch(&self) -> usize {
        self.batch
    }

    /// The bytes of all presents after the last step.
    pub(crate) fn written(&self) -> u64 {
        self.written
    }

    /// Gives every sample its next `width` tokens.
    pub(crate) fn step(
        &mut self,
        width: usize,
        token: impl Fn(usize, usize) -> i64,
    ) -> Result<Logits, Error> {
        let (before, after) = (self.length, self.length + width);
        MemoryReport::check(&self.runner.interface, self.batch, after, self.memory)?;
        let feed = Feed::next(&vec![before; self.batch], width);
        let token = |sample, position: usize| token(sample, position - before);
        let inputs = feed.tensors(&self.runner.interface, token, after)?;
        let mut presents = self.runner.caches(self.batch, after)?;
        let logits = self.runner.apart(&inputs, &self.pasts, &mut presents, width)?;
        self.written = presents.iter().map(|present| bytes(present.len())).sum();
        (self.pasts, self.length) = (presents, after);
        Ok(logits)
    }
}
