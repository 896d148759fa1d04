//! A static-cache decoder and the batch that runs on it.

use std::fmt;
use std::path::Path;

use kvscatter_onnx::{Fingerprint, Model, ModelFile};

use crate::accept::{Kept, accept};
#[cfg(doc)]
use crate::encoder::EncoderInputs;
use crate::engine::{Engine, GroupQueryNodes, LoadOptions};
use crate::error::SessionError;
use crate::inputs::RunInputs;
use crate::interface::Interface;
use crate::logits::Logits;
use crate::memory_report::MemoryReport;
use crate::opening::{check_types, check_writers, interface, read};
use crate::runner::Runner;
use crate::sample::Sample;
use crate::sample_store::SampleStore;
use crate::saved::SavedFile;
use crate::saves;
use crate::session_options::SessionOptions;
use crate::steps::{KeepLogits, Steps};
use crate::tensor::Tensor;

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
/// A step is atomic. After an error, an interrupt or a panic, every sample has the tokens, rows and states from before
/// the step. Several steps can be undone together with
/// [`begin`](Self::begin).
///
/// Samples can be copied with [`fork`](Self::fork) and [`reorder`](Self::reorder), and kept in files with
/// [`save`](Self::save) and [`load`](Self::load).
pub struct KvSession {
    model: ModelFile,
    store: SampleStore,
    steps: Steps,
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

    /// Makes the checks of [`open`](Self::open) that need no engine.
    ///
    /// # Errors
    /// Returns the errors of [`open`](Self::open), except those of the engine and of the system.
    pub fn check_model(model: &Model, options: SessionOptions) -> Result<(), SessionError> {
        sizes(&mut interface(model)?, options).map(drop)
    }

    pub(crate) fn of_interface(
        engine: &dyn Engine,
        model: &ModelFile,
        mut interface: Interface,
        options: SessionOptions,
    ) -> Result<Self, SessionError> {
        let (batch, capacity) = sizes(&mut interface, options)?;
        let session = engine.load(model, LoadOptions { threads: options.threads })?;
        let runner = Runner::new(session, interface);
        let of_caches = MemoryReport::new(&runner.interface, batch, capacity).total;
        let store = SampleStore::new(&runner, batch, capacity, options.memory.saturating_sub(of_caches))?;
        let inputs = RunInputs::new(&runner, batch, capacity)?;
        Ok(Self { model: model.clone(), store, steps: Steps::new(runner, inputs, options.refuse_nan) })
    }

    /// Returns the number of samples that fit in the batch.
    #[must_use]
    pub fn batch(&self) -> usize {
        self.store.batch().size()
    }

