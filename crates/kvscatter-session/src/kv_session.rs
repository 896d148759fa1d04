//! A decoder with a static cache, and the batch that runs on it.

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;

use kvscatter_onnx::decoder::{Decoder, Hazard};
use kvscatter_onnx::{Model, ModelFile};

use crate::batch::Batch;
use crate::caches::Caches;
use crate::rounds::{Limits, Round, rounds};
use crate::tensor::check_value;
use crate::{
    CachePort, Engine, Interface, LoadOptions, Logits, MemoryReport, Purpose, Runner, Sample, Scores,
    SessionError, Tensor,
};

/// How a session is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionOptions {
    /// The samples that there is room for: the model's batch if it is fixed, else 1 if not given.
    pub batch: Option<usize>,
    /// Slots of each cache; to be given where the model leaves it open.
    pub capacity: Option<usize>,
    /// Threads of one operator; the engine's choice if `None`.
    pub threads: Option<usize>,
    /// The most bytes that the caches may take: a model's file says how large they are, and may claim anything.
    pub memory: u64,
}

impl Default for SessionOptions {
    /// One sample, the model's capacity, the engine's threads, and caches of up to 16 GiB.
    fn default() -> Self {
        Self { batch: None, capacity: None, threads: None, memory: 1 << 34 }
    }
}

/// A static-cache decoder and a running batch: samples can be added, extended, truncated and removed.
///
/// The caches, `[batch, …, capacity, …]`, are allocated once and written in place. Each sample has a place in the batch
/// and a length; `write_indices`, `position_ids`, masks and `nonpad_kv_seqlen` follow from the lengths, by the rule that
/// sample `b`'s next token goes to slot `length[b]` and sees slots `0..=length[b]`.
///
/// After an error the lengths are as they were, and nothing has been written unless [`SessionError`] says so.
pub struct KvSession {
    runner: Runner,
    places: Batch,
    caches: Caches,
    written: u64,
    copied: u64,
}

