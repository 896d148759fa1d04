//! A static-cache decoder and the batch that runs on it.

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;

use kvscatter_onnx::decoder::{Decoder, Growth, Hazard, InputRole};
use kvscatter_onnx::{Model, ModelFile};

use crate::batch::Batch;
use crate::caches::Caches;
use crate::inputs::Inputs;
use crate::model_runs::{Limits, ModelRun, model_runs};
use crate::tensor::check_value;
use crate::{
    CachePort, CacheWriter, Engine, Interface, LoadOptions, Logits, LogitsTensor, MemoryReport, Purpose,
    Runner, Sample, SessionError, Tensor,
};

/// The options of [`KvSession::open`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionOptions {
    /// The number of samples that fit in the batch. If `None`, this is the model's batch, or 1 if the model
    /// does not fix it.
    pub batch: Option<usize>,
    /// The number of slots of each cache. It is required if the model leaves the capacity open.
    pub capacity: Option<usize>,
    /// The number of threads that compute one operator. If `None`, the engine chooses the number.
    pub threads: Option<usize>,
    /// The maximum number of bytes that the caches may take. The limit is needed because their size comes
    /// from the model's file, which may contain any number.
    pub memory: u64,
}

impl Default for SessionOptions {
    /// Returns options for one sample, the capacity of the model, the threads that the engine chooses, and
    /// caches of at most 16 GiB.
    fn default() -> Self {
        Self { batch: None, capacity: None, threads: None, memory: 1 << 34 }
    }
}

/// A static-cache decoder and a running batch. Samples can be added, extended, truncated and removed.
///
/// The caches, `[batch, …, capacity, …]`, are allocated once and written in place. The session counts the
/// cached tokens of each sample and computes `write_indices`, `position_ids`, masks and `nonpad_kv_seqlen`
/// from these numbers. The next token of sample `b` is written to slot `cached_tokens[b]` and attends to
/// slots `0..=cached_tokens[b]`.
///
/// A ring has fewer slots, and the token at position `p` is in slot `p mod capacity`. It attends to the last tokens, as
/// many as the ring's window. Long steps are split into runs that overwrite no row that a query still needs.
///
/// An error does not change the numbers of cached tokens. [`SessionError`] lists the errors after which rows
/// may have been written.
pub struct KvSession {
    runner: Runner,
    samples: Batch,
    caches: Caches,
    inputs: Inputs,
    written: u64,
    copied: u64,
}

impl KvSession {
    /// Loads a model and allocates its caches.
    ///
    /// # Errors
    /// - Returns [`SessionError::Load`] if the engine cannot load the model.
    /// - Returns [`SessionError::NotStatic`], [`SessionError::NoWriteIndices`] or another error about the
    ///   model if it is not a static-cache decoder.
    /// - Returns [`SessionError::SizeFixed`] if the options give another batch or capacity than the model
    ///   fixes.
    /// - Returns [`SessionError::CapacityOpen`] if neither the model nor the options give a capacity.
    /// - Returns [`SessionError::Empty`] if the batch or the capacity is 0.
    /// - Returns [`SessionError::InputType`] if the type of an input cannot represent the capacity.
    /// - Returns [`SessionError::MemoryLimit`] if the caches exceed [`SessionOptions::memory`].
    /// - Returns [`SessionError::TensorTooLarge`] if the system has no memory for a cache.
    pub fn open(
        engine: &dyn Engine,
        model: impl AsRef<Path>,
        options: SessionOptions,
    ) -> Result<Self, SessionError> {
        let (file, interface) = read(model.as_ref())?;
        Self::of_interface(engine, &file, interface, options)
    }

