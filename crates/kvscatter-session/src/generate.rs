//! Greedy generation with caches that are written in place, and with growing caches.

use std::fmt;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use kvscatter_onnx::decoder::Growth;

use crate::decoder::Decoder;
use crate::lookup::{Draft, Lookup};
use crate::opening::check_tokens;
use crate::saved::check_target;
use crate::{Engine, MemoryReport, SessionError, SessionOptions, saved_tokens};

/// The options of greedy generation. Greedy generation always chooses the most likely token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GreedyOptions {
    /// The maximum number of tokens that are generated for each prompt.
    pub tokens: usize,
    /// The tokens that end a sample.
    pub eos: Vec<i64>,
    /// The maximum number of tokens of one prompt that are fed in one run of the model.
    pub chunk: usize,
}

impl GreedyOptions {
    /// Returns the number of slots that a prompt and its new tokens take. The last generated token is not fed,
    /// so it needs no slot.
    fn slots(&self, prompt: &[i64]) -> usize {
        prompt.len().saturating_add(self.tokens.saturating_sub(1))
    }
}

/// The progress of a generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The number of tokens generated so far for each sample that has not ended. With [drafts](Generator::draft), this
    /// is the smallest of their numbers. If all samples have ended, it is the largest number of all. The maximum is
    /// [`GreedyOptions::tokens`].
    pub tokens: usize,
    /// The number of samples that have not ended.
    pub samples: usize,
}

/// The generated tokens and their cost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Generated {
    /// The tokens after each prompt, in the order of the prompts.
    pub samples: Vec<Vec<i64>>,
    /// The number of tokens of all prompts together.
    pub prompt_tokens: usize,
    /// The time of the prefill, including the choice of the first tokens.
    pub prefill: Duration,
    /// The number of steps after the prefill.
    pub steps: usize,
    /// The number of tokens that these steps generated for all samples together.
    pub decoded: usize,
    /// The number of drafted tokens that these steps verified.
    pub drafted: usize,
    /// The number of drafted tokens that the model would have chosen.
    pub accepted: usize,
    /// The time of these steps, including the choice of tokens.
    pub decode: Duration,
    /// The number of bytes that the last step wrote into the caches. Every step writes a growing cache as a
    /// whole.
    pub written_per_step: u64,
    /// The number of bytes of static caches that the engine copied, in all steps, instead of writing in
    /// place.
    pub copied: u64,
}

/// A loaded decoder that generates the tokens after prompts.
pub struct Generator {
    decoder: Decoder,
    /// The number of tokens of the saved prompt that all prompts continue.
    prefix: usize,
    /// The file that the prompt is saved to.
    save: Option<PathBuf>,
    /// The maximum number of drafted tokens of a sample in a step.
    draft: usize,
}

impl Generator {
    /// Loads a model with room for `prompts` prompts. Its caches may be static, `GroupQueryAttention` may write
    /// them, or they may grow.
    ///
    /// # Errors
    /// - Returns [`SessionError::NoPrompts`] if `prompts` is 0.
    /// - Returns [`SessionError::SizeFixed`] if `prompts` exceeds the model's batch.
    /// - Returns [`SessionError::CapacityUseless`] if a capacity is given for growing caches.
    /// - Returns the errors of [`KvSession::open`](crate::KvSession::open).
    pub fn open(
        engine: &dyn Engine,
        model: impl AsRef<Path>,
        prompts: usize,
        options: SessionOptions,
    ) -> Result<Self, SessionError> {
        Self::of_slots(engine, model.as_ref(), prompts, None, options)
    }

    /// Loads a model with room for these prompts and for the tokens that [`generate`](Self::generate) adds to
    /// them. If neither the model nor the options give a capacity, the caches have as many slots as the longest
    /// prompt with its new tokens takes.
    ///
    /// # Errors
    /// Returns the errors of [`open`](Self::open).
    pub fn open_for(
        engine: &dyn Engine,
        model: impl AsRef<Path>,
        prompts: &[Vec<i64>],
        greedy: &GreedyOptions,
        options: SessionOptions,
    ) -> Result<Self, SessionError> {
        let slots = prompts.iter().map(|prompt| greedy.slots(prompt).max(1)).max();
        Self::of_slots(engine, model.as_ref(), prompts.len(), slots, options)
    }

