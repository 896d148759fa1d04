//! Greedy generation, over static and over growing caches.

use std::path::Path;
use std::time::{Duration, Instant};

use kvscatter_onnx::Model;

use crate::growing::Growing;
use crate::kv_session::{check_tokens, interface};
use crate::{Engine, Error, KvSession, MemoryReport, Sample, SessionOptions, most_likely};

/// How tokens are chosen, and when that ends: always the most likely one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Greedy {
    /// The most tokens that are generated for each prompt.
    pub tokens: usize,
    /// Tokens after which a sample ends.
    pub eos: Vec<i64>,
    /// The most tokens of one sample in a run of the prompt's.
    pub chunk: usize,
}

/// How far a generation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Tokens of each sample generated so far, of [`Greedy::tokens`].
    pub tokens: usize,
    /// Samples that have not ended.
    pub samples: usize,
}

/// What was generated, and at what cost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Generated {
    /// The tokens after each prompt, in the order of the prompts.
    pub samples: Vec<Vec<i64>>,
    /// Tokens of all prompts.
    pub prompt_tokens: usize,
    /// The time of the prompts.
    pub prefill: Duration,
    /// Steps after the prompts.
    pub steps: usize,
    /// Tokens that these steps gave, of all samples.
    pub decoded: usize,
    /// Their time, choosing tokens included.
    pub decode: Duration,
    /// Bytes that the last step wrote into the caches. Those of a growing cache: all of it.
    pub written_per_step: u64,
    /// Bytes of static caches that the engine copied, in all steps, instead of writing them in place.
    pub copied: u64,
}

/// A loaded decoder that generates.
pub struct Generator {
    decoder: Decoder,
}

enum Decoder {
    Static(Box<KvSession>),
    Growing(Box<Growing>),
}

impl Generator {
    /// Loads a model with room for this many prompts: a static-cache decoder, or one whose caches grow.
    ///
    /// # Errors
    /// As [`KvSession::open`]; [`Error::NoPrompts`] for none; [`Error::SizeFixed`] for more than the model's batch;
    /// [`Error::CapacityUseless`] for a capacity of caches that grow.
    pub fn open(
        engine: &dyn Engine,
        model: &Path,
        prompts: usize,
        options: SessionOptions,
    ) -> Result<Self, Error> {
        if prompts == 0 {
            return Err(Error::NoPrompts);
        }
        let interface = interface(&Model::load(model)?)?;
        let decoder = if interface.caches.iter().any(|cache| cache.grows) {
            if options.capacity.is_some() {
                return Err(Error::CapacityUseless);
            }
            Decoder::Growing(Box::new(Growing::of_interface(engine, model, interface, prompts, options)?))
        } else {
            // A fixed batch may be larger: its other places stay free.
            let batch = match interface.batch {
                Some(batch) if batch >= prompts => None,
                _ => Some(prompts),
            };
            let options = SessionOptions { batch: options.batch.or(batch), ..options };
            Decoder::Static(Box::new(KvSession::of_interface(engine, model, interface, options)?))
        };
        Ok(Self { decoder })
    }

    /// What the caches take; `None` for caches that grow.
    #[must_use]
    pub fn memory(&self) -> Option<MemoryReport> {
        match &self.decoder {
            Decoder::Static(session) => Some(session.memory()),
            Decoder::Growing(_) => None,
        }
    }

    /// How many tokens a sample can have; `None` for caches that grow.
    #[must_use]
    pub fn capacity(&self) -> Option<usize> {
        match &self.decoder {
            Decoder::Static(session) => Some(session.capacity()),
            Decoder::Growing(_) => None,
        }
    }

    /// How many tokens the model knows, if it declares it.
    #[must_use]
    pub fn vocabulary(&self) -> Option<usize> {
        match &self.decoder {
            Decoder::Static(session) => session.vocabulary(),
            Decoder::Growing(growing) => growing.interface().vocabulary,
        }
    }