    pub(crate) fn of_interface(
        engine: &dyn Engine,
        model: &ModelFile,
        mut interface: Interface,
        options: SessionOptions,
    ) -> Result<Self, SessionError> {
        check_writers(&interface)?;
        interface.settle(None)?;
        let batch = interface.batch_or(options.batch)?.unwrap_or(1);
        let capacity = interface.capacity_or(options.capacity)?.ok_or(SessionError::CapacityOpen)?;
        if batch == 0 || capacity == 0 {
            return Err(SessionError::Empty { batch, capacity });
        }
        check_types(&interface, capacity)?;
        MemoryReport::check(&interface, batch, capacity, options.memory)?;
        let session = engine.load(model, LoadOptions { threads: options.threads })?;
        let runner = Runner::new(session, interface);
        let caches = Caches::new(&runner, batch, capacity)?;
        let inputs = Inputs::new(&runner, batch, capacity)?;
        let samples = Batch::new(batch, capacity, runner.interface.rings());
        Ok(Self { runner, samples, caches, inputs, written: 0, copied: 0 })
    }

    /// Returns the number of samples that fit in the batch.
    #[must_use]
    pub fn batch(&self) -> usize {
        self.samples.batch()
    }

    /// Returns the maximum number of tokens of a sample that can be cached.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.samples.capacity()
    }

    /// Returns the number of tokens in the vocabulary. If the model does not declare it, returns `None`
    /// before the first step.
    #[must_use]
    pub fn vocabulary(&self) -> Option<usize> {
        self.runner.interface.vocabulary
    }

    /// Returns the model's inputs and outputs.
    #[must_use]
    pub fn interface(&self) -> &Interface {
        &self.runner.interface
    }

    /// Adds an empty sample at the first free batch index.
    ///
    /// When the new sample first runs, rows that an earlier sample wrote at this index are set to zero.
    /// Attention masks these rows, but an engine may still multiply them by zero. Since 0 × NaN is NaN, a NaN
    /// or an infinity of the earlier sample would reach the logits of the new one. The time for this depends
    /// on the number of those rows, not on the capacity.
    ///
    /// # Errors
    /// Returns [`SessionError::BatchFull`] if no batch index is free.
    pub fn add(&mut self) -> Result<Sample, SessionError> {
        self.samples.add()
    }

    /// Removes a sample and frees its batch index. The other samples keep their indices.
    ///
    /// # Errors
    /// Returns [`SessionError::NoSuchSample`] if the sample is not in this batch.
    pub fn remove(&mut self, sample: Sample) -> Result<(), SessionError> {
        self.samples.remove(sample)
    }

    /// Keeps the first `tokens` cached tokens of a sample and drops the others.
    ///
    /// Speculative decoding uses this to drop drafted tokens that were not accepted. No byte moves. The rows
    /// of dropped tokens are set to zero when the sample runs again, for the reason given at
    /// [`add`](Self::add).
    ///
    /// # Errors
    /// - Returns [`SessionError::NoSuchSample`] if the sample is not in this batch.
    /// - Returns [`SessionError::TruncateBeyond`] if fewer than `tokens` tokens are cached.
    /// - Returns [`SessionError::TruncateRing`] if a ring no longer has the rows that the next tokens would see. A
    ///   sample can always be truncated by the ring's [rewind](kvscatter_onnx::convert::RingSize::rewind) below its
    ///   furthest token, and to 0.
    pub fn truncate(&mut self, sample: Sample, tokens: usize) -> Result<(), SessionError> {
        self.samples.truncate(sample, tokens)
    }

    /// Returns the number of cached tokens of a sample.
    ///
    /// # Errors
    /// Returns [`SessionError::NoSuchSample`] if the sample is not in this batch.
    pub fn cached_tokens(&self, sample: Sample) -> Result<usize, SessionError> {
        self.samples.cached_tokens(sample)
    }

    /// Returns the samples of the batch, by batch index.
    pub fn samples(&self) -> impl Iterator<Item = Sample> {
        self.samples.iter()
    }

    /// Feeds samples their next tokens, and returns the logits after these tokens.
    ///
    /// A sample gets one token when it decodes, or several tokens of a prompt or of a draft. The numbers of
    /// tokens may differ between samples. Samples that are not in the list are unchanged.
    ///
    /// The model usually runs once for the whole batch, with the width of the longest list. It runs more
    /// often if the padding of a sample does not fit into its cache, or if the model returns logits only for
    /// the last token.
    ///
    /// # Errors
    /// Returns one of these before the first run:
    ///
    /// - [`SessionError::NoSamples`] for an empty list;
    /// - [`SessionError::NoSuchSample`] for a sample that is not in this batch;
    /// - [`SessionError::SampleTwice`] for a sample that is listed twice;
    /// - [`SessionError::NoTokens`] for a sample without tokens;
    /// - [`SessionError::TokenUnknown`] for a token that is not in the vocabulary;
    /// - [`SessionError::InputType`] for a token that the type of its input cannot represent;
    /// - [`SessionError::CapacityExceeded`] if a sample has no room for its tokens;
    /// - [`SessionError::RingOverwritten`] if a step failed after it had overwritten rows that a sample needs.
    ///
    /// If a run fails, returns [`SessionError::Run`] with the engine's message, or another error of a run
    /// that [`SessionError`] lists.
    pub fn step(&mut self, tokens: &[(Sample, &[i64])]) -> Result<Logits, SessionError> {
        self.run(tokens, usize::MAX, false)
    }

    /// Feeds tokens like [`step`](Self::step), in runs of at most `chunk` tokens of each sample. Keeps only
    /// the logits after the last token of each sample.
    ///
    /// Use this method for long prompts, because the logits of all their tokens would be large.
    ///
    /// # Errors
    /// - Returns [`SessionError::NoChunk`] for a chunk of 0.
    /// - Returns the errors of [`step`](Self::step).
    pub fn prefill(&mut self, tokens: &[(Sample, &[i64])], chunk: usize) -> Result<Logits, SessionError> {
        if chunk == 0 {
            return Err(SessionError::NoChunk);
        }
        self.run(tokens, chunk, true)
    }

    /// Returns the memory that the caches take.
    #[must_use]
    pub fn memory(&self) -> MemoryReport {
        MemoryReport::of(&self.runner.interface, self.batch(), self.capacity())
    }

    /// Returns the number of bytes that the model wrote into the caches in the last step, padding included.
    /// Zeros that the session wrote before the step are not included.
    #[must_use]
    pub fn bytes_written(&self) -> u64 {
        self.written
    }

    /// Returns the number of bytes of caches that the engine copied in the last step instead of writing in
    /// place.
    #[must_use]
    pub fn bytes_copied(&self) -> u64 {
        self.copied
    }

    /// Returns the cache with this index in [`Interface::caches`], as the last step left it.
    #[must_use]
    pub fn cache(&self, index: usize) -> Option<&Tensor> {
        self.caches.tensors.get(index)
    }

    fn run(
        &mut self,
        tokens: &[(Sample, &[i64])],
        chunk: usize,
        only_last: bool,
    ) -> Result<Logits, SessionError> {
        self.check(tokens)?;
        let before = self.samples.all_cached_tokens();
        let mut given: Vec<&[i64]> = vec![&[]; self.batch()];
        for (sample, tokens) in tokens {
            if let Some(given) = given.get_mut(sample.batch_index) {
                *given = tokens;
            }
        }
        let counts: Vec<usize> = given.iter().map(|tokens| tokens.len()).collect();
        let interface = &self.runner.interface;
        let limits = Limits {
            capacity: self.capacity(),
            width: if interface.is_decode_only { 1 } else { chunk },
            is_exact: interface.last_logits_only || interface.refuses_padding,
            writer: interface.writer(),
            rings: self.samples.rings(),
        };
        let mut kept = Logits::none(tokens.iter().map(|(sample, tokens)| (*sample, tokens.len())));
        (self.written, self.copied) = (0, 0);
        for run in model_runs(&before, self.samples.all_high(), &counts, limits) {
            let token = |batch_index: usize, position: usize| {
                let before = before.get(batch_index).copied().unwrap_or_default();
                given
                    .get(batch_index)
                    .and_then(|tokens| tokens.get(position - before))
                    .copied()
                    .unwrap_or_default()
            };
            let logits = self.run_model(&run, token)?;
            if self.runner.interface.vocabulary.replace(logits.vocabulary) != Some(logits.vocabulary) {
                self.check_known(tokens)?;
            }
            if logits.are_last_only() && !self.runner.interface.last_logits_only {
                // The model returns logits of the last column only, although it does not declare that, so
                // padded samples have none. The numbers of cached tokens are unchanged, so the whole step can
                // run again.
                self.runner.interface.last_logits_only = true;
                return self.run(tokens, chunk, only_last);
            }
            kept.take(&run.feed, &before, &logits, only_last);
        }
        for (sample, tokens) in tokens {
            let cached = self.samples.cached_tokens(*sample)?;
            self.samples.set_cached_tokens(*sample, cached + tokens.len());
        }
        Ok(kept)
    }

    fn run_model(
        &mut self,
        run: &ModelRun,
        token: impl Fn(usize, usize) -> i64,
    ) -> Result<LogitsTensor, SessionError> {
        let inputs = self.inputs.of_step(&run.feed, &self.runner.interface.feeds, token)?;
        self.samples.record(&run.feed);
        let saved = self.caches.save_rows(&run.overwritten);
        let ran = self.caches.run(&mut self.runner, &run.feed, inputs);
        self.caches.restore_rows(&run.overwritten, &saved);
        let (logits, wrote) = ran?;
        self.written += wrote.written;
        self.copied += wrote.copied;
        Ok(logits)
    }

    /// Checks everything about a step that can be checked before it runs.
    fn check(&self, given: &[(Sample, &[i64])]) -> Result<(), SessionError> {
        if given.is_empty() {
            return Err(SessionError::NoSamples);
        }
        let mut seen = vec![false; self.batch()];
        for &(sample, tokens) in given {
            self.samples.check_room(sample, tokens.len())?;
            self.samples.check_rings(sample)?;
            if tokens.is_empty() {
                return Err(SessionError::NoTokens { sample });
            }
            if seen.get_mut(sample.batch_index).is_some_and(|seen| std::mem::replace(seen, true)) {
                return Err(SessionError::SampleTwice { sample });
            }
        }
        self.check_known(given)
    }

    /// Checks that the tokens are in the vocabulary, if its size is known, and that the inputs' types can
    /// represent them.
    fn check_known(&self, given: &[(Sample, &[i64])]) -> Result<(), SessionError> {
        let vocabulary = self.vocabulary();
        for &(sample, tokens) in given {
            check_tokens(tokens, vocabulary, |index, token| SessionError::TokenUnknown {
                sample,
                index,
                token,
                vocabulary,
            })?;
            for feed in self.interface().feeds.iter().filter(|feed| feed.purpose == Purpose::Tokens) {
                tokens.iter().try_for_each(|token| check_value(feed.element, *token))?;
            }
        }
        Ok(())
    }
}

