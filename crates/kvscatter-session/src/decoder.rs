//! The two kinds of decoders that can generate: those whose caches are written in place, with one sample for
//! each prompt, and those with growing caches. For each call, this module chooses the samples of the last call that the
//! prompts continue.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::Path;

use crate::encoder_run::EncoderOutputs;
use crate::engine::{Engine, GroupQueryNodes};
use crate::error::SessionError;
use crate::growing::Growing;
use crate::interface::Interface;
use crate::kv_session::KvSession;
use crate::logits::Logits;
use crate::lookup::{Draft, add_again, paying};
use crate::opening::read;
use crate::runner::LogitsTensor;
use crate::sample::Sample;
use crate::session_options::SessionOptions;
use crate::tensor::by_name;

pub(crate) enum Decoder {
    Static(Box<Static>),
    Growing(Box<Growing>),
}

/// A decoder whose caches are written in place. Its session keeps the samples of the last generation, or that of a
/// saved prompt.
pub(crate) struct Static {
    session: KvSession,
    /// The sample of each prompt.
    samples: Vec<Sample>,
    /// Whether these samples attend to texts that [`start_texts`](Self::start_texts) got.
    have_texts: bool,
    copied: u64,
}

/// Chooses the next token of a prompt from its logits.
pub(crate) type Choose<'c> = dyn FnMut(usize, Option<&[f32]>) -> Result<i64, SessionError> + 'c;

/// The logits of a step.
pub(crate) enum StepLogits {
    Static(Logits, Vec<Sample>),
    Growing(LogitsTensor),
}

impl StepLogits {
    /// Returns the logits after the last token of a prompt.
    pub(crate) fn last(&self, prompt: usize) -> Option<Cow<'_, [f32]>> {
        match self {
            Self::Static(logits, samples) => logits.last(*samples.get(prompt)?).map(Cow::Borrowed),
            Self::Growing(logits) => logits.last(prompt),
        }
    }
}

impl Decoder {
    /// Loads a model with room for `prompts` prompts. If neither the model nor the options give a capacity,
    /// the caches have `slots` slots.
    pub(crate) fn open(
        engine: &dyn Engine,
        model: &Path,
        prompts: usize,
        slots: Option<usize>,
        options: SessionOptions,
    ) -> Result<Self, SessionError> {
        let (file, interface) = read(model)?;
        if interface.is_copied() {
            if options.capacity.is_some() {
                return Err(SessionError::CapacityUseless);
            }
            let growing = Growing::of_interface(engine, &file, interface, prompts, options)?;
            return Ok(Self::Growing(Box::new(growing)));
        }
        // The model may fix a larger batch. The other indices then stay free.
        let batch = match interface.batch {
            Some(batch) if batch >= prompts => None,
            _ => Some(prompts),
        };
        let slots = if interface.capacity()?.is_none() { slots } else { None };
        let (batch, capacity) = (options.batch.or(batch), options.capacity.or(slots));
        let options = SessionOptions { batch, capacity, ..options };
        let session = KvSession::of_interface(engine, &file, interface, options)?;
        Ok(Self::Static(Box::new(Static { session, samples: Vec::new(), have_texts: false, copied: 0 })))
    }

    /// Returns the session, or `None` for growing caches.
    pub(crate) fn session(&self) -> Option<&KvSession> {
        match self {
            Self::Static(of) => Some(&of.session),
            Self::Growing(_) => None,
        }
    }

    pub(crate) fn interface(&self) -> &Interface {
        match self {
            Self::Static(of) => of.session.interface(),
            Self::Growing(growing) => growing.interface(),
        }
    }

    pub(crate) fn group_query_nodes(&self) -> Option<GroupQueryNodes> {
        match self {
            Self::Static(of) => of.session.group_query_nodes(),
            Self::Growing(growing) => growing.group_query_nodes(),
        }
    }

    /// Returns the number of prompts that fit.
    pub(crate) fn batch(&self) -> usize {
        match self {
            Self::Static(of) => of.session.batch(),
            Self::Growing(growing) => growing.batch(),
        }
    }

    /// Loads a saved prompt, which all prompts continue.
    pub(crate) fn load(&mut self, path: &Path) -> Result<(), SessionError> {
        let Self::Static(of) = self else { return Err(SessionError::SavedUseless) };
        of.session.load(path).map(drop)
    }

    /// Saves the sample of the first prompt.
    pub(crate) fn save(&mut self, path: &Path) -> Result<(), SessionError> {
        match self {
            Self::Static(of) => of.samples.first().map_or(Ok(()), |sample| of.session.save(*sample, path)),
            Self::Growing(_) => Err(SessionError::SavedUseless),
        }
    }