    /// Continues prompts of token ids, together in one batch.
    ///
    /// # Errors
    /// Before anything is run, [`Error::PromptEmpty`], [`Error::PromptTokenUnknown`], [`Error::PromptTooLong`] where the
    /// last token would not fit, [`Error::BatchFull`] for more prompts than places, [`Error::Ragged`] for prompts of
    /// different lengths where caches grow; then [`Error::Run`], [`Error::MemoryLimit`] for caches that have grown too
    /// large, and [`Error::NotANumber`] for scores that are none.
    pub fn generate(
        mut self,
        prompts: &[Vec<i64>],
        greedy: &Greedy,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Generated, Error> {
        self.check(prompts, greedy)?;
        let mut batch = Batch::new(prompts.len(), greedy);
        if greedy.tokens == 0 {
            return Ok(batch.generated);
        }
        let mut state = State::start(&mut self.decoder, prompts.len())?;
        let started = Instant::now();
        let feeds: Vec<Option<&[i64]>> = prompts.iter().map(|prompt| Some(prompt.as_slice())).collect();
        let chosen = state.step(&feeds, greedy.chunk)?;
        batch.generated.prompt_tokens = prompts.iter().map(Vec::len).sum();
        batch.generated.prefill = started.elapsed();
        batch.take(&chosen);
        let started = Instant::now();
        for tokens in 1..=greedy.tokens {
            let samples = batch.active();
            progress(Progress { tokens, samples });
            if samples == 0 || tokens == greedy.tokens {
                break;
            }
            state.end_all_but(&batch.is_active)?;
            let chosen = state.step(&batch.feeds(), usize::MAX)?;
            batch.generated.steps += 1;
            batch.generated.decoded += samples;
            batch.generated.written_per_step = state.written();
            batch.take(&chosen);
        }
        batch.generated.decode = started.elapsed();
        batch.generated.copied = state.copied;
        Ok(batch.generated)
    }

    fn check(&self, prompts: &[Vec<i64>], greedy: &Greedy) -> Result<(), Error> {
        if prompts.is_empty() {
            return Err(Error::NoPrompts);
        }
        if greedy.chunk == 0 {
            return Err(Error::NoChunk);
        }
        let vocabulary = self.vocabulary();
        for (prompt, tokens) in prompts.iter().enumerate() {
            if tokens.is_empty() {
                return Err(Error::PromptEmpty { prompt });
            }
            check_tokens(tokens, vocabulary, |index, token| Error::PromptTokenUnknown {
                prompt,
                index,
                token,
                vocabulary,
            })?;
            // The last token that is generated is never fed.
            let slots = tokens.len().saturating_add(greedy.tokens.saturating_sub(1));
            if let Some(capacity) = self.capacity().filter(|capacity| slots > *capacity) {
                let (tokens, generated) = (tokens.len(), greedy.tokens);
                return Err(Error::PromptTooLong { prompt, tokens, generated, capacity });
            }
        }
        let places = match &self.decoder {
            Decoder::Static(session) => session.batch(),
            Decoder::Growing(growing) => growing.batch(),
        };
        if prompts.len() > places {
            return Err(Error::BatchFull { batch: places });
        }
        let lengths = || prompts.iter().map(Vec::len);
        if let (Decoder::Growing(_), Some(first)) = (&self.decoder, lengths().next())
            && let Some(other) = lengths().find(|other| *other != first)
        {
            return Err(Error::Ragged { first, other });
        }
        Ok(())
    }
}

/// What has been generated, and who goes on.
struct Batch<'g> {
    greedy: &'g Greedy,
    is_active: Vec<bool>,
    generated: Generated,
}

impl<'g> Batch<'g> {
    fn new(prompts: usize, greedy: &'g Greedy) -> Self {
        let generated = Generated {
            samples: vec![Vec::new(); prompts],
            prompt_tokens: 0,
            prefill: Duration::ZERO,
            steps: 0,
            decoded: 0,
            decode: Duration::ZERO,
            written_per_step: 0,
            copied: 0,
        };
        Self { greedy, is_active: vec![true; prompts], generated }
    }

    fn active(&self) -> usize {
        self.is_active.iter().filter(|is_active| **is_active).count()
    }