impl fmt::Debug for KvSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KvSession")
            .field("batch", &self.batch())
            .field("capacity", &self.capacity())
            .finish_non_exhaustive()
    }
}

/// Returns the checked file of a decoder, with its inputs and outputs. The model itself is dropped because it
/// can be large.
pub(crate) fn read(path: &Path) -> Result<(ModelFile, Interface), SessionError> {
    let model = Model::load(path)?;
    Ok((model.file()?, interface(&model)?))
}

/// Returns a decoder's inputs and outputs if its caches can be run in place.
fn interface(model: &Model) -> Result<Interface, SessionError> {
    let graph = model.graph()?;
    let decoder = Decoder::of(&graph)?;
    if let Some((past, why)) = decoder.unknown() {
        return Err(SessionError::NotScattered { input: past.to_owned(), why: why.to_string() });
    }
    check_states(&decoder)?;
    check_embeddings(&decoder)?;
    check_readers(&decoder)?;
    Interface::of(model, &graph, &decoder)
}

/// Checks that a decoder takes token ids. A session has no embedding table.
fn check_embeddings(decoder: &Decoder<'_>) -> Result<(), SessionError> {
    match decoder.input(InputRole::Embeddings) {
        Some(input) => Err(SessionError::Embeddings { input: input.name.to_owned() }),
        None => Ok(()),
    }
}