    /// Returns the maximum number of tokens of a sample that can be cached.
    pub(crate) fn most_tokens(&self) -> usize {
        match self {
            Self::Static(of) => of.session.capacity(),
            Self::Growing(growing) => growing.most_tokens(),
        }
    }

    /// Returns the number of tokens of a prompt that one step takes, of at most `chunk`.
    pub(crate) fn chunk(&self, chunk: usize) -> usize {
        if self.interface().is_decode_only { 1 } else { chunk }
    }

    /// Prepares a sample for each prompt, with the outputs of an encoder if there are any. Returns the number of its
    /// tokens that are cached.
    pub(crate) fn start(
        &mut self,
        prompts: &[Vec<i64>],
        encoded: &[EncoderOutputs],
    ) -> Result<Vec<usize>, SessionError> {
        match self {
            Self::Static(of) if encoded.is_empty() => of.start(prompts),
            Self::Static(of) => of.start_texts(encoded),
            Self::Growing(growing) => growing.start(encoded).map(|()| vec![0; prompts.len()]),
        }
    }

    /// Drops the cached tokens of a prompt.
    pub(crate) fn forget(&mut self, prompt: usize) -> Result<(), SessionError> {
        match self {
            Self::Static(of) => {
                of.samples.get(prompt).map_or(Ok(()), |sample| of.session.truncate(*sample, 0))
            }
            Self::Growing(_) => Ok(()),
        }
    }

    /// Feeds the prompts that are listed.
    pub(crate) fn step(&mut self, feeds: &[Option<&[i64]>]) -> Result<StepLogits, SessionError> {
        match self {
            Self::Static(of) => of.step(feeds),
            Self::Growing(growing) => growing.feed(feeds).map(StepLogits::Growing),
        }
    }

    /// Returns the largest number of drafted tokens that [`verify`](Self::verify) takes.
    pub(crate) fn most_drafted(&self) -> usize {
        self.session().map_or(0, KvSession::most_drafted)
    }

    /// Returns how many tokens of each draft a step should verify. Prompts without a draft get no token.
    pub(crate) fn paying(&self, drafts: &[Option<Draft>]) -> Vec<usize> {
        let Self::Static(of) = self else { return vec![0; drafts.len()] };
        paying(drafts, |lengths| {
            let samples =
                of.samples.iter().zip(drafts).zip(lengths).filter(|((_, draft), _)| draft.is_some());
            let counts = samples.map(|((sample, _), length)| (*sample, length.saturating_add(1)));
            let mut costs = of.session.costs(&counts.collect::<Vec<_>>());
            if of.session.runs_again() {
                add_again(&mut costs, drafts, lengths, |index, tokens| {
                    let sample = of.samples.get(index).map(|sample| (*sample, tokens));
                    of.session.costs(sample.as_slice())
                });
            }
            costs
        })
    }

    /// Runs the last token and the draft of each prompt that has not ended. Returns the accepted tokens of each draft,
    /// followed by the token that `choose` chooses after them. Undoes the tokens that were not accepted.
    ///
    /// Returns `None` and undoes all if the run shows that the model returns logits for the last token only.
    pub(crate) fn verify(
        &mut self,
        feeds: &[Option<Vec<i64>>],
        choose: &mut Choose<'_>,
    ) -> Result<Option<Vec<Vec<i64>>>, SessionError> {
        let Self::Static(of) = self else { return Ok(None) };
        let given: Vec<(Sample, &[i64])> = of.given(feeds.iter().map(Option::as_deref));
        let samples: Vec<_> = given.iter().map(|(sample, _)| *sample).collect();
        // After an error, the samples go back.
        let mut session = of.session.transaction(&samples)?;
        let logits = session.step(&given)?;
        if session.most_drafted() == 0 {
            of.copied += session.bytes_copied();
            return Ok(None);
        }
        let (mut all, mut accepted) = (Vec::new(), Vec::new());
        for (prompt, (sample, fed)) in of.samples.iter().zip(feeds).enumerate() {
            let (mut chosen, fed) = (Vec::new(), fed.as_deref().unwrap_or_default());
            for index in 0..fed.len() {
                let token = choose(prompt, logits.after(*sample, index))?;
                chosen.push(token);
                if fed.get(index + 1) != Some(&token) {
                    break;
                }
            }
            if !fed.is_empty() {
                accepted.push((*sample, chosen.len()));
            }
            all.push(chosen);
        }
        session.accept_all(&accepted)?;
        of.copied += session.bytes_copied();
        Ok(Some(all))
    }