    fn take(&mut self, chosen: &[Option<i64>]) {
        for ((sample, is_active), chosen) in
            self.generated.samples.iter_mut().zip(&mut self.is_active).zip(chosen)
        {
            if let Some(token) = chosen {
                sample.push(*token);
                *is_active = !self.greedy.eos.contains(token);
            }
        }
    }

    /// The last token of each sample that goes on.
    fn feeds(&self) -> Vec<Option<&[i64]>> {
        let samples = self.generated.samples.iter().zip(&self.is_active);
        samples
            .map(|(sample, is_active)| {
                sample.last_chunk::<1>().filter(|_| *is_active).map(<[i64; 1]>::as_slice)
            })
            .collect()
    }
}

/// A decoder and its samples.
struct State<'d> {
    decoder: &'d mut Decoder,
    /// Places in a static cache, by prompt.
    samples: Vec<Option<Sample>>,
    copied: u64,
}

impl<'d> State<'d> {
    fn start(decoder: &'d mut Decoder, prompts: usize) -> Result<Self, Error> {
        let samples = match decoder {
            Decoder::Static(session) => {
                (0..prompts).map(|_| session.add().map(Some)).collect::<Result<_, _>>()?
            }
            Decoder::Growing(_) => Vec::new(),
        };
        Ok(Self { decoder, samples, copied: 0 })
    }

    /// Gives back the places of samples that have ended.
    fn end_all_but(&mut self, is_active: &[bool]) -> Result<(), Error> {
        let Decoder::Static(session) = &mut *self.decoder else { return Ok(()) };
        for (sample, _) in self.samples.iter_mut().zip(is_active).filter(|(_, is_active)| !**is_active) {
            sample.take().map_or(Ok(()), |sample| session.remove(sample))?;
        }
        Ok(())
    }

    /// Feeds each prompt that goes on, and chooses what follows.
    fn step(&mut self, feeds: &[Option<&[i64]>], chunk: usize) -> Result<Vec<Option<i64>>, Error> {
        match &mut *self.decoder {
            Decoder::Static(session) => {
                let given: Vec<(Sample, &[i64])> = self
                    .samples
                    .iter()
                    .zip(feeds)
                    .filter_map(|(sample, feed)| (*sample).zip(*feed))
                    .collect();
                let scores = session.prefill(&given, chunk)?;
                self.copied += session.copied();
                let choose = |(prompt, sample): (usize, &Option<Sample>)| {
                    sample.map(|sample| choose(prompt, scores.last(sample))).transpose()
                };
                self.samples.iter().enumerate().map(choose).collect()
            }
            Decoder::Growing(growing) => {
                let longest = feeds.iter().flatten().map(|feed| feed.len()).max().unwrap_or_default();
                let width = if growing.interface().is_decode_only { 1 } else { chunk.min(longest) };
                let mut chosen = vec![None; feeds.len()];
                for first in (0..longest).step_by(width.max(1)) {
                    let width = width.min(longest - first);
                    // Places that no prompt has, and samples that have ended, get token 0.
                    let token = |sample: usize, column: usize| {
                        let feed = feeds.get(sample).copied().flatten().unwrap_or_default();
                        feed.get(first + column).copied().unwrap_or_default()
                    };
                    let logits = growing.step(width, token)?;
                    if first + width < longest {
                        continue;
                    }
                    for (prompt, (chosen, _)) in
                        chosen.iter_mut().zip(feeds).enumerate().filter(|(_, (_, feed))| feed.is_some())
                    {
                        *chosen = Some(choose(prompt, logits.last(prompt).as_deref())?);
                    }
                }
                Ok(chosen)
            }
        }
    }

    fn written(&self) -> u64 {
        match &*self.decoder {
            Decoder::Static(session) => session.written(),
            Decoder::Growing(growing) => growing.written(),
        }
    }
}

fn choose(prompt: usize, scores: Option<&[f32]>) -> Result<i64, Error> {
    let scores = scores.filter(|scores| scores.iter().any(|score| !score.is_nan()));
    let best = most_likely(scores.ok_or(Error::NotANumber { prompt })?);
    Ok(i64::try_from(best).unwrap_or(i64::MAX))
}