/// Checks that a decoder has no states beside its caches.
///
/// A state contains every token that was fed, and a session feeds padding, truncates samples and runs empty
/// batch indices.
///
/// # Errors
/// Returns [`SessionError::State`].
pub fn check_states(decoder: &Decoder<'_>) -> Result<(), SessionError> {
    match decoder.states.first() {
        Some(state) => Err(SessionError::State { input: state.past.to_owned() }),
        None => Ok(()),
    }
}

/// Checks that only the writer of a cache that is written in place reads the cache's past. An engine does not
/// know that past and present are one buffer, so it may run another reader before or after the write.
fn check_readers(decoder: &Decoder<'_>) -> Result<(), SessionError> {
    let caches = decoder.caches.iter().filter(|cache| cache.style.growth() != Some(Growth::Joined));
    let in_place: BTreeSet<_> = caches.map(|cache| cache.past).collect();
    let reader = decoder.hazards().into_iter().find_map(|hazard| match hazard {
        Hazard::PastReadElsewhere { past, reader } | Hazard::WrittenTwice { past, second: reader, .. } => {
            in_place.contains(past.as_str()).then_some((past, reader))
        }
        _ => None,
    });
    match reader {
        Some((input, reader)) => Err(SessionError::PastRead { input, reader: reader.to_string() }),
        None => Ok(()),
    }
}