    /// Loads a model like [`open_for`](Self::open_for), for prompts that continue a saved prompt.
    /// [`save_prompt`](Self::save_prompt) or [`KvSession::save`](crate::KvSession::save) saves such a prompt.
    ///
    /// # Errors
    /// - Returns [`SessionError::SavedUseless`] for caches that grow.
    /// - Returns the errors of [`open`](Self::open) and of [`KvSession::load`](crate::KvSession::load).
    pub fn open_after(
        engine: &dyn Engine,
        model: impl AsRef<Path>,
        saved: &Path,
        prompts: &[Vec<i64>],
        greedy: &GreedyOptions,
        options: SessionOptions,
    ) -> Result<Self, SessionError> {
        let prefix = saved_tokens(saved)?.len();
        let slots = prompts.iter().map(|prompt| greedy.slots(prompt).saturating_add(prefix).max(1)).max();
        let mut generator = Self::of_slots(engine, model.as_ref(), prompts.len(), slots, options)?;
        generator.decoder.load(saved)?;
        Ok(Self { prefix, ..generator })
    }

    /// Saves the prompt to a file as soon as its tokens are in the caches, together with the saved prompt that it
    /// continues. [`generate`](Self::generate) then takes one prompt.
    pub fn save_prompt(&mut self, path: impl Into<PathBuf>) {
        self.save = Some(path.into());
    }

    /// Lets [`generate`](Self::generate) draft up to `most` tokens of each sample in a step, and verify them together.
    /// By default it drafts none.
    ///
    /// If the last tokens of a sample occurred earlier in its text, the draft is a copy of what followed them there
    /// (prompt lookup). For each step, the generation chooses which samples draft and how many tokens, so that the
    /// step is expected to give the most tokens for its cost. The choice depends on the tokens so far, not on time, so
    /// the same call always takes the same steps. A text without repetitions is generated without drafts.
    ///
    /// The result has the same tokens as without drafts, if the model computes the same logits for several tokens of a
    /// sample in one run as for single tokens. `most` has no effect if the caches grow, if the model has states, if it
    /// takes one token in a run, if it returns logits for the last token only, or with
    /// [`refuse_nan`](SessionOptions::refuse_nan), which would refuse the NaN of a wrong draft.
    pub fn draft(&mut self, most: usize) {
        self.draft = most;
    }

    /// Returns the number of tokens of the saved prompt that all prompts continue.
    #[must_use]
    pub fn prefix(&self) -> usize {
        self.prefix
    }

    fn of_slots(
        engine: &dyn Engine,
        model: &Path,
        prompts: usize,
        slots: Option<usize>,
        options: SessionOptions,
    ) -> Result<Self, SessionError> {
        if prompts == 0 {
            return Err(SessionError::NoPrompts);
        }
        let decoder = Decoder::open(engine, model, prompts, slots, options)?;
        Ok(Self { decoder, prefix: 0, save: None, draft: 0 })
    }

    /// Returns the memory that the caches take, or `None` for growing caches.
    #[must_use]
    pub fn memory(&self) -> Option<MemoryReport> {
        self.decoder.memory()
    }

    /// Returns how the caches grow, or `None` for caches that are written in place.
    #[must_use]
    pub fn growth(&self) -> Option<Growth> {
        self.decoder.growth()
    }

    /// Returns the maximum number of tokens of a sample that can be cached, or `None` for growing caches.
    #[must_use]
    pub fn capacity(&self) -> Option<usize> {
        self.decoder.capacity()
    }

    /// Returns the number of tokens in the vocabulary, if the model declares it.
    #[must_use]
    pub fn vocabulary(&self) -> Option<usize> {
        self.decoder.vocabulary()
    }

