//! Greedy generation, over static and over growing caches.

use std::fmt;
use std::ops::ControlFlow;
use std::path::Path;
use std::time::{Duration, Instant};

use kvscatter_onnx::decoder::Growth;

use crate::decoder::Decoder;
use crate::kv_session::check_tokens;
use crate::{Engine, MemoryReport, SessionError, SessionOptions};

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

impl Generator {
    /// Loads a model with room for this many prompts: a static-cache decoder, or one whose caches grow.
    ///
    /// # Errors
    /// As [`KvSession::open`](crate::KvSession::open); [`SessionError::NoPrompts`] for none; [`SessionError::SizeFixed`] for more than
    /// the model's batch; [`SessionError::CapacityUseless`] for a capacity of caches that grow.
    pub fn open(
        engine: &dyn Engine,
        model: impl AsRef<Path>,
        prompts: usize,
        options: SessionOptions,
    ) -> Result<Self, SessionError> {
        if prompts == 0 {
            return Err(SessionError::NoPrompts);
        }
        Ok(Self { decoder: Decoder::open(engine, model.as_ref(), prompts, options)? })
    }

    /// What the caches take; `None` for caches that grow.
    #[must_use]
    pub fn memory(&self) -> Option<MemoryReport> {
        self.decoder.memory()
    }

    /// How the caches become longer with every step; `None` for static caches.
    #[must_use]
    pub fn growth(&self) -> Option<Growth> {
        self.decoder.growth()
    }

    /// How many tokens a sample can have; `None` for caches that grow.
    #[must_use]
    pub fn capacity(&self) -> Option<usize> {
        self.decoder.capacity()
    }

    /// How many tokens the model knows, if it declares it.
    #[must_use]
    pub fn vocabulary(&self) -> Option<usize> {
        self.decoder.vocabulary()
    }

    /// Continues prompts of token ids, together in one batch.
    ///
    /// `progress` is told of every token as soon as there is one more of each sample that goes on. When it breaks, the
    /// generation ends with what there is.
    ///
    /// # Errors
    /// Before anything is run, [`SessionError::PromptEmpty`], [`SessionError::PromptTokenUnknown`], [`SessionError::PromptTooLong`] where the
    /// last token would not fit, [`SessionError::BatchFull`] for more prompts than places, [`SessionError::Ragged`] for prompts of
    /// different lengths where caches grow; then [`SessionError::Run`], [`SessionError::MemoryLimit`] for caches that have grown too
    /// large, and [`SessionError::NotANumber`] for scores that are none.
    pub fn generate(
        mut self,
        prompts: &[Vec<i64>],
        greedy: &Greedy,
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
        batch.generated.prompt_tokens = prompts.iter().map(Vec::len).sum();
        batch.generated.prefill = started.elapsed();
        batch.take(&chosen);
        let started = Instant::now();
        for tokens in 1..=greedy.tokens {
            let samples = batch.active();
            let flow = progress(Progress { tokens, samples });
            if flow.is_break() || samples == 0 || tokens == greedy.tokens {
                break;
            }
            self.decoder.end_all_but(&batch.is_active)?;
            let chosen = self.decoder.step(&batch.feeds(), usize::MAX)?;
            batch.generated.steps += 1;
            batch.generated.decoded += samples;
            batch.generated.written_per_step = self.decoder.written();
            batch.take(&chosen);
        }
        batch.generated.decode = started.elapsed();
        batch.generated.copied = self.decoder.copied();
        Ok(batch.generated)
    }

    fn check(&self, prompts: &[Vec<i64>], greedy: &Greedy) -> Result<(), SessionError> {
        if prompts.is_empty() {
            return Err(SessionError::NoPrompts);
        }
        if greedy.chunk == 0 {
            return Err(SessionError::NoChunk);
        }
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
            // The last token that is generated is never fed.
            let slots = tokens.len().saturating_add(greedy.tokens.saturating_sub(1));
            if let Some(capacity) = self.capacity().filter(|capacity| slots > *capacity) {
                let (tokens, generated) = (tokens.len(), greedy.tokens);
                return Err(SessionError::PromptTooLong { prompt, tokens, generated, capacity });
            }
        }
        let batch = self.decoder.batch();
        if prompts.len() > batch {
            return Err(SessionError::BatchFull { batch });
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