/// Checks that one operator writes all caches in place, that they have rows of whole bytes, and that an input
/// determines the slots of each sample.
fn check_writers(interface: &Interface) -> Result<(), SessionError> {
    let caches = || interface.caches.iter();
    if let Some(cache) = caches().find(|cache| cache.growth == Some(Growth::Joined)) {
        return Err(SessionError::NotStatic { input: cache.past.clone(), growth: Growth::Joined });
    }
    let writer = interface.writer();
    let is_written_otherwise =
        |cache: &&CachePort| cache.growth.is_none() && writer != CacheWriter::TensorScatter;
    if let Some(cache) = caches().find(is_written_otherwise) {
        return Err(SessionError::MixedWriters { input: cache.past.clone() });
    }
    let has_whole_rows = |cache: &CachePort| cache.element.bits().is_some_and(|bits| bits >= 8);
    if let Some(cache) = caches().find(|cache| !has_whole_rows(cache)) {
        return Err(SessionError::CacheElement { input: cache.past.clone(), element: cache.element });
    }
    let takes = |purpose| interface.takes(purpose);
    match writer {
        CacheWriter::TensorScatter if !takes(Purpose::WriteIndices) => Err(SessionError::NoWriteIndices),
        CacheWriter::GroupQueryAttention if !takes(Purpose::LengthMask) && !takes(Purpose::SeqlensK) => {
            Err(SessionError::NoLengths)
        }
        _ => Ok(()),
    }
}

/// Checks that the types of inputs can represent every value that the session will feed. Tokens are checked
/// by [`KvSession::check_known`].
fn check_types(interface: &Interface, capacity: usize) -> Result<(), SessionError> {
    let capacity = i64::try_from(capacity).unwrap_or(i64::MAX);
    interface.feeds.iter().try_for_each(|feed| {
        let most = match feed.purpose {
            Purpose::Tokens | Purpose::Embeddings { .. } => 0,
            Purpose::Mask | Purpose::LengthMask => 1,
            Purpose::Positions
            | Purpose::WriteIndices
            | Purpose::NonpadKvSeqlen
            | Purpose::SeqlensK
            | Purpose::TotalLength => capacity,
        };
        check_value(feed.element, most)
    })
}

/// Checks that the tokens are in the vocabulary.
pub(crate) fn check_tokens(
    tokens: &[i64],
    vocabulary: Option<usize>,
    error: impl Fn(usize, i64) -> SessionError,
) -> Result<(), SessionError> {
    let is_known = |token: i64| {
        usize::try_from(token).is_ok_and(|token| vocabulary.is_none_or(|vocabulary| token < vocabulary))
    };
    match tokens.iter().enumerate().find(|(_, token)| !is_known(**token)) {
        Some((index, &token)) => Err(error(index, token)),
        None => Ok(()),
    }
}