    /// Returns the bytes that the last step wrote into the caches.
    pub(crate) fn written(&self) -> u64 {
        match self {
            Self::Static(of) => of.session.bytes_written(),
            Self::Growing(growing) => growing.written(),
        }
    }

    /// Returns the bytes of static caches that the engine has copied in all steps.
    pub(crate) fn copied(&self) -> u64 {
        match self {
            Self::Static(of) => of.copied,
            Self::Growing(_) => 0,
        }
    }
}

impl Static {
    /// Keeps the samples of the last generation that prompts continue. Returns the number of cached tokens of each
    /// prompt.
    fn start(&mut self, prompts: &[Vec<i64>]) -> Result<Vec<usize>, SessionError> {
        self.copied = 0;
        self.samples.clear();
        if std::mem::take(&mut self.have_texts) {
            self.remove_all()?;
        }
        let mut users: BTreeMap<Sample, Vec<(usize, usize)>> =
            self.session.samples().map(|sample| (sample, Vec::new())).collect();
        let kept: Vec<_> = users.keys().copied().collect();
        for (index, prompt) in prompts.iter().enumerate() {
            if let Some((sample, reused)) = self.source(&kept, index, prompt) {
                users.entry(sample).or_default().push((index, reused));
            }
        }
        // Copies and new samples can take the batch indices of the others.
        for (sample, _) in users.iter().filter(|(_, users)| users.is_empty()) {
            self.session.remove(*sample)?;
        }
        let mut started = vec![None; prompts.len()];
        for (sample, users) in users {
            let Some(longest) = users.iter().map(|(_, reused)| *reused).max() else { continue };
            self.session.truncate(sample, longest)?;
            let copies = self.session.fork(sample, users.len().saturating_sub(1))?;
            for ((index, mut reused), sample) in users.into_iter().zip(std::iter::once(sample).chain(copies))
            {
                // A copy has fewer rows of a ring.
                if self.session.truncate(sample, reused).is_err() {
                    reused = 0;
                    self.session.truncate(sample, reused)?;
                }
                started.get_mut(index).into_iter().for_each(|of| *of = Some((sample, reused)));
            }
        }
        let mut cached = Vec::new();
        for of in started {
            let (sample, reused) = of.map_or_else(|| self.session.add().map(|sample| (sample, 0)), Ok)?;
            self.samples.push(sample);
            cached.push(reused);
        }
        Ok(cached)
    }

    fn remove_all(&mut self) -> Result<(), SessionError> {
        let samples: Vec<_> = self.session.samples().collect();
        samples.into_iter().try_for_each(|sample| self.session.remove(sample))
    }

    /// Adds an empty sample for each text of an encoder.
    fn start_texts(&mut self, encoded: &[EncoderOutputs]) -> Result<Vec<usize>, SessionError> {
        self.copied = 0;
        self.samples.clear();
        self.have_texts = true;
        self.remove_all()?;
        for outputs in encoded {
            let sample = self.session.add()?;
            self.session.set_encoder_outputs(sample, &by_name(outputs))?;
            self.samples.push(sample);
        }
        Ok(vec![0; encoded.len()])
    }

    /// Returns the sample that has most of the first tokens of a prompt, and their number. The last token is computed
    /// in any case, because its logits are needed.
    fn source(&self, kept: &[Sample], index: usize, prompt: &[i64]) -> Option<(Sample, usize)> {
        let reused = |sample: Sample| {
            let cached = self.session.tokens(sample).unwrap_or_default();
            let equal = cached.iter().zip(prompt).take_while(|(cached, token)| cached == token).count();
            let reused = equal.min(prompt.len().saturating_sub(1));
            let is_possible = reused > 0 && self.session.check_truncation(sample, reused).is_ok();
            is_possible.then_some((sample, reused))
        };
        let sources = kept.iter().filter_map(|sample| reused(*sample));
        sources.max_by_key(|(sample, reused)| (*reused, sample.batch_index() == index))
    }

    fn step(&mut self, feeds: &[Option<&[i64]>]) -> Result<StepLogits, SessionError> {
        let logits = self.session.prefill(&self.given(feeds.iter().copied()), usize::MAX)?;
        self.copied += self.session.bytes_copied();
        Ok(StepLogits::Static(logits, self.samples.clone()))
    }

    /// Returns the samples that get tokens.
    fn given<'f>(&self, feeds: impl Iterator<Item = Option<&'f [i64]>>) -> Vec<(Sample, &'f [i64])> {
        self.samples.iter().zip(feeds).filter_map(|(sample, feed)| Some((*sample, feed?))).collect()
    }
}
