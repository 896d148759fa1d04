//! Generation with caches that are written in place, and with growing caches.

use std::fmt;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use kvscatter_onnx::Model;
use kvscatter_onnx::decoder::Growth;

use crate::decoder::Decoder;
use crate::encoder_run::EncoderOutputs;
use crate::engine::{Engine, GroupQueryNodes};
use crate::error::SessionError;
use crate::generate_options::GenerateOptions;
use crate::interface::Interface;
use crate::kv_session::KvSession;
use crate::lookup::Draft;
use crate::memory_report::MemoryReport;
use crate::opening::interface;
use crate::saved::check_target;
use crate::saves::saved_tokens;
use crate::session_options::SessionOptions;
use crate::texts::{End, Event, NewTokens, Text};

/// The generated tokens and their cost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Generated {
    /// The tokens after each prompt, in the order of the prompts.
    pub samples: Vec<Vec<i64>>,
    /// Why each of these samples ended.
    pub ends: Vec<End>,
    /// The number of tokens of each prompt, and of the saved prompt before it, that were in the caches and were not
    /// computed again.
    pub reused: Vec<usize>,
    /// The number of tokens of all prompts together that were computed.
    pub prompt_tokens: usize,
    /// The number of tokens that [`Generator::save_prompt`] saved, or `None` if nothing was saved.
    pub saved: Option<usize>,
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
    /// The saved prompt that all prompts continue.
    prefix: Vec<i64>,
    /// The file that the prompt is saved to.
    save: Option<PathBuf>,
    /// The maximum number of drafted tokens of a sample in a step.
    draft: usize,
    /// Whether a sample that does not fit ends when the cache is full.
    may_fill: bool,
    /// What an encoder has computed for the text of each prompt.
    encoded: Vec<EncoderOutputs>,
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

    /// Checks that a model can generate as it is, without loading it. Its caches may grow.
    ///
    /// # Errors
    /// Returns the errors of [`open`](Self::open) about the model.
    pub fn check_model(model: &Model) -> Result<(), SessionError> {
        interface(model).map(drop)
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
        generation: &GenerateOptions,
        options: SessionOptions,
    ) -> Result<Self, SessionError> {
        let slots = generation.slots(longest(prompts));
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
        generation: &GenerateOptions,
        options: SessionOptions,
    ) -> Result<Self, SessionError> {
        let prefix = saved_tokens(saved)?;
        let slots = generation.slots(longest(prompts).saturating_add(prefix.len()));
        let mut generator = Self::of_slots(engine, model.as_ref(), prompts.len(), slots, options)?;
        generator.decoder.load(saved)?;
        Ok(Self { prefix, ..generator })
    }

    /// Lets the next call of [`generate`](Self::generate) save its prompt to a file as soon as its tokens are in the
    /// caches, together with the saved prompt that it continues. This call takes one prompt. It saves nothing if it
    /// ends earlier, and [`Generated::saved`] shows this.
    pub fn save_prompt(&mut self, path: impl Into<PathBuf>) {
        self.save = Some(path.into());
    }

    /// Checks that [`save_prompt`](Self::save_prompt) can save the prompt to a file.
    ///
    /// # Errors
    /// - Returns [`SessionError::SavePrompts`] for several prompts.
    /// - Returns [`SessionError::Saved`] if the file exists and is not a saved prompt.
    pub fn check_save(path: &Path, prompts: &[Vec<i64>]) -> Result<(), SessionError> {
        match prompts.len() {
            0 | 1 => Ok(check_target(path)?),
            prompts => Err(SessionError::SavePrompts { prompts }),
        }
    }

    /// Lets [`generate`](Self::generate) draft up to `most` tokens of each sample in a step, and verify them together.
    /// By default it drafts none.
    ///
    /// If the last tokens of a sample occurred earlier in its text, the draft is a copy of what followed them there
    /// (prompt lookup). For each step, the generation chooses which samples draft and how many tokens, so that the
    /// step is expected to give the most tokens for its cost. The choice depends on the tokens so far, not on time, so
    /// the same call always takes the same steps. A text without repetitions is generated without drafts.
    ///
    /// The result has the same tokens as without drafts, also with [sampling](GenerateOptions::sampling), if the model
    /// computes the same logits for several tokens of a sample in one run as for single tokens. `most` has no effect if
    /// the caches grow, if the model takes one token in a run, if it returns logits for the last token only, or with
    /// [`refuse_nan`](SessionOptions::refuse_nan), which would refuse the NaN of a wrong draft.
    ///
    /// If the model returns its states after the last token only, the tokens before a wrong drafted one run again, as
    /// [`accept`](crate::KvSession::accept) describes, and the choice takes the cost of this into account.
    pub fn draft(&mut self, most: usize) {
        self.draft = most;
    }

    /// Lets [`generate`](Self::generate) take prompts that leave no room for
    /// [`max_new_tokens`](GenerateOptions::max_new_tokens) new tokens. Their samples end with [`End::Full`] when the
    /// cache is full. By default, such a prompt is an error.
    pub fn fill_cache(&mut self) {
        self.may_fill = true;
    }

    /// Lets the next calls of [`generate`](Self::generate) attend to these outputs of an encoder, one text for each
    /// prompt, in the order of the prompts. Every prompt is then computed from its first token.
    pub fn set_encoder_outputs(&mut self, texts: Vec<EncoderOutputs>) {
        self.encoded = texts;
    }

    /// Returns the inputs and outputs of the model.
    #[must_use]
    pub fn interface(&self) -> &Interface {
        self.decoder.interface()
    }

    /// Returns the number of tokens of the saved prompt that all prompts continue.
    #[must_use]
    pub fn prefix(&self) -> usize {
        self.prefix.len()
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
        Ok(Self { decoder, prefix: Vec::new(), save: None, draft: 0, may_fill: false, encoded: Vec::new() })
    }

    /// Returns the memory that the caches take, or `None` for growing caches.
    #[must_use]
    pub fn memory(&self) -> Option<MemoryReport> {
        self.decoder.session().map(KvSession::memory)
    }

    /// Returns how the caches grow, or `None` for caches that are written in place.
    #[must_use]
    pub fn growth(&self) -> Option<Growth> {
        if self.decoder.session().is_some() { None } else { self.decoder.interface().growth() }
    }

    /// Returns which kernels compute the nodes of `GroupQueryAttention`, if the model has any.
    #[must_use]
    pub fn group_query_nodes(&self) -> Option<GroupQueryNodes> {
        self.decoder.group_query_nodes()
    }

    /// Returns the maximum number of tokens of a sample that can be cached, or `None` for growing caches.
    #[must_use]
    pub fn capacity(&self) -> Option<usize> {
        self.decoder.session().map(KvSession::capacity)
    }

    /// Returns the number of tokens in the vocabulary, if the model declares it.
    #[must_use]
    pub fn vocabulary(&self) -> Option<usize> {
        self.decoder.interface().vocabulary
    }

    /// Generates the tokens after prompts of token ids, all in one batch.
    ///
    /// `watch` is called before each part of the prompts, after the prompts and after every later step. It can end
    /// samples with [`NewTokens::stop`]. If it returns [`ControlFlow::Break`], the generation ends and returns the
    /// tokens so far.
    ///
    /// The caches keep the samples of the last call. If a prompt begins with the tokens of such a sample, only the
    /// tokens after them are computed, and [`Generated::reused`] counts the others. So each turn of a chat passes its
    /// whole text and computes only what is new. The last token of a prompt is always computed. All tokens of a prompt
    /// are computed again if the sample cannot be [truncated](crate::KvSession::truncate) to the common ones, which
    /// happens in models with rings or states. Growing caches keep nothing. The tokens are the same as those of a new
    /// generator, if the model computes the same rows for several tokens of a sample in one run as for single tokens.
    ///
    /// After an error, the generator can generate again, except after [`SessionError::CacheLost`].
    ///
    /// # Errors
    /// Returns one of these before the first run:
    ///
    /// - [`SessionError::NoPrompts`] if there is no prompt;
    /// - [`SessionError::NoChunk`] for a chunk of 0;
    /// - [`SessionError::OptionRange`] for an option outside its [range](crate::GenerateSetting::range);
    /// - [`SessionError::PromptEmpty`] for a prompt without tokens;
    /// - [`SessionError::PromptTokenUnknown`] for a token that is not in the vocabulary;
    /// - [`SessionError::EosUnknown`] for a token of [`GenerateOptions::eos`] that is not in the vocabulary;
    /// - [`SessionError::PromptTooLong`] if a prompt and its new tokens exceed the capacity, or a prompt alone after
    ///   [`fill_cache`](Self::fill_cache);
    /// - [`SessionError::BatchFull`] if there are more prompts than the batch has room for;
    /// - [`SessionError::EncoderTexts`] if [`set_encoder_outputs`](Self::set_encoder_outputs) got another number of
    ///   texts;
    /// - [`SessionError::Ragged`] for prompts of different lengths with growing caches;
    /// - [`SessionError::SavePrompts`] if several prompts are to be saved, and [`SessionError::SavedUseless`] if the
    ///   caches grow.
    ///
    /// Returns one of these after it has run the model:
    ///
    /// - [`SessionError::EosUnknown`] for such a token, if the model does not declare its vocabulary;
    /// - [`SessionError::Run`] with the engine's message, or another error of
    ///   [`KvSession::step`](crate::KvSession::step) or [`KvSession::save`](crate::KvSession::save);
    /// - [`SessionError::MemoryLimit`] if growing caches have no room for the prompts;
    /// - [`SessionError::NotANumber`] for logits that are missing, NaN or -inf.
    pub fn generate(
        &mut self,
        prompts: &[Vec<i64>],
        options: &GenerateOptions,
        watch: &mut dyn FnMut(Event<'_>) -> ControlFlow<()>,
    ) -> Result<Generated, SessionError> {
        self.check(prompts, options)?;
        let prompts: Vec<_> =
            prompts.iter().map(|prompt| [self.prefix.as_slice(), prompt].concat()).collect();
        let mut batch = Batch::new(&prompts, options, self.decoder.most_tokens());
        let save = self.save.take();
        if !batch.is_running() {
            return Ok(batch.finish());
        }
        let done = self.run(&mut batch, save.as_deref(), watch);
        if let Err(SessionError::NotANumber { prompt }) = done {
            // NaN of one token may have reached the rows of those before it.
            self.decoder.forget(prompt)?;
        }
        done.map(|()| batch.finish())
    }

    fn run(
        &mut self,
        batch: &mut Batch<'_>,
        save: Option<&Path>,
        watch: &mut dyn FnMut(Event<'_>) -> ControlFlow<()>,
    ) -> Result<(), SessionError> {
        let started = Instant::now();
        batch.generated.reused = self.decoder.start(batch.prompts, &self.encoded)?;
        let is_complete = self.prefill(batch, save, watch)?;
        batch.generated.prefill = started.elapsed();
        if is_complete {
            if self.draft > 0 {
                batch.look_up();
            }
            let started = Instant::now();
            while watch(Event::Tokens(NewTokens { texts: &mut batch.texts })).is_continue()
                && batch.is_running()
            {
                self.step(batch)?;
            }
            batch.generated.decode = started.elapsed();
        }
        batch.generated.copied = self.decoder.copied();
        Ok(())
    }

    /// Computes the prompts and chooses the first tokens. Returns `false` if `watch` ends the generation.
    fn prefill(
        &mut self,
        batch: &mut Batch<'_>,
        save: Option<&Path>,
        watch: &mut dyn FnMut(Event<'_>) -> ControlFlow<()>,
    ) -> Result<bool, SessionError> {
        let chunk = self.decoder.chunk(batch.options.chunk);
        let mut left = batch.uncached();
        let mut chosen = vec![Vec::new(); left.len()];
        let total = batch.prompts.iter().map(Vec::len).sum::<usize>();
        while left.iter().any(|left| !left.is_empty()) {
            let done = total - left.iter().map(|left| left.len()).sum::<usize>();
            if watch(Event::Prefill { done, total }).is_break() {
                return Ok(false);
            }
            let parts: Vec<_> = left.iter().map(|left| left.split_at(chunk.min(left.len()))).collect();
            let feeds: Vec<_> =
                parts.iter().map(|(feed, _)| Some(*feed).filter(|feed| !feed.is_empty())).collect();
            let logits = self.decoder.step(&feeds)?;
            batch.generated.prompt_tokens += feeds.iter().flatten().map(|feed| feed.len()).sum::<usize>();
            left = parts.into_iter().map(|(_, rest)| rest).collect();
            for (prompt, ((chosen, rest), feed)) in chosen.iter_mut().zip(&left).zip(feeds).enumerate() {
                if feed.is_some() && rest.is_empty() {
                    chosen.push(batch.choose(prompt, logits.last(prompt).as_deref())?);
                }
            }
        }
        // If the model does not declare its vocabulary, the size is known after the first step.
        batch.options.check_eos(self.vocabulary())?;
        if let Some(path) = save {
            self.decoder.save(path)?;
            batch.generated.saved = batch.prompts.first().map(Vec::len);
        }
        batch.extend(&vec![None; chosen.len()], &chosen);
        Ok(true)
    }

    /// Gives each sample that has not ended its next token, or several with drafts.
    fn step(&mut self, batch: &mut Batch<'_>) -> Result<(), SessionError> {
        let drafts = batch.drafts(self.draft.min(self.decoder.most_drafted()));
        let feeds = batch.feeds(&drafts, &self.decoder.paying(&drafts));
        let drafted = feeds.iter().flatten().map(|feed| feed.len() - 1).sum::<usize>();
        let verified = match drafted {
            0 => None,
            _ => self.decoder.verify(&feeds, &mut |prompt, logits| batch.choose(prompt, logits))?,
        };
        let chosen = if let Some(chosen) = verified {
            batch.generated.drafted += drafted;
            let fed = chosen.iter().filter(|chosen| !chosen.is_empty());
            batch.generated.accepted += fed.map(|chosen| chosen.len() - 1).sum::<usize>();
            chosen
        } else {
            let last: Vec<_> = feeds.iter().map(|feed| feed.as_ref()?.get(..1)).collect();
            let logits = self.decoder.step(&last)?;
            let choose = |(prompt, feed): (usize, &Option<&[i64]>)| match feed {
                Some(_) => Ok(vec![batch.choose(prompt, logits.last(prompt).as_deref())?]),
                None => Ok(Vec::new()),
            };
            last.iter().enumerate().map(choose).collect::<Result<_, SessionError>>()?
        };
        batch.generated.steps += 1;
        batch.generated.written_per_step = self.decoder.written();
        batch.generated.decoded += batch.extend(&drafts, &chosen);
        Ok(())
    }

    fn check(&self, prompts: &[Vec<i64>], options: &GenerateOptions) -> Result<(), SessionError> {
        let without_limit =
            self.may_fill.then(|| GenerateOptions { max_new_tokens: None, ..options.clone() });
        let checked = without_limit.as_ref().unwrap_or(options);
        checked.check(prompts, self.prefix.len(), self.vocabulary(), self.capacity())?;
        let batch = self.decoder.batch();
        if prompts.len() > batch {
            return Err(SessionError::BatchFull { batch });
        }
        if self.save.is_some() && self.growth().is_some() {
            return Err(SessionError::SavedUseless);
        }
        if let Some(path) = &self.save {
            Self::check_save(path, prompts)?;
        }
        let (texts, prompts_given) = (self.encoded.len(), prompts.len());
        // With static caches, a step reports it.
        let needs_texts = self.growth().is_some() && !self.interface().encoder.is_empty();
        if texts != prompts_given && (texts > 0 || needs_texts) {
            return Err(SessionError::EncoderTexts { texts, prompts: prompts_given });
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

/// Returns the number of tokens of the longest prompt.
fn longest(prompts: &[Vec<i64>]) -> usize {
    prompts.iter().map(Vec::len).max().unwrap_or_default()
}

impl fmt::Debug for Generator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Generator")
            .field("batch", &self.decoder.batch())
            .field("capacity", &self.capacity())
            .finish_non_exhaustive()
    }
}

/// The texts of a generation and their cost.
struct Batch<'g> {
    options: &'g GenerateOptions,
    /// The prompts, with the saved prompt before each.
    prompts: &'g [Vec<i64>],
    texts: Vec<Text>,
    generated: Generated,
}

impl<'g> Batch<'g> {
    /// Creates the texts after prompts. `most` is the number of tokens of a sample that can be cached.
    fn new(prompts: &'g [Vec<i64>], options: &'g GenerateOptions, most: usize) -> Self {
        let text = |(index, prompt): (usize, &Vec<i64>)| {
            let equal = prompts.iter().take(index).filter(|other| *other == prompt).count();
            // The last token takes no slot.
            let room = most.saturating_sub(prompt.len()).saturating_add(1);
            Text::new(options, prompt, room, equal)
        };
        let texts = prompts.iter().enumerate().map(text).collect();
        let generated = Generated {
            samples: Vec::new(),
            ends: Vec::new(),
            reused: vec![0; prompts.len()],
            prompt_tokens: 0,
            saved: None,
            prefill: Duration::ZERO,
            steps: 0,
            decoded: 0,
            drafted: 0,
            accepted: 0,
            decode: Duration::ZERO,
            written_per_step: 0,
            copied: 0,
        };
        Self { options, prompts, texts, generated }
    }

    fn is_running(&self) -> bool {
        self.texts.iter().any(|text| text.end.is_none())
    }

    /// Returns the tokens of the prompts that are not cached.
    fn uncached(&self) -> Vec<&'g [i64]> {
        let prompts = self.prompts.iter().zip(&self.generated.reused);
        prompts.map(|(prompt, reused)| prompt.get(*reused..).unwrap_or_default()).collect()
    }

    /// Chooses the next token of the sample of a prompt.
    fn choose(&mut self, prompt: usize, logits: Option<&[f32]>) -> Result<i64, SessionError> {
        let token = self.texts.get_mut(prompt).zip(logits).and_then(|(text, logits)| text.choose(logits));
        token.ok_or(SessionError::NotANumber { prompt })
    }

    /// Prepares drafts.
    fn look_up(&mut self) {
        self.texts.iter_mut().zip(self.prompts).for_each(|(text, prompt)| text.look_up(prompt));
    }

    /// Returns a draft of up to `most` tokens for each sample that has not ended.
    fn drafts(&self, most: usize) -> Vec<Option<Draft>> {
        self.texts.iter().map(|text| text.draft(most, &self.options.eos)).collect()
    }

    /// Returns the last token of each sample that has a draft, and as many tokens of the draft.
    fn feeds(&self, drafts: &[Option<Draft>], lengths: &[usize]) -> Vec<Option<Vec<i64>>> {
        let texts = self.texts.iter().zip(drafts).zip(lengths);
        let feed = |((text, draft), length): ((&Text, &Option<Draft>), &usize)| {
            let drafted = draft.as_ref()?.tokens.iter().take(*length);
            Some(text.tokens.last().into_iter().chain(drafted).copied().collect())
        };
        texts.map(feed).collect()
    }

    /// Adds the tokens of a step, for which `drafts` was drafted. Returns their number.
    fn extend(&mut self, drafts: &[Option<Draft>], chosen: &[Vec<i64>]) -> usize {
        let none = Draft::default();
        let drafts = drafts.iter().map(|draft| draft.as_ref().unwrap_or(&none));
        for ((text, chosen), draft) in self.texts.iter_mut().zip(chosen).zip(drafts) {
            text.extend(draft, chosen, &self.options.eos);
        }
        chosen.iter().map(Vec::len).sum()
    }

    fn finish(mut self) -> Generated {
        for text in self.texts {
            self.generated.samples.push(text.tokens);
            self.generated.ends.push(text.end.unwrap_or(End::Stopped));
        }
        self.generated
    }
}
