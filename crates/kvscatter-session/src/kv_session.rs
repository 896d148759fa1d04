//! A static-cache decoder and the batch that runs on it.
//!
//! A step is atomic. It is checked, divided into runs of the model, and undone if a run fails.

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;

use kvscatter_onnx::{Model, ModelFile};

use crate::batch::Batch;
use crate::caches::Caches;
use crate::inputs::Inputs;
use crate::model_runs::{Limits, ModelRun, costs, model_runs};
use crate::opening::{check_tokens, check_types, check_writers, interface, read};
use crate::tensor::check_value;
use crate::undo::Undo;
use crate::{
    Engine, Interface, LoadOptions, Logits, LogitsTensor, MemoryReport, Purpose, Runner, Sample,
    SessionError, Tensor,
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
    /// Whether a step whose logits contain NaN fails with [`SessionError::NanLogits`].
    pub refuse_nan: bool,
}

impl Default for SessionOptions {
    /// Returns options for one sample, the capacity of the model, the threads that the engine chooses, caches of at
    /// most 16 GiB, and logits that are not checked.
    fn default() -> Self {
        Self { batch: None, capacity: None, threads: None, memory: 1 << 34, refuse_nan: false }
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
/// A step is atomic. After an error, an interrupt or a panic, every sample has the tokens, rows and states from before
/// the step. Several steps can be undone together with
/// [`begin`](Self::begin).
///
/// Samples can be copied with [`fork`](Self::fork) and [`reorder`](Self::reorder), and kept in files with
/// [`save`](Self::save) and [`load`](Self::load).
pub struct KvSession {
    pub(crate) model: ModelFile,
    pub(crate) runner: Runner,
    pub(crate) samples: Batch,
    pub(crate) caches: Caches,
    /// The point that [`begin`](Self::begin) set, by batch index.
    pub(crate) begun: Vec<Undo>,
    /// The point before the current step, by batch index.
    step: Vec<Undo>,
    inputs: Inputs,
    interrupt: Option<Box<dyn FnMut() -> bool + Send>>,
    refuse_nan: bool,
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
        let samples = Batch::new(batch, capacity, runner.interface.rings());
        let caches = Caches::new(&runner, batch, capacity, samples.rings())?;
        let inputs = Inputs::new(&runner, batch, capacity)?;
        let undo = || (0..batch).map(|_| Undo::default()).collect();
        Ok(Self {
            model: model.clone(),
            runner,
            samples,
            caches,
            begun: undo(),
            step: undo(),
            inputs,
            interrupt: None,
            refuse_nan: options.refuse_nan,
            written: 0,
            copied: 0,
        })
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
        let sample = self.samples.add()?;
        self.caches.states.clear(sample.batch_index);
        Ok(sample)
    }

    /// Removes a sample and frees its batch index. The other samples keep their indices.
    ///
    /// # Errors
    /// Returns [`SessionError::NoSuchSample`] if the sample is not in this batch.
    pub fn remove(&mut self, sample: Sample) -> Result<(), SessionError> {
        self.samples.remove(sample)?;
        self.end(sample);
        Ok(())
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
    /// - Returns [`SessionError::TruncateState`] if the model has states, unless the sample goes back to 0 or to the
    ///   point of [`begin`](Self::begin).
    /// - Returns [`SessionError::TruncateRing`] if a ring no longer has the rows that the next tokens would see. A
    ///   sample can always be truncated by the ring's [rewind](kvscatter_onnx::convert::RingSize::rewind) below its
    ///   furthest token, to 0, and to the point of [`begin`](Self::begin). It can be truncated further if the ring
    ///   still has the rows, which runs of other samples and failed runs may have overwritten.
    pub fn truncate(&mut self, sample: Sample, tokens: usize) -> Result<(), SessionError> {
        self.check_truncation(sample, tokens)?;
        self.take_back(sample, tokens);
        Ok(())
    }

    /// Returns the number of cached tokens of a sample.
    ///
    /// # Errors
    /// Returns [`SessionError::NoSuchSample`] if the sample is not in this batch.
    pub fn cached_tokens(&self, sample: Sample) -> Result<usize, SessionError> {
        self.samples.cached_tokens(sample)
    }

    /// Returns the ids of the cached tokens of a sample, in order.
    ///
    /// # Errors
    /// Returns [`SessionError::NoSuchSample`] if the sample is not in this batch.
    pub fn tokens(&self, sample: Sample) -> Result<&[i64], SessionError> {
        self.samples.tokens(sample)
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
    /// - [`SessionError::CacheLost`] if an earlier run has lost a cache.
    ///
    /// If a run fails, returns [`SessionError::Run`] with the engine's message, or another error of a run
    /// that [`SessionError`] lists. Every sample is then as it was before the step, even if earlier runs of the step
    /// succeeded.
    pub fn step(&mut self, tokens: &[(Sample, &[i64])]) -> Result<Logits, SessionError> {
        self.run(tokens, usize::MAX, false)
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
        self.run(tokens, chunk, true)
    }

    /// Returns the memory that the caches take, and that of the rows that were copied in order to go back.
    #[must_use]
    pub fn memory(&self) -> MemoryReport {
        let undo = self.begun.iter().chain(&self.step).map(Undo::allocated).sum();
        MemoryReport { undo, ..MemoryReport::of(&self.runner.interface, self.batch(), self.capacity()) }
    }

    /// Sets a function that is called before every run of a step. If it returns `true`, the step fails with
    /// [`SessionError::Interrupted`].
    pub fn interrupt_when(&mut self, is_interrupted: impl FnMut() -> bool + Send + 'static) {
        self.interrupt = Some(Box::new(is_interrupted));
    }

    /// Returns the number of bytes that the model wrote into the caches in the last step, padding and runs that were
    /// repeated included. Zeros that the session wrote before the step are not included.
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
        (self.written, self.copied) = (0, 0);
        let mut suspects = BTreeSet::new();
        loop {
            let step = Unfinished::begin(self, tokens);
            if let Some(logits) = step.session.run_all(tokens, chunk, only_last, &mut suspects)? {
                step.end(tokens);
                return Ok(logits);
            }
        }
    }

    /// Runs the model for a step. Returns `None` if the step must run again:
    ///
    /// - The model returns logits of the last column only, although it does not declare that, so padded samples have
    ///   none.
    /// - A run fed a sample several tokens, and the logits after one of them contain NaN. Engines may multiply rows of
    ///   later tokens by zero, so a NaN of a later token may have reached the rows and logits of the earlier ones. Such
    ///   samples are added to `suspects`, which get single tokens in runs after those of the other samples.
    ///
    /// A prefill is not repeated after NaN, because it keeps no logits of earlier tokens.
    fn run_all(
        &mut self,
        tokens: &[(Sample, &[i64])],
        chunk: usize,
        only_last: bool,
        suspects: &mut BTreeSet<usize>,
    ) -> Result<Option<Logits>, SessionError> {
        let before = self.samples.all_cached_tokens();
        let mut given: Vec<&[i64]> = vec![&[]; self.batch()];
        for (sample, tokens) in tokens {
            if let Some(given) = given.get_mut(sample.batch_index) {
                *given = tokens;
            }
        }
        let mut cached = before.clone();
        let mut kept = Logits::none(tokens.iter().map(|(sample, tokens)| (*sample, tokens.len())));
        let token = |batch_index: usize, position: usize| {
            let before = before.get(batch_index).copied().unwrap_or_default();
            let tokens = given.get(batch_index);
            tokens.and_then(|tokens| tokens.get(position - before)).copied().unwrap_or_default()
        };
        let mut new_suspects = BTreeSet::new();
        for (are_suspects, width) in [(false, chunk), (true, 1)] {
            let counts = given.iter().enumerate();
            let counts = counts.map(|(index, given)| match suspects.contains(&index) == are_suspects {
                true => given.len(),
                false => 0,
            });
            let counts: Vec<usize> = counts.collect();
            for run in model_runs(&cached, self.samples.rings(), &counts, self.limits(width)) {
                if self.interrupt.as_mut().is_some_and(|is_interrupted| is_interrupted()) {
                    return Err(SessionError::Interrupted);
                }
                let logits = self.run_model(&run, token)?;
                if self.runner.interface.vocabulary.replace(logits.vocabulary) != Some(logits.vocabulary) {
                    self.check_known(tokens)?;
                }
                if logits.are_last_only() && !self.runner.interface.last_logits_only {
                    self.runner.interface.last_logits_only = true;
                    return Ok(None);
                }
                for (index, (batch_index, fed)) in run.fed().enumerate() {
                    let is_repeatable = !only_last && fed.tokens.len() > 1;
                    if !is_repeatable && !self.refuse_nan {
                        continue;
                    }
                    let Some(nan) = logits.first_nan(index, fed.tokens.len()) else { continue };
                    if is_repeatable {
                        new_suspects.insert(batch_index);
                        continue;
                    }
                    let sample = tokens.iter().find(|(sample, _)| sample.batch_index == batch_index);
                    if let (Some(&(sample, _)), Some(before), false) =
                        (sample, before.get(batch_index), new_suspects.contains(&batch_index))
                    {
                        let index = fed.tokens.start - before + nan;
                        return Err(SessionError::NanLogits { sample, index });
                    }
                }
                kept.take(&run, &before, &logits, only_last);
                for (batch_index, fed) in run.fed() {
                    cached.get_mut(batch_index).into_iter().for_each(|cached| *cached += fed.tokens.len());
                }
            }
        }
        let is_final = new_suspects.is_empty();
        suspects.append(&mut new_suspects);
        Ok(is_final.then_some(kept))
    }

    /// Returns the cost of a step that feeds each sample this many tokens, as [`costs`] counts it.
    pub(crate) fn costs(&self, tokens: &[(Sample, usize)]) -> Vec<f64> {
        let mut counts = vec![0; self.batch()];
        for (sample, tokens) in tokens {
            counts.get_mut(sample.batch_index).into_iter().for_each(|count| *count = *tokens);
        }
        let cached = self.samples.all_cached_tokens();
        let runs = model_runs(&cached, self.samples.rings(), &counts, self.limits(usize::MAX));
        costs(&runs, self.runner.interface.has_quantised_weights)
    }

    /// Returns the largest number of drafted tokens that one step can verify, and of which any number can be kept.
    pub(crate) fn most_drafted(&self) -> usize {
        let interface = &self.runner.interface;
        let has_all_logits = !interface.is_decode_only && !interface.last_logits_only;
        if !has_all_logits || !interface.states.is_empty() || self.refuse_nan {
            return 0;
        }
        let of_rings = interface.rings().map(|ring| ring.capacity.saturating_sub(ring.chunk));
        of_rings.min().unwrap_or(usize::MAX).saturating_sub(1)
    }

    fn limits(&self, width: usize) -> Limits {
        let interface = &self.runner.interface;
        Limits {
            capacity: self.capacity(),
            width: if interface.is_decode_only { 1 } else { width },
            is_exact: interface.last_logits_only || interface.refuses_padding || !interface.states.is_empty(),
            is_whole: !self.runner.takes_some_samples(),
            writer: interface.writer(),
        }
    }

    fn run_model(
        &mut self,
        run: &ModelRun,
        token: impl Fn(usize, usize) -> i64,
    ) -> Result<LogitsTensor, SessionError> {
        let inputs = self.inputs.of_run(run, &self.runner.interface.feeds, token)?;
        let rings = self.samples.rings();
        let points = self.begun.iter_mut().zip(&mut self.step).skip(run.samples.start);
        for ((batch_index, sample), (begun, step)) in run.fed().zip(points) {
            let end = sample.start + run.feed.width;
            for undo in [begun, step] {
                undo.copy_rows(batch_index, end, rings, &self.caches)?;
            }
        }
        self.caches.zero_stale(run, rings);
        self.samples.record(run);
        self.caches.hold(&run.overwritten);
        let ran = self.caches.run(&mut self.runner, run, inputs);
        self.caches.release();
        let (logits, wrote) = ran?;
        self.written += wrote.written;
        self.copied += wrote.copied;
        Ok(logits)
    }

    /// Checks that a sample can go back to `to` tokens.
    pub(crate) fn check_truncation(&self, sample: Sample, to: usize) -> Result<(), SessionError> {
        let begun = self.begun.get(sample.batch_index);
        let cached = self.cached_tokens(sample)?;
        let point = begun.and_then(Undo::tokens);
        if let Some(begun) = point.filter(|begun| to < *begun) {
            return Err(SessionError::TruncateBegun { sample, to, begun });
        }
        self.samples.check_truncation(sample, to, |ring| {
            begun.is_some_and(|begun| begun.reaches(sample.batch_index, to, ring))
        })?;
        let keeps_state = to == 0 || to == cached || point == Some(to);
        match self.runner.interface.states.first() {
            Some(state) if !keeps_state => {
                Err(SessionError::TruncateState { sample, to, cached, input: state.past.clone() })
            }
            _ => Ok(()),
        }
    }

    /// Makes a sample shorter. [`check_truncation`](Self::check_truncation) must have passed.
    pub(crate) fn take_back(&mut self, sample: Sample, to: usize) {
        self.samples.shorten(sample, to);
        if let Some(begun) = self.begun.get(sample.batch_index) {
            begun.restore(sample.batch_index, to, self.samples.rings_mut(), &mut self.caches);
        }
    }

    /// Checks everything about a step that can be checked before it runs.
    fn check(&self, given: &[(Sample, &[i64])]) -> Result<(), SessionError> {
        if given.is_empty() {
            return Err(SessionError::NoSamples);
        }
        self.caches.check_lost(&self.runner)?;
        let mut seen = vec![false; self.batch()];
        for &(sample, tokens) in given {
            self.samples.check_room(sample, tokens.len())?;
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

/// A step that has begun. If it does not end, every sample goes back to where it was before the step.
struct Unfinished<'s> {
    session: &'s mut KvSession,
    has_ended: bool,
}

impl<'s> Unfinished<'s> {
    fn begin(session: &'s mut KvSession, given: &[(Sample, &[i64])]) -> Self {
        let tokens = session.samples.all_cached_tokens();
        for (sample, _) in given {
            let index = sample.batch_index;
            if let (Some(undo), Some(tokens)) = (session.step.get_mut(index), tokens.get(index)) {
                undo.set(index, *tokens, session.samples.rings(), &session.caches);
            }
        }
        Self { session, has_ended: false }
    }

    fn end(mut self, given: &[(Sample, &[i64])]) {
        for (sample, tokens) in given {
            self.session.samples.extend(*sample, tokens);
        }
        self.has_ended = true;
    }
}

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        let session = &mut *self.session;
        session.caches.release();
        for (batch_index, undo) in session.step.iter_mut().enumerate() {
            if let Some(tokens) = undo.tokens().filter(|_| !self.has_ended) {
                undo.restore(batch_index, tokens, session.samples.rings_mut(), &mut session.caches);
            }
            undo.clear();
        }
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
