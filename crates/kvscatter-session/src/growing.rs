//! A decoder with growing caches, run as it was exported.

use kvscatter_onnx::ModelFile;

use crate::memory_report::bytes;
use crate::{
    Engine, Interface, LoadOptions, LogitsTensor, MemoryReport, OutOfPlace, Runner, SessionError,
    SessionOptions, SessionSetting,
};

/// A decoder that returns every cache with the new rows appended (`Concat`, `Attention`'s past).
///
/// All samples have the same length, and every step copies all caches. This is the baseline for static
/// caches.
pub(crate) struct Growing {
    runner: Runner,
    samples: OutOfPlace,
    /// The maximum number of bytes that the caches may take.
    memory: u64,
}

impl Growing {
    /// Loads a model for this number of samples, or for its batch if the model fixes that.
    pub(crate) fn of_interface(
        engine: &dyn Engine,
        model: &ModelFile,
        mut interface: Interface,
        samples: usize,
        options: SessionOptions,
    ) -> Result<Self, SessionError> {
        interface.check_no_states()?;
        interface.settle(None)?;
        let batch = match interface.batch {
            Some(batch) if batch < samples => {
                return Err(SessionError::SizeFixed {
                    setting: SessionSetting::Batch,
                    fixed: batch,
                    got: samples,
                });
            }
            batch => batch.unwrap_or(samples),
        };
        MemoryReport::check(&interface, batch, 1, options.memory)?;
        let session = engine.load(model, LoadOptions { threads: options.threads })?;
        let runner = Runner::new(session, interface);
        let samples = OutOfPlace::new(&runner, batch, None)?;
        Ok(Self { runner, samples, memory: options.memory })
    }

    pub(crate) fn interface(&self) -> &Interface {
        &self.runner.interface
    }

    pub(crate) fn batch(&self) -> usize {
        self.samples.batch()
    }

    /// Returns the bytes of all presents after the last step.
    pub(crate) fn written(&self) -> u64 {
        bytes(self.samples.bytes())
    }

    /// Gives all samples the same number of tokens, in runs of at most `chunk` tokens. Returns the logits of
    /// the last run.
    ///
    /// A sample without a feed gets token 0, because all samples must have the same length.
    pub(crate) fn feed(
        &mut self,
        feeds: &[Option<&[i64]>],
        chunk: usize,
    ) -> Result<LogitsTensor, SessionError> {
        let longest = feeds.iter().flatten().map(|feed| feed.len()).max().unwrap_or_default();
        let chunk = if self.interface().is_decode_only { 1 } else { chunk.clamp(1, longest.max(1)) };
        let mut logits = None;
        let start = self.samples.cached_tokens();
        for first in (0..longest).step_by(chunk) {
            let width = chunk.min(longest - first);
            MemoryReport::check(self.interface(), self.batch(), start + first + width, self.memory)?;
            let token = |sample: usize, position: usize| {
                let feed = feeds.get(sample).copied().flatten().unwrap_or_default();
                feed.get(position - start).copied().unwrap_or_default()
            };
            logits = Some(self.samples.step(&mut self.runner, width, token)?);
        }
        logits.ok_or(SessionError::NoSamples)
    }
}
