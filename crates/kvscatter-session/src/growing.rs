//! A decoder with growing caches, run as it was exported.

use kvscatter_onnx::ModelFile;

use crate::encoder::EncoderInputs;
use crate::encoder_run::EncoderOutputs;
use crate::engine::{Engine, GroupQueryNodes, LoadOptions};
use crate::error::{SessionError, SessionSetting};
use crate::interface::Interface;
use crate::memory_report::{MemoryReport, bytes};
use crate::out_of_place::OutOfPlace;
use crate::runner::{LogitsTensor, Runner};
use crate::session_options::SessionOptions;
use crate::tensor::by_name;

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

    pub(crate) fn group_query_nodes(&self) -> Option<GroupQueryNodes> {
        self.runner.group_query_nodes()
    }

    pub(crate) fn batch(&self) -> usize {
        self.samples.batch()
    }

    /// Returns the bytes of all presents after the last step.
    pub(crate) fn written(&self) -> u64 {
        bytes(self.samples.bytes())
    }

    /// Returns the number of tokens of a sample for which the limit has room.
    pub(crate) fn most_tokens(&self) -> usize {
        let MemoryReport { total, states, .. } = MemoryReport::new(self.interface(), self.batch(), 1);
        let memory = self.memory.saturating_sub(states.saturating_mul(2));
        memory.checked_div(total).and_then(|tokens| usize::try_from(tokens).ok()).unwrap_or(usize::MAX)
    }

    /// Drops all tokens, and sets the outputs of an encoder. Samples without a prompt get those of the first one.
    pub(crate) fn start(&mut self, encoded: &[EncoderOutputs]) -> Result<(), SessionError> {
        self.samples = OutOfPlace::new(&self.runner, self.batch(), None)?;
        let Some(first) = encoded.first() else { return Ok(()) };
        let batch = self.batch();
        let mut inputs = EncoderInputs::new(self.interface(), batch, self.memory);
        for sample in 0..batch {
            let outputs = by_name(encoded.get(sample).unwrap_or(first));
            inputs.set(self.runner.session(), sample, &outputs)?;
        }
        self.samples = OutOfPlace::new(&self.runner, batch, None)?.attending_to(inputs);
        Ok(())
    }

    /// Gives all samples the same number of tokens in one run. Returns the logits.
    ///
    /// A sample without a feed gets token 0, because all samples must have the same length.
    pub(crate) fn feed(&mut self, feeds: &[Option<&[i64]>]) -> Result<LogitsTensor, SessionError> {
        let width = feeds.iter().flatten().map(|feed| feed.len()).max().ok_or(SessionError::NoSamples)?;
        let start = self.samples.cached_tokens();
        MemoryReport::check(self.interface(), self.batch(), start + width, self.memory)?;
        let token = |sample: usize, position: usize| {
            let feed = feeds.get(sample).copied().flatten().unwrap_or_default();
            feed.get(position - start).copied().unwrap_or_default()
        };
        self.samples.step(&mut self.runner, width, token)
    }
}