impl KvSession {
    /// Loads a model, and allocates its caches.
    ///
    /// # Errors
    /// [`SessionError::Load`] with the engine's message; [`SessionError::NotStatic`], [`SessionError::NoWriteIndices`] and their like for a
    /// model that is no static-cache decoder; [`SessionError::SizeFixed`], [`SessionError::CapacityOpen`], [`SessionError::Empty`] for a
    /// batch or a capacity that the model does not have; [`SessionError::InputType`] for a capacity that the type of an input
    /// does not hold; [`SessionError::MemoryLimit`], [`SessionError::TensorTooLarge`].
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
        check_static(&interface)?;
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
        Ok(Self { runner, places: Batch::new(batch, capacity), caches, written: 0, copied: 0 })
    }

    /// How many places the batch has.
    #[must_use]
    pub fn batch(&self) -> usize {
        self.places.batch()
    }

    /// How many tokens a sample can have.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.places.capacity()
    }

    /// How many tokens the model knows; `None` until the first step if it does not declare it.
    #[must_use]
    pub fn vocabulary(&self) -> Option<usize> {
        self.runner.interface.vocabulary
    }

    /// What the model takes and gives.
    #[must_use]
    pub fn interface(&self) -> &Interface {
        &self.runner.interface
    }

    /// Takes a free place: an empty sample.
    ///
    /// Rows that were written there before are set to zero when the sample is first run. Nothing sees them, but attention
    /// may multiply what it does not see by zero, and since 0 × NaN is NaN, one sample's NaN or infinity would reach the
    /// next one's scores. That takes as long as there are such rows, and does not depend on the capacity.
    ///
    /// # Errors
    /// [`SessionError::BatchFull`].
    pub fn add(&mut self) -> Result<Sample, SessionError> {
        self.places.add()
    }

    /// Gives a sample's place back. The others stay where they are.
    ///
    /// # Errors
    /// [`SessionError::NoSuchSample`].
    pub fn remove(&mut self, sample: Sample) -> Result<(), SessionError> {
        self.places.remove(sample)
    }

    /// Forgets a sample's tokens from `length` on, as speculative decoding does with those that were not accepted. No
    /// byte moves: the rows are after the length, and become zeros when the sample runs again, as [`add`](Self::add)
    /// says.
    ///
    /// # Errors
    /// [`SessionError::NoSuchSample`]; [`SessionError::TruncateBeyond`] if it is not that long.
    pub fn truncate(&mut self, sample: Sample, length: usize) -> Result<(), SessionError> {
        self.places.truncate(sample, length)
    }

    /// How many tokens of a sample are in the cache.
    ///
    /// # Errors
    /// [`SessionError::NoSuchSample`].
    pub fn length(&self, sample: Sample) -> Result<usize, SessionError> {
        self.places.length(sample)
    }

    /// The samples of the batch, by place.
    pub fn samples(&self) -> impl Iterator<Item = Sample> {
        self.places.samples()
    }

    /// Gives samples their next tokens: one for decoding, several for a prompt or for tokens to be verified, as many for
    /// each as it likes. Samples that are not named stay as they are.
    ///
    /// One run of the model, of all places, as wide as the longest list; more where the padding of a sample would not fit
    /// behind it, or where the model scores the last token only.
    ///
    /// # Errors
    /// Before anything is run, [`SessionError::NoSamples`], [`SessionError::NoSuchSample`], [`SessionError::SampleTwice`],
    /// [`SessionError::NoTokens`], [`SessionError::TokenUnknown`], [`SessionError::InputType`] for a token that its input's type does not
    /// hold, and [`SessionError::CapacityExceeded`]; [`SessionError::Run`] with the engine's message, and the others that [`SessionError`] says
    /// only a run shows.
    pub fn step(&mut self, tokens: &[(Sample, &[i64])]) -> Result<Scores, SessionError> {
        self.run(tokens, usize::MAX, false)
    }

    /// As [`step`](Self::step), in runs of at most `chunk` tokens of each sample, and with the scores after the last
    /// tokens alone: what long prompts need, whose scores all together would be large.
    ///
    /// # Errors
    /// As [`step`](Self::step); [`SessionError::NoChunk`] for a chunk of 0.
    pub fn prefill(&mut self, tokens: &[(Sample, &[i64])], chunk: usize) -> Result<Scores, SessionError> {
        if chunk == 0 {
            return Err(SessionError::NoChunk);
        }
        self.run(tokens, chunk, true)
    }

    /// What the caches take.
    #[must_use]
    pub fn memory(&self) -> MemoryReport {
        MemoryReport::of(&self.runner.interface, self.batch(), self.capacity())
    }

    /// The bytes that the model wrote into the caches in the last step, padding included. Rows that were set to zero
    /// before do not count.
    #[must_use]
    pub fn bytes_written(&self) -> u64 {
        self.written
    }

    /// The bytes of caches that the engine copied in the last step instead of writing them in place.
    #[must_use]
    pub fn bytes_copied(&self) -> u64 {
        self.copied
    }

    /// A cache, as it is after the last step: the `index`th of [`Interface::caches`].
    #[must_use]
    pub fn cache(&self, index: usize) -> Option<&Tensor> {
        self.caches.tensors.get(index)
    }

    fn run(
        &mut self,
        tokens: &[(Sample, &[i64])],
        chunk: usize,
        only_last: bool,
    ) -> Result<Scores, SessionError> {
        self.check(tokens)?;
        let before = self.places.lengths();
        let mut given: Vec<&[i64]> = vec![&[]; self.batch()];
        for (sample, tokens) in tokens {
            if let Some(given) = given.get_mut(sample.place) {
                *given = tokens;
            }
        }
        let counts: Vec<usize> = given.iter().map(|tokens| tokens.len()).collect();
        let interface = &self.runner.interface;
        let limits = Limits {
            capacity: self.capacity(),
            width: if interface.is_decode_only { 1 } else { chunk },
            is_exact: interface.scores_last,
        };
        let mut scores = Scores::none(tokens.iter().map(|(sample, tokens)| (*sample, tokens.len())));
        (self.written, self.copied) = (0, 0);
        for round in rounds(&before, &counts, limits) {
            let token = |place: usize, position: usize| {
                let before = before.get(place).copied().unwrap_or_default();
                given.get(place).and_then(|tokens| tokens.get(position - before)).copied().unwrap_or_default()
            };
            let inputs = round.feed.tensors(&self.runner.interface, token, limits.capacity)?;
            let logits = self.run_round(&round, &inputs)?;
            if self.runner.interface.vocabulary.replace(logits.vocabulary) != Some(logits.vocabulary) {
                self.check_known(tokens)?;
            }
            if logits.scores_last() && !self.runner.interface.scores_last {
                // It does not declare that it scores the last column only: samples that were padded have no score. Their
                // lengths are as before, and so all of it is run again.
                self.runner.interface.scores_last = true;
                return self.run(tokens, chunk, only_last);
            }
            scores.take(&round.feed, &before, &logits, only_last);
        }
        for (sample, tokens) in tokens {
            self.places.set_length(*sample, self.places.length(*sample)? + tokens.len());
        }
        Ok(scores)
    }

    fn run_round(&mut self, round: &Round, inputs: &[(String, Tensor)]) -> Result<Logits, SessionError> {
        let kept = self.caches.keep(&round.kept);
        let ran = self.caches.run(&mut self.runner, &round.feed, inputs);
        self.caches.restore_rows(&round.kept, &kept);
        let (logits, wrote) = ran?;
        self.written += wrote.written;
        self.copied += wrote.copied;
        Ok(logits)
    }

    /// Everything that can be wrong with a step, before it is run.
    fn check(&self, given: &[(Sample, &[i64])]) -> Result<(), SessionError> {
        if given.is_empty() {
            return Err(SessionError::NoSamples);
        }
        let mut seen = vec![false; self.batch()];
        for &(sample, tokens) in given {
            self.places.check_room(sample, tokens.len())?;
            if tokens.is_empty() {
                return Err(SessionError::NoTokens { sample });
            }
            if seen.get_mut(sample.place).is_some_and(|seen| std::mem::replace(seen, true)) {
                return Err(SessionError::SampleTwice { sample });
            }
        }
        self.check_known(given)
    }

    /// That the model has all tokens, as far as it is known how many it has, and can be fed with them.
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