    /// Returns the maximum number of tokens of a sample that can be cached.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.store.batch().capacity()
    }

    /// Returns the number of tokens in the vocabulary. If the model does not declare it, returns `None`
    /// before the first step.
    #[must_use]
    pub fn vocabulary(&self) -> Option<usize> {
        self.interface().vocabulary
    }

    /// Returns the model's inputs and outputs.
    #[must_use]
    pub fn interface(&self) -> &Interface {
        &self.steps.runner.interface
    }

    /// Returns which kernels compute the nodes of `GroupQueryAttention`, if the model has any.
    #[must_use]
    pub fn group_query_nodes(&self) -> Option<GroupQueryNodes> {
        self.steps.runner.group_query_nodes()
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
        self.store.add()
    }

    /// Gives a sample what an encoder has computed for its text: for each input of [`Interface::encoder`] the name and
    /// a tensor with a batch of 1. The mask may be absent, and all positions are then real.
    ///
    /// The tensors are copied once. No step changes or copies them, forks and beams of the sample attend to the same
    /// text, and [`save`](Self::save) saves it with the sample.
    ///
    /// Samples with different numbers of positions need a decoder with a mask of the encoder's positions. The positions
    /// that a sample lacks are zeros and masked.
    ///
    /// # Errors
    /// - Returns [`SessionError::NoSuchSample`] if the sample is not in this batch.
    /// - Returns [`SessionError::EncoderChanged`] if the sample has cached tokens, and [`SessionError::Begun`] if it
    ///   has a point of [`begin`](Self::begin).
    /// - Returns the errors of [`EncoderInputs::set`].
    pub fn set_encoder_outputs(
        &mut self,
        sample: Sample,
        outputs: &[(&str, &Tensor)],
    ) -> Result<(), SessionError> {
        self.store.set_encoder_outputs(&self.steps.runner, sample, outputs)
    }

    /// Removes a sample and frees its batch index. The other samples keep their indices.
    ///
    /// # Errors
    /// Returns [`SessionError::NoSuchSample`] if the sample is not in this batch.
    pub fn remove(&mut self, sample: Sample) -> Result<(), SessionError> {
        self.store.remove(sample)
    }

    /// Keeps the first `tokens` cached tokens of a sample and drops the others.
    ///
    /// No byte moves, unless rows of a ring were overwritten since [`begin`](Self::begin). The rows of dropped
    /// tokens are set to zero when the sample runs again, for the reason given at [`add`](Self::add).
    ///
    /// # Errors
    /// - Returns [`SessionError::NoSuchSample`] if the sample is not in this batch.
    /// - Returns [`SessionError::TruncateBeyond`] if fewer than `tokens` tokens are cached.
    /// - Returns [`SessionError::TruncateBegun`] if more tokens were cached at [`begin`](Self::begin).
    /// - Returns [`SessionError::TruncateState`] if the model has states, unless the sample goes back to 0, to the
    ///   point of [`begin`](Self::begin), or to one of the last tokens since then whose states are
    ///   [kept](Self::accept_all).
    /// - Returns [`SessionError::TruncateRing`] if a ring no longer has the rows that the next tokens would see. A
    ///   sample can always be truncated by the ring's [rewind](kvscatter_onnx::convert::RingSize::rewind) below its
    ///   furthest token, to 0, and to the point of [`begin`](Self::begin). It can be truncated further if the ring
    ///   still has the rows, which runs of other samples and failed runs may have overwritten.
    pub fn truncate(&mut self, sample: Sample, tokens: usize) -> Result<(), SessionError> {
        self.store.truncate(sample, tokens)
    }

    /// Returns the number of cached tokens of a sample.
    ///
    /// # Errors
    /// Returns [`SessionError::NoSuchSample`] if the sample is not in this batch.
    pub fn cached_tokens(&self, sample: Sample) -> Result<usize, SessionError> {
        self.store.batch().cached_tokens(sample)
    }

    /// Returns the ids of the cached tokens of a sample, in order.
    ///
    /// # Errors
    /// Returns [`SessionError::NoSuchSample`] if the sample is not in this batch.
    pub fn tokens(&self, sample: Sample) -> Result<&[i64], SessionError> {
        self.store.batch().tokens(sample)
    }

    /// Returns the samples of the batch, by batch index.
    pub fn samples(&self) -> impl Iterator<Item = Sample> {
        self.store.batch().iter()
    }

    /// Feeds samples their next tokens, and returns the logits after these tokens.
    ///
    /// A sample gets one token when it decodes, or several tokens of a prompt or of a draft. The numbers of
    /// tokens may differ between samples. Samples that are not in the list are unchanged.
    ///
    /// A run covers neighbouring samples, and has the width of the longest list among them. The session chooses the
    /// runs that cost least: each run reads all weights, and a row of padding costs as much as any other. If the model
    /// fixes its batch, or the engine cannot run a [part of a batch](crate::Session::takes_some_samples), every run
    /// covers the whole batch. There are more runs if the padding of a sample does not fit into its cache, or if the
    /// model returns logits only for the last token.
    ///
    /// If a run feeds a sample several tokens and the logits after one of them contain NaN, the step runs again and
    /// feeds this sample single tokens, because the NaN of a later token can reach the tokens before it in one run. So
    /// tokens that [`accept`](Self::accept) keeps have the rows that they have without the others.
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
    /// - [`SessionError::EncoderMissing`] for a sample without the outputs of the encoder that the decoder attends to;
    /// - [`SessionError::CacheLost`] if an earlier run has lost a cache.
    ///
    /// If a run fails, returns [`SessionError::Run`] with the engine's message, or another error of a run
    /// that [`SessionError`] lists. Every sample is then as it was before the step, even if earlier runs of the step
    /// succeeded.
    pub fn step(&mut self, tokens: &[(Sample, &[i64])]) -> Result<Logits, SessionError> {
        self.steps.step(&mut self.store, tokens, usize::MAX, KeepLogits::All)
    }

    /// Feeds tokens like [`step`](Self::step), with the id of the block of each token. Tokens of a block see each
    /// other, such as those of an image in Gemma 3. Text has the id -1.
    ///
    /// All tokens of a block must be in one step, because rows of earlier steps have not seen the later ones. So the
    /// chunks of a long prompt must end between blocks. Ids have no meaning after the step, and may be used again. A
    /// sample with blocks runs alone, and is not repeated after NaN, so tokens before one of NaN may have rows of NaN.
    ///
    /// [`step`](Self::step), [`prefill`](Self::prefill) and generators feed text. A sample that is truncated within a
    /// block keeps rows that have seen the dropped tokens.
    ///
    /// # Errors
    /// Returns one of these before the first run:
    ///
    /// - [`SessionError::NoBlockIds`] if the model has no input with ids of blocks;
    /// - [`SessionError::BlockCount`] if a sample has another number of ids than of tokens;
    /// - [`SessionError::BlockId`] for an id below -1;
    /// - [`SessionError::BlockOverlap`] for a block whose tokens are not consecutive;
    /// - [`SessionError::BlockSplit`] if a run would end within a block, because the model takes fewer tokens in a run
    ///   than the step has. A step that begins with the block may fit;
    /// - [`SessionError::Begun`] for a sample with blocks that has a point of [`begin`](Self::begin), because
    ///   [`accept`](Self::accept) may run tokens again without their ids;
    /// - [`SessionError::InputType`] for an id that the type of its input cannot represent.
    ///
    /// Returns the errors of [`step`](Self::step).
    pub fn step_with_blocks(&mut self, tokens: &[(Sample, &[i64], &[i64])]) -> Result<Logits, SessionError> {
        self.steps.step_with_blocks(&mut self.store, tokens)
    }

    /// Feeds tokens like [`step`](Self::step), in runs of at most `chunk` tokens of each sample. Keeps only
    /// the logits after the last token of each sample.
    ///
    /// Use this method for long prompts, because the logits of all their tokens would be large. Unlike a step, a
    /// prefill is not repeated after NaN, so tokens before one of NaN may have rows of NaN.
    ///
    /// # Errors
    /// - Returns [`SessionError::NoChunk`] for a chunk of 0.
    /// - Returns the errors of [`step`](Self::step).
    pub fn prefill(&mut self, tokens: &[(Sample, &[i64])], chunk: usize) -> Result<Logits, SessionError> {
        if chunk == 0 {
            return Err(SessionError::NoChunk);
        }
        self.steps.step(&mut self.store, tokens, chunk, KeepLogits::Last)
    }

    /// Returns the memory that the caches take, and that of the rows that were copied in order to go back.
    #[must_use]
    pub fn memory(&self) -> MemoryReport {
        let (undo, encoder) = (self.store.undo_bytes(), self.store.caches().encoder().bytes());
        MemoryReport { undo, encoder, ..MemoryReport::new(self.interface(), self.batch(), self.capacity()) }
    }

    /// Sets a function that is called before every run of a step. If it returns `true`, the step fails with
    /// [`SessionError::Interrupted`].
    pub fn interrupt_when(&mut self, is_interrupted: impl FnMut() -> bool + Send + 'static) {
        self.steps.interrupt = Some(Box::new(is_interrupted));
    }

    /// Returns the number of bytes that the model wrote into the caches in the last step, padding and runs that were
    /// repeated included, also those of [`accept`](Self::accept). Zeros that the session wrote before the step are not
    /// included.
    #[must_use]
    pub fn bytes_written(&self) -> u64 {
        self.steps.written
    }

    /// Returns the number of bytes of caches that the engine copied in the last step, and in runs of
    /// [`accept`](Self::accept) after it, instead of writing in place.
    #[must_use]
    pub fn bytes_copied(&self) -> u64 {
        self.steps.copied
    }

    /// Returns the cache with this index in [`Interface::caches`], as the last step left it.
    #[must_use]
    pub fn cache(&self, index: usize) -> Option<&Tensor> {
        self.store.caches().tensor(index)
    }

    /// Sets a point that a sample can go back to. Any number of steps may follow, until [`commit`](Self::commit),
    /// [`rollback`](Self::rollback) or [`accept`](Self::accept).
    ///
    /// This copies the sample's states, if the model has any, and no rows. A later step copies a row of a ring before
    /// it overwrites it, if the ring's slack does not cover the row. [`memory`](Self::memory) returns the bytes of
    /// these copies.
    ///
    /// [`transaction`](Self::transaction) does the same with a guard.
    ///
    /// # Errors
    /// - Returns [`SessionError::NoSuchSample`] if the sample is not in this batch.
    /// - Returns [`SessionError::Begun`] if the sample has such a point already.
    pub fn begin(&mut self, sample: Sample) -> Result<(), SessionError> {
        self.store.begin(sample)
    }

    /// Returns the number of cached tokens at [`begin`](Self::begin), or `None` if the sample has no such point.
    ///
    /// # Errors
    /// Returns [`SessionError::NoSuchSample`] if the sample is not in this batch.
    pub fn begun(&self, sample: Sample) -> Result<Option<usize>, SessionError> {
        self.store.begun(sample)
    }

    /// Keeps everything since [`begin`](Self::begin).
    ///
    /// # Errors
    /// - Returns [`SessionError::NoSuchSample`] if the sample is not in this batch.
    /// - Returns [`SessionError::NotBegun`] without a call of [`begin`](Self::begin).
    pub fn commit(&mut self, sample: Sample) -> Result<(), SessionError> {
        self.store.commit(sample)
    }

    /// Returns a sample to the point that [`begin`](Self::begin) set. Its next logits are the same as if the steps
    /// since then had not happened.
    ///
    /// The time depends on the number of rows that were copied, and not on the capacity. Nothing is allocated.
    ///
    /// # Errors
    /// - Returns [`SessionError::NoSuchSample`] if the sample is not in this batch.
    /// - Returns [`SessionError::NotBegun`] without a call of [`begin`](Self::begin).
    pub fn rollback(&mut self, sample: Sample) -> Result<(), SessionError> {
        self.store.rollback(sample)
    }

    /// Keeps the first `tokens` tokens that were fed since [`begin`](Self::begin), and undoes the others.
    ///
    /// Speculative decoding uses this to keep the drafted tokens that the model would have chosen.
    ///
    /// This calls [`accept_all`](Self::accept_all) for one sample.
    ///
    /// # Errors
    /// Returns the errors of [`accept_all`](Self::accept_all).
    pub fn accept(&mut self, sample: Sample, tokens: usize) -> Result<(), SessionError> {
        self.accept_all(&[(sample, tokens)])
    }

    /// Keeps the first tokens, as many as the number of each sample, that were fed since [`begin`](Self::begin), and
    /// undoes the others.
    ///
    /// This runs nothing if dropped tokens have left only rows, or states of which the session has an earlier one. It
    /// has those after each of the last 128 tokens, fed in runs of at most 128, if the model
    /// [returns them](Interface::returns_all_states). In other models with states, a sample that keeps some of its
    /// tokens goes back to its point, and the kept tokens run again. The same happens if later rows of a ring have
    /// overwritten some that the kept tokens need, which takes more than `capacity - chunk` tokens in a ring that
    /// `convert` made. All samples run again in one step, in runs of at most 512 tokens of each. So the sample has the
    /// rows and states of one that was fed only the kept tokens, in these runs.
    ///
    /// # Errors
    /// Returns one of these before anything changes:
    ///
    /// - [`SessionError::NoSuchSample`] if a sample is not in this batch;
    /// - [`SessionError::SampleTwice`] for a sample that is listed twice;
    /// - [`SessionError::NotBegun`] without a call of [`begin`](Self::begin);
    /// - [`SessionError::AcceptBeyond`] if fewer tokens were fed;
    /// - [`SessionError::CacheLost`] if tokens must run again, and an earlier run has lost a cache.
    ///
    /// Returns an error of [`step`](Self::step) if a run of the kept tokens fails. Every sample of the list is then at
    /// its point, which is still set.
    pub fn accept_all(&mut self, tokens: &[(Sample, usize)]) -> Result<(), SessionError> {
        let kept: Vec<_> = tokens.iter().map(|(sample, tokens)| (*sample, Kept::First(*tokens))).collect();
        accept(&mut self.store, &mut self.steps, &kept)
    }

    /// Keeps some of the tokens that were fed since [`begin`](Self::begin), for example a path of a tree of drafts, and
    /// undoes the others. `rows` lists their indices among these tokens, in ascending order.
    ///
    /// The tokens before the first gap are kept as by [`accept`](Self::accept). The tokens after it run again, because
    /// they have seen dropped tokens and have other positions now. So the sample is as if only the kept tokens had been
    /// fed.
    ///
    /// # Errors
    /// - Returns [`SessionError::PathOrder`] if an index is not larger than the one before it.
    /// - Returns [`SessionError::PathBeyond`] for an index of a token that was not fed.
    /// - Returns the errors of [`accept_all`](Self::accept_all).
    pub fn accept_rows(&mut self, sample: Sample, rows: &[usize]) -> Result<(), SessionError> {
        accept(&mut self.store, &mut self.steps, &[(sample, Kept::Rows(rows))])
    }

    /// Adds `copies` samples with the same past as `sample`.
    ///
    /// The rows that the past needs are copied, in all caches, and no others. The copies have no point of
    /// [`begin`](Self::begin).
    ///
    /// # Errors
    /// - Returns [`SessionError::NoSuchSample`] if the sample is not in this batch.
    /// - Returns [`SessionError::NoRoom`] if fewer than `copies` batch indices are free. No sample is then added.
    /// - Returns [`SessionError::CacheLost`] if an earlier run has lost a cache.
    pub fn fork(&mut self, sample: Sample, copies: usize) -> Result<Vec<Sample>, SessionError> {
        self.store.fork(sample, copies)
    }

    /// Replaces the samples of a beam search. The result has one sample for each entry of `parents`, which continues
    /// the sample of `samples` with that index.
    ///
    /// The first child of a sample is that sample itself, so it keeps its batch index and moves no byte. Other children
    /// are copies. Samples without children are removed first, so that copies can take their batch indices.
    ///
    /// # Errors
    /// - Returns [`SessionError::NoSuchSample`] for a sample that is not in this batch.
    /// - Returns [`SessionError::SampleTwice`] for a sample that is listed twice.
    /// - Returns [`SessionError::NoSuchParent`] for a parent that is not an index of `samples`.
    /// - Returns [`SessionError::NoRoom`] if the copies need more batch indices than are free.
    /// - Returns [`SessionError::CacheLost`] if an earlier run has lost a cache.
    ///
    /// After an error nothing has changed.
    pub fn reorder(&mut self, samples: &[Sample], parents: &[usize]) -> Result<Vec<Sample>, SessionError> {
        self.store.reorder(samples, parents)
    }

    /// Returns the fingerprint of the model, which identifies what its caches mean.
    ///
    /// The first call reads all weights, and later calls return the same value.
    ///
    /// # Errors
    /// Returns [`SessionError::Onnx`] if the model's files cannot be read, or have changed since the session was
    /// opened.
    pub fn fingerprint(&self) -> Result<Fingerprint, SessionError> {
        Ok(self.model.fingerprint()?)
    }

    /// Saves a sample to a file: its tokens, the rows that they need in all caches, and its states.
    ///
    /// The tokens and the fingerprint identify the rows, because nothing else determines them except the
    /// [blocks](Self::step_with_blocks) of tokens, whose ids are not saved. A session opens no model
    /// that takes embeddings, images or other unknown inputs, and an initializer that is also an input keeps the value
    /// of the file, which is a part of the fingerprint.
    ///
    /// The file is a safetensors file. It appears whole, or the old file stays, also if the process is killed. It
    /// replaces only a saved sample. Every byte is covered by a checksum.
    ///
    /// # Errors
    /// - Returns [`SessionError::NoSuchSample`] if the sample is not in this batch.
    /// - Returns [`SessionError::CacheLost`] if an earlier run has lost a cache.
    /// - Returns [`SessionError::Saved`] if the file cannot be written, or has other contents than a saved sample.
    /// - Returns the errors of [`fingerprint`](Self::fingerprint).
    pub fn save(&self, sample: Sample, path: impl AsRef<Path>) -> Result<(), SessionError> {
        self.tokens(sample)?;
        self.store.check_lost()?;
        let model = self.fingerprint()?;
        saves::save(&self.store, self.interface(), model, sample, path.as_ref())
    }

    /// Adds a sample that [`save`](Self::save) has saved, from a session of the same model.
    ///
    /// The batch and the capacities may differ. A ring can have another capacity, and must have the same window.
    /// Everything is checked before the first byte of a cache changes.
    ///
    /// # Errors
    /// - Returns [`SessionError::Saved`] if the file is damaged, or not a saved sample.
    /// - Returns [`SessionError::SavedModel`] if the sample was saved with another model.
    /// - Returns [`SessionError::SavedLayout`] if a cache or state has another type, shape or window.
    /// - Returns [`SessionError::SavedTooLong`] if the sample has more tokens than fit.
    /// - Returns [`SessionError::SavedToken`] if the vocabulary does not contain a token.
    /// - Returns [`SessionError::SavedRows`] if the file has fewer rows of a ring than its window needs.
    /// - Returns [`SessionError::BatchFull`] if no batch index is free.
    /// - Returns [`SessionError::CacheLost`] if an earlier run has lost a cache.
    /// - Returns the errors of [`fingerprint`](Self::fingerprint).
    pub fn load(&mut self, path: impl AsRef<Path>) -> Result<Sample, SessionError> {
        let path = path.as_ref();
        self.store.check_lost()?;
        let mut file = SavedFile::open(path)?;
        let model = self.fingerprint()?;
        saves::load(&mut self.store, &self.steps.runner, model, &mut file, path)
    }

    /// Checks that a sample can go back to `to` tokens.
    pub(crate) fn check_truncation(&self, sample: Sample, to: usize) -> Result<(), SessionError> {
        self.store.check_truncation(sample, to)
    }

    /// Returns the cost of a step that feeds each sample this many tokens, once for each way in which engines compute
    /// with the weights.
    pub(crate) fn costs(&self, tokens: &[(Sample, usize)]) -> Vec<f64> {
        self.steps.costs(&self.store, tokens)
    }

    /// Returns `true` if [`accept`](Self::accept) runs tokens again when a sample keeps some of the tokens of a step.
    pub(crate) fn runs_again(&self) -> bool {
        self.steps.runs_again()
    }

    /// Returns the largest number of drafted tokens that one step can verify, and of which any number can be kept.
    pub(crate) fn most_drafted(&self) -> usize {
        self.steps.most_drafted()
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

/// Checks that a session can write the caches, and returns its batch and capacity.
fn sizes(interface: &mut Interface, options: SessionOptions) -> Result<(usize, usize), SessionError> {
    check_writers(interface)?;
    interface.settle(None)?;
    let batch = interface.batch_or(options.batch)?.unwrap_or(1);
    let capacity = interface.capacity_or(options.capacity)?.ok_or(SessionError::CapacityOpen)?;
    if batch == 0 || capacity == 0 {
        return Err(SessionError::Empty { batch, capacity });
    }
    check_types(interface, capacity)?;
    MemoryReport::check(interface, batch, capacity, options.memory)?;
    Ok((batch, capacity))
}