    /// Generates the tokens after prompts of token ids, all in one batch.
    ///
    /// `progress` is called after the prompts and after every later step. If it returns [`ControlFlow::Break`], the
    /// generation ends and returns the tokens so far.
    ///
    /// # Errors
    /// Returns one of these before the first run:
    ///
    /// - [`SessionError::NoPrompts`] if there is no prompt;
    /// - [`SessionError::NoChunk`] for a chunk of 0;
    /// - [`SessionError::PromptEmpty`] for a prompt without tokens;
    /// - [`SessionError::PromptTokenUnknown`] for a token that is not in the vocabulary;
    /// - [`SessionError::EosUnknown`] for a token of [`GreedyOptions::eos`] that is not in the vocabulary;
    /// - [`SessionError::PromptTooLong`] if a prompt and its new tokens exceed the capacity;
    /// - [`SessionError::BatchFull`] if there are more prompts than the batch has room for;
    /// - [`SessionError::Ragged`] for prompts of different lengths with growing caches;
    /// - [`SessionError::SavePrompts`] if several prompts are to be saved, and [`SessionError::SavedUseless`] if the
    ///   caches grow.
    ///
    /// Returns one of these after it has run the model:
    ///
    /// - [`SessionError::EosUnknown`] for such a token, if the model does not declare its vocabulary;
    /// - [`SessionError::Run`] with the engine's message, or another error of
    ///   [`KvSession::step`](crate::KvSession::step) or [`KvSession::save`](crate::KvSession::save);
    /// - [`SessionError::MemoryLimit`] if growing caches have grown too large;
    /// - [`SessionError::NotANumber`] for logits that are missing or all NaN.
    pub fn generate(
        mut self,
        prompts: &[Vec<i64>],
        greedy: &GreedyOptions,
        progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Generated, SessionError> {
        self.check(prompts, greedy)?;
        let mut batch = Batch::new(prompts.len(), greedy);
        if greedy.tokens == 0 {
            return Ok(batch.generated);
        }
        self.decoder.start(prompts.len())?;
        let started = Instant::now();
        let feeds: Vec<Option<&[i64]>> = prompts.iter().map(|prompt| Some(prompt.as_slice())).collect();
        let chosen = self.decoder.step(&feeds, greedy.chunk)?;
        self.check_eos(greedy)?;
        if let Some(path) = &self.save {
            self.decoder.save(path)?;
        }
        batch.generated.prompt_tokens = prompts.iter().map(Vec::len).sum();
        batch.generated.prefill = started.elapsed();
        batch.take(chosen);
        if self.draft > 0 {
            batch.look_up(self.decoder.texts()?);
        }
        let started = Instant::now();
        while progress(batch.progress()).is_continue() {
            let is_running = batch.is_running();
            if !is_running.contains(&true) {
                break;
            }
            self.decoder.end_all_but(&is_running)?;
            let drafts = batch.drafts(self.draft.min(self.decoder.most_drafted()));
            let feeds = batch.feeds(&drafts, &self.decoder.paying(&drafts));
            let drafted = feeds.iter().flatten().map(|feed| feed.len() - 1).sum::<usize>();
            let verified = if drafted > 0 { self.decoder.verify(&feeds)? } else { None };
            let chosen = if let Some(chosen) = verified {
                batch.generated.drafted += drafted;
                let fed = chosen.iter().filter(|chosen| !chosen.is_empty());
                batch.generated.accepted += fed.map(|chosen| chosen.len() - 1).sum::<usize>();
                chosen
            } else {
                let last: Vec<_> = feeds.iter().map(|feed| feed.as_ref()?.get(..1)).collect();
                let chosen = self.decoder.step(&last, usize::MAX)?;
                chosen.into_iter().map(|token| token.into_iter().collect()).collect()
            };
            batch.generated.steps += 1;
            batch.generated.written_per_step = self.decoder.written();
            batch.learn(&drafts, &chosen);
            batch.generated.decoded += batch.take(chosen);
        }
        batch.generated.decode = started.elapsed();
        batch.generated.copied = self.decoder.copied();
        Ok(batch.generated)
    }

    /// Checks the tokens that end a sample. If the model does not declare its vocabulary, the size is known after the
    /// first step.
    fn check_eos(&self, greedy: &GreedyOptions) -> Result<(), SessionError> {
        let vocabulary = self.vocabulary();
        check_tokens(&greedy.eos, vocabulary, |index, token| SessionError::EosUnknown {
            index,
            token,
            vocabulary,
        })
    }

    fn check(&self, prompts: &[Vec<i64>], greedy: &GreedyOptions) -> Result<(), SessionError> {
        if prompts.is_empty() {
            return Err(SessionError::NoPrompts);
        }
        if greedy.chunk == 0 {
            return Err(SessionError::NoChunk);
        }
        self.check_eos(greedy)?;
        let vocabulary = self.vocabulary();
        for (prompt, tokens) in prompts.iter().enumerate() {
            if tokens.is_empty() {
                return Err(SessionError::PromptEmpty { prompt });
            }
            check_tokens(tokens, vocabulary, |index, token| SessionError::PromptTokenUnknown {
                prompt,
                index,
                token,
                vocabulary,
            })?;
            let slots = greedy.slots(tokens).saturating_add(self.prefix);
            if let Some(capacity) = self.capacity().filter(|capacity| slots > *capacity) {
                let (tokens, generated) = (self.prefix + tokens.len(), greedy.tokens);
                return Err(SessionError::PromptTooLong { prompt, tokens, generated, capacity });
            }
        }
        let batch = self.decoder.batch();
        if prompts.len() > batch {
            return Err(SessionError::BatchFull { batch });
        }
        if self.save.is_some() && self.growth().is_some() {
            return Err(SessionError::SavedUseless);
        }
        if let Some(path) = &self.save {
            if prompts.len() > 1 {
                return Err(SessionError::SavePrompts { prompts: prompts.len() });
            }
            check_target(path)?;
        }
        let lengths = || prompts.iter().map(Vec::len);
        if let (Some(growth), Some(first)) = (self.growth(), lengths().next())
            && let Some(other) = lengths().find(|other| *other != first)
        {
            return Err(SessionError::Ragged { first, other, growth });
        }
        Ok(())
    }
}

impl fmt::Debug for Generator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Generator")
            .field("batch", &self.decoder.batch())
            .field("capacity", &self.capacity())
            .finish_non_exhaustive()
    }
}