/// The checked file of a decoder, and what it takes. The model itself can be large, and is dropped here.
pub(crate) fn read(path: &Path) -> Result<(ModelFile, Interface), SessionError> {
    let model = Model::load(path)?;
    Ok((model.file()?, interface(&model)?))
}

/// What a decoder takes.
fn interface(model: &Model) -> Result<Interface, SessionError> {
    let graph = model.graph()?;
    let decoder = Decoder::of(&graph)?;
    if let Some((past, why)) = decoder.unknown() {
        return Err(SessionError::NotScattered { input: past.to_owned(), why: why.to_string() });
    }
    check_readers(&decoder)?;
    Interface::of(&graph, &decoder)
}

/// That nothing reads a static cache's past but what writes it. An engine that is given one buffer as past and present
/// is not told that they are one, and may write it before or after the reader.
fn check_readers(decoder: &Decoder<'_>) -> Result<(), SessionError> {
    let caches = decoder.caches.iter().filter(|cache| cache.is_static());
    let of_fixed_size: BTreeSet<_> = caches.map(|cache| cache.past).collect();
    let reader = decoder.hazards().into_iter().find_map(|hazard| match hazard {
        Hazard::PastReadElsewhere { past, reader } | Hazard::WrittenTwice { past, second: reader, .. } => {
            of_fixed_size.contains(past.as_str()).then_some((past, reader))
        }
        _ => None,
    });
    match reader {
        Some((input, reader)) => Err(SessionError::PastRead { input, reader: reader.to_string() }),
        None => Ok(()),
    }
}

/// Checks that every cache keeps its size and has rows of whole bytes, and that an input gives the slot of each sample.
fn check_static(interface: &Interface) -> Result<(), SessionError> {
    if let Some((cache, growth)) = interface.caches.iter().find_map(|cache| Some((cache, cache.growth?))) {
        return Err(SessionError::NotStatic { input: cache.past.clone(), growth });
    }
    let has_whole_rows = |cache: &CachePort| cache.element.bits().is_some_and(|bits| bits >= 8);
    if let Some(cache) = interface.caches.iter().find(|cache| !has_whole_rows(cache)) {
        return Err(SessionError::CacheElement { input: cache.past.clone(), element: cache.element });
    }
    if !interface.takes(Purpose::WriteIndices) {
        return Err(SessionError::NoWriteIndices);
    }
    Ok(())
}

/// Checks that the types of inputs hold every value that they will be fed with; [`KvSession::check_known`] sees to tokens.
fn check_types(interface: &Interface, capacity: usize) -> Result<(), SessionError> {
    let capacity = i64::try_from(capacity).unwrap_or(i64::MAX);
    interface.feeds.iter().try_for_each(|feed| {
        let most = match feed.purpose {
            Purpose::Tokens => 0,
            Purpose::Mask => 1,
            Purpose::Positions
            | Purpose::WriteIndices
            | Purpose::NonpadKvSeqlen
            | Purpose::SeqlensK
            | Purpose::TotalLength => capacity,
        };
        check_value(feed.element, most)
    })
}

/// That the model has all of the tokens.
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