/// The tokens generated so far and the samples that have not ended.
struct Batch<'g> {
    greedy: &'g GreedyOptions,
    is_active: Vec<bool>,
    /// The texts of the samples, if the generation drafts.
    lookups: Vec<Lookup>,
    generated: Generated,
}

impl<'g> Batch<'g> {
    fn new(prompts: usize, greedy: &'g GreedyOptions) -> Self {
        let generated = Generated {
            samples: vec![Vec::new(); prompts],
            prompt_tokens: 0,
            prefill: Duration::ZERO,
            steps: 0,
            decoded: 0,
            drafted: 0,
            accepted: 0,
            decode: Duration::ZERO,
            written_per_step: 0,
            copied: 0,
        };
        Self { greedy, is_active: vec![true; prompts], lookups: Vec::new(), generated }
    }

    fn progress(&self) -> Progress {
        let samples = || self.generated.samples.iter().zip(&self.is_active);
        let of_active = samples().filter(|(_, is_active)| **is_active).map(|(sample, _)| sample.len());
        let tokens = of_active.clone().min().or_else(|| samples().map(|(sample, _)| sample.len()).max());
        Progress { tokens: tokens.unwrap_or_default(), samples: of_active.count() }
    }

    /// Returns which samples get more tokens.
    fn is_running(&self) -> Vec<bool> {
        let samples = self.generated.samples.iter().zip(&self.is_active);
        samples.map(|(sample, is_active)| *is_active && sample.len() < self.greedy.tokens).collect()
    }

    /// Prepares drafts of samples with these texts before the generated tokens.
    fn look_up(&mut self, texts: Vec<Vec<i64>>) {
        let samples = texts.into_iter().zip(&self.generated.samples);
        self.lookups = samples.map(|(text, sample)| Lookup::new([text, sample.clone()].concat())).collect();
    }

    /// Returns a draft of up to `most` tokens for each sample that gets more tokens.
    fn drafts(&self, most: usize) -> Vec<Option<Draft>> {
        let draft = |(index, is_running): (usize, bool)| {
            // The model chooses one more token than those that it accepts.
            let done = self.generated.samples.get(index)?.len().saturating_add(1);
            let most = most.min(self.greedy.tokens.saturating_sub(done));
            let draft = |lookup: &Lookup| lookup.draft(most).before(&self.greedy.eos);
            is_running.then(|| self.lookups.get(index).map(draft).unwrap_or_default())
        };
        self.is_running().into_iter().enumerate().map(draft).collect()
    }

    /// Returns the last token of each sample that has a draft, and as many tokens of the draft.
    fn feeds(&self, drafts: &[Option<Draft>], lengths: &[usize]) -> Vec<Option<Vec<i64>>> {
        let samples = self.generated.samples.iter().zip(drafts).zip(lengths);
        let feed = |((sample, draft), length): ((&Vec<i64>, &Option<Draft>), &usize)| {
            let drafted = draft.as_ref()?.tokens.iter().take(*length);
            Some(sample.last().into_iter().chain(drafted).copied().collect())
        };
        samples.map(feed).collect()
    }

    /// Records whether the drafts were right.
    fn learn(&mut self, drafts: &[Option<Draft>], chosen: &[Vec<i64>]) {
        for ((lookup, draft), chosen) in self.lookups.iter_mut().zip(drafts).zip(chosen) {
            draft.iter().for_each(|draft| lookup.extend(draft, chosen));
        }
    }

    /// Adds the tokens that the model chose, up to one that ends the sample. Returns their number.
    fn take(&mut self, chosen: impl IntoIterator<Item = impl IntoIterator<Item = i64>>) -> usize {
        let mut taken = 0;
        let samples = self.generated.samples.iter_mut().zip(&mut self.is_active);
        for ((sample, is_active), chosen) in samples.zip(chosen) {
            for token in chosen {
                if *is_active {
                    sample.push(token);
                    *is_active = !self.greedy.eos.contains(&token);
                    taken += 1;
                }
            }
        }
        taken
    }
}
